/* SPDX-License-Identifier: Apache-2.0 */
/* Splits and orders of small batches, every one of them, against the definitions of semantics 1.4 written
 * down again. */
#include "../tap.h"

#include <attn/attn_plan.h>

enum { MAX_REQS = 4 };

static attn_error_t error = {.struct_size = sizeof error};

/* The definition, step by step, over lists of lengths. */
static int oracle_border(const int *len, int n, const uint8_t *prefilling, int t, int uniform,
                         int extends_decode) {
    int longest = 0, all_same = 1;
    for (int i = 0; i < n; i++)
        longest = len[i] > longest ? len[i] : longest;
    for (int i = 0; i < n; i++)
        all_same = all_same && (len[i] == len[0] || len[i] == 0);
    if (longest <= t && (!uniform || t <= 1) && extends_decode) return n;
    if (n > 0 && len[0] > t) return 0;
    if (uniform && extends_decode && all_same) return n;
    for (int i = 0; i < n; i++) {
        int prefill = uniform ? len[i] != len[0] : len[i] > t;
        if (!extends_decode && prefilling[i]) prefill = 1;
        if (prefill) return i;
    }
    return n;
}

static int check_split(const int *len, int n, const uint8_t *prefilling, int t, uint32_t flags) {
    int32_t starts[MAX_REQS + 1] = {0};
    attn_split_t s;
    for (int i = 0; i < n; i++)
        starts[i + 1] = starts[i] + len[i];
    if (attn_plan_split(starts, n, prefilling, t, flags, &s, &error) != ATTN_OK) return 0;
    int border = oracle_border(len, n, prefilling, t, (flags & ATTN_SPLIT_REQUIRE_UNIFORM) != 0,
                               (flags & ATTN_SPLIT_SHORT_EXTEND_IS_PREFILL) == 0);
    return s.num_decodes == border && s.num_prefills == n - border && s.num_decode_tokens == starts[border] &&
           s.num_prefill_tokens == starts[n] - starts[border];
}

static void test_split(void) {
    int wrong = 0, cases = 0;
    for (int n = 0; n <= MAX_REQS; n++)
        for (int code = 0; code < 256; code++)
            for (int bits = 0; bits < 16; bits += 3)
                for (int t = 1; t <= 3; t++)
                    for (uint32_t flags = 0; flags < 4; flags++, cases++) {
                        int len[MAX_REQS];
                        uint8_t prefilling[MAX_REQS];
                        for (int i = 0; i < MAX_REQS; i++) {
                            len[i] = code >> 2 * i & 3;
                            prefilling[i] = bits >> i & 1;
                        }
                        wrong += !check_split(len, n, prefilling, t, flags);
                    }
    is_int(wrong, 0, "%d splits are as the definition says", cases);
}

static void test_split3(void) {
    int wrong = 0, cases = 0;
    for (int code = 0; code < 6 * 6 * 6; code++)
        for (int t = 1; t <= 3; t++, cases++) {
            /* every request: length 0..2 times 2, and with or without context */
            int32_t starts[4] = {0}, lens[3], first_long = 3, first_prefill = 3;
            attn_split3_t s;
            for (int i = 0, c = code; i < 3; i++, c /= 6) {
                int len = c % 3 * 2, context = c % 6 / 3 * 5;
                starts[i + 1] = starts[i] + len;
                lens[i] = len + context;
            }
            for (int i = 2; i >= 0; i--) {
                if (starts[i + 1] - starts[i] > t) first_long = i;
                if (starts[i + 1] - starts[i] > t && lens[i] == starts[i + 1] - starts[i]) first_prefill = i;
            }
            wrong += attn_plan_split3(starts, lens, 3, t, &s, &error) != ATTN_OK ||
                     s.num_decodes != first_long || s.num_extends != first_prefill - first_long ||
                     s.num_prefills != 3 - first_prefill || s.num_decode_tokens != starts[first_long] ||
                     s.num_extend_tokens != starts[first_prefill] - starts[first_long] ||
                     s.num_prefill_tokens != starts[3] - starts[first_prefill];
        }
    is_int(wrong, 0, "%d three-way splits", cases);
}

static int region(int context, int len, int unfinished, int t) {
    return context == 0 ? 3 : len > t ? 2 : unfinished ? 1 : 0;
}

/* Requests that already sit in their region's places keep them; the others fill the rest in the order of
 * regions. */
