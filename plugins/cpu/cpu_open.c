/* SPDX-License-Identifier: Apache-2.0 */
/* Makes an instance of CPU_ATTN: checks, level, threads, sizes; answers for its cache shape and its
 * buffers. */
#include "../common/cache_shape.h"
#include "../common/output_scales.h"
#include "../common/problem_check.h"
#include "cpu_instance.h"
#include "cpu_threads.h"

#include <stdlib.h>
#include <unistd.h>

enum { L2_FALLBACK = 512 << 10, SCRATCH_TOTAL = 40 << 20 };

enum cpu_dtype cpu_dtype_of(uint32_t attn_dtype) {
    switch (attn_dtype) {
    case ATTN_DTYPE_FLOAT32:
        return CPU_F32;
    case ATTN_DTYPE_FLOAT16:
        return CPU_F16;
    case ATTN_DTYPE_BFLOAT16:
        return CPU_BF16;
    case ATTN_DTYPE_FP8_E5M2:
        return CPU_E5M2;
    case ATTN_DTYPE_INT8:
        return CPU_I8;
    default:
        return CPU_E4M3;
    }
}

static int check_problem(const attn_problem_t *p, const attn_device_t *device, attn_error_t *error) {
    if (p->head_size < 1 || p->head_size > 1024 || p->head_size_v > 1024)
        return attn_fail(error, ATTN_E_UNSUPPORTED, p->head_size_v > 1024 ? "head_size_v" : "head_size",
                         "head sizes are %u and %u; CPU_ATTN serves 1 to 1024", p->head_size, p->head_size_v);
    return problem_check(p, device, &cpu_capabilities, "CPU_ATTN", cpu_supports, error);
}

/* The level of the options; the error names the bits that this CPU lacks. */
static int choose_level(const attn_option_value_t *options, uint32_t num_options,
                        const struct cpu_kernels **level, attn_error_t *error) {
    const char *name = num_options > CPU_OPTION_LEVEL ? options[CPU_OPTION_LEVEL].s : "auto";
    uint32_t missing;
    *level = cpu_choose_level(name != NULL ? name : "auto", cpu_bits(), &missing);
    if (*level != NULL) return ATTN_OK;
    if (missing == 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "level",
                         "level %s is not in this build; use auto or generic", name);
    char text[160] = "";
    for (int bit = 0; bit < CPU_NUM_BITS; bit++)
        if (missing >> bit & 1) {
            const size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, " %s", cpu_bit_name(bit));
        }
    return attn_fail(error, ATTN_E_UNSUPPORTED, "level",
                     "level %s needs%s, which this CPU does not have; use level = auto", name, text);
}

static void set_shape(attn_instance_t *in) {
    const attn_problem_t *p = &in->p;
    struct cpu_attn *a = &in->shape;
    a->num_q_heads = (int)p->num_heads;
    a->num_kv_heads = in->is_latent ? 1 : (int)(p->num_kv_heads != 0 ? p->num_kv_heads : p->num_heads);
    a->head_size = (int)p->head_size;
    a->head_size_v = in->is_latent ? (int)p->kv_lora_rank : (int)attn_output_size(p);
    a->q_dtype = cpu_dtype_of(in->query_dtype);
    a->kv_dtype = in->kv == ATTN_KV_INT4_PER_TOKEN_HEAD ? CPU_I4
                  : attn_kv_is_turboquant(in->kv) || in->kv == ATTN_KV_NVFP4 ||
                          in->kv == ATTN_KV_INT8_K_ONLY || in->kv == ATTN_KV_FP8_DS_MLA
                      ? CPU_PACKED
                  : in->kv == ATTN_KV_INT8_STATIC_V ? CPU_I8
                                                    : cpu_dtype_of(in->has_cache ? in->storage : p->dtype);
    if (a->kv_dtype == CPU_PACKED) {
        const attn_kv_format_t *f = attn_kv_format(in->kv);
        a->k_row = f->k_bits == 8 ? CPU_E4M3 : f->k_bits == 4 ? CPU_C4 : CPU_C3;
        a->v_row = f->v_bits == 4 ? CPU_V4 : CPU_V3;
        if (in->kv == ATTN_KV_NVFP4) a->k_row = a->v_row = CPU_E2M1;
        if (in->kv == ATTN_KV_INT8_K_ONLY) a->k_row = CPU_I8, a->v_row = cpu_dtype_of(p->dtype);
        if (in->kv == ATTN_KV_FP8_DS_MLA) a->k_row = a->v_row = CPU_DS;
    }
    a->out_dtype = cpu_dtype_of(in->plain_dtype);
    a->scale = (float)p->scale;
    a->soft_cap = (float)p->logits_soft_cap;
    a->alibi_sqrt = (in->features & ATTN_F_ALIBI_SQRT) != 0;
    a->q_scale = 1.0f;
    a->scale_per_head = 1;
    a->block_size = (int)in->block_size;
    a->rounds_query = attn_kv_rounds_query(in->kv);
    a->topk = in->is_sparse ? (int)p->topk : 0;
    if (in->projects && !(in->k->bf16_dot && cpu_bf16_serves(a))) { /* between the projections, float32 */
        if (a->q_dtype != CPU_E4M3) a->q_dtype = CPU_F32;
        a->out_dtype = CPU_F32;
    }
}

