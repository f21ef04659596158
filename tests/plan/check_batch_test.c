/* SPDX-License-Identifier: Apache-2.0 */
/* attn_plan_check_batch: one good batch, and every way to spoil it, refused under the name of the parameter
 * at fault. */
#include "../layer/layer_testing.h"

static attn_error_t error = {.struct_size = sizeof error};

/* A batch of a decode, a prefill with context and a padding request, with everything that may be given. */
struct good {
    attn_problem_t p;
    attn_batch_t b;
    int32_t starts[4], lens[3], table[3][8], causal[3], ranges[3][2][2], rswa[3], encoder[3];
    uint8_t causal_host[3];
    int64_t slots[8];
    struct tensor tstarts, tlens, ttable, tslots, tcausal, tranges, trswa, tencoder;
};

static void make_good(struct good *g, uint32_t role) {
    memset(g, 0, sizeof *g);
    g->p = small_problem(role);
    g->p.max_num_seqs = 3, g->p.max_num_batched_tokens = 8, g->p.max_model_len = 32;
    const int32_t starts[] = {0, 1, 5, 5}, lens[] = {17, 9, 0};
    memcpy(g->starts, starts, sizeof starts);
    memcpy(g->lens, lens, sizeof lens);
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 8; c++)
            g->table[r][c] = c < (lens[r] + 3) / 4 ? 1 + r * 8 + c : -99;
    for (int i = 0; i < 8; i++)
        g->slots[i] = i < 5 ? i + 8 : -1;
    g->b = (attn_batch_t){.struct_size = sizeof g->b,
                          .num_reqs = 3,
                          .num_actual_tokens = 5,
                          .query_start_loc_host = g->starts,
                          .seq_lens_host = g->lens};
    g->b.query_start_loc = tensor(&g->tstarts, g->starts, ATTN_DTYPE_INT32, 1, 4, 0, 0, 0);
    g->b.seq_lens = tensor(&g->tlens, g->lens, ATTN_DTYPE_INT32, 1, 3, 0, 0, 0);
    tensor(&g->tcausal, g->causal, ATTN_DTYPE_INT32, 1, 3, 0, 0, 0);
    tensor(&g->tranges, g->ranges, ATTN_DTYPE_INT32, 3, 3, 2, 2, 0);
    tensor(&g->trswa, g->rswa, ATTN_DTYPE_INT32, 1, 3, 0, 0, 0);
    tensor(&g->tencoder, g->encoder, ATTN_DTYPE_INT32, 1, 3, 0, 0, 0);
    tensor(&g->ttable, g->table, ATTN_DTYPE_INT32, 2, 3, 8, 0, 0);
    tensor(&g->tslots, g->slots, ATTN_DTYPE_INT64, 1, 8, 0, 0, 0);
    if (attn_role_has_cache(role)) {
        g->b.block_table = &g->ttable.t;
        g->b.slot_mapping = &g->tslots.t;
    } else {
        g->lens[0] = 1, g->lens[1] = 4;
    }
}

static int check(const struct good *g) {
    return attn_plan_check_batch(&g->p, &g->b, 0, &error);
}

/* Spoils a good decoder batch with a statement; the parameter must be named. */
#define SPOIL(PARAM, STATEMENT, ...)                                                                         \
    do {                                                                                                     \
        struct good g_, *g = &g_;                                                                            \
        make_good(g, ATTN_ROLE_DECODER);                                                                     \
        STATEMENT;                                                                                           \
        error.param[0] = error.text[0] = '\0';                                                               \
        int code_ = check(g);                                                                                \
        if (!ok(code_ == ATTN_E_INVALID && strcmp(error.param, PARAM) == 0 && error.text[0], __VA_ARGS__))   \
            diag("code %d param '%s' text '%s'", code_, error.param, error.text);                            \
    } while (0)
#define FINE(STATEMENT, ...)                                                                                 \
    do {                                                                                                     \
        struct good g_, *g = &g_;                                                                            \
        make_good(g, ATTN_ROLE_DECODER);                                                                     \
        STATEMENT;                                                                                           \
        if (!ok(check(g) == ATTN_OK, __VA_ARGS__)) diag("'%s' '%s'", error.param, error.text);               \
    } while (0)

