/* SPDX-License-Identifier: Apache-2.0 */
/* bench_data.c: inputs for `attn bench`. A table of a prime number of values is read round and round, so that
 * long inputs cost no time and still differ from head to head. */
#include "measure/bench_data.h"

#include <attn/attn_plugin_util.h>
#include <math.h>
#include <stdlib.h>

#include "base/layer_sizes.h"
#include "tensor/tensor.h"

enum { TABLE_SIZE = 1048573, SAMPLES = 24, LATENT_SAMPLES = 6, MAX_HEAD = 1024 };
#define MAX_KEYS 200000 /* over all samples: each is read in double */

static float *table_of(void) {
    static float *table;
    if (table != NULL) return table;
    uint64_t state = 7;
    table = malloc(TABLE_SIZE * sizeof *table);
    for (int i = 0; table != NULL && i < TABLE_SIZE; i++)
        table[i] = random_normal(&state);
    return table;
}

static float size_of(int tensor) {
    return tensor == BENCH_QUERY ? 2 : tensor == BENCH_WEIGHT ? 0.04F : 1;
}

float bench_value(int tensor, uint32_t dtype, int64_t i) {
    const float *table = table_of();
    float value = table != NULL ? table[(i + 350003 * (int64_t)tensor) % TABLE_SIZE] : 0;
    unsigned char rounded[4];
    tensor_store(rounded, dtype, 0, size_of(tensor) * value);
    return tensor_load(rounded, dtype, 0);
}

void bench_fill(int tensor, uint32_t dtype, int64_t first, int64_t count, void *data) {
    const float *table = table_of();
    if (table == NULL) return;
    int64_t at = (first + 350003 * (int64_t)tensor) % TABLE_SIZE;
    for (int64_t i = 0; i < count; i++) {
        tensor_store(data, dtype, (size_t)i, size_of(tensor) * table[at]);
        if (++at == TABLE_SIZE) at = 0;
    }
}

int bench_fill_device(bench_tables_t *tables, device_memory_t *memory, int tensor, int64_t first,
                      int64_t count, void *to) {
    const uint32_t dtype = tensor == BENCH_QUERY ? tables->query_dtype : tables->dtype;
    const size_t element = attn_dtype_size(dtype);
    if (device_memory_device(memory).device_type == kDLCPU) {
        bench_fill(tensor, dtype, first, count, to);
        return 0;
    }
    if (tables->data[tensor] == NULL) {
        void *host = malloc(TABLE_SIZE * element), *data = device_memory_new(memory, TABLE_SIZE * element);
        if (host != NULL) bench_fill(tensor, dtype, -350003 * (int64_t)tensor, TABLE_SIZE, host);
        int failed = host == NULL || data == NULL ||
                     device_memory_write(memory, data, host, TABLE_SIZE * element) != 0;
        free(host);
        if (failed) return -1;
        tables->data[tensor] = data;
    }
    int64_t at = (first + 350003 * (int64_t)tensor) % TABLE_SIZE;
    for (int64_t done = 0; done < count; at = 0) {
        const int64_t n = count - done < TABLE_SIZE - at ? count - done : TABLE_SIZE - at;
        if (device_memory_copy(memory, (char *)to + (size_t)done * element,
                               (const char *)tables->data[tensor] + (size_t)at * element,
                               (size_t)n * element) != 0)
            return -1;
        done += n;
    }
    return 0;
}

float bench_slope(int64_t head, int64_t num_heads) {
    return (float)exp2(-8.0 * (double)(head + 1) / (double)num_heads);
}

float bench_rel_bias(int64_t head, int64_t rel) {
    return (float)(-0.02 * (double)(head % 7 + 1) * sqrt((double)(rel < 0 ? -rel : rel)) +
                   (rel > 0 ? 0.25 : 0));
}

int32_t bench_selected(const bench_row_t *row, int64_t i, int64_t j) {
    int64_t seen = row->seq_len - row->query_len + i + 1, topk = row->problem.topk;
    if (seen <= topk) return j < seen ? (int32_t)j : -1;
    return (int32_t)(j * seen / topk);
}

/* One output row of latent attention in double, absorbed (semantics 7.4): the query through W_UK, scores
 * against latents and rope, the sum of latents through W_UV. */
static int attend_latent(const bench_row_t *row, int64_t request, int64_t i, int64_t h, double *out) {
    const attn_problem_t *p = &row->problem;
    const layer_sizes_t z = layer_sizes(p);
    const int64_t l = p->kv_lora_rank, r = p->qk_rope_head_dim, nope = p->qk_nope_head_dim,
                  per_head = nope + z.output;
    const int64_t q_abs = row->seq_len - row->query_len + i, entries = p->topk != 0 ? p->topk : q_abs + 1;
    double *query = calloc((size_t)(2 * l + r), sizeof *query), total = 0;
    if (query == NULL) return -1;
    double *sum = query + l + r;
    const int is_absorbed = !attn_problem_projects(p); /* by the caller: semantics 7.11 */
    for (int64_t c = 0; c < z.query; c++) {
        double q = bench_value(BENCH_QUERY, bench_query_dtype(p),
                               ((request * row->query_len + i) * z.heads + h) * z.query + c);
        if (is_absorbed) query[c] = q;
        for (int64_t k = 0; c < nope && k < l; k++)
            query[k] += q * bench_value(BENCH_WEIGHT, p->dtype, (h * per_head + c) * l + k);
        if (!is_absorbed && c >= nope) query[l + c - nope] = q;
    }
    for (int64_t j = 0; j < entries; j++) {
        int64_t k = p->topk != 0 ? bench_selected(row, i, j) : j, token = request * row->seq_len + k;
        if (k < 0) continue;
        double s = 0;
        for (int64_t c = 0; c < l; c++)
            s += query[c] * bench_value(BENCH_KEY, p->dtype, token * l + c);
        for (int64_t c = 0; c < r; c++)
            s += query[l + c] * bench_value(BENCH_VALUE, p->dtype, token * r + c);
        double w = exp(s * p->scale);
        total += w;
        for (int64_t c = 0; c < l; c++)
            sum[c] += w * bench_value(BENCH_KEY, p->dtype, token * l + c);
    }
    for (int64_t v = 0; v < z.output; v++) {
        out[v] = is_absorbed ? sum[v] / total : 0;
        for (int64_t c = 0; !is_absorbed && c < l; c++)
            out[v] += sum[c] * bench_value(BENCH_WEIGHT, p->dtype, (h * per_head + nope + v) * l + c) / total;
    }
    free(query);
    return 0;
}

