/* SPDX-License-Identifier: Apache-2.0 */
/* case_run.c: runs one case on one backend through the plugin ABI, stage by stage or at once. */
#include "case_output.h"

#include <attn/attn_plugin_util.h>

#include <stdlib.h>
#include <string.h>

static int open_instance(kit_run_t *x) {
    const kit_memory_t *m = x->memory;
    attn_device_t device = {.struct_size = sizeof device,
                            .type = m->device_type,
                            .id = m->device_id,
                            .compute_capability = m->compute_capability,
                            .num_sms = m->num_sms};
    attn_problem_t problem = x->c->problem;
    problem.num_blocks = x->in->num_blocks;
    int status =
        x->ops->open(&problem, &device, m->options, m->num_options, m->host, &x->instance, &x->result->error);
    if (status != ATTN_OK) return kit_run_stop(x, "open", status);
    x->shape.struct_size = sizeof x->shape;
    status = x->ops->kv_cache_shape(x->instance, x->in->num_blocks, &x->shape, &x->result->error);
    if (status != ATTN_OK) return kit_run_stop(x, "kv_cache_shape", status);
    x->result->page_bytes = x->shape.ndim != 0 ? x->shape.page_bytes : 0;
    x->needed.struct_size = sizeof x->needed;
    return kit_run_stop(x, "space_needed", x->ops->space_needed(x->instance, &x->needed, &x->result->error));
}

static int make_space(kit_run_t *x) {
    const int64_t metadata_shape[1] = {(int64_t)x->needed.metadata_bytes},
                  workspace_shape[1] = {(int64_t)x->needed.workspace_bytes};
    x->metadata = kit_tensor_make(&x->all, "metadata", ATTN_DTYPE_UINT8, 1, metadata_shape, NULL, 0);
    x->workspace = kit_tensor_make(&x->all, "workspace", ATTN_DTYPE_UINT8, 1, workspace_shape, NULL, 0);
    kit_tensor_poison(&x->all, x->metadata);
    kit_tensor_poison(&x->all, x->workspace);
    if (x->all.failed) return kit_run_no_memory(x);
    x->space = (attn_space_t){.struct_size = sizeof x->space,
                              .metadata = x->metadata->t.data,
                              .metadata_bytes = x->needed.metadata_bytes,
                              .workspace = x->workspace->t.data,
                              .workspace_bytes = x->needed.workspace_bytes};
    if (x->needed.host_bytes != 0) {
        x->space.host = malloc((size_t)x->needed.host_bytes);
        x->space.host_bytes = x->needed.host_bytes;
        if (x->space.host == NULL) return kit_run_no_memory(x);
        memset(x->space.host, KIT_CANARY, (size_t)x->needed.host_bytes);
    }
    return ATTN_OK;
}

int kit_run_outputs(kit_run_t *x) {
    const kit_case_t *c = x->c;
    int64_t rows = x->in->num_tokens + kit_run_padding(x);
    const int64_t lse_shape[2] = {x->z.heads, rows}, lse_strides[2] = {rows + 5, 1};
    x->output = kit_run_rows(x, "output", x->out_dtype, rows, x->z.heads, attn_output_columns(&c->problem));
    kit_tensor_poison(&x->all, x->output);
    if ((c->flags & KIT_NO_LSE) == 0 && (c->problem.features & ATTN_F_LSE) != 0) {
        x->lse = kit_tensor_make(&x->all, "lse", ATTN_DTYPE_FLOAT32, 2, lse_shape,
                                 (c->flags & (KIT_STRIDED | KIT_HEADS_FIRST)) != 0 ? lse_strides : NULL, 0);
        kit_tensor_poison(&x->all, x->lse);
    }
    if (kit_output_scales_make(x, rows)) return kit_run_no_memory(x);
    return x->all.failed ? kit_run_no_memory(x) : x->is_guest ? ATTN_OK : make_space(x);
}

