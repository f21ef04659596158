/* SPDX-License-Identifier: Apache-2.0 */
/* fp8 layers of a multimodal encoder through attn.h on a device: static scales as host numbers and from a
 * file give the same as device tensors, dynamic ones are read back and saved once. */
#include "../tap.h"

#include <attn/attn.h>
#include <attn/attn_plugin_util.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

enum { TOKENS = 300, HEADS = 4, D = 72, PART = HEADS * D };

static attn_error_t error = {.struct_size = sizeof error};
static const int32_t images[4] = {0, 100, 101, TOKENS}, lens[3] = {100, 1, 199};
static uint16_t *qkv, *out;
static int64_t shape[3] = {TOKENS, HEADS, D}, qkv_strides[3] = {3 * PART, D, 1},
               out_strides[3] = {PART, D, 1};

static DLTensor view(uint16_t *data, int64_t *strides) {
    return (DLTensor){.data = data,
                      .device = {kDLCUDA, 0},
                      .ndim = 3,
                      .dtype = attn_dl_dtype(ATTN_DTYPE_BFLOAT16),
                      .shape = shape,
                      .strides = strides};
}

static attn_context_t *context_of(const char *more) {
    char text[1024], dir[900];
    const char *from = getenv("ATTN_TEST_PLUGIN_DIR");
    if (from == NULL && (getcwd(dir, sizeof dir - 20) == NULL || strcat(dir, "/plugins-built") == NULL))
        bail_out("getcwd");
    snprintf(text, sizeof text, "[attn]\nplugins = mm_encoder\n%s", more);
    ATTN_INIT(attn_context_options_t, o);
    o.flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG;
    o.config_text = text;
    o.plugin_dir = from != NULL ? from : dir;
    attn_context_t *context = NULL;
    if (attn_context_create(&o, &context, &error) != ATTN_OK) bail_out("context: %s", error.text);
    return context;
}

static attn_group_t *group_of(attn_context_t *context, attn_space_t *space) {
    attn_problem_t p = {.struct_size = sizeof p,
                        .role = ATTN_ROLE_MM_ENCODER,
                        .mask = ATTN_MASK_FULL,
                        .dtype = ATTN_DTYPE_BFLOAT16,
                        .num_heads = HEADS,
                        .head_size = D,
                        .scale = 0.11785113,
                        .max_num_seqs = 4,
                        .max_num_batched_tokens = TOKENS};
    attn_group_t *group = NULL;
    attn_device_t device = {.struct_size = sizeof device};
    if (attn_device_parse("cuda:0", &device, &error) != ATTN_OK ||
        attn_group_open(context, &p, &device, NULL, &group, NULL, &error) != ATTN_OK)
        bail_out("open: %s", error.text);
    attn_space_needed_t need = {.struct_size = sizeof need};
    attn_group_space_needed(group, &need, &error);
    *space = (attn_space_t){.struct_size = sizeof *space,
                            .metadata_bytes = need.metadata_bytes,
                            .workspace_bytes = need.workspace_bytes,
                            .host_bytes = need.host_bytes};
    cudaMalloc(&space->metadata, need.metadata_bytes);
    cudaMalloc(&space->workspace, need.workspace_bytes);
    cudaMallocHost(&space->host, need.host_bytes);
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = 3,
                      .num_actual_tokens = TOKENS,
                      .query_start_loc_host = images,
                      .seq_lens_host = lens};
    if (attn_group_build_metadata(group, &b, space, NULL, &error) != ATTN_OK)
        bail_out("build: %s", error.text);
    return group;
}

static void release(attn_group_t *group, attn_space_t *space) {
    attn_group_close(group);
    cudaFree(space->metadata), cudaFree(space->workspace), cudaFreeHost(space->host);
}

static int forward(attn_layer_t *layer, const attn_space_t *space, uint16_t *host) {
    DLTensor q = view(qkv, qkv_strides), k = view(qkv + PART, qkv_strides),
             v = view(qkv + 2 * PART, qkv_strides), o = view(out, out_strides);
    attn_forward_t f = {.struct_size = sizeof f, .query = &q, .key = &k, .value = &v, .output = &o};
    cudaMemset(out, 0xff, TOKENS * PART * 2);
    int code = attn_layer_forward(layer, &f, space, NULL, &error);
    cudaMemcpy(host, out, TOKENS * PART * 2, cudaMemcpyDeviceToHost);
    return code;
}

