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

run() { # PROGRAM NAME: its lines, renumbered
    program=$1 name=$2
    $python "$source/tests/$program.py" >"$tap_scratch/lines" 2>"$tap_scratch/errors"
    status=$?
    count=0
    while IFS= read -r line; do
        case $line in
        "ok "*" - "*) pass "$name: ${line#* - }" ;;
        "not ok "*" - "*) fail "$name: ${line#* - }" ;;
        "#"*) echo "$line" ;;
        *) continue ;;
        esac
        count=$((count + 1))
    done <"$tap_scratch/lines"
    [ $status -eq 0 ] && [ $count -gt 0 ] || fail "$name ran to its end" "$(tail -n 30 "$tap_scratch/errors")"
}
run vllm_seam vllm_seam
run sglang_layers sglang_layers
# The same with one backend for decode and another for prefill.
(umask 022 && {
    cat "$ATTN_TEST_INI" && printf 'log = info\n'
    for role in decoder mla; do printf '[select %s]\ndecode_priority = CPU_ATTN\nprefill_priority = REFERENCE\n' $role; done
} >"$tap_scratch/two.ini")
ATTN_CONFIG=$tap_scratch/two.ini
run vllm_seam "vllm_seam, two backends"
run sglang_layers "sglang_layers, two backends"
ok "two did it" grep -q "served by libattn: decode CPU_ATTN, prefill REFERENCE" "$tap_scratch/lines"
tap_done
