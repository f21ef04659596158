/* SPDX-License-Identifier: Apache-2.0 */
/* The instance of the CPU backend and its operations: the side that knows the plugin ABI. */
#ifndef CPU_INSTANCE_H
#define CPU_INSTANCE_H

#include <attn/attn_plugin_util.h>

#include "../common/call_check.h"
#include "cpu_plan.h"

#include <sys/types.h>

/* Options of [option cpu], in the order of the table in plugin.c. */
enum { CPU_OPTION_LEVEL, CPU_OPTION_NUM_THREADS, CPU_NUM_OPTIONS };

/* Keys that a token selects at most. */
enum { CPU_MAX_TOPK = 1 << 17 };

struct attn_instance {
    attn_problem_t p;
    uint64_t features;
    const struct cpu_kernels *k;
    struct cpu_attn shape; /* template of every call: sizes, types, mask-free parameters */
    struct cpu_tiling tiling;
    struct cpu_limits limits;
    uint32_t kv, storage, query_dtype, out_dtype, block_size, max_spans;
    uint32_t plain_dtype; /* what attention writes: out_dtype, or the model's where that is quantised */
    int64_t max_len;
    int has_cache, is_separate;
    int is_latent; /* one row of L + R values per token, whose first L are the value (semantics 7.11) */
    int projects;  /* queries are absorbed and latents multiplied with W_UV here (semantics 7.4) */
    int is_sparse; /* each token has the keys that topk_indices names (semantics 9.2) */
    size_t metadata_bytes, workspace_bytes;
    size_t plan_at;   /* in the workspace: the plan of lengths on the device, or of selected keys */
    size_t output_at; /* in the workspace: the output before it is quantised */
    float *k_scale, *v_scale, *sinks, *alibi; /* the call's small vectors, copied dense */
    float *v_channel;                         /* [KV heads][Dv], for formats that have it */
    float *rows;                              /* a row of floats for each thread, for update_kv_cache */
    size_t row_floats;
};

/* Start of the metadata buffer; the plan follows it. */
struct cpu_metadata {
    uint64_t magic; /* CPU_METADATA_MAGIC: build_metadata ran */
    const int32_t *block_table;
    int64_t block_table_row, block_table_width;
    /* lengths on the device (semantics 1.6), read in forward: the plan's are bounds; else NULL */
    const int32_t *device_starts, *device_lens;
    int64_t device_starts_stride, device_lens_stride;
    int32_t num_tokens, max_block;
    int32_t num_key_rows; /* of key and value, without a cache */
    int32_t
        heads_per_pass; /* query heads that the plan is for; fewer than all only where instances project */
};
/* The plan follows at CPU_PLAN_AT. */
enum { CPU_PLAN_AT = 128 };
#define CPU_METADATA_MAGIC UINT64_C(0x306174654d757043)

static inline struct cpu_plan *cpu_metadata_plan(struct cpu_metadata *m) {
    return (struct cpu_plan *)(void *)((char *)m + CPU_PLAN_AT);
}

/* The plan of a call: the metadata's, or, of lengths on the device, one made in the workspace of the lengths
 * that are there now. */
int cpu_plan_of_call(const attn_instance_t *in, struct cpu_metadata *m, void *workspace,
                     struct cpu_plan **plan, attn_error_t *error);

/* Query tokens of a plan. */
static inline int32_t cpu_plan_tokens(const struct cpu_plan *plan) {
    const int32_t n = plan->num_seqs;
    return n > 0 ? (int32_t)plan->seqs[n - 1].q_start + plan->seqs[n - 1].q_len : 0;
}

extern const attn_capabilities_t cpu_capabilities;
extern const attn_option_spec_t cpu_options[CPU_NUM_OPTIONS];

enum cpu_dtype cpu_dtype_of(uint32_t attn_dtype);
/* The cache as tensors. */
call_cache_t cpu_cache_of(const attn_instance_t *in);
/* Elements of a latent row as the cache's tensor has them. */
static inline int64_t cpu_latent_row(const attn_instance_t *in) {
    return in->kv == ATTN_KV_FP8_DS_MLA ? ATTN_DS_MLA_ROW : in->shape.head_size;
}
/* Value of a scale tensor for a head; NULL reads as 1. */
float cpu_scale_at(const DLTensor *scale, int64_t head);
/* Scales of V's channels, [KV head][Dv], copied dense into the instance. */
const float *cpu_channel_scales(const attn_instance_t *in, const DLTensor *scale);
/* Rows of K (side 0) or V (side 1) and of the scales that the cache keeps for them. */
void cpu_cache_rows(const attn_instance_t *in, const DLTensor *kv_cache, const DLTensor *v_cache, int side,
                    struct cpu_rows *rows, struct cpu_rows *scales);

