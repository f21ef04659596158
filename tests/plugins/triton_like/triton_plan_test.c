/* SPDX-License-Identifier: Apache-2.0 */
/* triton_like without a device: configurations as pure functions, work lists, the folder of compiled kernels
 * with damaged, foreign and unwritable files, and what the plugin file answers: capabilities, reasons,
 * refusals by name. */
#include "../../tap.h"

#include "triton_compile.h"
#include "triton_plan.h"

#include <attn/attn.h>
#include <attn/draft/attn_compile.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static attn_problem_t problem(const char *text) {
    attn_problem_t p;
    ATTN_INIT(attn_error_t, e);
    if (attn_problem_parse(text, &p, &e) != ATTN_OK) bail_out("%s: %s", text, e.text);
    return p;
}
#define DECODER "role=decoder mask=causal dtype=bfloat16 num_heads=32 num_kv_heads=8 block_size=16 scale=0.1 "

static void configurations(void) {
    static const int archs[] = {80, 86, 89, 90, 100, 120};
    static const char *const rest[] = {"", "kv_cache_dtype=fp8_e4m3", "kv_cache_dtype=int8_per_token_head"};
    int bad = 0, macros_bad = 0;
    for (size_t a = 0; a < sizeof archs / sizeof archs[0]; a++)
        for (int d = 32; d <= 512; d++)
            for (int k = 0; k < 3; k++) {
                char text[300], macros[2048];
                triton_config_t c;
                snprintf(text, sizeof text, DECODER "head_size=%d %s", d, rest[k]);
                attn_problem_t p = problem(text);
                int fits = triton_configure(&p, archs[a], &c) == 0 &&
                           c.prefill_smem <= triton_smem_of_block(archs[a]) &&
                           c.decode_smem <= triton_smem_of_block(archs[a]) && c.prefill_rows > 0;
                int cp_async = c.exact || !c.has_decode || c.kv_vec >= 4;
                if ((!fits || !cp_async) && bad++ < 5) diag("sm_%d: %s", archs[a], text);
                int n = triton_config_macros(&c, macros, sizeof macros);
                macros_bad += n <= 0 || strstr(macros, "-DTL_D=") == NULL;
            }
    ok(bad == 0, "every head size from 32 to 512 has tiles that fit, on every architecture (%d do not)", bad);
    ok(macros_bad == 0, "every configuration has its macros");

    triton_config_t c;
    attn_problem_t p = problem(DECODER "head_size=128 kv_cache_dtype=int8_per_token_head");
    triton_configure(&p, 90, &c);
    ok(c.kv_vec == 4 && c.kv_align == 8 && c.joint && c.has_decode,
       "K, V and their scales are one row of 264 bytes, aligned to 8");
    p = problem(DECODER "head_size=128 kv_cache_dtype=int8_per_token_head features=separate_kv");
    triton_configure(&p, 90, &c);
    ok(c.kv_vec == 4 && c.kv_align == 4 && !c.joint,
       "in separate tensors they are rows of 132 bytes, aligned to 4");
    p = problem(DECODER "head_size=36 kv_cache_dtype=fp8_per_token_head");
    triton_configure(&p, 90, &c);
    ok(c.kv_vec == 4, "36 codes and a scale are moved 4 bytes at a time: 8 would take the scale for codes");
    p = problem(DECODER "head_size=128");
    triton_configure(&p, 90, &c);
    int is_hopper = c.wgmma;
    triton_configure(&p, 100, &c);
    ok(is_hopper && !c.wgmma, "wgmma is for compute capability 9.0 alone");
    p = problem(DECODER "head_size=128 kv_cache_dtype=int8_static_v");
    triton_configure(&p, 90, &c);
    ok(c.copiers == 4 && c.warps == 12 && c.prefill_threads == 512 && c.prefill_rows == 192,
       "int8 products have a warpgroup that only copies");
    static const char *const few_bits[] = {"fp8_e4m3", "int8_per_token_head", "nvfp4", "turboquant_4bit_nc"};
    int split = 0;
    for (int i = 0; i < 4; i++) {
        char text[200];
        snprintf(text, sizeof text, DECODER "head_size=128 kv_cache_dtype=%s", few_bits[i]);
        p = problem(text);
        triton_configure(&p, 90, &c);
        split += c.copiers == 4 && c.prefill_threads == 512 && c.keys == (i == 3 ? 64 : 80);
    }
    ok(split == 4, "and so have rows of fewer than 16 bits, %d of 4", split);
    p = problem(DECODER "head_size=64 kv_cache_dtype=nvfp4");
    triton_configure(&p, 90, &c);
    split = c.copiers == 4 && c.warps == 12;
    p = problem(DECODER "head_size=256 kv_cache_dtype=int4_per_token_head");
    triton_configure(&p, 90, &c);
    ok(split && c.copiers == 4 && c.warps == 8 && c.prefill_rows == 128, "heads of 64 and 256, too");
    p = problem(DECODER "head_size=64 kv_cache_dtype=int8_static_v");
    triton_configure(&p, 90, &c);
    int is_split = c.copiers;
    p = problem(DECODER "head_size=128 kv_cache_dtype=int8_per_token_head features=separate_kv");
    triton_configure(&p, 90, &c);
    is_split |= c.copiers;
    p = problem(DECODER "head_size=128");
    triton_configure(&p, 90, &c);
    ok(!is_split && c.copiers == 0 && c.prefill_threads == c.warps * 32, "others have none");
    p = problem(DECODER "head_size=80 out_dtype=fp8_e4m3 features=out_fp8_group");
    triton_configure(&p, 90, &c);
    ok(c.out_group && c.out == TRITON_BF16,
       "group scales come after attention, which writes the model's type");
    p = problem(DECODER "head_size=33");
    triton_configure(&p, 90, &c);
    ok(c.kv_vec == 2 && !c.has_decode && !c.exact,
       "an odd head size has no cp.async, and goes through the prefill kernel");
    p = problem("role=decoder mask=causal dtype=float32 num_heads=8 head_size=64 block_size=16 scale=0.1");
    triton_configure(&p, 90, &c);
    ok(c.exact && c.has_decode, "float32 takes the exact kernels");
    p = problem("role=encoder_only mask=full dtype=float16 num_heads=8 head_size=64 scale=0.1");
    triton_configure(&p, 90, &c);
    ok(c.page == 0 && !c.has_decode, "an encoder has no cache and no decode");
    p = problem(DECODER "head_size=128 sliding_window=120 chunk_lookback=2 features=chunk_lookback");
    triton_configure(&p, 90, &c);
    ok(c.lookback == 2 && c.lookback_chunk == 40,
       "chunk lookback: a window of 120 over 3 chunks is chunks of 40");
}

