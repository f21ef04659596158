/* SPDX-License-Identifier: Apache-2.0 */
/* Cascades, merges, ranks and logit rows (semantics 6.4, 6.5, 6.8, 8.1). */
#include "../tap.h"

#include <attn/attn_plan.h>

static attn_error_t error = {.struct_size = sizeof error};

#define BAD(CALL, CODE, PARAM, ...)                                                                          \
    do {                                                                                                     \
        error.param[0] = '\0';                                                                               \
        ok((CALL) == (CODE) && strcmp(error.param, PARAM) == 0 && error.text[0], __VA_ARGS__);               \
    } while (0)

static void test_use_cascade(void) {
    int32_t ones[512], two[8] = {1, 1, 1, 1, 1, 1, 1, 2};
    for (int i = 0; i < 512; i++)
        ones[i] = 1;
    const attn_cascade_params_t base = {.struct_size = sizeof base,
                                        .common_prefix_len = 4096,
                                        .num_heads = 32,
                                        .num_kv_heads = 8,
                                        .num_sms = 132};
    attn_cascade_params_t p = base;
    is_int(attn_plan_use_cascade(&p, ones, 64), 1, "a long prefix of many decodes");
    p.common_prefix_len = 255;
    is_int(attn_plan_use_cascade(&p, two, 8), 0, "255 shared tokens are too few");
    p.common_prefix_len = 256;
    is_int(attn_plan_use_cascade(&p, two, 8), 1, "256 are enough where flash decoding would not be used");
    is_int(attn_plan_use_cascade(&p, two, 7), 0, "7 requests are too few");
    p = base;
    p.has_alibi = 1;
    is_int(attn_plan_use_cascade(&p, ones, 64), 0, "ALiBi");
    p = base;
    p.has_sliding_window = 1;
    is_int(attn_plan_use_cascade(&p, ones, 64), 0, "sliding window");
    p = base;
    p.has_local_attention = 1;
    is_int(attn_plan_use_cascade(&p, ones, 64), 0, "local attention");
    p = base;
    p.dcp_world_size = 2;
    is_int(attn_plan_use_cascade(&p, ones, 64), 0, "DCP");
    p = base;
    p.num_kv_heads = 32;
    is_int(attn_plan_use_cascade(&p, ones, 8), 1, "MHA has no flash decoding");
    is_int(attn_plan_use_cascade(NULL, ones, 8), 0, "no params");
    is_int(attn_plan_use_cascade(&base, NULL, 8), 0, "no lengths");
    /* The cost model around its border: waves of tiles, computed here with other words. */
    int wrong = 0, yes = 0, cases = 0;
    for (int reqs = 8; reqs <= 512; reqs += 7)
        for (int prefix = 256; prefix <= 8192; prefix *= 2)
            for (int sms = 0; sms <= 264; sms += 66, cases++) {
                p = base;
                p.common_prefix_len = prefix;
                p.num_sms = sms;
                double tiles = ceil(prefix / 128.0), n = sms ? sms : 1;
                double cascade = ceil(32 * ceil(reqs / 128.0) / n) * tiles,
                       decoding = ceil(reqs * 8 * 1 * tiles / n);
                int want = cascade < decoding, have = attn_plan_use_cascade(&p, ones, reqs);
                wrong += have != want;
                yes += have;
            }
    is_int(wrong, 0, "%d points of the cost model", cases);
    ok(yes > 0 && yes < cases, "of which some say yes and some no");
}

static void test_common_prefix(void) {
    const int32_t table[3][4] = {{5, 6, 7, 8}, {5, 6, 9, 8}, {5, 6, 7, 8}};
    int32_t lens[] = {64, 64, 64};
    is_int(attn_plan_common_prefix(table[0], 4, lens, 3, 16), 32, "two blocks are shared");
    lens[1] = 31;
    is_int(attn_plan_common_prefix(table[0], 4, lens, 3, 16), 16,
           "no more than whole blocks of the shortest");
    lens[1] = 15;
    is_int(attn_plan_common_prefix(table[0], 4, lens, 3, 16), 0, "less than a block");
    is_int(attn_plan_common_prefix(table[0], 4, lens, 1, 16), 64, "one request shares with itself");
    lens[0] = 1000;
    is_int(attn_plan_common_prefix(table[0], 4, lens, 1, 16), 64, "not beyond the row");
    is_int(attn_plan_common_prefix(NULL, 4, lens, 1, 16), 0, "no table");
    is_int(attn_plan_common_prefix(table[0], 4, lens, 0, 16), 0, "no requests");
    is_int(attn_plan_common_prefix(table[0], 4, lens, 1, 0), 0, "no block size");
}

