/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hooks_on_device DEVICE BACKEND [SHADOW]: the hooks over tensors of a device, for each role that the backend
 * has, dense and latent: nothing is found where nothing is wrong, and what the plugin planted.c spoils, or
 * the engine gives wrong, is found by name. SHADOW is a second backend of that device; the other shadow is
 * REFERENCE, on the processor. $HOOKS_ATTN replays what was recorded into $HOOKS_FOLDER. Without arguments:
 * all of that for every CUDA plugin on cuda:0.
 */
#include "../tap.h"
#include "device_blocks.h"

#include <unistd.h>

enum { HQ = 8, HKV = 2, D = 64, BS = 16, REQS = 3, PAGES = 40, COLUMNS = 5, ROWS = 64, TOPK = 128 };
enum { LATENT = 512, ROPE = 64, MAX_OUT = LATENT };

static const int32_t context_lens[REQS] = {33, 0, 15}, new_lens[REQS] = {1, 20, 3};

typedef struct family {
    const char *name;
    uint32_t role, kv;
    int is_absorbed; /* the latent form: the caller projects */
} family_t;

/* -------------------------------------------------------------------- the log */

static char logged[65536];

static void take_log(void *ctx, uint32_t level, const char *text) {
    const size_t used = strlen(logged);
    (void)ctx;
    snprintf(logged + used, sizeof logged - used, "%u %s\n", (unsigned)level, text);
}

static int count_of(const char *part) {
    int n = 0;
    for (const char *p = logged; (p = strstr(p, part)) != NULL; p++)
        n++;
    return n;
}

static attn_context_t *open_context(const char *ini) {
    attn_context_t *context = NULL;
    attn_context_options_t o = {
        .struct_size = sizeof o, .config_text = ini, .log = take_log, .log_level = ATTN_LOG_INFO};
    logged[0] = '\0';
    if (attn_context_create(&o, &context, &error) != ATTN_OK) bail_out("%s", error.text);
    return context;
}

/* -------------------------------------------------------------------- a layer */

/* One layer with its cache and two steps of a batch; tensors lie on the device, their numbers here too. */
typedef struct world {
    attn_device_t device;
    const family_t *family;
    attn_group_t *group;
    attn_layer_t *layer;
    attn_space_t space;
    box_t boxes[14];
    attn_batch_t batch;
    attn_kv_update_t update;
    attn_forward_t forward;
    int32_t *table, *starts, *lens, *topk;
    int64_t *slots;
    uint16_t *q, *k, *v, *output;
    int64_t query_size, output_size, key_size, value_size, kv_heads;
    int32_t tokens;
} world_t;

static attn_problem_t problem_of(const family_t *f) {
    ATTN_INIT(attn_problem_t, p);
    p.role = f->role, p.mask = ATTN_MASK_CAUSAL, p.dtype = ATTN_DTYPE_FLOAT16, p.kv_cache_dtype = f->kv;
    p.num_heads = HQ, p.block_size = BS, p.scale = 0.3;
    p.max_num_seqs = 8, p.max_num_batched_tokens = ROWS, p.max_model_len = 80, p.num_blocks = PAGES;
    if (f->role == ATTN_ROLE_DECODER) {
        p.num_kv_heads = HKV, p.head_size = D;
        return p;
    }
    p.head_size = LATENT + ROPE, p.kv_lora_rank = LATENT, p.qk_rope_head_dim = ROPE;
    if (f->is_absorbed)
        p.features = ATTN_F_LATENT;
    else
        p.qk_nope_head_dim = p.v_head_dim = D;
    if (f->role == ATTN_ROLE_MLA_SPARSE) p.topk = TOPK;
    return p;
}

static void prepare(world_t *w, uint64_t bytes) {
    enum { WEIGHTS = HQ * 2 * D * LATENT };
    const attn_device_t *device = &w->device;
    box_t box;
    uint16_t *weights = alloc(WEIGHTS * 2);
    fill(weights, WEIGHTS, 11);
    for (int i = 0; i < WEIGHTS; i++) /* a sixteenth: latents are long */
        weights[i] = (weights[i] & 0x7fff) >= 5 << 10 ? (uint16_t)(weights[i] - (4 << 10)) : 0;
    ATTN_INIT(attn_weights_t, a);
    a.kv_b_proj = TENSOR(&box, weights, ATTN_DTYPE_FLOAT16, 2, HQ * 2 * D, LATENT);
    a.weight_space = on(device, alloc(bytes)), a.weight_space_bytes = bytes;
    if (attn_layer_prepare_weights(w->layer, &a, NULL, &error) != ATTN_OK) bail_out("%s", error.text);
    memset(weights, 0xff, WEIGHTS * 2); /* the engine may free them */
    TENSOR(&box, weights, ATTN_DTYPE_FLOAT16, 2, HQ * 2 * D, LATENT);
}

