/* SPDX-License-Identifier: Apache-2.0 */
/* Chunked local attention by virtual requests: the worked example of semantics 6.7, and for all small batches
 * that every query sees exactly the keys of its own chunk. */
#include "../tap.h"

#include <attn/attn_plan.h>

static attn_error_t error = {.struct_size = sizeof error};

#define BAD(CALL, CODE, PARAM, ...)                                                                          \
    do {                                                                                                     \
        error.param[0] = '\0';                                                                               \
        ok((CALL) == (CODE) && strcmp(error.param, PARAM) == 0 && error.text[0], __VA_ARGS__);               \
    } while (0)

enum { MAX_VIRTUAL = 256 };

static int32_t vstarts[MAX_VIRTUAL + 1], vlens[MAX_VIRTUAL], origin[MAX_VIRTUAL], first[MAX_VIRTUAL],
    vtable[MAX_VIRTUAL * 8];

static void test_example(void) {
    const int32_t starts[] = {0, 4, 14, 19}, lens[] = {6, 17, 9};
    const int32_t want_q[] = {2, 2, 1, 4, 4, 1, 4, 1}, want_k[] = {4, 2, 4, 4, 4, 1, 4, 1},
                  want_start[] = {0, 4, 4, 8, 12, 16, 4, 8}, want_req[] = {0, 0, 1, 1, 1, 1, 2, 2};
    int32_t n = 0;
    is_int(attn_plan_chunked_local_size(starts, lens, 3, 4, &n, &error), ATTN_OK, "size of the example");
    is_int(n, 8, "eight pieces");
    is_int(attn_plan_chunked_local(starts, lens, 3, 4, 2, n, vstarts, vlens, origin, first, &error), ATTN_OK,
           "cut");
    int wrong = 0;
    for (int v = 0; v < 8; v++)
        wrong += vstarts[v + 1] - vstarts[v] != want_q[v] || vlens[v] != want_k[v] ||
                 first[v] * 2 != want_start[v] || origin[v] != want_req[v];
    is_int(wrong, 0, "query lengths, key lengths, key starts and origins");
}

/* Query i of piece v is at key position start + len - query_len + i; it must be the origin's next query, and
 * the piece must begin at the chunk of that position. */
static int pieces_are_right(const int32_t *starts, const int32_t *lens, int reqs, int chunk, int bs, int n) {
    int t = 0, wrong = 0;
    for (int v = 0; v < n; v++) {
        int r = origin[v], start = first[v] * bs, q = vstarts[v + 1] - vstarts[v];
        wrong += v > 0 && origin[v] < origin[v - 1];
        for (int i = 0; i < q; i++, t++) {
            int position = start + vlens[v] - q + i;
            wrong += t < starts[r] || t >= starts[r + 1] ||
                     position != lens[r] - (starts[r + 1] - starts[r]) + t - starts[r];
            wrong += start != position / chunk * chunk;
        }
        wrong += vlens[v] > chunk || start + vlens[v] > lens[r];
    }
    return wrong + (t != starts[reqs]);
}

static void test_all_small(void) {
    int wrong = 0, cases = 0;
    for (int chunk = 1; chunk <= 6; chunk++)
        for (int bs = 1; bs <= chunk; bs++)
            for (int s0 = 0; s0 <= 14 && chunk % bs == 0; s0++)
                for (int q0 = 0; q0 <= s0; q0++)
                    for (int s1 = 0; s1 <= 14; s1 += 3)
                        for (int q1 = 0; q1 <= s1; q1 += 2, cases++) {
                            int32_t starts[] = {0, q0, q0 + q1}, lens[] = {s0, s1}, n;
                            wrong +=
                                attn_plan_chunked_local_size(starts, lens, 2, chunk, &n, &error) != ATTN_OK ||
                                attn_plan_chunked_local(starts, lens, 2, chunk, bs, n, vstarts, vlens, origin,
                                                        first, &error) != ATTN_OK;
                            wrong += pieces_are_right(starts, lens, 2, chunk, bs, n);
                        }
    is_int(wrong, 0, "%d batches of two requests", cases);
}

