/* SPDX-License-Identifier: Apache-2.0 */
/* reference_errors.c: every refusal of REFERENCE: its code, the parameter that it names, and that the
 * instance goes on. */
#include "reference_setup.h"

static const attn_backend_t *reference;
static small_t s;

static void refused(const char *name, int status, int want, const small_t *x, const char *param) {
    if (!ok(status == want && strcmp(x->error.param, param) == 0 && x->error.text[0] != '\0', "%s: %s", param,
            name))
        diag("status %d (wanted %d), param '%s', text '%s'", status, want, x->error.param, x->error.text);
}

static int open_problem(const attn_problem_t *p) {
    s.instance = NULL;
    memset(&s.error, 0, sizeof s.error);
    s.error.struct_size = sizeof s.error;
    return reference->ops->open(p, &test_cpu, NULL, 0, NULL, &s.instance, &s.error);
}

#define OPEN_REFUSED(NAME, CODE, PARAM, CHANGE)                                                              \
    do {                                                                                                     \
        attn_problem_t p = small_problem();                                                                  \
        CHANGE;                                                                                              \
        refused(NAME, open_problem(&p), CODE, &s, PARAM);                                                    \
        if (s.instance != NULL) bail_out("a refused open wrote an instance");                                \
    } while (0)

static void open_errors(void) {
    OPEN_REFUSED("none", ATTN_E_UNSUPPORTED, "role", p.role = 0);
    OPEN_REFUSED("unknown", ATTN_E_UNSUPPORTED, "role", p.role = 77);
    OPEN_REFUSED("none", ATTN_E_UNSUPPORTED, "mask", p.mask = 0);
    OPEN_REFUSED("int8", ATTN_E_UNSUPPORTED, "dtype", p.dtype = ATTN_DTYPE_INT8);
    OPEN_REFUSED("unknown", ATTN_E_UNSUPPORTED, "dtype", p.dtype = 99);
    OPEN_REFUSED("int32", ATTN_E_UNSUPPORTED, "out_dtype", p.out_dtype = ATTN_DTYPE_INT32);
    OPEN_REFUSED("fp8 without a scale feature", ATTN_E_UNSUPPORTED, "out_dtype",
                 p.out_dtype = ATTN_DTYPE_FP8_E4M3);
    OPEN_REFUSED("float16 beside float32", ATTN_E_UNSUPPORTED, "query_dtype",
                 p.query_dtype = ATTN_DTYPE_FLOAT16);
    OPEN_REFUSED("fp8 where it is quantised anyway", ATTN_E_UNSUPPORTED, "query_dtype",
                 (p.role = ATTN_ROLE_MM_ENCODER, p.mask = ATTN_MASK_FULL, p.features = ATTN_F_FP8_ATTENTION,
                  p.query_dtype = ATTN_DTYPE_FP8_E4M3));
    OPEN_REFUSED("more spans than 64 bits count", ATTN_E_UNSUPPORTED, "max_mm_ranges",
                 (p.features = ATTN_F_MM_PREFIX, p.max_mm_ranges = UINT32_MAX, p.max_num_seqs = 1u << 30));
    OPEN_REFUSED("groups of 16", ATTN_E_UNSUPPORTED, "head_size",
                 (p.kv_cache_dtype = ATTN_KV_NVFP4, p.head_size = 72));
    OPEN_REFUSED("one size", ATTN_E_UNSUPPORTED, "head_size_v",
                 (p.kv_cache_dtype = ATTN_KV_NVFP4, p.head_size = 64, p.head_size_v = 32));
    OPEN_REFUSED("one piece", ATTN_E_UNSUPPORTED, "separate_kv",
                 (p.kv_cache_dtype = ATTN_KV_NVFP4, p.head_size = 64, p.features = ATTN_F_SEPARATE_KV));
    OPEN_REFUSED("scales would lie at odd bytes", ATTN_E_UNSUPPORTED, "head_size",
                 (p.kv_cache_dtype = ATTN_KV_INT8_STATIC_V, p.head_size = 66));
    OPEN_REFUSED("a query that is fp8 already", ATTN_E_UNSUPPORTED, "query_dtype",
                 (p.kv_cache_dtype = ATTN_KV_INT8_K_ONLY, p.query_dtype = ATTN_DTYPE_FP8_E4M3));
    OPEN_REFUSED("int8 in two tensors", ATTN_E_UNSUPPORTED, "separate_kv",
                 (p.kv_cache_dtype = ATTN_KV_INT8_K_ONLY, p.features = ATTN_F_SEPARATE_KV));
    OPEN_REFUSED("a latent row of nvfp4", ATTN_E_UNSUPPORTED, "kv_cache_dtype",
                 (p.role = ATTN_ROLE_MLA, p.kv_cache_dtype = ATTN_KV_NVFP4, p.features = ATTN_F_LATENT,
                  p.num_kv_heads = 0, p.kv_lora_rank = 64, p.qk_rope_head_dim = 16, p.head_size = 80));
    OPEN_REFUSED("Hadamard", ATTN_E_UNSUPPORTED, "head_size",
                 (p.kv_cache_dtype = ATTN_KV_TURBOQUANT_3BIT_NC, p.head_size = 96));
    OPEN_REFUSED("a multiple of 8", ATTN_E_UNSUPPORTED, "head_size",
                 (p.kv_cache_dtype = ATTN_KV_TURBOQUANT_K8V4, p.head_size = 100));
    OPEN_REFUSED("one size", ATTN_E_UNSUPPORTED, "head_size_v",
                 (p.kv_cache_dtype = ATTN_KV_TURBOQUANT_K8V4, p.head_size = 64, p.head_size_v = 32));
    OPEN_REFUSED("fp8 without a cache", ATTN_E_UNSUPPORTED, "kv_cache_dtype",
                 (p.role = ATTN_ROLE_ENCODER, p.mask = ATTN_MASK_FULL, p.kv_cache_dtype = ATTN_KV_FP8_E4M3));
    OPEN_REFUSED("unknown", ATTN_E_INVALID, "kv_layout", p.kv_layout = 3);
    OPEN_REFUSED("zero", ATTN_E_UNSUPPORTED, "num_heads", p.num_heads = 0);
    OPEN_REFUSED("3 for 2 heads", ATTN_E_UNSUPPORTED, "num_kv_heads", p.num_kv_heads = 3);
    OPEN_REFUSED("zero", ATTN_E_UNSUPPORTED, "head_size", p.head_size = 0);
    OPEN_REFUSED("a million", ATTN_E_UNSUPPORTED, "head_size", p.head_size = 1000000);
    OPEN_REFUSED("a million", ATTN_E_UNSUPPORTED, "head_size_v", p.head_size_v = 1000000);
    OPEN_REFUSED("zero", ATTN_E_UNSUPPORTED, "scale", p.scale = 0);
    OPEN_REFUSED("NaN", ATTN_E_UNSUPPORTED, "scale", p.scale = NAN);
    OPEN_REFUSED("negative", ATTN_E_UNSUPPORTED, "logits_soft_cap", p.logits_soft_cap = -1);
    OPEN_REFUSED("negative", ATTN_E_UNSUPPORTED, "max_model_len", p.max_model_len = -1);
    OPEN_REFUSED("negative", ATTN_E_UNSUPPORTED, "num_blocks", p.num_blocks = -1);
    OPEN_REFUSED("causal cross attention", ATTN_E_UNSUPPORTED, "mask", p.role = ATTN_ROLE_ENCODER_DECODER);
    OPEN_REFUSED("for an encoder", ATTN_E_UNSUPPORTED, "chunk_size",
                 (p.role = ATTN_ROLE_ENCODER, p.chunk_size = 4));
    OPEN_REFUSED("for an encoder", ATTN_E_UNSUPPORTED, "rswa_window",
                 (p.role = ATTN_ROLE_ENCODER, p.rswa_window = 4));
    OPEN_REFUSED("with a window", ATTN_E_UNSUPPORTED, "rswa_window", p.rswa_window = p.sliding_window = 4);
    OPEN_REFUSED("chunks of no token", ATTN_E_UNSUPPORTED, "chunk_lookback",
                 (p.features = ATTN_F_CHUNK_LOOKBACK, p.sliding_window = 2, p.chunk_lookback = 2));
    OPEN_REFUSED("spans of an encoder", ATTN_E_UNSUPPORTED, "features",
                 (p.role = ATTN_ROLE_ENCODER, p.features = ATTN_F_MM_PREFIX));
    OPEN_REFUSED("with a cache", ATTN_E_UNSUPPORTED, "contiguous_kv", p.features = ATTN_F_CONTIGUOUS_KV);
    OPEN_REFUSED("not served", ATTN_E_UNSUPPORTED, "dcp", p.features = ATTN_F_DCP);
    OPEN_REFUSED("an unknown bit", ATTN_E_TOO_NEW, "features", p.features = UINT64_C(1) << 60);
    OPEN_REFUSED("both kinds", ATTN_E_UNSUPPORTED, "out_fp8_group",
                 (p.out_dtype = ATTN_DTYPE_FP8_E4M3,
                  p.features = ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP, p.num_heads = 16));
    OPEN_REFUSED("rows of 8 values", ATTN_E_UNSUPPORTED, "out_fp8_group",
                 (p.out_dtype = ATTN_DTYPE_FP8_E4M3, p.features = ATTN_F_OUT_FP8_GROUP));
    OPEN_REFUSED("too short", ATTN_E_INVALID, "problem", p.struct_size = 2);
    attn_device_t gpu = {.struct_size = sizeof gpu, .type = kDLCUDA};
    attn_problem_t p = small_problem();
    refused("a GPU", reference->ops->open(&p, &gpu, NULL, 0, NULL, &s.instance, &s.error), ATTN_E_DEVICE, &s,
            "device");
    struct {
        attn_problem_t p;
        uint64_t tail;
    } longer = {small_problem(), 0};
    longer.p.struct_size = sizeof longer;
    is_int(open_problem(&longer.p), ATTN_OK, "a longer problem with a zero tail opens");
    reference->ops->close(s.instance);
    longer.tail = 1;
    refused("a longer one with a member set", open_problem(&longer.p), ATTN_E_TOO_NEW, &s, "problem");
    is_int(reference->ops->open(&longer.p, &test_cpu, NULL, 0, NULL, &s.instance, NULL), ATTN_E_TOO_NEW,
           "the error struct may be NULL");
    attn_reasons_t count = {.struct_size = sizeof count};
    p.scale = 0;
    p.head_size = 0;
    p.mask = 0;
    reference->ops->supports_combination(&p, NULL, &count);
    is_int(count.count, 3, "supports_combination gives all reasons, not the first");
}

