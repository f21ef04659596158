/* SPDX-License-Identifier: Apache-2.0 */
/* Opening groups: defaults, options, refusals before and inside the plugin, spaces, metadata, processes. */
#include "layer_testing.h"

#include <malloc.h>
#include <sys/wait.h>

static attn_error_t error = {.struct_size = sizeof error};

static int try_open(attn_context_t *context, const attn_problem_t *p, const attn_device_t *d,
                    const char *backend) {
    attn_group_t *g = NULL;
    error.param[0] = error.text[0] = '\0';
    int code = attn_group_open(context, p, d, backend, &g, NULL, &error);
    if (code == ATTN_OK) attn_group_close(g);
    return code;
}

static void test_defaults(attn_context_t *context) {
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.num_kv_heads = p.block_size = p.max_num_seqs = p.max_num_batched_tokens = 0;
    p.max_model_len = 0;
    p.features = ATTN_F_MM_PREFIX;
    attn_selection_t *selection = NULL;
    attn_group_t *g = NULL;
    attn_device_t d = cpu();
    is_int(attn_group_open(context, &p, &d, "fake_plain", &g, &selection, &error), ATTN_OK,
           "open by name in any case");
    is_str(attn_group_backend(g)->name, "FAKE_PLAIN", "backend");
    ok(selection != NULL && selection->backend == attn_group_backend(g), "the record of the selection");
    attn_selection_free(selection);
    const attn_problem_t *q = attn_group_problem(g);
    ok(q->num_kv_heads == 2 && q->head_size_v == 8 && q->block_size == 4 &&
           q->kv_cache_dtype == ATTN_KV_AUTO && q->out_dtype == ATTN_DTYPE_FLOAT32 &&
           q->query_dtype == ATTN_DTYPE_FLOAT32,
       "shape defaults");
    ok(q->max_num_seqs == 256 && q->max_num_batched_tokens == 8192 && q->max_model_len == 131072 &&
           q->max_mm_ranges == 8,
       "limits");
    is_int(q->kv_layout, ATTN_LAYOUT_NHD, "the layout that the backend chose");
    is_int(fake_log_of(g)->splits, 7, "its option as configured");
    is_int(fake_log_of(g)->problem.max_num_seqs, 256, "the backend sees the defaults");

    const attn_plan_table_t *plan = fake_log_of(g)->plan;
    ok(plan != NULL && plan->struct_size == sizeof *plan && plan->split == attn_plan_split &&
           plan->cp_local_len(10, 2, 1, 1) == 5,
       "the host gives plugins its planning functions");
    ok(fake_log_of(g)->unknown_extension == NULL, "and nothing that it does not have");
    has_str(logged, "3 fake opened", "a plugin's words reach the engine's log");
    ATTN_INIT(attn_kv_cache_shape_t, shape);
    is_int(attn_group_kv_cache_shape(g, 10, &shape, &error), ATTN_OK, "cache shape");
    ok(shape.ndim == 4 && shape.shape[0] == 10 && shape.page_bytes == 2 * 4 * 16 * 4, "of 10 blocks");
    is_int(attn_group_kv_cache_shape(g, 0, &shape, &error) || shape.shape[0] != 32, 0,
           "0: as the problem says");
    is_int(attn_group_kv_cache_shape(g, -1, &shape, &error), ATTN_E_INVALID, "-1 blocks");
    is_int(attn_group_kv_cache_shape(g, INT64_C(1) << 31, &shape, &error), ATTN_E_INVALID,
           "more blocks than int32");
    is_str(error.param, "num_blocks", "by name");
    is_int(attn_group_kv_cache_shape(g, 1, NULL, &error), ATTN_E_INVALID, "no output");
    struct {
        uint32_t size, ndim;
        uint64_t canary;
    } old = {8, 0, 42};
    is_int(attn_group_kv_cache_shape(g, 1, (attn_kv_cache_shape_t *)(void *)&old, &error), ATTN_OK,
           "an older, shorter struct");
    ok(old.ndim == 4 && old.canary == 42 && old.size == 8, "is not written beyond its size");
    ATTN_INIT(attn_kv_spec_t, spec);
    is_int(attn_group_kv_spec(g, &spec, &error) || spec.kind != ATTN_SPEC_FULL || spec.block_size != 4, 0,
           "cache spec");
    int64_t bytes = 0;
    is_int(attn_kv_spec_page_bytes(&spec, &bytes, &error) || bytes != shape.page_bytes, 0,
           "of the same page bytes");
    ATTN_INIT(attn_space_needed_t, need);
    is_int(attn_group_space_needed(g, &need, &error) || need.workspace_bytes != 64 || need.host_bytes != 0, 0,
           "space");
    is_int(attn_group_space_needed(g, NULL, &error), ATTN_E_INVALID, "no output");
    ok(attn_group_get_extension(g, "nothing") == NULL && attn_group_get_extension(g, NULL) == NULL,
       "no such extension");
    attn_group_close(g);
    attn_group_close(NULL);
    ok(attn_group_backend(NULL) == NULL && attn_group_problem(NULL) == NULL, "NULL groups have nothing");
}

