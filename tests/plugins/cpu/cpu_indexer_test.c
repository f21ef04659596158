/* SPDX-License-Identifier: Apache-2.0 */
/* The indexer on CPUs (semantics 9.4, 9.5): the logits of every level that this CPU has against double, and
 * each call of attn.draft.indexer/0 of CPU_ATTN against REFERENCE's: the same bytes where the format or the
 * result is exact, logits within a tolerance, to 131072 keys, NaN among the inputs. */
#include "../../tap.h"

#include "cpu_kernels.h"

#include <attn/attn_plugin_util.h>
#include <attn/draft/attn_indexer.h>

#include <dlfcn.h>
#include <unistd.h>

static const attn_indexer_extension_t *cpu, *reference;
static attn_indexer_t *both[2]; /* REFERENCE's, CPU_ATTN's */
static attn_error_t error = {.struct_size = sizeof error};
static uint64_t seed;

static float random_scale(void) {
    return (float)ldexp(1 + tap_rand_unit(&seed), (int)tap_rand_in(&seed, -6, 1));
}

/* One call of a level's kernel: ranges of all kinds, NaN in a key and in a head. Returns the largest error
 * over the largest logit, 1 where something outside a range was written. */
static double level_error(const struct cpu_kernels *k, int heads, int rows, int n, int column) {
    enum { D = CPU_INDEX_SIZE, GUARD = 77 };
    const int columns = column + n + 9;
    uint8_t *q = malloc((size_t)rows * heads * D), *keys = malloc((size_t)n * D);
    float *w = malloc((size_t)rows * heads * 4), *scales = malloc((size_t)n * 4),
          *out = malloc((size_t)rows * columns * 4);
    const char **list = malloc((size_t)n * sizeof *list);
    int32_t first[8], end[8];
    for (int i = 0; i < rows * heads * D; i++)
        q[i] = (uint8_t)tap_rand(&seed) & 0xbf;
    for (int i = 0; i < n * D; i++)
        keys[i] = (uint8_t)tap_rand(&seed) & 0xbf;
    q[D + 5] = 0x7f, keys[(n / 2) * D + 9] = 0xff;
    for (int i = 0; i < rows * heads; i++)
        w[i] = (float)tap_rand_normal(&seed);
    for (int i = 0; i < n; i++)
        scales[i] = random_scale(), list[i] = (const char *)keys + (size_t)(n - 1 - i) * D;
    for (int i = 0; i < rows * columns; i++)
        out[i] = GUARD;
    for (int t = 0; t < rows; t++) {
        first[t] = t == 0 ? INT32_MIN : (int32_t)tap_rand_in(&seed, 0, column + n / 2);
        end[t] = t == 0   ? INT32_MAX
                 : t == 1 ? first[t]
                 : t == 2 ? INT32_MIN
                          : (int32_t)tap_rand_in(&seed, column, column + n + 5);
    }
    const size_t bytes = (k->index_bytes(heads, rows) + 63) / 64 * 64;
    char *scratch = aligned_alloc(64, bytes);
    memset(scratch, 0xff, bytes);
    const struct cpu_index x = {.heads = heads,
                                .amx = (cpu_bits() & CPU_BIT_AMX_BF16) != 0,
                                .q = (const char *)q,
                                .q_row = (int64_t)heads * D,
                                .q_head = D,
                                .weights = (const char *)w,
                                .weights_row = heads * 4,
                                .logits = (char *)out,
                                .logits_row = columns * 4,
                                .first = first,
                                .end = end};
    k->index(&x, 0, rows, column, n, list, scales, scratch);
    double worst = 0, largest = 1e-30;
    for (int t = 0; t < rows; t++)
        for (int c = 0; c < columns; c++) {
            const float got = out[t * columns + c];
            if (c < first[t] || c >= end[t] || c < column || c >= column + n) {
                if (got != GUARD) worst = INFINITY;
                continue;
            }
            double want = 0;
            for (int h = 0; h < heads; h++) {
                double dot = 0;
                for (int d = 0; d < D; d++)
                    dot += attn_from_e4m3(q[(t * heads + h) * D + d]) *
                           attn_from_e4m3((uint8_t)list[c - column][d]);
                want += w[t * heads + h] * (dot > 0 ? dot : 0);
            }
            want *= scales[c - column];
            largest = fmax(largest, fabs(want));
            worst = fabs(got - want) <= worst ? worst : fabs(got - want);
        }
    free(q), free(keys), free(w), free(scales), free(out), free((void *)list), free(scratch);
    return worst / largest;
}