/* MLA: the weights of the layer, prepared in a buffer of exactly the size requested. */
int kit_run_prepare(kit_run_t *x) {
    const attn_problem_t *p = &x->c->problem;
    const int64_t shape[2] = {x->z.heads * ((int64_t)p->qk_nope_head_dim + p->v_head_dim), p->kv_lora_rank},
                  bytes[1] = {(int64_t)x->needed.weight_bytes};
    if (x->in->kv_b_proj == NULL || !ATTN_HAS_OP(x->ops, prepare_weights)) return ATTN_OK;
    const int has_blocks = (x->c->flags & KIT_BLOCK_WEIGHTS) != 0;
    const int64_t blocks[2] = {(shape[0] + 127) / 128, (shape[1] + 127) / 128};
    kit_tensor_t *w = kit_tensor_make(
        &x->all, "kv_b_proj", has_blocks ? (uint32_t)ATTN_DTYPE_FP8_E4M3 : p->dtype, 2, shape, NULL, 0);
    kit_tensor_t *scale =
        has_blocks ? kit_run_floats(x, "kv_b_proj_scale", x->in->weight_scale, blocks[0], blocks[1]) : NULL;
    x->weights = kit_tensor_make(&x->all, "weight_space", ATTN_DTYPE_UINT8, 1, bytes, NULL, 0);
    if (x->all.failed) return kit_run_no_memory(x);
    uint8_t *codes = has_blocks ? kit_tensor_at(w, 0, 0) : NULL;
    for (int64_t i = 0; has_blocks && i < shape[0] * shape[1]; i++)
        codes[i] = attn_to_e4m3((double)x->in->kv_b_proj[i] /
                                x->in->weight_scale[i / shape[1] / 128 * blocks[1] + i % shape[1] / 128]);
    if (!has_blocks)
        kit_store_floats(kit_tensor_at(w, 0, 0), w->dtype, x->in->kv_b_proj, shape[0] * shape[1]);
    if (kit_tensor_send(&x->all, w) || kit_tensor_poison(&x->all, x->weights)) return kit_run_no_memory(x);
    attn_weights_t args = {.struct_size = sizeof args,
                           .kv_b_proj = &w->t,
                           .kv_b_proj_scale = scale != NULL ? &scale->t : NULL,
                           .weight_space = x->weights->t.data,
                           .weight_space_bytes = x->needed.weight_bytes};
    return kit_run_stop(x, "prepare_weights",
                        x->ops->prepare_weights(x->instance, &args, x->memory->stream, &x->result->error));
}

int kit_run_read(kit_run_t *x) {
    int64_t tokens = x->in->num_tokens, n = tokens * x->z.heads * x->z.output;
    kit_result_t *result = x->result;
    const uint64_t features = x->c->problem.features;
    const int is_quantised =
        (features & (ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4)) != 0;
    if (kit_tensor_fetch(&x->all, x->output) || (x->lse != NULL && kit_tensor_fetch(&x->all, x->lse)) ||
        (x->block_scale != NULL && kit_tensor_fetch(&x->all, x->block_scale)))
        return kit_run_no_memory(x);
    int64_t at;
    if ((at = kit_tensor_damage(x->output, 0, tokens)) >= 0)
        kit_run_fault(x, "output was written outside its rows", at);
    if (x->block_scale != NULL && (at = kit_output_scales_damage(x)) >= 0)
        kit_run_fault(x, "output_block_scale was written outside its rows", at);
    if (x->lse != NULL && (at = kit_tensor_damage(x->lse, 1, tokens)) >= 0)
        kit_run_fault(x, "lse was written outside its entries", at);
    if (!x->is_guest && (at = kit_tensor_canaries(&x->all, x->metadata)) >= 0)
        kit_run_fault(x, "written outside the metadata buffer", at);
    if (x->weights != NULL && (at = kit_tensor_canaries(&x->all, x->weights)) >= 0)
        kit_run_fault(x, "written outside the weight buffer", at);
    if (!x->is_guest && (at = kit_tensor_canaries(&x->all, x->workspace)) >= 0)
        kit_run_fault(x, "written outside the workspace", at);
    if (x->all.failed) return kit_run_no_memory(x);
    kit_run_check_cache(x);
    kit_result_free(result);
    result->num_out = n;
    result->num_lse = x->lse != NULL ? x->z.heads * tokens : 0;
    result->out = malloc((size_t)(n > 0 ? n : 1) * sizeof(double));
    result->lse =
        x->lse != NULL ? malloc((size_t)(result->num_lse > 0 ? result->num_lse : 1) * sizeof(double)) : NULL;
    if ((features & ATTN_F_OUT_NVFP4) != 0) result->unit = malloc((size_t)(n > 0 ? n : 1) * sizeof(double));
    if (result->out == NULL || (x->lse != NULL && result->lse == NULL) ||
        ((features & ATTN_F_OUT_NVFP4) != 0 && result->unit == NULL))
        return kit_run_no_memory(x);
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t h = 0; h < x->z.heads; h++) {
            const int64_t at_row = (i * x->z.heads + h) * x->z.output;
            if (is_quantised)
                kit_output_load(x, i, h, result->out + at_row,
                                result->unit != NULL ? result->unit + at_row : NULL);
            else
                kit_load_doubles(kit_tensor_at(x->output, i, h), x->out_dtype, result->out + at_row,
                                 x->z.output);
        }
    for (int64_t h = 0; x->lse != NULL && h < x->z.heads; h++)
        kit_load_doubles(kit_tensor_at(x->lse, h, 0), ATTN_DTYPE_FLOAT32, result->lse + h * tokens, tokens);
    return ATTN_OK;
}