/* Every request's rows are covered once: by tiles, or by all its segments. */
static int covered(const triton_plan_t *plan, const triton_plan_input_t *in, const int32_t *q, int n) {
    for (int r = 0; r < n; r++) {
        int tokens = q[r + 1] - q[r], tiles = 0, pieces = 0, wanted = 0;
        for (int i = 0; i < plan->num_tiles; i++)
            tiles += plan->tiles[i].seq == r;
        for (int i = 0; i < plan->num_items; i++)
            if (plan->items[i].seq == r) pieces++, wanted = plan->items[i].pieces;
        if (tokens > in->decode_tokens ? tiles * in->block_rows < tokens * in->group || pieces : tiles)
            return 0;
        if (tokens > 0 && tokens <= in->decode_tokens && (pieces == 0 || pieces != wanted)) return 0;
    }
    return 1;
}

static triton_plan_t make_plan(const triton_plan_limits_t *l) {
    triton_plan_t plan = {.items = calloc((size_t)l->items, sizeof *plan.items),
                          .splits = calloc((size_t)l->splits + 1, sizeof *plan.splits),
                          .tiles = calloc((size_t)l->tiles, sizeof *plan.tiles),
                          .tile_keys = calloc((size_t)l->tiles, sizeof *plan.tile_keys),
                          .scratch = calloc((size_t)l->seqs, sizeof *plan.scratch),
                          .cuts = calloc((size_t)l->seqs, sizeof *plan.cuts)};
    return plan;
}

static void drop_plan(triton_plan_t *plan) {
    free(plan->items), free(plan->splits), free(plan->tiles), free(plan->tile_keys), free(plan->scratch);
    free(plan->cuts);
}

