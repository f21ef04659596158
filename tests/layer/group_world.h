/* SPDX-License-Identifier: Apache-2.0 */
/* Random batches over a float32 cache, and attention with each family's own mask written down plainly: what
 * rewritten batches and real backends are compared with. WORLD_D and WORLD_BS: head size and block size. */
#ifndef ATTN_TESTS_GROUP_WORLD_H
#define ATTN_TESTS_GROUP_WORLD_H

#include "layer_testing.h"

enum { HEADS = 2, D = WORLD_D, BS = WORLD_BS, BLOCKS = 64, MAX_TOKENS = 64, SINK = BS };

static uint64_t state;

static int pick(int low, int high) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return low + (int)((state >> 33) % (uint64_t)(high - low + 1));
}

/* One request: its keys in order of position, and its blocks. */
struct request {
    int query_len, seq_len, encoder_len;
    float k[MAX_TOKENS][D], v[MAX_TOKENS][D];
    int32_t blocks[MAX_TOKENS / BS];
};

struct world {
    struct request r[4];
    int n, tokens;
    float q[MAX_TOKENS * 4][HEADS][D], out[MAX_TOKENS * 4][HEADS][D];
    float cache[BLOCKS][BS][1][2 * D]; /* NHD: the fake's layout, logical (nb, Hkv, bs, content) */
    int32_t starts[5], lens[4], encoder_lens[4], table[4][MAX_TOKENS / BS];
};

static struct tensor tq, tout, tcache, ttable, tlens;

static const DLTensor *cache_tensor(struct world *w) {
    tensor(&tcache, w->cache, ATTN_DTYPE_FLOAT32, 4, BLOCKS, 1, BS, 2 * D);
    return &tcache.t;
}

/* Requests with random lengths, their keys written where the table says; everything else in the cache is
 * NaN. */
static void make_world(struct world *w, int cross) {
    int next = 2; /* block 0 is the null block, block 1 belongs to the sink */
    memset(w, 0, sizeof *w);
    for (size_t i = 0; i < sizeof w->cache / sizeof(float); i++)
        ((float *)w->cache)[i] = NAN;
    w->n = pick(1, 4);
    for (int i = 0; i < w->n; i++) {
        struct request *r = &w->r[i];
        r->seq_len = pick(0, 40);
        r->query_len = r->seq_len ? pick(pick(0, 1), r->seq_len) : 0;
        if (w->tokens + r->query_len > MAX_TOKENS) r->query_len = 0;
        r->encoder_len = pick(0, 40);
        int keys = cross ? r->encoder_len : r->seq_len;
        fill(&r->k[0][0], MAX_TOKENS * D, (uint64_t)pick(1, 1 << 30));
        fill(&r->v[0][0], MAX_TOKENS * D, (uint64_t)pick(1, 1 << 30));
        for (int b = 0; b < MAX_TOKENS / BS; b++)
            w->table[i][b] = -7; /* never to be read */
        for (int b = 0; b < (keys + BS - 1) / BS; b++)
            w->table[i][b] = r->blocks[b] = next++;
        for (int k = 0; k < keys; k++) {
            memcpy(w->cache[r->blocks[k / BS]][k % BS][0], r->k[k], sizeof r->k[k]);
            memcpy(w->cache[r->blocks[k / BS]][k % BS][0] + D, r->v[k], sizeof r->v[k]);
        }
        w->starts[i + 1] = w->starts[i] + r->query_len;
        w->lens[i] = r->seq_len;
        w->encoder_lens[i] = r->encoder_len;
        w->tokens += r->query_len;
    }
    fill(&w->q[0][0][0], sizeof w->q / sizeof(float), (uint64_t)pick(1, 1 << 30));
    memset(w->out, 0x7f, sizeof w->out);
}

/* One query over the keys from `low` to `high` and, before them, the sink tokens. */
static void expect(const struct world *w, const struct request *r, int t, int h, int low, int high,
                   const float *sink_k, const float *sink_v, int sinks, double *want) {
    double sum = 0, acc[D] = {0};
    for (int k = low - sinks; k < high; k++) {
        const float *key = k < low ? sink_k + (k - low + sinks) * D : r->k[k],
                    *value = k < low ? sink_v + (k - low + sinks) * D : r->v[k];
        double s = 0;
        for (int d = 0; d < D; d++)
            s += (double)w->q[t][h][d] * key[d];
        s = exp(0.5 * s);
        sum += s;
        for (int d = 0; d < D; d++)
            acc[d] += s * value[d];
    }
    for (int d = 0; d < D; d++)
        want[d] = sum > 0 ? acc[d] / sum : 0;
}

static attn_batch_t batch_of(struct world *w) {
    ATTN_INIT(attn_batch_t, b);
    b.num_reqs = w->n;
    b.num_actual_tokens = w->tokens;
    b.query_start_loc_host = w->starts;
    b.seq_lens_host = w->lens;
    b.block_table = tensor(&ttable, w->table, ATTN_DTYPE_INT32, 2, 4, MAX_TOKENS / BS, 0, 0);
    return b;
}

static attn_forward_t args_of(struct world *w) {
    ATTN_INIT(attn_forward_t, a);
    a.query = tensor(&tq, w->q, ATTN_DTYPE_FLOAT32, 3, MAX_TOKENS * 4, HEADS, D, 0);
    a.output = tensor(&tout, w->out, ATTN_DTYPE_FLOAT32, 3, MAX_TOKENS * 4, HEADS, D, 0);
    a.kv_cache = cache_tensor(w);
    return a;
}

static int wrong(const struct world *w, int t, int h, const double *want) {
    int bad = 0;
    for (int d = 0; d < D; d++)
        bad += !(fabs((double)w->out[t][h][d] - want[d]) < WORLD_TOLERANCE);
    return bad;
}

enum family { DECODER, CHUNKED, CROSS, STATIC_SINK };

static int run_once(attn_group_t *g, attn_layer_t *layer, const struct buffers *buf, enum family family,
                    int chunk, const float *sink_k, const float *sink_v) {
    static struct world w;
    attn_error_t error = ERROR_INIT;
    make_world(&w, family == CROSS);
    attn_batch_t b = batch_of(&w);
    if (family == CROSS) {
        b.encoder_seq_lens_host = w.encoder_lens;
        b.encoder_seq_lens = tensor(&tlens, w.encoder_lens, ATTN_DTYPE_INT32, 1, w.n, 0, 0, 0);
    }
    if (pick(0, 1)) { /* a host mirror, as engines with device tables have it */
        b.block_table_host = w.table[0];
        b.block_table_host_stride = MAX_TOKENS / BS;
    }
    attn_forward_t a = args_of(&w);
    if (attn_group_build_metadata(g, &b, &buf->space, NULL, &error) ||
        attn_layer_forward(layer, &a, &buf->space, NULL, &error)) {
        diag("%s: %s", error.param, error.text);
        return 1;
    }
    int bad = 0;
    for (int i = 0; i < w.n; i++) {
        const struct request *r = &w.r[i];
        for (int t = w.starts[i]; t < w.starts[i + 1]; t++) {
            int q = r->seq_len - r->query_len + (t - w.starts[i]); /* absolute position */
            int low = family == CHUNKED ? q / chunk * chunk : 0,
                high = family == CROSS ? r->encoder_len : q + 1;
            for (int h = 0; h < HEADS; h++) {
                double want[D];
                expect(&w, r, t, h, low, high, sink_k, sink_v, family == STATIC_SINK ? SINK : 0, want);
                bad += wrong(&w, t, h, want);
            }
        }
    }
    return bad;
}

#endif