static void test_reorder(void) {
    enum { N = 5 };
    int wrong = 0, cases = 0;
    for (int code = 0; code < 1024; code++, cases++) {
        int32_t context[N], len[N], order[N], moved, want[N], target[N], sorted = 0;
        uint8_t unfinished[N];
        int reg[N], misplaced = 0;
        for (int i = 0; i < N; i++) {
            int r = code >> 2 * i & 3;
            context[i] = r == 3 ? 0 : 7;
            len[i] = r == 2 || (r == 3 && i % 2) ? 4 : 2;
            unfinished[i] = r == 1 || r == 3;
            reg[i] = region(context[i], len[i], unfinished[i], 2);
        }
        for (int r = 0; r < 4; r++)
            for (int i = 0; i < N; i++)
                if (reg[i] == r) target[sorted++] = r;
        for (int i = 0; i < N; i++)
            want[i] = reg[i] == target[i] ? i : -1;
        for (int r = 0; r < 4; r++)
            for (int i = 0; i < N; i++)
                if (reg[i] == r && reg[i] != target[i]) {
                    int at = 0;
                    while (want[at] >= 0)
                        at++;
                    want[at] = i;
                    misplaced = 1;
                }
        wrong += attn_plan_reorder(context, len, unfinished, N, 2, order, &moved, &error) != ATTN_OK ||
                 moved != misplaced || memcmp(order, want, sizeof want) != 0;
        for (int i = 0; i < N; i++)
            wrong += reg[order[i]] != target[i];
    }
    is_int(wrong, 0, "%d orders", cases);
    int32_t context[] = {0, 5}, len[] = {1, 1}, order[2], moved;
    attn_plan_reorder(context, len, NULL, 2, 1, order, &moved, &error);
    ok(moved == 1 && order[0] == 1 && order[1] == 0, "without is_prefilling all prompts count as finished");
    attn_plan_reorder(NULL, NULL, NULL, 0, 1, NULL, &moved, &error);
    is_int(moved, 0, "an empty batch stays");
}

static void test_threshold(void) {
    is_int(attn_plan_reorder_threshold(0, 1, 5, 1, 1, 0), 0, "no reordering stays none");
    is_int(attn_plan_reorder_threshold(1, 0, 5, 0, 1, 0), 1, "speculation that is no decode");
    is_int(attn_plan_reorder_threshold(1, 1, 3, 0, 1, 0), 4, "1 + speculative tokens");
    is_int(attn_plan_reorder_threshold(1, 1, 3, 1, 1, 0), 7, "twice with parallel drafting");
    is_int(attn_plan_reorder_threshold(16, 1, 3, 1, 1, 0), 16, "the base if it is larger");
    is_int(attn_plan_reorder_threshold(16, 1, 3, 1, 2, 0), 1, "1 under DCP");
    is_int(attn_plan_reorder_threshold(16, 1, 3, 1, 2, 1), 16, "unless DCP takes any length");
    is_int(attn_plan_reorder_threshold(1, 1, INT32_MAX, 1, 1, 0), INT32_MAX, "no overflow");
}

static void test_errors(void) {
    int32_t starts[] = {0, 2, 1}, from_one[] = {1, 2}, good[] = {0, 2, 3}, lens[] = {1, 1}, minus[] = {-1, 1},
            order[2], moved;
    attn_split_t s;
    attn_split3_t s3;
#define BAD(CALL, PARAM, ...)                                                                                \
    do {                                                                                                     \
        error.param[0] = '\0';                                                                               \
        ok((CALL) == ATTN_E_INVALID && strcmp(error.param, PARAM) == 0 && error.text[0], __VA_ARGS__);       \
    } while (0)
    BAD(attn_plan_split(starts, 2, NULL, 1, 0, &s, &error), "query_start_loc", "decreasing starts");
    has_str(error.text, "query_start_loc[2] is 1 after 2", "say where");
    BAD(attn_plan_split(from_one, 1, NULL, 1, 0, &s, &error), "query_start_loc", "starts from 1");
    BAD(attn_plan_split(NULL, 0, NULL, 1, 0, &s, &error), "query_start_loc", "no starts");
    BAD(attn_plan_split(good, -1, NULL, 1, 0, &s, &error), "num_reqs", "a negative count");
    BAD(attn_plan_split(good, 2, NULL, 0, 0, &s, &error), "threshold", "threshold 0");
    BAD(attn_plan_split(good, 2, NULL, 1, 8, &s, &error), "flags", "an unknown flag");
    BAD(attn_plan_split(good, 2, NULL, 1, ATTN_SPLIT_SHORT_EXTEND_IS_PREFILL, &s, &error), "is_prefilling",
        "no is_prefilling");
    BAD(attn_plan_split(good, 2, NULL, 1, 0, NULL, &error), "split", "no output");
    BAD(attn_plan_split3(good, lens, 2, 1, &s3, &error), "seq_lens", "a sequence shorter than its query");
    BAD(attn_plan_split3(good, NULL, 2, 1, &s3, &error), "seq_lens", "no seq_lens");
    BAD(attn_plan_split3(good, lens, 2, 0, &s3, &error), "threshold", "threshold 0");
    BAD(attn_plan_split3(good, lens, 2, 1, NULL, &error), "split", "no output");
    BAD(attn_plan_reorder(minus, lens, NULL, 2, 1, order, &moved, &error), "context_lens",
        "a negative context");
    BAD(attn_plan_reorder(lens, minus, NULL, 2, 1, order, &moved, &error), "query_lens", "a negative query");
    BAD(attn_plan_reorder(lens, lens, NULL, 2, 1, NULL, &moved, &error), "order", "no order");
    BAD(attn_plan_reorder(lens, lens, NULL, 2, 1, order, NULL, &error), "moved", "no moved");
    BAD(attn_plan_reorder(NULL, lens, NULL, 2, 1, order, &moved, &error), "context_lens", "no context_lens");
    is_int(attn_plan_split(starts, 2, NULL, 1, 0, &s, NULL), ATTN_E_INVALID, "an error struct is optional");
}

int main(void) {
    test_split();
    test_split3();
    test_reorder();
    test_threshold();
    test_errors();
    return tap_done();
}
