/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of groups, layers and hooks share: a context with the fake plugin, tensors, batches, a small
 * cache. */
#ifndef ATTN_TESTS_LAYER_TESTING_H
#define ATTN_TESTS_LAYER_TESTING_H

#include "layer_fake.h"
#include "../tap.h"

#include <attn/attn.h>
#include <attn/attn_plugin_util.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#define ERROR_INIT                                                                                           \
    { .struct_size = sizeof(attn_error_t) }

static char logged[8192];
static pthread_mutex_t logged_lock = PTHREAD_MUTEX_INITIALIZER;

TAP_UNUSED static void keep_log(void *ctx, uint32_t level, const char *text) {
    (void)ctx;
    pthread_mutex_lock(&logged_lock);
    size_t used = strlen(logged);
    snprintf(logged + used, sizeof logged - used, "%u %s\n", (unsigned)level, text);
    pthread_mutex_unlock(&logged_lock);
}

/* A copy of the fake plugin that the trust rules accept, whatever the umask of the build was. */
TAP_UNUSED static const char *fake_path(void) {
    static char path[600];
    static const char *const places[] = {"tests/layer/.libs/layer_fake.so", "layer_fake.so"};
    const char *build = getenv("ATTN_TEST_BUILDDIR");
    char from[512], buffer[65536];
    if (path[0] != '\0') return path;
    FILE *in = NULL;
    for (size_t i = 0; i < 2 && in == NULL; i++) {
        snprintf(from, sizeof from, "%s/%s", build != NULL ? build : ".", places[i]);
        in = fopen(from, "rb");
    }
    if (in == NULL) bail_out("no %s; build check_LTLIBRARIES first", from);
    char dir[] = "/tmp/attn-layer-XXXXXX";
    if (mkdtemp(dir) == NULL) bail_out("no scratch folder");
    snprintf(path, sizeof path, "%s/layer_fake.so", dir);
    FILE *out = fopen(path, "wb");
    for (size_t n; out != NULL && (n = fread(buffer, 1, sizeof buffer, in)) > 0;)
        if (fwrite(buffer, 1, n, out) != n) bail_out("cannot write %s", path);
    fclose(in);
    if (out == NULL || fclose(out) != 0 || chmod(path, 0755) != 0) bail_out("cannot write %s", path);
    return path;
}

TAP_UNUSED static void remove_fake(void) {
    char path[600];
    snprintf(path, sizeof path, "%s", fake_path());
    unlink(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);
}

/* A context with the fake plugin and further INI text. */
TAP_UNUSED static attn_context_t *fake_context(const char *more) {
    char text[4096];
    attn_error_t error = ERROR_INIT;
    attn_context_t *context = NULL;
    snprintf(text, sizeof text, "[attn]\nplugins = layer_fake\n[plugin layer_fake]\npath = %s\n%s",
             fake_path(), more);
    ATTN_INIT(attn_context_options_t, o);
    o.flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG;
    o.config_text = text;
    o.log = keep_log;
    o.log_level = ATTN_LOG_INFO;
    logged[0] = '\0';
    if (attn_context_create(&o, &context, &error) != ATTN_OK) bail_out("context: %s", error.text);
    if (attn_context_backend(context, 0) == NULL) bail_out("the fake plugin did not load: %s", logged);
    return context;
}

TAP_UNUSED static attn_device_t cpu(void) {
    attn_device_t d;
    attn_error_t error = ERROR_INIT;
    if (attn_device_parse("cpu", &d, &error) != ATTN_OK) bail_out("cpu: %s", error.text);
    return d;
}

/* Two query heads over one KV head of size 8, float32, blocks of 4. */
TAP_UNUSED static attn_problem_t small_problem(uint32_t role) {
    ATTN_INIT(attn_problem_t, p);
    p.role = role;
    p.mask = role == ATTN_ROLE_DECODER || attn_role_is_mla(role) ? ATTN_MASK_CAUSAL : ATTN_MASK_FULL;
    p.dtype = ATTN_DTYPE_FLOAT32;
    p.num_heads = 2;
    p.num_kv_heads = 1;
    p.head_size = 8;
    p.block_size = attn_role_has_cache(role) ? 4 : 0;
    p.scale = 0.5;
    p.max_num_seqs = 8;
    p.max_num_batched_tokens = 64;
    p.max_model_len = 64;
    p.num_blocks = attn_role_has_cache(role) ? 32 : 0;
    if (attn_role_is_mla(role)) {
        p.num_kv_heads = 0;
        p.kv_lora_rank = 16, p.qk_rope_head_dim = 8, p.qk_nope_head_dim = 8, p.v_head_dim = 8;
        p.head_size = 24;
        if (role == ATTN_ROLE_MLA_SPARSE) p.topk = 128;
    }
    return p;
}

/* A dense CPU tensor with its own storage for shape and strides. */
struct tensor {
    DLTensor t;
    int64_t shape[5], strides[5];
};

TAP_UNUSED static const DLTensor *tensor(struct tensor *w, void *data, uint32_t dtype, int ndim, int64_t a,
                                         int64_t b, int64_t c, int64_t d) {
    const int64_t sizes[4] = {a, b, c, d};
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        w->shape[i] = sizes[i];
        w->strides[i] = stride;
        stride *= sizes[i];
    }
    w->t = (DLTensor){.data = data,
                      .device = {kDLCPU, 0},
                      .ndim = ndim,
                      .dtype = attn_dl_dtype(dtype),
                      .shape = w->shape,
                      .strides = w->strides};
    return &w->t;
}

/* Small deterministic numbers in -1 .. 1. */
TAP_UNUSED static void fill(float *data, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        data[i] = (float)((double)(seed >> 33) / 1073741824.0 - 1.0);
    }
}

/* Buffers as a group wants them. */
struct buffers {
    attn_space_t space;
    char *memory;
};

TAP_UNUSED static struct buffers alloc_buffers(attn_group_t *group) {
    struct buffers b = {.space = {.struct_size = sizeof b.space}};
    ATTN_INIT(attn_space_needed_t, need);
    attn_error_t error = ERROR_INIT;
    if (attn_group_space_needed(group, &need, &error) != ATTN_OK) bail_out("space: %s", error.text);
    uint64_t meta = (need.metadata_bytes + 63) / 64 * 64, work = (need.workspace_bytes + 63) / 64 * 64;
    b.memory = aligned_alloc(64, meta + work + (need.host_bytes + 63) / 64 * 64 + 64);
    if (b.memory == NULL) bail_out("no memory");
    memset(b.memory, 0, meta + work + need.host_bytes);
    b.space.metadata = b.memory;
    b.space.metadata_bytes = need.metadata_bytes;
    b.space.workspace = b.memory + meta;
    b.space.workspace_bytes = need.workspace_bytes;
    b.space.host = b.memory + meta + work;
    b.space.host_bytes = need.host_bytes;
    return b;
}

TAP_UNUSED static struct fake_log *fake_log_of(attn_group_t *group) {
    return (struct fake_log *)(uintptr_t)attn_group_get_extension(group, FAKE_LOG);
}

/* Opens or bails out. */
TAP_UNUSED static attn_group_t *open_group(attn_context_t *context, const attn_problem_t *p,
                                           const char *backend) {
    attn_group_t *group = NULL;
    attn_error_t error = ERROR_INIT;
    attn_device_t d = cpu();
    if (attn_group_open(context, p, &d, backend, &group, NULL, &error) != ATTN_OK)
        bail_out("open %s: %s: %s", backend, error.param, error.text);
    return group;
}

#endif
