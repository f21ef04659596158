/* SPDX-License-Identifier: Apache-2.0 */
/* The context of MLA prefill in chunks: the workspace rule of semantics 6.9 at its corners, and for all small
 * batches that every context token of every request lies in exactly one chunk, at a row of its own, within
 * the workspace. */
#include "../tap.h"

#include <attn/attn_plan.h>

static attn_error_t error = {.struct_size = sizeof error};

#define BAD(CALL, CODE, PARAM, ...)                                                                          \
    do {                                                                                                     \
        error.param[0] = '\0';                                                                               \
        ok((CALL) == (CODE) && strcmp(error.param, PARAM) == 0 && error.text[0], __VA_ARGS__);               \
    } while (0)

enum { MAX_REQS = 4, MAX_CHUNKS = 64, MAX_TOKENS = 512 };

static int32_t starts[MAX_CHUNKS * MAX_REQS], cu[MAX_CHUNKS * (MAX_REQS + 1)], longest[MAX_CHUNKS];
static int32_t row_to_req[MAX_TOKENS];
static uint8_t has_empty[MAX_CHUNKS];

static void test_workspace(void) {
    static const struct {
        const char *name;
        int32_t block_size, max_num_seqs, topk, cp_world;
        int64_t max_model_len, tokens, rows;
    } cases[] = {
        {"long models have 64 Ki tokens", 64, 256, 0, 0, 131072, 65536, 65536},
        {"eight short requests", 64, 1, 0, 0, 1000, 8000, 8000},
        {"four blocks a request", 64, 32, 0, 1, 100, 8192, 8192},
        {"at least a block a request", 64, 2048, 0, 0, 131072, 131072, 131072},
        {"blocks of one token", 1, 1, 0, 0, 1, 8, 8},
        {"the cap exactly", 16, 4, 0, 0, 8192, 65536, 65536},
        {"one below the cap", 16, 4, 0, 0, 8191, 65528, 65528},
        {"sparse: topk a request", 64, 8, 2048, 0, 131072, 16384, 16384},
        {"sparse: topk above the rule", 64, 256, 2048, 0, 131072, 65536, 65536},
        {"ranks need room for what they send", 64, 256, 0, 4, 131072, 65536, 81920},
        {"a model length that overflows 32 bits", 64, 256, 0, 0, INT64_MAX, 65536, 65536},
        {"many requests of long blocks", 1 << 15, 1 << 15, 0, 0, 1, 1 << 30, 1 << 30},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_mla_workspace_t p = {.struct_size = sizeof p,
                                  .block_size = cases[i].block_size,
                                  .max_num_seqs = cases[i].max_num_seqs,
                                  .topk = cases[i].topk,
                                  .cp_world = cases[i].cp_world,
                                  .max_model_len = cases[i].max_model_len};
        int64_t tokens = -1, rows = -1;
        int code = attn_plan_mla_workspace(&p, &tokens, &rows, &error);
        ok(code == ATTN_OK && tokens == cases[i].tokens && rows == cases[i].rows,
           "%s: %lld tokens, %lld rows", cases[i].name, (long long)tokens, (long long)rows);
    }
    attn_mla_workspace_t p = {
        .struct_size = sizeof p, .block_size = 64, .max_num_seqs = 4, .max_model_len = 1000};
    int64_t tokens = -7, rows = -7;
    attn_mla_workspace_t q = p;
    q.block_size = 0;
    BAD(attn_plan_mla_workspace(&q, &tokens, &rows, &error), ATTN_E_INVALID, "block_size", "blocks of 0");
    q = p, q.max_num_seqs = 0;
    BAD(attn_plan_mla_workspace(&q, &tokens, &rows, &error), ATTN_E_INVALID, "max_num_seqs", "no requests");
    q = p, q.max_model_len = 0;
    BAD(attn_plan_mla_workspace(&q, &tokens, &rows, &error), ATTN_E_INVALID, "max_model_len", "no length");
    q = p, q.topk = -1;
    BAD(attn_plan_mla_workspace(&q, &tokens, &rows, &error), ATTN_E_INVALID, "topk", "topk -1");
    q = p, q.cp_world = 3;
    BAD(attn_plan_mla_workspace(&q, &tokens, &rows, &error), ATTN_E_INVALID, "cp_world",
        "three ranks do not share 8000 tokens");
    q.cp_world = -1;
    BAD(attn_plan_mla_workspace(&q, &tokens, &rows, &error), ATTN_E_INVALID, "cp_world", "-1 ranks");
    q = p, q.block_size = q.max_num_seqs = 1 << 16;
    BAD(attn_plan_mla_workspace(&q, &tokens, &rows, &error), ATTN_E_INVALID, "max_num_seqs",
        "2^32 tokens are refused");
    BAD(attn_plan_mla_workspace(&p, NULL, &rows, &error), ATTN_E_INVALID, "tokens", "no output");
    BAD(attn_plan_mla_workspace(&p, &tokens, NULL, &error), ATTN_E_INVALID, "rows", "no second output");
    BAD(attn_plan_mla_workspace(NULL, &tokens, &rows, &error), ATTN_E_INVALID, "params", "no parameters");
    ok(tokens == -7 && rows == -7, "a refused call writes nothing");
}

