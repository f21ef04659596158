/* SPDX-License-Identifier: Apache-2.0 */
/* fenced_peers.c: the exchanges of attn_merge.h in peers' memory on the device of fenced_device.c: kernels
 * that wait for each other's, in the threads that launch them. */
#include "fenced_device.h"

#include <attn/attn_merge.h>
#include <math.h>
#include <time.h>

/* What the header leaves to the functions: the first member is in it. */
typedef struct control {
    attn_peers_failed_t failed;
    uint32_t epoch, joined, query[ATTN_PEERS_MAX], result[ATTN_PEERS_MAX];
} control_t;
_Static_assert(sizeof(control_t) <= ATTN_PEERS_CONTROL_BYTES, "the header promises no more");

typedef struct peers_call {
    attn_peers_t p;
    char *base[ATTN_PEERS_MAX];
    int64_t tokens;
    const char *query; /* NULL: none */
    char *output;      /* NULL: not wanted */
    float *lse;
    const float *sinks;
    int64_t strides[2], lse_strides[2]; /* of query or output, in bytes; of lse, in elements */
    uint32_t type;
} peers_call_t;

static control_t *control_of(const peers_call_t *c, int rank) {
    return (control_t *)(void *)c->base[rank];
}

/* Head h of this rank among those of all (semantics 8.6). */
static int64_t head_of(const attn_peers_t *p, int64_t h) {
    const int64_t group = p->num_heads / p->num_kv_heads;
    return (h / group * p->world + p->rank) * group + h % group;
}

static void say(const peers_call_t *c, int is_result, uint32_t epoch) {
    for (int r = 0; r < c->p.world; r++) {
        control_t *there = control_of(c, r);
        __atomic_store_n(&(is_result ? there->result : there->query)[c->p.rank], epoch, __ATOMIC_RELEASE);
    }
}

static void wait_for_all(const peers_call_t *c, int is_result, uint32_t epoch) {
    control_t *own = control_of(c, c->p.rank);
    const struct timespec pause = {.tv_nsec = 100000};
    for (int r = 0; r < c->p.world && own->failed == 0; r++)
        for (uint64_t waited = 0;
             __atomic_load_n(&(is_result ? own->result : own->query)[r], __ATOMIC_ACQUIRE) < epoch;
             waited++) {
            if (waited > 10 * c->p.limit_ms) {
                own->failed |= UINT64_C(1) << r;
                break;
            }
            nanosleep(&pause, NULL);
        }
}

static int run_query(void *arguments, attn_error_t *error) {
    peers_call_t *c = arguments;
    const attn_peers_t *p = &c->p;
    control_t *own = control_of(c, p->rank);
    const size_t row = (size_t)p->query_size * attn_dtype_size(p->dtype);
    const uint32_t epoch = own->epoch + 1;
    (void)error;
    for (int64_t t = 0; t < c->tokens && c->query != NULL && own->failed == 0; t++)
        for (int64_t h = 0; h < p->num_heads; h++)
            for (int r = 0; r < p->world; r++)
                memcpy(c->base[r] + p->query_at + (size_t)(t * p->num_heads * p->world + head_of(p, h)) * row,
                       c->query + t * c->strides[0] + h * c->strides[1], row);
    if (own->failed == 0) say(c, 0, epoch);
    wait_for_all(c, 0, epoch);
    own->epoch = epoch;
    return ATTN_OK;
}

static double load(uint32_t type, const void *at, int64_t i) {
    return type == ATTN_DTYPE_FLOAT32   ? ((const float *)at)[i]
           : type == ATTN_DTYPE_FLOAT16 ? attn_from_f16(((const uint16_t *)at)[i])
                                        : attn_from_bf16(((const uint16_t *)at)[i]);
}
static void store(uint32_t type, void *at, int64_t i, double x) {
    if (type == ATTN_DTYPE_FLOAT32) ((float *)at)[i] = (float)x;
    if (type == ATTN_DTYPE_FLOAT16) ((uint16_t *)at)[i] = attn_to_f16(x);
    if (type == ATTN_DTYPE_BFLOAT16) ((uint16_t *)at)[i] = attn_to_bf16(x);
}

