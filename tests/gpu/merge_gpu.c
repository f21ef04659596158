/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of attn_merge.h on a CUDA device against the same on the host: random states, types and
 * strides, sinks, in place, rows in any order, conversions, lists that leave rows out, capture. Merges
 * agree to the last rounding of their type, copies bit for bit. */
#include "part.h"
#include "../layer/layer_testing.h"

#include <attn/attn_merge.h>
#include <attn/draft/attn_device.h>

static const attn_device_kind_t *kind;
static attn_error_t error = ERROR_INIT;
static uint64_t seed;

/* A tensor twice: in host memory, where `host` points to data, and on the device. */
struct twin {
    DLTensor host, device;
    int64_t shape[6], strides[6];
    size_t bytes;
    char *data;
    void *there;
};

static int64_t pick(int64_t from, int64_t to) {
    return (int64_t)tap_rand_in(&seed, from, to);
}

static void fill_random(uint32_t type, char *data, size_t bytes) {
    const size_t size = attn_dtype_size(type);
    for (size_t i = 0; i < bytes / size; i++) {
        const double x = ((double)pick(-30000, 30000) / 7919.0) * (pick(0, 30) == 0 ? 40 : 1);
        if (type == ATTN_DTYPE_FLOAT32) ((float *)(void *)data)[i] = (float)x;
        if (type == ATTN_DTYPE_FLOAT64) ((double *)(void *)data)[i] = x;
        if (type == ATTN_DTYPE_FLOAT16) ((uint16_t *)(void *)data)[i] = attn_to_f16(x);
        if (type == ATTN_DTYPE_BFLOAT16) ((uint16_t *)(void *)data)[i] = attn_to_bf16(x);
        if (type == ATTN_DTYPE_FP8_E4M3 || type == ATTN_DTYPE_FP8_E5M2)
            ((uint8_t *)data)[i] = (uint8_t)pick(0, 255);
        if (type == ATTN_DTYPE_INT32) ((int32_t *)(void *)data)[i] = (int32_t)pick(-1000000, 1000000);
    }
}

/* Strides in an order of the dimensions, with gaps; the last dimension dense where is_dense. */
static void make(struct twin *t, uint32_t type, int ndim, const int64_t *shape, int is_dense, int has_gaps) {
    int order[6];
    memset(t, 0, sizeof *t);
    for (int i = 0; i < ndim; i++)
        order[i] = i, t->shape[i] = shape[i];
    for (int i = ndim - 1 - (is_dense != 0); i > 0; i--) {
        const int j = has_gaps ? (int)pick(0, i) : i, x = order[i];
        order[i] = order[j], order[j] = x;
    }
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        t->strides[order[i]] = stride;
        stride *= shape[order[i]] + (has_gaps && i < ndim - 1 ? pick(0, 2) * (pick(0, 1) ? 4 : 1) : 0);
    }
    t->bytes = (size_t)(stride + 8) * attn_dtype_size(type);
    t->data = malloc(t->bytes);
    fill_random(type, t->data, t->bytes);
    t->host = (DLTensor){.data = t->data,
                         .device = {kDLCPU, 0},
                         .ndim = ndim,
                         .dtype = attn_dl_dtype(type),
                         .shape = t->shape,
                         .strides = t->strides};
    t->device = t->host;
    if (kind->alloc(0, t->bytes, &t->there, &error) != ATTN_OK) bail_out("%s", error.text);
    t->device.data = t->there, t->device.device = (DLDevice){kDLCUDA, 0};
}

static void send(struct twin *t) {
    if (kind->copy_to(0, t->there, t->data, t->bytes, NULL, &error) != ATTN_OK) bail_out("%s", error.text);
}

static void drop(struct twin *t) {
    kind->free(0, t->there);
    free(t->data);
}

static double value_at(uint32_t type, const char *data, size_t i) {
    return type == ATTN_DTYPE_FLOAT32   ? ((const float *)(const void *)data)[i]
           : type == ATTN_DTYPE_FLOAT64 ? ((const double *)(const void *)data)[i]
           : type == ATTN_DTYPE_FLOAT16 ? attn_from_f16(((const uint16_t *)(const void *)data)[i])
                                        : attn_from_bf16(((const uint16_t *)(const void *)data)[i]);
}