static void test_cp_lens(void) {
    int wrong = 0, cases = 0;
    for (int world = 1; world <= 5; world++)
        for (int run = 1; run <= 6; run++)
            for (int s = 0; s <= 100; s++, cases++) {
                int64_t most = 0, sum = 0;
                for (int rank = 0; rank < world; rank++) {
                    int64_t n = 0, have = attn_plan_cp_local_len(s, world, rank, run);
                    for (int p = 0; p < s; p++)
                        n += p / run % world == rank;
                    wrong += n != have;
                    sum += have;
                    most = n > most ? n : most;
                }
                int64_t bound = attn_plan_cp_local_bound(s, world, run);
                wrong += sum != s || bound < most ||
                         (world > 1 && bound != (s + world * run - 1) / (world * run) * run);
            }
    is_int(wrong, 0, "%d sequences shared out", cases);
    is_int(attn_plan_cp_local_len(100, 0, 0, 0), 100, "zeros are one rank");
    is_int(attn_plan_cp_local_len(10, 2, 1, 0), 5, "interleave 0 is 1");
    is_int(attn_plan_cp_local_bound(10, 4, 0), 3, "in the bound, too");
    is_int(attn_plan_cp_local_len(10, 2, 2, 1), 0, "no such rank");
    is_int(attn_plan_cp_local_len(-5, 2, 0, 1), 0, "no tokens");
    ok(attn_plan_cp_local_len(INT64_C(1) << 40, 4, 3, 16) == INT64_C(1) << 38, "64-bit lengths");
}

static void test_fast_prefill(void) {
    const int32_t starts[] = {0, 4, 4, 9, 12}, rows[] = {3, 4, 6, 8, 11}, twice[] = {3, 3}, out_of[] = {12};
    int32_t out[5], longest = 0;
    static const int32_t want[] = {0, 1, 1, 4, 5};
    is_int(attn_plan_fast_prefill(starts, 4, rows, 5, out, &longest, &error), ATTN_OK, "fast prefill");
    ok(memcmp(out, want, sizeof want) == 0 && longest == 3, "rows by request");
    is_int(attn_plan_fast_prefill(starts, 4, NULL, 0, out, &longest, &error) || out[4] != 0 || longest != 0,
           0, "no rows");
    BAD(attn_plan_fast_prefill(starts, 4, twice, 2, out, &longest, &error), ATTN_E_INVALID, "logits_indices",
        "a row twice");
    BAD(attn_plan_fast_prefill(starts, 4, out_of, 1, out, &longest, &error), ATTN_E_INVALID, "logits_indices",
        "a row outside");
    BAD(attn_plan_fast_prefill(starts, 4, rows, -1, out, &longest, &error), ATTN_E_INVALID, "num_indices",
        "a negative count");
    BAD(attn_plan_fast_prefill(starts, 4, NULL, 1, out, &longest, &error), ATTN_E_INVALID, "logits_indices",
        "no rows given");
    BAD(attn_plan_fast_prefill(starts, 4, rows, 5, NULL, &longest, &error), ATTN_E_INVALID,
        "query_start_loc_out", "no output");
    BAD(attn_plan_fast_prefill(starts, 4, rows, 5, out, NULL, &error), ATTN_E_INVALID, "max_query_len",
        "no maximum");
}

