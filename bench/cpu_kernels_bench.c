/* SPDX-License-Identifier: Apache-2.0 */
/* Times the kernels of plugins/cpu beside the ceilings of the same run.
 *
 *     cpu_kernels_bench [-t THREADS] [-l LEVEL] [-r REPEATS] [-q] [CASE ...]    (-q: no ceilings)
 *
 * At the end of a line: the repeats that counted, of all (see run_case).
 *
 * Cases: the names of `all` below. Without a case: those of `standard`.
 * The plan is made in the time that counts, as an engine makes it for each step. "best" is the shortest time
 * and the best fraction of the fastest read: on a busy machine medians measure the others. */
#include "../tools/measure/ceilings_cpu.h"
#include "cpu_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct work {
    const char *name;
    enum cpu_dtype q, kv, out;
    int hq, hkv, d, q_len, kv_len, causal, contiguous, row_scales;
    enum cpu_dtype k_row, v_row; /* of CPU_PACKED */
    int rounds_query, mixed;     /* int8 modes; 16 requests of mixed lengths, kv_len keys together */
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers" /* most cases need none of the last */
static const struct work all[] = {
    {"decode-bf16", CPU_BF16, CPU_BF16, CPU_BF16, 32, 8, 128, 1, 8192, 1, 0, 0},
    {"decode-f16", CPU_F16, CPU_F16, CPU_F16, 32, 8, 128, 1, 8192, 1, 0, 0},
    {"decode-f32", CPU_F32, CPU_F32, CPU_F32, 32, 8, 128, 1, 8192, 1, 0, 0},
    {"decode-e4m3", CPU_BF16, CPU_E4M3, CPU_BF16, 32, 8, 128, 1, 8192, 1, 0, 0},
    {"decode-e5m2", CPU_BF16, CPU_E5M2, CPU_BF16, 32, 8, 128, 1, 8192, 1, 0, 0},
    {"decode-int8", CPU_BF16, CPU_I8, CPU_BF16, 32, 8, 128, 1, 8192, 1, 0, 1},
    {"decode-int4", CPU_BF16, CPU_I4, CPU_BF16, 32, 8, 128, 1, 8192, 1, 0, 1},
    {"decode-fp8-token", CPU_BF16, CPU_E4M3, CPU_BF16, 32, 8, 128, 1, 8192, 1, 0, 1},
    {"decode-nvfp4", CPU_BF16, CPU_PACKED, CPU_BF16, 32, 8, 128, 1, 8192, 1, 0, 0, CPU_E2M1, CPU_E2M1},
    {"decode-k8v4", CPU_BF16, CPU_PACKED, CPU_BF16, 32, 8, 128, 1, 8192, 1, 0, 0, CPU_E4M3, CPU_V4},
    {"decode-4bit_nc", CPU_BF16, CPU_PACKED, CPU_BF16, 32, 8, 128, 1, 8192, 1, 0, 0, CPU_C4, CPU_V4},
    {"decode-k3v4_nc", CPU_BF16, CPU_PACKED, CPU_BF16, 32, 8, 128, 1, 8192, 1, 0, 0, CPU_C3, CPU_V4},
    {"decode-3bit_nc", CPU_BF16, CPU_PACKED, CPU_BF16, 32, 8, 128, 1, 8192, 1, 0, 0, CPU_C3, CPU_V3},
    {"decode-int8-k_only", CPU_BF16, CPU_PACKED, CPU_BF16, 32, 8, 128, 1, 8192, 1, 0, 0, CPU_I8, CPU_BF16, 1},
    {"decode-int8-static_v", CPU_BF16, CPU_I8, CPU_BF16, 32, 8, 128, 1, 8192, 1, 0, 0, CPU_F32, CPU_F32, 1},
    {"short-bf16", CPU_BF16, CPU_BF16, CPU_BF16, 32, 8, 128, 1, 512, 1, 0, 0},
    {"mixed-bf16", CPU_BF16, CPU_BF16, CPU_BF16, 32, 8, 128, 1, 8192, 1, 0, 0, CPU_F32, CPU_F32, 0, 1},
    {"warm-bf16", CPU_BF16, CPU_BF16, CPU_BF16, 4, 1, 128, 1, 768, 1, 0, 0},
    {"warm-f16", CPU_F16, CPU_F16, CPU_F16, 4, 1, 128, 1, 768, 1, 0, 0},
    {"warm-int8", CPU_BF16, CPU_I8, CPU_BF16, 4, 1, 128, 1, 1536, 1, 0, 1},
    {"warm-int4", CPU_BF16, CPU_I4, CPU_BF16, 4, 1, 128, 1, 3072, 1, 0, 1},
    {"warm-e4m3", CPU_BF16, CPU_E4M3, CPU_BF16, 4, 1, 128, 1, 1536, 1, 0, 0},
    {"spec-bf16", CPU_BF16, CPU_BF16, CPU_BF16, 32, 8, 128, 8, 8192, 1, 0, 0},
    {"prefill-bf16", CPU_BF16, CPU_BF16, CPU_BF16, 32, 8, 128, 4096, 4096, 1, 0, 0},
    {"prefill-f16", CPU_F16, CPU_F16, CPU_F16, 32, 8, 128, 4096, 4096, 1, 0, 0},
    {"prefill-f32", CPU_F32, CPU_F32, CPU_F32, 32, 8, 128, 4096, 4096, 1, 0, 0},
    {"prefill-e4m3", CPU_BF16, CPU_E4M3, CPU_BF16, 32, 8, 128, 4096, 4096, 1, 0, 0},
    {"chunk-bf16", CPU_BF16, CPU_BF16, CPU_BF16, 32, 8, 128, 256, 8192, 1, 0, 0},
    {"chunk-f32", CPU_F32, CPU_F32, CPU_F32, 32, 8, 128, 256, 4096, 1, 0, 0},
    {"item-f32", CPU_F32, CPU_F32, CPU_F32, 4, 1, 128, 128, 4096, 1, 0, 0},
    {"item-vision", CPU_F32, CPU_F32, CPU_F32, 1, 1, 72, 512, 5776, 0, 1, 0},
    {"vision-bf16", CPU_BF16, CPU_BF16, CPU_BF16, 16, 16, 72, 5776, 5776, 0, 1, 0},
    {"vision-f32", CPU_F32, CPU_F32, CPU_F32, 16, 16, 72, 5776, 5776, 0, 1, 0},
};
#pragma GCC diagnostic pop
static const char *const standard[] = {
    "decode-bf16",  "mixed-bf16",         "short-bf16",           "decode-f16",     "decode-e4m3",
    "decode-int8",  "decode-int8-k_only", "decode-int8-static_v", "decode-int4",    "decode-nvfp4",
    "decode-k8v4",  "decode-4bit_nc",     "decode-k3v4_nc",       "decode-3bit_nc", "prefill-f32",
    "prefill-bf16", "vision-f32",         "vision-bf16"};