/* Numbers of what is on the device that differ from the host, what the call leaves alone included: *bits in
 * any bit, *far by more than one rounding. exp and log of a device differ from the host's in the last bit of
 * a double, which float64 results show, more where terms cancel: those are only close. */
static void compare(struct twin *t, int64_t *bits, int64_t *far) {
    const uint32_t type = attn_dtype_of(t->host.dtype);
    const size_t size = attn_dtype_size(type);
    const double eps = type == ATTN_DTYPE_FLOAT32   ? 1.3e-7
                       : type == ATTN_DTYPE_FLOAT64 ? 1e-12
                       : type == ATTN_DTYPE_FLOAT16 ? 1e-3
                                                    : 8e-3;
    char *got = malloc(t->bytes);
    if (kind->copy_from(0, got, t->there, t->bytes, NULL, &error) != ATTN_OK) bail_out("%s", error.text);
    for (size_t i = 0; i < t->bytes / size; i++) {
        if (memcmp(got + i * size, t->data + i * size, size) == 0) continue;
        const double a = value_at(type, t->data, i), b = value_at(type, got, i);
        if (isnan(a) && isnan(b)) continue;
        const int is_double = type == ATTN_DTYPE_FLOAT64;
        *bits += !is_double;
        if (!(fabs(a - b) <= eps * (fabs(a) + is_double))) ++*far;
    }
    free(got);
}

static const uint32_t float_types[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_BFLOAT16,
                                       ATTN_DTYPE_FLOAT64};

/* ---------------------------------------------------------------------- merges */

static void one_merge(int64_t *numbers, int64_t *bits, int64_t *far, char *why, size_t size) {
    static const int64_t values[] = {1, 3, 16, 64, 70, 128, 512};
    const int n = pick(0, 9) == 0 ? (int)pick(33, 64) : (int)pick(1, 6), weigh = pick(0, 2) == 0;
    const int64_t tokens = pick(1, 40), heads = pick(1, 9), v = values[pick(0, 6)],
                  rows = tokens + pick(0, 2);
    const int64_t out[3] = {rows, heads, v}, ls[2] = {heads, rows};
    const int gaps = (int)pick(0, 1), has_sinks = (int)pick(0, 1), has_lse = (int)pick(0, 3) != 0;
    const int in_place = !weigh && pick(0, 3) == 0, own = (int)pick(0, n - 1);
    const uint32_t type = float_types[pick(0, 3)];
    struct twin *outs = calloc((size_t)n, sizeof *outs), *lses = calloc((size_t)n, sizeof *lses), to, lse,
                sinks;
    attn_state_t host[64], device[64];
    const DLTensor *host_lses[64], *device_lses[64];
    for (int i = 0; i < n; i++) {
        make(&outs[i], in_place ? type : float_types[pick(0, 3)], 3, out, 1, gaps);
        make(&lses[i], ATTN_DTYPE_FLOAT32, 2, ls, 1, gaps);
        for (size_t k = 0; k < lses[i].bytes / 4; k++)
            if (pick(0, 5) == 0)
                ((float *)(void *)lses[i].data)[k] = pick(0, 9) == 0 ? NAN
                                                     : pick(0, 1)    ? INFINITY
                                                                     : -INFINITY;
        send(&outs[i]), send(&lses[i]);
        host[i] = (attn_state_t){&outs[i].host, &lses[i].host};
        device[i] = (attn_state_t){&outs[i].device, &lses[i].device};
        host_lses[i] = &lses[i].host, device_lses[i] = &lses[i].device;
    }
    make(&to, type, 3, out, 1, gaps), make(&lse, ATTN_DTYPE_FLOAT32, 2, ls, 1, gaps);
    make(&sinks, ATTN_DTYPE_FLOAT32, 1, &heads, 1, 0);
    send(&to), send(&lse), send(&sinks);
    struct twin *o = in_place ? &outs[own] : &to, *l = in_place ? &lses[own] : &lse;
    const DLTensor *hs = has_sinks ? &sinks.host : NULL, *ds = has_sinks ? &sinks.device : NULL,
                   *hl = has_lse ? &l->host : NULL, *dl = has_lse ? &l->device : NULL;
    int code;
    if (weigh) {
        code = attn_merge_weigh(&outs[own].host, host_lses, n, own, tokens, hs, &to.host, hl, NULL, &error);
        if (code == ATTN_OK)
            code = attn_merge_weigh(&outs[own].device, device_lses, n, own, tokens, ds, &to.device, dl, NULL,
                                    &error);
    } else {
        code = attn_merge_states(host, n, tokens, hs, &o->host, hl, NULL, &error);
        if (code == ATTN_OK) code = attn_merge_states(device, n, tokens, ds, &o->device, dl, NULL, &error);
    }
    const int64_t before = *far;
    compare(o, bits, far), compare(l, bits, far);
    *numbers += tokens * heads * (v + 1);
    if (code != ATTN_OK) ++*far;
    if (*far != before)
        snprintf(why, size, "%s of %d states, %s, [%lld, %lld, %lld]%s%s%s: %s", weigh ? "weigh" : "merge", n,
                 attn_dtype_name(type), (long long)tokens, (long long)heads, (long long)v,
                 gaps ? ", gaps" : "", has_sinks ? ", sinks" : "", in_place ? ", in place" : "",
                 code != ATTN_OK ? error.text : "");
    for (int i = 0; i < n; i++)
        drop(&outs[i]), drop(&lses[i]);
    drop(&to), drop(&lse), drop(&sinks);
    free(outs), free(lses);
}

