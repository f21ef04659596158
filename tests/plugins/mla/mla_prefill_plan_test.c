/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of MLA prefill without a GPU: every query token of the requests behind the border meets each of
 * its keys in exactly one pass, at the row where the gather puts that key, within the declared capacities;
 * and the border is where the work is least. */
#include "plugins/mla/mla_prefill_plan.h"
#include "../../tap.h"

#include <stdlib.h>

enum { MAX_REQS = 24, BLOCK_ROWS = 64 };

static const attn_plan_table_t table = {.struct_size = sizeof table,
                                        .mla_workspace = attn_plan_mla_workspace,
                                        .mla_context_size = attn_plan_mla_context_size,
                                        .mla_context = attn_plan_mla_context};

typedef struct batch {
    int32_t q_start[MAX_REQS + 1], lens[MAX_REQS], reqs, first;
} batch_t;

/* Keys that one query token was given so far: the next position, the same for every tile that holds the
 * token. */
static const char *check_pass(const batch_t *b, const mla_pass *p, const char *metadata, int is_last,
                              int32_t *next, int64_t rows_at_most) {
    const int32_t n = b->reqs - b->first, *starts = (const int32_t *)(const void *)(metadata + p->starts_at),
                  *cu = (const int32_t *)(const void *)(metadata + p->cu_at);
    const flash_tile *tiles = (const flash_tile *)(const void *)(metadata + p->tiles_at);
    const flash_counts *counts = (const flash_counts *)(const void *)(metadata + p->counts_at);
    const int32_t tokens = b->q_start[b->reqs] - b->q_start[b->first];
    if (counts->num_tiles != p->num_tiles || p->num_rows != cu[n] || cu[0] != 0) return "counts";
    if (cu[n] > rows_at_most) return "more rows than the workspace has";
    char *seen = calloc((size_t)tokens + 1, 1);
    const char *wrong = NULL;
    for (int32_t i = 0; i < p->num_tiles && wrong == NULL; i++) {
        const flash_tile *t = &tiles[i];
        const int32_t r = t->seq, begin = b->q_start[b->first + r] - b->q_start[b->first];
        const int32_t query = b->q_start[b->first + r + 1] - b->q_start[b->first + r],
                      context = b->lens[b->first + r] - query;
        if (t->q0 != begin || t->q_len != query || t->causal != is_last || t->k0 != cu[r] ||
            t->kv_len != cu[r + 1] - cu[r])
            wrong = "a tile does not describe its request";
        if (is_last && starts[r] + t->kv_len != b->lens[b->first + r])
            wrong = "the last pass does not end with the request";
        if (!is_last && t->kv_len > 0 && starts[r] + t->kv_len > context)
            wrong = "a query without a mask sees new tokens";
        for (int32_t q = t->block * BLOCK_ROWS; q < query && q < (t->block + 1) * BLOCK_ROWS && wrong == NULL;
             q++) {
            int32_t keys = is_last ? t->kv_len - query + q + 1 : t->kv_len;
            if (seen[begin + q]++) wrong = "a query token comes twice in a pass";
            if (keys > 0 && starts[r] != next[begin + q]) wrong = "keys are left out or come twice";
            next[begin + q] += keys > 0 ? keys : 0;
        }
    }
    for (int32_t t = 0; t < tokens && wrong == NULL; t++)
        if (!seen[t]) wrong = "a query token is left out of a pass";
    free(seen);
    return wrong;
}

