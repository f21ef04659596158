/* SPDX-License-Identifier: Apache-2.0 */
/* Decode over nvfp4 and TurboQuant at every level that this CPU has, to 131072 keys, whatever the inputs look
 * like, against attention in double over the values that the rows stand for. Errors are in units of what a
 * column sums up to without signs; bias is counted along the exact answer. And scales that are NaN. */
#include "cpu_case.h"
#include "cpu_threads.h"

enum { SIZE = 128, HEADS = 4, ROWS = 256 }; /* rows that differ: longer requests repeat them */
enum family { NORMAL, CONSTANT, MEAN, UNIFORM, NEEDLE, CHANNEL, ENDS, GEOMETRIC, NUM_FAMILIES };
static const char *const family_names[] = {"normal values", "constant V",     "V of mean 100",
                                           "equal weights", "a needle",       "a channel 100 times",
                                           "ends",          "falling weights"};
struct format {
    const char *name;
    enum cpu_dtype k, v;
};
static const struct format formats[] = {{"nvfp4", CPU_E2M1, CPU_E2M1},
                                        {"k8v4", CPU_E4M3, CPU_V4},
                                        {"4bit_nc", CPU_C4, CPU_V4},
                                        {"k3v4_nc", CPU_C3, CPU_V4},
                                        {"3bit_nc", CPU_C3, CPU_V3}};

/* What row i of K (side 0) or V is before it is stored. */
static void family_row(uint64_t *rng, enum family f, int side, int i, float *x) {
    for (int d = 0; d < SIZE; d++) {
        x[d] = (float)tap_rand_normal(rng);
        if (f == CONSTANT && side) x[d] = 1;
        if (f == MEAN && side) x[d] += 100;
        if (f == NEEDLE) x[d] *= side ? (i == 0 ? 20 : 1) : (i == 0 ? 1 : 0.2f);
        if (f == CHANNEL && d == 37) x[d] = side ? 100 : 100 * x[d];
        if (f == ENDS) x[d] *= i % 3 == 0 ? 0.004f : i % 3 == 1 ? 60 : 1; /* subnormal and largest scales */
        if (f == GEOMETRIC && side == 0) x[d] = 0.1f * x[d] + (d == 0 ? 0.5f * (float)(i % ROWS) : 0);
    }
}

static void store_row(enum cpu_dtype t, const float *x, char *dst, char *groups, double *val) {
    unsigned char *const row = (unsigned char *)dst;
    if (t == CPU_E2M1) {
        nvfp4_row_encode(x, SIZE, 1, row, (unsigned char *)groups);
        nvfp4_row_decode(row, (unsigned char *)groups, SIZE, 1, val);
    } else if (t == CPU_E4M3) {
        for (int d = 0; d < SIZE; d++)
            val[d] = (double)case_round(t, x[d], row + d);
    } else {
        const int bits = t == CPU_C4 || t == CPU_V4 ? 4 : 3, is_value = t == CPU_V4 || t == CPU_V3;
        turbo_row_encode(bits, is_value, x, SIZE, row);
        turbo_row_decode(bits, is_value, row, SIZE, val);
    }
}

/* One query token over n contiguous keys of one head. */
static void build(struct cpu_case *c, const struct format *f, enum family family, int n) {
    struct cpu_attn *a = &c->a;
    uint64_t rng = 20261128;
    memset(c, 0, sizeof *c);
    *a = (struct cpu_attn){.num_q_heads = HEADS,
                           .num_kv_heads = 1,
                           .head_size = SIZE,
                           .head_size_v = SIZE,
                           .q_dtype = CPU_BF16,
                           .kv_dtype = CPU_PACKED,
                           .out_dtype = CPU_BF16,
                           .k_row = f->k,
                           .v_row = f->v,
                           .scale = 0.0883883476f,
                           .q_scale = 1,
                           .block_size = 16};
    const int kb = cpu_row_bytes(f->k, SIZE) + (f->k == CPU_C4 || f->k == CPU_C3 ? 2 : 0);
    const int slot = kb + cpu_row_bytes(f->v, SIZE) + (f->v == CPU_E2M1 ? 0 : 4);
    const int own = n < ROWS ? n : ROWS;
    c->contiguous = c->packed = 1;
    c->num_seqs = c->tokens = 1;
    c->seqs[0] = (struct cpu_seq){.q_len = 1, .kv_len = n, .q_offset = n - 1};
    c->seqs[0].mask = (struct cpu_mask){.causal = 1, .window_left = -1, .window_right = -1};
    c->cache_k = malloc((size_t)n * (size_t)slot);
    c->cache_groups = malloc((size_t)n * 16);
    c->kd = malloc((size_t)n * SIZE * 8);
    c->vd = malloc((size_t)n * SIZE * 8);
    c->qd = malloc(HEADS * SIZE * 8);
    c->q = malloc(HEADS * SIZE * 2);
    c->out_bytes = HEADS * SIZE * 2;
    c->out = malloc(c->out_bytes);
    c->lse = malloc(HEADS * 4);
    a->k = (struct cpu_rows){c->cache_k, 0, slot, slot};
    a->v = (struct cpu_rows){c->cache_k + kb, 0, slot, slot};
    if (f->k == CPU_E2M1) {
        a->k_apart = (struct cpu_rows){c->cache_groups, 0, 8, 8};
        a->v_apart = (struct cpu_rows){c->cache_groups + n * 8, 0, 8, 8};
    }
    for (int i = 0; i < n; i++)
        for (int side = 0; side < 2; side++) {
            const int from = i < own ? i : 1 + i % (own - 1); /* one needle */
            char *row = c->cache_k + (int64_t)i * slot + side * kb;
            char *groups = c->cache_groups + ((int64_t)side * n + i) * 8;
            double *val = (side ? c->vd : c->kd) + (int64_t)i * SIZE;
            if (i < own) {
                float x[SIZE];
                family_row(&rng, family, side, i, x);
                store_row(side ? f->v : f->k, x, row, groups, val);
                continue;
            }
            memcpy(row, row - (int64_t)(i - from) * slot, (size_t)(side ? slot - kb : kb));
            memcpy(groups, groups - (i - from) * 8, 8);
            memcpy(val, val - (int64_t)(i - from) * SIZE, SIZE * 8);
        }
    for (int h = 0; h < HEADS; h++) {
        double square = 0;
        for (int d = 0; d < SIZE; d++)
            square += c->kd[d] * c->kd[d];
        for (int d = 0; d < SIZE; d++) {
            double q = tap_rand_normal(&rng) * (family == CHANNEL ? 0.05 : family == ENDS ? 0.02 : 1);
            if (family == UNIFORM) q = 0;
            if (family == NEEDLE)
                q = c->kd[d] / square * log((double)n) / (double)a->scale; /* half of the weight */
            if (family == GEOMETRIC) q = d == 0 ? -0.5 * (h + 1) : 0.01 * q;
            c->qd[h * SIZE + d] =
                (double)case_round(CPU_BF16, (float)q, (unsigned char *)c->q + (h * SIZE + d) * 2);
        }
    }
    a->q = c->q;
    a->q_head = SIZE * 2;
    a->q_token = HEADS * SIZE * 2;
    a->out = c->out;
    a->out_head = SIZE * 2;
    a->out_token = HEADS * SIZE * 2;
    a->lse = c->lse;
    a->lse_token = HEADS;
    a->lse_head = 1;
}

