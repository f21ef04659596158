#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The seams of vLLM and SGLang: libattn.vllm and libattn.sglang over stand-ins of the engines' classes, where Python has
# torch. With the engines themselves: vllm_layers.py and sglang_layers.py --sglang in bindings/python/tests.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"

source=$ATTN_TEST_SRCDIR/bindings/python
python=${PYTHON3:-python3}
library=$ATTN_TEST_BUILDDIR/core/.libs/libattn.so.0
none() { # WHY
    skip "the seams of vLLM and SGLang" "$1"
    tap_done
}
$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || none "no Python 3.11 or newer"
$python -c 'import torch' 2>/dev/null || none "Python has no torch; PYTHON3 names another one"
[ -e "$library" ] || none "libattn was built without a shared library"
[ -z "$ATTN_TEST_SANITIZERS" ] || [ "$ATTN_TEST_SANITIZERS" = no ] || none "sanitizers want to be loaded before Python"

mkdir "$tap_scratch/libattn"
cp -r "$source"/libattn/*.py "$source/libattn/sglang" "$source/libattn/vllm" "$tap_scratch/libattn/"
export PYTHONPATH="$tap_scratch" PYTHONDONTWRITEBYTECODE=1 LIBATTN_LIBRARY="$library" ATTN_CONFIG="$ATTN_TEST_INI"
$python "$source/generate_abi.py" "$ATTN_TEST_SRCDIR/include" "$tap_scratch/libattn/_abi.py"
for program in vllm_seam sglang_layers; do
    $python "$source/tests/$program.py" >"$tap_scratch/lines" 2>"$tap_scratch/errors"
    status=$?
    count=0
    while IFS= read -r line; do
        case $line in
        "ok "*" - "*) pass "$program: ${line#* - }" ;;
        "not ok "*" - "*) fail "$program: ${line#* - }" ;;
        "#"*) echo "$line" ;;
        *) continue ;;
        esac
        count=$((count + 1))
    done <"$tap_scratch/lines"
    [ $status -eq 0 ] && [ $count -gt 0 ] || fail "$program ran to its end" "$(tail -n 30 "$tap_scratch/errors")"
done
tap_done