static void set_step(world_t *w, int step) {
    const attn_device_t *device = &w->device;
    const int is_latent = w->family->role != ATTN_ROLE_DECODER;
    w->tokens = 0;
    for (int r = 0; r < REQS; r++) {
        const int32_t n = step == 0 ? context_lens[r] : new_lens[r];
        for (int32_t i = 0; i < n; i++) {
            const int32_t at = (step == 0 ? 0 : context_lens[r]) + i;
            w->slots[w->tokens + i] = (int64_t)w->table[r * COLUMNS + at / BS] * BS + at % BS;
            for (int32_t j = 0; j < TOPK; j++) /* every other key */
                w->topk[(w->tokens + i) * TOPK + j] = 2 * j <= at ? at - 2 * j : -1;
        }
        w->starts[r + 1] = w->tokens += n;
        w->lens[r] = n + (step == 0 ? 0 : context_lens[r]);
    }
    fill(w->q, (size_t)(w->tokens * HQ * w->query_size), 1 + (uint64_t)step);
    fill(w->k, (size_t)(w->tokens * w->kv_heads * w->key_size), 3 + (uint64_t)step);
    fill(w->v, (size_t)(w->tokens * w->kv_heads * w->value_size), 5 + (uint64_t)step);
    box_t *b = w->boxes;
    const int64_t n = w->tokens;
    w->batch.num_reqs = REQS, w->batch.num_actual_tokens = w->tokens;
    w->batch.query_start_loc = TENSOR(&b[0], w->starts, ATTN_DTYPE_INT32, 1, REQS + 1);
    w->batch.seq_lens = TENSOR(&b[1], w->lens, ATTN_DTYPE_INT32, 1, REQS);
    w->batch.block_table = TENSOR(&b[2], w->table, ATTN_DTYPE_INT32, 2, REQS, COLUMNS);
    w->batch.slot_mapping = w->update.slot_mapping = TENSOR(&b[3], w->slots, ATTN_DTYPE_INT64, 1, n);
    w->update.key = is_latent ? TENSOR(&b[4], w->k, ATTN_DTYPE_FLOAT16, 2, n, LATENT)
                              : TENSOR(&b[4], w->k, ATTN_DTYPE_FLOAT16, 3, n, HKV, D);
    w->update.value = TENSOR(&b[5], w->v, ATTN_DTYPE_FLOAT16, 3, n, w->kv_heads, w->value_size);
    w->forward.query = TENSOR(&b[6], w->q, ATTN_DTYPE_FLOAT16, 3, n, HQ, w->query_size);
    w->forward.output = TENSOR(&b[7], w->output, ATTN_DTYPE_FLOAT16, 3, ROWS, HQ, w->output_size);
    if (w->family->role == ATTN_ROLE_MLA_SPARSE)
        w->forward.topk_indices = TENSOR(&b[8], w->topk, ATTN_DTYPE_INT32, 2, n, TOPK);
}

static int build(world_t *w) {
    error.param[0] = error.text[0] = '\0';
    return attn_group_build_metadata(w->group, &w->batch, &w->space, NULL, &error);
}
static int update(world_t *w) {
    error.param[0] = error.text[0] = '\0';
    return attn_layer_update_kv_cache(w->layer, &w->update, NULL, &error);
}
static int forward(world_t *w, void *stream) {
    error.param[0] = error.text[0] = '\0';
    return attn_layer_forward(w->layer, &w->forward, &w->space, stream, &error);
}
static int step(world_t *w, int number) {
    set_step(w, number);
    int code = build(w);
    if (code == ATTN_OK) code = update(w);
    if (code == ATTN_OK) code = forward(w, NULL);
    return code;
}