static void merges(int cases) {
    int64_t numbers = 0, bits = 0, far = 0;
    char why[512] = "";
    for (int i = 0; i < cases; i++)
        if (part_takes()) one_merge(&numbers, &bits, &far, why, sizeof why);
    ok(far == 0 && bits * 1000 < numbers, "%d merges: %lld of %lld numbers differ in a bit, %lld by more: %s",
       cases, (long long)bits, (long long)numbers, (long long)far, why);
}

/* ------------------------------------------------------------------------ rows */

/* which: 0 copy, 1 gather, 2 scatter (of rows that occur once). */
static int one_copy(int which, char *why, size_t size) {
    static const uint32_t types[] = {ATTN_DTYPE_FLOAT32, ATTN_DTYPE_FLOAT16,  ATTN_DTYPE_BFLOAT16,
                                     ATTN_DTYPE_FLOAT64, ATTN_DTYPE_FP8_E4M3, ATTN_DTYPE_FP8_E5M2,
                                     ATTN_DTYPE_INT32};
    const int ndim = (int)pick(1, 6), plain = (int)pick(0, 1), gaps = (int)pick(0, 2) != 0;
    const uint32_t from_type = types[pick(0, plain ? 6 : 5)];
    uint32_t to_type = plain ? from_type : types[pick(0, 3)];
    int64_t shape[6], from_shape[6], to_shape[6], listed[64];
    for (int i = 0; i < ndim; i++)
        from_shape[i] = to_shape[i] = shape[i] = pick(0, 3) == 0 ? 1
                                                                 : pick(1, ndim > 4        ? 5
                                                                           : i == ndim - 1 ? 90
                                                                                           : 9);
    int64_t n = shape[0] = to_shape[0] = from_shape[0] = pick(1, 40);
    if (which == 1) from_shape[0] = pick(1, 40);
    if (which == 2) to_shape[0] = n + pick(0, 20);
    for (int64_t i = 0; i < n; i++)
        listed[i] = which == 1             ? pick(-1, from_shape[0] - 1)
                    : (i * 7 + 3) % n == 0 ? -5
                                           : to_shape[0] - 1 - i;
    struct twin from, to, rows, scale;
    int64_t one = 1;
    make(&from, from_type, ndim, from_shape, (int)pick(0, 1), gaps);
    make(&to, to_type, ndim, to_shape, (int)pick(0, 1), gaps);
    make(&rows, ATTN_DTYPE_INT64, 1, &n, 1, 0);
    make(&scale, ATTN_DTYPE_FLOAT32, 1, &one, 1, 0);
    memcpy(rows.data, listed, (size_t)n * 8);
    send(&from), send(&to), send(&rows), send(&scale);
    const int has_scale = from_type != to_type && pick(0, 1);
    const DLTensor *hs = has_scale ? &scale.host : NULL, *ds = has_scale ? &scale.device : NULL;
    int code = which == 0   ? attn_rows_copy(&from.host, hs, &to.host, NULL, &error)
               : which == 1 ? attn_rows_gather(&from.host, &rows.host, hs, &to.host, NULL, &error)
                            : attn_rows_scatter(&from.host, &rows.host, hs, &to.host, NULL, &error);
    if (code == ATTN_OK)
        code = which == 0   ? attn_rows_copy(&from.device, ds, &to.device, NULL, &error)
               : which == 1 ? attn_rows_gather(&from.device, &rows.device, ds, &to.device, NULL, &error)
                            : attn_rows_scatter(&from.device, &rows.device, ds, &to.device, NULL, &error);
    char *got = malloc(to.bytes);
    if (kind->copy_from(0, got, to.there, to.bytes, NULL, &error) != ATTN_OK) bail_out("%s", error.text);
    int64_t bits = 0;
    const size_t bytes = attn_dtype_size(to_type);
    for (size_t i = 0; i < to.bytes / bytes; i++) {
        if (memcmp(got + i * bytes, to.data + i * bytes, bytes) == 0) continue;
        if (from_type == to_type || !isnan(value_at(to_type, got, i)) ||
            !isnan(value_at(to_type, to.data, i)))
            bits++;
    }
    const int good = code == ATTN_OK && bits == 0;
    if (!good)
        snprintf(why, size, "%s, %d dimensions, %s to %s, %lld wrong: %s",
                 which == 0   ? "copy"
                 : which == 1 ? "gather"
                              : "scatter",
                 ndim, attn_dtype_name(from_type), attn_dtype_name(to_type), (long long)bits,
                 code != ATTN_OK ? error.text : "");
    free(got);
    drop(&from), drop(&to), drop(&rows), drop(&scale);
    return good;
}

