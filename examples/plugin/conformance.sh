#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# conformance.sh: the plugin as built, under libattn's conformance kit.
exec "${ATTN:-attn}" check .libs/simple.so "$@"
