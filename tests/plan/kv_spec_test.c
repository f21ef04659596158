/* SPDX-License-Identifier: Apache-2.0 */
/* Cache specs: kinds, page bytes of every format, admission limits, merging (semantics 3.7, 3.10). */
#include "../tap.h"

#include <attn/attn.h>
#include <attn/attn_plan.h>
#include <attn/attn_plugin_util.h>

static attn_error_t error = {.struct_size = sizeof error};

#define BAD(CALL, CODE, PARAM, ...)                                                                          \
    do {                                                                                                     \
        error.param[0] = '\0';                                                                               \
        ok((CALL) == (CODE) && strcmp(error.param, PARAM) == 0 && error.text[0], __VA_ARGS__);               \
    } while (0)

static attn_kv_spec_t spec(uint32_t kind, uint32_t kv) {
    return (attn_kv_spec_t){.struct_size = sizeof(attn_kv_spec_t),
                            .kind = kind,
                            .block_size = 16,
                            .num_kv_heads = 8,
                            .head_size = 128,
                            .head_size_v = 128,
                            .dtype = ATTN_DTYPE_BFLOAT16,
                            .kv_cache_dtype = kv};
}

static int64_t page(attn_kv_spec_t s) {
    int64_t bytes = -1;
    return attn_kv_spec_page_bytes(&s, &bytes, &error) == ATTN_OK ? bytes : -1;
}

static void test_pages(void) {
    const struct {
        uint32_t kv;
        int64_t row; /* one token and head, D = 128 */
    } rows[] = {{ATTN_KV_AUTO, 512},
                {ATTN_KV_FLOAT16, 512},
                {ATTN_KV_FLOAT32, 1024},
                {ATTN_KV_FP8_E4M3, 256},
                {ATTN_KV_FP8_E5M2, 256},
                {ATTN_KV_INT8_PER_TOKEN_HEAD, 264},
                {ATTN_KV_FP8_PER_TOKEN_HEAD, 264},
                {ATTN_KV_INT4_PER_TOKEN_HEAD, 136},
                {ATTN_KV_NVFP4, 144},
                {ATTN_KV_INT8_STATIC_V, 128 + 128 + 4},
                {ATTN_KV_INT8_K_ONLY, 128 + 256 + 4},
                {ATTN_KV_TURBOQUANT_K8V4, 196},
                {ATTN_KV_TURBOQUANT_4BIT_NC, 134},
                {ATTN_KV_TURBOQUANT_K3V4_NC, 118},
                {ATTN_KV_TURBOQUANT_3BIT_NC, 102},
                {ATTN_KV_BFLOAT16, 512}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t kind = attn_kv_is_turboquant(rows[i].kv) ? ATTN_SPEC_TURBOQUANT : ATTN_SPEC_FULL;
        is_int(page(spec(kind, rows[i].kv)), 16 * 8 * rows[i].row, "page of %s", attn_kv_name(rows[i].kv));
    }
    attn_kv_spec_t s = spec(ATTN_SPEC_TURBOQUANT, ATTN_KV_TURBOQUANT_3BIT_NC);
    s.head_size = 64;
    is_int(page(s), 16 * 8 * 54, "key 24+2, value 24+4");
    s = spec(ATTN_SPEC_TURBOQUANT, ATTN_KV_TURBOQUANT_K3V4_NC);
    s.head_size = 8;
    is_int(page(s), 16 * 8 * 14, "a slot that is rounded up to even: key 3+2, value 4+4");
    s = spec(ATTN_SPEC_TURBOQUANT, ATTN_KV_TURBOQUANT_K8V4);
    s.head_size = 80;
    is_int(page(s), 16 * 8 * (80 + 44), "keys of 8 bits have any multiple of 8");
    s = spec(ATTN_SPEC_FULL, ATTN_KV_AUTO);
    s.head_size_v = 64;
    is_int(page(s), 16 * 8 * (128 + 64) * 2, "values of another size");
    s.head_size_v = 0;
    is_int(page(s), 16 * 8 * 256 * 2, "0 is the head size");
    s.page_bytes_padded = 131072;
    is_int(page(s), 131072, "a padded page");
    s.page_bytes_padded = 0, s.alignment = 100000;
    is_int(page(s), 100000, "an aligned page");
    /* The pages of dense formats are those of attn_dense_cache_shape. */
    ATTN_INIT(attn_problem_t, p);
    p.dtype = ATTN_DTYPE_FLOAT16, p.num_heads = 8, p.num_kv_heads = 4, p.head_size = 96, p.head_size_v = 64;
    for (uint32_t kv = ATTN_KV_AUTO; kv < ATTN_KV_COUNT_; kv++) {
        attn_kv_cache_shape_t shape;
        if (!(attn_kv_formats_of(ATTN_KV_DENSE_ROLES) >> kv & 1)) continue;
        p.kv_cache_dtype = kv;
        p.head_size = attn_kv_format(kv)->power_of_two ? 128 : 96;
        p.head_size_v = attn_kv_has_one_size(kv) ? p.head_size : 64;
        attn_zero(&shape, sizeof shape);
        is_int(attn_dense_cache_shape(&p, ATTN_LAYOUT_NHD, 32, 7, &shape, &error), ATTN_OK, "%s has a shape",
               attn_kv_name(kv));
        attn_kv_spec_t dense = spec(ATTN_SPEC_SLIDING_WINDOW, kv);
        dense.block_size = 32, dense.num_kv_heads = 4, dense.head_size = p.head_size,
        dense.head_size_v = p.head_size_v, dense.dtype = p.dtype;
        is_int(page(dense), shape.page_bytes, "%s as its cache shape", attn_kv_name(kv));
    }
}