struct exact {
    double out[HEADS][SIZE], size[HEADS][SIZE], lse[HEADS], most[HEADS];
};
static void solve(struct cpu_case *c, struct exact *e) {
    const int n = c->seqs[0].kv_len;
    double *score = malloc((size_t)n * 8);
    for (int h = 0; h < HEADS; h++) {
        e->lse[h] = case_reference(c, 0, 0, h, e->out[h], score);
        e->most[h] = 0;
        memset(e->size[h], 0, sizeof e->size[h]);
        for (int i = 0; i < n; i++) {
            e->most[h] = fmax(e->most[h], fabs(score[i]));
            for (int d = 0; d < SIZE; d++)
                e->size[h][d] += exp(score[i] - e->lse[h]) * fabs(c->vd[(int64_t)i * SIZE + d]);
        }
    }
    free(score);
}

static void compare(struct cpu_case *c, const struct exact *e, const struct cpu_kernels *k,
                    const char *name) {
    double most = 0, bias = 0, lse = 0;
    for (int extras = 1; extras >= 0; extras--) {
        c->no_extras = !extras;
        case_run(c, k, 2, 0);
        for (int h = 0; h < HEADS; h++) {
            double mean = 0;
            for (int d = 0; d < SIZE; d++)
                mean += e->size[h][d] / SIZE;
            for (int d = 0; d < SIZE; d++) {
                const double x = case_read(CPU_BF16, c->out + (h * SIZE + d) * 2), y = e->out[h][d];
                const double unit = e->size[h][d] + 0.02 * mean, error = x - y;
                most = fmax(most, x != x ? 1e9 : fabs(error) / unit);
                bias += (y < 0 ? -error : error) / unit / (2 * HEADS * SIZE);
            }
            lse = fmax(lse, fabs((double)c->lse[h] - e->lse[h]) / (1 + e->most[h]));
        }
    }
    ok(most <= 6e-3 && fabs(bias) <= 2e-3 && lse <= 4e-4, "%s, %s: error %.1e, bias %.1e, LSE %.1e", k->name,
       name, most, bias, lse);
}

/* A scale that is NaN: of a group of V it reaches its 16 columns, of K every column. */
static void nan_scale(const struct cpu_kernels *k, int side) {
    struct cpu_case c;
    int wrong = 0;
    build(&c, &formats[0], NORMAL, 300);
    c.cache_groups[(side * 300 + 77) * 8 + 3] = 0x7f;
    for (int extras = 1; extras >= 0; extras--) {
        c.no_extras = !extras;
        case_run(&c, k, 2, 0);
        for (int i = 0; i < HEADS * SIZE; i++) {
            const double x = case_read(CPU_BF16, c.out + i * 2);
            wrong += (x != x) != (side == 0 || i % SIZE / 16 == 3);
        }
    }
    ok(wrong == 0, "%s: NaN as a scale of %s: %d outputs wrong", k->name, side ? "V" : "K", wrong);
    case_free(&c);
}

int main(void) {
    static struct exact e;
    struct cpu_case c;
    const uint32_t bits = cpu_bits();
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (int family = 0; family < NUM_FAMILIES; family++)
            for (int n = 33; n <= 131072; n = n == 33 ? 1000 : n == 1000 ? 131072 : n + 1) {
                if (n == 131072 && (f % 2 || (family != CONSTANT && family != UNIFORM && family != NEEDLE)))
                    continue;
                char name[80];
                snprintf(name, sizeof name, "%s, %s, %d keys", formats[f].name, family_names[family], n);
                build(&c, &formats[f], (enum family)family, n);
                solve(&c, &e);
                for (int l = 0; cpu_levels[l]; l++)
                    if (!(cpu_levels[l]->needs & ~bits)) compare(&c, &e, cpu_levels[l], name);
                case_free(&c);
            }
    for (int l = 0; cpu_levels[l]; l++)
        for (int side = 0; side < 2 && !(cpu_levels[l]->needs & ~bits); side++)
            nan_scale(cpu_levels[l], side);
    return tap_done();
}