/* Everything that a table must have; returns what is wrong. */
static const char *check_table(const attn_mla_context_params_t *p, const int32_t *q_start,
                               const int32_t *lens, int32_t reqs) {
    attn_mla_context_t c;
    if (attn_plan_mla_context_size(p, q_start, lens, reqs, &c, &error) != ATTN_OK) return error.text;
    int32_t m = 0, last = 0, most = 0;
    for (int32_t r = 0; r < reqs; r++) {
        int32_t context = lens[r] - (q_start[r + 1] - q_start[r]);
        if (context > 0) m++, last = q_start[r + 1];
        most = context > most ? context : most;
    }
    if (c.num_with_context != m || c.tokens_with_context != last || c.max_context_len != most)
        return "requests with context are miscounted";
    if (m == 0) return c.num_chunks == 0 && c.chunk_len == 0 ? NULL : "chunks of nothing";
    if (c.chunk_len % p->block_size != 0 || (int64_t)c.chunk_len * m > p->workspace_tokens ||
        (int64_t)c.chunk_len * m + (int64_t)m * p->block_size <= p->workspace_tokens)
        return "a chunk is not the most whole blocks that fit";
    if (c.num_chunks != (most + c.chunk_len - 1) / c.chunk_len) return "number of chunks";
    if (c.num_chunks > MAX_CHUNKS) return "the test has no room";
    memset(longest, 0x7f, sizeof longest), memset(has_empty, 0x7f, sizeof has_empty);
    if (attn_plan_mla_context(p, q_start, lens, reqs, c.num_chunks, starts, cu, longest, has_empty, &error) !=
        ATTN_OK)
        return error.text;
    for (int32_t r = 0; r < reqs; r++) {
        int32_t next = 0, context = lens[r] - (q_start[r + 1] - q_start[r]);
        for (int32_t j = 0; j < c.num_chunks; j++) {
            const int32_t *row = cu + j * (reqs + 1);
            int32_t n = row[r + 1] - row[r];
            if (n < 0 || (n > 0 && starts[j * reqs + r] != next))
                return "context tokens are left out or come twice";
            next += n;
        }
        if (next != context) return "the end of a context is left out";
    }
    for (int32_t j = 0; j < c.num_chunks; j++) {
        const int32_t *row = cu + j * (reqs + 1);
        int32_t top = 0, empty = 0;
        if (row[0] != 0 || row[reqs] > p->workspace_tokens || row[reqs] == 0) return "rows of a chunk";
        for (int32_t r = 0; r < reqs; r++) {
            top = row[r + 1] - row[r] > top ? row[r + 1] - row[r] : top;
            empty |= row[r + 1] == row[r];
        }
        if (longest[j] != top || has_empty[j] != empty) return "longest or empty of a chunk";
        if (row[reqs] > MAX_TOKENS) return "the test has no room";
        if (attn_plan_token_to_req(row, reqs, row_to_req, row[reqs], &error) != ATTN_OK) return error.text;
        for (int32_t t = 0; t < row[reqs]; t++)
            if (t < row[row_to_req[t]] || t >= row[row_to_req[t] + 1]) return "row to request";
    }
    return NULL;
}