static void test_table(void) {
    const int32_t table[2][4] = {{10, 11, 12, 13}, {20, 21, 22, 23}}, request[] = {0, 1, 1},
                  begin[] = {2, 0, 3};
    const int32_t want[] = {12, 13, 20, 21, 23, 23};
    is_int(attn_plan_chunked_local_table(table[0], 4, 4, request, begin, 3, 2, vtable, &error), ATTN_OK,
           "gather");
    ok(memcmp(vtable, want, sizeof want) == 0, "columns past the row are its last one");
    is_int(attn_plan_chunked_local_table(table[0], 4, 3, request, begin, 3, 2, vtable, &error) ||
               vtable[1] != 12,
           0, "a narrower table");
    BAD(attn_plan_chunked_local_table(table[0], 4, 0, request, begin, 3, 2, vtable, &error), ATTN_E_INVALID,
        "table_width", "no columns");
    BAD(attn_plan_chunked_local_table(table[0], 3, 4, request, begin, 3, 2, vtable, &error), ATTN_E_INVALID,
        "table_stride", "stride below width");
    BAD(attn_plan_chunked_local_table(table[0], 4, 4, request, begin, 3, 0, vtable, &error), ATTN_E_INVALID,
        "chunk_blocks", "no blocks");
    BAD(attn_plan_chunked_local_table(NULL, 4, 4, request, begin, 3, 2, vtable, &error), ATTN_E_INVALID,
        "block_table", "no table");
    const int32_t minus[] = {-1, 0, 0};
    BAD(attn_plan_chunked_local_table(table[0], 4, 4, minus, begin, 3, 2, vtable, &error), ATTN_E_INVALID,
        "request", "request -1");
    BAD(attn_plan_chunked_local_table(table[0], 4, 4, request, minus, 3, 2, vtable, &error), ATTN_E_INVALID,
        "first_block", "block -1");
    is_int(attn_plan_chunked_local_table(NULL, 0, 0, NULL, NULL, 0, 1, NULL, &error), ATTN_OK,
           "nothing to gather");
}

static void test_errors(void) {
    const int32_t starts[] = {0, 4}, lens[] = {6}, shorter[] = {3};
    int32_t n = 2;
    BAD(attn_plan_chunked_local_size(starts, lens, 1, 0, &n, &error), ATTN_E_INVALID, "chunk_size",
        "chunks of 0");
    BAD(attn_plan_chunked_local_size(starts, shorter, 1, 4, &n, &error), ATTN_E_INVALID, "seq_lens",
        "a short sequence");
    BAD(attn_plan_chunked_local_size(starts, lens, 1, 4, NULL, &error), ATTN_E_INVALID, "num_virtual",
        "no output");
    BAD(attn_plan_chunked_local(starts, lens, 1, 4, 3, 2, vstarts, vlens, origin, first, &error),
        ATTN_E_INVALID, "chunk_size", "a chunk of 4/3 blocks");
    BAD(attn_plan_chunked_local(starts, lens, 1, 4, 0, 2, vstarts, vlens, origin, first, &error),
        ATTN_E_INVALID, "block_size", "blocks of 0");
    BAD(attn_plan_chunked_local(starts, lens, 1, 4, 4, 3, vstarts, vlens, origin, first, &error),
        ATTN_E_INVALID, "num_virtual", "another count");
    BAD(attn_plan_chunked_local(starts, lens, 1, 4, 4, 2, NULL, vlens, origin, first, &error), ATTN_E_INVALID,
        "query_start_loc_out", "no output");
    BAD(attn_plan_chunked_local(starts, lens, 1, 4, 4, 2, vstarts, NULL, origin, first, &error),
        ATTN_E_INVALID, "seq_lens_out", "no lengths");
    /* Requests of the largest length: the count must not wrap. */
    const int32_t far[] = {0, INT32_MAX}, longest[] = {INT32_MAX};
    is_int(attn_plan_chunked_local_size(far, longest, 1, 2, &n, &error) || n != 1 << 30, 0,
           "2^31 tokens in pairs");
    BAD(attn_plan_chunked_local_size(far, longest, 1, 1, &n, &error), ATTN_E_INVALID, "chunk_size",
        "2^31 pieces are refused");
}

int main(void) {
    test_example();
    test_all_small();
    test_table();
    test_errors();
    return tap_done();
}
