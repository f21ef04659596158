/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries from a table alone, and validation: every reason by itself, all together, in the order of
 * semantics 4.3.
 */
#include "device/device_kind.h"
#include "select/capability.h"
#include "core_testing.h"

#include <attn/attn_plugin_util.h>

static const attn_range_t sizes[] = {{64, 64, 0}, {80, 128, 16}};
static const attn_range_t sizes_v[] = {{32, 32, 1}};
static const attn_range_t capabilities_sm[] = {{80, 89, 1}, {90, 90, 1}};
static const attn_block_size_t blocks[] = {{64, 0}, {48, 1}};

static attn_capabilities_t table;
static attn_backend_ops_t ops;
static attn_backend_t backend;

static int update_block_table(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                              void *stream, attn_error_t *error) {
    (void)instance, (void)batch, (void)space, (void)stream, (void)error;
    return ATTN_OK;
}

static int combination_calls;

static int supports_combination(const attn_problem_t *problem, const attn_device_t *device,
                                attn_reasons_t *reasons) {
    (void)device;
    combination_calls++;
    if (problem->num_heads == 7)
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, "num_heads", "7", "not 7", "seven is refused");
    return problem->num_heads == 9 ? ATTN_E_UNSUPPORTED : ATTN_OK;
}

static void reset(void) {
    table = (attn_capabilities_t){.struct_size = sizeof table,
                                  .roles = ATTN_BIT(ATTN_ROLE_DECODER),
                                  .dtypes = ATTN_BIT(ATTN_DTYPE_BFLOAT16),
                                  .kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FP8_E4M3),
                                  .device_types = ATTN_BIT(kDLCUDA),
                                  .head_sizes = sizes,
                                  .num_head_sizes = 2,
                                  .head_sizes_v = sizes_v,
                                  .num_head_sizes_v = 1,
                                  .block_sizes = blocks,
                                  .num_block_sizes = 2,
                                  .compute_capabilities = capabilities_sm,
                                  .num_compute_capabilities = 2};
    ops = (attn_backend_ops_t){.struct_size = sizeof ops};
    backend =
        (attn_backend_t){.struct_size = sizeof backend, .name = "TABLE", .capabilities = &table, .ops = &ops};
    combination_calls = 0;
}

