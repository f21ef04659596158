/* SPDX-License-Identifier: Apache-2.0 */
/* After opening, the core allocates nothing: every allocation of the process is counted while steps run, with each kind
 * of rewriting. The counting functions stand before the C library's. */
#include "layer_testing.h"

#include <errno.h>
#include <stdatomic.h>

static atomic_int counting, counted;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define CANNOT_COUNT 1 /* the sanitizers' own functions stand there */
#else
#define CANNOT_COUNT 0
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t alignment, size_t n);

static void note(void) {
    if (atomic_load(&counting)) atomic_fetch_add(&counted, 1);
}

void *malloc(size_t n) {
    note();
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
    note();
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
    note();
    return __libc_realloc(p, n);
}
void *aligned_alloc(size_t alignment, size_t n) {
    note();
    return __libc_memalign(alignment, n);
}
int posix_memalign(void **p, size_t alignment, size_t n) {
    note();
    *p = __libc_memalign(alignment, n);
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
    struct buffers buf = take_buffers(g);
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
    remove_fake();
    return tap_done();
}