static void test_refusals(attn_context_t *context) {
    attn_device_t d = cpu(), far, broken = cpu();
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER), q = p;
    attn_group_t *g = NULL;
    is_int(attn_group_open(NULL, &p, &d, "FAKE_PLAIN", &g, NULL, &error), ATTN_E_INVALID, "no context");
    is_int(attn_group_open(context, NULL, &d, "FAKE_PLAIN", &g, NULL, &error), ATTN_E_INVALID, "no problem");
    is_int(attn_group_open(context, &p, &d, "FAKE_PLAIN", NULL, NULL, &error), ATTN_E_INVALID, "no output");
    broken.struct_size = 1;
    is_int(try_open(context, &p, &broken, "FAKE_PLAIN"), ATTN_E_INVALID, "a device without struct_size");
    attn_device_parse("sm_90", &far, &error);
    ok(try_open(context, &p, &far, "FAKE_PLAIN") != ATTN_OK, "a CPU backend for a GPU");
    q.scale = 0;
    is_int(try_open(context, &q, &d, "FAKE_PLAIN"), ATTN_E_INVALID, "a problem without scale");
    is_str(error.param, "scale", "names it");
    attn_selection_t *selection = NULL;
    is_int(attn_group_open(context, &p, &d, "NO_SUCH", &g, &selection, &error), ATTN_E_NOT_FOUND,
           "an unknown backend");
    ok(selection != NULL, "with its record");
    attn_selection_free(selection);
    q = p;
    q.features = ATTN_F_ALIBI_SQRT;
    is_int(try_open(context, &q, &d, "FAKE_PLAIN"), ATTN_E_UNSUPPORTED, "a feature bit that the table lacks");
    q = p, q.block_size = 0, q.chunk_size = 6;
    is_int(try_open(context, &q, &d, "FAKE_PLAIN"), ATTN_E_INVALID,
           "chunks of 6 in blocks of the backend's choice");
    is_str(error.param, "chunk_size", "names chunk_size");
    struct {
        attn_problem_t p;
        uint64_t more;
    } newer = {p, 1};
    newer.p.struct_size = sizeof newer;
    is_int(try_open(context, &newer.p, &d, "FAKE_PLAIN"), ATTN_E_TOO_NEW, "a problem from the future");
    struct {
        attn_device_t d;
        uint64_t more;
    } described = {d, 1};
    described.d.struct_size = sizeof described;
    is_int(try_open(context, &p, &described.d, "FAKE_PLAIN"), ATTN_OK, "a device that says more is taken");
}

static void test_broken_backends(void) {
    static const struct {
        const char *mode;
        int code;
    } modes[] = {{"open_fails", ATTN_E_DEVICE},
                 {"no_instance", ATTN_E_INTERNAL},
                 {"bad_shape", ATTN_E_INTERNAL},
                 {"space_fails", ATTN_E_INTERNAL}};
    attn_device_t d = cpu();
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    for (size_t i = 0; i < 4; i++) {
        char ini[100];
        snprintf(ini, sizeof ini, "[option layer_fake]\nmode = %s\n", modes[i].mode);
        attn_context_t *context = fake_context(ini);
        is_int(try_open(context, &p, &d, "FAKE_PLAIN"), modes[i].code, "mode %s", modes[i].mode);
        attn_context_destroy(context);
    }
}