static void test_mla_pages(void) {
    int64_t bytes;
    attn_kv_spec_t s = spec(ATTN_SPEC_MLA, ATTN_KV_AUTO);
    s.num_kv_heads = 1, s.head_size = 576, s.block_size = 64;
    is_int(page(s), 64 * 576 * 2, "MLA, 16 bit");
    s.kv_cache_dtype = ATTN_KV_FP8_E4M3;
    is_int(page(s), 64 * 576, "fp8");
    for (uint32_t kv = ATTN_KV_FP8_E5M2 + 1; kv < ATTN_KV_COUNT_; kv++) {
        s.kv_cache_dtype = kv;
        if (kv != ATTN_KV_FP8_DS_MLA)
            BAD(attn_kv_spec_page_bytes(&s, &bytes, &error), ATTN_E_INVALID, "kv_cache_dtype",
                "MLA has no %s", attn_kv_name(kv));
    }
    s.kv_cache_dtype = ATTN_KV_FP8_DS_MLA;
    is_int(page(s), 64 * 656, "fp8_ds_mla");
    s.head_size = 512, s.compress_ratio = 4;
    is_int(page(s), 16 * 584, "the 584-byte form, compressed");
    s.alignment = 576;
    is_int(page(s), 576 * 17, "with alignment");
    s.head_size = 320, s.compress_ratio = 0;
    BAD(attn_kv_spec_page_bytes(&s, &(int64_t){0}, &error), ATTN_E_INVALID, "head_size",
        "fp8_ds_mla has no 320");
    s.compress_ratio = 3;
    BAD(attn_kv_spec_page_bytes(&s, &(int64_t){0}, &error), ATTN_E_INVALID, "compress_ratio",
        "64 is no multiple of 3");
}

