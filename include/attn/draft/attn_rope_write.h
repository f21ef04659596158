/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_rope_write.h: a draft extension of backends with a paged cache: rotary position embedding of a step's
 * queries and keys, and the cache write, in one call (semantics 4.4 of doc/semantics.md). It replaces the
 * model's rotation and update_kv_cache. A draft may change in every release; its number is part of the id.
 *
 *     const attn_rope_extension_t *x = attn_group_get_extension(group, ATTN_ROPE_EXTENSION);
 *     x->open(&problem, &device, options, num_options, NULL, &rope, &error);    once, for the problem of the
 *     group
 *     x->write(rope, &write, stream, &error);                                   each step and layer, instead
 *     of update_kv_cache x->close(rope);
 *
 * With r = rotary_dim / 2, c[i] = cos_sin[position][i] and s[i] = cos_sin[position][r + i], each pair (x, y)
 * of values of a query or key row becomes (x c[i] - y s[i], y c[i] + x s[i]), computed in float32 and rounded
 * once to the problem's dtype. Pairs: x = value i, y = value r + i (NeoX), or x = value 2 i, y = value 2 i +
 * 1 (interleaved). Values from rotary_dim on stay. Queries and keys are rotated in place; the cache takes the
 * rounded keys and the values as update_kv_cache takes them.
 *
 * The table is the same for all problems of a backend, and a rope is an object of its own: a group is needed
 * for nothing but to find the table; get_extension(NULL, id) of the backend's operations gives it too.
 *
 * RULES: tensors lie on the device of the rope; last dimensions are dense; rows beyond those that are counted
 * are neither read nor written. A row with a negative slot is rotated and not written. What only the device
 * can see is clamped rather than refused: positions to the rows of cos_sin; a slot outside the cache is as
 * -1. write allocates nothing, never waits, and may be captured; a rope serves one thread at a time.
 */
#ifndef ATTN_DRAFT_ROPE_WRITE_H
#define ATTN_DRAFT_ROPE_WRITE_H

#include <attn/attn_plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_ROPE_EXTENSION "attn.draft.rope_write/0"

typedef struct attn_rope attn_rope_t; /* the backend's own */

enum { ATTN_ROPE_NEOX = 1, ATTN_ROPE_INTERLEAVED = 2 };

typedef struct attn_rope_problem {
    uint32_t struct_size;
    uint32_t rotary_dim; /* even, at most head_size; 0: head_size */
    uint32_t style;      /* ATTN_ROPE_*; 0: NeoX */
    uint32_t reserved0;
    const attn_problem_t *attention; /* of the group, required; copied. Its role has a cache */
    uint64_t reserved[4];
} attn_rope_problem_t;

/* n = the positions of the call. Symbols as in attn_types.h. */
typedef struct attn_rope_write {
    uint32_t struct_size;
    uint32_t reserved0;
    const DLTensor *query;        /* the problem's dtype, [>= n, Hq, D], rotated in place; NULL: none */
    const DLTensor *key;          /* the problem's dtype, [>= n, Hkv, D], rotated in place */
    const DLTensor *value;        /* the problem's dtype, [>= n, Hkv, Dv] */
    const DLTensor *positions;    /* int64 [n] */
    const DLTensor *cos_sin;      /* float32 or the problem's dtype, [rows, rotary_dim] */
    const DLTensor *slot_mapping; /* int64 [n]; negative: do not write */
    const DLTensor *kv_cache;     /* as in attn_kv_update_t. Written */
    const DLTensor *v_cache;      /* with feature separate_kv. Written */
    attn_scales_t scales;         /* as in attn_kv_update_t */
    uint64_t reserved[4];
} attn_rope_write_t;

/* All return ATTN_OK or ATTN_E_* and fill *error (which may be NULL) on failure; nothing is written on
 * failure. */
typedef struct attn_rope_extension {
    uint32_t struct_size;
    uint32_t reserved0;
    /* Everything slow happens here. options as in open of the backend; host may be NULL. *rope is written on
     * success only. [any thread] */
    int (*open)(const attn_rope_problem_t *problem, const attn_device_t *device,
                const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                attn_rope_t **rope, attn_error_t *error);
    /* The device must have finished its work. NULL is allowed. [instance] */
    void (*close)(attn_rope_t *rope);
    /* [instance] [no alloc] [no sync] [capture-safe] */
    int (*write)(attn_rope_t *rope, const attn_rope_write_t *args, void *stream, attn_error_t *error);
} attn_rope_extension_t;

#ifdef __cplusplus
}
#endif
#endif
