/* SPDX-License-Identifier: Apache-2.0 */
/* layer_families_device [DEVICE [BACKEND]]: what the core adds around a backend on a device: static sink
 * tokens, scales of an fp8 cache from the first call or one for each head, layers that read another's cache;
 * dense and latent. On cuda:0 every CUDA backend of the role, on another device the one that is named, is
 * held against REFERENCE on the CPU, which is driven by the same lines; so are groups of two backends, one
 * for decode and one for prefill. */
#include "../tap.h"
#include "device_blocks.h"

enum { HQ = 8, HKV = 2, D = 64, BS = 16, SINK = 32, REQS = 3, PAGES = 24, COLUMNS = 5, STEPS = 3 };
enum { LATENT = 512, ROPE = 64, TOPK = 128, WEIGHTS = HQ * 2 * D * LATENT }; /* nope and value are D */

/* A prompt, a mixed step, and one of decode: outputs of the last two count. */
static const int32_t step_lens[STEPS][REQS] = {{33, 0, 15}, {1, 20, 3}, {1, 1, 1}};
enum { MIXED = 24, OUTPUTS = (MIXED + REQS) * HQ * D };
/* What is asked for beside the plain layer. */
typedef struct family {
    const char *name;
    uint32_t role, kv, sink;
    int scales_of_heads;
    double tolerance;
} family_t;

/* The weights of a latent layer, and memory for what the backend makes of them. */
static int prepare(attn_layer_t *layer, const attn_device_t *device, uint64_t bytes) {
    box_t box;
    uint16_t *weights = alloc(WEIGHTS * 2);
    fill(weights, WEIGHTS, 11);
    for (int i = 0; i < WEIGHTS; i++) /* a sixteenth: latents are long */
        weights[i] = (weights[i] & 0x7fff) >= 5 << 10 ? (uint16_t)(weights[i] - (4 << 10)) : 0;
    ATTN_INIT(attn_weights_t, w);
    w.kv_b_proj = TENSOR(&box, weights, ATTN_DTYPE_FLOAT16, 2, HQ * 2 * D, LATENT);
    w.weight_space = on(device, alloc(bytes)), w.weight_space_bytes = bytes;
    return attn_layer_prepare_weights(layer, &w, NULL, &error);
}

/* Cache pages of the spec are those of the backend: the scheduler counts with the one and allocates the
 * other. */
static int pages_agree(attn_group_t *g, const attn_kv_cache_shape_t *shape) {
    ATTN_INIT(attn_kv_spec_t, spec);
    int64_t bytes = 0;
    return attn_group_kv_spec(g, &spec, &error) == ATTN_OK &&
           attn_kv_spec_page_bytes(&spec, &bytes, &error) == ATTN_OK && bytes == shape->page_bytes;
}

/* One layer, its prompt and the steps after it: their outputs, tokens x HQ x D; scales: what was measured.
 * backend NULL: the configuration names two. A dense layer over an unquantised cache has a second one behind
 * it, which reads its cache and must give the same. */