/* 0: the backend does not serve it. */
static int open_world(world_t *w, attn_context_t *context, const attn_device_t *where, const char *backend,
                      const family_t *family) {
    memset(w, 0, sizeof *w);
    num_blocks = 0; /* the blocks of the last one are the process's to free */
    const attn_device_t *device = &w->device;
    const int is_latent = family->role != ATTN_ROLE_DECODER;
    attn_problem_t p = problem_of(family);
    w->device = *where;
    w->family = family;
    if (attn_group_open(context, &p, device, backend, &w->group, NULL, &error) != ATTN_OK) return 0;
    w->key_size = is_latent ? LATENT : D, w->value_size = is_latent ? ROPE : D;
    w->query_size = family->is_absorbed ? LATENT + ROPE : is_latent ? D + ROPE : D;
    w->output_size = family->is_absorbed ? LATENT : D, w->kv_heads = is_latent ? 1 : HKV;
    ATTN_INIT(attn_kv_cache_shape_t, shape);
    ATTN_INIT(attn_space_needed_t, need);
    if (attn_layer_create(w->group, "layers.7.attn", NULL, &w->layer, &error) != ATTN_OK ||
        attn_group_kv_cache_shape(w->group, PAGES, &shape, &error) != ATTN_OK ||
        attn_group_space_needed(w->group, &need, &error) != ATTN_OK)
        bail_out("%s", error.text);
    if (is_latent && !family->is_absorbed) prepare(w, need.weight_bytes);
    ATTN_INIT(attn_space_t, space);
    space.metadata = on(device, alloc(need.metadata_bytes)), space.metadata_bytes = need.metadata_bytes;
    space.workspace = on(device, alloc(need.workspace_bytes)), space.workspace_bytes = need.workspace_bytes;
    space.host = alloc(need.host_bytes), space.host_bytes = need.host_bytes;
    w->space = space;
    w->forward.kv_cache = w->update.kv_cache =
        tensor(&w->boxes[9], device, alloc((size_t)shape.total_bytes), attn_dtype_of(shape.dtype),
               (int)shape.ndim, shape.shape, shape.byte_strides);
    w->batch.struct_size = sizeof w->batch, w->update.struct_size = sizeof w->update;
    w->forward.struct_size = sizeof w->forward;
    w->table = alloc(REQS * COLUMNS * 4), w->starts = alloc((REQS + 1) * 4), w->lens = alloc(REQS * 4);
    w->topk = alloc(ROWS * TOPK * 4), w->slots = alloc(ROWS * 8);
    w->q = alloc((size_t)(ROWS * HQ * w->query_size * 2));
    w->k = alloc((size_t)(ROWS * w->kv_heads * w->key_size * 2));
    w->v = alloc((size_t)(ROWS * w->kv_heads * w->value_size * 2));
    w->output = alloc(ROWS * HQ * MAX_OUT * 2);
    w->batch.query_start_loc_host = w->starts, w->batch.seq_lens_host = w->lens;
    for (int i = 0; i < REQS * COLUMNS; i++)
        w->table[i] = 3 + (i * 8) % (PAGES - 3); /* no two the same */
    return 1;
}

static void close_world(world_t *w) {
    if (kind->synchronize(0, &error) != ATTN_OK) bail_out("%s", error.text);
    attn_layer_destroy(w->layer);
    attn_group_close(w->group);
    for (size_t i = 0; i < num_blocks; i++) {
        kind->free(0, blocks[i].there);
        free(blocks[i].host);
    }
    num_blocks = 0;
}

/* -------------------------------------------------------------------- hooks */

static void planted(const char *what) {
    setenv("PLANTED", what, 1);
}

static void caught(int code, int want, const char *param, const char *what) {
    if (!ok(code == want && strcmp(error.param, param) == 0 && strstr(error.text, "[hook check]") != NULL,
            "%s", what))
        diag("code %d, param '%s', text '%s'", code, error.param, error.text);
}

