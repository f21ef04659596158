/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One table for the process, since groups of any context may build into the same memory. A slot is two atomic
 * words: whose kind built an address last, and on which batch. Each word holds the address beside what it
 * says (48 bits of it with 16 of the kind, 32 bits of its hash with 32 of the batch), so a call reads one
 * word, takes no lock, and cannot mix two buffers up. Addresses of the same slot displace each other, and
 * kinds or batches are equal by chance once in 2^16 or 2^32: all that only means that a mistake passes, not
 * that a good call fails.
 */
#include "group/metadata_owner.h"

#include <stdatomic.h>
#include <string.h>

enum { SLOT_BITS = 10 };

static struct slot { _Atomic uint64_t kind, batch; } slots[1 << SLOT_BITS];

/* Knuth's multiplicative hash: the first bits choose the slot, the next 32 tell its addresses apart. */
static uint64_t hash_of(const void *metadata) {
    return (uint64_t)(uintptr_t)metadata * UINT64_C(0x9e3779b97f4a7c15);
}

/* The slot of an address, or NULL for addresses that do not fit. */
static struct slot *slot_of(const void *metadata) {
    uint64_t address = (uint64_t)(uintptr_t)metadata;
    if (address == 0 || address >> 48 != 0) return NULL;
    return &slots[hash_of(metadata) >> (64 - SLOT_BITS)];
}

/* The upper half of the word that says the batch of an address. */
static uint64_t batch_tag(const void *metadata) {
    return hash_of(metadata) << SLOT_BITS >> 32;
}

uint16_t attni_metadata_kind(const attn_group_t *g) {
    const char *backend = g->backend->shown.name;
    int32_t device[2] = {g->device.type, g->device.id};
    uint64_t h = attn_fingerprint64(0, backend, strlen(backend));
    h = attn_fingerprint64(h, device, sizeof device);
    h = attn_fingerprint64(h, &g->problem, sizeof g->problem);
    h = attn_fingerprint64(h, &g->options_hash, sizeof g->options_hash);
    /* What a backend finds at open, as how many threads there are, shows in the buffers that it wants. */
    h = attn_fingerprint64(h, &g->inner_needed, sizeof g->inner_needed);
    return (uint16_t)(h ^ h >> 16 ^ h >> 32 ^ h >> 48);
}

static uint64_t mix(uint64_t h, uint64_t word) {
    h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 32;
}

static uint64_t pair(int32_t a, int32_t b) {
    return (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
}

enum { BEGINS = 1 }; /* the last bit of what is known of a batch; the others are a hash */

uint32_t attni_metadata_batch(const attn_batch_t *b) {
    int begins = (b->flags & ATTN_BATCH_CAPTURE) != 0;
    uint64_t h = mix(pair(b->num_reqs, b->num_actual_tokens), pair((int32_t)b->flags, b->common_prefix_len));
    for (int32_t r = 0; r < b->num_reqs; r++) {
        h = mix(h, pair(b->query_start_loc_host[r + 1], b->seq_lens_host[r]));
        begins |= b->query_start_loc_host[r + 1] - b->query_start_loc_host[r] == b->seq_lens_host[r];
        if (b->encoder_seq_lens_host != NULL) h = mix(h, (uint32_t)b->encoder_seq_lens_host[r]);
        if (b->causal_host != NULL) h = mix(h, b->causal_host[r]);
        if (b->rswa_prefix_lens_host != NULL) h = mix(h, (uint32_t)b->rswa_prefix_lens_host[r]);
        if (b->key_start_loc_host != NULL) h = mix(h, (uint32_t)b->key_start_loc_host[r + 1]);
    }
    for (int64_t i = 0; b->mm_prefix_ranges_host != NULL && i < (int64_t)b->num_reqs * b->num_mm_ranges; i++)
        h = mix(h, pair(b->mm_prefix_ranges_host[2 * i], b->mm_prefix_ranges_host[2 * i + 1]));
    return ((uint32_t)h & ~(uint32_t)BEGINS) | (begins ? BEGINS : 0);
}

int attni_metadata_begins(const void *metadata) {
    struct slot *slot = slot_of(metadata);
    if (slot == NULL) return 1;
    uint64_t noted = atomic_load_explicit(&slot->batch, memory_order_relaxed);
    return noted >> 32 != batch_tag(metadata) || (noted & BEGINS) != 0;
}

void attni_metadata_note(const attn_group_t *g, const void *metadata, uint32_t batch) {
    struct slot *slot = slot_of(metadata);
    if (slot == NULL || g->needed.metadata_bytes == 0) return;
    atomic_store_explicit(&slot->kind, (uint64_t)(uintptr_t)metadata << 16 | g->kind, memory_order_relaxed);
    atomic_store_explicit(&slot->batch, batch_tag(metadata) << 32 | batch, memory_order_relaxed);
}

int attni_metadata_check(const attn_group_t *g, const void *metadata, attn_error_t *error) {
    struct slot *slot = slot_of(metadata);
    if (slot == NULL || g->needed.metadata_bytes == 0) return ATTN_OK;
    uint64_t noted = atomic_load_explicit(&slot->kind, memory_order_relaxed);
    if (noted >> 16 != (uint64_t)(uintptr_t)metadata || (noted & 0xffff) == g->kind) return ATTN_OK;
    return attn_fail(
        error, ATTN_E_STATE, "metadata",
        "space.metadata was last built by a group with another problem or other options; give this "
        "layer's group a space of its own, and build it with attn_group_build_metadata of that group");
}

int attni_metadata_check_batch(const attn_group_t *g, const void *metadata, uint32_t batch, int *is_known,
                               attn_error_t *error) {
    struct slot *slot = slot_of(metadata);
    *is_known = 0;
    if (slot == NULL || g->needed.metadata_bytes == 0) return ATTN_OK;
    if (attni_metadata_check(g, metadata, NULL) != ATTN_OK) return ATTN_OK;
    uint64_t noted = atomic_load_explicit(&slot->batch, memory_order_relaxed);
    if (noted >> 32 != batch_tag(metadata)) return ATTN_OK;
    *is_known = (uint32_t)noted == batch;
    if (*is_known) return ATTN_OK;
    return attn_fail(
        error, ATTN_E_STATE, "batch",
        "space.metadata was built for a batch with other requests or lengths, and only its tables can be "
        "replaced; call attn_group_build_metadata");
}