static void set_sizes(attn_instance_t *in) {
    long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (l2 < (128 << 10)) l2 = L2_FALLBACK;
    if (l2 > SCRATCH_TOTAL / in->limits.threads) l2 = SCRATCH_TOTAL / in->limits.threads;
    in->k->tiling(&in->shape, (size_t)l2, &in->tiling);
    if (in->projects && !in->is_sparse) { /* with fewer heads a row-dot item may have more rows */
        struct cpu_attn few = in->shape;
        struct cpu_tiling t;
        size_t scratch = cpu_latent_scratch_bytes(in);
        for (; few.num_q_heads >= 1; few.num_q_heads--) {
            if (in->p.num_heads % (uint32_t)few.num_q_heads != 0) continue;
            in->k->tiling(&few, (size_t)l2, &t);
            if (t.scratch_bytes > scratch) scratch = t.scratch_bytes;
        }
        in->tiling.scratch_bytes = scratch;
    }
    const size_t least = in->projects ? (cpu_latent_scratch_bytes(in) + 63) / 64 * 64 : 0;
    if (in->tiling.scratch_bytes < least) in->tiling.scratch_bytes = least;
    const int64_t spans = (int64_t)in->limits.max_seqs * in->max_spans;
    in->metadata_bytes = CPU_PLAN_AT + cpu_plan_bytes(&in->shape, &in->tiling, &in->limits, spans);
    in->workspace_bytes = cpu_plan_workspace(&in->shape, &in->tiling, &in->limits);
    if (in->projects)
        in->workspace_bytes += 64 + (in->is_sparse ? cpu_sparse_workspace(in) : cpu_latent_workspace(in));
    in->output_at = (in->workspace_bytes + 63) / 64 * 64;
    in->workspace_bytes = in->output_at + cpu_output_bytes(in);
    if (in->is_sparse) {
        const struct cpu_limits pass = cpu_sparse_limits(in);
        in->plan_at = (in->workspace_bytes + 63) / 64 * 64;
        in->workspace_bytes = in->plan_at + cpu_plan_bytes(&in->shape, &in->tiling, &pass, 0);
    }
    if ((in->features & ATTN_F_DEVICE_LENGTHS) != 0) {
        in->plan_at = (in->workspace_bytes + 63) / 64 * 64;
        in->workspace_bytes = in->plan_at + cpu_plan_bytes(&in->shape, &in->tiling, &in->limits, 0);
    }
}

