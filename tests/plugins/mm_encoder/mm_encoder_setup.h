/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of multimodal encoders share: a context with the reference plugin, a layer over a fused QKV
 * buffer, files. */
#ifndef ATTN_TESTS_MM_ENCODER_SETUP_H
#define ATTN_TESTS_MM_ENCODER_SETUP_H

#include "../../tap.h"

#include <attn/attn.h>
#include <attn/attn_plugin_util.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

static char mm_log[4096];
static char mm_dir[] = "/tmp/attn-mm-encoder-XXXXXX";

static void mm_keep_log(void *ctx, uint32_t level, const char *text) {
    (void)ctx, (void)level;
    size_t used = strlen(mm_log);
    snprintf(mm_log + used, sizeof mm_log - used, "%s\n", text);
}

/* ATTN_OK and a context, or the error's code with its text in error. */
static int mm_try_context(const char *ini, attn_context_t **context, attn_error_t *error) {
    const char *dir = getenv("ATTN_TEST_PLUGIN_DIR");
    char text[2048], file[1200];
    if (dir == NULL) skip_all("no plugins built: ATTN_TEST_PLUGIN_DIR");
    snprintf(file, sizeof file, "%s/reference.so", dir);
    if (access(file, R_OK) != 0) skip_all("the reference plugin is not built");
    snprintf(text, sizeof text, "[attn]\nplugins = reference, cpu\n%s", ini);
    ATTN_INIT(attn_context_options_t, o);
    o.flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG;
    o.config_text = text;
    o.plugin_dir = dir;
    o.log = mm_keep_log;
    o.log_level = ATTN_LOG_INFO;
    mm_log[0] = '\0';
    *context = NULL;
    *error = (attn_error_t){.struct_size = sizeof *error};
    return attn_context_create(&o, context, error);
}

TAP_UNUSED static attn_context_t *mm_context(const char *ini) {
    attn_context_t *context;
    attn_error_t error;
    if (mm_try_context(ini, &context, &error) != ATTN_OK) bail_out("context: %s", error.text);
    return context;
}

static attn_device_t mm_cpu(void) {
    attn_device_t d;
    if (attn_device_parse("cpu", &d, NULL) != ATTN_OK) bail_out("no device cpu");
    return d;
}

/* A path in the folder of this run. */
TAP_UNUSED static const char *mm_path(const char *name) {
    static char paths[4][256];
    static unsigned turn;
    static int made; /* not read off the name: one in 62 of them ends with an X */
    if (!made && mkdtemp(mm_dir) == NULL) bail_out("no scratch folder %s: %s", mm_dir, strerror(errno));
    made = 1;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", mm_dir, name);
    return path;
}

TAP_UNUSED static const char *mm_file(const char *name, const char *content) {
    const char *path = mm_path(name);
    FILE *f = fopen(path, "w");
    if (f == NULL || fputs(content, f) < 0 || fclose(f) != 0) bail_out("cannot write %s", path);
    return path;
}

/* One group, its buffers, and rows of a fused buffer [MM_ROWS, 3, heads, d] in float32. */
enum { MM_ROWS = 96 };
typedef struct mm_layer {
    attn_group_t *group;
    attn_layer_t *layer;
    attn_space_t space;
    attn_space_needed_t need;
    attn_fp8_state_t state;
    float *qkv, *out;
    int64_t shape[3], qkv_strides[3], out_strides[3];
    DLTensor q, k, v, o;
    int heads, d;
} mm_layer_t;

static DLTensor mm_view(mm_layer_t *l, float *data, int64_t *strides) {
    return (DLTensor){.data = data,
                      .device = {kDLCPU, 0},
                      .ndim = 3,
                      .dtype = attn_dl_dtype(ATTN_DTYPE_FLOAT32),
                      .shape = l->shape,
                      .strides = strides};
}

static void *mm_alloc(uint64_t bytes) {
    void *p = aligned_alloc(64, (bytes / 64 + 1) * 64);
    if (p == NULL) bail_out("no memory");
    memset(p, 0, (bytes / 64 + 1) * 64);
    return p;
}