static void plans(uint64_t seed) {
    triton_plan_input_t in = {.group = 4,
                              .kv_heads = 8,
                              .decode_tokens = 2,
                              .decode_rows = 8,
                              .slots = 132,
                              .least_keys = 256,
                              .block_rows = 128,
                              .causal = 1};
    triton_plan_limits_t l = {.seqs = 256, .tokens = 8192};
    triton_plan_capacity(&in, &l);
    triton_plan_t plan = make_plan(&l);
    int32_t q[257] = {0}, kv[256];
    int bad = 0, order = 0;
    srand((unsigned)seed);
    for (int round = 0; round < 300; round++) {
        int n = rand() % 40, left = 8192;
        for (int r = 0; r < n; r++) {
            int tokens = rand() % 3 ? rand() % 3 : rand() % (left / (n - r) + 1);
            q[r + 1] = q[r] + tokens, left -= tokens;
            kv[r] = tokens + (rand() % 4 ? rand() % 2000 : rand() % 100000);
        }
        triton_plan_build(&in, &l, q, kv, n, &plan);
        bad += !covered(&plan, &in, q, n) || plan.num_items > l.items || plan.num_splits > l.splits ||
               plan.num_tiles > l.tiles || plan.num_parts > l.parts;
        for (int i = 1; i < plan.num_tiles; i++)
            order += plan.tile_keys[i] > plan.tile_keys[i - 1];
    }
    ok(bad == 0, "300 random batches are covered within the capacities (%d are not)", bad);
    ok(order == 0, "blocks of prefill run longest first");
    q[1] = 1, kv[0] = 131072;
    triton_plan_build(&in, &l, q, kv, 1, &plan);
    ok(plan.num_items == 16, "one long request is cut into one wave of 8 x 16 CTAs (%d segments)",
       plan.num_items);
    for (int r = 0; r < 256; r++)
        q[r + 1] = r + 1, kv[r] = 1024;
    triton_plan_build(&in, &l, q, kv, 256, &plan);
    ok(plan.num_splits == 0 && plan.num_items == 256, "many short requests are not cut");
    in.segments = 1, q[1] = 1, kv[0] = 131072;
    triton_plan_build(&in, &l, q, kv, 1, &plan);
    ok(plan.num_items == 1 && plan.num_splits == 0, "segments = 1 means one, for batch invariance");
    drop_plan(&plan);
}

/* Returns 0, or the number of the first rule that is broken: every block is whole, or its pieces are there
 * once each, in slots that no other request has, with a ticket that no other block has. */
static int check_cuts(const triton_plan_t *plan, const triton_plan_input_t *in, const triton_plan_limits_t *l,
                      const int32_t *q, const int32_t *kv, int n) {
    static uint8_t ticket_seen[65536], slot_seen[65536];
    memset(ticket_seen, 0, sizeof ticket_seen), memset(slot_seen, 0, sizeof slot_seen);
    const int64_t heads = (int64_t)in->kv_heads * in->group;
    if (plan->num_tiles > l->tiles || plan->num_tickets > l->tickets ||
        (plan->num_slots > 0 && plan->num_slots * (int64_t)plan->cut_rows > l->rows))
        return 1;
    for (int r = 0; r < n; r++) {
        const int tokens = q[r + 1] - q[r];
        if (tokens <= in->decode_tokens) continue;
        int slot = -1, most = 0;
        for (int b = 0; b * in->block_rows < tokens * in->group; b++) {
            int entries = 0, own = 0, ticket = -1;
            int64_t keys = 0, last = ((int64_t)(b + 1) * in->block_rows - 1) / in->group,
                    end = last < tokens ? kv[r] - tokens + last + 1 : kv[r];
            uint8_t seen[256] = {0};
            for (int i = 0; i < plan->num_tiles; i++) {
                const triton_tile_t *t = &plan->tiles[i];
                if (t->seq != r || t->block != b) continue;
                if (seen[t->piece]++ || t->piece >= t->pieces) return 2;
                if ((own && t->pieces != own) || (ticket >= 0 && t->ticket != ticket)) return 3;
                if (t->pieces > 1 ? t->slot < 0 || (slot >= 0 && t->slot != slot) : t->slot >= 0) return 4;
                if (t->pieces > 1) slot = t->slot;
                own = t->pieces, ticket = t->ticket, entries++;
                keys += plan->tile_keys[i];
            }
            if (entries != own || keys != end) return 5;
            if (own > 1 && ticket_seen[ticket]++) return 6;
            most = own > most ? own : most;
        }
        if (tokens * heads > plan->cut_rows && slot >= 0) return 7;
        for (int i = 0; i < most && slot >= 0; i++)
            if (slot + i >= plan->num_slots || slot_seen[slot + i]++) return 8;
    }
    return 0;
}

