/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a cache in the form that the products take: of formats that no product reads, as bytes or floats.
 * Included by cpu_level.c. */

/* What a call keeps for its rows of kind CPU_PACKED. */
static void packed_begin(const struct cpu_attn *a, struct turbo_table *t) {
    if (a->kv_dtype != CPU_PACKED) return;
    if (a->k_row == CPU_E2M1) nvfp4_begin(t->pair, t->scale);
    if (is_centroids(a->k_row)) turbo_begin(a->k_row == CPU_C4 ? 4 : 3, a->head_size, t);
}

/* A row, and the scales of its groups where they lie apart, as floats that mean what they say, but for a
 * static scale; out has room for a chunk more. */
SI void packed_to_f32(const struct turbo_table *t, enum cpu_dtype type, const char *row, const char *groups,
                      int n, float *out) {
    if (type == CPU_E2M1) {
        nvfp4_to_f32(t->pair, t->scale, row, groups, n, out);
    } else if (type == CPU_DS) {
        ds_to_f32(row, n, out);
    } else if (is_centroids(type)) {
        turbo_keys(t, type, row, n, out);
    } else if (is_steps(type)) {
        turbo_values(type, row, n, out);
    } else {
        row_to_f32(type, row, n, out);
        for (int i = 0; dtype_gain(type) != 1.0f && i < n; i += VW)
            v_store(out + i, v_mul(v_load(out + i), v_set1(dtype_gain(type))));
    }
}

/* A row of K (is_value 0) or V of the cache as the conversions of the lanes path take it, in *type: where it
 * lies; of int4 as bytes, of packed rows as floats in buf, which has room for ROW_BUFFER bytes. */
enum { ROW_BUFFER = 4 * (ROTATION_MAX_SIZE + 2 * CHUNK) };
SI const char *lanes_row(const struct cpu_attn *a, const struct turbo_table *t, int is_value, const char *row,
                         const char *groups, char *buf, enum cpu_dtype *type) {
    const int n = is_value ? a->head_size_v : a->head_size;
    *type = a->kv_dtype == CPU_I4 ? CPU_I8 : a->kv_dtype == CPU_PACKED ? CPU_F32 : a->kv_dtype;
    if (a->kv_dtype == CPU_I4)
        int4_to_bytes(row, n, buf);
    else if (a->kv_dtype == CPU_PACKED)
        packed_to_f32(t, is_value ? a->v_row : a->k_row, row, groups, n, (float *)(void *)buf);
    else
        return row;
    return buf;
}
