/* SPDX-License-Identifier: Apache-2.0 */
/* write_bench: what a decode step of one layer takes where the engine calls update_kv_cache and forward, and
 * where it gives slot_mapping to forward (semantics 3.11): microseconds of the host for the calls, and of the
 * device in a stream and in a graph. Both give the same bits, or it fails. ATTN_CONFIG says where the plugins
 * are.
 *
 *     write_bench [BACKEND..]        FLASH_ATTN and TRITON_ATTN on cuda:0, CPU_ATTN on cpu, as given */
#include <attn/attn.h>
#include <attn/attn_plugin_util.h>
#include <attn/draft/attn_device.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CALLS = 20, ROUNDS = 12, HEADS = 32, KV_HEADS = 8, SIZE = 128, PAGE = 16, MOST = 64 };

static const attn_device_kind_t *kind;
static attn_device_t device = {.struct_size = sizeof device};
static attn_error_t error = {.struct_size = sizeof error};
static void *stream;

static void need(int code, const char *what) {
    if (code == ATTN_OK) return;
    fprintf(stderr, "write_bench: %s: %s %s\n", what, error.param, error.text);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

typedef struct tensor {
    DLTensor t;
    int64_t shape[4], strides[4];
} tensor_t;
/* Dense, of device memory with these bytes, or of 16-bit values near 1. */
static const DLTensor *tensor(tensor_t *v, uint32_t dtype, int ndim, const int64_t *shape,
                              const void *bytes) {
    size_t count = 1;
    void *data = NULL;
    for (int i = ndim - 1; i >= 0; i--)
        v->shape[i] = shape[i], v->strides[i] = (int64_t)count, count *= (size_t)shape[i];
    v->t = (DLTensor){.device = {(DLDeviceType)device.type, device.id}, .ndim = ndim, .shape = v->shape};
    v->t.strides = v->strides, v->t.dtype = attn_dl_dtype(dtype);
    const size_t size = count * attn_dtype_size(dtype);
    need(kind->alloc(device.id, size, &data, &error), "memory");
    uint16_t *values = malloc(size + 2);
    for (size_t i = 0; i < size / 2; i++)
        values[i] = (uint16_t)(0x3f00 + (i * 2654435761u >> 20 & 255));
    need(kind->copy_to(device.id, data, bytes != NULL ? bytes : values, size, NULL, &error), "copy");
    free(values);
    v->t.data = data;
    return &v->t;
}

typedef struct step {
    attn_layer_t *layer;
    attn_kv_update_t update;
    attn_forward_t forward[2]; /* after an update; with slots of its own */
    attn_space_t space;
} step_t;

static void call(step_t *s, int is_fused) {
    if (!is_fused) need(attn_layer_update_kv_cache(s->layer, &s->update, stream, &error), "update");
    need(attn_layer_forward(s->layer, &s->forward[is_fused], &s->space, stream, &error), "forward");
}

/* Microseconds of a step: [0] of the host until its calls return, [1] until the device has ended, both of
 * CALLS steps one after the other; [2] in a graph of as many. */
static void measure(step_t *s, int is_fused, double us[3]) {
    void *graph = NULL, *first = NULL, *last = NULL;
    double seconds = 0;
    us[0] = us[1] = us[2] = 1e9;
    for (int r = 0; r < ROUNDS; r++) {
        need(kind->synchronize(device.id, &error), "wait");
        const double t0 = now();
        for (int i = 0; i < CALLS; i++)
            call(s, is_fused);
        const double t1 = now();
        need(kind->synchronize(device.id, &error), "wait");
        const double t2 = now();
        if ((t1 - t0) / CALLS < us[0]) us[0] = (t1 - t0) / CALLS;
        if ((t2 - t0) / CALLS < us[1]) us[1] = (t2 - t0) / CALLS;
    }
    if (device.type == kDLCPU) return;
    need(kind->capture_begin(device.id, stream, 0, &error), "capture");
    for (int i = 0; i < CALLS; i++)
        call(s, is_fused);
    need(kind->capture_end(device.id, stream, &graph, &error), "capture");
    need(kind->event_create(device.id, &first, &error), "event");
    need(kind->event_create(device.id, &last, &error), "event");
    for (int r = 0; r < ROUNDS; r++) {
        kind->event_record(device.id, first, stream, &error);
        need(kind->graph_launch(device.id, graph, stream, &error), "graph");
        kind->event_record(device.id, last, stream, &error);
        need(kind->event_seconds(device.id, first, last, &seconds, &error), "event");
        if (r > 0 && seconds * 1e6 / CALLS < us[2]) us[2] = seconds * 1e6 / CALLS;
    }
    kind->graph_destroy(device.id, graph);
    kind->event_destroy(device.id, first), kind->event_destroy(device.id, last);
}

static void compare(attn_context_t *context, const char *backend, int32_t requests, int32_t length,
                    uint32_t cache) {
    const int64_t columns = (length + PAGE - 1) / PAGE, blocks = columns * requests + 1;
    attn_problem_t p = {.struct_size = sizeof p, .role = ATTN_ROLE_DECODER, .mask = ATTN_MASK_CAUSAL};
    p.dtype = ATTN_DTYPE_BFLOAT16, p.num_heads = HEADS, p.num_kv_heads = KV_HEADS, p.head_size = SIZE;
    p.block_size = PAGE, p.scale = 0.088, p.max_num_seqs = p.max_num_batched_tokens = (uint32_t)requests;
    p.num_blocks = blocks, p.kv_cache_dtype = cache, p.max_model_len = length;
    p.features = ATTN_F_WRITE_IN_FORWARD | (device.type == kDLCPU ? 0 : ATTN_F_CAPTURE);
    attn_group_t *group = NULL;
    step_t s = {.update = {.struct_size = sizeof s.update}};
    need(attn_group_open(context, &p, &device, backend, &group, NULL, &error), "open");
    need(attn_layer_create(group, "layers.0", NULL, &s.layer, &error), "layer");
    attn_kv_cache_shape_t shape = {.struct_size = sizeof shape};
    need(attn_group_kv_cache_shape(group, blocks, &shape, &error), "shape");
    attn_space_needed_t room = {.struct_size = sizeof room};
    need(attn_group_space_needed(group, &room, &error), "space");
    s.space = (attn_space_t){.struct_size = sizeof s.space,
                             .metadata_bytes = room.metadata_bytes,
                             .workspace_bytes = room.workspace_bytes,
                             .host_bytes = room.host_bytes};
    need(kind->alloc(device.id, room.metadata_bytes + 1, &s.space.metadata, &error), "memory");
    need(kind->alloc(device.id, room.workspace_bytes + 1, &s.space.workspace, &error), "memory");
    s.space.host = aligned_alloc(4096, (room.host_bytes + 4096) / 4096 * 4096);

    static int32_t start[MOST + 1], lens[MOST];
    static int64_t slots[MOST];
    int32_t *table = malloc((size_t)(columns * requests) * sizeof *table);
    for (int32_t r = 0; r < requests; r++) {
        start[r + 1] = r + 1, lens[r] = length;
        for (int64_t i = 0; i < columns; i++)
            table[r * columns + i] = (int32_t)(1 + i * requests + r);
        slots[r] = (int64_t)table[r * columns + (length - 1) / PAGE] * PAGE + (length - 1) % PAGE;
    }
    tensor_t q, k, v, out[2], kv, slot, rows;
    const int64_t qs[3] = {requests, HEADS, SIZE}, ks[3] = {requests, KV_HEADS, SIZE}, n[1] = {requests};
    const int64_t width[2] = {requests, columns};
    s.update.key = tensor(&k, ATTN_DTYPE_BFLOAT16, 3, ks, NULL);
    s.update.value = tensor(&v, ATTN_DTYPE_BFLOAT16, 3, ks, NULL);
    s.update.kv_cache = tensor(&kv, attn_dtype_of(shape.dtype), (int)shape.ndim, shape.shape, NULL);
    for (uint32_t i = 0; i < shape.ndim; i++)
        kv.strides[i] = shape.byte_strides[i] / (int64_t)attn_dtype_size(attn_dtype_of(shape.dtype));
    s.update.slot_mapping = tensor(&slot, ATTN_DTYPE_INT64, 1, n, slots);
    for (int i = 0; i < 2; i++)
        s.forward[i] = (attn_forward_t){.struct_size = sizeof s.forward[i],
                                        .query = i == 0 ? tensor(&q, ATTN_DTYPE_BFLOAT16, 3, qs, NULL) : &q.t,
                                        .kv_cache = s.update.kv_cache,
                                        .output = tensor(&out[i], ATTN_DTYPE_BFLOAT16, 3, qs, NULL)};
    s.forward[1].key = s.update.key, s.forward[1].value = s.update.value;
    s.forward[1].slot_mapping = s.update.slot_mapping;
    attn_batch_t b = {.struct_size = sizeof b, .num_reqs = requests, .num_actual_tokens = requests};
    b.query_start_loc_host = start, b.seq_lens_host = lens;
    b.block_table = tensor(&rows, ATTN_DTYPE_INT32, 2, width, table);
    need(attn_group_build_metadata(group, &b, &s.space, stream, &error), "build");

    double us[2][3];
    for (int i = 0; i < 2; i++)
        measure(&s, i, us[i]);
    const size_t bytes = (size_t)requests * HEADS * SIZE * 2;
    char *got = malloc(2 * bytes);
    for (int i = 0; i < 2; i++)
        need(kind->copy_from(device.id, got + (size_t)i * bytes, out[i].t.data, bytes, NULL, &error), "read");
    printf("%-11s %-8s %3d x %-6d  host %6.2f %6.2f   stream %7.2f %7.2f   graph %7.2f %7.2f us%s\n", backend,
           attn_kv_name(cache), requests, length, us[0][0], us[1][0], us[0][1], us[1][1],
           device.type == kDLCPU ? 0 : us[0][2], device.type == kDLCPU ? 0 : us[1][2],
           memcmp(got, got + bytes, bytes) == 0 ? "" : "  THE OUTPUTS DIFFER");
    fflush(stdout);
    if (memcmp(got, got + bytes, bytes) != 0) exit(1);
    attn_layer_destroy(s.layer);
    attn_group_close(group);
    tensor_t *const all[] = {&q, &k, &v, &out[0], &out[1], &kv, &slot, &rows};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        kind->free(device.id, all[i]->t.data);
    kind->free(device.id, s.space.metadata), kind->free(device.id, s.space.workspace);
    free(s.space.host), free(table), free(got);
}

int main(int argc, char **argv) {
    static char *const usual[] = {"FLASH_ATTN", "TRITON_ATTN"};
    char *const *names = argc > 1 ? argv + 1 : usual;
    const int count = argc > 1 ? argc - 1 : 2;
    attn_context_t *context = NULL;
    need(attn_context_create(NULL, &context, &error), "context");
    printf(
        "32/8 heads of 128, bfloat16; each: update_kv_cache and forward, then forward with slot_mapping\n");
    for (int i = 0; i < count; i++) {
        need(attn_device_parse(strcmp(names[i], "CPU_ATTN") == 0 ? "cpu" : "cuda:0", &device, &error),
             "device");
        kind = attn_device_kind(device.type);
        if (device.type != kDLCPU && stream == NULL)
            need(kind->stream_create(device.id, &stream, &error), "stream");
        for (int32_t requests = 1; requests <= MOST; requests *= 8) {
            compare(context, names[i], requests, 1024, ATTN_KV_AUTO);
            compare(context, names[i], requests, 1024, ATTN_KV_FP8_E4M3);
        }
    }
    attn_context_destroy(context);
    return 0;
}