/* Changes one thing, builds, expects a refusal; the next case starts from a good state again. */
#define BUILD_REFUSED(NAME, CODE, PARAM, CHANGE)                                                             \
    do {                                                                                                     \
        small_start(&s, reference, &p);                                                                      \
        CHANGE;                                                                                              \
        refused(NAME, reference->ops->build_metadata(s.instance, &s.batch, &s.space, NULL, &s.error), CODE,  \
                &s, PARAM);                                                                                  \
        reference->ops->close(s.instance);                                                                   \
    } while (0)

static void build_errors(void) {
    attn_problem_t p = small_problem();
    BUILD_REFUSED("negative", ATTN_E_INVALID, "num_reqs", s.batch.num_reqs = -1);
    BUILD_REFUSED("above max_num_seqs", ATTN_E_INVALID, "num_reqs", s.batch.num_reqs = 5);
    BUILD_REFUSED("above max_num_batched_tokens", ATTN_E_INVALID, "num_actual_tokens",
                  s.batch.num_actual_tokens = 9);
    BUILD_REFUSED("missing", ATTN_E_INVALID, "query_start_loc", s.batch.query_start_loc_host = NULL);
    BUILD_REFUSED("missing", ATTN_E_INVALID, "seq_lens", s.batch.seq_lens_host = NULL);
    BUILD_REFUSED("does not start at 0", ATTN_E_INVALID, "query_start_loc", s.start[0] = 1);
    BUILD_REFUSED("does not end at T", ATTN_E_INVALID, "query_start_loc", s.start[2] = 4);
    BUILD_REFUSED("decreases", ATTN_E_INVALID, "query_start_loc", s.start[1] = s.seq[0] = 4);
    BUILD_REFUSED("shorter than the query", ATTN_E_INVALID, "seq_lens", s.seq[1] = 1);
    BUILD_REFUSED("negative", ATTN_E_INVALID, "seq_lens", s.seq[0] = -3);
    BUILD_REFUSED("above max_model_len", ATTN_E_INVALID, "seq_lens", s.seq[0] = 65);
    BUILD_REFUSED("missing", ATTN_E_INVALID, "block_table", s.batch.block_table = NULL);
    BUILD_REFUSED("too narrow", ATTN_E_INVALID, "block_table", s.seq[0] = 5);
    BUILD_REFUSED("too few rows", ATTN_E_INVALID, "block_table", s.tt.shape[0] = 1);
    BUILD_REFUSED("int64", ATTN_E_INVALID, "block_table", s.tt.t.dtype = attn_dl_dtype(ATTN_DTYPE_INT64));
    BUILD_REFUSED("a negative block", ATTN_E_INVALID, "block_table", s.table[1] = -1);
    BUILD_REFUSED("a prefix of half a page", ATTN_E_INVALID, "common_prefix_len",
                  s.batch.common_prefix_len = 1);
    BUILD_REFUSED("a prefix beyond a context", ATTN_E_INVALID, "common_prefix_len",
                  s.batch.common_prefix_len = 4);
    BUILD_REFUSED("spans without the feature", ATTN_E_INVALID, "mm_prefix_ranges",
                  (s.batch.mm_prefix_ranges_host = s.ints, s.batch.num_mm_ranges = 1));
    BUILD_REFUSED("too small", ATTN_E_SPACE, "metadata", s.space.metadata_bytes--);
    BUILD_REFUSED("missing", ATTN_E_SPACE, "metadata", s.space.metadata = NULL);
    BUILD_REFUSED("at an odd address", ATTN_E_SPACE, "metadata", s.space.metadata = s.metadata + 1);
    BUILD_REFUSED("too short a struct", ATTN_E_INVALID, "batch", s.batch.struct_size = 0);
    p.sliding_window = 4;
    BUILD_REFUSED("cascade with a window", ATTN_E_UNSUPPORTED, "common_prefix_len",
                  s.batch.common_prefix_len = 2);
    p = small_problem();
    p.num_blocks = 3;
    BUILD_REFUSED("a block outside the problem's cache", ATTN_E_INVALID, "block_table", s.table[2] = 3);
    p = small_problem();
    p.mask = ATTN_MASK_PER_REQUEST;
    BUILD_REFUSED("missing", ATTN_E_INVALID, "causal", (void)0);
    BUILD_REFUSED("too short", ATTN_E_INVALID, "causal", (s.batch.causal = &s.ti.t, s.ti.shape[0] = 1));
    p = small_problem();
    p.rswa_window = 3;
    BUILD_REFUSED("missing", ATTN_E_INVALID, "rswa_prefix_lens", (void)0);
    BUILD_REFUSED("float", ATTN_E_INVALID, "rswa_prefix_lens", s.batch.rswa_prefix_lens = &s.tf.t);
    p = small_problem();
    p.features = ATTN_F_MM_PREFIX;
    p.max_mm_ranges = 2;
    BUILD_REFUSED("more than declared", ATTN_E_INVALID, "mm_prefix_ranges",
                  (s.batch.mm_prefix_ranges_host = s.ints, s.batch.num_mm_ranges = 3));
    BUILD_REFUSED("not [B, ranges, 2]", ATTN_E_INVALID, "mm_prefix_ranges",
                  s.batch.mm_prefix_ranges = &s.ti.t);
    p = small_problem();
    p.role = ATTN_ROLE_ENCODER;
    BUILD_REFUSED("longer than the request, without a cache", ATTN_E_INVALID, "seq_lens", (void)0);
}