/* CTAs are those that the batch's tokens take: with room for more tokens, steps of one are cut as without,
 * and a step of eight has segments for four times the CTAs. */
static void row_blocks(void) {
    triton_plan_input_t in = {.group = 4,
                              .kv_heads = 8,
                              .decode_tokens = 2,
                              .decode_rows = 8,
                              .slots = 528,
                              .least_keys = 128,
                              .block_rows = 128,
                              .causal = 1};
    int items[2][2];
    for (int wide = 0; wide < 2; wide++) {
        in.decode_tokens = wide ? 8 : 2;
        triton_plan_limits_t l = {.seqs = 8, .tokens = 64, .keys = 131072};
        triton_plan_capacity(&in, &l);
        triton_plan_t plan = make_plan(&l);
        for (int many = 0; many < 2; many++) {
            const int32_t q[2] = {0, many ? 8 : 1}, kv[1] = {65536};
            triton_plan_build(&in, &l, q, kv, 1, &plan);
            items[wide][many] = plan.num_items;
            if (many)
                ok(wide ? plan.num_tiles == 0 && plan.max_decode_tokens == 8 : plan.num_tiles == 1,
                   "eight tokens are %s", wide ? "decode" : "a block of prefill");
        }
        drop_plan(&plan);
    }
    ok(items[0][0] == items[1][0], "one token is cut as without room for eight (%d and %d)", items[0][0],
       items[1][0]);
    ok(items[1][1] * 2 < items[1][0],
       "eight tokens are cut into fewer pieces (%d), since each is four CTAs (%d)", items[1][1], items[1][0]);

    in.kv_heads = 1, in.group = 8;
    triton_plan_limits_t l = {.seqs = 8, .tokens = 64, .keys = 131072};
    triton_plan_capacity(&in, &l);
    triton_plan_t plan = make_plan(&l);
    static const int lens[2] = {8192, 32768}, best[2][2] = {{24, 40}, {48, 80}};
    for (int i = 0; i < 2; i++) {
        const int32_t q[2] = {0, 1}, kv[1] = {lens[i]};
        triton_plan_build(&in, &l, q, kv, 1, &plan);
        ok(plan.num_items >= best[i][0] && plan.num_items <= best[i][1],
           "one KV head, %d keys: %d pieces, for one CTA merges them all", lens[i], plan.num_items);
    }
    drop_plan(&plan);
}

