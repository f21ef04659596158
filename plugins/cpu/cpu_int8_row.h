/* SPDX-License-Identifier: Apache-2.0 */
/* int8 codes of a row, and queries that become such codes (semantics 3.4, 3.8). Included by cpu_level.c. */

/* Half away from zero, within the codes; 0 for NaN. */
SI char f32_to_i8(float x) {
    x = x >= 127.0f ? 127.0f : x <= -128.0f ? -128.0f : x == x ? x : 0.0f;
    return (char)(signed char)(int)(x + (x < 0 ? -0.5f : 0.5f));
}

/* The scale of an int8 row: NaN where a value is one, so that the whole row is. */
SI float i8_scale(const float *x, int n) {
    float top = 0, nan = 0;
    for (int i = 0; i < n; i++) {
        top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
        nan += x[i] == x[i] ? 0.0f : x[i];
    }
    return nan + (top / 127.0f > 1e-6f ? top / 127.0f : 1e-6f);
}

/* x becomes its codes; returns their scale. Products of codes are exact in every arithmetic that follows:
 * sums of 1024 stay below 2^24. */
static __attribute__((noinline)) float round_query(float *x, int n) {
    const float scale = i8_scale(x, n);
    for (int i = 0; i < n; i++)
        x[i] = (float)(signed char)f32_to_i8(x[i] / scale);
    return scale;
}

/* O of a row by the scales of V's channels. */
SI void scale_channels(const struct cpu_attn *a, int head, float *o) {
    const float *scale = a->v_channel + (size_t)head * (size_t)a->head_size_v;
    for (int d = 0; d < a->head_size_v; d++)
        o[d] *= scale[d];
}
