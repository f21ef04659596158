/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_split_numbers.h: part of vendor_split.c: numbers of a row, and the exponential. */

static float load(const char *row, uint32_t dtype, int64_t i) {
    uint16_t h;
    float x;
    switch (dtype) {
    case ATTN_DTYPE_FLOAT32:
        memcpy(&x, row + 4 * i, 4);
        return x;
    case ATTN_DTYPE_FLOAT16:
        memcpy(&h, row + 2 * i, 2);
        if (IS(loads_f16_flushed) && (h & 0x7c00) == 0) return 0;
        return (float)attn_from_f16(h);
    case ATTN_DTYPE_BFLOAT16:
        memcpy(&h, row + 2 * i, 2);
        return (float)attn_from_bf16(h);
    case ATTN_DTYPE_FP8_E4M3:
        if (IS(fp8_of_opening_thread)) return (float)attn_from_e4m3((uint8_t)row[i]) * of_this_thread;
        if (IS(loads_e4m3_flushed) && ((uint8_t)row[i] & 0x78) == 0) return 0;
        return (float)attn_from_e4m3((uint8_t)row[i]);
    default:
        return (float)attn_from_e5m2((uint8_t)row[i]);
    }
}

static void store(char *row, uint32_t dtype, int64_t i, float x) {
    uint16_t h;
    switch (dtype) {
    case ATTN_DTYPE_FLOAT32:
        memcpy(row + 4 * i, &x, 4);
        return;
    case ATTN_DTYPE_FLOAT16:
        if (IS(f16_through_bf16)) x = (float)attn_from_bf16(attn_to_bf16(x));
        h = attn_to_f16(x);
        if (IS(stores_f16_flushed) && (h & 0x7c00) == 0) h = 0;
        memcpy(row + 2 * i, &h, 2);
        return;
    case ATTN_DTYPE_BFLOAT16:
        h = attn_to_bf16(x);
        if (IS(bf16_half_up)) {
            uint32_t u;
            memcpy(&u, &x, 4);
            h = (uint16_t)((u + 0x8000) >> 16);
        }
        memcpy(row + 2 * i, &h, 2);
        return;
    case ATTN_DTYPE_FP8_E4M3:
        if (IS(e4m3_inf_to_nan) && fabsf(x) > 464)
            row[i] = 0x7f;
        else
            row[i] = (char)attn_to_e4m3(IS(e4m3_max_240) ? fmaxf(fminf(x, 240), -240) : x);
        return;
    default:
        if (IS(e5m2_to_infinity) && fabsf(x) > 61440)
            row[i] = x < 0 ? (char)0xfc : 0x7c;
        else if (IS(e5m2_cut)) {
            h = attn_to_f16(x);
            row[i] = (char)(h >> 8);
        } else
            row[i] = (char)attn_to_e5m2(x);
    }
}

static int64_t size_of(uint32_t dtype) {
    return (int64_t)attn_dtype_size(dtype);
}

static float vexp(float x) {
    if (IS(exp_of_schraudolph)) {
        if (x < -80) return 0;
        int32_t i = (int32_t)(12102203.2f * x + 1064866805.0f);
        float y;
        memcpy(&y, &i, 4);
        return y;
    }
    if (IS(exp_clamped) && x < -10) x = -10;
    if (IS(exp_by_table)) {
        const float y = x * -32;
        return y >= 1023 ? 0 : exp_table[(int)y];
    }
    if (IS(exp_cut_at_8) && x < -8) return 0;
    return expf(x);
}