/* Which of two decodes a batch has: CTAs of 8 rows, or of 16 where fewer of them read the keys. */
static void wide(void) {
    const triton_plan_input_t in = {.group = 4, .kv_heads = 8, .decode_tokens = 8, .decode_rows = 8};
    static const struct {
        int n;
        int32_t tokens[3], keys[3];
        int is_wide;
        const char *what;
    } cases[] = {{1, {1}, {8192}, 0, "one token"},
                 {1, {2}, {8192}, 0, "eight rows"},
                 {1, {3}, {8192}, 1, "twelve rows"},
                 {1, {4}, {8192}, 1, "sixteen"},
                 {1, {5}, {8192}, 1, "twenty: two CTAs of three"},
                 {1, {8}, {8192}, 1, "thirty-two"},
                 {1, {9}, {8192}, 0, "a prompt"},
                 {3, {1, 4, 9}, {8192, 8192, 90000}, 1, "as many keys of one token as of four, and a prompt"},
                 {3, {1, 4, 0}, {60000, 8192, 90000}, 0, "most keys are those of one token"},
                 {3, {4, 1, 1}, {60000, 8192, 8192}, 1, "most keys are those of four"},
                 {0, {0}, {0}, 0, "no request"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t q[4] = {0};
        for (int r = 0; r < cases[i].n; r++)
            q[r + 1] = q[r] + cases[i].tokens[r];
        ok(triton_plan_is_wide(&in, 16, q, cases[i].keys, cases[i].n) == cases[i].is_wide,
           "CTAs of %d rows: %s", cases[i].is_wide ? 16 : 8, cases[i].what);
    }
    static const struct {
        const char *rest;
        uint32_t kv_heads;
        int has_wide;
    } problems[] = {{"kv_cache_dtype=int8_per_token_head", 8, 1},
                    {"kv_cache_dtype=nvfp4", 4, 1},
                    {"kv_cache_dtype=turboquant_4bit_nc", 8, 1},
                    {"kv_cache_dtype=fp8_e4m3 features=batch_invariant", 8, 0},
                    {"kv_cache_dtype=fp8_e4m3", 2, 0}, /* decode itself has 16 rows */
                    {"kv_cache_dtype=bfloat16", 8, 0}};
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        char text[300];
        triton_config_t c, two;
        snprintf(text, sizeof text, DECODER "head_size=128 %s", problems[i].rest);
        attn_problem_t p = problem(text);
        p.num_kv_heads = problems[i].kv_heads;
        triton_configure(&p, 90, &c);
        const int has = triton_config_wide(&c, &two) == 0;
        ok(has == problems[i].has_wide && (!has || (two.decode_rows == 16 && c.decode_rows == 8 &&
                                                    two.decode_smem <= triton_smem_of_block(90))),
           "%s, groups of %d: %s second decode", problems[i].rest, c.group, has ? "a" : "no");
    }
}

static void cuts(void) {
    triton_plan_input_t in = {.group = 4,
                              .kv_heads = 8,
                              .decode_tokens = 4,
                              .decode_rows = 8,
                              .slots = 264,
                              .least_keys = 256,
                              .block_rows = 128,
                              .causal = 1,
                              .cut_slots = 132,
                              .cut_grain = 128};
    triton_plan_limits_t l = {.seqs = 64, .tokens = 8192, .keys = 131072};
    triton_plan_capacity(&in, &l);
    triton_plan_t plan = make_plan(&l);
    int32_t q[65] = {0}, kv[64];
    int rule = 0, cut = 0;
    for (int round = 0; round < 1000 && !rule; round++) {
        const int n = 1 + rand() % 8;
        for (int r = 0; r < n; r++) {
            const int tokens = rand() % 3 ? rand() % 6 : rand() % 300;
            q[r + 1] = q[r] + tokens;
            kv[r] = tokens + (rand() % 2 ? rand() % 2000 : rand() % 100000);
        }
        triton_plan_build(&in, &l, q, kv, n, &plan);
        rule = check_cuts(&plan, &in, &l, q, kv, n);
        cut += plan.num_slots > 0;
    }
    ok(rule == 0 && cut > 100, "1000 random batches, %d of them cut: pieces are there once (rule %d)", cut,
       rule);
    q[1] = 128, kv[0] = 65536;
    triton_plan_build(&in, &l, q, kv, 1, &plan);
    ok(plan.num_slots == 4 && plan.num_tiles == 16 && plan.num_tickets == 4,
       "128 tokens behind 65536 keys: 4 blocks in 4 pieces (%d tiles)", plan.num_tiles);
    q[1] = 16;
    triton_plan_build(&in, &l, q, kv, 1, &plan);
    ok(plan.num_slots >= 14 && plan.num_tiles == plan.num_slots, "16 tokens: a block in %d", plan.num_slots);
    kv[0] = 900;
    triton_plan_build(&in, &l, q, kv, 1, &plan);
    ok(plan.num_slots == 0 && plan.num_tiles == 1 && plan.tiles[0].slot < 0, "few keys are not cut");
    kv[0] = 65536, in.segments = 1;
    triton_plan_build(&in, &l, q, kv, 1, &plan);
    ok(plan.num_slots == 0, "nor is anything with batch invariance");
    in.segments = 0, in.cut_slots = 0;
    triton_plan_build(&in, &l, q, kv, 1, &plan);
    ok(plan.num_slots == 0, "nor for a captured launch, or with windows");
    drop_plan(&plan);
}

