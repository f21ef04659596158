/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver API that libattn, its kit and its tests call. Work is done when it is asked for, or put
 * into a graph while its stream is captured. ATTN_MODEL_ARCH is the compute capability (80),
 * ATTN_MODEL_SMS the number of multiprocessors (8). */
#include "model.h"

#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

enum {
    OK,
    INVALID_VALUE = 1,
    NO_MEMORY = 2,
    INVALID_IMAGE = 200,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    INVALID_CLUSTER = 912,
    ILLEGAL_ADDRESS = 700
};
typedef unsigned long long address_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int sticky; /* what a kernel did wrong; every call after it fails, as on a device */

/* Graphs are lists of what was captured. */
typedef struct node {
    const kernel_t *kernel; /* NULL: a copy or a fill */
    uint32_t grid[3], block[3], cluster[3], dynamic_bytes;
    uint8_t *params;
    void *to;
    const void *from; /* NULL: fill with `byte` */
    size_t bytes, pitch, rows;
    unsigned char byte;
} node_t;
typedef struct graph {
    node_t *nodes;
    size_t count, room;
    int references;
    void *origin;
} graph_t;
typedef struct stream {
    graph_t *graph; /* being captured */
} stream_t;
typedef struct event {
    graph_t *graph;
    double time;
} event_t;
static stream_t null_stream;

static stream_t *stream_of(void *stream) {
    return (uintptr_t)stream < 3 ? &null_stream : stream;
}
static int node_run(const node_t *n) {
    if (sticky) return sticky;
    if (n->kernel != NULL) {
        if (model_launch(n->kernel, n->grid, n->block, n->cluster, n->dynamic_bytes, n->params) != 0)
            sticky = ILLEGAL_ADDRESS;
    } else
        for (size_t r = 0; r < n->rows; r++) {
            if (n->from != NULL)
                memmove(n->to, n->from, n->bytes);
            else
                memset((uint8_t *)n->to + r * n->pitch, n->byte, n->bytes);
        }
    return sticky;
}
/* Runs a node, or keeps it in the stream's graph; owns n.params. */
static int submit(void *stream, node_t n) {
    int e = OK;
    pthread_mutex_lock(&lock);
    graph_t *g = stream_of(stream)->graph;
    if (g == NULL) {
        e = node_run(&n);
        free(n.params);
    } else {
        if (g->count == g->room) {
            g->room = g->room ? 2 * g->room : 16;
            g->nodes = realloc(g->nodes, g->room * sizeof *g->nodes);
        }
        g->nodes[g->count++] = n;
    }
    pthread_mutex_unlock(&lock);
    return e;
}
static void graph_release(graph_t *g) {
    if (--g->references > 0) return;
    for (size_t i = 0; i < g->count; i++)
        free(g->nodes[i].params);
    free(g->nodes), free(g);
}

static int setting(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text != NULL && atoi(text) > 0 ? atoi(text) : otherwise;
}

int cuInit(unsigned flags) {
    return flags == 0 ? OK : INVALID_VALUE;
}
int cuDriverGetVersion(int *version) {
    *version = 13000;
    return OK;
}
int cuDeviceGetCount(int *count) {
    *count = 1;
    return OK;
}
int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? OK : 101;
}
int cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    snprintf(name, (size_t)size, "a model of sm_%d", setting("ATTN_MODEL_ARCH", 80));
    return OK;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    *bytes = (size_t)256 << 30;
    return OK;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    const int arch = setting("ATTN_MODEL_ARCH", 80);
    (void)device;
    switch (attribute) {
    case 1:
        *value = 1024;
        return OK; /* threads of a block */
    case 10:
        *value = LANES;
        return OK; /* warp size */
    case 16:
        *value = setting("ATTN_MODEL_SMS", 8);
        return OK;
    case 75:
        *value = arch / 10;
        return OK; /* compute capability */
    case 76:
        *value = arch % 10;
        return OK;
    case 81:
        *value = arch >= 90 ? 233472 : arch == 80 || arch == 87 ? 167936 : 102400;
        return OK; /* shared memory of a multiprocessor, and of a block */
    case 97:
        *value = arch >= 90 ? 232448 : arch == 80 || arch == 87 ? 166912 : arch < 80 ? 65536 : 101376;
        return OK;
    default:
        return INVALID_VALUE;
    }
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    *context = &null_stream;
    return OK;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    return OK;
}
int cuCtxPushCurrent_v2(void *context) {
    (void)context;
    return sticky;
}
int cuCtxPopCurrent_v2(void **context) {
    *context = &null_stream;
    return OK;
}
int cuCtxGetCurrent(void **context) {
    *context = &null_stream;
    return OK;
}
int cuCtxSynchronize(void) {
    return sticky;
}
int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -1;
    return OK;
}
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    *free_bytes = (size_t)128 << 30, *total = (size_t)256 << 30;
    return OK;
}

