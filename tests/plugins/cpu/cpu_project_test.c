/* SPDX-License-Identifier: Apache-2.0 */
/* The projections of latent attention at every level that this CPU has, against double: types of weights,
 * sizes that are no whole vectors, blocks of tokens, inputs that are not centred, rows that must stay as they
 * are. */
#include "../../tap.h"

#include "cpu_kernels.h"

#include <attn/attn_plugin_util.h>

enum { MAX_SIZE = 320, GUARD = 8 };

static uint64_t state;
static double uniform(void) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(state >> 11) * 0x1p-53;
}
static int between(int low, int high) {
    return low + (int)(uniform() * (high - low + 1));
}

/* Stores x as `type`, and returns what was stored. */
static double put(enum cpu_dtype type, char *p, double x) {
    if (type == CPU_F32) {
        const float f = (float)x;
        memcpy(p, &f, 4);
        return f;
    }
    if (type == CPU_E4M3) {
        const uint8_t u = attn_to_e4m3(x);
        memcpy(p, &u, 1);
        return attn_from_e4m3(u);
    }
    const uint16_t u = type == CPU_F16 ? attn_to_f16(x) : attn_to_bf16(x);
    memcpy(p, &u, 2);
    return type == CPU_F16 ? attn_from_f16(u) : attn_from_bf16(u);
}

static double get(enum cpu_dtype type, const char *p) {
    float f;
    uint16_t u;
    if (type == CPU_F32) {
        memcpy(&f, p, 4);
        return f;
    }
    memcpy(&u, p, 2);
    return type == CPU_F16 ? attn_from_f16(u) : attn_from_bf16(u);
}

/* One of: normal-like, a large mean, a constant, one entry 100 times the others. */
static double value(int family, int at) {
    const double x = uniform() + uniform() + uniform() - 1.5;
    return family == 0 ? x : family == 1 ? 8 + x : family == 2 ? 1 : at == 3 ? 100 * x : x;
}

struct numbers {
    int rows, columns, stride; /* elements */
    char bytes[MAX_SIZE * (MAX_SIZE + 32) * 4];
    double exact[MAX_SIZE][MAX_SIZE];
};

static void fill(struct numbers *n, enum cpu_dtype type, int rows, int columns, int stride, int family) {
    memset(n->bytes, 0, sizeof n->bytes);
    n->rows = rows, n->columns = columns, n->stride = stride;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            n->exact[r][c] =
                put(type, n->bytes + ((size_t)r * stride + c) * cpu_dtype_size(type), value(family, c));
}

static struct numbers weights, in;
static char out[CPU_PROJECT_TOKENS * (MAX_SIZE + 64) * 4 + GUARD];
static float scratch[CPU_PROJECT_TOKENS * (3 * MAX_SIZE + 128)];

static void run(const struct cpu_kernels *k, const struct cpu_projection *p, int is_value, int first,
                int tokens, char *to, int ld) {
    const enum cpu_dtype type = is_value ? p->y_type : p->q_type;
    const int64_t row = (int64_t)in.stride * cpu_dtype_size(type);
    memset(scratch, 0xff, sizeof scratch); /* NaN */
    if (is_value)
        k->values(p, tokens, weights.bytes, in.bytes + first * row, row, to,
                  (int64_t)ld * cpu_dtype_size(p->out_type), scratch);
    else
        k->absorb(p, tokens, weights.bytes, in.bytes + first * row, row, (float *)(void *)to, ld, scratch);
}

/* Whether each token alone has the bits that it has among `tokens`, which are in `out`. */
static int is_same_alone(const struct cpu_kernels *k, const struct cpu_projection *p, int is_value,
                         int tokens, int ld) {
    static char alone[sizeof out];
    const int n = is_value ? p->value : p->latent + p->rope;
    const size_t size = (size_t)cpu_dtype_size(is_value ? p->out_type : CPU_F32);
    int same = 1;
    for (int t = 0; t < tokens; t++) {
        run(k, p, is_value, t, 1, alone, ld);
        same &= memcmp(alone, out + (size_t)t * ld * size, (size_t)n * size) == 0;
    }
    return same;
}

