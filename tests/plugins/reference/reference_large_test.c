/* SPDX-License-Identifier: Apache-2.0 */
/* reference_large.c: a context of a million tokens, and a cache whose blocks lie more than 2^31 elements
 * apart. */
#include "reference_setup.h"

#include <sys/mman.h>

static const attn_backend_t *reference;
static small_t s;

static void million_tokens(void) {
    enum { TOKENS = 1 << 20, PAGE = 1024 };
    attn_problem_t p = small_problem();
    p.block_size = PAGE;
    p.max_model_len = TOKENS;
    small_start(&s, reference, &p);
    float *cache = calloc((size_t)TOKENS, 8 * sizeof *cache);
    int32_t *table = malloc(TOKENS / PAGE * sizeof *table);
    if (cache == NULL || table == NULL) bail_out("out of memory for the cache");
    for (int64_t i = 0; i < TOKENS; i++)
        cache[8 * i + 4] = (float)(i % 4); /* K is 0, V is 0, 1, 2, 3 .. */
    for (int i = 0; i < TOKENS / PAGE; i++)
        table[i] = TOKENS / PAGE - 1 - i;
    dense_set(&s.tc, cache, ATTN_DTYPE_FLOAT32, 4, TOKENS / PAGE, 1, PAGE, 8);
    dense_set(&s.tt, table, ATTN_DTYPE_INT32, 2, 1, TOKENS / PAGE, 0, 0);
    s.batch.num_reqs = s.batch.num_actual_tokens = 1;
    s.seq[0] = TOKENS;
    s.forward.lse = &s.tl.t;
    int status = reference->ops->build_metadata(s.instance, &s.batch, &s.space, NULL, &s.error);
    if (status == ATTN_OK) status = reference->ops->forward(s.instance, &s.forward, &s.space, NULL, &s.error);
    is_int(status, ATTN_OK, "a request of 1048576 tokens %s", s.error.text);
    is_near(s.output[0], 1.5, 1e-6, "the mean of its values");
    is_near(s.lse[0], log(1048576.0), 1e-6, "and the log of their number");
    reference->ops->close(s.instance);
    free(cache);
    free(table);
}

static void far_blocks(void) {
    const int64_t stride = (INT64_C(1) << 31) + 64;
    const size_t bytes = (size_t)(3 * stride + 16) * sizeof(float);
    float *cache =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (cache == MAP_FAILED) {
        skip(3, "no %zu bytes of address space", bytes);
        return;
    }
    attn_problem_t p = small_problem();
    small_start(&s, reference, &p);
    dense_set(&s.tc, cache, ATTN_DTYPE_FLOAT32, 4, 4, 1, 2, 8);
    s.tc.strides[0] = stride;
    int status = reference->ops->update_kv_cache(s.instance, &s.update, NULL, &s.error);
    is_int(status, ATTN_OK, "blocks 2^31 elements apart are written %s", s.error.text);
    ok(cache[3 * stride] == s.key[3 * 4] && cache[2 * stride + 8 + 4] == s.value[4],
       "rows 3 and 1 lie in blocks 3 and 2");
    status = reference->ops->build_metadata(s.instance, &s.batch, &s.space, NULL, &s.error);
    if (status == ATTN_OK) status = reference->ops->forward(s.instance, &s.forward, &s.space, NULL, &s.error);
    float far_out[24];
    memcpy(far_out, s.output, sizeof far_out);
    dense_set(&s.tc, s.cache, ATTN_DTYPE_FLOAT32, 4, 4, 1, 2, 8); /* the same in a cache of ordinary size */
    reference->ops->update_kv_cache(s.instance, &s.update, NULL, &s.error);
    reference->ops->forward(s.instance, &s.forward, &s.space, NULL, &s.error);
    ok(status == ATTN_OK && far_out[0] != 0 && memcmp(far_out, s.output, sizeof far_out) == 0,
       "and read as from a small cache");
    reference->ops->close(s.instance);
    munmap(cache, bytes);
}

int main(void) {
    reference = load_reference();
    million_tokens();
    far_blocks();
    return tap_done();
}