/* The fp8 cache of sparse MLA, kept plain or as fp8_ds_mla (semantics 5.7): the spec has the pages that the
 * backend has. */
static void test_sparse_fp8(void) {
    static const uint32_t kept[] = {ATTN_KV_FP8_E4M3, ATTN_KV_FP8_DS_MLA};
    for (int i = 0; i < 2; i++) {
        attn_context_t *context = fake_context(i ? "[option layer_fake]\nmode = ds_mla\n" : "");
        attn_problem_t p = small_problem(ATTN_ROLE_MLA_SPARSE);
        p.dtype = ATTN_DTYPE_BFLOAT16, p.kv_cache_dtype = ATTN_KV_FP8_E4M3;
        p.kv_lora_rank = 512, p.qk_rope_head_dim = 64, p.head_size = 576;
        attn_group_t *g = open_group(context, &p, "FAKE_PLAIN");
        ATTN_INIT(attn_kv_cache_shape_t, shape);
        ATTN_INIT(attn_kv_spec_t, spec);
        int64_t bytes = 0;
        is_str(attn_kv_name(attn_group_problem(g)->kv_cache_dtype), attn_kv_name(kept[i]), "cache dtype");
        is_int(fake_log_of(g)->problem.kv_cache_dtype, ATTN_KV_FP8_E4M3, "the backend saw fp8");
        attn_group_kv_cache_shape(g, 10, &shape, &error);
        is_int(attn_group_kv_spec(g, &spec, &error) || attn_kv_spec_page_bytes(&spec, &bytes, &error), 0,
               "spec");
        is_int(bytes, shape.page_bytes, "with the backend's pages of %lld bytes",
               (long long)shape.page_bytes);
        attn_group_close(g);
        attn_context_destroy(context);
    }
}

static void test_metadata(attn_context_t *context) {
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_group_t *g = open_group(context, &p, "FAKE_PLAIN"), *bare = open_group(context, &p, "FAKE_BARE");
    struct buffers buf = alloc_buffers(g);
    int32_t starts[] = {0, 2}, lens[] = {5}, table[1][2] = {{3, 4}};
    struct tensor t;
    ATTN_INIT(attn_batch_t, b);
    b.num_reqs = 1, b.num_actual_tokens = 2, b.query_start_loc_host = starts, b.seq_lens_host = lens;
    b.block_table = tensor(&t, table, ATTN_DTYPE_INT32, 2, 1, 2, 0, 0);
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_OK, "build");
    is_int(fake_log_of(g)->builds, 1, "reaches the backend");
    table[0][1] = 9;
    is_int(attn_group_update_block_table(g, &b, &buf.space, NULL, &error), ATTN_OK, "update of the table");
    ok(fake_log_of(g)->table_updates == 1 && fake_log_of(g)->builds == 1 && fake_log_of(g)->table[1] == 9,
       "takes the short way");
    is_int(attn_group_update_block_table(bare, &b, &buf.space, NULL, &error), ATTN_OK, "without one");
    is_int(fake_log_of(bare)->builds, 1, "the metadata is built anew");
    table[0][1] = 32;
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_E_INVALID, "a block outside");
    is_int(attn_group_update_block_table(g, &b, &buf.space, NULL, &error), ATTN_E_INVALID,
           "in the update, too");
    is_int(fake_log_of(g)->builds, 1, "never reaches the backend");
    table[0][1] = 4;
    t.t.device.device_type = kDLCUDA;
    is_int(attn_group_build_metadata(g, &b, &buf.space, NULL, &error), ATTN_E_INVALID, "a table on a GPU");
    is_str(error.param, "block_table", "by name");
    t.t.device.device_type = kDLCPU;
    is_int(attn_group_build_metadata(g, &b, NULL, NULL, &error), ATTN_E_INVALID, "no space");
    is_int(attn_group_build_metadata(g, NULL, &buf.space, NULL, &error), ATTN_E_INVALID, "no batch");
    is_int(attn_group_build_metadata(NULL, &b, &buf.space, NULL, &error), ATTN_E_INVALID, "no group");
    attn_space_t s = buf.space;
    s.metadata_bytes--;
    is_int(attn_group_build_metadata(g, &b, &s, NULL, &error), ATTN_E_SPACE, "a byte too few");
    is_str(error.param, "metadata", "of metadata");
    s = buf.space, s.workspace = NULL;
    is_int(attn_group_build_metadata(g, &b, &s, NULL, &error), ATTN_E_SPACE, "no workspace");
    has_str(error.text, "has 0 bytes; this group needs 64", "says both numbers");
    s = buf.space, s.metadata = (char *)s.metadata + 4;
    is_int(attn_group_build_metadata(g, &b, &s, NULL, &error), ATTN_E_INVALID, "not aligned");
    has_str(error.text, "this group needs a multiple of 64", "says of what");
    attn_group_close(g);
    attn_group_close(bare);
    free(buf.memory);
}

