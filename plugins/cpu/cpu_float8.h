/* SPDX-License-Identifier: Apache-2.0 */
/* float32 to the 8-bit formats, one value at a time. Included by cpu_level.c. */

SI uint32_t float_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

/* Nearest even, saturating to the largest finite value, NaN kept. `keep` mantissa bits stay, `bias` is the
 * difference of the exponent biases shifted into place, `magic` adds at the unit of the subnormals. */
SI uint8_t f32_to_f8(float x, int keep, uint32_t bias, float magic, float smallest_normal, float largest,
                     uint8_t top) {
    const uint32_t u = float_bits(x), a = u & 0x7fffffffu, sign = u >> 24 & 0x80;
    float ax = fabsf(x);
    const int drop = 23 - keep;
    uint32_t normal, small;
    ax = ax > largest ? largest : ax;
    const uint32_t c = float_bits(ax);
    normal = ((c + ((1u << (drop - 1)) - 1) + (c >> drop & 1)) >> drop) - bias;
    small = float_bits(ax + magic) & 0xff;
    normal = ax < smallest_normal ? small : normal;
    return (uint8_t)(sign | (a > 0x7f800000u ? (keep == 3 ? 0x7f : 0x7e) : normal > top ? top : normal));
}
SI uint8_t f32_to_e4m3(float x) {
    return f32_to_f8(x, 3, 120u << 3, 16384.0f, 0x1p-6f, 448.0f, 0x7e);
}
SI uint8_t f32_to_e5m2(float x) {
    return f32_to_f8(x, 2, 112u << 2, 128.0f, 0x1p-14f, 57344.0f, 0x7b);
}