static void test_check(const attn_device_t *device, const char *backend, const family_t *family) {
    const int is_latent = family->role != ATTN_ROLE_DECODER;
    attn_context_t *context = open_context("[hook check]\nlevel = all\n");
    world_t w;
    planted("");
    if (!open_world(&w, context, device, backend, family)) bail_out("%s", error.text);
    is_int(step(&w, 0) || step(&w, 1), ATTN_OK, "%s, %s: two checked steps: %s", backend, family->name,
           error.text);
    ok(strstr(logged, "2 [hook check]") == NULL, "of which the log says nothing");
    w.slots[3] = w.slots[2];
    TENSOR(&w.boxes[3], w.slots, ATTN_DTYPE_INT64, 1, w.tokens);
    caught(update(&w), ATTN_E_INVALID, "slot_mapping", "a slot twice");
    set_step(&w, 1);
    w.lens[1]++;
    TENSOR(&w.boxes[1], w.lens, ATTN_DTYPE_INT32, 1, REQS);
    w.lens[1]--;
    caught(build(&w), ATTN_E_INVALID, "seq_lens", "lengths on the device that disagree");
    set_step(&w, 1);
    is_int(build(&w), ATTN_OK, "the batch again");
    w.q[5] = 0x7e00;
    TENSOR(&w.boxes[6], w.q, ATTN_DTYPE_FLOAT16, 3, w.tokens, HQ, w.query_size);
    caught(forward(&w, NULL), ATTN_E_INVALID, "query", "NaN in the query");
    w.v[9] = 0x7c00;
    TENSOR(&w.boxes[5], w.v, ATTN_DTYPE_FLOAT16, 3, w.tokens, w.kv_heads, w.value_size);
    caught(update(&w), ATTN_E_INVALID, "value", is_latent ? "infinity in k_pe" : "infinity in the value");
    set_step(&w, 1);
    if (family->role == ATTN_ROLE_MLA_SPARSE) {
        w.topk[TOPK + 1] = 34;
        TENSOR(&w.boxes[8], w.topk, ATTN_DTYPE_INT32, 2, w.tokens, TOPK);
        caught(forward(&w, NULL), ATTN_E_INVALID, "topk_indices", "a selected token that does not exist");
        set_step(&w, 1);
    }
    planted("nan");
    caught(forward(&w, NULL), ATTN_E_INTERNAL, "output", "NaN that the backend puts into its output");
    planted("behind");
    if (w.space.workspace_bytes > 128) /* else there is none */
        caught(forward(&w, NULL), ATTN_E_INTERNAL, "workspace", "bytes behind its workspace");
    planted("");
    is_int(step(&w, 1), ATTN_OK, "and a step in which all is well: %s", error.text);
    close_world(&w);
    attn_context_destroy(context);
}

static void test_shadow(const attn_device_t *device, const char *backend, const char *shadow,
                        const family_t *family) {
    char ini[200], part[300];
    snprintf(ini, sizeof ini, "[hook shadow]\nbackend = %s\nsample = 1\n", shadow);
    attn_context_t *context = open_context(ini);
    world_t w;
    planted("");
    if (!open_world(&w, context, device, backend, family)) bail_out("%s", error.text);
    is_int(step(&w, 0) || step(&w, 1), ATTN_OK, "%s beside %s, %s: two steps: %s", shadow, backend,
           family->name, error.text);
    if (!is_int(count_of("2 [hook shadow]"), 0, "without a warning")) diag("%s", logged);
    planted("value");
    is_int(step(&w, 1), ATTN_OK, "a wrong output is the engine's all the same");
    planted("");
    snprintf(part, sizeof part,
             "2 [hook shadow] layer 'layers.7.attn', call 3: outputs of %s and %s differ by", backend,
             shadow);
    has_str(logged, part, "but is found, with the name of its layer");
    close_world(&w);
    has_str(logged, "3 of 3 calls compared", "every call was compared");
    const char *summary = strstr(logged, "calls compared");
    if (summary != NULL) diag("%s", summary);
    attn_context_destroy(context);
}

static void test_record(const attn_device_t *device, const char *backend, const family_t *family) {
    static int number;
    char ini[600], file[400], command[1200];
    const char *attn = getenv("HOOKS_ATTN"), *folder = getenv("HOOKS_FOLDER");
    if (attn == NULL || folder == NULL) bail_out("HOOKS_ATTN and HOOKS_FOLDER are not set");
    snprintf(file, sizeof file, "%s/hooks-%d.safetensors", folder, number++);
    snprintf(ini, sizeof ini, "[hook record]\nfile = %s\nfirst = 1\ncalls = 2\ntensors = yes\n", file);
    attn_context_t *context = open_context(ini);
    world_t w;
    planted("");
    if (!open_world(&w, context, device, backend, family)) bail_out("%s", error.text);
    int code = step(&w, 0);
    planted("");
    if (code == ATTN_OK) code = step(&w, 1);
    planted("value");
    if (code == ATTN_OK) code = step(&w, 1);
    planted("");
    is_int(code, ATTN_OK, "%s, %s: two recorded calls, the second with a wrong output: %s", backend,
           family->name, error.text);
    if (!is_int(count_of("2 [hook record]"), 0, "their tensors too")) diag("%s", logged);
    close_world(&w);
    attn_context_destroy(context);
    char line[512];
    int all = 0, odd = 0;
    snprintf(command, sizeof command, "'%s' run --replay '%s' --backend REFERENCE --device cpu 2>&1", attn,
             file);
    FILE *f = popen(command, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        all += strstr(line, "all agree") != NULL;
        odd += strstr(line, "the recorded output differs; the replay agrees") != NULL;
        if (strstr(line, "call") == NULL && strstr(line, "agree") == NULL && all + odd < 2) diag("%s", line);
    }
    if (f != NULL) pclose(f);
    is_int(all, 1, "REFERENCE computes the first one's output from the file");
    is_int(odd, 1, "and says that the second one's is wrong");
    unlink(file);
}