/* Objects of the parent are refused in a child and can be dropped there without harm, in any order. */
static void test_fork(attn_context_t *context, int context_first) {
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_group_t *g = open_group(context, &p, "FAKE_PLAIN"), *other = NULL;
    attn_layer_t *layer = NULL, *second = NULL;
    attn_layer_create(g, "layers.0.attn", NULL, &layer, &error);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        ATTN_INIT(attn_space_needed_t, need);
        ATTN_INIT(attn_forward_t, a);
        ATTN_INIT(attn_kv_update_t, u);
        ATTN_INIT(attn_weights_t, w);
        attn_device_t d = cpu();
        int bad = attn_group_open(context, &p, &d, "FAKE_PLAIN", &other, NULL, &error) != ATTN_E_FORKED;
        bad += attn_group_space_needed(g, &need, &error) != ATTN_E_FORKED;
        bad += attn_layer_create(g, "layers.1.attn", NULL, &second, &error) != ATTN_E_FORKED;
        bad += attn_layer_forward(layer, &a, NULL, NULL, &error) != ATTN_E_FORKED;
        bad += attn_layer_update_kv_cache(layer, &u, NULL, &error) != ATTN_E_FORKED;
        bad += attn_layer_prepare_weights(layer, &w, NULL, &error) != ATTN_E_FORKED;
        bad += attn_context_find_layer(context, "layers.0.attn") != NULL;
        bad += attn_group_get_extension(g, FAKE_LOG) != NULL;
        if (context_first) attn_context_destroy(context);
        attn_layer_destroy(layer);
        attn_group_close(g);
        _exit(bad);
    }
    int status = -1;
    waitpid(child, &status, 0);
    ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child gets ATTN_E_FORKED everywhere%s",
       context_first ? " after it destroyed the context" : "");
    ok(attn_context_find_layer(context, "layers.0.attn") == layer, "the parent goes on");
    logged[0] = '\0';
    attn_group_close(g);
    has_str(logged, "1 layers still exist", "a group with layers is not closed");
    attn_layer_destroy(layer);
    logged[0] = '\0';
    attn_context_destroy(context);
    has_str(logged, "1 attn_context_destroy: 1 groups are still open",
            "nor is a context with groups destroyed");
    is_int(attn_group_space_needed(g, &(attn_space_needed_t){.struct_size = sizeof(attn_space_needed_t)},
                                   &error),
           ATTN_OK, "they go on");
    attn_group_close(g);
}

int main(void) {
    mallopt(M_MMAP_THRESHOLD, 0); /* every block is a mapping, so that the use of a freed one is a signal */
    attn_context_t *context = fake_context("[option layer_fake]\nsplits = 7\n");
    test_defaults(context);
    test_refusals(context);
    test_broken_backends();
    test_sparse_fp8();
    test_metadata(context);
    test_fork(context, 0);
    test_fork(context, 1);
    attn_context_destroy(context);
    remove_fake();
    return tap_done();
}