static attn_problem_t mm_problem(int heads, int d, uint64_t features) {
    return (attn_problem_t){.struct_size = sizeof(attn_problem_t),
                            .role = ATTN_ROLE_MM_ENCODER,
                            .mask = ATTN_MASK_FULL,
                            .dtype = ATTN_DTYPE_FLOAT32,
                            .num_heads = (uint32_t)heads,
                            .head_size = (uint32_t)d,
                            .scale = 1 / sqrt((double)d),
                            .max_num_seqs = 16,
                            .max_num_batched_tokens = MM_ROWS,
                            .max_model_len = MM_ROWS,
                            .features = features};
}

/* The group and its memory; the layer is the caller's to create. */
TAP_UNUSED static void mm_open(mm_layer_t *l, attn_context_t *context, int heads, int d, uint64_t features) {
    attn_problem_t p = mm_problem(heads, d, features);
    attn_device_t cpu = mm_cpu();
    attn_error_t e = {.struct_size = sizeof e};
    memset(l, 0, sizeof *l);
    l->heads = heads, l->d = d;
    if (attn_group_open(context, &p, &cpu, "REFERENCE", &l->group, NULL, &e) != ATTN_OK)
        bail_out("open: %s", e.text);
    l->need.struct_size = sizeof l->need;
    attn_group_space_needed(l->group, &l->need, &e);
    l->space = (attn_space_t){.struct_size = sizeof l->space,
                              .metadata = mm_alloc(l->need.metadata_bytes),
                              .metadata_bytes = l->need.metadata_bytes,
                              .workspace = mm_alloc(l->need.workspace_bytes),
                              .workspace_bytes = l->need.workspace_bytes,
                              .host = mm_alloc(l->need.host_bytes),
                              .host_bytes = l->need.host_bytes};
    size_t part = (size_t)heads * (size_t)d;
    l->qkv = mm_alloc(MM_ROWS * 3 * part * sizeof(float));
    l->out = mm_alloc(MM_ROWS * part * sizeof(float));
    l->shape[0] = MM_ROWS, l->shape[1] = heads, l->shape[2] = d;
    l->qkv_strides[0] = (int64_t)(3 * part), l->qkv_strides[1] = d, l->qkv_strides[2] = 1;
    l->out_strides[0] = (int64_t)part, l->out_strides[1] = d, l->out_strides[2] = 1;
    l->q = mm_view(l, l->qkv, l->qkv_strides);
    l->k = mm_view(l, l->qkv + part, l->qkv_strides);
    l->v = mm_view(l, l->qkv + 2 * part, l->qkv_strides);
    l->o = mm_view(l, l->out, l->out_strides);
}

TAP_UNUSED static void mm_close(mm_layer_t *l) {
    attn_layer_destroy(l->layer);
    attn_group_close(l->group);
    free(l->space.metadata), free(l->space.workspace), free(l->space.host), free(l->qkv), free(l->out);
}

TAP_UNUSED static int mm_build(mm_layer_t *l, const int32_t *cu_seqlens, int n, uint32_t flags,
                               attn_error_t *e) {
    int32_t lens[16];
    for (int i = 0; i < n; i++)
        lens[i] = cu_seqlens[i + 1] - cu_seqlens[i];
    attn_batch_t b = {.struct_size = sizeof b,
                      .flags = flags,
                      .num_reqs = n,
                      .num_actual_tokens = cu_seqlens[n],
                      .query_start_loc_host = cu_seqlens,
                      .seq_lens_host = lens};
    return attn_group_build_metadata(l->group, &b, &l->space, NULL, e);
}

TAP_UNUSED static int mm_forward(mm_layer_t *l, attn_error_t *e) {
    attn_forward_t f = {
        .struct_size = sizeof f, .query = &l->q, .key = &l->k, .value = &l->v, .output = &l->o};
    return attn_layer_forward(l->layer, &f, &l->space, NULL, e);
}

#endif