static void test_queries(void) {
    reset();
    const attn_backend_t *b = &backend;
    ok(attn_backend_supports_head_size(b, 64) && attn_backend_supports_head_size(b, 96) &&
           attn_backend_supports_head_size(b, 128),
       "head sizes of the ranges");
    ok(!attn_backend_supports_head_size(b, 88) && !attn_backend_supports_head_size(b, 144) &&
           !attn_backend_supports_head_size(b, 0),
       "and no others");
    ok(attn_backend_supports_dtype(b, ATTN_DTYPE_BFLOAT16) &&
           !attn_backend_supports_dtype(b, ATTN_DTYPE_FLOAT16) && !attn_backend_supports_dtype(b, 4000),
       "dtypes");
    ok(attn_backend_supports_kv_cache_dtype(b, 0) &&
           attn_backend_supports_kv_cache_dtype(b, ATTN_KV_FP8_E4M3) &&
           !attn_backend_supports_kv_cache_dtype(b, ATTN_KV_NVFP4),
       "cache dtypes, none given passes");
    ok(attn_backend_supports_block_size(b, 0) && attn_backend_supports_block_size(b, 128) &&
           attn_backend_supports_block_size(b, 96) && !attn_backend_supports_block_size(b, 16),
       "block sizes: any multiple of a listed one");
    ok(attn_backend_supports_attn_type(b, ATTN_ROLE_DECODER) &&
           !attn_backend_supports_attn_type(b, ATTN_ROLE_MLA),
       "attention types");
    ok(attn_backend_supports_compute_capability(b, 86) && attn_backend_supports_compute_capability(b, 90) &&
           !attn_backend_supports_compute_capability(b, 100) &&
           !attn_backend_supports_compute_capability(b, -1),
       "compute capabilities");
    ok(attn_backend_supports_device_type(b, kDLCUDA) && !attn_backend_supports_device_type(b, kDLCPU) &&
           !attn_backend_supports_device_type(b, -1) && !attn_backend_supports_device_type(b, 99),
       "device types");

    static const struct {
        int (*query)(const attn_backend_t *);
        uint64_t bit;
        const char *name;
    } bits[] = {
        {attn_backend_supports_sink, ATTN_F_SINK, "sink"},
        {attn_backend_supports_alibi_sqrt, ATTN_F_ALIBI_SQRT, "alibi_sqrt"},
        {attn_backend_supports_mm_prefix, ATTN_F_MM_PREFIX, "mm_prefix"},
        {attn_backend_supports_per_head_quant_scales, ATTN_F_PER_HEAD_SCALES, "per_head_quant_scales"},
        {attn_backend_supports_sliding_window, ATTN_F_SLIDING_WINDOW, "sliding_window"},
        {attn_backend_supports_non_causal, ATTN_F_NON_CAUSAL, "non_causal"},
        {attn_backend_supports_batch_invariance, ATTN_F_BATCH_INVARIANT, "batch_invariance"},
        {attn_backend_supports_kv_connector, ATTN_F_KV_CONNECTOR, "kv_connector"},
        {attn_backend_supports_dcp, ATTN_F_DCP, "dcp"},
        {attn_backend_supports_lse, ATTN_F_LSE, "lse"},
        {attn_backend_supports_cascade, ATTN_F_CASCADE, "cascade"},
        {attn_backend_supports_quant_query_input, ATTN_F_QUANT_QUERY, "quant_query_input"},
        {attn_backend_indexes_kv_by_block_stride, ATTN_F_BLOCK_STRIDE, "block_stride"},
    };
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        table.features = ~bits[i].bit;
        int without = bits[i].query(b);
        table.features = bits[i].bit;
        ok(!without && bits[i].query(b), "%s is its feature bit", bits[i].name);
        ok(!bits[i].query(NULL), "and no backend has it not");
    }
    table.features = ATTN_F_LSE;
    ok(!attn_backend_supports_feature(b, ATTN_F_LSE | ATTN_F_SINK), "all bits of a question must be there");

    ok(!attn_backend_is_mla(b) && !attn_backend_is_sparse(b), "a plain backend");
    table.roles = ATTN_BIT(ATTN_ROLE_MLA_SPARSE);
    ok(attn_backend_is_mla(b) && attn_backend_is_sparse(b), "a sparse MLA backend");
    table.forward_writes_cache = 1;
    ok(attn_backend_forward_includes_kv_cache_update(b), "forward writes the cache");
    ok(!attn_backend_supports_update_block_table(b), "no such operation");
    ops.update_block_table = update_block_table;
    ok(attn_backend_supports_update_block_table(b), "an operation");
    ops.struct_size = offsetof(attn_backend_ops_t, update_block_table);
    ok(!attn_backend_supports_update_block_table(b), "behind the end of the table it is none");
    ok(!attn_backend_supports_update_block_table(NULL), "nor of nothing");
    is_int(attn_backend_graph_support(b), ATTN_GRAPH_NEVER, "graphs: never, if not said");
    is_int(attn_backend_query_len_support(b), ATTN_QUERY_LEN_VARLEN, "query lengths: any, if not said");
    table.graph_support = ATTN_GRAPH_ALWAYS;
    table.query_len_support = ATTN_QUERY_LEN_UNIFORM;
    table.reorder_threshold = 5;
    table.required_layout = ATTN_LAYOUT_HND;
    is_int(attn_backend_graph_support(b), ATTN_GRAPH_ALWAYS, "graphs as said");
    is_int(attn_backend_query_len_support(b), ATTN_QUERY_LEN_UNIFORM, "query lengths as said");
    is_int(attn_backend_reorder_threshold(b), 5, "threshold");
    is_int(attn_backend_required_kv_layout(b), ATTN_LAYOUT_HND, "layout");
    table.struct_size = offsetof(attn_capabilities_t, required_layout);
    is_int(attn_backend_required_kv_layout(b), 0, "a member beyond struct_size is zero");
    table.struct_size = sizeof table;

    is_int(attn_backend_preferred_block_size(b, 128), 128, "the default where it fits");
    is_int(attn_backend_preferred_block_size(b, 16), 48, "else the smallest listed");
    is_int(attn_backend_preferred_block_size(b, 0), 48, "16 is the default's default");
    table.preferred_block_size = 64;
    is_int(attn_backend_preferred_block_size(b, 128), 64, "the backend's own preference comes first");
    reset();
    table.num_block_sizes = 0;
    is_int(attn_backend_preferred_block_size(b, 16), 16, "any size: the default");
    table.num_head_sizes = 0;
    table.num_compute_capabilities = 0;
    ok(attn_backend_supports_head_size(b, 777) && attn_backend_supports_compute_capability(b, 42),
       "empty lists are any");
    char text[64];
    is_str(attni_ranges_text(sizes, 2, text, sizeof text), "64, 80..128 step 16", "ranges as text");
    is_str(attni_device_text(kDLCUDA, 0, text, sizeof text), "cuda", "a device");
    is_str(attni_device_text(kDLMetal, 0, text, sizeof text), "device type 8", "another");
}