static void test_counts(void) {
    FINE((void)0, "the good batch");
    FINE(g->b.num_reqs = g->b.num_actual_tokens = 0; g->b.query_start_loc_host = g->b.seq_lens_host = NULL;
         g->b.block_table = NULL, "an empty batch");
    FINE(g->b.max_query_len = 4; g->b.max_seq_len = 1000, "maxima may be bounds");
    FINE(g->b.flags = ATTN_BATCH_CAPTURE, "a batch for capture");
    SPOIL("flags", g->b.flags = 8, "an unknown flag");
    SPOIL("flags", g->b.flags = 1, "a fast build, which nothing reads");
    SPOIL("flags", g->b.flags = 4, "a draft, which nobody heeds");
    SPOIL("num_reqs", g->b.num_reqs = -1, "a negative count of requests");
    SPOIL("num_reqs", g->b.num_reqs = 4, "more requests than max_num_seqs");
    SPOIL("num_actual_tokens", g->b.num_actual_tokens = -1, "a negative count of tokens");
    SPOIL("num_actual_tokens", g->b.num_actual_tokens = 9, "more tokens than max_num_batched_tokens");
    SPOIL("num_actual_tokens", g->b.num_actual_tokens = 4, "tokens that disagree with the starts");
    SPOIL("num_actual_tokens", g->b.num_reqs = 0, "tokens of nobody");
    struct good newer;
    make_good(&newer, ATTN_ROLE_DECODER);
    newer.b.reserved[4] = 1;
    ok(check(&newer) == ATTN_E_TOO_NEW && strcmp(error.param, "reserved") == 0, "a reserved member");
    SPOIL("batch", g->b.struct_size = 0, "no struct_size");
    SPOIL("problem", g->p.struct_size = 3, "no struct_size of the problem");
    struct good g;
    make_good(&g, ATTN_ROLE_DECODER);
    is_int(attn_plan_check_batch(&g.p, &g.b, -1, &error), ATTN_E_INVALID, "a negative cache");
    is_str(error.param, "num_blocks", "names num_blocks");
    is_int(attn_plan_check_batch(NULL, &g.b, 0, &error), ATTN_E_INVALID, "no problem");
    is_int(attn_plan_check_batch(&g.p, NULL, 0, &error), ATTN_E_INVALID, "no batch");
    struct {
        attn_batch_t b;
        uint64_t more;
    } longer = {g.b, 0};
    longer.b.struct_size = sizeof longer;
    is_int(attn_plan_check_batch(&g.p, &longer.b, 0, &error), ATTN_OK, "a longer batch with a zero tail");
    longer.more = 1;
    is_int(attn_plan_check_batch(&g.p, &longer.b, 0, &error), ATTN_E_TOO_NEW,
           "and with a tail that means something");
}

static void test_lengths(void) {
    SPOIL("query_start_loc_host", g->b.query_start_loc_host = NULL, "no starts");
    SPOIL("query_start_loc_host", g->starts[0] = 1, "starts from 1");
    SPOIL("query_start_loc_host", g->starts[2] = 0, "decreasing starts");
    SPOIL("query_start_loc_host", g->starts[2] = INT32_MIN, "starts whose difference overflows 32 bits");
    SPOIL("seq_lens_host", g->b.seq_lens_host = NULL, "no lengths");
    SPOIL("seq_lens_host", g->lens[1] = 3, "a sequence shorter than its query");
    SPOIL("seq_lens_host", g->lens[2] = -1, "a negative length");
    SPOIL("seq_lens_host", g->lens[0] = 33, "a sequence beyond max_model_len");
    SPOIL("max_query_len", g->b.max_query_len = 3, "a max_query_len below the longest query");
    SPOIL("max_seq_len", g->b.max_seq_len = 16, "a max_seq_len below the longest sequence");
    FINE(g->p.features |= ATTN_F_CASCADE; g->b.common_prefix_len = 4; g->b.num_reqs = 2, "a common prefix");
    SPOIL("common_prefix_len", g->b.common_prefix_len = -4, "a negative prefix");
    SPOIL("common_prefix_len", g->b.common_prefix_len = 4, "a prefix without the feature");
    SPOIL("common_prefix_len", (g->p.features |= ATTN_F_CASCADE, g->b.common_prefix_len = 3),
          "a prefix of 3/4 block");
    SPOIL("common_prefix_len", (g->p.features |= ATTN_F_CASCADE, g->b.common_prefix_len = 8),
          "a prefix longer than a context");
}

