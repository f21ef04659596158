/* SPDX-License-Identifier: Apache-2.0 */
/* Slots, blocks and tables against brute force: every token placed one by one (semantics 1.3, 2.11, 5.5,
 * 6.8). */
#include "../tap.h"

#include <attn/attn_plan.h>

static attn_error_t error = {.struct_size = sizeof error};

#define BAD(CALL, CODE, PARAM, ...)                                                                          \
    do {                                                                                                     \
        error.param[0] = '\0';                                                                               \
        ok((CALL) == (CODE) && strcmp(error.param, PARAM) == 0 && error.text[0], __VA_ARGS__);               \
    } while (0)

enum { ROWS = 3, COLUMNS = 40, TOKENS = 120 };

/* Where every position of a sequence goes when ranks take turns: filled by walking, not by formula. */
static void walk(int world, int rank, int run, int manager, const int32_t *row, int len, int64_t *slots) {
    int local = 0; /* tokens of this rank so far */
    for (int p = 0; p < len; p++) {
        slots[p] = -1;
        if (p / run % world != rank) continue;
        slots[p] = (int64_t)row[local / manager] * manager + local % manager;
        local++;
    }
}

static void test_slot_mapping(void) {
    int wrong = 0, cases = 0, total_local = 0, total = 0;
    int32_t table[ROWS][COLUMNS];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++)
            table[r][c] = 1 + (r * 17 + c * 29) % 101;
    for (int bs = 2; bs <= 8; bs *= 2)
        for (int factor = 1; factor <= 4; factor *= 2)
            for (int world = 1; world <= 3; world++)
                for (int run = 1; run <= bs; run *= 2, cases++)
                    for (int rank = 0; rank < world; rank++) {
                        const attn_slot_params_t p = {.struct_size = sizeof p,
                                                      .block_size = bs,
                                                      .manager_block = bs * factor,
                                                      .cp_world = world,
                                                      .cp_rank = rank,
                                                      .cp_interleave = run};
                        int32_t lens[ROWS] = {1 + bs, 33, 20}, starts[ROWS + 1] = {0, 1, 34, 40};
                        int64_t slots[48], want[64];
                        wrong += attn_plan_slot_mapping(&p, starts, lens, ROWS, table[0], COLUMNS, 48, slots,
                                                        &error) != ATTN_OK;
                        for (int r = 0; r < ROWS; r++) {
                            int n = starts[r + 1] - starts[r];
                            walk(world, rank, run, bs * factor, table[r], lens[r], want);
                            wrong +=
                                memcmp(slots + starts[r], want + lens[r] - n, (size_t)n * sizeof *want) != 0;
                            for (int i = 0; i < n; i++)
                                total_local += slots[starts[r] + i] >= 0;
                            if (rank == 0) total += n;
                        }
                        for (int i = 40; i < 48; i++)
                            wrong += slots[i] != -1;
                    }
    is_int(wrong, 0, "%d arrangements of blocks and ranks", cases);
    is_int(total_local, total, "every token lives on exactly one rank");
}