static void start(kit_run_t *x, const kit_case_t *c, const kit_inputs_t *in, const kit_memory_t *memory,
                  kit_result_t *result) {
    memset(x, 0, sizeof *x);
    memset(result, 0, sizeof *result);
    result->error.struct_size = sizeof result->error;
    x->c = c;
    x->in = in;
    x->memory = x->all.memory = memory;
    x->result = result;
    x->z = kit_sizes(&c->problem);
    x->out_dtype = c->problem.out_dtype != 0 ? c->problem.out_dtype : c->problem.dtype;
    x->is_separate = (c->problem.features & ATTN_F_SEPARATE_KV) != 0;
}

int kit_run_open(kit_run_t *x, const attn_backend_t *backend, const kit_case_t *c, const kit_inputs_t *in,
                 const kit_memory_t *memory, kit_result_t *result) {
    start(x, c, in, memory, result);
    x->ops = backend->ops;
    const attn_capabilities_t *can = backend->capabilities;
    x->is_written_by_forward = can->struct_size > offsetof(attn_capabilities_t, forward_writes_cache) &&
                               can->forward_writes_cache != 0;
    return open_instance(x);
}

int kit_run_join(kit_run_t *x, const kit_run_t *owner, const kit_case_t *c, const kit_inputs_t *in,
                 kit_result_t *result) {
    start(x, c, in, owner->memory, result);
    x->is_guest = 1;
    x->is_written_by_forward = owner->is_written_by_forward;
    x->ops = owner->ops;
    x->instance = owner->instance;
    x->needed = owner->needed;
    x->space = owner->space;
    x->shape.struct_size = sizeof x->shape;
    return kit_run_stop(x, "kv_cache_shape",
                        x->ops->kv_cache_shape(x->instance, in->num_blocks, &x->shape, &result->error));
}

int kit_run_build(kit_run_t *x) {
    if (kit_run_arguments(x) != ATTN_OK) return x->result->status;
    return kit_run_stop(
        x, "build_metadata",
        x->ops->build_metadata(x->instance, &x->batch, &x->space, x->memory->stream, &x->result->error));
}

int kit_run_forward(kit_run_t *x) {
    int status = x->ops->forward(x->instance, &x->args, &x->space, x->memory->stream, &x->result->error);
    if (status != ATTN_OK) return kit_run_stop(x, "forward", status);
    if (x->memory->sync(x->memory->ctx) == 0) return ATTN_OK;
    attn_fail(&x->result->error, ATTN_E_DEVICE, "", "the device reported an error after forward");
    return kit_run_stop(x, "sync", ATTN_E_DEVICE);
}

int kit_run_poison(kit_run_t *x) {
    kit_tensor_poison(&x->all, x->output);
    if (x->lse != NULL) kit_tensor_poison(&x->all, x->lse);
    return x->all.failed ? kit_run_no_memory(x) : ATTN_OK;
}

void kit_run_close(kit_run_t *x) {
    if (x->instance != NULL && !x->is_guest) x->ops->close(x->instance);
    if (!x->is_guest) free(x->space.host);
    x->instance = NULL;
    x->space.host = NULL;
    kit_tensors_free(&x->all);
}

int kit_run(const attn_backend_t *backend, const kit_case_t *c, const kit_inputs_t *in,
            const kit_memory_t *memory, kit_result_t *result) {
    kit_run_t *x = malloc(sizeof *x);
    if (x == NULL) {
        memset(result, 0, sizeof *result);
        return result->status = ATTN_E_NO_MEMORY;
    }
    int status = kit_run_open(x, backend, c, in, memory, result);
    if (status == ATTN_OK) status = kit_run_fill(x);
    if (status == ATTN_OK) status = kit_run_update(x);
    if (status == ATTN_OK) status = kit_run_prepare(x);
    if (status == ATTN_OK) status = kit_run_outputs(x);
    if (status == ATTN_OK) status = kit_run_build(x);
    if (status == ATTN_OK) status = kit_run_forward(x);
    if (status == ATTN_OK) kit_run_read(x);
    kit_run_close(x);
    free(x);
    return result->status;
}
int kit_run_oracle(const attn_backend_t *reference, const kit_case_t *c, const kit_inputs_t *in,
                   kit_result_t *result) {
    kit_case_t exact = *c;
    exact.problem.out_dtype = ATTN_DTYPE_FLOAT64;
    exact.problem.features &= ~(ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4 |
                                ATTN_F_OUT_SCALE_UE8M0 | ATTN_F_DEVICE_LENGTHS | ATTN_F_WRITE_IN_FORWARD);
    exact.problem.features |= ATTN_F_LSE;
    exact.flags &= (KIT_PER_HEAD | KIT_NO_SCALES);
    return kit_run(reference, &exact, in, &kit_cpu_memory, result);
}

void kit_result_free(kit_result_t *result) {
    free(result->out);
    free(result->lse);
    free(result->unit);
    result->out = result->lse = result->unit = NULL;
}
