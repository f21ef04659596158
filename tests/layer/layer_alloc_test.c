/* SPDX-License-Identifier: Apache-2.0 */
/* After opening, the core allocates nothing: every allocation of the process is counted while steps run, with
 * each kind of rewriting. And whichever allocation of an opening fails, the call says so and leaves nothing
 * behind. The functions that count and fail stand before the C library's. */
#include "layer_testing.h"

#include <errno.h>
#include <stdatomic.h>

static atomic_int counting, counted, fail_in, live; /* fail_in: allocations until one fails; 0: none does */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define CANNOT_COUNT 1 /* the sanitizers' own functions stand there */
#else
#define CANNOT_COUNT 0
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t alignment, size_t n);
extern void __libc_free(void *p);

/* 1: this one is to fail. */
static int note(void) {
    if (!atomic_load(&counting)) return 0;
    atomic_fetch_add(&counted, 1);
    if (atomic_load(&fail_in) > 0 && atomic_fetch_sub(&fail_in, 1) == 1) return 1;
    atomic_fetch_add(&live, 1);
    return 0;
}

void *malloc(size_t n) {
    return note() ? NULL : __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
    return note() ? NULL : __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
    if (p != NULL && atomic_load(&counting)) atomic_fetch_sub(&live, 1);
    return note() ? NULL : __libc_realloc(p, n);
}
void free(void *p) {
    if (p != NULL && atomic_load(&counting)) atomic_fetch_sub(&live, 1);
    __libc_free(p);
}
void *aligned_alloc(size_t alignment, size_t n) {
    return note() ? NULL : __libc_memalign(alignment, n);
}
int posix_memalign(void **p, size_t alignment, size_t n) {
    *p = note() ? NULL : __libc_memalign(alignment, n);
    return *p != NULL ? 0 : ENOMEM;
}
#endif

enum { D = 8 };

static void run_family(attn_context_t *context, const attn_problem_t *p, const char *what) {
    attn_error_t error = ERROR_INIT;
    attn_group_t *g = open_group(context, p, "FAKE_PLAIN");
    attn_layer_t *layer = NULL;
    static float q[8 * 2 * D], k[8 * D], v[8 * D], out[8 * 2 * D], cache[32 * 4 * 2 * D], sink[4 * D];
    int32_t starts[] = {0, 5}, lens[] = {11}, encoder[] = {9}, table[] = {2, 3, 4, 5};
    int64_t slots[] = {14, 15, 16, 17, 18};
    struct tensor tq, tk, tv, tout, tcache, tslots, ttable, tsink;
    struct buffers buf = alloc_buffers(g);
    attn_layer_options_t o = {.struct_size = sizeof o};
    if (p->static_sink_len != 0)
        o.sink_key = o.sink_value = tensor(&tsink, sink, ATTN_DTYPE_FLOAT32, 3, 4, 1, D, 0);
    int bad = attn_layer_create(g, "alloc", &o, &layer, &error);
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = 1,
                      .num_actual_tokens = 5,
                      .query_start_loc_host = starts,
                      .seq_lens_host = lens,
                      .block_table = tensor(&ttable, table, ATTN_DTYPE_INT32, 2, 1, 4, 0, 0)};
    if (p->role == ATTN_ROLE_ENCODER_DECODER) b.encoder_seq_lens_host = encoder;
    attn_kv_update_t u = {.struct_size = sizeof u,
                          .key = tensor(&tk, k, ATTN_DTYPE_FLOAT32, 3, 8, 1, D, 0),
                          .value = tensor(&tv, v, ATTN_DTYPE_FLOAT32, 3, 8, 1, D, 0),
                          .kv_cache = tensor(&tcache, cache, ATTN_DTYPE_FLOAT32, 4, 32, 1, 4, 2 * D),
                          .slot_mapping = tensor(&tslots, slots, ATTN_DTYPE_INT64, 1, 5, 0, 0, 0)};
    attn_forward_t f = {.struct_size = sizeof f,
                        .query = tensor(&tq, q, ATTN_DTYPE_FLOAT32, 3, 8, 2, D, 0),
                        .output = tensor(&tout, out, ATTN_DTYPE_FLOAT32, 3, 8, 2, D, 0),
                        .kv_cache = &tcache.t};
    atomic_store(&counted, 0);
    atomic_store(&counting, 1);
    for (int step = 0; step < 100; step++) {
        bad += attn_group_build_metadata(g, &b, &buf.space, NULL, &error);
        bad += attn_layer_update_kv_cache(layer, &u, NULL, &error);
        bad += attn_layer_forward(layer, &f, &buf.space, NULL, &error);
        bad += attn_group_update_block_table(g, &b, &buf.space, NULL, &error);
        b.num_reqs = 9; /* errors are texts in the caller's struct */
        bad += attn_group_build_metadata(g, &b, &buf.space, NULL, &error) == ATTN_OK;
        b.num_reqs = 1;
    }
    atomic_store(&counting, 0);
    is_int(bad, 0, "100 steps of %s", what);
    is_int(atomic_load(&counted), 0, "allocate nothing");
    attn_layer_destroy(layer);
    attn_group_close(g);
    free(buf.memory);
}

