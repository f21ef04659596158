/* SPDX-License-Identifier: Apache-2.0 */
/* indexer: attn.draft.indexer/0 of the backends on CPUs against straightforward code of its own: bytes of the
 * cache, logits, top-k by sorting, chunks of prefill, and what is refused. */
#include "../../tap.h"

#include <attn/attn_plugin_util.h>
#include <attn/draft/attn_indexer.h>

#include <dlfcn.h>
#include <unistd.h>

static const attn_indexer_extension_t *x;
static attn_indexer_t *in;
static attn_error_t error = {.struct_size = sizeof error};
static uint64_t seed;

typedef struct tensor {
    DLTensor t;
    int64_t shape[3], strides[3];
} tensor_t;

static const DLTensor *over(tensor_t *x_, void *data, uint32_t dtype, int ndim, int64_t a, int64_t b,
                            int64_t c) {
    const int64_t shape[3] = {a, b, c};
    int64_t count = 1;
    *x_ = (tensor_t){.t = {.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = attn_dl_dtype(dtype)}};
    for (int i = ndim - 1; i >= 0; i--) {
        x_->shape[i] = shape[i], x_->strides[i] = count;
        count *= shape[i];
    }
    x_->t.shape = x_->shape, x_->t.strides = x_->strides;
    return &x_->t;
}

/* OCP e4m3: bias 7, no infinity. */
static double from_e4m3(uint8_t b) {
    int e = b >> 3 & 15, m = b & 7;
    double v = (b & 127) == 127 ? NAN : e == 0 ? m * 0x1p-9 : ldexp(1 + m / 8.0, e - 7);
    return b & 128 ? -v : v;
}

static void open_one(attn_indexer_problem_t p) {
    const attn_device_t device = {.struct_size = sizeof device, .type = kDLCPU};
    p.struct_size = sizeof p;
    x->close(in);
    in = NULL;
    if (x->open(&p, &device, NULL, &in, &error) != ATTN_OK) bail_out("%s", error.text);
}

enum { BS = 16, PAGES = 6, HEADS = 8 };

static void keys(uint32_t format) {
    static float key[40 * 128];
    static uint8_t cache[PAGES * BS * 132], before[sizeof cache];
    int64_t slots[40];
    tensor_t tk, tc, ts;
    open_one((attn_indexer_problem_t){
        .num_heads = HEADS, .block_size = BS, .dtype = ATTN_DTYPE_FLOAT32, .scale_format = format});
    for (int i = 0; i < 40 * 128; i++)
        key[i] = (float)(tap_rand_normal(&seed) * ldexp(1, (int)tap_rand_in(&seed, -8, 4)));
    for (int i = 0; i < 128; i++)
        key[i] = 0,
        key[128 + i] = i == 5 ? -448.0f : (float)(i % 17); /* e4m3 holds these exactly, with scale 1 */
    for (int i = 0; i < 40; i++)
        slots[i] = i == 7 ? -1 : i == 8 ? PAGES * BS : (i * 37) % (PAGES * BS);
    memset(cache, 0xa5, sizeof cache), memcpy(before, cache, sizeof cache);
    attn_indexer_write_t w = {.struct_size = sizeof w,
                              .key = over(&tk, key, ATTN_DTYPE_FLOAT32, 2, 40, 128, 0),
                              .cache = over(&tc, cache, ATTN_DTYPE_UINT8, 3, PAGES, BS, 132),
                              .slot_mapping = over(&ts, slots, ATTN_DTYPE_INT64, 1, 40, 0, 0)};
    is_int(x->write_keys(in, &w, NULL, &error), ATTN_OK, "format %u: keys are written", format);
    int wrong_scale = 0, wrong_value = 0, touched = 0;
    for (int i = 0; i < 40; i++) {
        if (slots[i] < 0 || slots[i] >= PAGES * BS) continue;
        uint8_t *page = cache + slots[i] / BS * BS * 132, *at = page + slots[i] % BS * 128;
        float s, largest = 1e-4f;
        memcpy(&s, page + BS * 128 + slots[i] % BS * 4, 4);
        for (int d = 0; d < 128; d++)
            largest = fmaxf(largest, fabsf(key[i * 128 + d]));
        int e;
        if (format == ATTN_INDEXER_SCALE_FLOAT32)
            wrong_scale += s != largest / 448;
        else
            wrong_scale += frexpf(s, &e) != 0.5f || s * 448 < largest || s * 224 >= largest * 1.000001f;
        for (int d = 0; d < 128; d++) { /* half a step of 3 mantissa bits, or of the subnormals */
            double v = from_e4m3(at[d]) * s, want = key[i * 128 + d];
            wrong_value += !(fabs(v - want) <= fmax(fabs(want) / 16, s * 0x1p-10) * 1.00001);
        }
        memcpy(before + (at - cache), at, 128);
        memcpy(before + (page + BS * 128 + slots[i] % BS * 4 - cache), &s, 4);
    }
    touched = memcmp(before, cache, sizeof cache) != 0;
    is_int(wrong_scale, 0, "format %u: scales are the largest magnitude over 448", format);
    is_int(wrong_value, 0, "format %u: values are within half a step", format);
    ok(!touched, "format %u: slots of -1 and beyond the cache write nothing", format);
    uint8_t *exact = cache + slots[1] / BS * BS * 132 + slots[1] % BS * 128;
    int inexact = 0;
    for (int d = 0; d < 128; d++)
        inexact += from_e4m3(exact[d]) != (double)key[128 + d];
    is_int(inexact, 0, "format %u: values that e4m3 holds stay what they are", format);
}