/* One output row in double (semantics 2.9): token i of a request, query head h. */
static int attend(const bench_row_t *row, int64_t request, int64_t i, int64_t h, double *out) {
    const attn_problem_t *p = &row->problem;
    int64_t hq = p->num_heads, hkv = p->num_kv_heads != 0 ? p->num_kv_heads : hq, d = p->head_size;
    int64_t dv = layer_sizes(p).value, len = bench_len(row, request),
            q_abs = len - bench_query(row, request) + i, g = h / (hq / hkv);
    const int64_t q_row = bench_query_start(row, request) + i, k_row = bench_key_start(row, request);
    int64_t last = p->mask == ATTN_MASK_CAUSAL ? q_abs : len - 1, window = p->sliding_window;
    double *scores = malloc((size_t)len * sizeof *scores), max = -INFINITY, sum = 0;
    if (scores == NULL) return -1;
    for (int64_t k = 0; k <= last; k++) {
        double s = 0;
        for (int64_t c = 0; c < d; c++)
            s += (double)bench_value(BENCH_QUERY, bench_query_dtype(p), (q_row * hq + h) * d + c) *
                 bench_value(BENCH_KEY, p->dtype, ((k_row + k) * hkv + g) * d + c);
        s *= p->scale;
        if (p->logits_soft_cap > 0) s = p->logits_soft_cap * tanh(s / p->logits_soft_cap);
        if ((p->features & ATTN_F_ALIBI) != 0) s += (double)bench_slope(h, hq) * (double)(k - q_abs);
        if ((p->features & ATTN_F_REL_BIAS) != 0) {
            const int64_t m = BENCH_REL_MAX, rel = k - q_abs;
            s += (double)bench_rel_bias(h, rel < -m ? -m : rel > m ? m : rel);
        }
        int is_far =
            window > 0 && (q_abs - k >= window || (p->mask != ATTN_MASK_CAUSAL && k - q_abs >= window));
        scores[k] = is_far ? -INFINITY : s;
        if (scores[k] > max) max = scores[k];
    }
    if ((p->features & ATTN_F_SINK) != 0) sum = exp(bench_value(BENCH_SINK, ATTN_DTYPE_FLOAT32, h) - max);
    for (int64_t c = 0; c < dv; c++)
        out[c] = 0;
    for (int64_t k = 0; k <= last; k++) {
        double w = exp(scores[k] - max);
        sum += w;
        for (int64_t c = 0; c < dv; c++)
            out[c] += w * bench_value(BENCH_VALUE, p->dtype, ((k_row + k) * hkv + g) * dv + c);
    }
    for (int64_t c = 0; c < dv; c++)
        out[c] /= sum;
    free(scores);
    return 0;
}

double bench_error(const bench_row_t *row, const void *output, uint32_t dtype) {
    const attn_problem_t *p = &row->problem;
    const uint64_t known = ATTN_F_SINK | ATTN_F_ALIBI | ATTN_F_REL_BIAS | ATTN_F_SLIDING_WINDOW |
                           ATTN_F_SOFT_CAP | ATTN_F_DIFF_KV | ATTN_F_LSE | ATTN_F_NON_CAUSAL |
                           ATTN_F_CAPTURE | ATTN_F_BATCH_INVARIANT | ATTN_F_WEIGHTS | ATTN_F_LATENT |
                           ATTN_F_DEVICE_LENGTHS | ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP |
                           ATTN_F_OUT_NVFP4 | ATTN_F_OUT_SCALE_UE8M0 | ATTN_F_WRITE_IN_FORWARD |
                           ATTN_F_QUANT_QUERY;
    double out[MAX_HEAD], worst = 0;
    const layer_sizes_t z = layer_sizes(p);
    int64_t dv = z.output;
    if ((attn_problem_features(p) & ~known) != 0 || p->chunk_size != 0 || dv > MAX_HEAD ||
        p->static_sink_len != 0)
        return -1;
    uint64_t state = 11;
    int samples = z.is_latent ? LATENT_SAMPLES : SAMPLES;
    if (row->seq_len > MAX_KEYS / samples) samples = MAX_KEYS / row->seq_len + 2;
    for (int n = 0; n < samples; n++) {
        int64_t request = (int64_t)(random_u64(&state) % (uint64_t)row->requests);
        const int64_t tokens = bench_query(row, request);
        int64_t i = n == 0 ? tokens - 1 : (int64_t)(random_u64(&state) % (uint64_t)tokens);
        int64_t h = (int64_t)(random_u64(&state) % p->num_heads);
        if ((z.is_latent ? attend_latent : attend)(row, request, i, h, out) != 0) return -1;
        for (int64_t c = 0; c < dv; c++) {
            size_t at = (size_t)(((bench_query_start(row, request) + i) * p->num_heads + h) * dv + c);
            double e = fabs(tensor_load(output, dtype, at) - out[c]);
            if (!(e <= worst)) worst = e;
        }
    }
    return worst;
}
