/* SPDX-License-Identifier: Apache-2.0 */
/* Scales of V's rows far from 1, over e4m3: bf16 P times 2^90 has room for 24 powers of two either way. The
 * outputs of a tile whose largest scale is beyond are added up apart (rd_state.lift), as another tile's may
 * be of any other size. Included by cpu_rowdot.h. */

/* V's scales of n tokens, divided by a power of two where they would not fit; which one. */
SI int rd_lift(float *scale, int n) {
    float top = 0;
    for (int t = 0; t < n; t++)
        if (fabsf(scale[t]) > top) top = fabsf(scale[t]);
    if (!(top > 0 && top < INFINITY) || (top > 0x1p-24f && top < 0x1p24f)) return 0;
    const int lift = ilogbf(top);
    for (int t = 0; t < n; t++)
        scale[t] = ldexpf(scale[t], -lift);
    return lift;
}

/* Where the outputs of a tile are added up, and what follows. */
SI float *rd_sums(const struct rd_state *st, size_t at) {
    if (st->lift == 0) return st->o + at * st->ldo;
    memset(st->lifted, 0, (size_t)st->rows * st->ldo * sizeof *st->lifted);
    return st->lifted;
}
SI void rd_add_lifted(const struct rd_state *st, size_t at) {
    float *o = st->o + at * st->ldo;
    for (int i = 0; st->lift != 0 && i < st->rows * st->ldo; i++)
        o[i] += ldexpf(st->lifted[i], st->lift);
}
