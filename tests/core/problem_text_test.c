/* SPDX-License-Identifier: Apache-2.0 */
/* Problems: what is refused and by which name, and the canonical text there and back. */
#include "core_testing.h"

#include <math.h>
#include <stdbool.h>

static attn_problem_t mla(void) {
    attn_problem_t p = plain_problem();
    p.role = ATTN_ROLE_MLA;
    p.num_heads = 16;
    p.num_kv_heads = 0;
    p.head_size = 576;
    p.kv_lora_rank = 512;
    p.qk_rope_head_dim = 64;
    p.qk_nope_head_dim = 128;
    p.v_head_dim = 128;
    return p;
}

static attn_problem_t sparse(void) {
    attn_problem_t p = mla();
    p.role = ATTN_ROLE_MLA_SPARSE;
    p.topk = 2048;
    p.kv_cache_dtype = ATTN_KV_FP8_DS_MLA;
    return p;
}

static attn_problem_t prefill(void) {
    attn_problem_t p = mla();
    p.role = ATTN_ROLE_MLA_PREFILL;
    p.head_size = 192;
    p.num_kv_heads = 16;
    p.head_size_v = 128;
    return p;
}

static attn_problem_t cross(void) {
    attn_problem_t p = plain_problem();
    p.role = ATTN_ROLE_ENCODER_DECODER;
    p.mask = ATTN_MASK_FULL;
    return p;
}

