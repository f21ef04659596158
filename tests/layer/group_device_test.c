/* SPDX-License-Identifier: Apache-2.0 */
/* Groups on a device whose memory the core cannot read: what it still checks, what it refuses, what it leaves
 * alone. The device is a description, and the backend one that never touches memory. */
#include "layer_testing.h"

static attn_error_t error = {.struct_size = sizeof error};

static attn_device_t gpu(void) {
    ATTN_INIT(attn_device_t, d);
    d.type = kDLCUDA, d.compute_capability = 90, d.num_sms = 132;
    snprintf(d.name, sizeof d.name, "described GPU");
    return d;
}

static int try_open(attn_context_t *context, const attn_problem_t *p, const char *backend, attn_group_t **g) {
    attn_device_t d = gpu();
    error.param[0] = error.text[0] = '\0';
    return attn_group_open(context, p, &d, backend, g, NULL, &error);
}

/* A tensor on the GPU: the address is not to be followed. */
static const DLTensor *far_away(struct tensor *w, uint32_t dtype, int ndim, int64_t a, int64_t b, int64_t c,
                                int64_t d) {
    tensor(w, (void *)(uintptr_t)64, dtype, ndim, a, b, c, d);
    w->t.device.device_type = kDLCUDA;
    return &w->t;
}

static void test_families(attn_context_t *context) {
    attn_group_t *g = NULL;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.chunk_size = 8;
    is_int(try_open(context, &p, "FAKE_CUDA", &g), ATTN_E_UNSUPPORTED, "chunks without the backend's help");
    is_int(try_open(context, &p, "FAKE_CUDA_SINK", &g), ATTN_OK, "with it");
    is_int(attn_group_problem(g)->chunk_size, 8, "the backend has the chunks");
    attn_group_close(g);
    p.chunk_size = 0, p.static_sink_len = 4;
    attn_layer_t *layer = NULL;
    is_int(try_open(context, &p, "FAKE_CUDA", &g), ATTN_OK, "sink tokens without the backend's help");
    is_int(attn_layer_create(g, "l.0", NULL, &layer, &error), ATTN_E_INVALID, "are the library's");
    has_str(error.param, "sink_key", "which wants them");
    attn_group_close(g);
    is_int(try_open(context, &p, "FAKE_CUDA_SINK", &g), ATTN_OK, "with it");
    float numbers[32];
    struct tensor t;
    attn_layer_options_t o = {.struct_size = sizeof o,
                              .sink_key = tensor(&t, numbers, ATTN_DTYPE_FLOAT32, 3, 4, 1, 8, 0),
                              .sink_value = &t.t};
    is_int(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_E_INVALID,
           "the engine writes the sink tokens itself");
    has_str(error.text, "the engine writes the sink tokens", "and is told so");
    is_int(attn_layer_create(g, "l.0", NULL, &layer, &error), ATTN_OK, "then the layer has none");
    is_int(attn_layer_kind(layer), ATTN_LAYER_STATIC_SINK, "and is a sink layer");
    attn_layer_destroy(layer);
    attn_group_close(g);
}

static void test_cross(attn_context_t *context) {
    attn_group_t *g = NULL;
    attn_problem_t p = small_problem(ATTN_ROLE_ENCODER_DECODER);
    is_int(try_open(context, &p, "FAKE_CUDA", &g), ATTN_OK, "cross attention");
    struct buffers buf = alloc_buffers(g);
    int32_t starts[] = {0, 1}, lens[] = {1}, encoder[] = {9};
    struct tensor ttable, tlens;
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = 1,
                      .num_actual_tokens = 1,
                      .query_start_loc_host = starts,
                      .seq_lens_host = lens,
                      .encoder_seq_lens_host = encoder,
                      .block_table = far_away(&ttable, ATTN_DTYPE_INT32, 2, 1, 3, 0, 0)};
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_E_INVALID,
           "needs the lengths on the device");
    is_str(error.param, "encoder_seq_lens", "by name");
    b.encoder_seq_lens = far_away(&tlens, ATTN_DTYPE_INT32, 1, 1, 0, 0, 0);
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_OK,
           "with them nothing is read there");
    attn_group_close(g);
    free(buf.memory);
}

