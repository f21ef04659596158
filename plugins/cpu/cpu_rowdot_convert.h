/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that no product of the row-dot path reads as they are, as bytes or floats. Included by
 * cpu_rowdot.h. */

/* The tile's int4 rows as rows of bytes, which x then points to; prefetches those of the next tile on the
 * way. */
static void rd_bytes(const struct cpu_attn *a, const struct rd_state *st, struct rd_tile *x) {
    const int kb = a->head_size / 2 + 4, vb = a->head_size_v / 2 + 4;
    for (int t = 0; t < x->n; t++) {
        for (int b = 0; x->k_rows && b < kb; b += 64)
            rd_near(x, x->k_rows[t] + x->k_next_off + b);
        int4_to_bytes(x->k[t] + x->k_off, a->head_size, st->byte_k + (size_t)t * st->byte_ldk);
        for (int b = 0; x->k_rows && b < vb; b += 64)
            rd_near(x, x->v_rows[t] + x->v_next_off + b);
        int4_to_bytes(x->v[t] + x->v_off, a->head_size_v, st->byte_v + (size_t)t * st->byte_ldv);
    }
    *x = (struct rd_tile){.n = x->n, .n_used = x->n_used, .k = st->byte_rows, .v = st->byte_rows + RD_TB};
}

/* The tile's packed rows of a head as rows of floats, likewise; groups: pointers as rd_pointers has them. */
static void rd_floats(const struct cpu_attn *a, const struct rd_state *st, const char *const *groups,
                      int head, struct rd_tile *x) {
    const int64_t kg = head * a->k_apart.head, vg = head * a->v_apart.head;
    const int is_apart = cpu_has_groups(a);
    const int kb = cpu_row_bytes(a->k_row, a->head_size), vb = cpu_row_bytes(a->v_row, a->head_size_v) + 4;
    for (int t = 0; t < x->n; t++) {
        for (int b = 0; x->k_rows && b < kb; b += 64)
            rd_near(x, x->k_rows[t] + x->k_next_off + b);
        packed_to_f32(&st->turbo, a->k_row, x->k[t] + x->k_off, is_apart ? groups[t] + kg : NULL,
                      a->head_size, (float *)(void *)(st->byte_k + (size_t)t * st->byte_ldk));
        if (cpu_is_shared(a)) continue;
        for (int b = 0; x->k_rows && b < vb; b += 64)
            rd_near(x, x->v_rows[t] + x->v_next_off + b);
        packed_to_f32(&st->turbo, a->v_row, x->v[t] + x->v_off, is_apart ? groups[RD_TB + t] + vg : NULL,
                      a->head_size_v, (float *)(void *)(st->byte_v + (size_t)t * st->byte_ldv));
    }
    *x = (struct rd_tile){.n = x->n, .n_used = x->n_used, .k = st->byte_rows, .v = st->byte_rows + RD_TB};
}
