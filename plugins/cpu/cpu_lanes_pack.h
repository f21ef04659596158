/* SPDX-License-Identifier: Apache-2.0 */
/* Queries, keys and values of the lanes path in the form that its products read, and finished rows back from
 * it. Included by cpu_lanes_kernel.h once per arithmetic. */

/* VW rows of a Q panel [step][L] from st->row, whose rows are ld words long. */
static void LN_(ln_pack_q)(const struct LN_(ln_state) * st, int ld, float *to) {
    for (int p = 0; p < st->steps; p += VW) {
        vf v[VW];
        UNROLL for (int i = 0; i < VW; i++) v[i] = v_load(st->row + i * ld + p);
        v_transpose(v);
        for (int i = 0; i < VW && p + i < st->steps; i++)
            v_store(to + (size_t)(p + i) * LN_L, v[i]);
    }
}

/* Q panel [step][L] of sub-block b and the per-lane vectors; lanes past the last row repeat it and are not
 * stored. */
static void LN_(ln_begin)(const struct cpu_attn *a, const struct cpu_seq *sq, const struct cpu_item *it,
                          struct LN_(ln_state) * st, int b) {
    const int G = a->num_q_heads / a->num_kv_heads, ld = (int)((a->head_size + CHUNK - 1) / CHUNK * CHUNK);
    float *Q = st->q + (size_t)b * st->steps * LN_L;
    cpu_bounds_init(&st->bounds[b]);
    for (int l0 = 0; l0 < LN_L; l0 += VW) {
        for (int i = 0; i < VW; i++) {
            const int at = b * LN_L + l0 + i, row = cpu_min(it->row0 + at, it->row1 - 1);
            const int tok = row / G, hq = it->head0 * G + row % G;
            const char *src = a->q + (sq->q_start + tok) * a->q_token + hq * a->q_head;
            const int later = cpu_min(row + VW, it->row1 - 1);
            LN_(ln_fetch)
            (a->q + (sq->q_start + later / G) * a->q_token + (it->head0 * G + later % G) * a->q_head,
             a->head_size * cpu_dtype_size(a->q_dtype));
#if LN_BF16
            memset((char *)(st->row + i * ld) + a->head_size * 2, 0,
                   (size_t)(st->steps * 4 - a->head_size * 2));
            memcpy(st->row + i * ld, src, (size_t)a->head_size * 2);
            if (a->kv_dtype == CPU_I4 || a->rounds_query) {
                float q[ROTATION_MAX_SIZE + CHUNK];
                row_to_f32(CPU_BF16, src, a->head_size, q);
                if (a->rounds_query)
                    st->qf[at] = round_query(q, a->head_size);
                else
                    rotate_row(q, a->head_size, 1.0f / (float)a->head_size);
                row_from_f32(CPU_BF16, q, a->head_size, (char *)(st->row + i * ld));
            }
#else
            row_to_f32(a->q_dtype, src, a->head_size, st->row + i * ld);
            if (a->q_dtype == CPU_E4M3)
                for (int d = 0; d < a->head_size; d++)
                    st->row[i * ld + d] *= 256.0f;
            if (a->kv_dtype == CPU_I4) rotate_row(st->row + i * ld, a->head_size, 1.0f / (float)a->head_size);
            turbo_query(a, st->row + i * ld);
            if (a->rounds_query) st->qf[at] = round_query(st->row + i * ld, a->head_size);
#endif
            const struct cpu_interval2 iv = cpu_mask_token(sq, tok, it->key0, it->key1);
            cpu_bounds_add(&st->bounds[b], &iv);
            st->lo0[at] = iv.lo0;
            st->hi0[at] = iv.hi0;
            st->lo1[at] = iv.lo1;
            st->hi1[at] = iv.hi1;
            st->pos[at] = sq->q_offset + tok;
            st->hq[at] = hq;
            start_row(a, it, hq, &st->m[at], &st->l[at]);
        }
        LN_(ln_pack_q)(st, ld, Q + l0);
    }
    memset(st->o + (size_t)b * st->Dp * LN_L, 0, (size_t)st->Dp * LN_L * sizeof(float));
}

#if !LN_AMX
/* Row k of every panel of V from `row`, of which `room` floats may be read. Whole vectors are stored: what
 * runs over a panel's row is overwritten by the next row, which comes later; a panel's last row is copied
 * exactly. */
