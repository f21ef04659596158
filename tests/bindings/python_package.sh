#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Python package over this build's library: the structs against the C compiler, then the calls, once through
# ctypes and once through the compiled module where Python's headers are installed. No numpy, no torch.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"

source=$ATTN_TEST_SRCDIR/bindings/python
python=${PYTHON3:-python3}
library=$ATTN_TEST_BUILDDIR/core/.libs/libattn.so.0
none() { # WHY
    skip "the Python package" "$1"
    tap_done
}
$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || none "no Python 3.11 or newer"
$python -c 'import ctypes' 2>/dev/null || none "Python without ctypes"
[ -e "$library" ] || none "libattn was built without a shared library"
[ -z "$ATTN_TEST_SANITIZERS" ] || [ "$ATTN_TEST_SANITIZERS" = no ] || none "sanitizers want to be loaded before Python"

mkdir "$tap_scratch/libattn"
cp "$source"/libattn/*.py "$tap_scratch/libattn/"
export PYTHONPATH="$tap_scratch" PYTHONDONTWRITEBYTECODE=1 LIBATTN_LIBRARY="$library" ATTN_CONFIG="$ATTN_TEST_INI"
generate() { $python "$source/generate_abi.py" "$ATTN_TEST_SRCDIR/include" "$@"; }
ok "structs and constants are generated from the headers" generate "$tap_scratch/libattn/_abi.py"

compiler_agrees() {
    generate --check-program "$tap_scratch/check.c" &&
        $ATTN_TEST_CC -I"$ATTN_TEST_SRCDIR/include" -o "$tap_scratch/check" "$tap_scratch/check.c" &&
        "$tap_scratch/check" >"$tap_scratch/of_c" &&
        $python -c 'from libattn import _abi; print(_abi.describe(), end="")' >"$tap_scratch/of_python" &&
        [ "$(wc -l <"$tap_scratch/of_c")" -gt 400 ] && diff "$tap_scratch/of_c" "$tap_scratch/of_python"
}
ok "sizes, offsets and constants are those of the C compiler" compiler_agrees
exported() { # every function of attn.h and attn_plan.h that the library exports is known, with its types
    $python - <<'PROGRAM'
from libattn import _abi, _load
for name in _abi.FUNCTIONS:
    getattr(_load.library, name)
assert len(_abi.FUNCTIONS) > 90, len(_abi.FUNCTIONS)
PROGRAM
}
ok "the library has every function of the headers" exported

calls() { # NAME: the checks of package_test.py, renumbered
    $python "$ATTN_TEST_SRCDIR/tests/bindings/package_test.py" >"$tap_scratch/calls" 2>&1 || echo "not ok - exit status" \
        >>"$tap_scratch/calls"
    number=-1
    while IFS= read -r line; do
        case $line in
        "ok - "*) number=$((number + 1)) && pass "$1: ${line#ok - }" ;;
        "not ok - "*) number=$((number + 1)) && fail "$1: ${line#not ok - }" "$(sed -n "s/^#$number //p" "$tap_scratch/calls")" ;;
        esac
    done <"$tap_scratch/calls"
    grep -q '^done$' "$tap_scratch/calls" || fail "$1: ran to its end" "$(tail -n 30 "$tap_scratch/calls")"
}
calls ctypes
include=$($python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
if [ -e "$include/Python.h" ]; then
    compile() {
        $ATTN_TEST_CC -std=c11 -Wall -Wextra -Werror -O2 -fPIC -shared -I"$include" -I"$ATTN_TEST_SRCDIR/include" \
            -o "$tap_scratch/libattn/_fast.abi3.so" "$source/libattn/_fast.c"
    }
    ok "the compiled module builds without a warning" compile
    calls compiled
else
    skip "the compiled module" "no Python.h: install python3-dev"
fi
tap_done