static void levels(void) {
    for (int i = 0; cpu_levels[i] != NULL; i++) {
        const struct cpu_kernels *k = cpu_levels[i];
        double worst = 0;
        if ((k->needs & ~cpu_bits()) != 0) {
            diag("level %s: not on this CPU", k->name);
            continue;
        }
        for (int c = 0; c < 40; c++) {
            const double e = level_error(k, 8 * (int)tap_rand_in(&seed, 1, c % 4 ? 8 : 16), 1 + c % 8,
                                         (int)tap_rand_in(&seed, 1, 400), c % 3 ? 0 : c * 17);
            worst = e <= worst ? worst : e;
        }
        ok(worst < 1e-5, "level %s: logits within 1e-5 of the largest: %.1e", k->name, worst);
    }
}

/* One tensor that both backends get, outputs twice. */
typedef struct pair {
    DLTensor t[2];
    int64_t shape[3], strides[3];
    size_t bytes;
} pair_t;

/* gap: elements between rows beyond the dense ones. Filled with a pattern that is a NaN in float32. */
static void make(pair_t *p, uint32_t dtype, int ndim, int64_t a, int64_t b, int64_t c, int64_t gap) {
    const int64_t shape[3] = {a, b, c};
    int64_t count = 1;
    memset(p, 0, sizeof *p);
    for (int i = ndim - 1; i >= 0; i--) {
        p->shape[i] = shape[i], p->strides[i] = count;
        count *= shape[i];
        if (i == 1) count += gap;
    }
    p->bytes = (size_t)count * attn_dtype_size(dtype) + 256;
    for (int i = 0; i < 2; i++) {
        p->t[i] = (DLTensor){.device = {kDLCPU, 0},
                             .ndim = ndim,
                             .dtype = attn_dl_dtype(dtype),
                             .shape = p->shape,
                             .strides = p->strides,
                             .data = malloc(p->bytes)};
        if (p->t[i].data == NULL) bail_out("out of memory");
        memset(p->t[i].data, 0xff, p->bytes);
    }
}
static void drop(pair_t *p) {
    free(p->t[0].data), free(p->t[1].data);
}
static void copy(pair_t *p) {
    memcpy(p->t[1].data, p->t[0].data, p->bytes);
}
static int same(const pair_t *p) {
    return memcmp(p->t[0].data, p->t[1].data, p->bytes) == 0;
}
/* The same but for the sign of NaN, which the format does not say. */
static int same_codes(const pair_t *p) {
    const uint8_t *a = p->t[0].data, *b = p->t[1].data;
    int bad = 0;
    for (size_t i = 0; i < p->bytes; i++)
        bad |= a[i] != b[i] && ((a[i] & b[i] & 0x7f) != 0x7f);
    return !bad;
}
static void fill_bytes(pair_t *p, unsigned char mask) {
    for (size_t i = 0; i < p->bytes; i++)
        ((unsigned char *)p->t[0].data)[i] = (unsigned char)tap_rand(&seed) & mask;
    copy(p);
}
/* Normal, with zeros, NaN, infinities, huge and tiny values among them. */
static void fill_values(pair_t *p, uint32_t dtype) {
    for (size_t i = 0; i < p->bytes / attn_dtype_size(dtype); i++) {
        float f = (float)tap_rand_normal(&seed);
        const uint64_t kind = tap_rand(&seed) % 2048;
        f *= kind < 32 ? 100 : kind < 64 ? 0x1p-12f : kind < 80 ? 0 : 1;
        if (kind == 2000) f = NAN;
        if (kind == 2001) f = -INFINITY;
        if (dtype == ATTN_DTYPE_FLOAT32)
            ((float *)p->t[0].data)[i] = f;
        else
            ((uint16_t *)p->t[0].data)[i] = dtype == ATTN_DTYPE_BFLOAT16 ? attn_to_bf16(f) : attn_to_f16(f);
    }
    copy(p);
}