static int run(attn_context_t *context, const attn_device_t *device, const char *backend,
               const family_t *family, double *out, float scales[2]) {
    const uint32_t kv = family->kv, sink = family->sink;
    const int is_latent = family->role != ATTN_ROLE_DECODER, is_shared = !is_latent && kv == ATTN_KV_AUTO;
    const int64_t key_size = is_latent ? LATENT : D, query_size = is_latent ? D + ROPE : D,
                  value_size = is_latent ? ROPE : D, kv_heads = is_latent ? 1 : HKV;
    ATTN_INIT(attn_problem_t, p);
    p.role = family->role, p.mask = ATTN_MASK_CAUSAL, p.dtype = ATTN_DTYPE_FLOAT16, p.kv_cache_dtype = kv;
    p.num_heads = HQ, p.num_kv_heads = HKV, p.head_size = D, p.block_size = BS, p.scale = 0.3;
    if (family->scales_of_heads) p.features = ATTN_F_PER_HEAD_SCALES;
    if (is_latent) {
        p.num_kv_heads = 0, p.head_size = LATENT + ROPE, p.kv_lora_rank = LATENT, p.qk_rope_head_dim = ROPE;
        p.qk_nope_head_dim = p.v_head_dim = D;
        if (p.role == ATTN_ROLE_MLA_SPARSE) p.topk = TOPK;
    }
    p.static_sink_len = sink, p.max_num_seqs = 8, p.max_num_batched_tokens = 64, p.max_model_len = 72;
    p.num_blocks = PAGES;
    attn_group_t *g = NULL;
    attn_layer_t *layer = NULL, *reader = NULL;
    if (attn_group_open(context, &p, device, backend, &g, NULL, &error) != ATTN_OK) return error.code;
    if (backend == NULL) {
        ok(attn_group_phase_backend(g, ATTN_PHASE_PREFILL) != attn_group_backend(g), "a group of two");
        backend = "two backends";
    }
    box_t boxes[16];
    uint16_t *sink_kv = alloc(2 * SINK * HKV * D * 2);
    fill(sink_kv, 2 * SINK * HKV * D, 9);
    float *measured = alloc(2 * HKV * sizeof *measured);
    for (int i = 0; i < 2 * HKV; i++)
        measured[i] = family->scales_of_heads ? 0.004f + 0.003f * (float)i : 1;
    ATTN_INIT(attn_layer_options_t, o);
    if (sink != 0) {
        o.sink_key = TENSOR(&boxes[0], sink_kv, ATTN_DTYPE_FLOAT16, 3, SINK, HKV, D);
        o.sink_value = TENSOR(&boxes[1], sink_kv + SINK * HKV * D, ATTN_DTYPE_FLOAT16, 3, SINK, HKV, D);
    }
    o.calculate_kv_scales = kv == ATTN_KV_FP8_E4M3 && !family->scales_of_heads;
    if (family->scales_of_heads) {
        o.scales.k = TENSOR(&boxes[2], &measured[0], ATTN_DTYPE_FLOAT32, 1, HKV);
        o.scales.v = TENSOR(&boxes[3], &measured[HKV], ATTN_DTYPE_FLOAT32, 1, HKV);
    }
    if (o.calculate_kv_scales && device->type != kDLCPU) {
        o.scales.k = TENSOR(&boxes[2], &measured[0], ATTN_DTYPE_FLOAT32, 1, 1);
        o.scales.v = TENSOR(&boxes[3], &measured[1], ATTN_DTYPE_FLOAT32, 1, 1);
    }
    int code = attn_layer_create(g, "layers.0.attn", &o, &layer, &error);
    o.kv_sharing_target = "layers.0.attn";
    if (code == ATTN_OK && is_shared) code = attn_layer_create(g, "layers.1.attn", &o, &reader, &error);
    ATTN_INIT(attn_kv_cache_shape_t, shape);
    ATTN_INIT(attn_space_needed_t, need);
    if (code == ATTN_OK) code = attn_group_kv_cache_shape(g, PAGES, &shape, &error);
    if (code == ATTN_OK) code = attn_group_space_needed(g, &need, &error);
    if (code == ATTN_OK && is_latent) code = prepare(layer, device, need.weight_bytes);
    if (code != ATTN_OK) bail_out("%s: %s", backend, error.text);
    ok(pages_agree(g, &shape), "%s: pages of %lld bytes, as the spec says", backend,
       (long long)shape.page_bytes);
    ATTN_INIT(attn_space_t, space);
    space.metadata = on(device, alloc(need.metadata_bytes)), space.metadata_bytes = need.metadata_bytes;
    space.workspace = on(device, alloc(need.workspace_bytes)), space.workspace_bytes = need.workspace_bytes;
    space.host = alloc(need.host_bytes), space.host_bytes = need.host_bytes;
    const DLTensor *cache =
        tensor(&boxes[4], device, alloc((size_t)shape.total_bytes), attn_dtype_of(shape.dtype),
               (int)shape.ndim, shape.shape, shape.byte_strides);
    int32_t *table = alloc(REQS * COLUMNS * 4), *starts = alloc((REQS + 1) * 4), *lens = alloc(REQS * 4);
    int64_t *slots = alloc(64 * 8);
    for (int i = 0; i < REQS * COLUMNS; i++)
        table[i] = 3 + (i * 8) % (PAGES - 3); /* blocks 1 and 2 are the sink's */
    uint16_t *q = alloc((size_t)(64 * HQ * query_size * 2)),
             *k = alloc((size_t)(64 * kv_heads * key_size * 2)),
             *v = alloc((size_t)(64 * kv_heads * value_size * 2)), *output = alloc(64 * HQ * D * 2),
             *again = alloc(64 * HQ * D * 2), *decoded = alloc(64 * HQ * D * 2);
    int32_t done[REQS] = {0};
    int32_t *topk = alloc(64 * TOPK * 4);
    int32_t tokens = 0;
    for (int step = 0; step < STEPS && code == ATTN_OK; step++) {
        tokens = 0;
        for (int r = 0; r < REQS; r++) {
            const int32_t n = step_lens[step][r];
            for (int32_t i = 0; i < n; i++) {
                const int32_t at = done[r] + i;
                slots[tokens + i] = (int64_t)table[r * COLUMNS + at / BS] * BS + at % BS;
                for (int32_t j = 0; j < TOPK; j++) /* every other key */
                    topk[(tokens + i) * TOPK + j] = 2 * j <= at ? at - 2 * j : -1;
            }
            starts[r + 1] = tokens += n;
            lens[r] = done[r] += n;
        }
        fill(q, (size_t)(tokens * HQ * query_size), 1 + (uint64_t)step);
        fill(k, (size_t)(tokens * kv_heads * key_size), 3 + (uint64_t)step);
        fill(v, (size_t)(tokens * kv_heads * value_size), 5 + (uint64_t)step);
        ATTN_INIT(attn_batch_t, b);
        b.num_reqs = REQS, b.num_actual_tokens = tokens;
        b.query_start_loc_host = starts, b.seq_lens_host = lens;
        b.block_table_host = table, b.block_table_host_stride = COLUMNS;
        b.query_start_loc = TENSOR(&boxes[5], starts, ATTN_DTYPE_INT32, 1, REQS + 1);
        b.seq_lens = TENSOR(&boxes[6], lens, ATTN_DTYPE_INT32, 1, REQS);
        b.block_table = TENSOR(&boxes[7], table, ATTN_DTYPE_INT32, 2, REQS, COLUMNS);
        ATTN_INIT(attn_kv_update_t, u);
        u.key = is_latent ? TENSOR(&boxes[8], k, ATTN_DTYPE_FLOAT16, 2, tokens, LATENT)
                          : TENSOR(&boxes[8], k, ATTN_DTYPE_FLOAT16, 3, tokens, HKV, D);
        u.value = TENSOR(&boxes[9], v, ATTN_DTYPE_FLOAT16, 3, tokens, kv_heads, value_size);
        u.kv_cache = cache;
        u.slot_mapping = TENSOR(&boxes[10], slots, ATTN_DTYPE_INT64, 1, tokens);
        ATTN_INIT(attn_forward_t, f);
        f.query = TENSOR(&boxes[11], q, ATTN_DTYPE_FLOAT16, 3, tokens, HQ, query_size);
        if (family->role == ATTN_ROLE_MLA_SPARSE)
            f.topk_indices = TENSOR(&boxes[13], topk, ATTN_DTYPE_INT32, 2, tokens, TOPK);
        f.output = TENSOR(&boxes[12], step == 2 ? decoded : output, ATTN_DTYPE_FLOAT16, 3, tokens, HQ, D);
        f.kv_cache = cache;
        code = attn_group_build_metadata(g, &b, &space, NULL, &error);
        if (code == ATTN_OK) code = attn_layer_update_kv_cache(layer, &u, NULL, &error);
        if (code == ATTN_OK) code = attn_layer_forward(layer, &f, &space, NULL, &error);
        if (is_shared) {
            u.key = u.value, f.output = TENSOR(&boxes[14], again, ATTN_DTYPE_FLOAT16, 3, tokens, HQ, D);
            if (code == ATTN_OK) code = attn_layer_update_kv_cache(reader, &u, NULL, &error);
            if (code == ATTN_OK) code = attn_layer_forward(reader, &f, &space, NULL, &error);
        }
        if (kind->synchronize(0, &error) != ATTN_OK) bail_out("%s: %s", backend, error.text);
    }
    if (code != ATTN_OK) diag("%s: %s", backend, error.text);
    fetch(device, output);
    fetch(device, decoded);
    fetch(device, again);
    fetch(device, measured);
    for (int i = 0; i < OUTPUTS; i++)
        out[i] = half(i < MIXED * HQ * D ? output[i] : decoded[i - MIXED * HQ * D]);
    attn_layer_scales(layer, NULL, &scales[0], &scales[1]);
    if (is_shared)
        ok(memcmp(decoded, again, (size_t)tokens * HQ * D * 2) == 0, "%s: so the layer that reads its cache",
           backend);
    if (o.calculate_kv_scales && o.scales.k != NULL && (measured[0] != scales[0] || measured[1] != scales[1]))
        code = ATTN_E_INTERNAL;
    attn_layer_destroy(reader);
    attn_layer_destroy(layer);
    attn_group_close(g);
    return code;
}

