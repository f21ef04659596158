/* SPDX-License-Identifier: Apache-2.0 */
/* The capability queries of semantics 4.2, answered from data alone. */
#include "select/capability.h"

#include <attn/attn_plugin_util.h>
#include <stdio.h>
#include <string.h>

/* Without mla_prefill: that part of MLA is plain attention. */
static const uint64_t mla_roles = ATTN_BIT(ATTN_ROLE_MLA) | ATTN_BIT(ATTN_ROLE_MLA_SPARSE);

attn_capabilities_t attni_capabilities(const attn_backend_t *backend) {
    attn_capabilities_t table = {0};
    if (backend && ATTN_HAS(backend, attn_backend_t, capabilities) && backend->capabilities) {
        uint32_t size = backend->capabilities->struct_size;
        memcpy(&table, backend->capabilities, size < sizeof table ? size : sizeof table);
    }
    return table;
}

int attni_in_ranges(const attn_range_t *ranges, uint32_t count, uint32_t value) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t step = ranges[i].step ? ranges[i].step : 1;
        if (value >= ranges[i].min && value <= ranges[i].max && (value - ranges[i].min) % step == 0) return 1;
    }
    return 0;
}

const char *attni_ranges_text(const attn_range_t *ranges, uint32_t count, char *buffer, size_t size) {
    size_t used = 0;
    snprintf(buffer, size, "any");
    for (uint32_t i = 0; i < count && used < size; i++) {
        const attn_range_t *r = &ranges[i];
        used += (size_t)snprintf(buffer + used, size - used, "%s%u", i ? ", " : "", r->min);
        if (r->max != r->min && used < size)
            used += (size_t)snprintf(buffer + used, size - used, "..%u", r->max);
        if (r->max != r->min && r->step > 1 && used < size)
            used += (size_t)snprintf(buffer + used, size - used, " step %u", r->step);
    }
    return buffer;
}

static int has_bit(uint64_t set, uint32_t value) {
    return value < 64 && (set >> value & 1);
}

int attn_backend_supports_head_size(const attn_backend_t *backend, uint32_t head_size) {
    attn_capabilities_t c = attni_capabilities(backend);
    return head_size > 0 && (!c.num_head_sizes || attni_in_ranges(c.head_sizes, c.num_head_sizes, head_size));
}

int attn_backend_supports_dtype(const attn_backend_t *backend, uint32_t dtype) {
    return has_bit(attni_capabilities(backend).dtypes, dtype);
}

int attn_backend_supports_kv_cache_dtype(const attn_backend_t *backend, uint32_t kv_cache_dtype) {
    return !kv_cache_dtype || has_bit(attni_capabilities(backend).kv_cache_dtypes, kv_cache_dtype);
}

/*
 * A kernel of fixed size takes any multiple of it, because the core cuts larger blocks (semantics 4.2,
 * 5.5).
 */
int attn_backend_supports_block_size(const attn_backend_t *backend, uint32_t block_size) {
    attn_capabilities_t c = attni_capabilities(backend);
    int fits = !block_size || !c.num_block_sizes;
    for (uint32_t i = 0; i < c.num_block_sizes && !fits; i++)
        fits = c.block_sizes[i].size && block_size % c.block_sizes[i].size == 0;
    return fits;
}

int attn_backend_supports_attn_type(const attn_backend_t *backend, uint32_t role) {
    return has_bit(attni_capabilities(backend).roles, role);
}

int attn_backend_supports_feature(const attn_backend_t *backend, uint64_t feature) {
    return (attni_capabilities(backend).features & feature) == feature;
}

int attn_backend_supports_sink(const attn_backend_t *backend) {
    return attn_backend_supports_feature(backend, ATTN_F_SINK);
}

int attn_backend_supports_alibi_sqrt(const attn_backend_t *backend) {
    return attn_backend_supports_feature(backend, ATTN_F_ALIBI_SQRT);
}

int attn_backend_supports_mm_prefix(const attn_backend_t *backend) {
    return attn_backend_supports_feature(backend, ATTN_F_MM_PREFIX);
}

int attn_backend_supports_per_head_quant_scales(const attn_backend_t *backend) {
    return attn_backend_supports_feature(backend, ATTN_F_PER_HEAD_SCALES);
}

