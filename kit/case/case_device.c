/* SPDX-License-Identifier: Apache-2.0 */
/* case_device.c: memory of a device for cases, by the operations of its kind. */
#include "attn_case.h"

#include <stdlib.h>

/* What kit_memory_t.ctx points to. */
typedef struct place {
    const attn_device_kind_t *kind;
    int32_t id;
} place_t;

static void *device_alloc(void *ctx, size_t bytes, size_t alignment) {
    const place_t *at = ctx;
    void *p = NULL;
    (void)alignment; /* kinds align to 256, and no caller needs more */
    return at->kind->alloc(at->id, bytes, &p, NULL) == ATTN_OK ? p : NULL;
}

static void device_free(void *ctx, void *p, size_t bytes) {
    const place_t *at = ctx;
    (void)bytes;
    at->kind->free(at->id, p);
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
    *at = (place_t){kind, device->id};
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
    if (memory->alloc == device_alloc) free(memory->ctx);
    memory->ctx = NULL;
}
