#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_rust.sh: examples/plugin-rust builds with bindgen and rustc, passes its own tests and the kit, and a fault in it
# does not.
. "${ATTN_TEST_SRCDIR:?}/tests/tap.sh"
attn=$ATTN_TEST_BUILDDIR/tools/attn
log=$tap_scratch/log
unset MAKEFLAGS MFLAGS MAKELEVEL
for tool in bindgen rustc make; do
    command -v $tool >/dev/null 2>&1 || {
        echo "1..0 # SKIP there is no $tool"
        exit 0
    }
done
case $ATTN_TEST_SANITIZERS in
'' | no) ;;
*)
    echo "1..0 # SKIP a plugin of another compiler is no work for a sanitizer"
    exit 0
    ;;
esac
# rustup's commands are there without a toolchain, and bindgen without the libclang that it loads
rustc --version >"$log" 2>&1 && echo 'int x;' >"$tap_scratch/x.h" && bindgen "$tap_scratch/x.h" >"$log" 2>&1 || {
    echo "1..0 # SKIP rustc or bindgen does not run: $(head -n 1 "$log")"
    exit 0
}
chmod 700 "$tap_scratch"
mkdir "$tap_scratch/plugin" && cd "$tap_scratch/plugin" || exit 1
cp "$ATTN_TEST_SRCDIR"/examples/plugin-rust/* . && chmod u+w ./*
if make SDK_CFLAGS="-I$ATTN_TEST_SRCDIR/include" ATTN="$attn" check >"$log" 2>&1; then
    pass "the example in Rust builds and passes its tests and the kit"
else
    fail "the example in Rust builds and passes its tests and the kit" "$(grep -v '^ok' "$log" | tail -n 30)"
fi
sed -i 's/q - self.window + 1/q - self.window/' rules.rs
make SDK_CFLAGS="-I$ATTN_TEST_SRCDIR/include" rust_attn.so >"$log" 2>&1
"$attn" check ./rust_attn.so --group numerics --max-failures 1 >"$log" 2>&1
status=$?
if [ $status -eq 1 ]; then pass "a window of one token more is found"; else
    fail "a window of one token more is found" "status $status
$(tail -n 5 "$log")"
fi
tap_done