static void test_slot_defaults_and_limits(void) {
    const attn_slot_params_t p = {.struct_size = sizeof p, .block_size = 16, .num_blocks = 10};
    int32_t starts[] = {0, 1}, lens[] = {17}, table[] = {3, 9};
    int64_t slot = 0;
    is_int(attn_plan_slot_mapping(&p, starts, lens, 1, table, 2, 1, &slot, &error), ATTN_OK,
           "zeros are defaults");
    is_int(slot, 9 * 16, "first token of the second block");
    table[1] = 10;
    BAD(attn_plan_slot_mapping(&p, starts, lens, 1, table, 2, 1, &slot, &error), ATTN_E_INVALID,
        "block_table", "a block outside");
    table[1] = -1;
    BAD(attn_plan_slot_mapping(&p, starts, lens, 1, table, 2, 1, &slot, &error), ATTN_E_INVALID,
        "block_table", "a negative block");
    BAD(attn_plan_slot_mapping(&p, starts, lens, 1, table, 1, 1, &slot, &error), ATTN_E_INVALID,
        "table_stride", "a short row");
    BAD(attn_plan_slot_mapping(&p, starts, lens, 1, table, 2, 0, &slot, &error), ATTN_E_INVALID, "num_tokens",
        "too few slots");
    BAD(attn_plan_slot_mapping(&p, starts, lens, 1, NULL, 2, 1, &slot, &error), ATTN_E_INVALID, "block_table",
        "no table");
    BAD(attn_plan_slot_mapping(&p, starts, lens, 1, table, 2, 1, NULL, &error), ATTN_E_INVALID, "slots",
        "no output");
    BAD(attn_plan_slot_mapping(NULL, starts, lens, 1, table, 2, 1, &slot, &error), ATTN_E_INVALID, "params",
        "no params");
    lens[0] = 0;
    BAD(attn_plan_slot_mapping(&p, starts, lens, 1, table, 2, 1, &slot, &error), ATTN_E_INVALID, "seq_lens",
        "a short sequence");
    /* A cache beyond 2^31 elements: 64-bit slots. */
    attn_slot_params_t big = {.struct_size = sizeof big, .block_size = 256};
    int32_t last[] = {INT32_MAX}, one[] = {1};
    is_int(attn_plan_slot_mapping(&big, starts, one, 1, last, 1, 1, &slot, &error), ATTN_OK,
           "the last block");
    ok(slot == INT64_C(2147483647) * 256, "has a 64-bit slot");
    static const struct {
        attn_slot_params_t p;
        const char *param;
    } wrong[] = {
        {{sizeof(attn_slot_params_t), 0, 0, 0, 0, 0, 0}, "block_size"},
        {{sizeof(attn_slot_params_t), 16, 24, 0, 0, 0, 0}, "manager_block"},
        {{sizeof(attn_slot_params_t), 16, -16, 0, 0, 0, 0}, "manager_block"},
        {{sizeof(attn_slot_params_t), 16, 0, -1, 0, 0, 0}, "cp_world"},
        {{sizeof(attn_slot_params_t), 16, 0, 2, 2, 0, 0}, "cp_rank"},
        {{sizeof(attn_slot_params_t), 16, 0, 2, -1, 0, 0}, "cp_rank"},
        {{sizeof(attn_slot_params_t), 16, 0, 2, 0, 3, 0}, "cp_interleave"},
        {{sizeof(attn_slot_params_t), 16, 0, 2, 0, -1, 0}, "cp_interleave"},
        {{sizeof(attn_slot_params_t), 16, 0, 0, 0, 0, -1}, "num_blocks"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        BAD(attn_plan_slot_mapping(&wrong[i].p, starts, one, 1, table, 2, 1, &slot, &error), ATTN_E_INVALID,
            wrong[i].param, "case %zu names %s", i, wrong[i].param);
}

static void test_expand(void) {
    int32_t in[] = {0, 5, 2}, out[12], bad = -1, big = INT32_MAX / 2;
    is_int(attn_plan_expand_blocks(in, 3, 64, 16, out, &error), ATTN_OK, "expand");
    int wrong = 0;
    for (int i = 0; i < 12; i++)
        wrong += out[i] != in[i / 4] * 4 + i % 4;
    is_int(wrong, 0, "b becomes 4b .. 4b+3");
    BAD(attn_plan_expand_blocks(in, 3, 64, 24, out, &error), ATTN_E_INVALID, "manager_block",
        "sizes that do not divide");
    BAD(attn_plan_expand_blocks(&bad, 1, 64, 16, out, &error), ATTN_E_INVALID, "manager_blocks",
        "a negative block");
    BAD(attn_plan_expand_blocks(&big, 1, 64, 16, out, &error), ATTN_E_INVALID, "manager_blocks",
        "an overflow");
    BAD(attn_plan_expand_blocks(in, -1, 64, 16, out, &error), ATTN_E_INVALID, "n", "a negative count");
    BAD(attn_plan_expand_blocks(in, 1, 0, 16, out, &error), ATTN_E_INVALID, "manager_block", "size 0");
    BAD(attn_plan_expand_blocks(in, 1, 16, 0, out, &error), ATTN_E_INVALID, "block_size", "size 0");
    BAD(attn_plan_expand_blocks(in, 1, 16, 16, NULL, &error), ATTN_E_INVALID, "kernel_blocks", "no output");
    is_int(attn_plan_expand_blocks(NULL, 0, 16, 16, NULL, &error), ATTN_OK, "nothing to expand");
}

static void test_cross(void) {
    int32_t encoder[] = {5, 3, 0, 4}, computed[] = {0, 7, 0, 0},
            table[4][2] = {{2, 4}, {9, 9}, {9, 9}, {1, 9}};
    int64_t slots[16], n = -1;
    is_int(attn_plan_cross_slots(encoder, computed, 4, table[0], 2, 4, slots, 16, &n, &error), ATTN_OK,
           "cross slots");
    static const int64_t want[] = {8, 9, 10, 11, 16, 4, 5, 6, 7};
    ok(n == 9 && memcmp(slots, want, sizeof want) == 0, "of the two requests that begin");
    is_int(attn_plan_cross_slots(encoder, computed, 4, table[0], 2, 4, slots, 9, &n, &error), ATTN_OK,
           "exactly enough room");
    BAD(attn_plan_cross_slots(encoder, computed, 4, table[0], 2, 4, slots, 8, &n, &error), ATTN_E_SPACE,
        "capacity", "one too few");
    BAD(attn_plan_cross_slots(encoder, computed, 4, table[0], 1, 4, slots, 16, &n, &error), ATTN_E_INVALID,
        "table_stride", "short rows");
    encoder[3] = -1;
    BAD(attn_plan_cross_slots(encoder, computed, 4, table[0], 2, 4, slots, 16, &n, &error), ATTN_E_INVALID,
        "encoder_seq_lens", "negative");
    BAD(attn_plan_cross_slots(NULL, computed, 4, table[0], 2, 4, slots, 16, &n, &error), ATTN_E_INVALID,
        "encoder_seq_lens", "none");
    BAD(attn_plan_cross_slots(encoder, computed, 4, table[0], 2, 4, slots, 16, NULL, &error), ATTN_E_INVALID,
        "num_slots", "no output");
    BAD(attn_plan_cross_slots(encoder, computed, 4, table[0], 2, 0, slots, 16, &n, &error), ATTN_E_INVALID,
        "block_size", "size 0");
}

static void test_static_sink(void) {
    int32_t lens[] = {7, 0, 3}, table[3][2] = {{5, 6}, {7, 8}, {9, 10}}, out[3][5], out_lens[3];
    is_int(attn_plan_static_sink(lens, 3, table[0], 2, 8, 4, out[0], 5, out_lens, &error), ATTN_OK,
           "static sink");
    int wrong = 0;
    for (int r = 0; r < 3; r++)
        wrong += out[r][0] != 1 || out[r][1] != 2 || out[r][2] != table[r][0] || out[r][3] != table[r][1] ||
                 out[r][4] != 0;
    is_int(wrong, 0, "rows begin with blocks 1 and 2");
    ok(out_lens[0] == 15 && out_lens[1] == 0 && out_lens[2] == 11,
       "lengths grow, but an empty request stays empty");
    BAD(attn_plan_static_sink(lens, 3, table[0], 2, 6, 4, out[0], 5, out_lens, &error), ATTN_E_INVALID,
        "sink_len", "half a block");
    BAD(attn_plan_static_sink(lens, 3, table[0], 2, 8, 4, out[0], 3, out_lens, &error), ATTN_E_INVALID,
        "out_stride", "short rows");
    lens[2] = INT32_MAX - 7;
    BAD(attn_plan_static_sink(lens, 3, table[0], 2, 8, 4, out[0], 5, out_lens, &error), ATTN_E_INVALID,
        "seq_lens", "an overflow");
    lens[2] = -1;
    BAD(attn_plan_static_sink(lens, 3, table[0], 2, 8, 4, out[0], 5, out_lens, &error), ATTN_E_INVALID,
        "seq_lens", "a negative length");
    BAD(attn_plan_static_sink(lens, 3, NULL, 2, 8, 4, out[0], 5, out_lens, &error), ATTN_E_INVALID,
        "block_table", "no table");
    BAD(attn_plan_static_sink(NULL, 3, table[0], 2, 8, 4, out[0], 5, out_lens, &error), ATTN_E_INVALID,
        "seq_lens", "no lengths");
}

static void test_kernel_block(void) {
    static const uint32_t fixed[][2] = {{16, 0}, {32, 0}, {64, 0}}, any16[][2] = {{16, 1}},
                          only64[][2] = {{64, 0}}, odd[][2] = {{48, 0}, {0, 0}};
    typedef const uint32_t(*list)[2];
    list one[] = {fixed}, two[] = {fixed, any16}, three[] = {any16, only64, fixed}, none[] = {fixed, odd};
    const uint32_t n1[] = {3}, n2[] = {3, 1}, n3[] = {1, 1, 3}, n4[] = {3, 2}, empty[] = {0};
    int32_t size = 0;
    is_int(attn_plan_kernel_block_size(32, one, n1, 1, &size, &error) || size != 32, 0,
           "the manager's own size");
    is_int(attn_plan_kernel_block_size(128, one, n1, 1, &size, &error) || size != 64, 0,
           "else the largest that divides");
    is_int(attn_plan_kernel_block_size(48, two, n2, 2, &size, &error) || size != 16, 0, "48 in sixteens");
    is_int(attn_plan_kernel_block_size(256, three, n3, 3, &size, &error) || size != 64, 0,
           "three backends meet at 64");
    is_int(attn_plan_kernel_block_size(100, one, empty, 1, &size, &error) || size != 100, 0,
           "a backend without a list takes any");
    is_int(attn_plan_kernel_block_size(100, NULL, NULL, 0, &size, &error) || size != 100, 0,
           "and so does nobody");
    BAD(attn_plan_kernel_block_size(48, none, n4, 2, &size, &error), ATTN_E_UNSUPPORTED, "manager_block",
        "nothing in common");
    BAD(attn_plan_kernel_block_size(40, one, n1, 1, &size, &error), ATTN_E_UNSUPPORTED, "manager_block",
        "nothing divides 40");
    BAD(attn_plan_kernel_block_size(0, one, n1, 1, &size, &error), ATTN_E_INVALID, "manager_block", "size 0");
    BAD(attn_plan_kernel_block_size(16, NULL, n1, 1, &size, &error), ATTN_E_INVALID, "sizes", "no lists");
    BAD(attn_plan_kernel_block_size(16, one, n1, 1, NULL, &error), ATTN_E_INVALID, "block_size", "no output");
}

static void test_token_to_req(void) {
    int32_t starts[] = {0, 2, 2, 5}, rows[8];
    static const int32_t want[] = {0, 0, 2, 2, 2, 0, 0, 0};
    is_int(attn_plan_token_to_req(starts, 3, rows, 8, &error), ATTN_OK, "token to request");
    ok(memcmp(rows, want, sizeof want) == 0, "with an empty request and a padded tail");
    BAD(attn_plan_token_to_req(starts, 3, rows, 4, &error), ATTN_E_INVALID, "num_tokens", "too few rows");
    BAD(attn_plan_token_to_req(starts, 3, NULL, 8, &error), ATTN_E_INVALID, "token_to_req", "no output");
}

int main(void) {
    test_slot_mapping();
    test_slot_defaults_and_limits();
    test_expand();
    test_cross();
    test_static_sink();
    test_kernel_block();
    test_token_to_req();
    return tap_done();
}
