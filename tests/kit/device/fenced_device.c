/* SPDX-License-Identifier: Apache-2.0 */
/* fenced_device.c: the kind "fenced": one device of 32 GiB that take no memory until they are written. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "fenced_device.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MEMORY_BYTES ((size_t)32 << 30)
#define ALIGNMENT    ((size_t)256)
enum { MAX_BLOCKS = 1 << 16, CAPABILITY = 30, NUM_CORES = 4 };

/* One kernel of a graph. */
typedef struct node {
    struct node *next;
    fenced_kernel_t *kernel;
    _Alignas(16) char arguments[];
} node_t;

typedef struct graph {
    node_t *first, **end;
} graph_t;

typedef struct stream {
    graph_t *recording;
} stream_t;

/* Taken bytes of the memory, in order of their offsets. */
static struct block { size_t offset, bytes; } blocks[MAX_BLOCKS];
static size_t num_blocks;
static char *fence, *view;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int num_strict; /* captures in which nothing may wait */

static void map_memory(void) {
    const int file = memfd_create("fenced", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)MEMORY_BYTES) != 0) return;
    void *a = mmap(NULL, MEMORY_BYTES, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    void *b = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (a == MAP_FAILED || b == MAP_FAILED) return;
    fence = a;
    view = b;
}

void *fenced_view(const void *address) {
    const uintptr_t at = (uintptr_t)address - (uintptr_t)fence;
    return fence != NULL && at < MEMORY_BYTES ? view + at : NULL;
}

/* Both ends of a range; *at is written on success. */
static int reach(const void *address, size_t bytes, char **at, attn_error_t *error) {
    *at = fenced_view(address);
    if (*at == NULL || fenced_view((const char *)address + bytes - 1) == NULL)
        return attn_fail(error, ATTN_E_DEVICE, "device", "%zu bytes at %p are no memory of fenced:0", bytes,
                         address);
    return ATTN_OK;
}

static int may_wait(attn_error_t *error) {
    if (__atomic_load_n(&num_strict, __ATOMIC_RELAXED) == 0) return ATTN_OK;
    return attn_fail(error, ATTN_E_STATE, "stream",
                     "fenced:0 is recording; nothing may be allocated or waited for");
}

static int describe(int32_t id, attn_device_t *device, int32_t *count, attn_error_t *error) {
    if (count != NULL) *count = 1;
    if (id != 0)
        return attn_fail(error, ATTN_E_DEVICE, "device", "there is no fenced:%d; there is one device",
                         (int)id);
    ATTN_INIT(attn_device_t, d);
    d.type = FENCED_TYPE;
    d.compute_capability = CAPABILITY;
    d.num_sms = NUM_CORES;
    d.memory_bytes = MEMORY_BYTES;
    snprintf(d.name, sizeof d.name, "fenced test device");
    *device = d;
    return ATTN_OK;
}

/* --------------------------------------------------------------------- memory */

static int take(int32_t id, size_t bytes, void **address, attn_error_t *error) {
    int code = may_wait(error);
    (void)id;
    if (code != ATTN_OK) return code;
    pthread_once(&once, map_memory);
    bytes = (bytes / ALIGNMENT + 1) * ALIGNMENT;
    pthread_mutex_lock(&lock);
    size_t i = 0, offset = 0; /* the first gap that is large enough */
    while (i < num_blocks && blocks[i].offset - offset < bytes)
        offset = blocks[i].offset + blocks[i].bytes, i++;
    if (fence == NULL || num_blocks == MAX_BLOCKS || offset + bytes > MEMORY_BYTES) {
        code = attn_fail(error, ATTN_E_NO_MEMORY, "", "fenced:0 has no %zu bytes left", bytes);
    } else {
        memmove(&blocks[i + 1], &blocks[i], (num_blocks++ - i) * sizeof blocks[0]);
        blocks[i] = (struct block){offset, bytes};
        memset(view + offset, 0xa5, bytes < 65536 ? bytes : 65536); /* nobody may count on zeros */
        *address = fence + offset;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static void give(int32_t id, void *address) {
    (void)id;
    if (address == NULL) return;
    const size_t offset = (size_t)((char *)address - fence);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < num_blocks; i++) {
        if (blocks[i].offset != offset) continue;
        if (blocks[i].bytes > 1 << 20) madvise(view + offset, blocks[i].bytes, MADV_REMOVE);
        memmove(&blocks[i], &blocks[i + 1], (--num_blocks - i) * sizeof blocks[0]);
        break;
    }
    pthread_mutex_unlock(&lock);
}

static int memory_info(int32_t id, uint64_t *left, uint64_t *total, attn_error_t *error) {
    (void)id, (void)error;
    *left = *total = MEMORY_BYTES;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < num_blocks; i++)
        *left -= blocks[i].bytes;
    pthread_mutex_unlock(&lock);
#ifdef FENCED_SMALL /* what a bench may fill is the machine's memory in the end */
    *left = *left < FENCED_SMALL ? *left : FENCED_SMALL;
#endif
    return ATTN_OK;
}