static int logged;
static void count_log(void *ctx, uint32_t level, const char *text) {
    (void)ctx, (void)level, (void)text;
    logged++;
}

static void folder(void) {
    char dir[] = "/tmp/attn-triton-store-XXXXXX", path[256], key[] = "sm_90-0123";
    const char code[] = "machine code";
    void *back = NULL;
    size_t bytes = 0;
    attn_host_t host = {.struct_size = sizeof host, .log = count_log};
    ATTN_INIT(attn_error_t, e);
    if (mkdtemp(dir) == NULL) bail_out("no temporary folder");
    ok(triton_store_check(dir, &e) == ATTN_OK, "a folder of ours with mode 0700 is taken");
    ok(triton_store_load(dir, key, &back, &bytes, &host) != 0 && logged == 0,
       "what is not there is not an incident");
    triton_store_save(dir, key, code, sizeof code, &host);
    ok(triton_store_load(dir, key, &back, &bytes, &host) == 0 && bytes == sizeof code &&
           !memcmp(back, code, bytes),
       "stored and loaded");
    free(back);
    back = NULL;
    snprintf(path, sizeof path, "%s/%s.cubin", dir, key);
    int fd = open(path, O_WRONLY);
    int wrote = (int)pwrite(fd, "X", 1, 30);
    close(fd);
    ok(wrote == 1 && triton_store_load(dir, key, &back, &bytes, &host) != 0 && logged == 1,
       "a damaged file is noticed and not used");
    ok(truncate(path, 10) == 0 && triton_store_load(dir, key, &back, &bytes, &host) != 0 && logged == 2,
       "so is a short one");
    triton_store_save(dir, key, code, sizeof code, &host);
    ok(triton_store_load(dir, key, &back, &bytes, &host) == 0, "writing again mends it");
    free(back);
    chmod(path, 0666);
    ok(triton_store_load(dir, key, &back, &bytes, &host) != 0 && logged == 3,
       "a file that others may write is not trusted");
    unlink(path);
    chmod(dir, 0755);
    ok(triton_store_check(dir, &e) == ATTN_E_TRUST && !strcmp(e.param, "cache_dir"),
       "a folder that others may read is refused");
    ok(triton_store_check("kernels", &e) == ATTN_E_INVALID, "a relative path is refused");
    ok(triton_store_check("/dev/null/x", &e) == ATTN_E_IO, "a folder that cannot be made is an error");
    rmdir(dir);
    logged = 0;
    triton_store_save(dir, key, code, sizeof code, &host);
    ok(logged == 1, "a folder that went away costs a log line, no more");
}