/* Queries: the scale is the smallest power of two not below the largest magnitude over 448, and goes into the
 * weights. */
static void queries(void) {
    enum { ROWS = 5 };
    static float query[ROWS * HEADS * 128], weights[ROWS * HEADS], out[(ROWS + 1) * HEADS];
    static uint8_t codes[(ROWS + 1) * HEADS * 128];
    tensor_t tq, tw, tc, to;
    int wrong_weight = 0, wrong_value = 0;
    for (int i = 0; i < ROWS * HEADS * 128; i++)
        query[i] = (float)(tap_rand_normal(&seed) * ldexp(1, i / 128 * 2 % 40 - 30));
    for (int i = 0; i < 128; i++)
        query[i] = 0, query[128 + i] = 1e-12f, query[256 + i] = i == 3 ? -448.0f : (float)(i % 16);
    for (int i = 0; i < ROWS * HEADS; i++)
        weights[i] = (float)tap_rand_normal(&seed);
    for (int pass = 0; pass < 2; pass++) { /* the usual factor of the weights, and another */
        const double factor = pass ? 3 : 1 / sqrt(128.0 * HEADS);
        open_one((attn_indexer_problem_t){
            .num_heads = HEADS, .dtype = ATTN_DTYPE_FLOAT32, .weight_scale = pass ? 3 : 0});
        memset(codes, 0xa5, sizeof codes), memset(out, 0, sizeof out);
        attn_indexer_quantize_t q = {
            .struct_size = sizeof q,
            .num_rows = ROWS,
            .query = over(&tq, query, ATTN_DTYPE_FLOAT32, 3, ROWS, HEADS, 128),
            .weights = over(&tw, weights, ATTN_DTYPE_FLOAT32, 2, ROWS, HEADS, 0),
            .quantized = over(&tc, codes, ATTN_DTYPE_FP8_E4M3, 3, ROWS + 1, HEADS, 128),
            .out_weights = over(&to, out, ATTN_DTYPE_FLOAT32, 2, ROWS + 1, HEADS, 0)};
        is_int(x->quantize_queries(in, &q, NULL, &error), ATTN_OK,
               "queries are quantised, weights times %.3g", factor);
        for (int i = 0; i < ROWS * HEADS; i++) {
            double largest = 1e-10, s = ldexp(1, -60);
            for (int d = 0; d < 128; d++)
                largest = fmax(largest, fabs((double)query[i * 128 + d]));
            while (s * 448 < largest * (1 - 1e-7))
                s *= 2;
            wrong_weight += !(fabs(out[i] - weights[i] * s * factor) <= 1e-6 * fabs(weights[i] * s * factor));
            for (int d = 0; d < 128; d++) {
                double v = from_e4m3(codes[i * 128 + d]) * s, want = query[i * 128 + d];
                wrong_value += !(fabs(v - want) <= fmax(fabs(want) / 16, s * 0x1p-10) * 1.00001);
            }
        }
        is_int(wrong_weight, 0, "weights carry the scale and the factor");
        is_int(wrong_value, 0, "values are within half a step");
        ok(codes[ROWS * HEADS * 128] == 0xa5 && out[ROWS * HEADS] == 0, "rows behind are left alone");
    }
}