static int copy_to(int32_t id, void *to, const void *from, size_t bytes, void *stream, attn_error_t *error) {
    char *at;
    (void)id, (void)stream;
    if (bytes == 0) return ATTN_OK;
    int code = may_wait(error);
    if (code == ATTN_OK) code = reach(to, bytes, &at, error);
    if (code == ATTN_OK) memcpy(at, from, bytes);
    return code;
}

static int copy_from(int32_t id, void *to, const void *from, size_t bytes, void *stream,
                     attn_error_t *error) {
    char *at;
    (void)id, (void)stream;
    if (bytes == 0) return ATTN_OK;
    int code = may_wait(error);
    if (code == ATTN_OK) code = reach(from, bytes, &at, error);
    if (code == ATTN_OK) memcpy(to, at, bytes);
    return code;
}

typedef struct move {
    char *to;
    const char *from; /* NULL: fills */
    size_t bytes;
    uint8_t byte;
} move_t;

static int run_move(void *arguments, attn_error_t *error) {
    const move_t *m = arguments;
    (void)error;
    if (m->from != NULL)
        memmove(m->to, m->from, m->bytes);
    else
        memset(m->to, m->byte, m->bytes);
    return ATTN_OK;
}

static int copy_within(int32_t id, void *to, const void *from, size_t bytes, void *stream,
                       attn_error_t *error) {
    move_t m = {.bytes = bytes};
    char *source;
    (void)id;
    if (bytes == 0) return ATTN_OK;
    int code = reach(to, bytes, &m.to, error);
    if (code == ATTN_OK) code = reach(from, bytes, &source, error);
    if (code != ATTN_OK) return code;
    m.from = source;
    return fenced_launch(stream, run_move, &m, sizeof m, error);
}

static int fill(int32_t id, void *to, uint8_t byte, size_t bytes, void *stream, attn_error_t *error) {
    move_t m = {.bytes = bytes, .byte = byte};
    (void)id;
    if (bytes == 0) return ATTN_OK;
    const int code = reach(to, bytes, &m.to, error);
    return code == ATTN_OK ? fenced_launch(stream, run_move, &m, sizeof m, error) : code;
}

static int synchronize(int32_t id, attn_error_t *error) {
    (void)id;
    return may_wait(error);
}

/* --------------------------------------------------------- streams and events */

static int stream_create(int32_t id, void **stream, attn_error_t *error) {
    (void)id;
    stream_t *made = calloc(1, sizeof *made);
    if (made == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "no memory");
    *stream = made;
    return ATTN_OK;
}

static void destroy(int32_t id, void *p) {
    (void)id;
    free(p);
}

static int event_create(int32_t id, void **event, attn_error_t *error) {
    (void)id;
    struct timespec *made = calloc(1, sizeof *made);
    if (made == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "no memory");
    *event = made;
    return ATTN_OK;
}

static int event_record(int32_t id, void *event, void *stream, attn_error_t *error) {
    (void)id, (void)stream, (void)error;
    clock_gettime(CLOCK_MONOTONIC, event);
    return ATTN_OK;
}