static void start(uint32_t heads, uint32_t block, uint32_t topk, uint32_t dtype, uint32_t format) {
    const attn_indexer_problem_t p = {.struct_size = sizeof p,
                                      .num_heads = heads,
                                      .block_size = block,
                                      .topk = topk,
                                      .dtype = dtype,
                                      .scale_format = format};
    const attn_device_t host = {.struct_size = sizeof host, .type = kDLCPU};
    if (reference->open(&p, &host, NULL, &both[0], &error) != ATTN_OK ||
        cpu->open(&p, &host, NULL, &both[1], &error) != ATTN_OK)
        bail_out("%s", error.text);
}
static void stop(void) {
    reference->close(both[0]), cpu->close(both[1]);
}
static const attn_indexer_extension_t *side(int i) {
    return i ? cpu : reference;
}

static void keys_and_queries(uint32_t block, uint32_t dtype, uint32_t format) {
    enum { N = 901, PAGES = 60, ROWS = 37, HEADS = 24 };
    pair_t key, cache, slots, table, prefix, keys, scales, query, weights, quantized, out;
    int status = 0;
    start(HEADS, block, 128, dtype, format);
    make(&key, dtype, 2, N, 128, 0, 8), make(&cache, ATTN_DTYPE_UINT8, 3, PAGES, block, 132, 0);
    make(&slots, ATTN_DTYPE_INT64, 1, N, 0, 0, 0), make(&table, ATTN_DTYPE_INT32, 2, 3, 40, 0, 0);
    make(&prefix, ATTN_DTYPE_INT32, 1, 4, 0, 0, 0), make(&keys, ATTN_DTYPE_FP8_E4M3, 2, 700, 128, 0, 16);
    make(&scales, ATTN_DTYPE_FLOAT32, 1, 700, 0, 0, 0);
    fill_values(&key, dtype);
    for (int i = 0; i < N; i++) /* distinct, with holes, some beyond the cache */
        ((int64_t *)slots.t[0].data)[i] = i % 7 == 3 ? -1 : i % 50 == 9 ? PAGES * (int64_t)block + i : i;
    copy(&slots);
    for (int i = 0; i < 2; i++) {
        const attn_indexer_write_t w = {
            .struct_size = sizeof w, .key = &key.t[i], .cache = &cache.t[i], .slot_mapping = &slots.t[i]};
        status |= side(i)->write_keys(both[i], &w, NULL, &error);
    }
    ok(status == ATTN_OK && same_codes(&cache),
       "keys in dtype %u, pages of %u, scales of format %u: the same bytes", dtype, block, format);

    fill_bytes(&cache, 0xff);
    for (int i = 0; i < 3 * 40; i++)
        ((int32_t *)table.t[0].data)[i] = i % 40 == 2   ? -1
                                          : i % 40 == 5 ? PAGES
                                                        : (int32_t)tap_rand_in(&seed, 0, PAGES - 1);
    memcpy(prefix.t[0].data, (int32_t[4]){0, 377, 377, 720}, 16);
    copy(&table), copy(&prefix);
    for (int i = 0; i < 2; i++) {
        const attn_indexer_gather_t g = {.struct_size = sizeof g,
                                         .num_reqs = 3,
                                         .cache = &cache.t[i],
                                         .block_table = &table.t[i],
                                         .prefix = &prefix.t[i],
                                         .keys = &keys.t[i],
                                         .key_scales = &scales.t[i]};
        status |= side(i)->gather_keys(both[i], &g, NULL, &error);
    }
    ok(status == ATTN_OK && same(&keys) && same(&scales),
       "pages of %u: gathered keys and scales are the same bytes, as far as there is room", block);

    make(&query, dtype, 3, ROWS, HEADS, 128, 16), make(&weights, dtype, 2, ROWS, HEADS, 0, 1);
    make(&quantized, ATTN_DTYPE_FP8_E4M3, 3, ROWS, HEADS, 128, 32);
    make(&out, ATTN_DTYPE_FLOAT32, 2, ROWS, HEADS, 0, 3);
    fill_values(&query, dtype);
    for (int i = 0; i < ROWS * (HEADS + 1); i++) /* finite: a NaN has many bits */
        if (dtype == ATTN_DTYPE_FLOAT32)
            ((float *)weights.t[0].data)[i] = (float)tap_rand_normal(&seed);
        else
            ((uint16_t *)weights.t[0].data)[i] = (uint16_t)(0x3c00 + tap_rand(&seed) % 512);
    copy(&weights);
    for (int i = 0; i < 2; i++) {
        const attn_indexer_quantize_t q = {.struct_size = sizeof q,
                                           .num_rows = ROWS - 1,
                                           .query = &query.t[i],
                                           .weights = &weights.t[i],
                                           .quantized = &quantized.t[i],
                                           .out_weights = &out.t[i]};
        status |= side(i)->quantize_queries(both[i], &q, NULL, &error);
    }
    ok(status == ATTN_OK && same_codes(&quantized) && same(&out),
       "queries in dtype %u: e4m3 and weights are the same bytes", dtype);
    pair_t *all[] = {&key,    &cache, &slots,   &table,     &prefix, &keys,
                     &scales, &query, &weights, &quantized, &out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        drop(all[i]);
    stop();
}

/* Largest difference over the largest logit; INFINITY where one side alone is not finite, or wrote. */
static double difference(const pair_t *logits) {
    const float *want = logits->t[0].data, *got = logits->t[1].data;
    double worst = 0, largest = 1e-30;
    for (size_t i = 0; i < logits->bytes / 4; i++) {
        if (!isfinite(want[i]) || !isfinite(got[i])) {
            if (memcmp(&want[i], &got[i], 4) != 0) return INFINITY;
            continue;
        }
        largest = fmax(largest, fabs((double)want[i]));
        worst = fmax(worst, fabs((double)want[i] - got[i]));
    }
    return worst / largest;
}

static void in_one_piece(uint32_t heads, int32_t rows, int32_t keys, int clean, int causal) {
    pair_t q, w, k, s, lo, hi, out;
    int status = 0;
    start(heads, 64, 128, 0, 0);
    make(&q, ATTN_DTYPE_FP8_E4M3, 3, rows, heads, 128, 0), make(&w, ATTN_DTYPE_FLOAT32, 2, rows, heads, 0, 3);
    make(&k, ATTN_DTYPE_FP8_E4M3, 2, keys, 128, 0, 16), make(&s, ATTN_DTYPE_FLOAT32, 1, keys, 0, 0, 0);
    make(&lo, ATTN_DTYPE_INT32, 1, rows, 0, 0, 0), make(&hi, ATTN_DTYPE_INT32, 1, rows, 0, 0, 0);
    make(&out, ATTN_DTYPE_FLOAT32, 2, rows, keys + 4, 0, 5);
    fill_bytes(&q, 0xbf), fill_bytes(&k, 0xbf), fill_values(&w, ATTN_DTYPE_FLOAT32);
    for (int64_t i = 0; i < rows * (int64_t)(heads + 3); i++)
        ((float *)w.t[0].data)[i] = (float)tap_rand_normal(&seed);
    for (int i = 0; i < keys; i++)
        ((float *)s.t[0].data)[i] = random_scale();
    for (int t = 0; t < rows; t++) {
        const int32_t a = causal ? 0 : (int32_t)tap_rand_in(&seed, -3, keys),
                      b = t % 5 == 1 ? a : (int32_t)tap_rand_in(&seed, 0, keys + 3);
        ((int32_t *)lo.t[0].data)[t] = a;
        ((int32_t *)hi.t[0].data)[t] = causal ? keys - rows + t + 1 : b;
    }
    copy(&w), copy(&s), copy(&lo), copy(&hi);
    for (int i = 0; i < 2; i++) {
        const attn_indexer_logits_t a = {.struct_size = sizeof a,
                                         .flags = clean ? ATTN_INDEXER_CLEAN : 0,
                                         .num_rows = rows,
                                         .query = &q.t[i],
                                         .weights = &w.t[i],
                                         .keys = &k.t[i],
                                         .key_scales = &s.t[i],
                                         .row_starts = &lo.t[i],
                                         .row_ends = &hi.t[i],
                                         .logits = &out.t[i]};
        status |= side(i)->logits(both[i], &a, NULL, &error);
    }
    const double d = difference(&out);
    ok(status == ATTN_OK && d < 1e-5, "logits, %u heads, %d rows of %d keys%s%s: %.1e", heads, rows, keys,
       causal ? ", causal" : "", clean ? ", cleaned" : "", d);
    pair_t *all[] = {&q, &w, &k, &s, &lo, &hi, &out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        drop(all[i]);
    stop();
}

static void in_pages(uint32_t heads, uint32_t block, int32_t reqs, int32_t per, int32_t longest, int clean) {
    pair_t q, w, c, table, lens, out;
    const int32_t rows = reqs * per, width = (longest + (int32_t)block - 1) / (int32_t)block,
                  pages = reqs * width + 1;
    int status = 0;
    start(heads, block, 128, 0, 0);
    make(&q, ATTN_DTYPE_FP8_E4M3, 3, rows, heads, 128, 0), make(&w, ATTN_DTYPE_FLOAT32, 2, rows, heads, 0, 0);
    make(&c, ATTN_DTYPE_UINT8, 3, pages, block, 132, 0), make(&table, ATTN_DTYPE_INT32, 2, reqs, width, 0, 2);
    make(&lens, ATTN_DTYPE_INT32, 1, rows, 0, 0, 0), make(&out, ATTN_DTYPE_FLOAT32, 2, rows, longest, 0, 1);
    fill_bytes(&q, 0xbf), fill_bytes(&c, 0xbf);
    for (int i = 0; i < rows * (int)heads; i++)
        ((float *)w.t[0].data)[i] = (float)tap_rand_normal(&seed);
    for (int p = 0; p < pages; p++)
        for (uint32_t i = 0; i < block; i++) {
            const float x = random_scale();
            memcpy((char *)c.t[0].data + (p * (int64_t)block * 132 + (int64_t)block * 128 + i * 4), &x, 4);
        }
    for (int r = 0; r < reqs; r++) {
        const int32_t n = r == 0 ? longest : (int32_t)tap_rand_in(&seed, 0, longest);
        for (int j = 0; j < per; j++)
            ((int32_t *)lens.t[0].data)[r * per + j] = n - per + j + 1;
        for (int i = 0; i < width; i++)
            ((int32_t *)table.t[0].data)[r * (width + 2) + i] =
                i < (n + (int)block - 1) / (int)block ? (r * 7 + i * 5) % pages : INT32_MAX - 100;
    }
    copy(&w), copy(&c), copy(&table), copy(&lens);
    for (int i = 0; i < 2; i++) {
        const attn_indexer_paged_t a = {.struct_size = sizeof a,
                                        .flags = clean ? ATTN_INDEXER_CLEAN : 0,
                                        .num_rows = rows,
                                        .rows_per_request = per,
                                        .query = &q.t[i],
                                        .weights = &w.t[i],
                                        .cache = &c.t[i],
                                        .block_table = &table.t[i],
                                        .row_lens = &lens.t[i],
                                        .logits = &out.t[i]};
        status |= side(i)->logits_paged(both[i], &a, NULL, &error);
    }
    const double d = difference(&out);
    ok(status == ATTN_OK && d < 1e-5, "cached keys, %u heads, pages of %u, %d x %d rows, %d keys%s: %.1e",
       heads, block, reqs, per, longest, clean ? ", cleaned" : "", d);
    pair_t *all[] = {&q, &w, &c, &table, &lens, &out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        drop(all[i]);
    stop();
}

enum { NORMAL, OFFSET, EQUAL, RISING, FALLING, TWO_VALUES, SPECIAL, NEIGHBOURS, NUM_KINDS };
static const char *const kind_names[] = {"normal",
                                         "far from 0",
                                         "all equal",
                                         "rising",
                                         "falling",
                                         "two values",
                                         "NaN, infinities, both zeros",
                                         "neighbouring floats"};

static float sample(int kind, int64_t i) {
    const uint32_t u = (uint32_t)tap_rand(&seed), bits = 0x447a0000 + u % 4096;
    float f;
    memcpy(&f, &bits, sizeof f);
    return kind == OFFSET       ? 3000 + (float)tap_rand_normal(&seed)
           : kind == EQUAL      ? -1.5f
           : kind == RISING     ? (float)i * 0.25f - 100
           : kind == FALLING    ? 100 - (float)i * 0.25f
           : kind == TWO_VALUES ? (u % 50 == 0 ? 1.0f : 0.5f)
           : kind == NEIGHBOURS ? f
           : kind == NORMAL     ? (float)tap_rand_normal(&seed)
           : u % 8 == 0         ? NAN
           : u % 8 == 1         ? -INFINITY
           : u % 4096 == 2      ? INFINITY
           : u % 2              ? -0.0f
           : u % 3 == 0         ? 0.0f
                                : -1e-42f;
}

static void top(int kind, uint32_t topk, int32_t rows, int32_t columns, int ranges) {
    pair_t in, lo, hi, out;
    int status = 0;
    start(64, 64, topk, 0, 0);
    make(&in, ATTN_DTYPE_FLOAT32, 2, rows, columns, 0, 1), make(&lo, ATTN_DTYPE_INT32, 1, rows, 0, 0, 0);
    make(&hi, ATTN_DTYPE_INT32, 1, rows, 0, 0, 0), make(&out, ATTN_DTYPE_INT32, 2, rows, topk, 0, 7);
    for (int64_t i = 0; i < rows * (int64_t)(columns + 1); i++)
        ((float *)in.t[0].data)[i] = sample(kind, i % (columns + 1));
    for (int t = 0; t < rows; t++) {
        ((int32_t *)lo.t[0].data)[t] = ranges ? (int32_t)tap_rand_in(&seed, -1, columns / 2) : 0;
        ((int32_t *)hi.t[0].data)[t] =
            ranges ? (int32_t)tap_rand_in(&seed, columns / 4, columns + 9) : columns;
    }
    copy(&in), copy(&lo), copy(&hi);
    for (int i = 0; i < 2; i++) {
        const attn_indexer_select_t a = {.struct_size = sizeof a,
                                         .num_rows = rows,
                                         .logits = &in.t[i],
                                         .row_starts = ranges ? &lo.t[i] : NULL,
                                         .row_ends = &hi.t[i],
                                         .indices = &out.t[i]};
        status |= side(i)->select(both[i], &a, NULL, &error);
    }
    ok(status == ATTN_OK && same(&out), "top %u of %d x %d%s, %s: the same indices", topk, rows, columns,
       ranges ? " in ranges" : "", kind_names[kind]);
    pair_t *all[] = {&in, &lo, &hi, &out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        drop(all[i]);
    stop();
}

static const attn_indexer_extension_t *load(const char *file) {
    const char *folder = getenv("ATTN_TEST_PLUGIN_DIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder != NULL ? folder : "plugins-built", file);
    if (access(path, F_OK) != 0) return NULL;
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const attn_plugin_t *plugin = so ? dlsym(so, ATTN_PLUGIN_SYMBOL_NAME) : NULL;
    const attn_indexer_extension_t *e =
        plugin != NULL ? plugin->backends[0]->ops->get_extension(NULL, ATTN_INDEXER_EXTENSION) : NULL;
    if (e == NULL) bail_out("%s has no %s", path, ATTN_INDEXER_EXTENSION);
    return e;
}

int main(void) {
    seed = tap_seed();
    levels();
    cpu = load("cpu.so"), reference = load("reference.so");
    if (cpu == NULL || reference == NULL) {
        skip(1, "CPU_ATTN against REFERENCE: not both are built");
        return tap_done();
    }
    keys_and_queries(64, ATTN_DTYPE_BFLOAT16, ATTN_INDEXER_SCALE_UE8M0);
    keys_and_queries(16, ATTN_DTYPE_FLOAT16, ATTN_INDEXER_SCALE_FLOAT32);
    keys_and_queries(48, ATTN_DTYPE_FLOAT32, ATTN_INDEXER_SCALE_FLOAT32);
    in_one_piece(64, 37, 1000, 0, 0), in_one_piece(64, 13, 517, 1, 0), in_one_piece(64, 3, 1, 1, 0);
    in_one_piece(64, 64, 700, 0, 1), in_one_piece(32, 21, 300, 1, 0), in_one_piece(128, 5, 129, 0, 0);
    in_one_piece(8, 5, 9000, 1, 0);
    in_pages(64, 64, 9, 1, 1030, 0), in_pages(64, 64, 5, 2, 777, 0), in_pages(64, 64, 3, 8, 200, 1);
    in_pages(40, 16, 7, 1, 333, 1), in_pages(64, 96, 7, 2, 500, 1), in_pages(8, 64, 1, 2, 131072, 1);
    for (int kind = 0; kind < NUM_KINDS; kind++)
        top(kind, 2048, 3, 20001, 1), top(kind, 512, 20, 5000, kind % 2), top(kind, 128, 2, 131072, 0);
    static const int columns[] = {1, 2047, 2048, 2049, 2050};
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
        top(NORMAL, 2048, 2, columns[i], 0);
    return tap_done();
}