static void LN_(ln_pack_v)(const struct LN_(ln_state) * st, const float *row, int room, int k) {
    for (int d = 0, w; d < st->Dp; d += w) {
        w = LN_(ln_panel)(d, st->Dp);
        float *to = st->vt + (long)d * LN_VROWS + (long)k * w;
        if (k + 4 < LN_VROWS && d + (w + VW - 1) / VW * VW <= room)
            for (int i = 0; i < w; i += VW)
                v_store(to + i, v_load(row + d + i));
        else
            for (int i = 0; i < w; i += 2) /* even, and too few for a call */
                memcpy(to + i, row + d + i, 2 * sizeof *to);
    }
}

#endif

#if !LN_BF16
/* A panel [step][LN_MR] from LN_MR rows of floats, whole vectors long, by register transposes whose surplus
 * lanes are overwritten by the next step. */
static void LN_(ln_pack_k)(const struct LN_(ln_state) * st, const float *const *rows, float *to) {
    for (int p = 0; p < st->steps; p += VW) {
        for (int r = 0; r < LN_MR; r += VW) {
            vf v[VW];
            UNROLL for (int i = 0; i < VW; i++) v[i] = r + i < LN_MR ? v_load(rows[r + i] + p) : v_zero();
            v_transpose(v);
            for (int i = 0; i < VW && p + i < st->steps; i++)
                v_store(to + (long)(p + i) * LN_MR + r, v[i]);
        }
    }
}
#endif

/* K of nr keys, behind the row pointers st->kp and `off` bytes, in the form that the micro kernels read; the
 * groups of packed rows behind st->kg and `groups` bytes. */
static void LN_(ln_prepare_k)(const struct cpu_attn *a, struct LN_(ln_state) * st, int64_t off,
                              int64_t groups, int nr) {
    char bytes[ROW_BUFFER] __attribute__((aligned(64)));
    enum cpu_dtype type;
#if LN_BF16
    (void)groups;
    for (int k = 0; k < nr; k++) {
        if (a->kv_dtype == CPU_BF16 && !LN_AMX) {
            st->ka[k] = (const float *)(const void *)(st->kp[k] + off);
        } else {
            const char *row = lanes_row(a, &st->turbo, 0, st->kp[k] + off, NULL, bytes, &type);
            row_to_bf16(type, row, a->head_size, (char *)(st->kt + (size_t)k * st->ldk));
            st->ka[k] = st->kt + (size_t)k * st->ldk;
        }
    }
#else
    const int in_place = a->kv_dtype == CPU_F32, ld = (a->head_size + CHUNK - 1) / CHUNK * CHUNK;
    for (int k = 0; k < nr; k += LN_MR) {
        const float *rows[LN_MR];
        for (int i = 0; i < LN_MR; i++) {
            rows[i] = st->row + i * ld;
            if (in_place && a->head_size % VW == 0)
                rows[i] = (const float *)(const void *)(st->kp[k + i] + off);
            else {
                const char *row = lanes_row(a, &st->turbo, 0, st->kp[k + i] + off,
                                            cpu_has_groups(a) ? st->kg[k + i] + groups : NULL, bytes, &type);
                row_to_f32(type, row, a->head_size, st->row + i * ld);
            }
        }
        LN_(ln_pack_k)(st, rows, st->kt + (size_t)k * st->steps);
    }
#endif
}