static void test_calls(attn_context_t *context) {
    attn_group_t *g = NULL;
    attn_layer_t *layer = NULL;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.kv_cache_dtype = ATTN_KV_FP8_E4M3;
    is_int(try_open(context, &p, "FAKE_CUDA", &g), ATTN_OK, "a decoder");
    attn_layer_options_t o = {.struct_size = sizeof o, .k_scale = 0.5f, .v_scale = 0.5f};
    is_int(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_E_INVALID,
           "a loaded scale has no memory there");
    has_str(error.text, "device tensor of one element", "and the way out is said");
    o.calculate_kv_scales = 1;
    is_int(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_E_INVALID,
           "what is measured there needs a tensor to go to");
    is_str(error.param, "k_scale", "by name");
    struct tensor tscale, tq, tout, tk, tv, tcache, tslots, ttable;
    o.calculate_kv_scales = 0;
    o.scales.k = o.scales.v = far_away(&tscale, ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0);
    is_int(attn_layer_create(g, "l.0", &o, &layer, &error), ATTN_OK, "tensors of the engine serve");
    struct buffers buf = alloc_buffers(g);
    int32_t starts[] = {0, 1}, lens[] = {9};
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = 1,
                      .num_actual_tokens = 1,
                      .query_start_loc_host = starts,
                      .seq_lens_host = lens,
                      .block_table = far_away(&ttable, ATTN_DTYPE_INT32, 2, 1, 3, 0, 0),
                      .slot_mapping = far_away(&tslots, ATTN_DTYPE_INT64, 1, 1, 0, 0, 0)};
    attn_kv_update_t u = {.struct_size = sizeof u,
                          .key = far_away(&tk, ATTN_DTYPE_FLOAT32, 3, 1, 1, 8, 0),
                          .value = far_away(&tv, ATTN_DTYPE_FLOAT32, 3, 1, 1, 8, 0),
                          .kv_cache = far_away(&tcache, ATTN_DTYPE_UINT8, 4, 32, 1, 4, 16),
                          .slot_mapping = &tslots.t};
    attn_forward_t f = {.struct_size = sizeof f,
                        .query = far_away(&tq, ATTN_DTYPE_FLOAT32, 3, 1, 2, 8, 0),
                        .output = far_away(&tout, ATTN_DTYPE_FLOAT32, 3, 1, 2, 8, 0),
                        .kv_cache = &tcache.t};
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_OK, "a step");
    is_int(attn_layer_update_kv_cache(layer, &u, NULL, &error), ATTN_OK, "its cache write");
    is_int(attn_layer_forward(layer, &f, &buf.space, NULL, &error), ATTN_OK,
           "and its forward follow no address");
    tcache.shape[2] = 8;
    is_int(attn_layer_forward(layer, &f, &buf.space, NULL, &error), ATTN_E_INVALID, "but shapes are checked");
    attn_layer_destroy(layer);
    attn_group_close(g);
    free(buf.memory);
}

/* Hooks that read tensors of a device that cannot be read: check fails the call by name, shadow steps
 * aside. */
static void test_hooks(void) {
    attn_context_t *context = fake_context("[hook check]\nlevel = all\n[hook shadow]\nbackend = "
                                           "FAKE_CUDA_SINK\n[hook trace]\nfile = /dev/null\n");
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_group_t *g = NULL;
    is_int(try_open(context, &p, "FAKE_CUDA", &g), ATTN_OK, "a group with hooks");
    struct tensor ttable, tslots;
    struct buffers buf = alloc_buffers(g);
    int32_t starts[] = {0, 1}, lens[] = {9};
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = 1,
                      .num_actual_tokens = 1,
                      .query_start_loc_host = starts,
                      .seq_lens_host = lens,
                      .block_table = far_away(&ttable, ATTN_DTYPE_INT32, 2, 1, 3, 0, 0),
                      .slot_mapping = far_away(&tslots, ATTN_DTYPE_INT64, 1, 1, 0, 0, 0)};
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_E_DEVICE,
           "check cannot read the slots");
    is_str(error.param, "slot_mapping", "and names them");
    has_str(error.text, "slot_mapping cannot be read back from described GPU", "with the device");
    free(buf.memory);
    attn_group_close(g);
    attn_device_t d;
    attn_device_parse("sm_90", &d, &error);
    is_int(attn_group_open(context, &p, &d, "FAKE_CUDA", &g, NULL, &error), ATTN_E_DEVICE,
           "nothing opens on a device that is not there");
    is_str(error.param, "device", "by name");
    attn_context_destroy(context);
}

int main(void) {
    attn_context_t *context = fake_context("");
    test_families(context);
    test_cross(context);
    test_calls(context);
    attn_context_destroy(context);
    test_hooks();
    remove_fake();
    return tap_done();
}