static void copies(int cases) {
    static const char *const names[] = {"copies", "gathers", "scatters"};
    for (int which = 0; which < 3; which++) {
        int bad = 0;
        char why[512] = "";
        for (int i = 0; i < cases; i++)
            if (part_takes()) bad += !one_copy(which, why, sizeof why);
        ok(bad == 0, "%d %s as on the host, bit for bit (%d not) %s", cases, names[which], bad, why);
    }
    /* beyond the rows */
    int64_t shape[2] = {4, 8}, n = 3;
    struct twin from, to, rows;
    make(&from, ATTN_DTYPE_FLOAT32, 2, shape, 1, 0), make(&to, ATTN_DTYPE_FLOAT32, 2, shape, 1, 0);
    make(&rows, ATTN_DTYPE_INT64, 1, &n, 1, 0);
    memcpy(rows.data, ((int64_t[3]){2, 4, INT64_MAX}), 24);
    send(&from), send(&to), send(&rows);
    float got[4][8];
    int code = attn_rows_gather(&from.device, &rows.device, NULL, &to.device, NULL, &error), bad = 0;
    kind->copy_from(0, got, to.there, sizeof got, NULL, &error);
    for (int i = 0; i < 8; i++)
        bad += got[0][i] != ((float *)(void *)from.data)[16 + i] || !isnan(got[1][i]) || !isnan(got[2][i]) ||
               got[3][i] != ((float *)(void *)to.data)[24 + i];
    ok(code == ATTN_OK && bad == 0, "rows beyond the tensor are no numbers (%d wrong)", bad);
    send(&to);
    code = attn_rows_scatter(&from.device, &rows.device, NULL, &to.device, NULL, &error), bad = 0;
    kind->copy_from(0, got, to.there, sizeof got, NULL, &error);
    for (int i = 0; i < 8; i++)
        bad +=
            got[2][i] != ((float *)(void *)from.data)[i] || got[3][i] != ((float *)(void *)to.data)[24 + i];
    ok(code == ATTN_OK && bad == 0, "and are not scattered to (%d wrong)", bad);
    ok(attn_rows_copy(&from.host, NULL, &to.device, NULL, &error) == ATTN_E_UNSUPPORTED &&
           strcmp(error.param, "to") == 0,
       "two places in one call are refused: %s", error.text);
    drop(&from), drop(&to), drop(&rows);
}