#define UPDATE_REFUSED(NAME, PARAM, CHANGE)                                                                  \
    do {                                                                                                     \
        small_start(&s, reference, &p);                                                                      \
        CHANGE;                                                                                              \
        memset(s.cache, 0x55, sizeof s.cache);                                                               \
        refused(NAME, reference->ops->update_kv_cache(s.instance, &s.update, NULL, &s.error),                \
                ATTN_E_INVALID, &s, PARAM);                                                                  \
        for (size_t i = 0; i < sizeof s.cache; i++)                                                          \
            if (s.cache[i] != 0x55) bail_out("a refused update wrote to the cache");                         \
        reference->ops->close(s.instance);                                                                   \
    } while (0)

static void update_errors(void) {
    attn_problem_t p = small_problem();
    UPDATE_REFUSED("one past the end", "slot_mapping", s.slots[6] = 8);
    UPDATE_REFUSED("far past the end", "slot_mapping", s.slots[6] = INT64_MAX);
    UPDATE_REFUSED("int32", "slot_mapping", s.ts.t.dtype = attn_dl_dtype(ATTN_DTYPE_INT32));
    UPDATE_REFUSED("missing", "slot_mapping", s.update.slot_mapping = NULL);
    UPDATE_REFUSED("fewer rows than slots", "key", s.tk.shape[0] = 7);
    UPDATE_REFUSED("another head size", "key", s.tk.shape[2] = 3);
    UPDATE_REFUSED("another head count", "value", s.tv.shape[1] = 2);
    UPDATE_REFUSED("float16", "value", s.tv.t.dtype = attn_dl_dtype(ATTN_DTYPE_FLOAT16));
    UPDATE_REFUSED("missing", "kv_cache", s.update.kv_cache = NULL);
    UPDATE_REFUSED("another page size", "kv_cache", s.tc.shape[2] = 4);
    UPDATE_REFUSED("another content", "kv_cache", s.tc.shape[3] = 4);
    UPDATE_REFUSED("gaps inside a row", "kv_cache", s.tc.strides[3] = 2);
    UPDATE_REFUSED("without the feature", "v_cache", s.update.v_cache = &s.tvc.t);
    UPDATE_REFUSED("no strides", "key", s.tk.t.strides = NULL);
    p.kv_cache_dtype = ATTN_KV_FP8_E4M3;
    UPDATE_REFUSED("float32 for an fp8 cache", "kv_cache", (void)0);
    UPDATE_REFUSED("2 scales for 1 head", "k_scale",
                   (s.tc.t.dtype = attn_dl_dtype(ATTN_DTYPE_UINT8), s.update.scales.k = &s.tf.t));
    UPDATE_REFUSED("integers", "v_scale",
                   (s.tc.t.dtype = attn_dl_dtype(ATTN_DTYPE_UINT8), s.update.scales.v = &s.ti.t));
    p = small_problem();
    p.features = ATTN_F_SEPARATE_KV;
    UPDATE_REFUSED("missing", "v_cache", s.tc.shape[3] = 4);
}