/* Large blocks are address space until somebody writes, so that caches of many gigabytes can be pretended. */
enum { LARGE = 64 << 20 };
int cuMemAlloc_v2(address_t *address, size_t bytes) {
    if (bytes == 0) return INVALID_VALUE;
    if (bytes > (size_t)256 << 30) return NO_MEMORY;
    uint8_t *p = bytes < LARGE ? aligned_alloc(256, (bytes + 255) / 256 * 256)
                               : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == NULL || p == MAP_FAILED) return NO_MEMORY;
    if (bytes < LARGE) memset(p, 0xff, bytes);
    pthread_mutex_lock(&lock);
    model_memory_add(p, bytes);
    pthread_mutex_unlock(&lock);
    *address = (uintptr_t)p;
    return OK;
}
int cuMemFree_v2(address_t address) {
    void *p = (void *)(uintptr_t)address;
    pthread_mutex_lock(&lock);
    const size_t bytes = model_memory_remove(p);
    pthread_mutex_unlock(&lock);
    if (bytes == 0) return INVALID_VALUE;
    if (bytes < LARGE)
        free(p);
    else
        munmap(p, bytes);
    return OK;
}
int cuMemHostAlloc(void **p, size_t bytes, unsigned flags) {
    address_t address = 0;
    (void)flags;
    const int e = cuMemAlloc_v2(&address, bytes);
    *p = (void *)(uintptr_t)address;
    return e;
}
int cuMemFreeHost(void *p) {
    return cuMemFree_v2((uintptr_t)p);
}
static int is_device(address_t address, size_t bytes) {
    pthread_mutex_lock(&lock);
    const int has = bytes == 0 || model_memory_has((void *)(uintptr_t)address, bytes);
    pthread_mutex_unlock(&lock);
    return has;
}
int cuMemcpyHtoDAsync_v2(address_t to, const void *from, size_t bytes, void *stream) {
    if (!is_device(to, bytes)) return INVALID_VALUE;
    return submit(stream, (node_t){.to = (void *)(uintptr_t)to, .from = from, .bytes = bytes, .rows = 1});
}
int cuMemcpyDtoHAsync_v2(void *to, address_t from, size_t bytes, void *stream) {
    if (!is_device(from, bytes)) return INVALID_VALUE;
    return submit(stream, (node_t){.to = to, .from = (void *)(uintptr_t)from, .bytes = bytes, .rows = 1});
}
int cuMemcpyDtoDAsync_v2(address_t to, address_t from, size_t bytes, void *stream) {
    if (!is_device(from, bytes)) return INVALID_VALUE;
    return cuMemcpyHtoDAsync_v2(to, (void *)(uintptr_t)from, bytes, stream);
}
int cuMemsetD2D8Async(address_t to, size_t pitch, unsigned char byte, size_t width, size_t rows,
                      void *stream) {
    if (rows > 0 && !is_device(to, (rows - 1) * pitch + width)) return INVALID_VALUE;
    return submit(
        stream,
        (node_t){.to = (void *)(uintptr_t)to, .byte = byte, .bytes = width, .pitch = pitch, .rows = rows});
}
int cuMemsetD8Async(address_t to, unsigned char byte, size_t bytes, void *stream) {
    return cuMemsetD2D8Async(to, bytes, byte, bytes, 1, stream);
}