/* A captured merge and copy serve what is written into their tensors later. */
static void captured(void) {
    enum { N = 3 };
    const int64_t out[3] = {5, 4, 64}, ls[2] = {4, 5};
    struct twin outs[N], lses[N], to, packed;
    attn_state_t host[N], device[N];
    for (int i = 0; i < N; i++) {
        make(&outs[i], ATTN_DTYPE_BFLOAT16, 3, out, 1, 0), make(&lses[i], ATTN_DTYPE_FLOAT32, 2, ls, 0, 0);
        host[i] = (attn_state_t){&outs[i].host, &lses[i].host};
        device[i] = (attn_state_t){&outs[i].device, &lses[i].device};
    }
    make(&to, ATTN_DTYPE_BFLOAT16, 3, out, 1, 0), make(&packed, ATTN_DTYPE_FLOAT32, 3, out, 1, 0);
    send(&to), send(&packed);
    void *stream = NULL, *graph = NULL;
    int code = kind->stream_create(0, &stream, &error);
    if (code == ATTN_OK) code = kind->capture_begin(0, stream, 1, &error);
    if (code == ATTN_OK) code = attn_merge_states(device, N, 5, NULL, &to.device, NULL, stream, &error);
    if (code == ATTN_OK) code = attn_rows_copy(&to.device, NULL, &packed.device, stream, &error);
    if (code == ATTN_OK) code = kind->capture_end(0, stream, &graph, &error);
    int64_t bits = 0, far = 0;
    for (int round = 0; round < 2 && code == ATTN_OK; round++) {
        for (int i = 0; i < N; i++) {
            fill_random(ATTN_DTYPE_BFLOAT16, outs[i].data, outs[i].bytes);
            fill_random(ATTN_DTYPE_FLOAT32, lses[i].data, lses[i].bytes);
            send(&outs[i]), send(&lses[i]);
        }
        kind->synchronize(0, &error);
        code = kind->graph_launch(0, graph, stream, &error);
        kind->synchronize(0, &error);
        attn_merge_states(host, N, 5, NULL, &to.host, NULL, NULL, &error);
        attn_rows_copy(&to.host, NULL, &packed.host, NULL, &error);
        compare(&packed, &bits, &far);
    }
    ok(code == ATTN_OK && bits == 0, "a captured merge and copy, replayed twice (%lld differ) %s",
       (long long)bits, code != ATTN_OK ? error.text : "");
    if (graph != NULL) kind->graph_destroy(0, graph);
    if (stream != NULL) kind->stream_destroy(0, stream);
    for (int i = 0; i < N; i++)
        drop(&outs[i]), drop(&lses[i]);
    drop(&to), drop(&packed);
}

/* Kernels that may start while the one before them ends read what it wrote: many gathers by one permutation,
 * each of what the last one left, and some merges of one state among them. */
static int chain(const struct twin *rows, struct twin *at, const struct twin *lse, int64_t n, int steps,
                 void *stream) {
    int code = ATTN_OK;
    for (int i = 0; i < steps && code == ATTN_OK; i++) {
        const DLTensor *from = &at[i % 2].device, *to = &at[1 - i % 2].device;
        const attn_state_t state = {from, &lse->device};
        code = i % 8 == 7 ? attn_merge_states(&state, 1, n, NULL, to, NULL, stream, &error)
                          : attn_rows_gather(from, &rows->device, NULL, to, stream, &error);
    }
    return code;
}