static const char *check_batch(const batch_t *b, int64_t workspace, int32_t page, int32_t heads,
                               int64_t kv_rows, int *num_passes) {
    const int32_t tokens = b->q_start[b->reqs];
    mla_prefill_limits l = {.max_seqs = MAX_REQS,
                            .max_tokens = tokens > 0 ? tokens : 1,
                            .workspace_tokens = workspace,
                            .kv_elements = kv_rows * 256 * 2,
                            .part_heads = 2};
    mla_prefill_capacity(&l, BLOCK_ROWS);
    mla_prefill_input in = {.table = &table,
                            .q_start = b->q_start,
                            .seq_lens = b->lens,
                            .num_reqs = b->reqs,
                            .first_request = b->first,
                            .page_size = page,
                            .row_elements = 256,
                            .num_heads = heads,
                            .tiles = {.block_rows = BLOCK_ROWS}};
    mla_prefill_scratch scratch = {
        calloc(MAX_REQS + 1, 4), calloc(MAX_REQS, 4), calloc(MAX_REQS, 4),
        calloc((size_t)mla_prefill_tile_capacity(&l, BLOCK_ROWS) + 1, sizeof(flash_plan_tile))};
    static mla_pass passes[MLA_MAX_PASSES];
    char *metadata = malloc(l.metadata_bytes);
    memset(metadata, 0xee, l.metadata_bytes);
    int32_t *next = calloc((size_t)tokens + 1, 4);
    size_t used = 0;
    const char *wrong = NULL;
    *num_passes = mla_prefill_build(&in, &l, &scratch, passes, metadata, &used);
    if (used > l.metadata_bytes) wrong = "more lists than declared";
    for (int32_t i = 0; i < *num_passes && wrong == NULL; i++) {
        const mla_pass *p = &passes[i];
        wrong = check_pass(b, p, metadata, i == *num_passes - 1, next, workspace + l.max_tokens);
        if (p->heads < 1 || p->heads > heads || (int64_t)p->heads * p->num_rows * 256 > l.kv_elements ||
            (*num_passes > 1 && p->heads > l.part_heads))
            wrong = wrong ? wrong : "heads of a launch";
    }
    for (int32_t r = b->first; r < b->reqs && wrong == NULL && *num_passes > 0; r++)
        for (int32_t t = b->q_start[r]; t < b->q_start[r + 1] && wrong == NULL; t++)
            if (next[t - b->q_start[b->first]] != b->lens[r] - b->q_start[r + 1] + t + 1)
                wrong = "a query token does not get all its keys";
    free(scratch.q_start), free(scratch.lens), free(scratch.causal), free(scratch.tiles), free(metadata),
        free(next);
    return wrong;
}

static void random_batches(uint64_t seed) {
    int bad = 0, several = 0, none = 0;
    for (int i = 0; i < 3000; i++) {
        batch_t b = {.reqs = (int32_t)tap_rand_in(&seed, 1, MAX_REQS)};
        for (int32_t r = 0; r < b.reqs; r++) {
            int32_t q = tap_rand_in(&seed, 0, 3) == 0 ? 0 : (int32_t)tap_rand_in(&seed, 1, 200);
            int32_t context = tap_rand_in(&seed, 0, 2) == 0 ? 0 : (int32_t)tap_rand_in(&seed, 1, 700);
            b.q_start[r + 1] = b.q_start[r] + q;
            b.lens[r] = q + context;
        }
        b.first = (int32_t)tap_rand_in(&seed, 0, b.reqs - 1);
        int32_t page = 16 * (int32_t)tap_rand_in(&seed, 1, 4);
        int64_t workspace = MAX_REQS * page + tap_rand_in(&seed, 0, 4000);
        int passes = 0;
        const char *why = check_batch(&b, workspace, page, (int32_t)tap_rand_in(&seed, 1, 5),
                                      workspace + b.q_start[b.reqs] + 1, &passes);
        several += passes > 2, none += passes == 0;
        if (why != NULL && bad++ < 5)
            diag("batch %d of %d requests from %d, pages of %d, workspace %lld: %s", i, b.reqs, b.first, page,
                 (long long)workspace, why);
    }
    is_int(bad, 0, "3000 random batches: each query token meets each of its keys in one pass");
    ok(several > 200 && none == 0, "%d of them took more than two passes, %d did not fit", several, none);
}

