#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# gen_wgmma.sh [N...]: writes a header with one inline function per (form, N, type) of wgmma.mma_async m64nNk16 to standard
# output; include ptx_sm80.cuh before it. Where ATTN_WGMMA_S and ATTN_WGMMA_O are defined, only these two N are compiled.
# Forms: ssz = both operands in shared memory, D = A*B (write-only D: the old accumulator is not an input, so the
# compiler need not keep it alive); ss = D += A*B; rs = A from registers, B MN-major (V), D += A*B; sst = A from shared
# memory, B MN-major, D += A*B; rkz, rk = as ssz and ss with A from registers;
# rsp = rs, but D = A*B where `keep` is 0. With ATTN_WGMMA_INT8 set also i8z, i8: as ssz and ss
# for m64nNk32 of int8, whose sums are int32.
set -eu
[ $# -gt 0 ] || set -- 16 32 64 72 80 96 112 128 160 176 192 256
awk -v sizes="$*" -v int8="${ATTN_WGMMA_INT8:-0}" 'function list(n, i, s) { s = "%0"; for (i = 1; i < n; i++) s = s ", %" i; return s }
function ops(n, c, i, s) { s = ""; for (i = 0; i < n; i++) s = s (i ? ", " : "") "\"" c "\"(d[" i "])"; return s }
function decl(form, n, dt, tail) {
    printf "template <> struct wgmma_%s<%d, %s> {\n    static ATTN_DEV void run(float (&d)[%d], %s) {\n", form, n, dt, n / 2, tail }
function registers(form, n, dt, ins, compare, transposed, c, r) {
    r = n / 2; decl(form, n, dt, "const uint32_t *a, uint64_t b")
    printf "        asm volatile(\"{.reg .pred p; setp.%s.b32 p, 0, 0; %s {%s}, {%%%d, %%%d, %%%d, %%%d}, %%%d, p, 1, 1, %d;}\" : %s : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b));\n    }\n};\n", compare, ins, list(r), r, r + 1, r + 2, r + 3, r + 4, transposed, ops(r, c) }
function started(n, dt, ins, r) {
    r = n / 2; decl("rsp", n, dt, "const uint32_t *a, uint64_t b, int keep")
    printf "        asm volatile(\"{.reg .pred p; setp.ne.b32 p, %%%d, 0; %s {%s}, {%%%d, %%%d, %%%d, %%%d}, %%%d, p, 1, 1, 1;}\" : %s : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b), \"r\"(keep));\n    }\n};\n", r + 5, ins, list(r), r, r + 1, r + 2, r + 3, r + 4, ops(r, "+f") }
function bytes(form, n, compare, c, r) {
    r = n / 2
    printf "template <> struct wgmma_%s<%d> {\n    static ATTN_DEV void run(int (&d)[%d], uint64_t a, uint64_t b) {\n", form, n, r
    printf "        asm volatile(\"{.reg .pred p; setp.%s.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n%dk32.s32.s8.s8 {%s}, %%%d, %%%d, p;}\" : %s : \"l\"(a), \"l\"(b));\n    }\n};\n", compare, n, list(r), r, r + 1, ops(r, c) }
BEGIN {
    print "/* Written by gen_wgmma.sh; do not edit. */"
    print "#ifndef ATTN_WGMMA_SM90_CUH\n#define ATTN_WGMMA_SM90_CUH\nnamespace attn_cuda {"
    print "template <int N, int DT> struct wgmma_ssz;\ntemplate <int N, int DT> struct wgmma_ss;\ntemplate <int N, int DT> struct wgmma_rs;\ntemplate <int N, int DT> struct wgmma_sst;\ntemplate <int N, int DT> struct wgmma_rkz;\ntemplate <int N, int DT> struct wgmma_rk;\ntemplate <int N, int DT> struct wgmma_rsp;"
    if (int8) print "template <int N> struct wgmma_i8z;\ntemplate <int N> struct wgmma_i8;"
    split(sizes, ns, " "); split("f16 bf16", ts, " "); dt["f16"] = "DT_F16"; dt["bf16"] = "DT_BF16"
    for (a = 1; a in ns; a++) for (b = 1; b in ts; b++) {
        n = ns[a]; if (b == 1) printf "#if !defined(ATTN_WGMMA_S) || ATTN_WGMMA_S == %d || ATTN_WGMMA_O == %d\n", n, n; t = ts[b]; r = n / 2; ins = "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." t "." t
        decl("ssz", n, dt[t], "uint64_t a, uint64_t b")
        printf "        asm volatile(\"{.reg .pred p; setp.ne.b32 p, 0, 0; %s {%s}, %%%d, %%%d, p, 1, 1, 0, 0;}\" : %s : \"l\"(a), \"l\"(b));\n    }\n};\n", ins, list(r), r, r + 1, ops(r, "=f")
        decl("ss", n, dt[t], "uint64_t a, uint64_t b")
        printf "        asm volatile(\"{.reg .pred p; setp.eq.b32 p, 0, 0; %s {%s}, %%%d, %%%d, p, 1, 1, 0, 0;}\" : %s : \"l\"(a), \"l\"(b));\n    }\n};\n", ins, list(r), r, r + 1, ops(r, "+f")
        decl("sst", n, dt[t], "uint64_t a, uint64_t b")
        printf "        asm volatile(\"{.reg .pred p; setp.eq.b32 p, 0, 0; %s {%s}, %%%d, %%%d, p, 1, 1, 0, 1;}\" : %s : \"l\"(a), \"l\"(b));\n    }\n};\n", ins, list(r), r, r + 1, ops(r, "+f")
        registers("rs", n, dt[t], ins, "eq", 1, "+f"); registers("rkz", n, dt[t], ins, "ne", 0, "=f"); registers("rk", n, dt[t], ins, "eq", 0, "+f"); started(n, dt[t], ins)
        if (int8 && b == 1 && n % 16 == 0) { bytes("i8z", n, "ne", "=r"); bytes("i8", n, "eq", "+r") }
        if (!((b + 1) in ts)) print "#endif"
    }
    print "} /* namespace attn_cuda */\n#endif"
}' </dev/null