static uint64_t state = 88172645463325252u;
static uint32_t next_random(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static void *huge(size_t bytes) {
    void *p = aligned_alloc(2u << 20, (bytes + (2u << 20) - 1) & ~(size_t)((2u << 20) - 1));
    if (p == NULL) {
        fprintf(stderr, "cpu_kernels_bench: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

/* Values of about unit size in any type: random sign and mantissa, exponents near 1. */
static void fill(enum cpu_dtype t, char *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t r = next_random();
        float f = ((float)(r & 0xffff) / 32768.0f - 1.0f) * 1.7f;
        uint32_t u;
        uint16_t h;
        memcpy(&u, &f, 4);
        if (t == CPU_F32) memcpy(p + 4 * i, &f, 4);
        if (t == CPU_BF16) h = (uint16_t)(u >> 16), memcpy(p + 2 * i, &h, 2);
        if (t == CPU_F16) h = (uint16_t)((r & 0x83ff) | 0x3800), memcpy(p + 2 * i, &h, 2);
        if (t == CPU_E4M3) p[i] = (char)((r & 0x8f) | 0x30);
        if (t == CPU_E5M2) p[i] = (char)((r & 0x87) | 0x38);
        if (t == CPU_I4) p[i] = (char)r;
        if (t == CPU_I8) p[i] = (char)(r % 200 - 100);
    }
}

/* Bytes of a row with what lies behind its values: a scale, or a norm, or step and minimum in f16. */
static int row_bytes(const struct work *w, int is_v) {
    const enum cpu_dtype t = w->kv != CPU_PACKED ? w->kv : is_v ? w->v_row : w->k_row;
    return cpu_row_bytes(t, w->d) + (w->row_scales                ? 4
                                     : t == CPU_C4 || t == CPU_C3 ? 2
                                     : t == CPU_V4 || t == CPU_V3 ? 4
                                                                  : 0);
}

/* Rows of CPU_PACKED: random codes, and normal numbers behind them. */
static void fill_packed(const struct work *w, char *p, size_t rows) {
    const uint16_t half = 0x2c00; /* 1/16 */
    for (size_t i = 0; i < 2 * rows; i++) {
        const enum cpu_dtype t = i % 2 ? w->v_row : w->k_row;
        const int codes = cpu_row_bytes(t, w->d), all_bytes = row_bytes(w, i % 2);
        const int is_type = t < CPU_PACKED;
        fill(is_type ? t : CPU_I4, p, (size_t)(is_type ? w->d : codes));
        for (int b = codes; b < all_bytes; b += 2)
            memcpy(p + b, &half, 2);
        p += all_bytes;
    }
}

/* Lengths of 16 requests, in blocks, that are 512 blocks together. */
static const int mixed_blocks[] = {4, 120, 9, 30, 64, 2, 17, 40, 6, 96, 12, 25, 50, 3, 14, 20};

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static char *stream;
static int kernels_only; /* -q: no ceilings, for profilers */
enum { STREAM_BYTES = 384 << 20, BLOCK = 16, MAX_REPEATS = 20000 };

struct repeat {
    double seconds, probe; /* the lower one of before and after */
    double tiles;          /* bf16 products by AMX, where the kernels use it */
    double ceiling,
        order; /* FMA rate or streaming read; read in the same order, best of the prefetch patterns */
};

static double compute_ceiling(const struct cpu_kernels *k, const struct cpu_tiling *t, int threads) {
    return t->bf16_dot ? ceiling_bf16_dot(threads) : ceiling_fma(k->name, threads);
}

static void run_case(const struct work *w, const struct cpu_kernels *k, int threads, int repeats) {
    const int decode = w->q_len <= 8, layers = decode && w->hkv > 1 ? (w->kv_len < 1024             ? 64
                                                                       : cpu_dtype_size(w->kv) == 1 ? 16
                                                                                                    : 8)
                                                                    : 1;
    const int es = cpu_dtype_size(w->kv), inl = w->row_scales ? 4 : 0;
    const int k_bytes = row_bytes(w, 0);
    const int64_t row = k_bytes + row_bytes(w, 1), blocks = w->kv_len / BLOCK, page = row * BLOCK * w->hkv;
    struct cpu_attn a = {
        .num_q_heads = w->hq, .num_kv_heads = w->hkv, .head_size = w->d, .head_size_v = w->d};
    a.q_dtype = w->q;
    a.kv_dtype = w->kv;
    a.out_dtype = w->out;
    a.scale = 1 / sqrtf((float)w->d);
    a.q_scale = 1;
    a.block_size = BLOCK;
    a.k_row = w->k_row;
    a.v_row = w->v_row;
    a.rounds_query = w->rounds_query;
    /* What lies apart: for each key and head a float32, or an e4m3 for each 16 values; as in a page. */
    const int apart = cpu_has_groups(&a) ? w->d / 16 : w->rounds_query ? 4 : 0;
    const size_t apart_bytes = (size_t)apart * (size_t)w->kv_len * (size_t)w->hkv;
    float channels[8 * 128];
    for (int i = 0; i < 8 * 128; i++)
        channels[i] = 1 / 64.0f;
    if (w->rounds_query && w->kv == CPU_I8) a.v_channel = channels;
    const size_t q_bytes = (size_t)(w->mixed ? 16 : w->q_len) * w->hq * w->d * cpu_dtype_size(w->q);
    char *q = huge(q_bytes), *out = huge((size_t)(w->mixed ? 16 : w->q_len) * w->hq * w->d * 4), *cache[64];
    int32_t *table = malloc((size_t)blocks * sizeof *table * 64);
    fill(w->q, q, q_bytes / (size_t)cpu_dtype_size(w->q));
    for (int l = 0; l < layers; l++) {
        const size_t bytes = (size_t)(w->kv_len * row * w->hkv), all_bytes = bytes + 2 * apart_bytes;
        cache[l] = huge(all_bytes);
        if (l > 0)
            memcpy(cache[l], cache[0], all_bytes);
        else {
            const float s = 1 / 64.0f;
            if (w->kv == CPU_PACKED)
                fill_packed(w, cache[0], (size_t)w->kv_len * (size_t)w->hkv);
            else
                fill(w->kv, cache[0], bytes / (size_t)es);
            if (w->rounds_query)
                for (size_t i = 0; i < 2 * apart_bytes; i += 4)
                    memcpy(cache[0] + bytes + i, &s, 4);
            else
                fill(CPU_E4M3, cache[0] + bytes, 2 * apart_bytes);
            for (int64_t r = 0; inl && r < (int64_t)w->kv_len * w->hkv; r++)
                for (int side = 0; side < 2; side++)
                    memcpy(cache[0] + r * row + (side + 1) * (row / 2) - 4, &s, 4);
        }
        for (int64_t b = 0; b < blocks; b++)
            table[l * blocks + b] = (int32_t)b;
        for (int64_t b = blocks - 1; b > 0; b--) {
            const int64_t j = next_random() % (b + 1);
            const int32_t x = table[l * blocks + b];
            table[l * blocks + b] = table[l * blocks + j];
            table[l * blocks + j] = x;
        }
    }
    a.q = q;
    a.q_head = (int64_t)w->d * cpu_dtype_size(w->q);
    a.q_token = a.q_head * w->hq;
    a.out = out;
    a.out_head = (int64_t)w->d * cpu_dtype_size(w->out);
    a.out_token = a.out_head * w->hq;
    if (w->contiguous) { /* [token][K, V][head][D], as a fused projection leaves them */
        a.k = (struct cpu_rows){cache[0], 0, row / 2, row * w->hkv};
        a.v = (struct cpu_rows){cache[0] + row / 2 * w->hkv, 0, row / 2, row * w->hkv};
    } else {
        a.k = (struct cpu_rows){cache[0], page, row * BLOCK, row};
        a.v = (struct cpu_rows){cache[0] + k_bytes, page, row * BLOCK, row};
        a.block_table = table;
        a.block_table_row = 1; /* so that table_row is where a request's blocks begin */
    }
    const struct cpu_rows k0 = a.k, v0 = a.v;
    const int num_seqs = w->mixed ? (int)(sizeof mixed_blocks / sizeof *mixed_blocks) : 1;
    struct cpu_limits lim = {num_seqs, w->mixed ? num_seqs : w->q_len, threads, 0};
    struct cpu_tiling t;
    const long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    k->tiling(&a, l2 > 0 ? (size_t)l2 : 512 << 10, &t);
    const size_t mb = cpu_plan_bytes(&a, &t, &lim, 0), wb = cpu_plan_workspace(&a, &t, &lim);
    void *meta = huge(mb), *work = huge(wb);
    memset(work, 0, wb);
    struct cpu_plan *p = cpu_plan_init(meta, &a, &t, &lim, 0);
    p->num_seqs = num_seqs;
    for (int i = 0, at = 0; i < num_seqs; i++) {
        const int keys = w->mixed ? mixed_blocks[i] * BLOCK : w->kv_len;
        p->seqs[i] = (struct cpu_seq){.q_len = w->q_len, .kv_len = keys, .q_offset = keys - w->q_len};
        p->seqs[i].q_start = i;
        p->seqs[i].table_row = at;
        p->seqs[i].mask = (struct cpu_mask){.causal = w->causal, .window_left = -1, .window_right = -1};
        at += keys / BLOCK;
    }

    /* Pieces in the kernel's order: page by page, heads inside. */
    const size_t num_pieces = (size_t)blocks * (size_t)w->hkv;
    const char **pieces = malloc(num_pieces * sizeof *pieces);
    /* Every repeat has its own ceilings, measured next to it, and a probe of the cores before and after it:
     * on a shared machine the clock moves by a third within a minute, and a busy hyperthread of somebody else
     * halves what a core issues. Medians are over the repeats whose probes both came near the best one;
     * fractions are medians of theirs. */
    static struct repeat all_repeats[MAX_REPEATS];
    const double n = w->q_len, ctx = w->kv_len - n,
                 pairs = w->causal ? n * ctx + 0.5 * n * (n + 1) : n * w->kv_len;
    const double work_done =
        decode ? (double)w->kv_len * (row + 2 * apart) * w->hkv : 4.0 * w->hq * w->d * pairs;
    double last_read = 0;
    for (int r = -1; r < repeats; r++) {
        const int l = (r + 1) % layers;
        struct repeat *x = &all_repeats[r < 0 ? 0 : r];
        if (decode && !kernels_only && (r < 1 || r % 4 == 0))
            last_read = ceiling_read(stream, STREAM_BYTES, threads);
        x->ceiling = kernels_only ? 1 : decode ? last_read : compute_ceiling(k, &t, threads);
        a.k = k0;
        a.v = v0;
        a.k.base += cache[l] - cache[0];
        a.v.base += cache[l] - cache[0];
        if (apart) {
            const int64_t step = (int64_t)apart * BLOCK;
            a.k_apart =
                (struct cpu_rows){cache[l] + (int64_t)w->kv_len * row * w->hkv, step * w->hkv, step, apart};
            a.v_apart = a.k_apart;
            a.v_apart.base += apart_bytes;
            if (w->rounds_query) a.v_apart.base = NULL;
        }
        if (w->row_scales) {
            a.k_row_scale = a.k;
            a.k_row_scale.base += cpu_row_bytes(w->kv, w->d);
            a.v_row_scale = a.v;
            a.v_row_scale.base += cpu_row_bytes(w->kv, w->d);
        }
        if (!w->contiguous) a.block_table = table + l * blocks;
        x->probe = kernels_only ? 1 : ceiling_issue(threads);
        const double t0 = ceiling_now();
        cpu_plan_build(p, k, &a, &t, &lim);
        cpu_plan_run(p, k, &a, &t, &lim, work, 0);
        x->seconds = ceiling_now() - t0;
        if (kernels_only) continue;
        const double after = ceiling_issue(threads);
        if (after < x->probe) x->probe = after;
        if (!decode) {
            x->tiles = t.amx ? ceiling_bf16_tiles(threads) : 0;
            x->ceiling = 0.5 * (x->ceiling + compute_ceiling(k, &t, threads));
            continue;
        }
        x->order = 0;
        for (int f = 0; f < CEILING_NUM_PREFETCH;
             f++) { /* each reads another layer, or it would find the last one in L3 */
            const int lp = (l + (f + 1) * layers / 4) % layers;
            size_t num = 0;
            for (int64_t b = 0; b < blocks; b++)
                for (int h = 0; h < w->hkv; h++)
                    pieces[num++] = cache[lp] + table[lp * blocks + b] * page + h * row * BLOCK;
            /* whole multiples of 256 bytes, as it wants them */
            const size_t whole = (size_t)row * BLOCK / 256 * 256;
            const double rate =
                ceiling_read_pieces(pieces, num_pieces, whole, threads, (enum ceiling_prefetch)f);
            if (rate > x->order) x->order = rate;
        }
    }
    double best = 0;
    int quiet = 0;
    for (int r = 0; r < repeats; r++)
        if (all_repeats[r].probe > best) best = all_repeats[r].probe;
    static double tiles[MAX_REPEATS], seconds[MAX_REPEATS], ceiling[MAX_REPEATS], part[MAX_REPEATS],
        order[MAX_REPEATS], part_order[MAX_REPEATS];
    for (int pass = 0; pass < 2 && quiet < 3; pass++) /* too few quiet ones: all */
        for (int r = quiet = 0; r < repeats; r++) {
            const struct repeat *x = &all_repeats[r];
            if (pass == 0 && x->probe < 0.9 * best) continue;
            const double rate = work_done / x->seconds / 1e9;
            seconds[quiet] = x->seconds;
            tiles[quiet] = x->tiles;
            ceiling[quiet] = x->ceiling;
            part[quiet] = rate / x->ceiling;
            order[quiet] = x->order;
            part_order[quiet++] = x->order > 0 ? rate / x->order : 0;
        }
    const double s = median(seconds, quiet);
    printf("%-20s %-10s T%d  %8.3f ms %7.1f %s", w->name, k->name, threads, s * 1e3, work_done / s / 1e9,
           decode ? "GB/s" : "GFLOP/s");
    if (!kernels_only)
        printf(" | %s %6.1f: %.2f",
               decode       ? "read"
               : t.bf16_dot ? "bf16 dot"
                            : "f32 FMA",
               median(ceiling, quiet), median(part, quiet));
    if (!kernels_only && decode)
        printf(" | same order %6.1f: %.2f", median(order, quiet), median(part_order, quiet));
    if (!kernels_only && !decode && t.amx) {
        const double rate = median(tiles, quiet);
        printf(" | AMX %6.1f: %.2f", rate, work_done / s / 1e9 / rate);
    }
    double shortest = all_repeats[0].seconds, fastest = all_repeats[0].order;
    for (int r = 1; r < repeats; r++) {
        if (all_repeats[r].seconds < shortest) shortest = all_repeats[r].seconds;
        if (all_repeats[r].order > fastest) fastest = all_repeats[r].order;
    }
    printf(" | best %.3f ms", shortest * 1e3);
    if (!kernels_only && decode) printf(", order %.1f: %.2f", fastest, work_done / shortest / 1e9 / fastest);
    printf(" | %d of %d\n", quiet, repeats);
    fflush(stdout);
    for (int l = 0; l < layers; l++)
        free(cache[l]);
    free(q);
    free(out);
    free(table);
    free(meta);
    free(work);
    free(pieces);
}

int main(int argc, char **argv) {
    int threads = (int)sysconf(_SC_NPROCESSORS_ONLN), repeats = 0, opt;
    const char *level = NULL;
    while ((opt = getopt(argc, argv, "t:l:r:q")) != -1) {
        if (opt == 't')
            threads = atoi(optarg);
        else if (opt == 'l')
            level = optarg;
        else if (opt == 'r')
            repeats = atoi(optarg);
        else if (opt == 'q')
            kernels_only = 1;
        else
            return 2;
    }
    if (repeats > MAX_REPEATS || repeats < 0 || threads < 1) {
        fprintf(stderr, "cpu_kernels_bench: at most %d repeats, at least 1 thread\n", MAX_REPEATS);
        return 2;
    }
    stream = huge(STREAM_BYTES);
    memset(stream, 1, STREAM_BYTES);
    for (int i = 0; cpu_levels[i]; i++) {
        const struct cpu_kernels *k = cpu_levels[i];
        if ((k->needs & ~cpu_bits()) || (level ? strcmp(level, k->name) != 0 : k->needs == 0)) continue;
        for (size_t c = 0; c < (optind < argc ? (size_t)(argc - optind) : sizeof standard / sizeof *standard);
             c++) {
            const char *name = optind < argc ? argv[(size_t)optind + c] : standard[c];
            for (size_t j = 0; j < sizeof all / sizeof *all; j++)
                if (strcmp(all[j].name, name) == 0)
                    run_case(&all[j], k, threads, repeats ? repeats : all[j].q_len <= 8 ? 45 : 5);
        }
    }
    return 0;
}