static void answers(void) {
    char path[512];
    snprintf(path, sizeof path, "%s/triton_like.so",
             getenv("ATTN_TEST_PLUGIN_DIR") ? getenv("ATTN_TEST_PLUGIN_DIR") : ".");
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const attn_plugin_t *plugin = so != NULL ? dlsym(so, ATTN_PLUGIN_SYMBOL_NAME) : NULL;
    ok(plugin != NULL && plugin->num_backends == 2, "the plugin loads without driver and NVRTC (%s)",
       plugin ? "yes" : dlerror());
    if (plugin == NULL) return;
    const attn_backend_t *b = plugin->backends[0];
    ATTN_INIT(attn_error_t, e);
    static const char *const served[] = {
        DECODER "head_size=128",
        DECODER "head_size=37",
        DECODER "head_size=512 logits_soft_cap=50",
        DECODER "head_size=64 rswa_window=8",
        DECODER "head_size=128 head_size_v=64 features=alibi_sqrt,sink,lse",
        DECODER "head_size=80 kv_cache_dtype=fp8_per_token_head",
        DECODER "head_size=100 head_size_v=64 kv_cache_dtype=int8_static_v features=sink,lse",
        DECODER "head_size=256 kv_cache_dtype=int8_k_only sliding_window=90",
        DECODER "head_size=80 kv_cache_dtype=nvfp4 query_dtype=fp8_e4m3 features=per_head_scales",
        "role=mm_encoder mask=full dtype=float16 num_heads=16 head_size=72 scale=0.1",
        "role=encoder_decoder mask=full dtype=float32 num_heads=8 head_size=64 block_size=16 scale=0.1"};
    static const int archs[] = {80, 90, 100};
    int refused = 0;
    for (size_t i = 0; i < sizeof served / sizeof served[0]; i++)
        for (int a = 0; a < 3; a++) {
            attn_device_t device = {
                .struct_size = sizeof device, .type = kDLCUDA, .id = -1, .compute_capability = archs[a]};
            attn_reason_t first;
            attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = &first};
            attn_problem_t p = problem(served[i]);
            attn_backend_validate(b, &p, &device, &reasons, &e);
            if (reasons.count != 0 && refused++ < 3) diag("sm_%d, %s: %s", archs[a], served[i], first.text);
        }
    ok(refused == 0, "head sizes, masks and formats of every kind validate for sm_80, sm_90, sm_100");

    static const struct {
        const char *text, *param;
    } wrong[] = {{DECODER "head_size=16", "head_size"},
                 {DECODER "head_size=72 kv_cache_dtype=nvfp4", "head_size"},
                 {DECODER "head_size=64 kv_cache_dtype=nvfp4 features=separate_kv", "separate_kv"},
                 {DECODER "head_size=66 kv_cache_dtype=int8_static_v", "head_size"},
                 {DECODER "head_size=64 kv_cache_dtype=int8_k_only query_dtype=fp8_e4m3", "query_dtype"},
                 {DECODER "head_size=64 sliding_window=8 rswa_window=8", "rswa_window"},
                 {DECODER "head_size=64 features=cascade", "cascade"},
                 {"role=decoder mask=causal dtype=bfloat16 num_heads=32 num_kv_heads=8 head_size=64 "
                  "block_size=8 scale=0.1",
                  "block_size"},
                 {"role=encoder mask=full dtype=float16 num_heads=8 head_size=64 rswa_window=3 scale=0.1",
                  "rswa_window"}};
    attn_device_t here = {.struct_size = sizeof here, .type = kDLCUDA, .compute_capability = 90};
    attn_instance_t *in = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        attn_problem_t p;
        if (attn_problem_parse(wrong[i].text, &p, &e) != ATTN_OK) continue; /* the core refuses it already */
        memset(e.param, 0, sizeof e.param);
        int rc = b->ops->open(&p, &here, NULL, 0, NULL, &in, &e);
        ok(rc != ATTN_OK && !strcmp(e.param, wrong[i].param), "open refuses %s by name (%s)", wrong[i].param,
           e.text);
    }
    attn_problem_t p = problem(DECODER "head_size=128");
    attn_device_t cpu = {.struct_size = sizeof cpu, .type = kDLCPU};
    ok(b->ops->open(&p, &cpu, NULL, 0, NULL, &in, &e) == ATTN_E_DEVICE && !strcmp(e.param, "device"),
       "a CPU is refused");
    here.id = 4096;
    ok(b->ops->open(&p, &here, NULL, 0, NULL, &in, &e) == ATTN_E_DEVICE,
       "a device that is not here is refused (%s)", e.text);
    ok(b->ops->get_extension(NULL, "attn.ext.nothing/0") == NULL, "an extension that nobody has is NULL");
    const attn_compile_extension_t *x = b->ops->get_extension(NULL, ATTN_COMPILE_EXTENSION);
    ok(x != NULL && x->compile != NULL, "there is %s", ATTN_COMPILE_EXTENSION);
    attn_option_value_t options[2] = {
        {.struct_size = sizeof options[0], .type = ATTN_OPTION_STRING, .name = "cache_dir", .s = ""},
        {.struct_size = sizeof options[0],
         .type = ATTN_OPTION_STRING,
         .name = "nvrtc",
         .s = "/no/such/libnvrtc.so"}};
    here.id = -1;
    ok(x != NULL && x->compile(&p, &here, options, 2, NULL, NULL, &e) == ATTN_E_DEVICE &&
           !strcmp(e.param, "nvrtc"),
       "a missing NVRTC is said by name (%s)", e.text);
}

int main(void) {
    uint64_t seed = tap_seed();
    configurations();
    plans(seed);
    row_blocks();
    wide();
    cuts();
    folder();
    answers();
    return tap_done();
}
