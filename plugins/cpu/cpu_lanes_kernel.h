/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes-are-queries path, included once per arithmetic: LN_BF16 0 (f32 FMA) or 1 (products of bf16
 * pairs), the latter with LN_AMX 1 by tiles.
 *
 * S^T = K Q^T and O^T += V^T P^T: a vector register holds VW query rows, K and V enter as broadcasts. Both
 * products are one micro kernel, C[M][L] += A[M][k] * B[k][L] with M x NR accumulators; softmax is vertical,
 * so no horizontal reduction anywhere, and head sizes are loop counts. A tile of LN_BK keys is prepared once
 * (converted to f32, or V interleaved in pairs) and serves num_sub sub-blocks of L = LN_NR * VW rows. m is in
 * log2 units from the start. */

#define LN_CAT_(a, b) a##b
#define LN_CAT(a, b)  LN_CAT_(a, b)
#if LN_AMX
#define LN_(name) LN_CAT(name, _amx)
#define LN_STEP   2
#elif LN_BF16
#define LN_(name) LN_CAT(name, _bf16)
#define LN_STEP   2 /* keys per row of P and V; elements per step of QK */
#else
#define LN_(name) LN_CAT(name, _f32)
#define LN_STEP   1
#endif
enum { LN_(ln_L) = LN_NR * VW };
#define LN_L LN_(ln_L)

#include "cpu_lanes_state.h"
#if LN_AMX
#include "cpu_lanes_tiles.h"
#else
#include "cpu_lanes_product.h"
#endif
#include "cpu_lanes_pack.h"
#include "cpu_lanes_softmax.h"
#include "cpu_lanes_index.h"

static void LN_(ln_item)(const struct cpu_attn *a, const struct cpu_seq *sq, const struct cpu_item *it,
                         char *scratch, float *parts) {
    struct LN_(ln_state) st;
    struct cpu_mask_bounds all;
    const int64_t ko = (int64_t)it->head0 * a->k.head, vo = (int64_t)it->head0 * a->v.head;
    const int ns = (it->row1 - it->row0 + LN_L - 1) / LN_L, kh = a->scale_per_head ? it->head0 : 0;
    const float c = a->scale * a->q_scale * (a->k_scale ? a->k_scale[kh] : 1.0f) *
                    (LN_BF16 ? 1.0f : dtype_gain(a->kv_dtype));
    const int modified =
        a->soft_cap > 0 || a->alibi || a->rel_bias || a->qq_bias || cpu_scales_keys(a) || c <= 0;
    LN_(ln_carve)(&st, a, ns, scratch);
    packed_begin(a, &st.turbo);
#if LN_AMX
    amx_begin();
#endif
    st.pf_off[0] = ko;
    st.pf_off[1] = vo;
    st.pf_bytes[0] = cpu_row_bytes(a->kv_dtype == CPU_PACKED ? a->k_row : a->kv_dtype, a->head_size);
    st.pf_bytes[1] = cpu_row_bytes(a->kv_dtype == CPU_PACKED ? a->v_row : a->kv_dtype, a->head_size_v);
    st.pf_lines = 1 + (LN_BK / ns + 1) * (st.pf_bytes[0] + st.pf_bytes[1]) / 64 / LN_QK_CALLS;
    cpu_bounds_init(&all);
    for (int b = 0; b < ns; b++) {
        LN_(ln_begin)(a, sq, it, &st, b);
        cpu_bounds_join(&all, &st.bounds[b]);
    }
    const int end = cpu_bounds_end(&all);
    LN_(ln_fetch_first)(a, sq, &st, &all, end);
    for (int k0 = cpu_bounds_first(&all) / LN_BK * LN_BK; k0 < end; k0 += LN_BK) {
        const int n = cpu_min(end - k0, LN_BK);
        if (cpu_bounds_cover(&all, k0, k0 + n) == CPU_COVER_NONE) {
            if (all.lo_min[0] >= k0 + LN_BK && all.hi_max[1] <= k0)
                k0 = all.lo_min[0] / LN_BK * LN_BK - LN_BK;
            continue;
        }
        LN_(ln_prepare)(a, sq, it, &st, &all, k0, n);
        const int ahead = k0 + LN_BK < end;
        st.pf_row = st.pf_end = st.pf_side = st.pf_at = 0;
        if (ahead) {
            row_pointers(a, sq, &a->k, k0 + LN_BK, LN_BK, &all, st.kn);
            row_pointers(a, sq, &a->v, k0 + LN_BK, LN_BK, &all, st.vn);
        }
        for (int b = 0; b < ns; b++) {
            if (ahead) st.pf_end = LN_BK * (b + 1) / ns;
            const int nb = cpu_min(n, cpu_bounds_end(&st.bounds[b]) - k0);
            const enum cpu_cover cover =
                nb > 0 ? cpu_bounds_cover(&st.bounds[b], k0, k0 + nb) : CPU_COVER_NONE;
            if (cover == CPU_COVER_NONE) continue;
            const int nr = LN_(ln_round)(nb),
                      slow = modified || (!LN_AMX && nr > nb) || cover != CPU_COVER_FULL;
            for (int j = 0; j < LN_L; j += VW)
                v_store(st.top + j, v_set1(-INFINITY));
            LN_(ln_qk)(&st, st.q + (size_t)b * st.steps * LN_L, nr, nb);
            float unit = 1.0f;
            if (slow) {
                LN_(ln_scores)(a, sq, &st, b, k0, nb, c, cover != CPU_COVER_FULL);
            } else {
                unit = c * 1.442695041f;
                for (int j = 0; j < LN_L; j += VW)
                    v_store(st.top + j,
                            v_max(v_mul(v_load(st.top + j), v_set1(unit)), v_load(st.m + b * LN_L + j)));
            }
            LN_(ln_softmax)(a, &st, b, nb, unit);
            LN_(ln_pv)
            (st.vt, st.p, st.o + (size_t)b * st.Dp * LN_L, st.alpha, (nb + LN_STEP - 1) / LN_STEP, st.Dp);
        }
    }
    for (int b = 0; b < ns; b++)
        LN_(ln_end)(a, sq, it, &st, b, parts);
#if LN_AMX
    amx_end();
#endif
}

#undef LN_CAT_
#undef LN_CAT
#undef LN_
#undef LN_STEP
#undef LN_L
#undef LN_QK
#undef LN_QK_INIT
#undef LN_QK_AHEAD
#undef LN_QK_A
#undef LN_QK_ARGS
#undef LN_QK_CALL
#undef LN_ROW
#undef LN_WITHIN
#undef LN_VROWS
#undef LN_PV
#undef LN_BF16
#undef LN_AMX
#undef LN_QK_CALLS
#undef LN_MR
#undef LN_NR
#undef LN_BK