static void logits_and_gather(void) {
    static uint8_t query[6 * HEADS * 128], cache[PAGES * BS * 132], gathered[50 * 128];
    static float weights[6 * HEADS], scales[50], out[6 * 60], paged[6 * 60];
    int32_t table[2 * 3] = {4, 1, 3, 0, 5, 2}, prefix[3] = {0, 33, 50}, lo[6], hi[6], lens[6];
    tensor_t tq, tw, tc, tt, tp, tg, ts, tl, th, to, tn, tpo;
    open_one((attn_indexer_problem_t){.num_heads = HEADS, .block_size = BS});
    for (size_t i = 0; i < sizeof query; i++)
        query[i] = (uint8_t)tap_rand(&seed) & 0xbf;
    for (size_t i = 0; i < sizeof cache; i++)
        cache[i] = (uint8_t)tap_rand(&seed) & 0xbf;
    for (int p = 0; p < PAGES; p++)
        for (int o = 0; o < BS; o++) {
            float s = (float)(0.25 + tap_rand_unit(&seed));
            memcpy(cache + p * BS * 132 + BS * 128 + o * 4, &s, 4);
        }
    for (int i = 0; i < 6 * HEADS; i++)
        weights[i] = (float)tap_rand_normal(&seed);
    attn_indexer_gather_t g = {.struct_size = sizeof g,
                               .num_reqs = 2,
                               .cache = over(&tc, cache, ATTN_DTYPE_UINT8, 3, PAGES, BS, 132),
                               .block_table = over(&tt, table, ATTN_DTYPE_INT32, 2, 2, 3, 0),
                               .prefix = over(&tp, prefix, ATTN_DTYPE_INT32, 1, 3, 0, 0),
                               .keys = over(&tg, gathered, ATTN_DTYPE_FP8_E4M3, 2, 50, 128, 0),
                               .key_scales = over(&ts, scales, ATTN_DTYPE_FLOAT32, 1, 50, 0, 0)};
    is_int(x->gather_keys(in, &g, NULL, &error), ATTN_OK, "keys of two requests are gathered");
    for (int t = 0; t < 6; t++) {
        int request = t / 3, length = prefix[request + 1] - prefix[request];
        lens[t] = length - 3 + t % 3 + 1;
        lo[t] = prefix[request], hi[t] = prefix[request] + lens[t];
    }
    lo[0] = hi[0] = 5;
    lens[0] = 0;
    for (int i = 0; i < 6 * 60; i++)
        out[i] = paged[i] = 77;
    attn_indexer_logits_t a = {.struct_size = sizeof a,
                               .num_rows = 6,
                               .query = over(&tq, query, ATTN_DTYPE_FP8_E4M3, 3, 6, HEADS, 128),
                               .weights = over(&tw, weights, ATTN_DTYPE_FLOAT32, 2, 6, HEADS, 0),
                               .keys = &tg.t,
                               .key_scales = &ts.t,
                               .row_starts = over(&tl, lo, ATTN_DTYPE_INT32, 1, 6, 0, 0),
                               .row_ends = over(&th, hi, ATTN_DTYPE_INT32, 1, 6, 0, 0),
                               .logits = over(&to, out, ATTN_DTYPE_FLOAT32, 2, 6, 60, 0)};
    attn_indexer_paged_t p = {.struct_size = sizeof p,
                              .flags = ATTN_INDEXER_CLEAN,
                              .num_rows = 6,
                              .rows_per_request = 3,
                              .query = &tq.t,
                              .weights = &tw.t,
                              .cache = &tc.t,
                              .block_table = &tt.t,
                              .row_lens = over(&tn, lens, ATTN_DTYPE_INT32, 1, 6, 0, 0),
                              .logits = over(&tpo, paged, ATTN_DTYPE_FLOAT32, 2, 6, 60, 0)};
    ok(x->logits(in, &a, NULL, &error) == ATTN_OK && x->logits_paged(in, &p, NULL, &error) == ATTN_OK,
       "both forms of logits");
    int wrong = 0, outside = 0, paged_wrong = 0;
    for (int t = 0; t < 6; t++)
        for (int k = 0; k < 60; k++) {
            double want = 0;
            if (k < lo[t] || k >= hi[t]) {
                outside += out[t * 60 + k] != 77;
            } else {
                int request = t / 3, j = k - prefix[request], page = table[request * 3 + j / BS];
                const uint8_t *key = cache + page * BS * 132 + j % BS * 128;
                float s;
                memcpy(&s, cache + page * BS * 132 + BS * 128 + j % BS * 4, 4);
                for (int h = 0; h < HEADS; h++) {
                    double dot = 0;
                    for (int d = 0; d < 128; d++)
                        dot += from_e4m3(query[(t * HEADS + h) * 128 + d]) * from_e4m3(key[d]);
                    want += weights[t * HEADS + h] * fmax(dot, 0);
                }
                want *= s;
                wrong += !(fabs(out[t * 60 + k] - want) <= 1e-6 * fabs(want) + 1e-5);
                paged_wrong += paged[t * 60 + j] != out[t * 60 + k];
            }
            if (k >= lens[t]) outside += !(isinf(paged[t * 60 + k]) && paged[t * 60 + k] < 0);
        }
    is_int(wrong, 0, "logits are key scale times the weighted sum of relus");
    is_int(paged_wrong, 0, "keys in pages give the same logits as gathered ones");
    is_int(outside, 0, "outside a range nothing is written, or -inf where that is asked for");
}

