/* SPDX-License-Identifier: Apache-2.0 */
/* check_backend.c: the backend as the checks call it: default options, a host, and on a GPU a wait after each
 * call, so that the checks may look at managed memory. What open only borrows is changed behind it. */
#include "check_engine.h"

#include <stdatomic.h>
#include <sys/mman.h>

static void host_log(void *ctx, uint32_t level, const char *text) {
    (void)ctx, (void)level, (void)text;
}
static const void *host_extension(void *ctx, const char *id) {
    (void)ctx, (void)id;
    return NULL;
}
const attn_host_t check_host = {
    .struct_size = sizeof check_host, .log = host_log, .get_extension = host_extension};

static const attn_backend_t *raw_backend;
static const attn_plugin_t *raw_plugin;
static const kit_memory_t *running_memory = &kit_cpu_memory;
static int is_recording;

enum { MAX_VALUES = 256, MAX_TEXT = 32768 };
/* The values of one call, which nobody can read behind it. */
typedef struct borrowed {
    attn_option_value_t values[MAX_VALUES];
    char text[MAX_TEXT];
    size_t used;
} borrowed_t;

static const char *lend_text(borrowed_t *b, const char *text) {
    const size_t n = text != NULL ? strlen(text) + 1 : 0;
    if (n == 0 || n > sizeof b->text - b->used) return text;
    b->used += n;
    return memcpy(b->text + b->used - n, text, n);
}
static const attn_option_value_t *lend(borrowed_t *b, const attn_option_value_t *options, uint32_t n) {
    b->used = 0;
    if (options == NULL || n > MAX_VALUES || options->struct_size != sizeof *options) return options;
    for (uint32_t i = 0; i < n; i++) {
        b->values[i] = options[i];
        b->values[i].name = lend_text(b, options[i].name);
        b->values[i].s = lend_text(b, options[i].s);
    }
    return b->values;
}

/* Rooms that are mapped once and stay, so that nothing else comes to lie where an option was. */
enum { ROOMS = 32, ROOM_BYTES = (sizeof(borrowed_t) + 65535) / 65536 * 65536 };
static struct {
    atomic_flag is_taken;
    borrowed_t *values;
} rooms[ROOMS];

static int take_room(void) {
    for (int i = 0; i < ROOMS; i++) {
        if (atomic_flag_test_and_set(&rooms[i].is_taken)) continue;
        if (rooms[i].values == NULL) {
            void *p = mmap(NULL, ROOM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (p == MAP_FAILED) return -1; /* and the flag stays */
            rooms[i].values = p;
        }
        if (mprotect(rooms[i].values, ROOM_BYTES, PROT_READ | PROT_WRITE) == 0) return i;
    }
    return -1;
}
static void leave_room(int i) {
    mprotect(rooms[i].values, ROOM_BYTES, PROT_NONE);
    atomic_flag_clear(&rooms[i].is_taken);
}

static int open_with_defaults(const attn_problem_t *problem, const attn_device_t *device,
                              const attn_option_value_t *options, uint32_t num_options,
                              const attn_host_t *host, attn_instance_t **instance, attn_error_t *error) {
    if (num_options == 0) options = check_option_defaults(raw_plugin, &num_options);
    const int room = num_options > 0 ? take_room() : -1;
    if (room >= 0) options = lend(rooms[room].values, options, num_options);
    const int status = raw_backend->ops->open(problem, device, options, num_options,
                                              host != NULL ? host : &check_host, instance, error);
    if (room >= 0) leave_room(room);
    return status;
}

void check_wait_after_calls(const kit_memory_t *memory) {
    running_memory = memory;
}

const kit_memory_t *check_memory(void) {
    return running_memory;
}

void check_recording(int is_on) {
    is_recording = is_on;
}

static int finish(int status, attn_error_t *error) {
    if (is_recording || status != ATTN_OK || running_memory->sync(running_memory->ctx) == 0) return status;
    return attn_fail(error, ATTN_E_DEVICE, "stream", "the device reported an error after the call");
}
/* Copies are on the default stream, which others do not wait for. */
static void begin(void *stream) {
    if (stream != NULL && !is_recording) running_memory->sync(running_memory->ctx);
}
static int build_and_wait(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                          void *stream, attn_error_t *error) {
    begin(stream);
    return finish(raw_backend->ops->build_metadata(instance, batch, space, stream, error), error);
}
static int update_and_wait(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                           attn_error_t *error) {
    begin(stream);
    return finish(raw_backend->ops->update_kv_cache(instance, args, stream, error), error);
}
static int forward_and_wait(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                            void *stream, attn_error_t *error) {
    begin(stream);
    return finish(raw_backend->ops->forward(instance, args, space, stream, error), error);
}

static int no_cache_shape(attn_instance_t *instance, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                          attn_error_t *error) {
    (void)instance, (void)num_blocks, (void)error;
    uint32_t size = shape->struct_size;
    memset(shape, 0, size < sizeof *shape ? size : sizeof *shape);
    shape->struct_size = size;
    return ATTN_OK;
}

const attn_backend_t *check_with_defaults(const attn_plugin_t *plugin, const attn_backend_t *backend) {
    static attn_backend_ops_t ops;
    static attn_backend_t wrapped;
    raw_backend = backend;
    raw_plugin = plugin;
    memset(&ops, 0, sizeof ops);
    uint32_t size = backend->ops->struct_size;
    memcpy(&ops, backend->ops, size < sizeof ops ? size : sizeof ops);
    ops.struct_size = sizeof ops;
    ops.open = open_with_defaults;
    ops.build_metadata = build_and_wait;
    ops.forward = forward_and_wait;
    if (ops.update_kv_cache != NULL) ops.update_kv_cache = update_and_wait;
    if (ops.kv_cache_shape == NULL) ops.kv_cache_shape = no_cache_shape;
    memset(&wrapped, 0, sizeof wrapped);
    size = backend->struct_size;
    memcpy(&wrapped, backend, size < sizeof wrapped ? size : sizeof wrapped);
    wrapped.struct_size = sizeof wrapped;
    wrapped.ops = &ops;
    return &wrapped;
}