/* Codes of all reasons, "1 2 3". */
static const char *codes(const attn_problem_t *problem, const attn_device_t *device) {
    static char text[256];
    attn_reason_t items[40] = {{0}};
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 40, .items = items};
    attn_error_t err = ERROR_INIT;
    int code = attn_backend_validate(&backend, problem, device, &reasons, &err);
    size_t used = (size_t)snprintf(text, sizeof text, "%s", code ? attn_error_name(code) : "");
    for (uint32_t i = 0; !code && i < reasons.count; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", i ? " " : "", items[i].code);
        if (!items[i].text[0] || !items[i].param[0])
            used += (size_t)snprintf(text + used, sizeof text - used, "?");
    }
    return text;
}

static void test_reasons(void) {
    reset();
    attn_device_t sm90 = device_sm(90), sm100 = device_sm(100), cpu = device_cpu();
    attn_problem_t p = plain_problem();
    is_str(codes(&p, &sm90), "", "a problem that fits");
    is_str(codes(&p, NULL), "", "without a device too");
    is_str(codes(&p, &sm100), "10", "COMPUTE_CAPABILITY");
    is_str(codes(&p, &cpu), "20", "DEVICE");
    p.head_size = 72;
    is_str(codes(&p, &sm90), "1", "HEAD_SIZE");
    p = plain_problem();
    p.dtype = ATTN_DTYPE_FLOAT16;
    is_str(codes(&p, &sm90), "2", "DTYPE");
    p = plain_problem();
    p.kv_cache_dtype = ATTN_KV_FP8_E5M2;
    is_str(codes(&p, &sm90), "3", "KV_CACHE_DTYPE");
    p.kv_cache_dtype = ATTN_KV_FP8_E4M3;
    is_str(codes(&p, &sm90), "", "a listed one");
    table.kv_cache_dtypes = ATTN_BIT(ATTN_KV_BFLOAT16);
    p.kv_cache_dtype = 0;
    is_str(codes(&p, &sm90), "", "auto is the dtype under its own name");
    table.kv_cache_dtypes = ATTN_BIT(ATTN_KV_FLOAT16) | ATTN_BIT(ATTN_KV_FLOAT32);
    is_str(codes(&p, &sm90), "3", "but not another");
    reset();
    p = plain_problem();
    p.block_size = 16;
    is_str(codes(&p, &sm90), "4", "BLOCK_SIZE");

    static const struct {
        uint64_t feature;
        const char *codes;
    } features[] = {
        {ATTN_F_MM_PREFIX, "5"},
        {ATTN_F_SINK, "7"},
        {ATTN_F_PER_HEAD_SCALES, "9"},
        {ATTN_F_BATCH_INVARIANT, "14"},
        {ATTN_F_KV_CONNECTOR, "15"},
        {ATTN_F_LSE | ATTN_F_ALIBI, "19 19"},
        {ATTN_F_MM_PREFIX | ATTN_F_MM_PREFIX_CLAMP, "5 19"},
    };
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        p = plain_problem();
        p.features = features[i].feature;
        is_str(codes(&p, &sm90), features[i].codes, "feature bits 0x%llx", (unsigned long long)p.features);
        table.features = features[i].feature;
        is_str(codes(&p, &sm90), "", "listed, they pass");
        reset();
    }
    p = plain_problem();
    p.sliding_window = 100;
    is_str(codes(&p, &sm90), "12", "SLIDING_WINDOW");
    p = plain_problem();
    p.mask = ATTN_MASK_FULL;
    is_str(codes(&p, &sm90), "13", "NON_CAUSAL");
    p.mask = ATTN_MASK_PER_REQUEST;
    is_str(codes(&p, &sm90), "19", "a feature that a member implies");
    p = plain_problem();
    p.role = ATTN_ROLE_ENCODER_ONLY;
    p.mask = ATTN_MASK_FULL;
    is_str(codes(&p, &sm90), "11", "ATTN_TYPE");
    p.block_size = 17;
    p.kv_layout = ATTN_LAYOUT_NHD;
    table.required_layout = ATTN_LAYOUT_HND;
    is_str(codes(&p, &sm90), "11", "roles without a cache are not asked for blocks and layouts");
    p = plain_problem();
    p.kv_layout = ATTN_LAYOUT_NHD;
    is_str(codes(&p, &sm90), "23", "LAYOUT");
    p.kv_layout = ATTN_LAYOUT_HND;
    is_str(codes(&p, &sm90), "", "the needed one");
    reset();
    p = plain_problem();
    p.out_dtype = ATTN_DTYPE_FLOAT16;
    is_str(codes(&p, &sm90), "22", "OUT_DTYPE");
    p.out_dtype = ATTN_DTYPE_BFLOAT16;
    is_str(codes(&p, &sm90), "", "the dtype itself");
    table.max_group = 2;
    is_str(codes(&p, &sm90), "21", "HEAD_COUNT");
    reset();
    p = plain_problem();
    p.head_size_v = 64;
    is_str(codes(&p, &sm90), "19", "another value head size is a feature");
    table.features = ATTN_F_DIFF_KV;
    is_str(codes(&p, &sm90), "1", "and a size of its own list");
    p.head_size_v = 32;
    is_str(codes(&p, &sm90), "", "that may have it");
    table.num_head_sizes_v = 0;
    is_str(codes(&p, &sm90), "1", "an empty list is the list of head_size");
    p.head_size_v = 64;
    is_str(codes(&p, &sm90), "", "in that");
}

