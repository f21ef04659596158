/* SPDX-License-Identifier: Apache-2.0 */
/* case_device.c: memory of a device for cases, by the operations of its kind. */
#include "attn_case.h"

#include <pthread.h>
#include <stdlib.h>

/* Blocks that were given back, for the next tensors of their size: where many processes use a driver, each
 * call of it waits for theirs, milliseconds instead of one. Calls wait for the device before a case ends, so
 * that nothing writes to a block any more. */
enum { POOL_SIZES = 13, POOL_SLOTS = 24 };
#define POOL_LEAST ((size_t)4096) /* to 16 MiB */

/* What kit_memory_t.ctx points to. */
typedef struct place {
    const attn_device_kind_t *kind;
    int32_t id;
    pthread_mutex_t lock;
    int count[POOL_SIZES];
    void *blocks[POOL_SIZES][POOL_SLOTS];
} place_t;

/* The pool's size for so many bytes, POOL_SIZES: none. */
static int pool_size(size_t bytes, size_t *rounded) {
    int i = 0;
    *rounded = POOL_LEAST;
    while (i < POOL_SIZES && *rounded < bytes)
        i++, *rounded *= 2;
    if (i == POOL_SIZES) *rounded = bytes;
    return i;
}

static void *device_alloc(void *ctx, size_t bytes, size_t alignment) {
    place_t *at = ctx;
    void *p = NULL;
    size_t rounded;
    (void)alignment; /* kinds align to 256, and no caller needs more */
    const int size = pool_size(bytes, &rounded);
    pthread_mutex_lock(&at->lock);
    if (size < POOL_SIZES && at->count[size] > 0) p = at->blocks[size][--at->count[size]];
    pthread_mutex_unlock(&at->lock);
    if (p != NULL) return p;
    return at->kind->alloc(at->id, rounded, &p, NULL) == ATTN_OK ? p : NULL;
}

static void device_free(void *ctx, void *p, size_t bytes) {
    place_t *at = ctx;
    size_t rounded;
    const int size = pool_size(bytes, &rounded);
    int is_kept = 0;
    if (p == NULL) return;
    pthread_mutex_lock(&at->lock);
    if (size < POOL_SIZES && at->count[size] < POOL_SLOTS) {
        at->blocks[size][at->count[size]++] = p;
        is_kept = 1;
    }
    pthread_mutex_unlock(&at->lock);
    if (!is_kept) at->kind->free(at->id, p);
}

static void empty_pool(place_t *at) {
    for (int i = 0; i < POOL_SIZES; i++)
        while (at->count[i] > 0)
            at->kind->free(at->id, at->blocks[i][--at->count[i]]);
}

static int device_sync(void *ctx) {
    const place_t *at = ctx;
    return at->kind->synchronize(at->id, NULL);
}

/* Copies are on the default stream, as are the calls of a case, so that what goes to the device needs no
 * wait. Where a call is on another stream, which does not wait for this one, its caller waits before and
 * after it. */
static int device_to(void *ctx, void *dst, const void *src, size_t bytes) {
    const place_t *at = ctx;
    return at->kind->copy_to(at->id, dst, src, bytes, NULL, NULL);
}

static int device_from(void *ctx, void *dst, const void *src, size_t bytes) {
    const place_t *at = ctx;
    return at->kind->copy_from(at->id, dst, src, bytes, NULL, NULL);
}

int kit_memory_of(const attn_device_kind_t *kind, const attn_device_t *device, kit_memory_t *memory) {
    place_t *at = malloc(sizeof *at);
    if (at == NULL) return ATTN_E_NO_MEMORY;
    *at = (place_t){.kind = kind, .id = device->id, .lock = PTHREAD_MUTEX_INITIALIZER};
    *memory = (kit_memory_t){.ctx = at,
                             .kind = kind,
                             .device_type = device->type,
                             .device_id = device->id,
                             .compute_capability = device->compute_capability,
                             .num_sms = device->num_sms,
                             .alloc = device_alloc,
                             .free = device_free,
                             .to_device = device_to,
                             .from_device = device_from,
                             .sync = device_sync};
    return ATTN_OK;
}

void kit_memory_end(kit_memory_t *memory) {
    if (memory->alloc == device_alloc) {
        empty_pool(memory->ctx);
        free(memory->ctx);
    }
    memory->ctx = NULL;
}