/* Opens a group and makes a layer while allocation number n fails, for every n until none is reached. */
static void run_out(const char *ini, const char *what) {
    attn_context_t *context = fake_context(ini);
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_device_t d = cpu();
    p.static_sink_len = 4;
    static float sink[4 * D];
    struct tensor tsink;
    attn_layer_options_t o = {.struct_size = sizeof o};
    o.sink_key = o.sink_value = tensor(&tsink, sink, ATTN_DTYPE_FLOAT32, 3, 4, 1, D, 0);
    attn_error_t error = ERROR_INIT;
    attn_layer_t *first = NULL;
    attn_group_t *keep = open_group(context, &p, "FAKE_PLAIN"); /* the table of layers stays, as in use */
    int bad = attn_layer_create(keep, "first", &o, &first, &error), n = 0, code = ATTN_E_NO_MEMORY;
    logged[0] = '\0';
    for (; code != ATTN_OK && n < 1000; n++) {
        attn_group_t *g = NULL;
        attn_layer_t *layer = NULL;
        logged[0] = '\0';
        atomic_store(&live, 0);
        atomic_store(&fail_in, n + 1);
        atomic_store(&counting, 1);
        code = attn_group_open(context, &p, &d, "FAKE_PLAIN", &g, NULL, &error);
        if (code == ATTN_OK) code = attn_layer_create(g, "second", &o, &layer, &error);
        int reached = atomic_load(&fail_in) == 0;
        atomic_store(&fail_in, 0);
        attn_layer_destroy(layer);
        attn_group_close(g);
        atomic_store(&counting, 0);
        /* An optional helper may go without its memory; what is opened must then be whole. */
        bad += code != ATTN_OK && code != ATTN_E_NO_MEMORY;
        bad += code != ATTN_OK && !reached;
        bad += atomic_load(&live) != 0;
        if (bad) {
            diag("allocation %d: code %d, %d left, %s", n, code, atomic_load(&live), error.text);
            break;
        }
        if (code == ATTN_OK && reached) code = ATTN_E_NO_MEMORY; /* go on: later allocations can fail, too */
    }
    is_int(bad, 0, "%s: each of %d allocations may fail", what, n - 1);
    ok(n > 4 && n < 1000, "of which there are some");
    attn_layer_destroy(first);
    attn_group_close(keep);
    attn_context_destroy(context);
}

int main(void) {
    if (CANNOT_COUNT) skip_all("allocations cannot be counted under a sanitizer");
    attn_context_t *context = fake_context("");
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    run_family(context, &p, "a decoder");
    p.chunk_size = 8;
    run_family(context, &p, "chunked local attention");
    p.chunk_size = 0, p.static_sink_len = 4;
    run_family(context, &p, "static sink tokens");
    p = small_problem(ATTN_ROLE_ENCODER_DECODER);
    run_family(context, &p, "cross attention");
    atomic_store(&counted, 0);
    atomic_store(&counting, 1);
    void *volatile one = malloc(1); /* volatile: or the compiler leaves the pair out */
    free(one);
    atomic_store(&counting, 0);
    is_int(atomic_load(&counted), 1, "the counter counts");
    attn_context_destroy(context);
    run_out("", "a group and a layer");
    run_out("[hook check]\nlevel = all\n", "with the check hook");
    run_out("[hook trace]\nfile = /dev/null\n", "with the trace hook");
    run_out("[hook shadow]\nbackend = FAKE_BARE\n", "with the shadow hook");
    remove_fake();
    return tap_done();
}