static void test_masks(void) {
    SPOIL("causal", g->b.causal_host = g->causal_host, "causal_host without the mask");
    SPOIL("causal", g->b.causal = &g->tcausal.t, "causal without the mask");
    SPOIL("causal_host", g->p.mask = ATTN_MASK_PER_REQUEST, "no causal_host with the mask");
    FINE(g->p.mask = ATTN_MASK_PER_REQUEST; g->b.causal_host = g->causal_host;
         g->b.causal = &g->tcausal.t, "per request");
    SPOIL("causal_host",
          (g->p.mask = ATTN_MASK_PER_REQUEST, g->b.causal_host = g->causal_host, g->causal_host[1] = 2),
          "causal 2");
    SPOIL("causal",
          (g->p.mask = ATTN_MASK_PER_REQUEST, g->b.causal_host = g->causal_host, g->b.causal = &g->tslots.t),
          "causal of another type");
    SPOIL("mm_prefix_ranges", g->b.mm_prefix_ranges = &g->tranges.t, "spans without the feature");
    FINE(g->p.features = ATTN_F_MM_PREFIX; g->b.mm_prefix_ranges = &g->tranges.t, "spans");
    SPOIL("num_mm_ranges", (g->p.features = ATTN_F_MM_PREFIX, g->b.num_mm_ranges = 9),
          "more spans than declared");
    SPOIL("mm_prefix_ranges",
          (g->p.features = ATTN_F_MM_PREFIX, g->p.max_mm_ranges = 1, g->b.mm_prefix_ranges = &g->tranges.t),
          "a wider tensor");
    SPOIL("mm_prefix_ranges",
          (g->p.features = ATTN_F_MM_PREFIX, g->tranges.shape[2] = 3, g->b.mm_prefix_ranges = &g->tranges.t),
          "triples");
    SPOIL("mm_prefix_ranges_host",
          (g->p.features = ATTN_F_MM_PREFIX, g->b.mm_prefix_ranges_host = g->ranges[0][0],
           g->b.num_mm_ranges = 2, g->ranges[1][1][0] = 5),
          "a span that ends before it begins");
    SPOIL("rswa_prefix_lens", g->b.rswa_prefix_lens_host = g->rswa, "R-SWA prefixes without a window");
    SPOIL("rswa_prefix_lens", g->p.rswa_window = 8, "an R-SWA window without prefixes");
    FINE(g->p.rswa_window = 8; g->b.rswa_prefix_lens = &g->trswa.t;
         g->b.rswa_prefix_lens_host = g->rswa, "R-SWA");
    SPOIL("rswa_prefix_lens_host",
          (g->p.rswa_window = 8, g->b.rswa_prefix_lens_host = g->rswa, g->rswa[0] = -1), "a negative prefix");
}

