# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# model_lib.sh: what the tests on the model share; sourced. Skips the test where there is nothing to run or to compile with.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
case ${ATTN_TEST_SANITIZERS:-no} in
no) ;;
*) skip "kernels on the model" "sanitizers are in the library alone" && tap_done ;;
esac
for file in "$ATTN_TEST_PLUGIN_DIR/triton_like.so" "$ATTN_TEST_PLUGIN_DIR/reference.so" \
    "$ATTN_TEST_BUILDDIR/tests/model/.libs/model_driver.so"; do
    [ -e "$file" ] || { skip "kernels on the model" "there is no ${file##*/}" && tap_done; }
done
on_model() { # ARCH COMMAND..
    "$ATTN_TEST_SRCDIR/tests/model/on_model" "$@"
}
# A prompt, the end of a prompt and a decode, in heads of 128 unless MORE says else.
problem_of() { # DTYPE CACHE [MORE [BATCH]]
    echo "role=decoder mask=causal dtype=$1 kv_cache_dtype=$2 block_size=16 ${3:-num_heads=8 num_kv_heads=2 head_size=128} \
features=lse | ${4:-query_lens=1,200,70 seq_lens=193,275,370}"
}
# Says what the comparison with REFERENCE said; fails where it is not within tolerance.
is_right() { # ARCH PROBLEM
    case $2 in role=mla*) backend=TRITON_MLA ;; *) backend=TRITON_ATTN ;; esac
    said=$(on_model "$1" timeout 400 env ATTN_CONFIG="$ATTN_TEST_INI" \
        "$ATTN_TEST_BUILDDIR/tools/attn" run --backend $backend --problem "$2" 2>&1)
    printf '%s\n' "$said"
    case $said in *"_ATTN: ok, "* | *"_MLA: ok, "*) return 0 ;; esac
    return 1
}
said=$(is_right 80 "$(problem_of float16 auto "num_heads=2 num_kv_heads=1 head_size=64" "query_lens=1 seq_lens=40")") ||
    case $said in *"libnvrtc"* | *"no NVRTC"*) skip "kernels on the model" "there is no NVRTC" && tap_done ;; esac