/* While a stream is captured nothing is read: the hooks say so once, and the graph is the backend's. */
static void test_capture(const attn_device_t *device, const char *backend, const family_t *family) {
    char ini[700];
    snprintf(ini, sizeof ini,
             "[hook check]\nlevel = all\n[hook shadow]\nbackend = REFERENCE\nsample = 1\n"
             "[hook record]\nfile = %s/captured.safetensors\ncalls = 9\ntensors = yes\n",
             getenv("HOOKS_FOLDER"));
    attn_context_t *context = open_context(ini);
    world_t w;
    void *stream = NULL, *graph = NULL;
    uint16_t *want = malloc(ROWS * HQ * MAX_OUT * 2);
    planted("");
    if (want == NULL || kind->stream_create == NULL || kind->capture_begin == NULL) bail_out("no streams");
    if (!open_world(&w, context, device, backend, family)) bail_out("%s", error.text);
    is_int(step(&w, 0) || step(&w, 1), ATTN_OK, "%s, %s: steps with all hooks: %s", backend, family->name,
           error.text);
    fetch(device, w.output);
    const size_t bytes = (size_t)(w.tokens * HQ * w.output_size * 2);
    memcpy(want, w.output, bytes);
    if (kind->synchronize(0, &error) != ATTN_OK || kind->stream_create(0, &stream, &error) != ATTN_OK)
        bail_out("%s", error.text);
    for (uint32_t is_strict = 0; is_strict < 2; is_strict++) {
        memset(w.output, 0, bytes);
        TENSOR(&w.boxes[7], w.output, ATTN_DTYPE_FLOAT16, 3, ROWS, HQ, w.output_size);
        int code = kind->capture_begin(0, stream, is_strict, &error);
        if (code == ATTN_OK) code = forward(&w, stream);
        if (code == ATTN_OK) code = forward(&w, stream);
        const int ended = kind->capture_end(0, stream, &graph, &error);
        is_int(code != ATTN_OK ? code : ended, ATTN_OK, "two forwards are captured%s: %s",
               is_strict ? " strictly" : "", error.text);
        code = graph != NULL ? kind->graph_launch(0, graph, stream, &error) : ATTN_E_STATE;
        if (kind->synchronize(0, &error) != ATTN_OK) bail_out("%s", error.text);
        fetch(device, w.output);
        ok(code == ATTN_OK && memcmp(w.output, want, bytes) == 0, "and replayed, with the same bits");
        if (graph != NULL) kind->graph_destroy(0, graph);
        graph = NULL;
    }
    is_int(count_of("2 [hook check] layer 'layers.7.attn' of"), 1, "check says once that it could not look");
    is_int(count_of("2 [hook shadow] layer 'layers.7.attn' of"), 1, "and shadow");
    is_int(count_of("2 [hook record] layer 'layers.7.attn' of"), 1, "and record");
    is_int(count_of("the stream is capturing a graph, from which nothing can be read back"), 3, "each why");
    is_int(forward(&w, NULL), ATTN_OK, "afterwards they look again: %s", error.text);
    kind->stream_destroy(0, stream);
    close_world(&w);
    has_str(logged, "3 of 7 calls compared", "and compare");
    if (strstr(logged, "3 of 7 calls") == NULL) diag("%s", logged);
    attn_context_destroy(context);
    free(want);
}

/* ---------------------------------------------------------------------- on a GPU */