typedef struct item {
    float v;
    int32_t at;
} item_t;
static int better(const void *a, const void *b) {
    const item_t *p = a, *q = b;
    int pn = isnan(p->v), qn = isnan(q->v);
    if (pn != qn) return pn - qn;
    if (!pn && p->v != q->v) return p->v < q->v ? 1 : -1;
    return p->at - q->at;
}
static int by_column(const void *a, const void *b) {
    return *(const int32_t *)a - *(const int32_t *)b;
}

static void selection(void) {
    enum { ROWS = 9, COLUMNS = 1000, K = 256 };
    static float logits[ROWS * COLUMNS];
    static int32_t got[ROWS * K];
    static item_t items[COLUMNS];
    int32_t lo[ROWS] = {0, 3, 0, 100, 0, 700, 990, -5, 0},
            hi[ROWS] = {1000, 900, 256, 357, 0, 600, 2000, 1000, 1000}, want[K];
    tensor_t tl, ts, te, ti;
    open_one((attn_indexer_problem_t){.num_heads = HEADS, .topk = K});
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        float v = (float)tap_rand_in(&seed, -20, 20); /* many ties */
        logits[i] = i % 11 == 0 ? NAN : i % 13 == 0 ? -INFINITY : v == 0 && i % 2 ? -0.0f : v;
        if (i >= 8 * COLUMNS) logits[i] = 1;
    }
    attn_indexer_select_t a = {.struct_size = sizeof a,
                               .num_rows = ROWS,
                               .logits = over(&tl, logits, ATTN_DTYPE_FLOAT32, 2, ROWS, COLUMNS, 0),
                               .row_starts = over(&ts, lo, ATTN_DTYPE_INT32, 1, ROWS, 0, 0),
                               .row_ends = over(&te, hi, ATTN_DTYPE_INT32, 1, ROWS, 0, 0),
                               .indices = over(&ti, got, ATTN_DTYPE_INT32, 2, ROWS, K, 0)};
    is_int(x->select(in, &a, NULL, &error), ATTN_OK, "selection");
    for (int t = 0; t < ROWS; t++) {
        int first = lo[t] < 0 ? 0 : lo[t], last = hi[t] > COLUMNS ? COLUMNS : hi[t],
            n = last > first ? last - first : 0;
        for (int i = 0; i < n; i++)
            items[i] = (item_t){logits[t * COLUMNS + first + i], i};
        qsort(items, (size_t)n, sizeof items[0], better);
        for (int i = 0; i < K; i++)
            want[i] = i < n ? items[i].at : -1;
        qsort(want, (size_t)(n < K ? n : K), sizeof want[0], by_column);
        ok(memcmp(want, got + t * K, sizeof want) == 0, "row %d, keys %d to %d: as sorting gives it", t,
           lo[t], hi[t]);
    }
}

