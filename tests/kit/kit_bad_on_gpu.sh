#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_bad_on_gpu.sh: leaks are caught on a GPU too, whose driver keeps a little of each run for itself. The driver is
# layer_fake_driver.c; the plugins say CUDA and compute on the host.
wanted_groups="leaks nothing"
good_groups=leaks
build_flags=-DBAD_ON_GPU
driver=${ATTN_TEST_BUILDDIR:?}/tests/layer/.libs/layer_fake_driver.so
. "${ATTN_TEST_SRCDIR:?}/tests/kit/kit_bad_run.sh"