/* The largest error over the size of the sums, sum |x w|; 1 if a byte behind the rows changed. */
static double check(const struct cpu_kernels *k, const struct cpu_projection *p, int is_value, int tokens,
                    int ld) {
    const int depth = is_value ? p->latent : p->nope, n = is_value ? p->value : p->latent;
    const enum cpu_dtype type = is_value ? p->out_type : CPU_F32;
    const size_t row = (size_t)ld * cpu_dtype_size(type), all = (size_t)tokens * row;
    double worst = 0;
    memset(out, 0x5a, sizeof out);
    run(k, p, is_value, 0, tokens, out, ld);
    for (int t = 0; t < tokens; t++) {
        for (int c = 0; c < n; c++) {
            double sum = 0, size = 0;
            for (int d = 0; d < depth; d++) {
                const double w = (is_value ? weights.exact[c][d] : weights.exact[d][c]) * p->w_scale;
                sum += in.exact[t][d] * w;
                size += fabs(in.exact[t][d] * w);
            }
            const double e = fabs(get(type, out + t * row + (size_t)c * cpu_dtype_size(type)) - sum) /
                             (size > 1e-30 ? size : 1e-30);
            worst = e > worst || e != e ? e : worst;
        }
        for (int r = 0; !is_value && r < p->rope; r++)
            if (get(CPU_F32, out + t * row + (size_t)(p->latent + r) * 4) != in.exact[t][p->nope + r])
                worst = 1;
    }
    for (size_t i = 0; i < GUARD; i++)
        if (out[all + i] != 0x5a) worst = 1;
    return worst;
}

int main(void) {
    static const enum cpu_dtype types[] = {CPU_F32, CPU_F16, CPU_BF16};
    state = tap_seed();
    for (int i = 0; cpu_levels[i] != NULL; i++) {
        const struct cpu_kernels *k = cpu_levels[i];
        if ((k->needs & ~cpu_bits()) != 0) {
            diag("level %s: not on this CPU", k->name);
            continue;
        }
        double worst[2] = {0}, worst16[2] = {0};
        int same = 1, pairs = 0;
        for (int c = 0; c < 90; c++) {
            const enum cpu_dtype model = types[c % 3];
            struct cpu_projection p = {.nope = between(1, MAX_SIZE / 2),
                                       .rope = between(1, 64),
                                       .latent = between(1, MAX_SIZE),
                                       .value = between(1, MAX_SIZE),
                                       .q_type = model,
                                       .y_type = c % 2 ? CPU_F32 : model,
                                       .out_type = model,
                                       .w_type = c % 5 == 4 ? CPU_E4M3 : model,
                                       .w_scale = c % 5 == 4 ? 0.37f : 1.0f};
            const int tokens = between(1, CPU_PROJECT_TOKENS), pad = CPU_PROJECT_PAD;
            /* Products of bf16 pairs; every other such case has sizes that all of it takes. */
            p.dots = k->bf16_dot && p.q_type == CPU_BF16 && p.w_type == CPU_BF16 && c % 4 != 0;
            if (p.dots && c % 2 == 0) p.nope += p.nope % 2, p.latent = (p.latent + pad - 1) / pad * pad;
            pairs += p.dots;
            p.w_columns = (p.latent + pad - 1) / pad * pad;
            p.w_row = (int64_t)p.w_columns * cpu_dtype_size(p.w_type);
            fill(&weights, p.w_type, p.nope, p.latent, p.w_columns, c % 4);
            fill(&in, p.q_type, tokens, p.nope + p.rope, p.nope + p.rope + 3, c / 4 % 4);
            const int ld = p.w_columns > p.latent + p.rope ? p.w_columns : p.latent + p.rope;
            double e = check(k, &p, 0, tokens, ld);
            worst[0] = fmax(worst[0], e == e ? e : 1);
            same &= is_same_alone(k, &p, 0, tokens, ld);
            fill(&weights, p.w_type, p.value, p.latent, p.w_columns, c % 4);
            fill(&in, p.y_type, tokens, p.latent, p.latent + 5, c / 4 % 4);
            e = check(k, &p, 1, tokens, p.value);
            double *to = p.out_type == CPU_F32 ? worst : worst16;
            to[1] = fmax(to[1], e == e ? e : 1);
            same &= is_same_alone(k, &p, 1, tokens, p.value);
        }
        ok(worst[0] < 4e-6, "level %s: absorbed queries within 4e-6 of their sums: %.1e", k->name, worst[0]);
        ok(worst[1] < 4e-6, "level %s: values in float32 within 4e-6: %.1e", k->name, worst[1]);
        ok(worst16[1] < 4e-3, "level %s: values in 16 bits within a rounding: %.1e", k->name, worst16[1]);
        ok(same, "level %s: a token has the same bits alone (%d cases by bf16 pairs)", k->name, pairs);
    }
    return tap_done();
}
