#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# gen_wgmma_e4m3.sh [N...]: writes a header with the forms of wgmma.mma_async m64nNk32 on e4m3 bytes to standard output;
# include ptx_sm80.cuh before it. Bytes must be K-major in shared memory, so there is no transposed form.
# Forms: rsz8 = A from registers, B in shared memory, D = A*B (write-only D: the old accumulator is not an input, so
# the compiler need not keep it alive); rs8 = D += A*B; ssz8, ss8 = the same with A in shared memory.
set -eu
[ $# -gt 0 ] || set -- 128
awk -v sizes="$*" 'function list(n, i, s) { s = "%0"; for (i = 1; i < n; i++) s = s ", %" i; return s }
function ops(n, c, i, s) { s = ""; for (i = 0; i < n; i++) s = s (i ? ", " : "") "\"" c "\"(d[" i "])"; return s }
function form(name, n, compare, c, r) {
    r = n / 2
    printf "template <> struct wgmma_%s<%d> {\n    static ATTN_DEV void run(float (&d)[%d], const uint32_t *a, uint64_t b) {\n", name, n, r
    printf "        asm volatile(\"{.reg .pred p; setp.%s.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n%dk32.f32.e4m3.e4m3 {%s}, {%%%d, %%%d, %%%d, %%%d}, %%%d, p, 1, 1;}\" : %s : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b));\n    }\n};\n", compare, n, list(r), r, r + 1, r + 2, r + 3, r + 4, ops(r, c)
}
function form_ss(name, n, compare, c, r) {
    r = n / 2
    printf "template <> struct wgmma_%s<%d> {\n    static ATTN_DEV void run(float (&d)[%d], uint64_t a, uint64_t b) {\n", name, n, r
    printf "        asm volatile(\"{.reg .pred p; setp.%s.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n%dk32.f32.e4m3.e4m3 {%s}, %%%d, %%%d, p, 1, 1;}\" : %s : \"l\"(a), \"l\"(b));\n    }\n};\n", compare, n, list(r), r, r + 1, ops(r, c)
}
BEGIN {
    print "/* Written by gen_wgmma_e4m3.sh; do not edit. */"
    print "#ifndef ATTN_WGMMA_E4M3_SM90_CUH\n#define ATTN_WGMMA_E4M3_SM90_CUH\nnamespace attn_cuda {"
    print "template <int N> struct wgmma_rsz8;\ntemplate <int N> struct wgmma_rs8;"
    print "template <int N> struct wgmma_ssz8;\ntemplate <int N> struct wgmma_ss8;"
    split(sizes, ns, " ")
    for (a = 1; a in ns; a++) { form("rsz8", ns[a], "ne", "=f"); form("rs8", ns[a], "eq", "+f"); form_ss("ssz8", ns[a], "ne", "=f"); form_ss("ss8", ns[a], "eq", "+f") }
    print "} /* namespace attn_cuda */\n#endif"
}' </dev/null
