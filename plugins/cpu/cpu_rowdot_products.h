/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of the row-dot path, their prefetches, and both products for every element type. Included by
 * cpu_rowdot.h. */

/* One tile of tokens of one head: row pointers of head 0 plus the head's offset; the same for the next tile,
 * which comes into L1 (into_l2: into L2) meanwhile, and for the one after it, which comes into L2 where the
 * line buffers of L1 do not keep memory busy (cpu_tiling.far). NULL: there is none. */
struct rd_tile {
    int n, n_used; /* tokens rounded up to the vector width, and truly used */
    int into_l2;
    int k_tail,
        v_tail; /* last byte of a row whose scale lies behind it, which may be in a line of its own; or 0 */
    const char *const *k, *const *v, *const *k_next, *const *v_next, *const *k_far, *const *v_far;
    const char *const *k_rows, *const *v_rows; /* of the next tile, token by token */
    const char *const *groups_next; /* pointers to its scales that lie apart, as rd_pointers has them */
    int64_t k_groups_next, v_groups_next;
    int64_t k_off, v_off, k_next_off, v_next_off, k_far_off, v_far_off;
};

SI void rd_near(const struct rd_tile *x, const char *p) {
    if (x->into_l2)
        v_prefetch_l2(p);
    else
        v_prefetch(p);
}

/* Prefetches of byte b of the rows t to t + n - 1 of K; and of row t of V. */
SI void rd_far_k(const struct rd_tile *x, int t, const int n, int b) {
    UNROLL for (int i = 0; i < n; i++) v_prefetch_l2(x->k_far[t + i] + x->k_far_off + b);
}
SI void rd_fetch_k(const struct rd_tile *x, int t, const int n, int b) {
    if (x->into_l2)
        UNROLL for (int i = 0; i < n; i++) v_prefetch_l2(x->k_next[t + i] + x->k_next_off + b);
    else
        UNROLL for (int i = 0; i < n; i++) v_prefetch(x->k_next[t + i] + x->k_next_off + b);
    if (x->k_far) rd_far_k(x, t, n, b);
}
SI void rd_fetch_v(const struct rd_tile *x, int t, int b) {
    rd_near(x, x->v_next[t] + x->v_next_off + b);
    if (x->v_far) v_prefetch_l2(x->v_far[t] + x->v_far_off + b);
}

/* The end of rows that are no whole chunks: from byte b, and the last one's line. */
SI void rd_fetch_k_rest(const struct rd_tile *x, int t, const int n, int b, int end) {
    rd_fetch_k(x, t, n, b);
    rd_fetch_k(x, t, n, end - 1);
}

SI void rd_fetch_k_tail(const struct rd_tile *x, int t, const int n) {
    if (x->k_next && x->k_tail) rd_fetch_k(x, t, n, x->k_tail);
}
SI void rd_fetch_v_tail(const struct rd_tile *x, int t) {
    if (x->v_next && x->v_tail) rd_fetch_v(x, t, x->v_tail);
}

/* Whether the next tiles come by all prefetches of rows of bytes; the same, known to the compiler, which
 * keeps tests and what they need out of the loops. `tail`: whether V's rows end with their scales. */
SI int rd_has_all(const struct rd_tile *x, int tail) {
    return !x->into_l2 && x->k_next && x->v_next && x->k_far && x->v_far && !x->k_tail && !x->v_tail == !tail;
}
SI struct rd_tile rd_fetches_all(const struct rd_tile *x, const int tail) {
    struct rd_tile y = *x;
    if (!rd_has_all(x, tail)) __builtin_unreachable();
    y.into_l2 = y.k_tail = 0;
    if (!tail) y.v_tail = 0;
    return y;
}

#if CPU_X86 >= 2 || CPU_LEVEL == 6 /* 32 registers of a vector each */
#define RD_NC 2
#else
#define RD_NC 1
#endif

#define RD_TYPE f32
#define RD_ENUM CPU_F32
#define RD_SIZE 4
#include "cpu_rowdot_kernel.h"
#define RD_TYPE f16
#define RD_ENUM CPU_F16
#define RD_SIZE 2
#include "cpu_rowdot_kernel.h"
#define RD_TYPE bf16
#define RD_ENUM CPU_BF16
#define RD_SIZE 2
#include "cpu_rowdot_kernel.h"
#define RD_TYPE e4m3
#define RD_ENUM CPU_E4M3
#define RD_SIZE 1
#include "cpu_rowdot_kernel.h"
#define RD_TYPE e5m2
#define RD_ENUM CPU_E5M2
#define RD_SIZE 1
#include "cpu_rowdot_kernel.h"
#define RD_TYPE i8
#define RD_ENUM CPU_I8
#define RD_SIZE 1
#include "cpu_rowdot_kernel.h"

typedef void rd_qk_func(const struct rd_tile *, const float *q, int ldq, int D, int rows, float *s);
typedef void rd_pv_func(const struct rd_tile *, const float *p, float *o, int ldo, int D, int rows);
static rd_qk_func *const rd_qk[CPU_NUM_DTYPES] = {rd_qk_f32,  rd_qk_f16, rd_qk_bf16, rd_qk_e4m3,
                                                  rd_qk_e5m2, rd_qk_i8,  rd_qk_i8};
static rd_pv_func *const rd_pv[CPU_NUM_DTYPES] = {rd_pv_f32,  rd_pv_f16, rd_pv_bf16, rd_pv_e4m3,
                                                  rd_pv_e5m2, rd_pv_i8,  rd_pv_i8};