#define FORWARD_REFUSED(NAME, CODE, PARAM, CHANGE)                                                           \
    do {                                                                                                     \
        small_start(&s, reference, &p);                                                                      \
        if (reference->ops->build_metadata(s.instance, &s.batch, &s.space, NULL, &s.error) != ATTN_OK)       \
            bail_out("build: %s", s.error.text);                                                             \
        CHANGE;                                                                                              \
        refused(NAME, reference->ops->forward(s.instance, &s.forward, &s.space, NULL, &s.error), CODE, &s,   \
                PARAM);                                                                                      \
        for (int i = 0; i < 64; i++)                                                                         \
            if (s.output[i] != 0) bail_out("a refused forward wrote to the output");                         \
        reference->ops->close(s.instance);                                                                   \
    } while (0)

static void forward_errors(void) {
    attn_problem_t p = small_problem();
    FORWARD_REFUSED("never built", ATTN_E_STATE, "metadata", memset(s.metadata, 0xff, sizeof s.metadata));
    FORWARD_REFUSED("too small", ATTN_E_SPACE, "metadata", s.space.metadata_bytes--);
    FORWARD_REFUSED("too small", ATTN_E_SPACE, "workspace", s.space.workspace_bytes--);
    FORWARD_REFUSED("missing", ATTN_E_SPACE, "workspace", s.space.workspace = NULL);
    FORWARD_REFUSED("at an odd address", ATTN_E_SPACE, "workspace", s.space.workspace = s.workspace + 4);
    FORWARD_REFUSED("missing", ATTN_E_INVALID, "query", s.forward.query = NULL);
    FORWARD_REFUSED("fewer rows than tokens", ATTN_E_INVALID, "query", s.tq.shape[0] = 2);
    FORWARD_REFUSED("another head count", ATTN_E_INVALID, "query", s.tq.shape[1] = 3);
    FORWARD_REFUSED("bfloat16", ATTN_E_INVALID, "query", s.tq.t.dtype = attn_dl_dtype(ATTN_DTYPE_BFLOAT16));
    FORWARD_REFUSED("missing", ATTN_E_INVALID, "kv_cache", s.forward.kv_cache = NULL);
    FORWARD_REFUSED("a block outside this cache", ATTN_E_INVALID, "block_table", s.tc.shape[0] = 3);
    FORWARD_REFUSED("missing", ATTN_E_INVALID, "output", s.forward.output = NULL);
    FORWARD_REFUSED("fewer rows than tokens", ATTN_E_INVALID, "output", s.to.shape[0] = 2);
    FORWARD_REFUSED("fewer columns than tokens", ATTN_E_INVALID, "lse",
                    (s.forward.lse = &s.tl.t, s.tl.shape[1] = 2));
    FORWARD_REFUSED("another head count", ATTN_E_INVALID, "lse",
                    (s.forward.lse = &s.tl.t, s.tl.shape[0] = 3));
    FORWARD_REFUSED("without the feature", ATTN_E_INVALID, "sinks", s.forward.sinks = &s.tf.t);
    FORWARD_REFUSED("without the feature", ATTN_E_INVALID, "alibi_slopes", s.forward.alibi_slopes = &s.tf.t);
    FORWARD_REFUSED("without the feature", ATTN_E_INVALID, "rel_bias", s.forward.rel_bias = &s.tl.t);
    FORWARD_REFUSED("without the feature", ATTN_E_INVALID, "qq_bias", s.forward.qq_bias = &s.tl.t);
    FORWARD_REFUSED("3 scales for 1 head", ATTN_E_INVALID, "q_scale",
                    (s.tf.shape[0] = 3, s.forward.scales.q = &s.tf.t));
    FORWARD_REFUSED("too short a struct", ATTN_E_INVALID, "args", s.forward.struct_size = 3);
    p.features = ATTN_F_SINK;
    FORWARD_REFUSED("missing", ATTN_E_INVALID, "sinks", (void)0);
    FORWARD_REFUSED("3 for 2 heads", ATTN_E_INVALID, "sinks", (s.forward.sinks = &s.tf.t, s.tf.shape[0] = 3));
    p.features = ATTN_F_ALIBI;
    FORWARD_REFUSED("missing", ATTN_E_INVALID, "alibi_slopes", (void)0);
    p.features = ATTN_F_REL_BIAS;
    FORWARD_REFUSED("missing", ATTN_E_INVALID, "rel_bias", (void)0);
    FORWARD_REFUSED("an even number of columns", ATTN_E_INVALID, "rel_bias",
                    (s.forward.rel_bias = &s.tl.t, s.tl.shape[1] = 2));
    FORWARD_REFUSED("another head count", ATTN_E_INVALID, "rel_bias",
                    (s.forward.rel_bias = &s.tl.t, s.tl.shape[0] = 3));
    p.features = ATTN_F_QQ_BIAS;
    FORWARD_REFUSED("missing", ATTN_E_INVALID, "qq_bias", (void)0);
    FORWARD_REFUSED("fewer rows than tokens", ATTN_E_INVALID, "qq_bias", s.forward.qq_bias = &s.tl.t);
    p = small_problem();
    p.out_dtype = ATTN_DTYPE_FP8_E4M3;
    p.features = ATTN_F_OUT_FP8_STATIC;
    FORWARD_REFUSED("missing", ATTN_E_INVALID, "output_scale",
                    s.to.t.dtype = attn_dl_dtype(ATTN_DTYPE_FP8_E4M3));
}