/* This program again, with the backends of one plugin spoiled; 0: all of it passed. */
static int run_again(const char *self, const char *folder, const char *target, const char *others,
                     const char *backends) {
    const char *build = getenv("ATTN_TEST_BUILDDIR"), *plugins = getenv("ATTN_TEST_PLUGIN_DIR");
    char command[4096], line[1024];
    int status = -1;
    snprintf(
        command, sizeof command,
        "printf '[attn]\\nplugin_dir = %s\\nplugins = %s\\n[plugin planted]\\npath = %s/tests/layer/.libs/"
        "planted.so\\nrequired = yes\\n' >'%s/planted.ini'; { PLANTED_TARGET='%s/%s.so' "
        "HOOKS_ATTN='%s/tools/attn' HOOKS_FOLDER='%s' ATTN_CONFIG='%s/planted.ini' '%s' cuda:0 %s; "
        "echo status $?; } | sed 's/^/# /'",
        plugins, others, build, folder, plugins, target, build, folder, folder, self, backends);
    FILE *f = popen(command, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        sscanf(line, "# status %d", &status);
        printf("%s", line);
    }
    if (f != NULL) pclose(f);
    return status;
}

static int test_gpu(const char *self) {
    static const struct {
        const char *target, *others, *backends;
    } runs[] = {{"mla", "reference", "FLASHMLA"},
                {"mla_sparse", "reference", "FLASHMLA_SPARSE"},
                {"flash", "triton_like, reference", "FLASH_ATTN TRITON_ATTN"},
                {"triton_like", "flash, reference", "TRITON_ATTN FLASH_ATTN"}};
    char folder[] = "/tmp/attn-hooks-XXXXXX", command[100];
    attn_device_t device = {.struct_size = sizeof device};
    if (attn_device_parse("cuda:0", &device, &error) != ATTN_OK) skip_all("%s", error.text);
    if (getenv("ATTN_TEST_BUILDDIR") == NULL || getenv("ATTN_TEST_PLUGIN_DIR") == NULL ||
        mkdtemp(folder) == NULL)
        bail_out("ATTN_TEST_BUILDDIR, ATTN_TEST_PLUGIN_DIR or a folder is missing");
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        is_int(run_again(self, folder, runs[i].target, runs[i].others, runs[i].backends), 0,
               "the hooks over %s", runs[i].backends);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0) diag("%s remains", folder);
    return tap_done();
}

int main(int argc, char **argv) {
    static const family_t families[] = {{"dense", ATTN_ROLE_DECODER, ATTN_KV_AUTO, 0},
                                        {"dense, fp8 cache", ATTN_ROLE_DECODER, ATTN_KV_FP8_E4M3, 0},
                                        {"mla", ATTN_ROLE_MLA, ATTN_KV_AUTO, 0},
                                        {"mla, fp8 cache", ATTN_ROLE_MLA, ATTN_KV_FP8_E4M3, 0},
                                        {"mla, latent form", ATTN_ROLE_MLA, ATTN_KV_AUTO, 1},
                                        {"mla_sparse", ATTN_ROLE_MLA_SPARSE, ATTN_KV_AUTO, 0},
                                        {"mla_sparse, fp8 cache", ATTN_ROLE_MLA_SPARSE, ATTN_KV_FP8_E4M3, 0},
                                        {"mla_sparse, latent form", ATTN_ROLE_MLA_SPARSE, ATTN_KV_AUTO, 1}};
    attn_device_t device = {.struct_size = sizeof device};
    int served = 0;
    if (argc == 1) return test_gpu(argv[0]);
    if (argc < 3) bail_out("hooks_on_device DEVICE BACKEND [SHADOW]");
    attn_context_t *context = open_context("");
    if (attn_device_parse(argv[1], &device, &error) != ATTN_OK) bail_out("%s", error.text);
    kind = attn_device_kind(device.type);
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        world_t w;
        if (!open_world(&w, context, &device, argv[2], &families[i])) {
            diag("%s: %s", families[i].name, error.text);
            continue;
        }
        close_world(&w);
        served++;
        test_check(&device, argv[2], &families[i]);
        test_shadow(&device, argv[2], "REFERENCE", &families[i]);
        if (argc > 3) test_shadow(&device, argv[2], argv[3], &families[i]);
        test_record(&device, argv[2], &families[i]);
        test_capture(&device, argv[2], &families[i]);
    }
    ok(served > 0, "%s serves %d families", argv[2], served);
    attn_context_destroy(context);
    return tap_done();
}
