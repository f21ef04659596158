# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# machine_code.sh: sourced after tap.sh; $dump is cuobjdump, and a test without it is skipped.
dump=${CUOBJDUMP:-cuobjdump}
command -v "$dump" >/dev/null 2>&1 || dump=${CUDA_HOME:-/usr/local/cuda}/bin/cuobjdump
if ! command -v "$dump" >/dev/null 2>&1; then
    echo "1..0 # SKIP no cuobjdump (it comes with the CUDA toolkit; CUOBJDUMP names it)"
    exit 0
fi