static void test_cache(void) {
    SPOIL("block_table", g->b.block_table = NULL, "no table");
    FINE(g->p.features |= ATTN_F_CONTIGUOUS_KV; g->b.block_table = NULL, "but keys of the call need none");
    SPOIL("block_table", g->ttable.shape[0] = 2, "too few rows");
    SPOIL("block_table", g->ttable.shape[1] = 4, "17 keys in 4 columns of 4");
    SPOIL("block_table", g->ttable.t.dtype = attn_dl_dtype(ATTN_DTYPE_INT64), "a table of int64");
    SPOIL("block_table", g->ttable.t.ndim = 1, "a flat table");
    SPOIL("block_table", g->table[0][4] = 32, "a block outside the cache");
    has_str(error.text, "block_table[0][4] is 32; the cache has blocks 0 .. 31", "says where");
    SPOIL("block_table", g->table[1][2] = -1, "a negative block");
    FINE(g->table[1][3] = -1, "what is not read may be anything");
    FINE(g->p.num_blocks = 0; g->table[0][0] = 1 << 30, "without num_blocks ids are not checked");
    SPOIL("block_table",
          (g->b.block_table_host = g->table[0], g->b.block_table_host_stride = 8, g->table[0][0] = 99),
          "through the host mirror, too");
    SPOIL("block_table", (g->b.block_table_host = g->table[0], g->b.block_table_host_stride = 4),
          "a mirror with short rows");
    SPOIL("block_table_host_stride", (g->b.block_table_host = g->table[0], g->b.block_table_host_stride = -1),
          "a negative stride");
    SPOIL("slot_mapping", g->slots[4] = 32 * 4, "a slot past the end");
    FINE(g->slots[0] = -7, "negative slots are skipped");
    FINE(g->slots[6] = 1 << 20, "padding is not looked at");
    SPOIL("slot_mapping", g->tslots.shape[0] = 4, "fewer slots than tokens");
    SPOIL("slot_mapping", g->tslots.t.dtype = attn_dl_dtype(ATTN_DTYPE_INT32), "slots of int32");
    SPOIL("query_start_loc", g->tstarts.shape[0] = 3, "a short tensor of starts");
    SPOIL("seq_lens", g->tlens.shape[0] = 2, "a short tensor of lengths");
    SPOIL("dcp_local_seq_lens", g->b.dcp_local_seq_lens = &g->tlens.t, "local lengths without ranks");
    SPOIL("seq_lens", g->tlens.t.strides = NULL, "a tensor without strides");
    FINE(g->p.block_size = 0; g->ttable.shape[1] = 1, "before the block size is known rows are not measured");
    /* A rank of DCP holds its share only. */
    FINE(g->p.dcp_world_size = 4; g->p.cp_interleave = 1;
         g->ttable.shape[1] = 2, "17 keys over 4 ranks need 2 columns");
    SPOIL("block_table", (g->p.dcp_world_size = 4, g->p.cp_interleave = 1, g->ttable.shape[1] = 1),
          "but not 1");
}

/* Keys of the call with lengths of their own: the first request has two keys more than tokens, the second
 * fewer, with a row of nobody behind them, the third five keys and no token. */
static void test_key_lengths(void) {
    struct good g_, *g = &g_;
    static const int32_t key_starts[] = {0, 3, 6, 11}, lens[] = {3, 2, 5};
    int32_t rows[4];
#define OWN_KEYS(CODE, PARAM, STATEMENT, ...)                                                                \
    do {                                                                                                     \
        make_good(g, ATTN_ROLE_ENCODER);                                                                     \
        g->p.features = ATTN_F_KEY_LENGTHS, g->p.max_num_batched_keys = 11;                                  \
        memcpy(rows, key_starts, sizeof rows);                                                               \
        memcpy(g->lens, lens, sizeof lens);                                                                  \
        g->b.key_start_loc_host = rows;                                                                      \
        STATEMENT;                                                                                           \
        error.param[0] = error.text[0] = '\0';                                                               \
        int code_ = check(g);                                                                                \
        if (!ok(code_ == (CODE) && strcmp(error.param, PARAM) == 0, __VA_ARGS__))                            \
            diag("code %d param '%s' text '%s'", code_, error.param, error.text);                            \
    } while (0)
    OWN_KEYS(ATTN_OK, "", (void)0, "keys with lengths of their own");
    OWN_KEYS(ATTN_OK, "", g->lens[0] = g->lens[1] = g->lens[2] = 0, "none of them");
    OWN_KEYS(ATTN_E_INVALID, "key_start_loc_host", g->b.key_start_loc_host = NULL, "without their rows");
    OWN_KEYS(ATTN_E_INVALID, "key_start_loc_host",
             (g->p.features = 0, g->lens[0] = 1, g->lens[1] = 4, g->lens[2] = 0), "without the feature");
    OWN_KEYS(ATTN_E_INVALID, "key_start_loc_host", rows[0] = 1, "rows that do not begin with 0");
    OWN_KEYS(ATTN_E_INVALID, "key_start_loc_host", (rows[1] = 7, g->lens[1] = 0), "falling rows");
    OWN_KEYS(ATTN_E_INVALID, "seq_lens_host", g->lens[1] = 4, "more keys than rows");
    has_str(error.text, "request 1 3 rows", "says how many there are");
    OWN_KEYS(ATTN_E_INVALID, "seq_lens_host", g->lens[2] = -1, "a negative number of keys");
    OWN_KEYS(ATTN_E_INVALID, "key_start_loc_host", g->p.max_num_batched_keys = 10, "more rows than declared");
    OWN_KEYS(ATTN_E_INVALID, "key_start_loc_host", g->p.max_num_batched_keys = 0, "or than tokens");
    OWN_KEYS(ATTN_E_INVALID, "seq_lens_host",
             (g->p.role = ATTN_ROLE_MM_ENCODER, g->p.features |= ATTN_F_FP8_ATTENTION),
             "rows of nobody where scales are those of all rows");
    OWN_KEYS(ATTN_OK, "", (g->b.num_reqs = g->b.num_actual_tokens = 0, g->b.key_start_loc_host = NULL),
             "an empty batch");
}