static void chained(void) {
    enum { ROWS = 8192, SIZE = 256, STEPS = 64 };
    const int64_t n = ROWS, shape[3] = {ROWS, 1, SIZE}, lse_shape[2] = {1, ROWS};
    struct twin rows, at[2], lse;
    void *stream = NULL, *graph = NULL;
    static int64_t order[ROWS];
    make(&rows, ATTN_DTYPE_INT64, 1, &n, 1, 0), make(&lse, ATTN_DTYPE_FLOAT32, 2, lse_shape, 1, 0);
    for (int i = 0; i < 2; i++)
        make(&at[i], ATTN_DTYPE_FLOAT32, 3, shape, 1, 0);
    memset(lse.data, 0, lse.bytes);
    int64_t *next = (int64_t *)(void *)rows.data;
    for (int i = 0; i < ROWS; i++)
        next[i] = order[i] = i;
    for (int i = ROWS - 1; i > 0; i--) {
        const int64_t j = pick(0, i), x = next[i];
        next[i] = next[j], next[j] = x;
    }
    for (int step = 0; step < STEPS; step++) { /* where each row ends up to come from */
        static int64_t before[ROWS];
        memcpy(before, order, sizeof order);
        for (int i = 0; i < ROWS && step % 8 != 7; i++)
            order[i] = before[next[i]];
    }
    send(&rows), send(&lse);
    int code = kind->stream_create(0, &stream, &error), wrong[2] = {0, 0};
    for (int way = 0; way < 2 && code == ATTN_OK; way++) { /* on the stream, and captured */
        char *got = malloc(at[0].bytes);
        if (way == 1) code = kind->capture_begin(0, stream, 1, &error);
        if (way == 1 && code == ATTN_OK) code = chain(&rows, at, &lse, n, STEPS, stream);
        if (way == 1 && code == ATTN_OK) code = kind->capture_end(0, stream, &graph, &error);
        for (int round = 0; round < 5 && code == ATTN_OK; round++) {
            send(&at[0]);
            kind->synchronize(0, &error);
            code = way == 0 ? chain(&rows, at, &lse, n, STEPS, stream)
                            : kind->graph_launch(0, graph, stream, &error);
            if (code == ATTN_OK) code = kind->copy_from(0, got, at[0].there, at[0].bytes, stream, &error);
            for (int i = 0; i < ROWS; i++)
                wrong[way] += memcmp(got + (size_t)i * SIZE * 4, at[0].data + (size_t)order[i] * SIZE * 4,
                                     SIZE * 4) != 0;
        }
        free(got);
    }
    ok(code == ATTN_OK && wrong[0] == 0 && wrong[1] == 0,
       "%d kernels one after the other, each over what the last one wrote (%d and captured %d rows differ) "
       "%s",
       STEPS, wrong[0], wrong[1], code != ATTN_OK ? error.text : "");
    if (graph != NULL) kind->graph_destroy(0, graph);
    if (stream != NULL) kind->stream_destroy(0, stream);
    drop(&rows), drop(&at[0]), drop(&at[1]), drop(&lse);
}

int main(void) {
    const char *dir = getenv("ATTN_TEST_PLUGIN_DIR");
    attn_context_t *context = NULL;
    attn_device_t d;
    seed = tap_seed();
    kind = attn_device_kind(kDLCUDA);
    if (attn_device_parse("cuda:0", &d, &error) != ATTN_OK) skip_all("%s", error.text);
    int64_t shape[2] = {4, 8};
    struct twin t;
    make(&t, ATTN_DTYPE_FLOAT32, 2, shape, 1, 0);
    ok(attn_rows_copy(&t.device, NULL, &t.device, NULL, &error) == ATTN_E_UNSUPPORTED &&
           strstr(error.text, "load flash or mla") != NULL,
       "before a plugin is loaded: %s", error.text);
    drop(&t);
    ATTN_INIT(attn_context_options_t, o);
    o.flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG;
    o.config_text = "[attn]\nplugins = flash, mla\n";
    o.plugin_dir = dir;
    if (attn_context_create(&o, &context, &error) != ATTN_OK) bail_out("context: %s", error.text);
    merges(300);
    copies(300);
    captured();
    chained();
    attn_context_destroy(context);
    return tap_done();
}