/* Where instances project: bytes of prepared weights, of a thread's scratch, of the workspace behind that of
 * the plan; query heads of one pass over so many tokens; forward's own checks, and forward with `call` filled
 * but for queries and outputs. */
uint64_t cpu_latent_weight_bytes(const attn_instance_t *in);
/* Of a token's query and latents of one head, between the projections. */
size_t cpu_latent_row_bytes(const attn_instance_t *in);
size_t cpu_latent_scratch_bytes(const attn_instance_t *in);
size_t cpu_latent_workspace(const attn_instance_t *in);
int cpu_latent_heads(const attn_instance_t *in, int32_t tokens);
int cpu_latent_check(const attn_instance_t *in, const attn_forward_t *a, attn_error_t *error);
void cpu_latent_run(const attn_instance_t *in, const attn_forward_t *a, struct cpu_metadata *m,
                    const struct cpu_plan *plan, struct cpu_attn *call, char *workspace);

/* Quantised outputs: bytes of the plain one in the workspace (0 where the output is not quantised); forward's
 * check of output and scales; the tensor that attention writes; and its rows quantised. */
struct cpu_plain_output {
    DLTensor t;
    int64_t shape[3], strides[3];
};
size_t cpu_output_bytes(const attn_instance_t *in);
int cpu_output_check(const attn_instance_t *in, const attn_forward_t *a, int64_t tokens, attn_error_t *error);
const DLTensor *cpu_output_plain(const attn_instance_t *in, const attn_forward_t *a, void *workspace,
                                 struct cpu_plain_output *plain);
void cpu_output_finish(const attn_instance_t *in, const attn_forward_t *a, int32_t tokens,
                       const void *workspace);

/* Tokens and heads that go through the projections together. */
struct cpu_latent_part {
    int32_t token0, tokens;
    int head0, heads;
};
/* One part of a call: a plan of its tokens, counted from its first, whose lse `call` has. */
void cpu_latent_pass(const attn_instance_t *in, const attn_forward_t *a, const struct cpu_latent_part *part,
                     const struct cpu_plan *plan, struct cpu_attn *call, char *workspace);

/* Selected keys: bytes between the projections; limits of the plan of a pass; the check of the indices; and
 * forward, pass by pass, with `call` filled. */
size_t cpu_sparse_workspace(const attn_instance_t *in);
struct cpu_limits cpu_sparse_limits(const attn_instance_t *in);
int cpu_sparse_check(const attn_instance_t *in, const attn_forward_t *a, struct cpu_metadata *m,
                     attn_error_t *error);
void cpu_sparse_run(const attn_instance_t *in, const attn_forward_t *a, struct cpu_metadata *m,
                    struct cpu_attn *call, char *workspace);

/* attn.draft.indexer/0 (cpu_indexer.c). */
const void *cpu_get_extension(attn_instance_t *instance, const char *id);
/* The topk columns of values[0 .. n) that come first, ascending, to out; n > topk. counts: room for
 * CPU_SELECT_COUNTS. */
enum { CPU_SELECT_COUNTS = 2048 };
void cpu_index_select(const float *values, int32_t n, int32_t topk, int32_t *out, int32_t *counts);

int cpu_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons);
int cpu_open(const attn_problem_t *problem, const attn_device_t *device, const attn_option_value_t *options,
             uint32_t num_options, const attn_host_t *host, attn_instance_t **instance, attn_error_t *error);
void cpu_close(attn_instance_t *instance);
int cpu_kv_cache_shape(attn_instance_t *instance, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                       attn_error_t *error);
int cpu_space_needed(attn_instance_t *instance, attn_space_needed_t *needed, attn_error_t *error);
int cpu_build_metadata(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                       void *stream, attn_error_t *error);
int cpu_update_block_table(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                           void *stream, attn_error_t *error);
int cpu_update_kv_cache(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                        attn_error_t *error);
int cpu_prepare_weights(attn_instance_t *instance, const attn_weights_t *weights, void *stream,
                        attn_error_t *error);
int cpu_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                void *stream, attn_error_t *error);

#endif