/* After an error everything still works; the profiling run writes zeros; the table can be replaced. */
static void life(void) {
    attn_problem_t p = small_problem();
    small_start(&s, reference, &p);
    const attn_backend_ops_t *ops = reference->ops;
    s.slots[0] = 99;
    int first = ops->update_kv_cache(s.instance, &s.update, NULL, &s.error);
    s.slots[0] = 4;
    ok(first == ATTN_E_INVALID && ops->update_kv_cache(s.instance, &s.update, NULL, &s.error) == ATTN_OK,
       "an update works after one was refused");
    s.start[1] = 4;
    first = ops->build_metadata(s.instance, &s.batch, &s.space, NULL, &s.error);
    s.start[1] = 1;
    is_int(ops->forward(s.instance, &s.forward, &s.space, NULL, &s.error), ATTN_E_STATE,
           "forward refuses metadata whose building failed");
    ok(first == ATTN_E_INVALID &&
           ops->build_metadata(s.instance, &s.batch, &s.space, NULL, &s.error) == ATTN_OK,
       "building works after one was refused");
    memset(s.start, 0x7f, sizeof s.start);
    memset(s.seq, 0x7f, sizeof s.seq);
    is_int(ops->forward(s.instance, &s.forward, &s.space, NULL, &s.error), ATTN_OK,
           "metadata keeps the lengths: the host arrays may change");
    float first_out[64];
    memcpy(first_out, s.output, sizeof first_out);
    ok(first_out[0] != 0 && first_out[23] != 0 && first_out[24] == 0,
       "rows below T are written, rows behind are not");

    int32_t start[] = {0, 1, 3}, seq[] = {3, 4}, swapped[] = {3, 0, 2, 1};
    memcpy(s.start, start, sizeof start);
    memcpy(s.seq, seq, sizeof seq);
    dense_t other;
    dense_set(&other, swapped, ATTN_DTYPE_INT32, 2, 2, 2, 0, 0);
    s.batch.block_table = &other.t;
    is_int(ops->update_block_table(s.instance, &s.batch, &s.space, NULL, &s.error), ATTN_OK,
           "another block table");
    ops->forward(s.instance, &s.forward, &s.space, NULL, &s.error);
    ok(memcmp(first_out, s.output, sizeof first_out) != 0, "and forward reads through it");
    swapped[0] = -4;
    refused("a negative block in the new table",
            ops->update_block_table(s.instance, &s.batch, &s.space, NULL, &s.error), ATTN_E_INVALID, &s,
            "block_table");

    memset(s.output, 0x11, sizeof s.output);
    is_int(ops->forward(s.instance, &s.forward, NULL, NULL, &s.error), ATTN_OK, "the profiling run");
    int zero = 1;
    for (int i = 0; i < 64; i++)
        zero = zero && s.output[i] == 0;
    ok(zero, "fills the output with zeros");
    ops->close(s.instance);
    ops->close(NULL);

    attn_kv_cache_shape_t shape = {.struct_size = sizeof shape};
    small_start(&s, reference, &p);
    is_int(ops->kv_cache_shape(s.instance, -1, &shape, &s.error), ATTN_E_INVALID,
           "a negative number of blocks");
    ops->kv_cache_shape(s.instance, 4, &shape, &s.error);
    is_int(shape.total_bytes, 4 * 2 * 8 * 4, "a cache of 4 pages of 2 tokens of 8 floats");
    ops->close(s.instance);
    p.role = ATTN_ROLE_ENCODER;
    p.mask = ATTN_MASK_FULL;
    small_start(&s, reference, &p);
    ops->kv_cache_shape(s.instance, 4, &shape, &s.error);
    is_int(shape.ndim, 0, "an encoder has no cache");
    refused("an encoder has no cache to update", ops->update_kv_cache(s.instance, &s.update, NULL, &s.error),
            ATTN_E_STATE, &s, "kv_cache");
    ops->close(s.instance);
}

int main(void) {
    reference = load_reference();
    open_errors();
    build_errors();
    update_errors();
    forward_errors();
    life();
    return tap_done();
}
