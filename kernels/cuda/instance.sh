#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# instance.sh FOLDER/FAMILY-A-B.cu: the source of one instance of a family of kernels, to standard output: the family's
# header and INSTANCE(A, B), which the header defines.
set -eu
name=$(basename "$1" .cu)
folder=$(basename "$(dirname "$1")")
echo "/* Written by instance.sh; do not edit. */"
echo "#include \"kernels/cuda/$folder/${name%%-*}.cuh\""
echo "INSTANCE($(echo "${name#*-}" | sed 's/-/, /g'))"