/* Every kernel is done when its launch returns, so nothing is left to wait for. */
static int stream_wait(int32_t id, void *stream, void *event, attn_error_t *error) {
    const struct timespec *at = event;
    (void)id, (void)stream;
    if (at->tv_sec != 0 || at->tv_nsec != 0) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, "event", "the event was never recorded");
}

static int event_seconds(int32_t id, void *first, void *last, double *seconds, attn_error_t *error) {
    const struct timespec *a = first, *b = last;
    (void)id, (void)error;
    *seconds = (double)(b->tv_sec - a->tv_sec) + 1e-9 * (double)(b->tv_nsec - a->tv_nsec);
    return ATTN_OK;
}

/* --------------------------------------------------------------------- graphs */

static void graph_destroy(int32_t id, void *graph) {
    (void)id;
    for (node_t *n = ((graph_t *)graph)->first, *next; n != NULL; n = next) {
        next = n->next;
        free(n);
    }
    free(graph);
}

static int capture_begin(int32_t id, void *stream, uint32_t is_strict, attn_error_t *error) {
    stream_t *s = stream;
    graph_t *graph = s != NULL && s->recording == NULL ? calloc(1, sizeof *graph) : NULL;
    (void)id;
    if (graph == NULL) return attn_fail(error, ATTN_E_STATE, "stream", "this stream cannot be captured now");
    graph->end = &graph->first;
    s->recording = graph;
    num_strict += is_strict != 0; /* the only capture of the process, as the tests have it */
    return ATTN_OK;
}

static int capture_end(int32_t id, void *stream, void **graph, attn_error_t *error) {
    stream_t *s = stream;
    (void)id, (void)error;
    *graph = s->recording;
    s->recording = NULL;
    num_strict = 0;
    return ATTN_OK;
}

static int is_capturing(int32_t id, void *stream, uint32_t *capturing, attn_error_t *error) {
    const stream_t *s = stream;
    (void)id, (void)error;
    *capturing = s != NULL && s->recording != NULL;
    return ATTN_OK;
}

static int graph_launch(int32_t id, void *graph, void *stream, attn_error_t *error) {
    int code = ATTN_OK;
    (void)id, (void)stream;
    for (node_t *n = ((graph_t *)graph)->first; n != NULL && code == ATTN_OK; n = n->next)
        code = n->kernel(n->arguments, error);
    return code;
}

int fenced_launch(void *stream, fenced_kernel_t *kernel, const void *arguments, size_t bytes,
                  attn_error_t *error) {
    stream_t *s = stream;
    node_t *n = malloc(sizeof *n + bytes);
    if (n == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "no memory");
    *n = (node_t){.kernel = kernel};
    memcpy(n->arguments, arguments, bytes);
    if (s != NULL && s->recording != NULL) {
        *s->recording->end = n;
        s->recording->end = &n->next;
        return ATTN_OK;
    }
    const int code = kernel(n->arguments, error);
    free(n);
    return code;
}

const attn_device_kind_t fenced_kind = {.struct_size = sizeof(attn_device_kind_t),
                                        .type = FENCED_TYPE,
                                        .name = "fenced",
                                        .capability_prefix = "gen_",
                                        .describe = describe,
                                        .alloc = take,
                                        .free = give,
                                        .memory_info = memory_info,
                                        .copy_to = copy_to,
#ifndef FENCED_NO_READ
                                        .copy_from = copy_from,
#endif
                                        .copy_within = copy_within,
                                        .fill = fill,
                                        .synchronize = synchronize,
                                        .stream_create = stream_create,
                                        .stream_destroy = destroy,
                                        .event_create = event_create,
                                        .event_destroy = destroy,
                                        .event_record = event_record,
                                        .event_seconds = event_seconds,
                                        .capture_begin = capture_begin,
                                        .capture_end = capture_end,
                                        .graph_launch = graph_launch,
                                        .graph_destroy = graph_destroy,
                                        .is_capturing = is_capturing,
                                        .stream_wait = stream_wait};
