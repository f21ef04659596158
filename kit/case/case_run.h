/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case_run.h: a case in the middle of its run, stage by stage, for checks that live longer than one call:
 * several layers on one set of metadata, steps of a growing request, instances that end early. kit_run is all
 * stages in their order.
 *
 *     kit_run_open(&a, backend, &c, in_a, memory, &got_a);      // open, kv_cache_shape, space_needed
 *     kit_run_join(&b, &a, &c, in_b, &got_b);                   // another layer: the same instance and space
 *     kit_run_fill(&a); kit_run_update(&a);                     // cache with its context; this step's rows
 *     kit_run_outputs(&a); kit_run_build(&a); kit_run_forward(&a); kit_run_read(&a);
 *     kit_run_close(&b); kit_run_close(&a);
 *
 * Every stage returns ATTN_OK or the code of what failed, which result has too. A run must not move.
 */
#ifndef ATTN_KIT_CASE_RUN_H
#define ATTN_KIT_CASE_RUN_H

#include "case_tensor.h"

typedef struct kit_run {
    const attn_backend_ops_t *ops;
    const kit_case_t *c;
    const kit_inputs_t *in;
    const kit_memory_t *memory;
    kit_result_t *result;
    kit_tensors_t all;
    attn_instance_t *instance;
    attn_kv_cache_shape_t shape;
    attn_space_needed_t needed;
    attn_space_t space;
    attn_batch_t batch;
    attn_forward_t args;
    kit_tensor_t *query, *key, *value, *output, *lse, *block_scale, *cache, *v_view, *k_view;
    kit_tensor_t views[2]; /* K and V of a separate cache */
    kit_tensor_t *slots;   /* of what forward writes */
    kit_tensor_t *q_scale, *k_scale, *v_scale, *metadata, *workspace, *weights;
    kit_sizes_t z;
    uint32_t out_dtype;
    int is_written_by_forward; /* as the table says; update_kv_cache is then not called for the step */
    int is_separate, is_guest; /* guest: instance and space are another run's */
    /* with ATTN_F_DEVICE_LENGTHS: what the host says, bounds of starts and of the case's seq_lens */
    int32_t bound_starts[KIT_MAX_REQS + 1], bound_lens[KIT_MAX_REQS];
    int32_t key_starts[KIT_MAX_REQS + 1]; /* with ATTN_F_KEY_LENGTHS: rows of key and value */
    int32_t starts[KIT_MAX_REQS + 1], spans[KIT_MAX_REQS * KIT_MAX_SPANS * 2];
} kit_run_t;

int kit_run_open(kit_run_t *x, const attn_backend_t *backend, const kit_case_t *c, const kit_inputs_t *in,
                 const kit_memory_t *memory, kit_result_t *result);
/* A run on the instance of owner, and with its metadata and workspace; in may be another layer's or
 * batch's. */
int kit_run_join(kit_run_t *x, const kit_run_t *owner, const kit_case_t *c, const kit_inputs_t *in,
                 kit_result_t *result);
/* Makes scales, cache and the rows of this step, and writes what was in the cache before it. */
int kit_run_fill(kit_run_t *x);
/* As kit_run_fill, but the cache is of another run, whose content stays: a later step of the same
 * requests. */
int kit_run_continue(kit_run_t *x, const kit_run_t *before);
/* Writes the rows of this step into the cache; nothing where there is none. */
int kit_run_update(kit_run_t *x);
int kit_run_prepare(kit_run_t *x); /* prepare_weights, where there are any */
int kit_run_outputs(kit_run_t *x); /* poisoned outputs, metadata and workspace */
int kit_run_build(kit_run_t *x);   /* also makes the arguments of forward */
/* Makes the arguments of forward alone, for a run whose metadata another one built. */
int kit_run_arguments(kit_run_t *x);
int kit_run_forward(kit_run_t *x);
int kit_run_poison(kit_run_t *x); /* output and lse as before forward */
int kit_run_read(kit_run_t *x);   /* fills result, looks for what was written and must not be */
void kit_run_close(kit_run_t *x); /* closes the instance, unless it is a guest; frees all but the result */

/* For the stages themselves. */
int kit_run_stop(kit_run_t *x, const char *operation, int status);
int kit_run_no_memory(kit_run_t *x);
void kit_run_fault(kit_run_t *x, const char *what, int64_t at);
/* [n, heads, size] rows, in the strides that the case's flags say. */
kit_tensor_t *kit_run_rows(kit_run_t *x, const char *name, uint32_t dtype, int64_t n, int64_t heads,
                           int64_t size);
/* Dense tensors of one dimension, of two with columns, of three with depth. */
kit_tensor_t *kit_run_floats(kit_run_t *x, const char *name, const float *values, int64_t n, int64_t columns);
kit_tensor_t *kit_run_ints(kit_run_t *x, const char *name, const void *values, uint32_t dtype, int64_t n,
                           int64_t columns, int64_t depth);
attn_scales_t kit_run_scales(const kit_run_t *x);
void kit_run_check_cache(kit_run_t *x);
/* Rows of queries and outputs beyond the batch's own: padding, and what bounds of lengths allow. */
int64_t kit_run_padding(const kit_run_t *x);
/* The slot of a position of request r. */
int64_t kit_run_slot(const kit_run_t *x, int r, int64_t position);

#endif