static attn_problem_t mla_problem(uint32_t role) {
    attn_problem_t p = plain_problem();
    p.role = role;
    p.num_kv_heads = 1;
    p.head_size = 576;
    p.kv_lora_rank = 512;
    p.qk_rope_head_dim = 64;
    p.qk_nope_head_dim = 128;
    p.v_head_dim = 128;
    p.topk = role == ATTN_ROLE_MLA_SPARSE ? 2048 : 0;
    return p;
}

static void test_kinds(void) {
    reset();
    table.num_head_sizes = 0;
    attn_problem_t plain = plain_problem(), mla = mla_problem(ATTN_ROLE_MLA),
                   sparse = mla_problem(ATTN_ROLE_MLA_SPARSE);
    is_str(codes(&mla, NULL), "6", "MLA on a plain backend");
    is_str(codes(&sparse, NULL), "6", "sparse MLA on a plain backend: that it is no MLA says it all");
    table.roles = ATTN_BIT(ATTN_ROLE_MLA);
    is_str(codes(&mla, NULL), "19", "MLA on an MLA backend that does not project");
    table.features = ATTN_F_LATENT;
    is_str(codes(&mla, NULL), "19", "nor when it takes absorbed queries");
    attn_problem_t absorbed = mla;
    absorbed.features = ATTN_F_LATENT;
    absorbed.qk_nope_head_dim = absorbed.v_head_dim = 0;
    is_str(codes(&absorbed, NULL), "", "but then it serves those");
    absorbed.mask = ATTN_MASK_FULL;
    is_str(codes(&absorbed, NULL), "13", "without the causal mask they are another feature");
    table.features = ATTN_F_WEIGHTS;
    absorbed.mask = ATTN_MASK_CAUSAL;
    is_str(codes(&absorbed, NULL), "19", "absorbed queries on a backend that only projects");
    is_str(codes(&mla, NULL), "", "MLA on one that projects");
    is_str(codes(&plain, NULL), "6", "a plain problem on an MLA backend");
    is_str(codes(&sparse, NULL), "8", "sparse on a dense MLA backend");
    table.roles = ATTN_BIT(ATTN_ROLE_MLA_SPARSE);
    is_str(codes(&mla, NULL), "8", "dense on a sparse one");
    is_str(codes(&sparse, NULL), "", "sparse on a sparse one");
    table.roles = ATTN_BIT(ATTN_ROLE_MLA_PREFILL);
    is_str(codes(&mla, NULL), "6", "the MHA part of MLA alone does not make an MLA backend");
    is_str(codes(&plain, NULL), "11", "but it is another type than a decoder's");
}

/* The core itself adds sink tokens, and splits chunks on a CPU; elsewhere the backend must. */
static void test_wrapped(void) {
    reset();
    table.device_types |= ATTN_BIT(kDLCPU);
    attn_device_t sm90 = device_sm(90), cpu = device_cpu();
    attn_problem_t p = plain_problem();
    p.chunk_size = 64;
    is_str(codes(&p, &cpu), "", "chunks on a CPU");
    is_str(codes(&p, &sm90), "19", "chunks on a GPU");
    p.features = ATTN_F_CHUNKED_LOCAL;
    is_str(codes(&p, &cpu), "", "also if the bit was set");
    p.features = 0;
    p.chunk_size = 0;
    p.static_sink_len = 64;
    is_str(codes(&p, &cpu), "", "sink tokens on a CPU");
    is_str(codes(&p, &sm90), "", "sink tokens on a GPU");
}