int cpu_open(const attn_problem_t *problem, const attn_device_t *device, const attn_option_value_t *options,
             uint32_t num_options, const attn_host_t *host, attn_instance_t **instance, attn_error_t *error) {
    (void)host;
    attn_problem_t p;
    const struct cpu_kernels *level;
    int status = attn_intake(&p, sizeof p, problem, "problem", error);
    if (status == ATTN_OK) status = check_problem(&p, device, error);
    if (status == ATTN_OK) status = choose_level(options, num_options, &level, error);
    if (status != ATTN_OK) return status;

    attn_instance_t *in = calloc(1, sizeof *in);
    if (in == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for an instance of %zu bytes",
                         sizeof *in);
    in->p = p;
    in->k = level;
    in->features = attn_problem_features(&p);
    in->out_dtype = p.out_dtype != 0 ? p.out_dtype : p.dtype;
    in->plain_dtype = output_is_quantised(in->features) ? p.dtype : in->out_dtype;
    in->query_dtype = p.query_dtype != 0 ? p.query_dtype : p.dtype;
    in->kv = p.kv_cache_dtype != 0 ? p.kv_cache_dtype : (uint32_t)ATTN_KV_AUTO;
    in->storage = attn_kv_storage(in->kv, p.dtype);
    in->block_size = p.block_size != 0 ? p.block_size : cpu_capabilities.preferred_block_size;
    in->max_len = p.max_model_len != 0 ? p.max_model_len : 131072;
    in->max_spans = (in->features & ATTN_F_MM_PREFIX) == 0 ? 0 : p.max_mm_ranges != 0 ? p.max_mm_ranges : 8;
    in->has_cache = attn_role_has_cache(p.role);
    in->is_latent = attn_role_is_mla(p.role);
    in->projects = attn_problem_projects(&p);
    in->is_sparse = p.role == ATTN_ROLE_MLA_SPARSE;
    in->is_separate = (in->features & ATTN_F_SEPARATE_KV) != 0;
    const int64_t threads = num_options > CPU_OPTION_NUM_THREADS ? options[CPU_OPTION_NUM_THREADS].i : 0;
    in->limits.threads = threads > 0 ? (int)threads : cpu_max_threads();
    in->limits.max_seqs = (int32_t)(p.max_num_seqs != 0 ? p.max_num_seqs : 256);
    in->limits.max_tokens = (int32_t)(p.max_num_batched_tokens != 0 ? p.max_num_batched_tokens : 8192);
    in->limits.batch_invariant = (in->features & ATTN_F_BATCH_INVARIANT) != 0;
    set_shape(in);
    set_sizes(in);

    if (in->metadata_bytes >= (size_t)CPU_PLAN_BOUND) {
        cpu_close(in);
        return attn_fail(
            error, ATTN_E_UNSUPPORTED, "max_num_batched_tokens",
            "max_num_batched_tokens %u, max_num_seqs %u and %u heads make a plan of more bytes than can be "
            "counted; give less",
            p.max_num_batched_tokens, p.max_num_seqs, p.num_heads);
    }
    const size_t hq = p.num_heads, hkv = (size_t)in->shape.num_kv_heads;
    in->row_floats = (size_t)(p.head_size > p.head_size_v ? p.head_size : p.head_size_v) + 64;
    in->k_scale = calloc(2 * hkv + 2 * hq, sizeof *in->k_scale);
    in->rows = calloc((size_t)in->limits.threads * in->row_floats, sizeof *in->rows);
    if (attn_kv_has_channel_scales(in->kv))
        in->v_channel = calloc(hkv * (size_t)in->shape.head_size_v, sizeof *in->v_channel);
    if (in->k_scale == NULL || in->rows == NULL ||
        (attn_kv_has_channel_scales(in->kv) && in->v_channel == NULL)) {
        cpu_close(in);
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the vectors of %zu heads", hq);
    }
    in->v_scale = in->k_scale + hkv;
    in->sinks = in->v_scale + hkv;
    in->alibi = in->sinks + hq;
    *instance = in;
    return ATTN_OK;
}

void cpu_close(attn_instance_t *in) {
    if (in == NULL) return;
    free(in->rows);
    free(in->v_channel);
    free(in->k_scale);
    free(in);
}

/* HND unless asked otherwise: a page is then one long piece per head, which is what decode reads fastest.
 * With separate_kv the shape is that of the packed cache, whose K and V columns are a valid pair of
 * tensors. */
int cpu_kv_cache_shape(attn_instance_t *in, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                       attn_error_t *error) {
    return cache_shape_give(&in->p, ATTN_LAYOUT_HND, in->block_size, num_blocks, shape, error);
}

int cpu_space_needed(attn_instance_t *in, attn_space_needed_t *needed, attn_error_t *error) {
    attn_space_needed_t full = {.struct_size = sizeof full, .alignment = 64};
    full.metadata_bytes = in->metadata_bytes;
    full.workspace_bytes = in->workspace_bytes;
    full.weight_bytes = in->projects ? cpu_latent_weight_bytes(in) : 0;
    return attn_give(needed, &full, sizeof full, "needed", error);
}