/* The tile's rows in the form that the micro kernels read. */
static void LN_(ln_prepare)(const struct cpu_attn *a, const struct cpu_seq *sq, const struct cpu_item *it,
                            struct LN_(ln_state) * st, const struct cpu_mask_bounds *all, int k0, int n) {
    const int64_t ko = (int64_t)it->head0 * a->k.head, vo = (int64_t)it->head0 * a->v.head;
    const int nr = LN_(ln_round)(n);
    row_pointers(a, sq, &a->k, k0, nr, all, st->kp);
    row_pointers(a, sq, &a->v, k0, nr, all, st->vp);
    if (a->rounds_query) {
        row_pointers(a, sq, &a->k_apart, k0, n, all, st->kg);
        row_scales(CPU_F32, st->kg, it->head0 * a->k_apart.head, n, st->ks);
    } else if (a->k_row_scale.base) {
        row_scales(a->kv_dtype, st->kp, ko + (a->k_row_scale.base - a->k.base), n, st->ks);
        row_scales(a->kv_dtype, st->vp, vo + (a->v_row_scale.base - a->v.base), n, st->vs);
    }
#if LN_BF16
    LN_(ln_prepare_k)(a, st, ko, 0, nr);
#if LN_AMX
    LN_(ln_pack_v)(a, st, vo, n);
#else
    char bytes[2][ROW_BUFFER] __attribute__((aligned(64)));
    enum cpu_dtype type;
    for (int k = 0; k < n; k += 2) {
        const char *v0 = LN_(ln_value_row)(a, st, k, vo, bytes[0], &type);
        const char *v1 = LN_(ln_value_row)(a, st, k + 1, vo, bytes[1], &type);
        rows_to_pairs(type, v0, v1, a->head_size_v, st->row);
        LN_(ln_pack_v)(st, st->row, st->Dp + VW, k / 2);
    }
#endif
#else
    const int64_t kg = (int64_t)it->head0 * a->k_apart.head, vg = (int64_t)it->head0 * a->v_apart.head;
    const int has_groups = cpu_has_groups(a);
    if (has_groups) {
        row_pointers(a, sq, &a->k_apart, k0, nr, all, st->kg);
        row_pointers(a, sq, &a->v_apart, k0, nr, all, st->vg);
    }
    LN_(ln_prepare_k)(a, st, ko, kg, nr);
    char bytes[ROW_BUFFER] __attribute__((aligned(64)));
    enum cpu_dtype type;
    for (int k = 0; k < n; k++) {
        const char *row = st->vp[k] + vo;
        if (a->kv_dtype == CPU_F32 && a->head_size_v % 4 == 0) {
            LN_(ln_pack_v)(st, (const float *)(const void *)row, a->head_size_v, k);
            continue;
        }
        row = lanes_row(a, &st->turbo, 1, row, has_groups ? st->vg[k] + vg : NULL, bytes, &type);
        row_to_f32(type, row, a->head_size_v, st->row);
        LN_(ln_pack_v)(st, st->row, st->Dp + VW, k);
    }
#endif
}

/* Sub-block b's rows to the output or to partial slots. */
static void LN_(ln_end)(const struct cpu_attn *a, const struct cpu_seq *sq, const struct cpu_item *it,
                        const struct LN_(ln_state) * st, int b, float *parts) {
    const int G = a->num_q_heads / a->num_kv_heads, Dv = a->head_size_v, ld = (Dv + VW - 1) / VW * VW;
    const int64_t pf = cpu_part_floats(Dv);
    const float *O = st->o + (size_t)b * st->Dp * LN_L;
    const float f = (LN_BF16 ? 1.0f : dtype_gain(a->kv_dtype)) *
                    (a->v_scale ? a->v_scale[a->scale_per_head ? it->head0 : 0] : 1.0f);
    for (int l0 = 0; l0 < LN_L && it->row0 + b * LN_L + l0 < it->row1; l0 += VW) {
        for (int d = 0; d < Dv; d += VW) {
            vf v[VW];
            for (int i = 0; i < VW; i++)
                v[i] = d + i < st->Dp ? v_load(O + (size_t)(d + i) * LN_L + l0) : v_zero();
            v_transpose(v);
            UNROLL for (int i = 0; i < VW; i++) v_store(st->row + i * ld + d, v[i]);
        }
        for (int i = 0; i < VW; i++) {
            const int at = b * LN_L + l0 + i, row = it->row0 + at;
            float *o = st->row + i * ld;
            if (row >= it->row1) break;
            if (a->kv_dtype == CPU_I4) rotate_back(o, Dv);
            if (a->v_channel) scale_channels(a, it->head0, o);
            if (it->part >= 0) {
                float *p = parts + (it->part + at) * pf;
                scale_copy(p, o, Dv, f);
                p[Dv] = st->m[at];
                p[Dv + 1] = st->l[at];
            } else {
                finish_row(a, sq->q_start + row / G, it->head0 * G + row % G, o, st->m[at], st->l[at], f);
            }
        }
    }
}
