/* SPDX-License-Identifier: Apache-2.0 */
/* reference_cache.c: the bytes that update_kv_cache leaves: places, strides, scales, saturation, inline
 * scales, rows that are not written (semantics 1.3, 3.2, 3.4, 3.9). */
#include <attn/attn_plugin_util.h>

#include "../nvfp4_row.h"
#include "../turbo_row.h"
#include "reference_setup.h"

static const attn_backend_t *reference;
static small_t s;

static void start(const attn_problem_t *p, uint32_t storage, int64_t content) {
    small_start(&s, reference, p);
    memset(s.cache, 0xee, sizeof s.cache);
    dense_set(&s.tc, s.cache, storage, 4, 4, 1, 2, content);
}

static int write_rows(void) {
    int status = reference->ops->update_kv_cache(s.instance, &s.update, NULL, &s.error);
    if (status != ATTN_OK) diag("update_kv_cache: %s", s.error.text);
    return status;
}

static float float_at(const unsigned char *p) {
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* n values rounded to dtype: their bytes, and as floats. */
static void ref_store_test(uint32_t dtype, const double *in, int n, unsigned char *bytes, float *out) {
    for (int i = 0; i < n; i++) {
        const float f = (float)in[i];
        const uint16_t h = dtype == ATTN_DTYPE_FLOAT16 ? attn_to_f16(in[i]) : attn_to_bf16(in[i]);
        if (dtype == ATTN_DTYPE_FLOAT32)
            memcpy(bytes + 4 * i, &f, 4), out[i] = f;
        else
            memcpy(bytes + 2 * i, &h, 2),
                out[i] = (float)(dtype == ATTN_DTYPE_FLOAT16 ? attn_from_f16(h) : attn_from_bf16(h));
    }
}

static void places(void) {
    attn_problem_t p = small_problem();
    start(&p, ATTN_DTYPE_FLOAT32, 8);
    s.ts.shape[0] = 4;
    s.slots[1] = -1;
    s.slots[3] = INT64_MIN;
    write_rows(); /* row 0 to slot 4, row 2 to slot 2 */
    ok(float_at(s.cache + 4 * 32) == s.key[0] && float_at(s.cache + 4 * 32 + 16) == s.value[0],
       "row 0 lies in slot 4: K, then V");
    ok(float_at(s.cache + 2 * 32 + 12) == s.key[11] && float_at(s.cache + 2 * 32 + 28) == s.value[11],
       "row 2 lies in slot 2");
    int untouched = 1;
    for (int i = 0; i < 256; i++)
        if (i / 32 != 4 && i / 32 != 2) untouched = untouched && s.cache[i] == 0xee;
    ok(untouched, "negative slots are skipped, and so are rows beyond slot_mapping");
    reference->ops->close(s.instance);

    /* 2 heads, HND, gaps between tokens, heads and blocks, a byte offset */
    p.num_kv_heads = 2;
    start(&p, ATTN_DTYPE_FLOAT32, 8);
    dense_set(&s.tc, s.cache, ATTN_DTYPE_FLOAT32, 4, 2, 2, 2, 8);
    s.tc.strides[2] = 9;
    s.tc.strides[1] = 20;
    s.tc.strides[0] = 50;
    s.tc.t.byte_offset = 8;
    dense_set(&s.tk, s.key, ATTN_DTYPE_FLOAT32, 3, 4, 2, 4, 0);
    dense_set(&s.tv, s.value, ATTN_DTYPE_FLOAT32, 3, 4, 2, 4, 0);
    s.ts.shape[0] = 1;
    s.slots[0] = 3; /* block 1, token 1 */
    write_rows();
    ok(float_at(s.cache + 8 + 4 * (50 + 9)) == s.key[0] &&
           float_at(s.cache + 8 + 4 * (50 + 20 + 9)) == s.key[4] &&
           float_at(s.cache + 8 + 4 * (50 + 20 + 9 + 4 + 3)) == s.value[7],
       "every stride of the cache and its byte offset are used");
    reference->ops->close(s.instance);
}

static void per_tensor(void) {
    attn_problem_t p = small_problem();
    p.kv_cache_dtype = ATTN_KV_FP8_E4M3;
    start(&p, ATTN_DTYPE_UINT8, 8);
    s.floats[0] = 0.5f; /* k_scale */
    s.tf.shape[0] = 1;
    s.update.scales.k = &s.tf.t;
    s.ts.shape[0] = 1;
    s.slots[0] = 0;
    float key[4] = {1.0f, -500.0f, 0.53125f, NAN};
    memcpy(s.key, key, sizeof key);
    s.value[1] = -448.0f;
    s.value[2] = 1e9f;
    write_rows();
    is_int(s.cache[0], 0x40, "e4m3: 1 / 0.5 is stored as 2");
    is_int(s.cache[1], 0xfe, "e4m3: -1000 saturates at -448");
    is_int(s.cache[2], 0x38, "e4m3: 1.0625 is a tie and goes to the even 1");
    is_int(s.cache[3], 0x7f, "e4m3: NaN stays NaN");
    ok(s.cache[4 + 1] == 0xfe && s.cache[4 + 2] == 0x7e, "V has a scale of its own, 1 if none is given");
    dense_set(&s.tk, s.key, ATTN_DTYPE_FP8_E4M3, 3, 8, 1, 4, 0);
    unsigned char raw[4] = {0x01, 0x7e, 0x81, 0x33};
    memcpy(s.key, raw, sizeof raw);
    write_rows();
    ok(memcmp(s.cache, raw, 4) == 0, "rows that are e4m3 already are stored unchanged, whatever the scale");
    reference->ops->close(s.instance);

    p.kv_cache_dtype = ATTN_KV_FP8_E5M2;
    start(&p, ATTN_DTYPE_FP8_E5M2, 8);
    s.ts.shape[0] = 1;
    s.slots[0] = 0;
    float wide[4] = {1.0f, 1e6f, -1e-9f, 1.125f};
    memcpy(s.key, wide, sizeof wide);
    write_rows();
    ok(s.cache[0] == 0x3c && s.cache[1] == 0x7b && s.cache[2] == 0x80 && s.cache[3] == 0x3c,
       "e5m2: one, saturation, underflow with its sign, tie to even");
    reference->ops->close(s.instance);
}

static void per_token_head(void) {
    attn_problem_t p = small_problem();
    p.kv_cache_dtype = ATTN_KV_INT8_PER_TOKEN_HEAD;
    start(&p, ATTN_DTYPE_INT8, 16);
    s.ts.shape[0] = 1;
    s.slots[0] = 1;
    float key[4] = {254.0f, 1.0f, -1.0f, -255.0f}, tiny[4] = {0, 0, 5e-5f, 0};
    memcpy(s.key, key, sizeof key);
    memcpy(s.value, tiny, sizeof tiny);
    write_rows();
    const signed char *row = (const signed char *)s.cache + 16;
    float scale = 255.0f / 127.0f;
    ok(float_at(s.cache + 16 + 4) == scale, "int8: the scale absmax / 127 lies behind the row");
    ok(row[0] == 127 && row[3] == -127 && row[1] == 0 && row[2] == 0, "int8: codes of 254, -255, 1 and -1");
    ok(float_at(s.cache + 16 + 12) == 1e-6f && row[8 + 2] == 50, "int8: scales are at least 1e-6");
    float halves[4] = {127.0f, 0.5f, -0.5f, 2.5f}; /* scale 1 */
    memcpy(s.key, halves, sizeof halves);
    write_rows();
    ok(row[0] == 127 && row[1] == 1 && row[2] == -1 && row[3] == 3, "int8: halves go away from zero");
    s.key[2] = NAN;
    write_rows();
    ok(isnan(float_at(s.cache + 16 + 4)), "int8: NaN in a row makes its scale NaN");
    reference->ops->close(s.instance);

    p.kv_cache_dtype = ATTN_KV_FP8_PER_TOKEN_HEAD;
    start(&p, ATTN_DTYPE_UINT8, 16);
    s.ts.shape[0] = 1;
    s.slots[0] = 0;
    float fp8[4] = {896.0f, -2.0f, 3.0f, 0.0f}; /* scale 2 */
    memcpy(s.key, fp8, sizeof fp8);
    write_rows();
    ok(float_at(s.cache + 4) == 2.0f && s.cache[0] == 0x7e && s.cache[1] == 0xb8 && s.cache[2] == 0x3c,
       "fp8 per token and head: 448 * 2, -1 * 2, 1.5 * 2");
    reference->ops->close(s.instance);
}

/* Stored bits against another packing, from every dtype; values that are not finite; two writes of one
 * row. */
static void int4_rows(void) {
    static const uint32_t dtypes[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16};
    static unsigned char rows[2 * 1024 * 4], cache[2 * 2 * 1032], want[1024 / 2 + 4];
    uint64_t rng = tap_seed();
    attn_problem_t p = small_problem();
    p.num_heads = 1;
    p.kv_cache_dtype = ATTN_KV_INT4_PER_TOKEN_HEAD;
    for (int i = 0; i < 30; i++) {
        const int n = 2 << i % 10, row = n / 2 + 4;
        float x[1024];
        double stored[1024];
        p.head_size = (uint32_t)n;
        p.dtype = dtypes[i / 10];
        small_start(&s, reference, &p);
        for (int d = 0; d < n; d++)
            stored[d] = tap_rand_normal(&rng) * (d == 1 ? 100 : 1) + (i % 2 ? 3 : 0);
        ref_store_test(p.dtype, stored, n, rows, x);
        memset(cache, 0xee, sizeof cache);
        dense_set(&s.tk, rows, p.dtype, 3, 1, 1, n, 0);
        dense_set(&s.tv, rows, p.dtype, 3, 1, 1, n, 0);
        dense_set(&s.tc, cache, ATTN_DTYPE_UINT8, 4, 2, 1, 2, 2 * row);
        s.ts.shape[0] = 1;
        s.slots[0] = 1;
        write_rows();
        int4_row_encode(p.dtype, x, n, want);
        ok(memcmp(cache + 2 * row, want, (size_t)row) == 0 &&
               memcmp(cache + 3 * row, want, (size_t)row) == 0 && cache[2 * row - 1] == 0xee &&
               cache[4 * row] == 0xee,
           "int4: %d values of %s, K and V", n, attn_dtype_name(p.dtype));
        if (p.dtype == ATTN_DTYPE_FLOAT32) {
            const float bad = i % 2 ? NAN : -INFINITY;
            memcpy(rows + 4, &bad, 4);
            write_rows();
            ok(isnan(float_at(cache + 2 * row + n / 2)), "int4: %d values with one that is not finite", n);
        }
        reference->ops->close(s.instance);
    }
}

/* The same for TurboQuant's rows, K and V; NaN for what belongs to a row that is not finite. */
static void turbo_rows(void) {
    static const uint32_t formats[] = {ATTN_KV_TURBOQUANT_4BIT_NC, ATTN_KV_TURBOQUANT_K3V4_NC,
                                       ATTN_KV_TURBOQUANT_3BIT_NC, ATTN_KV_TURBOQUANT_K8V4};
    static unsigned char rows[2 * 1024 * 4], cache[4 * 1600], want[2048];
    uint64_t rng = tap_seed();
    attn_problem_t p = small_problem();
    p.num_heads = 1;
    for (int i = 0; i < 4 * 8; i++) {
        const attn_kv_format_t *f = attn_kv_format(formats[i % 4]);
        const int n = i % 4 == 3 && i / 4 % 2 ? 8 * (1 + i) : 8 << i / 4, kb = (int)f->k_bits,
                  vb = (int)f->v_bits;
        const int k_bytes = turbo_row_bytes(kb, 0, n), v_bytes = turbo_row_bytes(vb, 1, n),
                  row = (k_bytes + v_bytes + 1) / 2 * 2;
        float x[1024];
        double stored[1024];
        p.kv_cache_dtype = f->kv;
        p.head_size = (uint32_t)n;
        p.dtype = i % 3 == 0 ? ATTN_DTYPE_FLOAT32 : i % 3 == 1 ? ATTN_DTYPE_FLOAT16 : ATTN_DTYPE_BFLOAT16;
        small_start(&s, reference, &p);
        for (int d = 0; d < n; d++)
            stored[d] = tap_rand_normal(&rng) * (d == 1 ? 100 : 1) + (i % 2 ? 3 : 0);
        ref_store_test(p.dtype, stored, n, rows, x);
        memset(cache, 0xee, sizeof cache);
        dense_set(&s.tk, rows, p.dtype, 3, 1, 1, n, 0);
        dense_set(&s.tv, rows, p.dtype, 3, 1, 1, n, 0);
        dense_set(&s.tc, cache, ATTN_DTYPE_UINT8, 4, 2, 1, 2, row);
        s.ts.shape[0] = 1;
        s.slots[0] = 1;
        write_rows();
        if (kb < 8) turbo_row_encode(kb, 0, x, n, want);
        for (int d = 0; kb == 8 && d < n; d++)
            want[d] = attn_to_e4m3((double)x[d]);
        turbo_row_encode(vb, 1, x, n, want + k_bytes);
        ok(memcmp(cache + row, want, (size_t)(k_bytes + v_bytes)) == 0 && cache[row - 1] == 0xee &&
               cache[2 * row] == 0xee,
           "%s: %d values of %s, K and V", f->name, n, attn_dtype_name(p.dtype));
        if (p.dtype == ATTN_DTYPE_FLOAT32) {
            const float bad = i % 2 ? NAN : -INFINITY;
            memcpy(rows + 4, &bad, 4);
            write_rows();
            const unsigned char *beside = cache + row + k_bytes + n * vb / 8;
            int nans = isnan(attn_from_f16((uint16_t)(beside[0] | beside[1] << 8))) &&
                       isnan(attn_from_f16((uint16_t)(beside[2] | beside[3] << 8)));
            if (kb < 8)
                nans =
                    nans &&
                    isnan(attn_from_f16((uint16_t)(beside[-n * vb / 8 - 2] | beside[-n * vb / 8 - 1] << 8)));
            ok(nans, "%s: %d values with one that is not finite", f->name, n);
        }
        reference->ops->close(s.instance);
    }
}

/* nvfp4: the four regions of a page, both orders, scales of their own in the call; groups of zeros, of one
 * huge value, beyond the largest, with a NaN; nothing else is written. */
static void nvfp4_pages(void) {
    static unsigned char rows[2 * 2 * 256 * 4], cache[3 * 4 * 2 * 256], want[sizeof cache];
    uint64_t rng = tap_seed();
    for (int i = 0; i < 24; i++) {
        attn_problem_t p = small_problem();
        const int n = 16 << i % 4, page = 2 * 2 * 2 * (n / 2 + n / 16); /* K and V, 2 heads, 2 tokens */
        const uint32_t dtypes[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16};
        double stored[2 * 128];
        float x[2 * 128], ks = 0.5f, vs = 0.013f;
        p.num_heads = p.num_kv_heads = 2;
        p.kv_cache_dtype = ATTN_KV_NVFP4;
        p.head_size = (uint32_t)n;
        p.dtype = dtypes[i / 4 % 3];
        p.kv_layout = i < 12 ? ATTN_LAYOUT_NHD : ATTN_LAYOUT_HND;
        small_start(&s, reference, &p);
        const double size = ldexp(1, i % 5 * 4 - 8);
        for (int d = 0; d < 2 * n; d++)
            stored[d] = d / 16 == 1 ? 0 : tap_rand_normal(&rng) * size * (d == 3 ? 100 : 1);
        if (i % 3 == 0) stored[0] = 3e4; /* its group saturates */
        if (i % 3 == 1 && p.dtype == ATTN_DTYPE_FLOAT32) stored[0] = i % 2 ? NAN : INFINITY;
        ref_store_test(p.dtype, stored, 2 * n, rows, x);
        memset(cache, 0xee, sizeof cache);
        memset(want, 0xee, sizeof want);
        dense_set(&s.tk, rows, p.dtype, 3, 1, 2, n, 0);
        dense_set(&s.tv, rows, p.dtype, 3, 1, 2, n, 0);
        dense_set(&s.tc, cache, ATTN_DTYPE_UINT8, 4, 2, 4, 2, n / 2 + n / 16);
        if (p.kv_layout == ATTN_LAYOUT_NHD)
            s.tc.strides[1] = n / 2 + n / 16, s.tc.strides[2] = 4 * (n / 2 + n / 16);
        s.tc.strides[0] = page + 10; /* pages of several layers in one block */
        dense_t k, v;
        dense_set(&k, &ks, ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0);
        dense_set(&v, &vs, ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0);
        s.update.scales = (attn_scales_t){.k = &k.t, .v = &v.t};
        s.ts.shape[0] = 1;
        s.slots[0] = 3; /* block 1, token 1 */
        write_rows();
        for (int h = 0; h < 2; h++) {
            const int row = p.kv_layout == ATTN_LAYOUT_NHD ? 2 + h : 2 * h + 1;
            unsigned char *at = want + page + 10;
            nvfp4_row_encode(x + h * n, n, ks, at + row * n / 2, at + 4 * n / 2 + row * n / 16);
            at += 4 * n / 2 + 4 * n / 16;
            nvfp4_row_encode(x + h * n, n, vs, at + row * n / 2, at + 4 * n / 2 + row * n / 16);
        }
        ok(memcmp(cache, want, sizeof cache) == 0, "nvfp4: %d values of %s, %s", n, attn_dtype_name(p.dtype),
           p.kv_layout == ATTN_LAYOUT_NHD ? "NHD" : "HND");
        s.tc.strides[2]++;
        is_int(reference->ops->update_kv_cache(s.instance, &s.update, NULL, &s.error), ATTN_E_INVALID,
               "a page that is not one piece is refused");
        ok(strstr(s.error.text, "one piece") != NULL, "and why is said");
        s.tc.strides[2]--;
        s.tk.t.dtype = attn_dl_dtype(ATTN_DTYPE_UINT8);
        is_int(reference->ops->update_kv_cache(s.instance, &s.update, NULL, &s.error), ATTN_E_INVALID,
               "codes are no input");
        reference->ops->close(s.instance);
    }
}

/* int8 with scales apart: one piece a block and head, K, V and K's scales; V by channels or as it is. */
static void int8_pages(void) {
    static unsigned char cache[2 * 2 * 2 * 64], want[sizeof cache];
    for (int mode = 0; mode < 4; mode++) {
        const int is_static = mode % 2 == 0, hnd = mode / 2, n = 4, vb = is_static ? n : 4 * n,
                  blob = 2 * (n + vb + 4); /* 2 tokens of a head */
        attn_problem_t p = small_problem();
        p.num_kv_heads = 2;
        p.kv_cache_dtype = is_static ? ATTN_KV_INT8_STATIC_V : ATTN_KV_INT8_K_ONLY;
        p.kv_layout = hnd ? ATTN_LAYOUT_HND : ATTN_LAYOUT_NHD;
        float k[2 * 4] = {127, -1, 63.5f, 0, 0, 0, -254, 3}, v[2 * 4] = {1, -2, 30, 0.25f, 500, -500, 1, NAN},
                    by[2 * 4] = {0.5f, 0.5f, 0.25f, 0.5f, 1, 1, 2, 1};
        const signed char k_codes[2 * 4] = {127, -1, 64, 0, 0, 0, -127, 2},
                                      v_codes[2 * 4] = {2, -4, 120, 1, 127, -128, 1, 0};
        small_start(&s, reference, &p);
        memset(cache, 0xee, sizeof cache);
        memset(want, 0xee, sizeof want);
        dense_set(&s.tk, k, ATTN_DTYPE_FLOAT32, 3, 1, 2, n, 0);
        dense_set(&s.tv, v, ATTN_DTYPE_FLOAT32, 3, 1, 2, n, 0);
        dense_set(&s.tc, cache, ATTN_DTYPE_UINT8, 4, 2, 2, 2, n + vb + 4);
        if (!hnd) s.tc.strides[1] = n + vb + 4, s.tc.strides[2] = 2 * (n + vb + 4);
        dense_t scale;
        dense_set(&scale, by, ATTN_DTYPE_FLOAT32, 2, 2, 4, 0, 0);
        if (is_static) s.update.scales.v = &scale.t;
        s.ts.shape[0] = 1;
        s.slots[0] = 3; /* block 1, token 1 */
        write_rows();
        for (int h = 0; h < 2; h++) {
            const float own = h == 0 ? 1 : 2;
            unsigned char *page = want + 2 * blob, *at = hnd ? page + h * blob : page;
            const int row = hnd ? 1 : 2 + h, rows = hnd ? 2 : 4;
            memcpy(at + row * n, k_codes + h * n, (size_t)n);
            memcpy(at + rows * n + row * vb, is_static ? (const void *)(v_codes + h * n) : v + h * n,
                   (size_t)vb);
            memcpy(at + rows * (n + vb) + row * 4, &own, 4);
        }
        ok(memcmp(cache, want, sizeof cache) == 0, "%s, %s: K, V and the scales of K",
           attn_kv_name(p.kv_cache_dtype), hnd ? "HND" : "NHD");
        if (is_static) {
            s.update.scales.v = NULL;
            is_int(write_rows(), ATTN_E_INVALID, "no scales of channels are refused");
            ok(strstr(s.error.text, "attn calibrate") != NULL, "and what to do is said");
            scale.shape[1] = 3;
            s.update.scales.v = &scale.t;
            is_int(write_rows(), ATTN_E_INVALID, "so are scales of another head size");
            dense_set(&scale, by, ATTN_DTYPE_FLOAT32, 1, 2, 0, 0, 0);
            is_int(write_rows(), ATTN_E_INVALID, "and one for each head");
            scale.shape[0] = 1;
            is_int(write_rows(), ATTN_OK, "one number serves for all");
        }
        reference->ops->close(s.instance);
    }
}

static void model_types(void) {
    attn_problem_t p = small_problem();
    p.kv_cache_dtype = ATTN_KV_FLOAT16;
    start(&p, ATTN_DTYPE_FLOAT16, 8);
    s.ts.shape[0] = 1;
    s.slots[0] = 0;
    float key[4] = {1.0f, 1e9f, 1.00048828125f, -1e-9f};
    memcpy(s.key, key, sizeof key);
    write_rows();
    uint16_t row[4];
    memcpy(row, s.cache, sizeof row);
    ok(row[0] == 0x3c00 && row[1] == 0x7c00 && row[2] == 0x3c00 && row[3] == 0x8000,
       "a float16 cache of a float32 model: rounded, not saturated");
    reference->ops->close(s.instance);

    p.dtype = ATTN_DTYPE_BFLOAT16;
    p.kv_cache_dtype = ATTN_KV_FLOAT32;
    start(&p, ATTN_DTYPE_FLOAT32, 8);
    uint16_t *k = (uint16_t *)s.key, *v = (uint16_t *)s.value;
    for (int i = 0; i < 32; i++)
        k[i] = v[i] = (uint16_t)(0x3f80 + i);
    dense_set(&s.tk, s.key, ATTN_DTYPE_BFLOAT16, 3, 8, 1, 4, 0);
    dense_set(&s.tv, s.value, ATTN_DTYPE_BFLOAT16, 3, 8, 1, 4, 0);
    write_rows();
    ok(float_at(s.cache + 4 * 32 + 4) == (float)attn_from_bf16(0x3f81),
       "a float32 cache of a bfloat16 model is exact");
    reference->ops->close(s.instance);
}

/* A long row goes through the writer in pieces. */
static void long_rows(void) {
    attn_problem_t p = small_problem();
    p.num_heads = 1;
    p.head_size = 1000;
    p.kv_cache_dtype = ATTN_KV_INT8_PER_TOKEN_HEAD;
    static float rows[2 * 1000];
    static unsigned char cache[2 * 2 * 2008];
    small_start(&s, reference, &p);
    for (int i = 0; i < 1000; i++)
        rows[i] = (float)(i % 128) - 64;
    rows[999] = 127; /* the maximum is the last element */
    dense_set(&s.tk, rows, ATTN_DTYPE_FLOAT32, 3, 1, 1, 1000, 0);
    dense_set(&s.tv, rows, ATTN_DTYPE_FLOAT32, 3, 1, 1, 1000, 0);
    dense_set(&s.tc, cache, ATTN_DTYPE_INT8, 4, 2, 1, 2, 2008);
    s.ts.shape[0] = 1;
    s.slots[0] = 3;
    write_rows();
    int wrong = 0;
    for (int i = 0; i < 1000; i++)
        wrong += (signed char)cache[3 * 2008 + i] != (int)rows[i];
    for (int i = 0; i < 1000; i++)
        wrong += (signed char)cache[3 * 2008 + 1004 + i] != (int)rows[i];
    ok(wrong == 0 && float_at(cache + 3 * 2008 + 1000) == 1.0f, "1000 elements");
    reference->ops->close(s.instance);
}

int main(void) {
    reference = load_reference();
    places();
    per_tensor();
    per_token_head();
    int4_rows();
    turbo_rows();
    nvfp4_pages();
    int8_pages();
    model_types();
    long_rows();
    return tap_done();
}
