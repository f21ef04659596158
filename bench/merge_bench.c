/* SPDX-License-Identifier: Apache-2.0 */
/* merge_bench: what a layer over ranks adds on a GPU beside its exchanges: the order of gathered queries,
 * the packing of results and their LSE, the merge of n states; in graphs of 20 calls, beside a copy of as
 * many bytes. ATTN_CONFIG says where the plugins are. */
#include <attn/attn.h>
#include <attn/attn_merge.h>
#include <attn/attn_plugin_util.h>
#include <attn/draft/attn_device.h>

#include <stdio.h>
#include <stdlib.h>

enum { CALLS = 20, ROUNDS = 10, MOST = 8 };

static const attn_device_kind_t *kind;
static attn_error_t error = {.struct_size = sizeof error};
static void *stream;

typedef struct tensor {
    DLTensor t;
    int64_t shape[5], strides[5];
} tensor_t;
static const DLTensor *tensor(tensor_t *v, void *data, uint32_t dtype, int ndim, const int64_t *shape,
                              const int64_t *strides) {
    int64_t dense = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        v->shape[i] = shape[i], v->strides[i] = strides != NULL ? strides[i] : dense;
        dense *= shape[i];
    }
    v->t = (DLTensor){.data = data,
                      .device = {kDLCUDA, 0},
                      .ndim = ndim,
                      .dtype = attn_dl_dtype(dtype),
                      .shape = v->shape,
                      .strides = v->strides};
    return &v->t;
}

/* One of the calls of a layer: T tokens, n ranks of H heads over one KV head, queries of D and values of
 * V. */
typedef struct work {
    int which, n;
    int64_t tokens, heads, d, v;
    uint32_t dtype;
    char *from, *to;
} work_t;

static int call(const work_t *w) {
    const int64_t t = w->tokens, h = w->heads, n = w->n, v = w->which == 0 ? w->d : w->v;
    tensor_t a, b, lse[MOST], out[MOST], to;
    attn_state_t states[MOST];
    const int64_t shape[4] = {n, t, h, v}, all[4] = {h * v, n * h * v, v, 1};
    const int64_t rows[3] = {t, h, v}, ls[2] = {h, t}, part = t * h * v * (int64_t)attn_dtype_size(w->dtype);
    if (w->which == 0) /* gathered queries: heads of all ranks together */
        return attn_rows_copy(tensor(&a, w->from, w->dtype, 4, shape, NULL), NULL,
                              tensor(&b, w->to, w->dtype, 4, shape, all), stream, &error);
    if (w->which == 1) /* results by rank */
        return attn_rows_copy(tensor(&a, w->from, w->dtype, 4, shape, all), NULL,
                              tensor(&b, w->to, w->dtype, 4, shape, NULL), stream, &error);
    for (int i = 0; i < w->n; i++) {
        states[i].output = tensor(&out[i], w->from + i * part, w->dtype, 3, rows, NULL);
        states[i].lse = tensor(&lse[i], w->from + n * part + i * h * t * 4, ATTN_DTYPE_FLOAT32, 2, ls, NULL);
    }
    return attn_merge_states(states, w->n, t, NULL, tensor(&to, w->to, w->dtype, 3, rows, NULL), NULL, stream,
                             &error);
}

/* Microseconds of a call in a graph; bytes > 0: of a copy of that many instead. */
static double measure(const work_t *w, size_t bytes) {
    void *graph = NULL, *first = NULL, *last = NULL;
    double seconds = 0, best = 1e9;
    int code = kind->capture_begin(0, stream, 0, &error);
    for (int i = 0; i < CALLS && code == ATTN_OK; i++)
        code = bytes > 0 ? kind->copy_within(0, w->to, w->from, bytes, stream, &error) : call(w);
    if (code == ATTN_OK) code = kind->capture_end(0, stream, &graph, &error);
    if (code == ATTN_OK) code = kind->event_create(0, &first, &error);
    if (code == ATTN_OK) code = kind->event_create(0, &last, &error);
    for (int r = 0; r < ROUNDS && code == ATTN_OK; r++) {
        kind->event_record(0, first, stream, &error);
        code = kind->graph_launch(0, graph, stream, &error);
        kind->event_record(0, last, stream, &error);
        if (code == ATTN_OK) code = kind->event_seconds(0, first, last, &seconds, &error);
        if (r > 0 && seconds < best) best = seconds;
    }
    if (code != ATTN_OK) {
        fprintf(stderr, "merge_bench: %s\n", error.text);
        exit(1);
    }
    kind->graph_destroy(0, graph);
    kind->event_destroy(0, first), kind->event_destroy(0, last);
    return best / CALLS * 1e6;
}

int main(void) {
    static const char *const names[] = {"order queries", "pack results", "merge"};
    static const struct {
        const char *name;
        int64_t heads, d, v;
    } layers[] = {{"16 heads of 128", 16, 128, 128}, {"latent, 64 heads", 64, 576, 512}};
    static const int64_t tokens[] = {1, 8, 64, 512};
    attn_context_t *context = NULL;
    attn_device_t device = {.struct_size = sizeof device};
    void *memory[2] = {NULL, NULL};
    const size_t room = (size_t)1 << 30;
    if (attn_context_create(NULL, &context, &error) != ATTN_OK ||
        attn_device_parse("cuda:0", &device, &error) != ATTN_OK) {
        fprintf(stderr, "merge_bench: %s\n", error.text);
        return 1;
    }
    kind = attn_device_kind(kDLCUDA);
    if (kind->alloc(0, room, &memory[0], &error) != ATTN_OK ||
        kind->alloc(0, room, &memory[1], &error) != ATTN_OK ||
        kind->stream_create(0, &stream, &error) != ATTN_OK) {
        fprintf(stderr, "merge_bench: %s\n", error.text);
        return 1;
    }
    kind->fill(0, memory[0], 0x31, room, NULL, &error);
    kind->synchronize(0, &error);
    printf("bfloat16, microseconds of a call; copy: of as many bytes read and written\n%-18s %3s %7s",
           "layer", "n", "tokens");
    for (int which = 0; which < 3; which++)
        printf(" %14s %6s", names[which], "copy");
    printf("\n");
    for (size_t l = 0; l < 2; l++)
        for (int n = 2; n <= 8; n *= 4)
            for (size_t i = 0; i < 4; i++) {
                work_t w = {.n = n,
                            .tokens = tokens[i],
                            .heads = layers[l].heads,
                            .d = layers[l].d,
                            .v = layers[l].v,
                            .dtype = ATTN_DTYPE_BFLOAT16,
                            .from = memory[0],
                            .to = memory[1]};
                printf("%-18s %3d %7lld", layers[l].name, n, (long long)w.tokens);
                for (w.which = 0; w.which < 3; w.which++) {
                    const int64_t rows = w.tokens * w.heads,
                                  bytes = w.which == 2 ? rows * w.v * (n + 1)
                                                       : 2 * rows * n * (w.which ? w.v : w.d);
                    printf(" %14.1f %6.1f", measure(&w, 0), measure(&w, (size_t)bytes));
                }
                printf("\n");
            }
    attn_context_destroy(context);
    return 0;
}