static void test_all_small(void) {
    int wrong = 0, cases = 0;
    for (int bs = 1; bs <= 4; bs++)
        for (int ws = 3 * bs; ws <= 3 * bs + 14; ws++)
            for (int c0 = 0; c0 <= 13; c0++)
                for (int c1 = 0; c1 <= 13; c1 += 2)
                    for (int c2 = 0; c2 <= 13; c2 += 3)
                        for (int q = 0; q <= 2; q++, cases++) {
                            const int32_t q_start[] = {0, q, q + 1, 2 * q + 1},
                                          lens[] = {c0 + q, c1 + 1, c2 + q};
                            attn_mla_context_params_t p = {
                                .struct_size = sizeof p, .block_size = bs, .workspace_tokens = ws};
                            const char *why = check_table(&p, q_start, lens, 3);
                            if (why != NULL && wrong++ < 5)
                                diag("block %d, workspace %d, contexts %d %d %d, query %d: %s", bs, ws, c0,
                                     c1, c2, q, why);
                        }
    is_int(wrong, 0, "%d batches of three requests", cases);
}

/* Semantics 8.3: all ranks have the same padded lengths, which cover the tokens that each of them holds. */
static void test_ranks(void) {
    int wrong = 0, cases = 0;
    for (int world = 2; world <= 4; world++)
        for (int own = 1; own <= 4; own *= 2)
            for (int bs = own; bs <= 8; bs += own)
                for (int c0 = 0; c0 <= 70; c0 += 7)
                    for (int c1 = 0; c1 <= 70; c1 += 5, cases++) {
                        const int32_t q_start[] = {0, 2, 3}, lens[] = {c0 + 2, c1 + 1};
                        attn_mla_context_params_t p = {.struct_size = sizeof p,
                                                       .block_size = bs,
                                                       .workspace_tokens = 2 * 8 * 3 * 4 * 4 * 3,
                                                       .cp_world = world,
                                                       .cp_interleave = own};
                        attn_mla_context_t c;
                        int bad = attn_plan_mla_context_size(&p, q_start, lens, 2, &c, &error) != ATTN_OK ||
                                  c.num_chunks > MAX_CHUNKS || c.chunk_len % (world * own) != 0 ||
                                  c.chunk_len % bs != 0;
                        bad = bad || attn_plan_mla_context(&p, q_start, lens, 2, c.num_chunks, starts, cu,
                                                           longest, has_empty, &error) != ATTN_OK;
                        for (int r = 0; r < 2 && !bad; r++) {
                            int32_t sum = 0, context = r ? c1 : c0;
                            for (int j = 0; j < c.num_chunks; j++) {
                                int32_t n = cu[j * 3 + r + 1] - cu[j * 3 + r];
                                bad |= starts[j * 2 + r] != j * (c.chunk_len / world) || n % own != 0;
                                bad |= (int64_t)cu[j * 3 + 2] * world > p.workspace_tokens;
                                sum += n;
                            }
                            for (int rank = 0; rank < world; rank++)
                                bad |= attn_plan_cp_local_len(context, world, rank, own) > sum;
                            bad |= sum != attn_plan_cp_local_bound(context, world, own);
                        }
                        wrong += bad;
                    }
    is_int(wrong, 0, "%d batches on 2 to 4 ranks", cases);
}

static void test_example(void) {
    /* a fresh prompt between two extends: the merge must reach the last token with context */
    const int32_t q_start[] = {0, 300, 500, 700}, lens[] = {1300, 200, 90200};
    attn_mla_context_params_t p = {.struct_size = sizeof p, .block_size = 64, .workspace_tokens = 65536};
    attn_mla_context_t c;
    is_int(attn_plan_mla_context_size(&p, q_start, lens, 3, &c, &error), ATTN_OK,
           "1000, 0 and 90000 tokens of context");
    ok(c.num_chunks == 3 && c.num_with_context == 2 && c.chunk_len == 32768 && c.max_context_len == 90000 &&
           c.tokens_with_context == 700,
       "two share 65536 rows: 3 chunks of 32768");
    is_int(attn_plan_mla_context(&p, q_start, lens, 3, 3, starts, cu, NULL, NULL, &error), ATTN_OK,
           "the optional outputs may be left out");
    ok(cu[1] == 1000 && cu[2] == 1000 && cu[3] == 33768 && cu[5] == 0 && cu[7] == 32768 && cu[11] == 24464,
       "rows of the three chunks");
}