/* The host's lengths as bounds of the device's: the two lists must be there. */
static void test_device_lengths(void) {
    FINE(g->p.features |= ATTN_F_DEVICE_LENGTHS, "lengths on the device");
    FINE((g->p.features |= ATTN_F_DEVICE_LENGTHS, g->starts[3] = 5, g->lens[0] = 17),
         "as the host says them");
    SPOIL("query_start_loc", (g->p.features |= ATTN_F_DEVICE_LENGTHS, g->b.query_start_loc = NULL),
          "without starts there");
    SPOIL("seq_lens", (g->p.features |= ATTN_F_DEVICE_LENGTHS, g->b.seq_lens = NULL),
          "without lengths there");
    SPOIL("seq_lens", (g->p.features |= ATTN_F_DEVICE_LENGTHS, g->tlens.shape[0] = 2), "with a short list");
    FINE((g->b.query_start_loc = NULL, g->b.seq_lens = NULL), "without the feature nobody needs them");
}

static void test_other_roles(void) {
    struct good g;
    make_good(&g, ATTN_ROLE_ENCODER_ONLY);
    is_int(check(&g), ATTN_OK, "an encoder batch");
    g.lens[1] = 5;
    is_int(check(&g), ATTN_E_INVALID, "an encoder with context");
    is_str(error.param, "seq_lens_host", "names the lengths");
    make_good(&g, ATTN_ROLE_MM_ENCODER);
    g.b.slot_mapping = &g.tslots.t;
    is_int(check(&g), ATTN_E_INVALID, "slots without a cache");
    is_str(error.param, "slot_mapping", "names them");
    make_good(&g, ATTN_ROLE_ENCODER);
    g.b.block_table = &g.ttable.t;
    is_int(check(&g), ATTN_E_INVALID, "a table without a cache");
    is_str(error.param, "block_table", "names it");
    make_good(&g, ATTN_ROLE_ENCODER_DECODER);
    is_int(check(&g), ATTN_E_INVALID, "cross attention without encoder lengths");
    is_str(error.param, "encoder_seq_lens_host", "names them");
    g.b.encoder_seq_lens_host = g.encoder;
    g.encoder[2] = 8, g.table[2][0] = 3, g.table[2][1] = 4;
    is_int(check(&g), ATTN_OK, "with them");
    g.encoder[2] = 33;
    is_int(check(&g), ATTN_E_INVALID, "the table must cover the encoder's keys");
    g.encoder[2] = -1;
    is_int(check(&g), ATTN_E_INVALID, "negative lengths");
    is_str(error.param, "encoder_seq_lens_host", "name them");
    g.encoder[2] = 0;
    g.tslots.shape[0] = 2;
    is_int(check(&g), ATTN_OK, "its slots are the encoder's tokens, however few");
    g.slots[2] = INT64_C(1) << 40;
    is_int(check(&g), ATTN_OK, "what lies behind them is not read");
    g.slots[1] = 32 * 4;
    is_int(check(&g), ATTN_E_INVALID, "but each of them is");
    is_str(error.param, "slot_mapping", "and named");
}