/* Changes one member of a good problem and wants the refusal to name `param`. */
#define REFUSED(base, change, member, code)                                                                  \
    do {                                                                                                     \
        attn_error_t err_ = ERROR_INIT;                                                                      \
        attn_problem_t p = base;                                                                             \
        change;                                                                                              \
        is_int(attn_problem_check(&p, &err_), code, "refused: %s", #change);                                 \
        is_str(err_.param, member, "by name: %s", err_.text);                                                \
    } while (0)
#define BAD(base, change, member) REFUSED(base, change, member, ATTN_E_INVALID)
#define GOOD(base, change)                                                                                   \
    do {                                                                                                     \
        attn_error_t err_ = ERROR_INIT;                                                                      \
        attn_problem_t p = base;                                                                             \
        change;                                                                                              \
        is_int(attn_problem_check(&p, &err_), ATTN_OK, "accepted: %s %s", #change, err_.text);               \
    } while (0)

/* What the scale and the head size of a layer usually are depends on its role, and the text says it. */
static void test_texts(void) {
    attn_problem_t dense = plain_problem(), latent = mla();
    attn_error_t e = ERROR_INIT;
    dense.scale = latent.scale = 0;
    attn_problem_check(&dense, &e);
    has_str(e.text, "1/sqrt(head_size)", "the usual scale");
    attn_problem_check(&latent, &e);
    has_str(e.text, "1/sqrt(qk_nope_head_dim + qk_rope_head_dim)", "that of latent attention");
    latent = mla();
    latent.head_size = 0;
    attn_problem_check(&latent, &e);
    has_str(e.text, "head_size is 0; role mla needs kv_lora_rank + qk_rope_head_dim = 576", "its head size");
}

static void test_check(void) {
    attn_problem_t plain = plain_problem();
    GOOD(plain, (void)0);
    GOOD(mla(), (void)0);
    GOOD(sparse(), (void)0);
    GOOD(prefill(), (void)0);
    GOOD(prefill(), p.head_size = 576);
    GOOD(cross(), (void)0);
    BAD(plain, p.struct_size = 0, "problem");
    BAD(plain, p.role = 0, "role");
    BAD(plain, p.role = ATTN_ROLE_COUNT_, "role");
    BAD(plain, p.mask = 0, "mask");
    BAD(plain, p.mask = 4, "mask");
    BAD(cross(), p.mask = ATTN_MASK_CAUSAL, "mask");
    BAD(mla(), p.mask = ATTN_MASK_PER_REQUEST, "mask");
    BAD(mla(), p.mask = ATTN_MASK_FULL, "mask");
    GOOD(plain, p.mask = ATTN_MASK_PER_REQUEST);
    BAD(plain, p.dtype = 0, "dtype");
    BAD(plain, p.dtype = ATTN_DTYPE_INT8, "dtype");
    BAD(plain, p.dtype = 1000, "dtype");
    BAD(plain, p.out_dtype = 11, "out_dtype");
    BAD(plain, p.out_dtype = ATTN_DTYPE_UINT8, "out_dtype");
    BAD(plain, p.features = ATTN_F_OUT_NVFP4, "out_dtype");
    GOOD(plain, (p.features = ATTN_F_OUT_NVFP4, p.out_dtype = ATTN_DTYPE_UINT8));
    BAD(plain, (p.features = ATTN_F_OUT_NVFP4 | ATTN_F_OUT_FP8_GROUP, p.out_dtype = ATTN_DTYPE_UINT8),
        "features");
    BAD(plain, p.out_dtype = ATTN_DTYPE_FP8_E4M3, "out_dtype");
    BAD(plain, p.features = ATTN_F_OUT_FP8_STATIC, "out_dtype");
    BAD(plain,
        (p.features = ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP, p.out_dtype = ATTN_DTYPE_FP8_E4M3),
        "features");
    BAD(plain,
        (p.features = ATTN_F_OUT_FP8_GROUP, p.out_dtype = ATTN_DTYPE_FP8_E4M3, p.num_heads = 1,
         p.num_kv_heads = 1, p.head_size = 72),
        "features");
    BAD(plain,
        (p.features = ATTN_F_OUT_NVFP4, p.out_dtype = ATTN_DTYPE_UINT8, p.num_heads = 1, p.num_kv_heads = 1,
         p.head_size = 24),
        "features");
    BAD(plain, (p.features = ATTN_F_OUT_SCALE_UE8M0, p.out_dtype = ATTN_DTYPE_FP8_E4M3), "features");
    GOOD(plain,
         (p.features = ATTN_F_OUT_SCALE_UE8M0 | ATTN_F_OUT_FP8_GROUP, p.out_dtype = ATTN_DTYPE_FP8_E4M3));
    GOOD(plain, p.features = ATTN_F_WRITE_IN_FORWARD);
    BAD(mla(), p.features = ATTN_F_WRITE_IN_FORWARD, "features");
    BAD(plain, p.query_dtype = ATTN_DTYPE_FLOAT16, "query_dtype");
    GOOD(plain, p.query_dtype = ATTN_DTYPE_FP8_E4M3);
    BAD(plain, p.kv_cache_dtype = ATTN_KV_COUNT_, "kv_cache_dtype");
    BAD(plain, p.kv_cache_dtype = ATTN_KV_FP8_DS_MLA, "kv_cache_dtype");
    BAD(mla(), p.kv_cache_dtype = ATTN_KV_FP8_DS_MLA, "kv_cache_dtype");
    BAD(plain, (p.role = ATTN_ROLE_ENCODER, p.kv_cache_dtype = ATTN_KV_FP8_E4M3), "kv_cache_dtype");
    GOOD(plain, (p.role = ATTN_ROLE_ENCODER, p.mask = ATTN_MASK_FULL, p.kv_cache_dtype = ATTN_KV_AUTO));
    BAD(plain, p.kv_layout = 3, "kv_layout");
    BAD(plain, p.num_heads = 0, "num_heads");
    BAD(plain, p.num_heads = UINT32_MAX, "num_heads");
    BAD(plain, p.num_kv_heads = 3, "num_kv_heads");
    BAD(plain, p.num_kv_heads = 16, "num_kv_heads");
    GOOD(plain, p.num_kv_heads = 0);
    BAD(plain, p.head_size = 0, "head_size");
    BAD(plain, p.head_size = UINT32_MAX, "head_size");
    BAD(plain, p.head_size_v = UINT32_MAX, "head_size_v");
    GOOD(plain, p.head_size = 33);
    BAD(plain, p.block_size = UINT32_MAX, "block_size");
    BAD(plain, p.scale = 0, "scale");
    BAD(plain, p.scale = (double)NAN, "scale");
    BAD(plain, p.scale = (double)INFINITY, "scale");
    BAD(plain, p.logits_soft_cap = -1, "logits_soft_cap");
    BAD(plain, p.logits_soft_cap = (double)NAN, "logits_soft_cap");
    BAD(plain, p.sliding_window = UINT32_MAX, "sliding_window");
    BAD(plain, p.chunk_size = UINT32_MAX, "chunk_size");
    BAD(plain, (p.chunk_size = 64, p.mask = ATTN_MASK_FULL), "chunk_size");
    BAD(plain, (p.chunk_size = 100, p.block_size = 16), "chunk_size");
    BAD(plain, (p.chunk_size = 64, p.sliding_window = 8), "chunk_size");
    GOOD(plain, (p.chunk_size = 64, p.block_size = 16));
    BAD(plain, p.chunk_lookback = 1, "chunk_lookback");
    BAD(plain, (p.chunk_lookback = 1, p.features = ATTN_F_CHUNK_LOOKBACK), "chunk_lookback");
    GOOD(plain, (p.chunk_lookback = 1, p.features = ATTN_F_CHUNK_LOOKBACK, p.sliding_window = 64));
    BAD(plain, (p.rswa_window = 8, p.sliding_window = 8), "rswa_window");
    BAD(plain, (p.rswa_window = 8, p.mask = ATTN_MASK_FULL), "rswa_window");
    BAD(cross(), p.static_sink_len = 16, "static_sink_len");
    BAD(plain, (p.static_sink_len = 24, p.block_size = 16), "static_sink_len");
    BAD(plain, p.features = ATTN_F_MM_PREFIX_CLAMP, "features");
    BAD(plain, p.max_mm_ranges = 4, "max_mm_ranges");
    BAD(plain, p.max_num_seqs = UINT32_MAX, "max_num_seqs");
    BAD(plain, p.max_num_batched_tokens = UINT32_MAX, "max_num_batched_tokens");
    BAD(plain, p.max_model_len = -1, "max_model_len");
    BAD(plain, p.max_model_len = INT64_MAX, "max_model_len");
    GOOD(plain, p.max_model_len = 1 << 20);
    BAD(plain, p.num_blocks = -1, "num_blocks");
    BAD(plain, p.num_blocks = INT64_MAX, "num_blocks");
    BAD(plain, p.dcp_rank = 1, "dcp_rank");
    BAD(plain, (p.dcp_world_size = 2, p.dcp_rank = 2), "dcp_rank");
    BAD(plain, p.dcp_world_size = 4097, "dcp_world_size");
    BAD(plain, p.kv_lora_rank = 1, "kv_lora_rank");
    BAD(plain, p.qk_nope_head_dim = 1, "qk_nope_head_dim");
    BAD(plain, p.qk_rope_head_dim = 1, "qk_rope_head_dim");
    BAD(plain, p.v_head_dim = 1, "v_head_dim");
    BAD(plain, p.topk = 128, "topk");
    BAD(mla(), p.kv_lora_rank = 0, "kv_lora_rank");
    BAD(mla(), p.qk_nope_head_dim = 0, "qk_nope_head_dim");
    BAD(mla(), p.qk_rope_head_dim = 0, "qk_rope_head_dim");
    BAD(mla(), p.v_head_dim = 0, "v_head_dim");
    BAD(mla(), p.v_head_dim = UINT32_MAX, "v_head_dim");
    BAD(mla(), p.head_size = 192, "head_size");
    BAD(mla(), p.num_kv_heads = 2, "num_kv_heads");
    BAD(mla(), p.head_size_v = 512, "head_size_v");
    BAD(mla(), p.sliding_window = 9, "sliding_window");
    BAD(mla(), p.topk = 128, "topk");
    BAD(plain, p.cp_interleave = 1, "cp_interleave");
    GOOD(plain, (p.dcp_world_size = 2, p.cp_interleave = 1));
#define ABSORBED p.features = ATTN_F_LATENT, p.qk_nope_head_dim = p.v_head_dim = 0
    GOOD(mla(), (ABSORBED));
    GOOD(mla(), (ABSORBED, p.mask = ATTN_MASK_FULL));
    GOOD(mla(), (ABSORBED, p.query_dtype = ATTN_DTYPE_FP8_E4M3));
    GOOD(sparse(), (ABSORBED));
    BAD(mla(), p.mask = ATTN_MASK_FULL, "mask");
    BAD(sparse(), (ABSORBED, p.mask = ATTN_MASK_FULL), "mask");
    BAD(mla(), (ABSORBED, p.qk_nope_head_dim = 128), "qk_nope_head_dim");
    BAD(mla(), (ABSORBED, p.v_head_dim = 128), "v_head_dim");
    BAD(mla(), (ABSORBED, p.head_size = 512), "head_size");
    BAD(plain, p.features = ATTN_F_LATENT, "features");
    BAD(mla(), (ABSORBED, p.role = ATTN_ROLE_MLA_PREFILL), "features");
#define OWN_KEYS p.role = ATTN_ROLE_ENCODER, p.features = ATTN_F_KEY_LENGTHS
    GOOD(plain, (OWN_KEYS));
    GOOD(plain, (OWN_KEYS, p.mask = ATTN_MASK_FULL, p.max_num_batched_keys = 1 << 20));
    GOOD(mla(), (p.role = ATTN_ROLE_MLA_PREFILL, p.features = ATTN_F_KEY_LENGTHS, p.mask = ATTN_MASK_FULL));
    BAD(mla(), (p.role = ATTN_ROLE_MLA_PREFILL, p.mask = ATTN_MASK_FULL), "mask");
    BAD(mla(), p.features = ATTN_F_KEY_LENGTHS, "features");
    BAD(plain, p.features = ATTN_F_KEY_LENGTHS, "features");
    BAD(cross(), p.features = ATTN_F_KEY_LENGTHS, "features");
    BAD(plain, (OWN_KEYS, p.max_num_batched_keys = UINT32_MAX), "max_num_batched_keys");
    BAD(plain, p.max_num_batched_keys = 64, "max_num_batched_keys");
    GOOD(plain, p.features = ATTN_F_DEVICE_LENGTHS);
    GOOD(mla(), p.features = ATTN_F_DEVICE_LENGTHS);
    BAD(sparse(), p.features = ATTN_F_DEVICE_LENGTHS, "features");
    BAD(cross(), p.features = ATTN_F_DEVICE_LENGTHS, "features");
    BAD(plain, p.features = ATTN_F_DEVICE_LENGTHS | ATTN_F_CASCADE, "features");
    BAD(plain, (p.features = ATTN_F_DEVICE_LENGTHS, p.static_sink_len = 16), "static_sink_len");
    BAD(plain, (p.features = ATTN_F_DEVICE_LENGTHS, p.dcp_world_size = 2), "dcp_world_size");
    BAD(sparse(), p.topk = 0, "topk");
    BAD(sparse(), p.topk = 100, "topk");
    REFUSED(plain, p.features = UINT64_C(1) << 60, "features", ATTN_E_TOO_NEW);
    REFUSED(plain, p.reserved[6] = 1, "reserved", ATTN_E_TOO_NEW);
    REFUSED(plain, p.features = UINT64_C(1) << 25, "features", ATTN_E_TOO_NEW);
    attn_error_t err = ERROR_INIT;
    is_int(attn_problem_check(NULL, &err), ATTN_E_INVALID, "no problem at all");
    attn_problem_t p = plain;
    p.num_heads = 0;
    is_int(attn_problem_check(&p, NULL), ATTN_E_INVALID, "no error struct, the code alone");
}

static void test_format(void) {
    char text[1024];
    attn_problem_t p = plain_problem();
    const char *want = "role=decoder mask=causal dtype=bfloat16 num_heads=8 num_kv_heads=2 head_size=128 "
                       "scale=0.08838834764831845";
    is_int(attn_problem_format(&p, text, sizeof text), (long long)strlen(want), "the length comes back");
    is_str(text, want, "the canonical text");
    p.kv_cache_dtype = ATTN_KV_FP8_E4M3;
    p.kv_layout = ATTN_LAYOUT_HND;
    p.features = ATTN_F_SINK | ATTN_F_LSE;
    p.max_model_len = 1048576;
    p.logits_soft_cap = 50;
    attn_problem_format(&p, text, sizeof text);
    has_str(text, " kv_cache_dtype=fp8_e4m3 kv_layout=HND ", "names of values");
    has_str(text, " logits_soft_cap=50 features=sink,lse max_model_len=1048576", "features and long numbers");
    char small[20];
    is_int(attn_problem_format(&p, small, sizeof small), (long long)strlen(text),
           "a small buffer: the whole length");
    is_int(strlen(small), sizeof small - 1, "and as much as fits");
    is_int(attn_problem_format(&p, NULL, 0), (long long)strlen(text), "no buffer: only the length");
    is_int(attn_problem_format(&p, NULL, 5), ATTN_E_INVALID, "a size without a buffer");
    is_int(attn_problem_format(NULL, small, sizeof small), ATTN_E_INVALID, "no problem");
    p.reserved[0] = 1;
    is_int(attn_problem_format(&p, small, sizeof small), ATTN_E_TOO_NEW, "what has no text is refused");
}

static void test_parse(void) {
    static const struct {
        const char *text, *words, *param;
    } cases[] = {
        {"num_head=3", "column 1: unknown key 'num_head', did you mean 'num_heads'", "num_head"},
        {"role=decoder  mask", "column 15: expected key=value", ""},
        {"role=decodr", "column 6: role has no value 'decodr', did you mean 'decoder'", "role"},
        {"role=", "column 6: the value is missing", "role"},
        {"dtype=bfloat17", "did you mean 'bfloat16'", "dtype"},
        {"mask=causal mask=full", "column 13: duplicate key", "mask"},
        {"num_heads=-1", "column 11: expected a whole number from 0 to 4294967295", "num_heads"},
        {"num_heads=4294967296", "expected a whole number from 0", "num_heads"},
        {"num_heads=3x", "expected a whole number from 0", "num_heads"},
        {"num_heads=+3", "expected a whole number from 0", "num_heads"},
        {"num_blocks=99999999999999999999", "expected a whole number of at most 64 bits", "num_blocks"},
        {"num_blocks=--3", "expected a whole number of at most 64 bits", "num_blocks"},
        {"scale=one", "column 7: expected a number such as 0.125", "scale"},
        {"scale=nan(7)", "expected a number such as 0.125", "scale"},
        {"scale=0,5", "expected a number such as 0.125", "scale"},
        {"features=sink,lsd", "column 15: features has no value 'lsd', did you mean 'lse'", "features"},
        {"kv_cache_dtype=fp7",
         "known are: auto float16 bfloat16 float32 fp8_e4m3 fp8_e5m2 int8_per_token_head fp8_per_token_head "
         "int4_per_token_head nvfp4 fp8_ds_mla turboquant_k8v4 turboquant_4bit_nc turboquant_k3v4_nc "
         "turboquant_3bit_nc int8_static_v int8_k_only",
         "kv_cache_dtype"},
        {"features=bit64", "features has no value 'bit64'", "features"},
        {"features=sink,", "features has no value ''", "features"},
    };
    attn_problem_t p;
    attn_error_t err = ERROR_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(&p, 0x55, sizeof p);
        is_int(attn_problem_parse(cases[i].text, &p, &err), ATTN_E_PARSE, "refused: %s", cases[i].text);
        has_str(err.text, cases[i].words, "in these words");
        is_str(err.param, cases[i].param, "by name");
        is_int(p.role, 0x55555555, "and nothing is written");
    }
    char *long_word = malloc(5000);
    memset(long_word, 'a', 4999);
    long_word[4999] = 0;
    is_int(attn_problem_parse(long_word, &p, &err), ATTN_E_PARSE, "an endless word");
    free(long_word);
    is_int(attn_problem_parse(NULL, &p, &err), ATTN_E_INVALID, "no text");
    is_int(attn_problem_parse("", NULL, &err), ATTN_E_INVALID, "no place");
    is_int(attn_problem_parse(" \t role=DECODER\n kv_cache_dtype=fp8 dtype=bf16 query_dtype=77 ", &p, &err),
           ATTN_OK, "blanks, cases, aliases and numbers are read: %s", err.text);
    ok(p.role == ATTN_ROLE_DECODER && p.kv_cache_dtype == ATTN_KV_FP8_E4M3 &&
           p.dtype == ATTN_DTYPE_BFLOAT16 && p.query_dtype == 77 && p.struct_size == sizeof p && !p.scale,
       "and what is not said is zero");
    is_int(attn_problem_parse("", &p, &err), ATTN_OK, "an empty text");
    ok(!p.role && !p.mask, "is an empty problem: attn_problem_check will tell");
}

/* Every member random, also values without a name: parse(format(p)) is p to the last bit. */
static void test_round_trip(void) {
    uint64_t seed = tap_seed();
    int wrong = 0, rounds = 4000;
    for (int round = 0; round < rounds; round++) {
        attn_problem_t p = {.struct_size = sizeof p}, back;
        attn_error_t err = ERROR_INIT;
        char text[2048], again[2048];
        for (size_t at = sizeof p.struct_size; at + 4 <= offsetof(attn_problem_t, reserved); at += 4) {
            uint32_t value = (uint32_t)tap_rand(&seed);
            switch (tap_rand_in(&seed, 0, 3)) {
            case 0:
                value = 0;
                break;
            case 1:
                value %= 20;
                break;
            default:
                break;
            }
            memcpy((char *)&p + at, &value, 4);
        }
        if (isnan(p.scale)) p.scale = 1;
        if (isnan(p.logits_soft_cap)) p.logits_soft_cap = 0;
        attn_problem_format(&p, text, sizeof text);
        int code = attn_problem_parse(text, &back, &err);
        if (!code) attn_problem_format(&back, again, sizeof again);
        bool same = !code && !strcmp(text, again) && !memcmp(&p, &back, offsetof(attn_problem_t, reserved));
        if (!same && !wrong++) diag("first difference (%s): %s", err.text, text);
    }
    is_int(wrong, 0, "%d random problems come back exactly", rounds);
}

int main(void) {
    test_texts();
    test_check();
    test_format();
    test_parse();
    test_round_trip();
    return tap_done();
}
