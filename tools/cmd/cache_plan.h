/* SPDX-License-Identifier: Apache-2.0 */
/* cache_plan.h: the cache of a whole model: pages of every kind of layer, and what fits into a memory. */
#ifndef ATTN_TOOLS_CACHE_PLAN_H
#define ATTN_TOOLS_CACHE_PLAN_H

#include <attn/attn.h>

#include "cmd/tool_model.h"

typedef struct cache_limits {
    int64_t memory;   /* bytes */
    int64_t max_len;  /* tokens of the longest sequence; 0: the model's, or 4096 */
    int64_t inflight; /* new tokens in one step at most */
} cache_limits_t;

/* The cache of one kind of layers. */
typedef struct cache_entry {
    const tool_kind_t *kind;
    attn_kv_spec_t spec;
    attn_kv_cache_shape_t shape; /* ndim 0: the backend cannot be opened here */
    int is_served; /* by a backend on this device; else `backend` says where, or that none does */
    char backend[128];
    char shape_text[64], stride_text[80];
    int64_t page_bytes;         /* 0: this cache dtype has no form for these layers */
    int64_t indexer_page_bytes; /* of the keys of the indexer beside each layer; 0: none */
    int64_t max_blocks;         /* that one sequence of max_len can hold */
} cache_entry_t;

typedef struct cache_plan {
    uint32_t kv_cache_dtype;
    uint32_t num_entries;
    cache_entry_t entries[TOOL_MAX_KINDS];
    int64_t max_len;
    int is_possible; /* 0: a kind of layer has no such cache, and nothing below is known */
    /* 0: no backend on this device serves a kind of layer: whatever fits cannot be run */
    int is_served;
    int64_t bytes_per_sequence; /* of max_len tokens */
    int64_t sequences;          /* of max_len tokens, that fit */
    int64_t longest;            /* tokens that fit as a single sequence */
    double bytes_per_token;     /* bytes_per_sequence / max_len */
} cache_plan_t;

/* The problems of the model have their cache dtype set. plan->max_len is set in any case. */
int cache_plan_make(attn_context_t *context, const attn_device_t *device, const char *backend,
                    const tool_model_t *model, const cache_limits_t *limits, cache_plan_t *plan,
                    attn_error_t *error);

#endif