static void chunks(void) {
    attn_indexer_chunk_t c[16];
    attn_indexer_space_t s = {.struct_size = sizeof s};
    int32_t n = -1, start[5] = {0, 100, 200, 200, 1200}, lens[4] = {300, 400, 50, 1000};
    open_one((attn_indexer_problem_t){
        .num_heads = HEADS, .max_model_len = 1000, .max_logits_bytes = 4 * 200 * 700});
    is_int(x->plan_prefill(in, 4, start, lens, c, 16, &n, &error), ATTN_OK, "a batch is planned");
    /* 200 rows of 700 keys fit exactly, with the third request 750 do not; alone the third has no row, with
     * the fourth 1050 keys of 1000 rows do not fit either; the fourth has 140 rows a piece */
    is_int(n, 1 + 8, "two requests together, one without new tokens, eight pieces of the large one");
    ok(c[0].first_req == 0 && c[0].num_reqs == 2 && c[0].num_rows == 200 && c[0].num_keys == 700 &&
           c[0].gathers,
       "requests share a chunk as long as their logits fit");
    int64_t rows = 0;
    int bad = 0;
    for (int i = 1; i < n && i < 16; i++) {
        bad += c[i].first_req != 3 || c[i].num_reqs != 1 || c[i].first_row != 200 + rows ||
               c[i].num_keys != 1000 || c[i].num_rows > 140 || c[i].gathers != (i == 1);
        rows += c[i].num_rows;
    }
    ok(bad == 0 && rows == 1000, "a request too large is cut along its rows and gathered once");
    is_int(x->plan_prefill(in, 4, start, lens, c, 1, &n, &error), ATTN_OK, "a short list is no error");
    is_int(n, 9, "the count is whole all the same");
    lens[0] = 99;
    is_int(x->plan_prefill(in, 4, start, lens, c, 16, &n, &error), ATTN_E_INVALID,
           "more new tokens than tokens are refused");
    lens[0] = 1001;
    is_int(x->plan_prefill(in, 4, start, lens, c, 16, &n, &error), ATTN_E_INVALID,
           "so is a request beyond max_model_len");
    is_str(error.param, "seq_lens", "by name");
    x->space_needed(in, &s, &error);
    ok(s.max_gathered_keys == 40000 && s.gathered_key_bytes == 40000 * 128 &&
           s.prefill_logits_bytes == 4 * 200 * 700,
       "space for 40 times max_model_len keys and the logits of a chunk");
    attn_kv_cache_shape_t shape = {.struct_size = sizeof shape};
    x->cache_shape(in, 10, &shape, &error);
    ok(shape.ndim == 3 && shape.shape[1] == 64 && shape.shape[2] == 132 && shape.page_bytes == 8448 &&
           shape.total_bytes == 84480 && shape.k_scale_offset == 8192,
       "pages of 64 keys have 8448 bytes, the scales behind the values");
}

