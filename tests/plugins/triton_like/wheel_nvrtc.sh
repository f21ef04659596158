#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# wheel_nvrtc.sh: a plugin that pip installed takes the NVRTC that pip installed beside it, before any other of the
# machine; a plugin elsewhere, or one beside which others may write, does not. The NVRTC here is one that says its name.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
none() { # WHY
    skip "NVRTC beside the wheel" "$1"
    tap_done
}
[ -z "$ATTN_TEST_SANITIZERS" ] || [ "$ATTN_TEST_SANITIZERS" = no ] || none "a build with sanitizers is not given to others"
[ -e "$ATTN_TEST_PLUGIN_DIR/triton_like.so" ] || none "there is no triton_like.so"
command=$ATTN_TEST_BUILDDIR/tools/.libs/attn
[ -e "$command" ] || none "libattn was built without a shared library"
umask 022
cat >"$tap_scratch/nvrtc.c" <<'PROGRAM'
#include <string.h>
int nvrtcVersion(int *major, int *minor) { *major = 13, *minor = 99; return 0; }
int nvrtcCreateProgram(void **p, const char *s, const char *n, int k, const char *const *h, const char *const *i) {
    (void)s, (void)n, (void)k, (void)h, (void)i;
    *p = "";
    return 0;
}
int nvrtcCompileProgram(void *p, int n, const char *const *options) { (void)p, (void)n, (void)options; return 6; }
int nvrtcGetCUBINSize(void *p, size_t *size) { (void)p; *size = 0; return 6; }
int nvrtcGetCUBIN(void *p, char *cubin) { (void)p, (void)cubin; return 6; }
int nvrtcGetPTXSize(void *p, size_t *size) { (void)p; *size = 0; return 6; }
int nvrtcGetPTX(void *p, char *ptx) { (void)p, (void)ptx; return 6; }
int nvrtcGetProgramLogSize(void *p, size_t *size) { (void)p; *size = sizeof "error: " NAME; return 0; }
int nvrtcGetProgramLog(void *p, char *log) { (void)p; strcpy(log, "error: " NAME); return 0; }
int nvrtcDestroyProgram(void **p) { (void)p; return 0; }
const char *nvrtcGetErrorString(int code) { (void)code; return "refused"; }
PROGRAM
site=$tap_scratch/site-packages
installed=$site/libattn/_native/lib/attn
mkdir -m 700 "$tap_scratch/kept"
mkdir -p "$installed" "$site/nvidia/cu13/lib" "$site/nvidia/cuda_nvrtc/lib" "$tap_scratch/else/lib/attn"
make_nvrtc() { # NAME FILE
    $ATTN_TEST_CC -shared -fPIC -DNAME="\"$1\"" -o "$2" "$tap_scratch/nvrtc.c"
}
ok "an NVRTC is made" make_nvrtc "that of cu13" "$site/nvidia/cu13/lib/libnvrtc.so.13"
ok "and one as of CUDA 12" make_nvrtc "that of cuda_nvrtc" "$site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
ok "and one of the dynamic linker" make_nvrtc "that of the machine" "$tap_scratch/else/libnvrtc.so.13"
for folder in "$installed" "$tap_scratch/else/lib/attn"; do
    cp "$ATTN_TEST_BUILDDIR/core/.libs/libattn.so.0" "$folder/../"
    cp "$ATTN_TEST_PLUGIN_DIR/triton_like.so" "$folder/"
    chmod go-w "$folder/../libattn.so.0" "$folder/triton_like.so"
done

says() { # WHAT FOLDER [OPTION]: what the NVRTC says that the plugin of that folder takes; libattn lies in the one above
    printf '[attn]\nplugins = triton_like\n[option triton_like]\n%s\n' "${3-}" >"$tap_scratch/attn.ini"
    LD_LIBRARY_PATH="${2%/attn}:$tap_scratch/else${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ATTN_CONFIG="$tap_scratch/attn.ini" \
        "$command" compile role=decoder num_heads=8 num_kv_heads=2 head_size=64 --device sm_90 \
        --cache-dir "$tap_scratch/kept" >"$tap_scratch/said" 2>&1
    cat "$tap_scratch/said"
    grep -qF "error: $1" "$tap_scratch/said"
}
ok "the wheel's plugin takes pip's" says "that of cu13" "$installed"
ok "a plugin elsewhere takes the dynamic linker's" says "that of the machine" "$tap_scratch/else/lib/attn"
ok "the option comes first" says "that of the machine" "$installed" "nvrtc = $tap_scratch/else/libnvrtc.so.13"
chmod o+w "$site"
ok "where others may write, nothing beside the wheel is taken" says "that of the machine" "$installed"
chmod o-w "$site"
rm -r "$site/nvidia/cu13"
ok "without CUDA 13's, CUDA 12's" says "that of cuda_nvrtc" "$installed"
rm -r "$site/nvidia"
ok "without either, the dynamic linker's" says "that of the machine" "$installed"
tap_done