static void test_errors(void) {
    const int32_t q_start[] = {0, 2, 3}, lens[] = {10, 11}, short_lens[] = {10, 0}, falling[] = {0, 2, 1};
    attn_mla_context_params_t good = {.struct_size = sizeof good, .block_size = 4, .workspace_tokens = 8};
    attn_mla_context_params_t p = good;
    attn_mla_context_t c = {.num_chunks = -9};
    p.workspace_tokens = 7;
    BAD(attn_plan_mla_context_size(&p, q_start, lens, 2, &c, &error), ATTN_E_SPACE, "workspace_tokens",
        "less than a block a request");
    p.workspace_tokens = 0;
    BAD(attn_plan_mla_context_size(&p, q_start, lens, 2, &c, &error), ATTN_E_INVALID, "workspace_tokens",
        "no rows");
    p.workspace_tokens = (int64_t)INT32_MAX + 1;
    BAD(attn_plan_mla_context_size(&p, q_start, lens, 2, &c, &error), ATTN_E_INVALID, "workspace_tokens",
        "2^31 rows");
    p = good, p.block_size = 0;
    BAD(attn_plan_mla_context_size(&p, q_start, lens, 2, &c, &error), ATTN_E_INVALID, "block_size",
        "blocks of 0");
    p = good, p.cp_world = -2;
    BAD(attn_plan_mla_context_size(&p, q_start, lens, 2, &c, &error), ATTN_E_INVALID, "cp_world", "-2 ranks");
    p = good, p.cp_interleave = -1;
    BAD(attn_plan_mla_context_size(&p, q_start, lens, 2, &c, &error), ATTN_E_INVALID, "cp_interleave",
        "runs of -1");
    BAD(attn_plan_mla_context_size(&good, falling, lens, 2, &c, &error), ATTN_E_INVALID, "query_start_loc",
        "falling starts");
    BAD(attn_plan_mla_context_size(&good, q_start, short_lens, 2, &c, &error), ATTN_E_INVALID, "seq_lens",
        "a length below its query");
    BAD(attn_plan_mla_context_size(&good, q_start, lens, 2, NULL, &error), ATTN_E_INVALID, "context",
        "no output");
    is_int(c.num_chunks, -9, "a refused call writes nothing");
    BAD(attn_plan_mla_context(&good, q_start, lens, 2, 2, starts, cu, NULL, NULL, &error), ATTN_E_INVALID,
        "num_chunks", "another number of chunks");
    BAD(attn_plan_mla_context(&good, q_start, lens, 2, 3, NULL, cu, NULL, NULL, &error), ATTN_E_INVALID,
        "starts", "no starts");
    BAD(attn_plan_mla_context(&good, q_start, lens, 2, 3, starts, NULL, NULL, NULL, &error), ATTN_E_INVALID,
        "cu_seq_lens", "no rows");
    const int32_t none[] = {0};
    is_int(attn_plan_mla_context_size(&good, none, NULL, 0, &c, &error) || c.num_chunks, 0,
           "no requests, no chunks");
    is_int(attn_plan_mla_context(&good, none, NULL, 0, 0, NULL, NULL, NULL, NULL, &error), ATTN_OK,
           "and an empty table");
    p = good, p.block_size = 2147483647, p.cp_world = 65536, p.cp_interleave = 2147483629;
    BAD(attn_plan_mla_context_size(&p, q_start, lens, 2, &c, &error), ATTN_E_INVALID, "cp_interleave",
        "a step of more than 63 bits");
    /* the longest request there can be */
    const int32_t far_start[] = {0, 1}, far_len[] = {INT32_MAX};
    p = good, p.block_size = 1, p.workspace_tokens = INT32_MAX;
    ok(attn_plan_mla_context_size(&p, far_start, far_len, 1, &c, &error) == ATTN_OK && c.num_chunks == 1 &&
           attn_plan_mla_context(&p, far_start, far_len, 1, 1, starts, cu, NULL, NULL, &error) == ATTN_OK &&
           cu[1] == INT32_MAX - 1,
       "2^31 - 2 tokens of context in one chunk");
}

int main(void) {
    test_workspace();
    test_example();
    test_all_small();
    test_ranks();
    test_errors();
    return tap_done();
}