static void refused(void) {
    const attn_device_t device = {.struct_size = sizeof device, .type = kDLCPU};
    static const struct {
        attn_indexer_problem_t p;
        const char *param;
    } bad[] = {
        {{.struct_size = sizeof(attn_indexer_problem_t)}, "num_heads"},
        {{.struct_size = sizeof(attn_indexer_problem_t), .num_heads = 12}, "num_heads"},
        {{.struct_size = sizeof(attn_indexer_problem_t), .num_heads = 64, .head_size = 64}, "head_size"},
        {{.struct_size = sizeof(attn_indexer_problem_t), .num_heads = 64, .block_size = 20}, "block_size"},
        {{.struct_size = sizeof(attn_indexer_problem_t), .num_heads = 64, .topk = 4096}, "topk"},
        {{.struct_size = sizeof(attn_indexer_problem_t), .num_heads = 64, .dtype = ATTN_DTYPE_INT8}, "dtype"},
        {{.struct_size = sizeof(attn_indexer_problem_t), .num_heads = 64, .scale_format = 3},
         "scale_format"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        attn_indexer_t *none = NULL;
        int status = x->open(&bad[i].p, &device, NULL, &none, &error);
        ok(status < 0 && none == NULL && !strcmp(error.param, bad[i].param),
           "a problem with a wrong %s is refused by name", bad[i].param);
    }
    float row[4] = {0};
    int32_t end = 4, out[2048];
    tensor_t tl, te, ti;
    open_one((attn_indexer_problem_t){.num_heads = 64});
    attn_indexer_select_t a = {.struct_size = sizeof a,
                               .num_rows = 1,
                               .logits = over(&tl, row, ATTN_DTYPE_FLOAT32, 2, 1, 4, 0),
                               .indices = over(&ti, out, ATTN_DTYPE_INT32, 2, 1, 2048, 0)};
    is_int(x->select(in, &a, NULL, &error), ATTN_E_INVALID, "a missing tensor is refused");
    is_str(error.param, "row_ends", "by name");
    a.row_ends = over(&te, &end, ATTN_DTYPE_INT32, 1, 1, 0, 0);
    a.indices = over(&ti, out, ATTN_DTYPE_INT32, 2, 1, 1024, 0);
    is_int(x->select(in, &a, NULL, &error), ATTN_E_INVALID, "indices narrower than topk are refused");
    has_str(error.text, "2048", "the text says what was wanted");
    a.struct_size = 0;
    is_int(x->select(in, &a, NULL, NULL), ATTN_E_INVALID, "arguments without a size are refused");
    struct {
        attn_indexer_select_t a;
        uint64_t more;
    } longer = {.a = a, .more = 1};
    longer.a.struct_size = sizeof longer;
    is_int(x->select(in, &longer.a, NULL, &error), ATTN_E_TOO_NEW,
           "arguments of a newer header that says something new too");
}

static void of_plugin(const char *name) {
    char path[4096];
    const char *folder = getenv("ATTN_TEST_PLUGIN_DIR");
    snprintf(path, sizeof path, "%s/%s.so", folder != NULL ? folder : "plugins-built", name);
    if (access(path, F_OK) != 0) return; /* not built */
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const attn_plugin_t *plugin = file ? dlsym(file, ATTN_PLUGIN_SYMBOL_NAME) : NULL;
    if (plugin == NULL) bail_out("%s: %s", path, dlerror());
    diag("%s", name);
    const attn_backend_ops_t *ops = plugin->backends[0]->ops;
    ok(ops->get_extension(NULL, "attn.draft.indexer/1") == NULL, "an extension that nobody has is NULL");
    x = ops->get_extension(NULL, ATTN_INDEXER_EXTENSION);
    if (!ok(x != NULL, "there is %s", ATTN_INDEXER_EXTENSION)) return;
    keys(ATTN_INDEXER_SCALE_FLOAT32);
    keys(ATTN_INDEXER_SCALE_UE8M0);
    queries();
    logits_and_gather();
    selection();
    chunks();
    refused();
    x->close(in);
    in = NULL;
}

int main(void) {
    seed = tap_seed();
    of_plugin("reference");
    of_plugin("cpu");
    return tap_done();
}