static void join_row(const peers_call_t *c, int64_t t, int64_t h) {
    const attn_peers_t *p = &c->p;
    const int64_t head = head_of(p, h), at = (t * p->num_heads * p->world + head) * p->value_size;
    const double sink = c->sinks != NULL ? c->sinks[h] : -INFINITY;
    const int has_failed = control_of(c, p->rank)->failed != 0;
    double lse[ATTN_PEERS_MAX], top = sink, sum = 0;
    for (int r = 0; r < p->world; r++) {
        lse[r] = -INFINITY;
        if (has_failed) continue; /* a rank that did not come may be writing what is read here */
        lse[r] = ((const float *)(void *)(c->base[r] + p->lse_at))[head * p->lse_columns + t];
        if (isinf(lse[r]) || ((const int64_t *)(void *)(c->base[r] + p->places_at))[t] != p->first_token + t)
            lse[r] = -INFINITY;
        if (!(lse[r] <= top)) top = lse[r];
    }
    for (int r = 0; r < p->world; r++)
        sum += lse[r] == -INFINITY ? 0 : exp(lse[r] - top);
    if (sink != -INFINITY) sum += exp(sink - top);
    if (has_failed) sum = NAN;
    for (int64_t v = 0; v < p->value_size; v++) {
        double x = sum == 0 || !isnan(sum) ? 0 : NAN;
        for (int r = 0; r < p->world; r++)
            if (lse[r] != -INFINITY)
                x += exp(lse[r] - top) / sum * load(p->partial_dtype, c->base[r] + p->output_at, at + v);
        store(c->type, c->output + t * c->strides[0] + h * c->strides[1], v, x);
    }
    if (c->lse != NULL)
        c->lse[h * c->lse_strides[0] + t * c->lse_strides[1]] =
            sum == 0 ? -INFINITY : (float)(top + log(sum));
}

static int run_join(void *arguments, attn_error_t *error) {
    peers_call_t *c = arguments;
    control_t *own = control_of(c, c->p.rank);
    (void)error;
    const uint32_t number = ++own->joined;
    if (own->failed == 0) say(c, 1, number);
    wait_for_all(c, 1, number);
    for (int64_t t = 0; t < c->tokens && c->output != NULL; t++)
        for (int64_t h = 0; h < c->p.num_heads; h++)
            join_row(c, t, h);
    return ATTN_OK;
}

static void *view_of(const DLTensor *t) {
    return t != NULL ? fenced_view(attn_data(t)) : NULL;
}

static int begin(peers_call_t *c, const attn_peers_t *p, const DLTensor *rows, int64_t tokens,
                 attn_error_t *error) {
    memset(c, 0, sizeof *c);
    c->p = *p;
    c->tokens = tokens;
    for (int r = 0; r < p->world; r++)
        if ((c->base[r] = fenced_view(p->of_rank[r])) == NULL)
            return attn_fail(error, ATTN_E_INVALID, "of_rank", "rank %d's memory is none of fenced:0", r);
    for (int d = 0; d < 2 && rows != NULL; d++)
        c->strides[d] = attn_byte_stride(rows, d);
    return ATTN_OK;
}

int fenced_peers_query(const attn_peers_t *peers, const DLTensor *query, int64_t num_tokens, void *stream,
                       attn_error_t *error) {
    peers_call_t c;
    int code = begin(&c, peers, query, num_tokens, error);
    c.query = view_of(query);
    return code != ATTN_OK ? code : fenced_launch(stream, run_query, &c, sizeof c, error);
}

int fenced_peers_join(const attn_peers_t *peers, int64_t num_tokens, const DLTensor *sinks,
                      const DLTensor *output, const DLTensor *lse, void *stream, attn_error_t *error) {
    peers_call_t c;
    int code = begin(&c, peers, output, num_tokens, error);
    c.output = view_of(output), c.lse = view_of(lse), c.sinks = view_of(sinks);
    if (output != NULL) c.type = attn_dtype_of(output->dtype);
    if (lse != NULL) c.lse_strides[0] = lse->strides[0], c.lse_strides[1] = lse->strides[1];
    return code != ATTN_OK ? code : fenced_launch(stream, run_join, &c, sizeof c, error);
}
