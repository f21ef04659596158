/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One table for the process, since groups of any context may build into the same memory. Each slot is one atomic word, an
 * address of 48 bits above a kind of 16: a call reads one word and takes no lock. Addresses of the same slot displace each
 * other, and two kinds are equal by chance once in 65536: both only mean that a mistake passes, never that a good call fails.
 */
#include "metadata_owner.h"

#include <stdatomic.h>
#include <string.h>

enum { SLOT_BITS = 10 };

static _Atomic uint64_t slots[1 << SLOT_BITS];

/* The slot of an address, or NULL for addresses that do not fit. */
static _Atomic uint64_t *slot_of(const void *metadata) {
    uint64_t address = (uint64_t)(uintptr_t)metadata;
    if (address == 0 || address >> 48 != 0) return NULL;
    return &slots[address * UINT64_C(0x9e3779b97f4a7c15) >>
                  (64 - SLOT_BITS)]; /* Knuth's multiplicative hash */
}

uint16_t attni_metadata_kind(const attn_group_t *g) {
    const char *backend = g->backend->shown.name;
    int32_t device[2] = {g->device.type, g->device.id};
    uint64_t h = attn_fingerprint64(0, backend, strlen(backend));
    h = attn_fingerprint64(h, device, sizeof device);
    h = attn_fingerprint64(h, &g->problem, sizeof g->problem);
    return (uint16_t)(h ^ h >> 16 ^ h >> 32 ^ h >> 48);
}

void attni_metadata_note(const attn_group_t *g, const void *metadata) {
    _Atomic uint64_t *slot = slot_of(metadata);
    if (slot == NULL || g->needed.metadata_bytes == 0) return;
    atomic_store_explicit(slot, (uint64_t)(uintptr_t)metadata << 16 | g->kind, memory_order_relaxed);
}

int attni_metadata_check(const attn_group_t *g, const void *metadata, attn_error_t *error) {
    _Atomic uint64_t *slot = slot_of(metadata);
    if (slot == NULL || g->needed.metadata_bytes == 0) return ATTN_OK;
    uint64_t noted = atomic_load_explicit(slot, memory_order_relaxed);
    if (noted >> 16 != (uint64_t)(uintptr_t)metadata || (noted & 0xffff) == g->kind) return ATTN_OK;
    return attn_fail(
        error, ATTN_E_STATE, "metadata",
        "space.metadata was built last by a group of another problem; give this layer's group a space of its "
        "own, and build it with attn_group_build_metadata of that group");
}