/* Softmax over two sets of keys at once against two halves merged. */
static void test_merge(void) {
    enum { T = 5, H = 2, D = 3 };
    float a[T][H][D], b[T][H][D], out[T][H][D], la[H][T], lb[H][T], lse[H][T];
    for (int t = 0; t < T; t++)
        for (int h = 0; h < H; h++) {
            for (int d = 0; d < D; d++) {
                a[t][h][d] = (float)(t + h - d);
                b[t][h][d] = (float)(d - 2 * t);
            }
            la[h][t] = (float)(t * 3 - 6);
            lb[h][t] = (float)(h * 40 - 20); /* far apart, too */
        }
    is_int(attn_plan_merge_states(a[0][0], la[0], b[0][0], lb[0], T, H, D, T, out[0][0], lse[0], &error),
           ATTN_OK, "merge");
    double worst = 0;
    for (int t = 0; t < T; t++)
        for (int h = 0; h < H; h++) {
            double wa = exp(la[h][t]), wb = exp(lb[h][t]);
            for (int d = 0; d < D; d++)
                worst = fmax(worst, fabs(out[t][h][d] - (a[t][h][d] * wa + b[t][h][d] * wb) / (wa + wb)));
            worst = fmax(worst, fabs(lse[h][t] - log(wa + wb)));
        }
    ok(worst < 1e-5, "as one softmax (worst %.3g)", worst);
    is_int(attn_plan_merge_states(a[0][0], la[0], b[0][0], lb[0], T, H, D, 2, out[0][0], lse[0], &error),
           ATTN_OK, "two tokens with context");
    ok(memcmp(out[2], b[2], sizeof b[2]) == 0 && lse[1][4] == lb[1][4], "the others take the suffix");
    la[0][0] = INFINITY, lb[0][0] = -INFINITY; /* both empty */
    la[1][0] = -INFINITY, lb[1][0] = 3;        /* prefix empty, with rubbish in its row */
    a[0][1][0] = NAN;
    la[0][1] = 2, lb[0][1] = -INFINITY;
    b[1][0][0] = NAN;
    attn_plan_merge_states(a[0][0], la[0], b[0][0], lb[0], T, H, D, T, out[0][0], lse[0], &error);
    ok(out[0][0][0] == 0 && out[0][0][2] == 0 && isinf(lse[0][0]) && lse[0][0] < 0, "both empty: 0 and -inf");
    ok(memcmp(out[0][1], b[0][1], sizeof b[0][1]) == 0 && lse[1][0] == 3,
       "an empty prefix leaves the suffix");
    ok(memcmp(out[1][0], a[1][0], sizeof a[1][0]) == 0 && lse[0][1] == 2,
       "an empty suffix leaves the prefix");
    memcpy(out, a, sizeof a);
    attn_plan_merge_states(out[0][0], la[0], b[0][0], lb[0], T, H, D, T, out[0][0], NULL, &error);
    is_near(out[4][1][0], (a[4][1][0] * exp(la[1][4] - 20) + b[4][1][0]) / (exp(la[1][4] - 20) + 1), 1e-5,
            "out may be the prefix");
    BAD(attn_plan_merge_states(NULL, la[0], b[0][0], lb[0], T, H, D, T, out[0][0], NULL, &error),
        ATTN_E_INVALID, "prefix_out", "no prefix");
    BAD(attn_plan_merge_states(a[0][0], la[0], b[0][0], NULL, T, H, D, T, out[0][0], NULL, &error),
        ATTN_E_INVALID, "suffix_lse", "no LSE");
    BAD(attn_plan_merge_states(a[0][0], la[0], b[0][0], lb[0], T, 0, D, T, out[0][0], NULL, &error),
        ATTN_E_INVALID, "num_heads", "no heads");
    BAD(attn_plan_merge_states(a[0][0], la[0], b[0][0], lb[0], T, H, 0, T, out[0][0], NULL, &error),
        ATTN_E_INVALID, "head_size_v", "no size");
    BAD(attn_plan_merge_states(a[0][0], la[0], b[0][0], lb[0], -1, H, D, T, out[0][0], NULL, &error),
        ATTN_E_INVALID, "num_tokens", "negative");
    is_int(attn_plan_merge_states(NULL, NULL, NULL, NULL, 0, H, D, 0, NULL, NULL, &error), ATTN_OK,
           "no tokens");
}

int main(void) {
    test_use_cascade();
    test_common_prefix();
    test_cp_lens();
    test_fast_prefill();
    test_merge();
    return tap_done();
}