static void test_limits(void) {
    int passes = -1;
    batch_t b = {{0, 10, 20}, {70000, 20}, 2, 0};
    is_int(check_batch(&b, 1024, 16, 2, 2048, &passes) != NULL, 0, "70000 keys in chunks of 1024");
    is_int(passes, 0, "are more passes than the lists hold: the caller absorbs");
    b = (batch_t){{0, 10}, {1000}, 1, 0};
    is_int(check_batch(&b, 1024, 16, 2, 10, &passes) != NULL || passes, 0,
           "no room for the keys of one head: absorbs");
    is_int(check_batch(&b, 8, 16, 2, 2048, &passes) != NULL || passes, 0,
           "a workspace below a page: absorbs");
    b = (batch_t){{0, 4096}, {4096}, 1, 0};
    const char *why = check_batch(&b, 65536, 64, 128, 70000, &passes);
    ok(why == NULL && passes == 1, "a fresh prompt takes one pass (%s)", why ? why : "");
}

/* All borders tried, with the cost of semantics 7.4 written another way: per head, in floating-point
 * operations. */
static void test_border(uint64_t seed) {
    const mla_prefill_sizes v3 = {128, 512, 64, 128, 128, 0, 0}, small = {16, 512, 64, 128, 128, 128, 132};
    const int32_t q[] = {0, 1, 2, 2050}, lens[] = {9000, 300, 4096};
    is_int(mla_prefill_border(q, lens, 3, &v3, 0), 2,
           "decodes stay absorbed, an extend of 2048 tokens is projected");
    is_int(mla_prefill_border(q, lens, 2, &v3, 0), 2, "decodes alone: no border");
    const int32_t few[] = {0, 100}, far[] = {131072};
    is_int(mla_prefill_border(few, far, 1, &v3, 0), 1, "100 tokens on 131072 of context cost less absorbed");
    const int32_t many[] = {0, 400};
    is_int(mla_prefill_border(many, far, 1, &v3, 0), 0, "400 tokens do not");
    const int32_t tiny[] = {0, 8};
    is_int(mla_prefill_border(tiny, tiny + 1, 1, &small, 0), 1,
           "a prompt of 8 tokens is not worth its launches");
    is_int(mla_prefill_border(tiny, tiny + 1, 1, &small, 1), 0, "but can be forced");
    const int32_t some[] = {0, 300};
    is_int(mla_prefill_border(some, far, 1, &small, 0), 1,
           "48 tiles on 132 multiprocessors are not worth it either");
    const int32_t wide[] = {0, 2048};
    is_int(mla_prefill_border(wide, far, 1, &small, 0), 0, "256 are");
    is_int(mla_prefill_border(q, lens, 3, &v3, 1), 2, "what is forced is what has several query tokens");
    int bad = 0;
    for (int i = 0; i < 500; i++) {
        int32_t starts[9] = {0}, seqs[8];
        for (int r = 0; r < 8; r++) {
            int32_t n = tap_rand_in(&seed, 0, 1) ? 1 : (int32_t)tap_rand_in(&seed, 1, 2000);
            starts[r + 1] = starts[r] + n;
            seqs[r] = n + (int32_t)tap_rand_in(&seed, 0, 20000);
        }
        int32_t got = mla_prefill_border(starts, seqs, 8, &v3, 0);
        double best = 0, of_got = 0;
        for (int border = 8; border >= 0; border--) {
            double flops = border < 8 ? 20e9 : 0;
            for (int r = 0; r < 8; r++) {
                double n = starts[r + 1] - starts[r], pairs = 0;
                for (int t = 0; t < n; t++)
                    pairs += seqs[r] - n + t + 1;
                flops += 128 * (r < border ? 2176 * pairs + 262144 * n : 640 * pairs + 262144.0 * seqs[r]);
            }
            if (border == 8 || flops < best) best = flops;
            if (border == got) of_got = flops;
        }
        bad += of_got > best * (1 + 1e-9);
    }
    is_int(bad, 0, "500 random batches: no other border costs less");
}

int main(void) {
    test_border(tap_seed());
    test_limits();
    random_batches(tap_seed());
    return tap_done();
}