int main(int argc, char **argv) {
    static double want[OUTPUTS], got[OUTPUTS], plain[OUTPUTS];
    static const char *const backends[] = {"FLASH_ATTN", "TRITON_ATTN"}, *const latent[] = {"FLASHMLA"},
                             *const sparse[] = {"FLASHMLA_SPARSE"};
    static const family_t plain_layer = {.role = ATTN_ROLE_DECODER, .kv = ATTN_KV_AUTO};
    static const family_t cases[] = {
        {"static sink tokens", ATTN_ROLE_DECODER, ATTN_KV_AUTO, SINK, 0, 3e-3},
        {"measured fp8 scales", ATTN_ROLE_DECODER, ATTN_KV_FP8_E4M3, 0, 0, 6e-2},
        {"both", ATTN_ROLE_DECODER, ATTN_KV_FP8_E4M3, SINK, 0, 6e-2},
        {"scales of each head", ATTN_ROLE_DECODER, ATTN_KV_FP8_E4M3, 0, 1, 6e-2},
        {"latent, measured fp8 scales", ATTN_ROLE_MLA, ATTN_KV_FP8_E4M3, 0, 0, 2e-2},
        {"selected tokens, fp8", ATTN_ROLE_MLA_SPARSE, ATTN_KV_FP8_E4M3, 0, 0, 2e-2}};
    const char *name = argc > 1 ? argv[1] : "cuda:0", *named = argc > 2 ? argv[2] : NULL;
    attn_device_t cpu = {.struct_size = sizeof cpu}, device = {.struct_size = sizeof device};
    attn_context_t *context = NULL;
    enum { PAIRS = 2 };
    static const char *const pair_names[PAIRS] = {
        "[select decoder]\ndecode_backend = FLASH_ATTN\nprefill_backend = TRITON_ATTN\n",
        "[select decoder]\ndecode_backend = TRITON_ATTN\nprefill_backend = FLASH_ATTN\n"};
    attn_context_t *pairs[PAIRS] = {NULL, NULL};
    float scales[2], wanted[2];
    attn_context_options_t options = {.struct_size = sizeof options};
    if (getenv("ATTN_CONFIG") == NULL) options.config_file = getenv("ATTN_TEST_INI"); /* the suite's own */
    if (attn_device_parse("cpu", &cpu, &error) != ATTN_OK ||
        attn_context_create(&options, &context, &error) != ATTN_OK)
        bail_out("%s", error.text);
    if (attn_device_parse(name, &device, &error) != ATTN_OK) {
        if (named != NULL) bail_out("%s", error.text);
        printf("1..0 # SKIP %s\n", error.text);
        return 0;
    }
    kind = attn_device_kind(device.type);
    for (int i = 0; i < PAIRS && named == NULL; i++) {
        options.config_text = pair_names[i];
        if (attn_context_create(&options, &pairs[i], &error) != ATTN_OK) bail_out("%s", error.text);
    }
    is_int(run(context, &cpu, "REFERENCE", &plain_layer, plain, wanted), ATTN_OK, "without any of it");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int is_sparse = cases[i].role == ATTN_ROLE_MLA_SPARSE,
                  is_dense = cases[i].role == ATTN_ROLE_DECODER;
        const char *const *names = named != NULL ? &named : is_dense ? backends : is_sparse ? sparse : latent;
        family_t oracle = cases[i];
        double moved = 0;
        if (is_sparse && named == NULL) oracle.kv = ATTN_KV_FP8_DS_MLA; /* what FLASHMLA_SPARSE makes of it */
        is_int(run(context, &cpu, "REFERENCE", &oracle, want, wanted), ATTN_OK, "%s: REFERENCE",
               cases[i].name);
        for (int j = 0; j < OUTPUTS; j++)
            moved = fmax(moved, fabs(want[j] - plain[j]));
        if (cases[i].sink != 0) ok(moved > 0.05, "sink tokens move outputs by %.2g", moved);
        for (int b = 0; b < (is_dense && named == NULL ? 2 + PAIRS : 1); b++) {
            double worst = 0;
            const int is_pair = b >= 2;
            is_int(run(is_pair ? pairs[b - 2] : context, &device, is_pair ? NULL : names[b], &cases[i], got,
                       scales),
                   ATTN_OK, "%s: %s", cases[i].name,
                   !is_pair ? names[b]
                   : b == 2 ? "decode by FLASH_ATTN"
                            : "decode by TRITON_ATTN");
            for (int j = 0; j < OUTPUTS; j++)
                worst = fmax(worst, fabs(got[j] - want[j]));
            ok(worst < cases[i].tolerance, "differs by %.2g", worst);
            ok(scales[0] == wanted[0] && scales[1] == wanted[1], "with scales %g and %g", (double)scales[0],
               (double)scales[1]);
        }
    }
    for (int i = 0; i < PAIRS; i++)
        attn_context_destroy(pairs[i]);
    attn_context_destroy(context);
    return tap_done();
}