int attn_backend_supports_sliding_window(const attn_backend_t *backend) {
    return attn_backend_supports_feature(backend, ATTN_F_SLIDING_WINDOW);
}

int attn_backend_supports_non_causal(const attn_backend_t *backend) {
    return attn_backend_supports_feature(backend, ATTN_F_NON_CAUSAL);
}

int attn_backend_supports_batch_invariance(const attn_backend_t *backend) {
    return attn_backend_supports_feature(backend, ATTN_F_BATCH_INVARIANT);
}

int attn_backend_supports_kv_connector(const attn_backend_t *backend) {
    return attn_backend_supports_feature(backend, ATTN_F_KV_CONNECTOR);
}

int attn_backend_supports_dcp(const attn_backend_t *backend) {
    /* the core gathers and joins; the backend gives results with LSE */
    return attn_backend_supports_feature(backend, ATTN_F_DCP) ||
           (attn_backend_supports_feature(backend, ATTN_F_LSE) &&
            attn_backend_supports_device_type(backend, kDLCPU));
}

int attn_backend_supports_compute_capability(const attn_backend_t *backend, int32_t compute_capability) {
    attn_capabilities_t c = attni_capabilities(backend);
    return !c.num_compute_capabilities ||
           (compute_capability >= 0 && attni_in_ranges(c.compute_capabilities, c.num_compute_capabilities,
                                                       (uint32_t)compute_capability));
}

int attn_backend_supports_device_type(const attn_backend_t *backend, int32_t device_type) {
    return device_type >= 0 && has_bit(attni_capabilities(backend).device_types, (uint32_t)device_type);
}

int attn_backend_supports_lse(const attn_backend_t *backend) {
    return attn_backend_supports_feature(backend, ATTN_F_LSE);
}

int attn_backend_supports_cascade(const attn_backend_t *backend) {
    return attn_backend_supports_feature(backend, ATTN_F_CASCADE);
}

int attn_backend_supports_quant_query_input(const attn_backend_t *backend) {
    return attn_backend_supports_feature(backend, ATTN_F_QUANT_QUERY);
}

int attn_backend_supports_update_block_table(const attn_backend_t *backend) {
    return backend && ATTN_HAS(backend, attn_backend_t, ops) && backend->ops &&
           ATTN_HAS_OP(backend->ops, update_block_table);
}

int attn_backend_is_mla(const attn_backend_t *backend) {
    return (attni_capabilities(backend).roles & mla_roles) != 0;
}

int attn_backend_is_sparse(const attn_backend_t *backend) {
    return attn_backend_supports_attn_type(backend, ATTN_ROLE_MLA_SPARSE);
}

int attn_backend_forward_includes_kv_cache_update(const attn_backend_t *backend) {
    return attni_capabilities(backend).forward_writes_cache != 0;
}

int attn_backend_indexes_kv_by_block_stride(const attn_backend_t *backend) {
    return attn_backend_supports_feature(backend, ATTN_F_BLOCK_STRIDE);
}

uint32_t attn_backend_required_kv_layout(const attn_backend_t *backend) {
    return attni_capabilities(backend).required_layout;
}

uint32_t attn_backend_graph_support(const attn_backend_t *backend) {
    uint32_t said = attni_capabilities(backend).graph_support;
    return said ? said : ATTN_GRAPH_NEVER;
}

uint32_t attn_backend_reorder_threshold(const attn_backend_t *backend) {
    return attni_capabilities(backend).reorder_threshold;
}

uint32_t attn_backend_query_len_support(const attn_backend_t *backend) {
    uint32_t said = attni_capabilities(backend).query_len_support;
    return said ? said : ATTN_QUERY_LEN_VARLEN;
}

/* semantics 4.2: the backend's own preference, else the default if it fits, else the smallest that is
 * listed. */
uint32_t attn_backend_preferred_block_size(const attn_backend_t *backend, uint32_t default_size) {
    attn_capabilities_t c = attni_capabilities(backend);
    if (c.preferred_block_size) return c.preferred_block_size;
    if (!default_size) default_size = 16;
    if (attn_backend_supports_block_size(backend, default_size)) return default_size;
    uint32_t smallest = c.block_sizes[0].size;
    for (uint32_t i = 1; i < c.num_block_sizes; i++)
        if (c.block_sizes[i].size < smallest) smallest = c.block_sizes[i].size;
    return smallest;
}