static void test_combination(void) {
    reset();
    ops.supports_combination = supports_combination;
    attn_device_t sm90 = device_sm(90), cpu = device_cpu();
    attn_problem_t p = plain_problem();
    p.num_kv_heads = 1;
    is_str(codes(&p, &sm90), "", "no objection");
    p.num_heads = 7;
    p.head_size = 72;
    is_str(codes(&p, &sm90), "1 17", "an objection comes after the table's reasons");
    p.num_heads = 9;
    p.head_size = 64;
    is_int(combination_calls, 2, "the backend was asked each time");
    attn_reason_t item;
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = &item};
    attn_error_t err = ERROR_INIT;
    is_int(attn_backend_validate(&backend, &p, &sm90, &reasons, &err), ATTN_OK, "an error without a reason");
    is_int(reasons.count, 1, "becomes one");
    has_str(item.text, "ATTN_E_UNSUPPORTED", "with the error's name");
    combination_calls = 0;
    p.features = ATTN_F_SINK;
    is_str(codes(&p, &sm90), "7", "a feature that the table does not list");
    p.features = 0;
    is_str(codes(&p, &cpu), "20", "a device that it does not list");
    p = mla_problem(ATTN_ROLE_MLA);
    is_str(codes(&p, &sm90), "1 6", "a role that it does not list");
    is_int(combination_calls, 0, "are never shown to the backend");
}

static void test_everything_at_once(void) {
    reset();
    attn_device_t sm100 = device_sm(100);
    attn_problem_t p = plain_problem();
    table.max_group = 1;
    table.required_layout = ATTN_LAYOUT_HND;
    p.head_size = 72;
    p.dtype = ATTN_DTYPE_FLOAT32;
    p.out_dtype = ATTN_DTYPE_FLOAT16;
    p.kv_cache_dtype = ATTN_KV_NVFP4;
    p.kv_layout = ATTN_LAYOUT_NHD;
    p.block_size = 17;
    p.mask = ATTN_MASK_FULL;
    p.sliding_window = 10;
    p.features = ATTN_F_MM_PREFIX | ATTN_F_SINK | ATTN_F_PER_HEAD_SCALES | ATTN_F_BATCH_INVARIANT |
                 ATTN_F_KV_CONNECTOR | ATTN_F_LSE;
    is_str(codes(&p, &sm100), "1 2 3 4 5 7 9 10 12 13 14 15 19 21 22 23", "all reasons in order");
    attn_reason_t items[2];
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 2, .items = items};
    attn_error_t err = ERROR_INIT;
    is_int(attn_backend_validate(&backend, &p, &sm100, &reasons, &err), ATTN_OK, "a short list");
    is_int(reasons.count, 16, "counts them all");
    is_str(items[1].have, "float32", "and holds the first: what was asked");
    is_str(items[1].want, "bfloat16", "and what there is");
    reasons.capacity = 0;
    reasons.items = NULL;
    is_int(attn_backend_validate(&backend, &p, &sm100, &reasons, &err), ATTN_OK, "no list");
    is_int(reasons.count, 16, "only counts");
    table.roles = 0, table.dtypes = 0;
    attn_backend_validate(&backend, &p, &sm100, &reasons, &err);
    is_int(reasons.count, 17, "an empty table has every reason: MLA or type too");
}

static void test_arguments(void) {
    reset();
    attn_reasons_t reasons = {.struct_size = sizeof reasons};
    attn_problem_t p = plain_problem();
    attn_device_t device = {.struct_size = 1};
    attn_error_t err = ERROR_INIT;
    is_int(attn_backend_validate(NULL, &p, NULL, &reasons, &err), ATTN_E_INVALID, "no backend");
    is_int(attn_backend_validate(&backend, &p, NULL, NULL, &err), ATTN_E_INVALID, "no place for reasons");
    is_int(attn_backend_validate(&backend, NULL, NULL, &reasons, &err), ATTN_E_INVALID, "no problem");
    is_int(attn_backend_validate(&backend, &p, &device, &reasons, &err), ATTN_E_INVALID,
           "a device without size");
    p.scale = 0;
    is_int(attn_backend_validate(&backend, &p, NULL, &reasons, &err), ATTN_E_INVALID,
           "a problem that makes no sense");
    is_str(err.param, "scale", "by name");
}

int main(void) {
    test_queries();
    test_reasons();
    test_kinds();
    test_wrapped();
    test_combination();
    test_everything_at_once();
    test_arguments();
    return tap_done();
}