/* A million tokens of context: 64-bit arithmetic and a table of 65536 columns. */
static void test_long_context(void) {
    enum { LEN = 1 << 20, COLUMNS = LEN / 16 };
    ATTN_INIT(attn_problem_t, p);
    p = small_problem(ATTN_ROLE_DECODER);
    p.block_size = 16, p.max_model_len = LEN, p.num_blocks = COLUMNS + 1;
    int32_t *table = malloc(COLUMNS * sizeof *table), starts[] = {0, 1}, lens[] = {LEN};
    struct tensor t;
    for (int i = 0; i < COLUMNS; i++)
        table[i] = i + 1;
    ATTN_INIT(attn_batch_t, b);
    b.num_reqs = b.num_actual_tokens = 1;
    b.query_start_loc_host = starts, b.seq_lens_host = lens;
    b.block_table = tensor(&t, table, ATTN_DTYPE_INT32, 2, 1, COLUMNS, 0, 0);
    is_int(attn_plan_check_batch(&p, &b, 0, &error), ATTN_OK, "a context of 2^20 tokens");
    table[COLUMNS - 1] = COLUMNS + 1;
    is_int(attn_plan_check_batch(&p, &b, 0, &error), ATTN_E_INVALID, "its last block is checked");
    p.max_model_len = 0;
    is_int(attn_plan_check_batch(&p, &b, 0, &error), ATTN_E_INVALID, "the default limit is 131072");
    p.max_model_len = INT32_MAX;
    lens[0] = INT32_MAX;
    is_int(attn_plan_check_batch(&p, &b, 0, &error), ATTN_E_INVALID,
           "2^31 - 1 tokens do not fit into the row");
    is_str(error.param, "block_table", "which is the fault");
    free(table);
}

/* Ids and slots are looked at several at a time: one that is wrong is found wherever it stands, and named. */
static void test_long_lists(void) {
    enum { N = 50 };
    static const int places[] = {0, 3, 4, 7, 8, 15, 16, 17, 31, 32, 47, 48, 49};
    static const int32_t bad_ids[] = {-1, 32, INT32_MAX, INT32_MIN};
    static const int64_t bad_slots[] = {128, INT64_MAX};
    int32_t starts[2] = {0, N}, lens[1] = {4 * N}, table[N];
    int64_t slots[N];
    struct tensor ttable, tslots;
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    p.max_model_len = 4 * N;
    attn_batch_t b = {.struct_size = sizeof b,
                      .num_reqs = 1,
                      .num_actual_tokens = N,
                      .query_start_loc_host = starts,
                      .seq_lens_host = lens,
                      .block_table = tensor(&ttable, table, ATTN_DTYPE_INT32, 2, 1, N, 0, 0),
                      .slot_mapping = tensor(&tslots, slots, ATTN_DTYPE_INT64, 1, N, 0, 0, 0)};
    for (int i = 0; i < N; i++) {
        table[i] = i % 32;
        slots[i] = i % 5 ? i : i % 2 ? -1 : INT64_MIN;
    }
    is_int(attn_plan_check_batch(&p, &b, 0, &error), ATTN_OK, "a long row and many slots");
    int missed = 0;
    char where[32];
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const int at = places[i];
        const int32_t id = table[at];
        const int64_t slot = slots[at];
        for (size_t v = 0; v < sizeof bad_ids / sizeof bad_ids[0]; v++) {
            table[at] = bad_ids[v];
            snprintf(where, sizeof where, "block_table[0][%d]", at);
            missed += attn_plan_check_batch(&p, &b, 0, &error) != ATTN_E_INVALID ||
                      strncmp(error.text, where, strlen(where)) != 0;
        }
        table[at] = id;
        for (size_t v = 0; v < sizeof bad_slots / sizeof bad_slots[0]; v++) {
            slots[at] = bad_slots[v];
            snprintf(where, sizeof where, "slot_mapping[%d]", at);
            missed += attn_plan_check_batch(&p, &b, 0, &error) != ATTN_E_INVALID ||
                      strncmp(error.text, where, strlen(where)) != 0;
        }
        slots[at] = slot;
    }
    is_int(missed, 0, "each wrong id and slot is found at its place");
    table[40] = 31;
    is_int(attn_plan_check_batch(&p, &b, INT64_C(1) << 40, &error), ATTN_OK, "more blocks than ids can name");
}

int main(void) {
    test_counts();
    test_lengths();
    test_masks();
    test_cache();
    test_key_lengths();
    test_device_lengths();
    test_other_roles();
    test_long_context();
    test_long_lists();
    return tap_done();
}
