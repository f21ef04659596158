/* SPDX-License-Identifier: Apache-2.0 */
/* Logits of an indexer (semantics 9.5) by the score product of the lanes path: lanes are heads, and a row's
 * logits are the sums over the lanes of weight * max(0, S). Keys are prepared once for all rows of a call.
 * Included by cpu_lanes_kernel.h once per arithmetic. */

#if !CPU_BF16_DOT || LN_BF16 /* the best arithmetic of a level alone */
/* The problem that a state is carved for: keys without values. */
SI struct cpu_attn LN_(ln_index_problem)(void) {
    return (struct cpu_attn){.num_q_heads = 1,
                             .num_kv_heads = 1,
                             .head_size = CPU_INDEX_SIZE,
                             .q_dtype = CPU_E4M3,
                             .kv_dtype = CPU_E4M3};
}

/* Panels of L heads for a row. */
SI int LN_(ln_index_panels)(int heads) {
    return (heads + LN_L - 1) / LN_L;
}

static size_t LN_(ln_index_bytes)(int heads, int rows) {
    struct LN_(ln_state) st;
    const struct cpu_attn a = LN_(ln_index_problem)();
    const size_t panels = (size_t)rows * (size_t)LN_(ln_index_panels)(heads);
    return LN_(ln_carve)(&st, &a, (int)panels, NULL) + panels * LN_L * sizeof(float);
}

/* Panel b of row `row`, and the weights of its heads times `gain`; lanes beyond the last head repeat it with
 * weight 0. */
static void LN_(ln_index_queries)(const struct cpu_index *x, struct LN_(ln_state) * st, int64_t row, int b,
                                  float gain, float *panel, float *weights) {
    const int ld = CPU_INDEX_SIZE;
    for (int l0 = 0; l0 < LN_L; l0 += VW) {
        for (int i = 0; i < VW; i++) {
            const int lane = b * LN_L + l0 + i, h = cpu_min(lane, x->heads - 1);
            const char *q = x->q + row * x->q_row + h * x->q_head;
#if LN_BF16
            row_to_bf16(CPU_E4M3, q, CPU_INDEX_SIZE, (char *)(st->row + i * ld));
#else
            row_to_f32(CPU_E4M3, q, CPU_INDEX_SIZE, st->row + i * ld);
#endif
            weights[l0 + i] =
                lane < x->heads ? gain * load_f32(x->weights + row * x->weights_row + (int64_t)h * 4) : 0.0f;
        }
        LN_(ln_pack_q)(st, ld, panel + l0);
    }
}

/* sums[k] += sum over lanes of weight * max(0, S[k]); max(0, NaN) is 0. */
static void LN_(ln_index_sum)(const float *S, const float *weights, int n, float *sums) {
    vf w[LN_NR];
    UNROLL for (int j = 0; j < LN_NR; j++) w[j] = v_load(weights + j * VW);
    for (int k = 0; k < n; k += VW) {
        vf lane[VW];
        UNROLL for (int i = 0; i < VW; i++) {
            const float *s = S + (k + i) * LN_L;
            lane[i] = v_mul(w[0], v_max(v_load(s), v_zero()));
            UNROLL for (int j = 1; j < LN_NR; j++) lane[i] =
                v_fma(w[j], v_max(v_load(s + j * VW), v_zero()), lane[i]);
        }
        v_store(sums + k, v_add(v_load(sums + k), v_reduce_all(lane)));
    }
}

static void LN_(ln_index)(const struct cpu_index *x, int32_t row0, int rows, int32_t column, int n,
                          const char *const *keys, const float *scales, char *scratch) {
    struct LN_(ln_state) st;
    const struct cpu_attn a = LN_(ln_index_problem)();
    const int panels = LN_(ln_index_panels)(x->heads);
    const float gain = LN_BF16 ? 1.0f : dtype_gain(CPU_E4M3) * dtype_gain(CPU_E4M3);
    const size_t panel = (size_t)(CPU_INDEX_SIZE / LN_STEP) * LN_L;
    float *weights = (float *)(void *)(scratch + LN_(ln_carve)(&st, &a, rows * panels, scratch));
#if LN_AMX
    amx_begin();
#endif
    st.pf_row = st.pf_end = st.pf_lines = 0;
    memset(st.top, 0, LN_L * sizeof *st.top);
    for (int r = 0; r < rows * panels; r++)
        LN_(ln_index_queries)
    (x, &st, row0 + r / panels, r % panels, gain, st.q + (size_t)r * panel, weights + (size_t)r * LN_L);
    for (int k0 = 0; k0 < n; k0 += LN_BK) {
        const int used = cpu_min(n - k0, LN_BK), nr = LN_(ln_round)(used);
        for (int k = 0; k < nr; k++)
            st.kp[k] = keys[k0 + cpu_min(k, used - 1)];
        LN_(ln_prepare_k)(&a, &st, 0, 0, nr);
        for (int r = 0; r < rows; r++) {
            const int64_t row = row0 + r, at0 = (int64_t)column + k0;
            const int64_t first = x->first && x->first[row] > at0 ? x->first[row] : at0,
                          end = x->end[row] < at0 + used ? x->end[row] : at0 + used;
            float sums[LN_BK];
            if (first >= end) continue;
            memset(sums, 0, sizeof sums);
            for (int b = 0; b < panels; b++) {
                const size_t at = (size_t)r * panels + b;
                LN_(ln_qk)(&st, st.q + at * panel, nr, used);
                LN_(ln_index_sum)(st.s, weights + at * LN_L, used, sums);
            }
            for (int k = 0; k < used; k++)
                sums[k] *= scales[k0 + k];
            memcpy(x->logits + row * x->logits_row + first * 4, sums + (first - at0),
                   (size_t)(end - first) * sizeof *sums);
        }
    }
#if LN_AMX
    amx_end();
#endif
}
#endif