static void static_scales(void) {
    static uint16_t numbers[TOKENS * PART], tensors[TOKENS * PART], file[TOKENS * PART];
    const float scale[3] = {0.01f, 0.02f, 0.03f};
    float *d_scale;
    int64_t one = 1;
    attn_space_t space;
    cudaMalloc((void **)&d_scale, sizeof scale);
    cudaMemcpy(d_scale, scale, sizeof scale, cudaMemcpyHostToDevice);
    DLTensor t[3];
    for (int i = 0; i < 3; i++)
        t[i] = (DLTensor){.data = d_scale + i,
                          .device = {kDLCUDA, 0},
                          .ndim = 1,
                          .dtype = {kDLFloat, 32, 1},
                          .shape = &one,
                          .strides = &one};
    char path[] = "/tmp/attn-mm-XXXXXX", ini[200];
    int fd = mkstemp(path);
    const char json[] = "{\"c\": {\"q\": 0.01, \"k\": 0.02, \"v\": 0.03}}";
    if (fd < 0 || write(fd, json, sizeof json - 1) < 0) bail_out("cannot write %s", path);
    close(fd);
    snprintf(ini, sizeof ini, "[mm_encoder]\nattn_dtype = fp8\nfp8_scale_path = %s\n", path);
    attn_context_t *context = context_of(ini);
    attn_group_t *group = group_of(context, &space);
    attn_layer_options_t a = {.struct_size = sizeof a,
                              .q_scale = scale[0],
                              .k_scale = scale[1],
                              .v_scale = scale[2]},
                         b = {.struct_size = sizeof b, .scales = {.q = &t[0], .k = &t[1], .v = &t[2]}};
    attn_layer_t *layers[3];
    int code = attn_layer_create(group, "a", &a, &layers[0], &error) |
               attn_layer_create(group, "b", &b, &layers[1], &error) |
               attn_layer_create(group, "c", NULL, &layers[2], &error);
    if (code != ATTN_OK) bail_out("layers: %s", error.text);
    code = forward(layers[0], &space, numbers) | forward(layers[1], &space, tensors) |
           forward(layers[2], &space, file);
    ok(code == ATTN_OK && numbers[7] != 0xffff && !memcmp(numbers, tensors, sizeof numbers) &&
           !memcmp(numbers, file, sizeof file),
       "scales as host numbers, as device tensors and from a file give the same bits (%s)",
       code ? error.text : "no error");
    for (int i = 0; i < 3; i++)
        attn_layer_destroy(layers[i]);
    release(group, &space);
    attn_context_destroy(context);
    cudaFree(d_scale);
    unlink(path);
}

static void dynamic_scales(void) {
    static uint16_t host[TOKENS * PART];
    char path[] = "/tmp/attn-mm-XXXXXX", ini[200], text[400] = "";
    int fd = mkstemp(path);
    if (fd < 0) bail_out("mkstemp");
    close(fd);
    snprintf(ini, sizeof ini,
             "[mm_encoder]\nattn_dtype = fp8\nfp8_scale_save_path = %s\nfp8_scale_save_margin = 1\n", path);
    attn_space_t space;
    attn_context_t *context = context_of(ini);
    attn_group_t *group = group_of(context, &space);
    attn_layer_t *layer = NULL;
    attn_fp8_state_t *state, got = {.calls = 0};
    cudaMalloc((void **)&state, sizeof *state);
    cudaMemset(state, 0xff, sizeof *state);
    attn_weights_t w = {.struct_size = sizeof w, .weight_space = state, .weight_space_bytes = sizeof *state};
    int code = attn_layer_create(group, "visual.0", NULL, &layer, &error);
    if (code == ATTN_OK) code = attn_layer_prepare_weights(layer, &w, NULL, &error);
    for (int i = 0; i < 16 && code == ATTN_OK; i++)
        code = forward(layer, &space, host);
    cudaMemcpy(&got, state, sizeof got, cudaMemcpyDeviceToHost);
    ok(code == ATTN_OK && got.calls == 16 && got.scale[0] > 0 && got.scale[0] == got.amax[0][3] / 448,
       "16 calls with dynamic scales (%s)", code ? error.text : "no error");
    FILE *f = fopen(path, "r");
    size_t n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f != NULL) fclose(f);
    text[n] = '\0';
    const char *at = strstr(text, "\"v\": ");
    double saved = at != NULL ? strtod(at + 5, NULL) : 0;
    ok(strstr(text, "visual.0") != NULL && (float)saved == got.scale[2], "they are saved as they are: %.9g",
       saved);
    attn_layer_destroy(layer);
    release(group, &space);
    attn_context_destroy(context);
    cudaFree(state);
    unlink(path);
}

int main(void) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) skip_all("no CUDA device");
    uint64_t seed = tap_seed();
    uint16_t *x = malloc(TOKENS * 3 * PART * 2);
    for (size_t i = 0; i < (size_t)TOKENS * 3 * PART; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        x[i] = (uint16_t)(0x3e00 + (seed >> 40) % 0x180 + (seed >> 63 << 15)); /* 0.125 .. 1, both signs */
    }
    cudaMalloc((void **)&qkv, TOKENS * 3 * PART * 2);
    cudaMalloc((void **)&out, TOKENS * PART * 2);
    cudaMemcpy(qkv, x, TOKENS * 3 * PART * 2, cudaMemcpyHostToDevice);
    free(x);
    static_scales();
    dynamic_scales();
    return tap_done();
}