int cuStreamCreate(void **stream, unsigned flags) {
    (void)flags;
    *stream = calloc(1, sizeof(stream_t));
    return *stream != NULL ? OK : NO_MEMORY;
}
int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    (void)priority;
    return cuStreamCreate(stream, flags);
}
int cuStreamDestroy_v2(void *stream) {
    free(stream);
    return OK;
}
int cuStreamSynchronize(void *stream) {
    return stream_of(stream)->graph != NULL ? 900 : sticky;
}
int cuStreamIsCapturing(void *stream, int *status) {
    *status = stream_of(stream)->graph != NULL;
    return OK;
}
int cuStreamBeginCapture_v2(void *stream, int mode) {
    (void)mode;
    stream_t *s = stream_of(stream);
    if (s == &null_stream || s->graph != NULL) return INVALID_VALUE;
    s->graph = calloc(1, sizeof *s->graph);
    s->graph->references = 1;
    s->graph->origin = s;
    return OK;
}
int cuStreamEndCapture(void *stream, void **graph) {
    stream_t *s = stream_of(stream);
    if (s->graph == NULL) return 901;
    *graph = s->graph;
    s->graph->origin = NULL;
    s->graph = NULL;
    return OK;
}
/* A stream that waits for an event of a capture belongs to it from there on. */
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    const event_t *e = event;
    stream_t *s = stream_of(stream);
    (void)flags;
    if (e->graph != NULL && e->graph->origin != NULL) {
        s->graph = e->graph;
    } else if (s->graph != NULL && s->graph->origin == NULL)
        s->graph = NULL;
    return OK;
}
int cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof(event_t));
    return *event != NULL ? OK : NO_MEMORY;
}
int cuEventDestroy_v2(void *event) {
    free(event);
    return OK;
}
int cuEventRecord(void *event, void *stream) {
    struct timespec t;
    event_t *e = event;
    clock_gettime(CLOCK_MONOTONIC, &t);
    e->time = (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
    e->graph = stream_of(stream)->graph;
    return OK;
}
int cuEventSynchronize(void *event) {
    (void)event;
    return sticky;
}
int cuEventElapsedTime(float *milliseconds, void *first, void *last) {
    *milliseconds = (float)(((event_t *)last)->time - ((event_t *)first)->time);
    return OK;
}
int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    (void)flags;
    ((graph_t *)graph)->references++;
    *exec = graph;
    return OK;
}
int cuGraphDestroy(void *graph) {
    graph_release(graph);
    return OK;
}
int cuGraphExecDestroy(void *exec) {
    graph_release(exec);
    return OK;
}
int cuGraphLaunch(void *exec, void *stream) {
    const graph_t *g = exec;
    if (stream_of(stream)->graph != NULL) return 900;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < g->count && !sticky; i++)
        node_run(&g->nodes[i]);
    pthread_mutex_unlock(&lock);
    return sticky;
}