static void test_page_errors(void) {
    int64_t bytes;
#define PAGE_BAD(MEMBER, VALUE, PARAM)                                                                       \
    do {                                                                                                     \
        attn_kv_spec_t s_ = spec(ATTN_SPEC_FULL, ATTN_KV_AUTO);                                              \
        s_.MEMBER = VALUE;                                                                                   \
        BAD(attn_kv_spec_page_bytes(&s_, &bytes, &error), ATTN_E_INVALID, PARAM, #MEMBER " = " #VALUE);      \
    } while (0)
    PAGE_BAD(kind, 0, "kind");
    PAGE_BAD(kind, 77, "kind");
    PAGE_BAD(block_size, 0, "block_size");
    PAGE_BAD(num_kv_heads, 0, "num_kv_heads");
    PAGE_BAD(head_size, 0, "head_size");
    PAGE_BAD(kv_cache_dtype, 99, "kv_cache_dtype");
    PAGE_BAD(kv_cache_dtype, ATTN_KV_FP8_DS_MLA, "kv_cache_dtype");
    PAGE_BAD(dtype, 0, "dtype");
    PAGE_BAD(page_bytes_padded, 65535, "page_bytes_padded");
    PAGE_BAD(alignment, -1, "alignment");
    attn_kv_spec_t s = spec(ATTN_SPEC_FULL, ATTN_KV_NVFP4);
    s.head_size = 72;
    BAD(attn_kv_spec_page_bytes(&s, &bytes, &error), ATTN_E_INVALID, "head_size", "nvfp4 of 72");
    s = spec(ATTN_SPEC_FULL, ATTN_KV_INT4_PER_TOKEN_HEAD);
    s.head_size = 96;
    BAD(attn_kv_spec_page_bytes(&s, &bytes, &error), ATTN_E_INVALID, "head_size", "int4 of 96");
    s = spec(ATTN_SPEC_TURBOQUANT, ATTN_KV_TURBOQUANT_4BIT_NC);
    s.head_size = 96;
    BAD(attn_kv_spec_page_bytes(&s, &bytes, &error), ATTN_E_INVALID, "head_size", "turboquant_4bit_nc of 96");
    s = spec(ATTN_SPEC_FULL, ATTN_KV_INT4_PER_TOKEN_HEAD);
    s.head_size = 73;
    BAD(attn_kv_spec_page_bytes(&s, &bytes, &error), ATTN_E_INVALID, "head_size", "int4 of 73");
    s = spec(ATTN_SPEC_FULL, ATTN_KV_FLOAT32);
    s.block_size = s.num_kv_heads = s.head_size = s.head_size_v = UINT32_MAX;
    BAD(attn_kv_spec_page_bytes(&s, &bytes, &error), ATTN_E_INVALID, "block_size",
        "a page of more than 2^64 bytes");
    BAD(attn_kv_spec_page_bytes(NULL, &bytes, &error), ATTN_E_INVALID, "spec", "no spec");
    BAD(attn_kv_spec_page_bytes(&s, NULL, &error), ATTN_E_INVALID, "bytes", "no output");
}

static int64_t blocks(attn_kv_spec_t s, int64_t len, int64_t inflight, int64_t encoder, int dcp) {
    int64_t n = -1;
    return attn_kv_spec_max_blocks(&s, len, inflight, encoder, dcp, &n, &error) == ATTN_OK ? n : -1;
}

static void test_limits(void) {
    attn_kv_spec_t s = spec(ATTN_SPEC_FULL, ATTN_KV_AUTO);
    is_int(blocks(s, 1000, 0, 0, 1), 63, "full: cdiv(1000, 16)");
    is_int(blocks(s, 1000, 0, 0, 3), 21, "full over 3 ranks: cdiv(334, 16)");
    is_int(blocks(s, 1 << 20, 0, 0, 0), 65536, "a million tokens");
    s = spec(ATTN_SPEC_SLIDING_WINDOW, ATTN_KV_AUTO), s.sliding_window = 100;
    is_int(blocks(s, 1000, 29, 0, 1), 9, "window: cdiv(99 + 29, 16) + 1");
    is_int(blocks(s, 1000, 30, 0, 1), 10, "one token more");
    is_int(blocks(s, 64, 1000, 0, 1), 5, "not beyond the model");
    is_int(blocks(s, 1000, INT64_MAX, 0, 1), 64, "no overflow");
    is_int(blocks(s, 1000, 29, 0, 2), 6, "window over 2 ranks: cdiv(64, 16) + 2");
    is_int(blocks(s, 1000, 30, 0, 2), 7, "one token more");
    s = spec(ATTN_SPEC_CHUNKED_LOCAL, ATTN_KV_AUTO), s.chunk_size = 64;
    is_int(blocks(s, 1000, 16, 0, 1), 5, "chunks: cdiv(64 + 16, 16)");
    is_int(blocks(s, 40, 16, 0, 1), 3, "not beyond the model");
    is_int(blocks(spec(ATTN_SPEC_CROSS, 0), 1000, 16, 100, 1), 7, "cross: the encoder's tokens");
    is_int(blocks(spec(ATTN_SPEC_ENCODER_ONLY, 0), 1000, 16, 100, 1), 0, "encoder: none");
    is_int(blocks(spec(ATTN_SPEC_MLA, 0), 1000, 0, 0, 2), 32, "MLA as full");
    is_int(blocks(spec(ATTN_SPEC_TURBOQUANT, 0), 1000, 0, 0, 1), 63, "TurboQuant as full");
    int64_t n;
    s = spec(42, 0);
    BAD(attn_kv_spec_max_blocks(&s, 1, 0, 0, 1, &n, &error), ATTN_E_INVALID, "kind", "an unknown kind");
    is_int(attn_mm_max_seqlen((const int32_t[]){INT32_MIN, INT32_MAX}, 2), INT32_MAX,
           "a distance that 32 bits do not count stops at their end");
    int64_t most = 0;
    s = spec(ATTN_SPEC_SLIDING_WINDOW, ATTN_KV_AUTO), s.sliding_window = 100, s.block_size = 1;
    ok(attn_kv_spec_max_blocks(&s, INT64_MAX, INT64_MAX, 0, 0, &most, NULL) == ATTN_OK && most == INT64_MAX,
       "blocks that 64 bits do not count stop at their end");
    s = spec(ATTN_SPEC_SLIDING_WINDOW, 0);
    BAD(attn_kv_spec_max_blocks(&s, 1, 0, 0, 1, &n, &error), ATTN_E_INVALID, "sliding_window",
        "a window of 0");
    s = spec(ATTN_SPEC_CHUNKED_LOCAL, 0);
    BAD(attn_kv_spec_max_blocks(&s, 1, 0, 0, 1, &n, &error), ATTN_E_INVALID, "chunk_size", "chunks of 0");
    BAD(attn_kv_spec_max_blocks(&s, -1, 0, 0, 1, &n, &error), ATTN_E_INVALID, "max_model_len",
        "a negative length");
    s.block_size = 0;
    BAD(attn_kv_spec_max_blocks(&s, 1, 0, 0, 1, &n, &error), ATTN_E_INVALID, "block_size", "blocks of 0");
}

static void test_of_problem(void) {
    const struct {
        uint32_t role, window, chunk, sink, rswa, kv, kind;
        const char *name;
    } cases[] = {
        {ATTN_ROLE_DECODER, 0, 0, 0, 0, 0, ATTN_SPEC_FULL, "full_attention"},
        {ATTN_ROLE_DECODER, 128, 0, 0, 0, 0, ATTN_SPEC_SLIDING_WINDOW, "sliding_window"},
        {ATTN_ROLE_DECODER, 128, 0, 0, 0, ATTN_KV_TURBOQUANT_K8V4, ATTN_SPEC_SLIDING_WINDOW,
         "sliding_window"},
        {ATTN_ROLE_DECODER, 0, 256, 0, 0, 0, ATTN_SPEC_CHUNKED_LOCAL, "chunked_local_attention"},
        {ATTN_ROLE_DECODER, 0, 0, 16, 0, 0, ATTN_SPEC_SINK_FULL, "sink_full_attention"},
        {ATTN_ROLE_DECODER, 0, 0, 0, 64, 0, ATTN_SPEC_RSWA, "rswa_attention"},
        {ATTN_ROLE_DECODER, 0, 0, 0, 0, ATTN_KV_TURBOQUANT_3BIT_NC, ATTN_SPEC_TURBOQUANT,
         "turboquant_attention"},
        {ATTN_ROLE_ENCODER_DECODER, 0, 0, 0, 0, 0, ATTN_SPEC_CROSS, "cross_attention"},
        {ATTN_ROLE_ENCODER, 0, 0, 0, 0, 0, ATTN_SPEC_ENCODER_ONLY, "encoder_only_attention"},
        {ATTN_ROLE_MM_ENCODER, 0, 0, 0, 0, 0, ATTN_SPEC_ENCODER_ONLY, "encoder_only_attention"},
        {ATTN_ROLE_MLA, 0, 0, 0, 0, 0, ATTN_SPEC_MLA, "mla_attention"},
        {ATTN_ROLE_MLA_SPARSE, 0, 0, 0, 0, 0, ATTN_SPEC_MLA, "mla_attention"},
        {ATTN_ROLE_MLA_PREFILL, 0, 0, 0, 0, 0, ATTN_SPEC_ENCODER_ONLY, "encoder_only_attention"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ATTN_INIT(attn_problem_t, p);
        p.role = cases[i].role, p.mask = ATTN_MASK_CAUSAL, p.dtype = ATTN_DTYPE_BFLOAT16;
        p.num_heads = 32, p.num_kv_heads = 8, p.head_size = 128, p.kv_cache_dtype = cases[i].kv;
        p.sliding_window = cases[i].window, p.chunk_size = cases[i].chunk, p.static_sink_len = cases[i].sink,
        p.rswa_window = cases[i].rswa;
        attn_kv_spec_t s;
        is_int(attn_kv_spec_of(&p, 16, &s, &error), ATTN_OK, "spec of %s", cases[i].name);
        is_int(s.kind, cases[i].kind, "kind %s", cases[i].name);
        is_str(attn_kv_spec_kind_name(s.kind), cases[i].name, "its name");
        is_int(s.num_kv_heads, cases[i].kind == ATTN_SPEC_MLA ? 1 : 8, "its heads");
        is_int(s.block_size, 16, "its block size");
    }
    is_str(attn_kv_spec_kind_name(99), "unknown", "another kind");
    ATTN_INIT(attn_problem_t, p);
    p.role = ATTN_ROLE_DECODER, p.mask = ATTN_MASK_FULL, p.dtype = ATTN_DTYPE_BFLOAT16, p.num_heads = 4,
    p.head_size = 64, p.block_size = 32;
    attn_kv_spec_t s;
    attn_kv_spec_of(&p, 16, &s, &error);
    ok(s.block_size == 32 && s.non_causal == 1 && s.num_kv_heads == 4 && s.head_size_v == 64 &&
           s.kv_cache_dtype == ATTN_KV_AUTO,
       "the problem's block size, a prefix-LM layer, defaults");
    p.block_size = 0;
    BAD(attn_kv_spec_of(&p, 0, &s, &error), ATTN_E_INVALID, "block_size", "no block size at all");
    BAD(attn_kv_spec_of(NULL, 16, &s, &error), ATTN_E_INVALID, "problem", "no problem");
    BAD(attn_kv_spec_of(&p, 16, NULL, &error), ATTN_E_INVALID, "spec", "no output");
}

static void test_merge(void) {
    attn_kv_spec_t s[3] = {spec(ATTN_SPEC_FULL, 1), spec(ATTN_SPEC_FULL, 1), spec(ATTN_SPEC_FULL, 1)}, m;
    s[1].sliding_window = 128, s[2].non_causal = 1;
    is_int(attn_kv_spec_merge(s, 3, &m, &error), ATTN_OK, "merge");
    ok(m.sliding_window == 128 && m.non_causal == 1 && m.kind == ATTN_SPEC_FULL,
       "the one window, non_causal of any");
    s[2].sliding_window = 64;
    BAD(attn_kv_spec_merge(s, 3, &m, &error), ATTN_E_INVALID, "sliding_window", "two windows");
    s[2].sliding_window = 0, s[2].chunk_size = 64;
    BAD(attn_kv_spec_merge(s, 3, &m, &error), ATTN_E_INVALID, "chunk_size", "a window and chunks");
    s[1].sliding_window = 0, s[1].chunk_size = 32;
    BAD(attn_kv_spec_merge(s, 3, &m, &error), ATTN_E_INVALID, "chunk_size", "two chunk sizes");
#define DIFFER(MEMBER)                                                                                       \
    do {                                                                                                     \
        attn_kv_spec_t d_[2] = {spec(ATTN_SPEC_MLA, 1), spec(ATTN_SPEC_MLA, 1)};                             \
        d_[1].MEMBER += 16;                                                                                  \
        BAD(attn_kv_spec_merge(d_, 2, &m, &error), ATTN_E_INVALID, #MEMBER, #MEMBER " differs");             \
    } while (0)
    DIFFER(kind);
    DIFFER(block_size);
    DIFFER(num_kv_heads);
    DIFFER(head_size);
    DIFFER(head_size_v);
    DIFFER(dtype);
    DIFFER(kv_cache_dtype);
    DIFFER(sink_len);
    DIFFER(rswa_window);
    DIFFER(compress_ratio);
    DIFFER(page_bytes_padded);
    DIFFER(alignment);
    is_int(attn_kv_spec_merge(s, 1, &m, &error), ATTN_OK, "a group of one");
    BAD(attn_kv_spec_merge(s, 0, &m, &error), ATTN_E_INVALID, "num_specs", "a group of none");
    BAD(attn_kv_spec_merge(NULL, 1, &m, &error), ATTN_E_INVALID, "specs", "no specs");
    BAD(attn_kv_spec_merge(s, 1, NULL, &error), ATTN_E_INVALID, "merged", "no output");
}

/* An error struct of an older, shorter layout: its owner says how long it is, and nothing is written behind
 * that. */
static void test_short_error(void) {
    struct {
        attn_error_t error;
        char behind[8];
    } box;
    int64_t bytes = 0;
    for (uint32_t size = 0; size <= sizeof box.error; size += 4) {
        memset(&box, 0x5a, sizeof box);
        box.error.struct_size = size;
        const int code = attn_kv_spec_page_bytes(NULL, &bytes, &box.error);
        uint32_t wrong = code != ATTN_E_INVALID || box.error.struct_size != size;
        for (uint32_t i = size > 4 ? size : 4; i < sizeof box; i++)
            wrong += ((const char *)&box)[i] != 0x5a;
        if (wrong) {
            is_int(wrong, 0, "an error struct of %u bytes", size);
            return;
        }
    }
    ok(1, "error structs of every length: nothing is written behind struct_size");
}

int main(void) {
    test_short_error();
    test_pages();
    test_mla_pages();
    test_page_errors();
    test_limits();
    test_of_problem();
    test_merge();
    return tap_done();
}