int cuModuleLoadData(void **module, const void *image) {
    char why[400] = "";
    pthread_mutex_lock(&lock);
    *module = memcmp(image, "\177ELF", 4) != 0 ? model_parse(image, why, sizeof why) : NULL;
    pthread_mutex_unlock(&lock);
    if (*module == NULL) fprintf(stderr, "model: %s\n", why[0] ? why : "machine code, where PTX is wanted");
    return *module != NULL ? OK : INVALID_IMAGE;
}
int cuModuleUnload(void *module) {
    pthread_mutex_lock(&lock);
    model_free(module);
    pthread_mutex_unlock(&lock);
    return OK;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = NULL;
    for (kernel_t *k = ((module_t *)module)->kernels; k != NULL; k = k->next)
        if (!strcmp(k->name, name)) *function = k;
    return *function != NULL ? OK : NOT_FOUND;
}
enum { STATIC_SHARED = 1, DYNAMIC_SHARED = 8 };
int cuFuncSetAttribute(void *function, int attribute, int value) {
    if (attribute == DYNAMIC_SHARED) ((kernel_t *)function)->dynamic_bytes = value;
    return OK;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) {
    const kernel_t *k = function;
    *value = attribute == STATIC_SHARED ? (int)k->shared_bytes : 0;
    return OK;
}
static int launch(void *function, const unsigned grid[3], const unsigned block[3], const unsigned cluster[3],
                  unsigned dynamic_bytes, void *stream, void **args) {
    const kernel_t *k = function;
    int most = 0;
    cuDeviceGetAttribute(&most, 97, 0);
    const unsigned allowed = (unsigned)(k->dynamic_bytes > 49152 ? k->dynamic_bytes : 49152);
    const unsigned threads = block[0] * block[1] * block[2], blocks = cluster[0] * cluster[1] * cluster[2];
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[0] > 0x7fffffff || grid[1] > 65535 ||
        grid[2] > 65535 || threads == 0 || threads > 1024 || dynamic_bytes > allowed ||
        dynamic_bytes + k->shared_bytes > (unsigned)most)
        return INVALID_VALUE;
    if (blocks == 0 || blocks > 16 || grid[0] % cluster[0] != 0 || grid[1] % cluster[1] != 0 ||
        grid[2] % cluster[2] != 0)
        return INVALID_CLUSTER;
    node_t n = {.kernel = k, .dynamic_bytes = dynamic_bytes};
    memcpy(n.grid, grid, sizeof n.grid), memcpy(n.block, block, sizeof n.block);
    memcpy(n.cluster, cluster, sizeof n.cluster);
    n.params = aligned_alloc(64, (k->param_bytes + 127) / 64 * 64);
    for (uint32_t i = 0; i < k->num_params; i++)
        memcpy(n.params + k->param_at[i], args[i], k->param_size[i]);
    return submit(stream, n);
}
static const unsigned alone[3] = {1, 1, 1};
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned dynamic_bytes, void *stream, void **args, void **extra) {
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return extra == NULL ? launch(function, grid, block, alone, dynamic_bytes, stream, args) : INVALID_VALUE;
}
typedef struct launch_attribute { /* CUlaunchAttribute */
    int id;
    unsigned value[17]; /* from the second on */
} launch_attribute_t;
typedef struct launch_config { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    const launch_attribute_t *attributes;
    unsigned num_attributes;
} launch_config_t;
enum { CLUSTER_DIMENSION = 4 };
static const unsigned *cluster_of(const launch_config_t *c) {
    for (unsigned i = 0; i < c->num_attributes; i++)
        if (c->attributes[i].id == CLUSTER_DIMENSION) return c->attributes[i].value + 1;
    return alone;
}
int cuLaunchKernelEx(const launch_config_t *c, void *function, void **args, void **extra) {
    if (extra != NULL) return INVALID_VALUE;
    return launch(function, c->grid, c->block, cluster_of(c), c->shared_bytes, c->stream, args);
}
int cuOccupancyMaxActiveClusters(int *count, void *function, const launch_config_t *c) {
    const unsigned *cluster = cluster_of(c), blocks = cluster[0] * cluster[1] * cluster[2];
    int sms = 0;
    (void)function;
    if (blocks == 0 || blocks > 16) return INVALID_CLUSTER;
    cuDeviceGetAttribute(&sms, 16, 0);
    *count = sms / (int)blocks;
    return OK;
}
int cuGetErrorString(int code, const char **text) {
    *text = code == OK                ? "no error"
            : code == INVALID_VALUE   ? "invalid argument"
            : code == NO_MEMORY       ? "out of memory"
            : code == INVALID_IMAGE   ? "the model cannot read this module"
            : code == ILLEGAL_ADDRESS ? "a kernel failed; the model said how on stderr"
                                      : "an error of the model";
    return OK;
}
int cuGetErrorName(int code, const char **text) {
    return cuGetErrorString(code, text);
}
/* NVRTC asks for one, and goes on where there is none. */
int cuGetExportTable(const void **table, const void *id) {
    (void)id;
    *table = NULL;
    return NOT_FOUND;
}
