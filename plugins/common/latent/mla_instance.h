/* SPDX-License-Identifier: Apache-2.0 */
/* What an instance of the MLA backends holds and how its buffers are laid out. Between the ABI and the
 * kernels; shared by the plugins mla and mla_sparse, whose plugin.c hands over a mla_backend. */
#ifndef MLA_INSTANCE_H
#define MLA_INSTANCE_H

#include "../gpu_metadata.h"
#include "../gpu_device.h"
#include "../gpu_output.h"
#include "kernels/cuda/latent/mla_blas.h"
#include "kernels/cuda/latent/mla_config.h"
#include "kernels/cuda/latent/mla_launch.h"
#include "kernels/cuda/latent/mla_plan.h"
#include "kernels/cuda/sparse/widen_rows.h"

#include <attn/attn_plugin.h>
#include <attn/attn_plugin_util.h>

struct mla_prefill;
struct mla_prefill_plan;
struct flash_kernels;

/* Where the requests begin that take the multi-head form, and the bytes of lists that it left in the
 * mirror. */
typedef struct mla_border {
    int32_t first_request, first_token;
    size_t used;
} mla_border;

/* The multi-head form of prefill, where a plugin has it (plugins/mla/mla_prefill.h). */
typedef struct mla_prefill_ops {
    /* Sets in->prefill and what belongs to it in the instance, and raises the sizes of the buffers; leaves it
     * NULL where the host, the device or the sizes lack something: then every token goes the absorbed way. */
    int (*open)(attn_instance_t *in, const attn_host_t *host, const attn_device_t *device,
                attn_error_t *error);
    void (*close)(struct mla_prefill *prefill);
    /* Plans the requests from the border on: num_reqs and nothing used where all of them go the absorbed
     * way. */
    mla_border (*build)(const attn_instance_t *in, const attn_batch_t *batch, struct mla_prefill_plan *plan,
                        char *mirror);
    /* Nothing without passes. Returns a cudaError_t, or one of FLASH_E_*. */
    int (*forward)(const attn_instance_t *in, const attn_forward_t *args, const attn_space_t *space,
                   const struct mla_prefill_plan *plan, void *stream);
} mla_prefill_ops;

/* Prompts over 656-byte rows by a 16-bit copy of them, where a plugin has it (plugins/mla_sparse/widen.c). */
typedef struct mla_widen_ops {
    /* Sets in->widen_pages and raises the sizes of the buffers where the problem, the kernel and the options
     * allow. */
    void (*open)(attn_instance_t *in, const attn_option_value_t *options, uint32_t num_options);
    /* Chooses the requests, num_pages 0 for none, and writes what the copy reads to the mirror; returns its
     * bytes, which begin at in->widen_starts_at. */
    size_t (*build)(const attn_instance_t *in, const attn_batch_t *batch, widened *chosen, char *mirror);
    /* The copy. A cudaError_t as int. */
    int (*copy)(const attn_instance_t *in, const mla_attend_params *p, const attn_space_t *space,
                const widened *chosen, void *stream);
    /* Makes those parameters those of a slice of the chosen requests. */
    void (*use)(const attn_instance_t *in, const attn_space_t *space, const widened *chosen,
                mla_attend_params *p);
} mla_widen_ops;

/* How the adapter reaches a device: through the CUDA runtime with compiled kernels (mla_cuda), or another
 * way. Launches return codes that `fail` explains. */
typedef struct mla_device_ops {
    /* Finds the device and sets what the instance knows of it. */
    int (*find)(attn_instance_t *in, const attn_device_t *device, const attn_option_value_t *options,
                uint32_t num_options, attn_error_t *error);
    int (*choose)(attn_instance_t *in, attn_error_t *error); /* sets in->config */
    /* Everything that a call may need, so that none loads, compiles or allocates; the device is current. */
    int (*load)(attn_instance_t *in, const attn_option_value_t *options, uint32_t num_options,
                const attn_host_t *host, attn_error_t *error);
    void (*close)(attn_instance_t *in); /* whatever of it has been opened */
    int (*enter)(const attn_instance_t *in, gpu_device_guard *guard, attn_error_t *error);
    void (*leave)(const attn_instance_t *in, const gpu_device_guard *guard);
    int (*fail)(const attn_instance_t *in, attn_error_t *error, int code, const char *what);
    int (*copy)(const attn_instance_t *in, void *to, const void *from, size_t bytes, void *stream,
                attn_error_t *error);
    int (*attend)(const attn_instance_t *in, const mla_attend_params *p, int num_items, void *stream);
    int (*merge)(const attn_instance_t *in, const mla_attend_params *p, int num_splits, void *stream);
    int (*multiply)(const attn_instance_t *in, mla_product product, const mla_project_params *p,
                    void *stream);
    int (*write_cache)(const attn_instance_t *in, const mla_write_params *p, void *stream);
    int (*copy_weights)(const attn_instance_t *in, void *to, const void *from, int64_t rows, int64_t from_row,
                        int is_e4m3, const mla_weight_scale *scale, void *stream);
    int (*copy_rows)(const attn_instance_t *in, const mla_copy_params *p, void *stream);
    int (*zero_rows)(const attn_instance_t *in, void *out, int64_t rows, int size, int64_t token,
                     int64_t head, void *stream);
    int (*quantise)(const attn_instance_t *in, const quantise_params *p, void *stream); /* NULL: no fp8 */
} mla_device_ops;
extern const mla_device_ops mla_cuda;

/* What a plugin hands to the code that they share. */
typedef struct mla_backend {
    const char *name;
    const attn_capabilities_t *capabilities;
    const mla_device_ops *device;
    int (*supports)(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons);
    const mla_kernels *kernels;        /* of mla_cuda */
    const mla_prefill_ops *prefill;    /* NULL: no multi-head form */
    const struct flash_kernels *dense; /* that it attends with */
    const mla_widen_ops *widen;        /* NULL: no copies */
} mla_backend;

struct attn_instance {
    const mla_backend *backend;
    attn_problem_t problem;
    struct mla_prefill *prefill; /* the multi-head form; NULL: everything is absorbed */
    size_t prefill_at;           /* its lists in the metadata, behind those of the absorbed form */
    int64_t up_rows,
        up_elements; /* latents and their projection of one pass, where cuBLAS may project; 0: none */
    int device_id, num_sms, compute_capability;
    int prefill_choice; /* enum mla_prefill_choice, the option prefill */
    int portable;       /* the option arch: no kernel of one architecture */
    mla_blas *blas;     /* projections by cuBLAS; NULL: by our kernel */
    int projects; /* 0: the caller does, queries come absorbed (semantics 7.11); nope and value are latent */
    int heads, latent, rope, nope, value, page_size;
    int dtype, cache_kind, stages; /* enums of mla_params.h */
    uint32_t kv, storage;          /* ATTN_KV_*, ATTN_DTYPE_* of the cache tensor */
    int is_fp8_query;              /* e4m3: of the caller, or rounded after absorption (semantics 7.4) */
    int row_elements;
    mla_config config;   /* the kernel that attends */
    void *encode_tiled;  /* cuTensorMapEncodeTiled, where that kernel wants tensor maps */
    void *made;          /* of a device that is not mla_cuda: what it compiled and loaded */
    mla_plan_input plan; /* everything but the batch */
    mla_plan_limits limits;
    gpu_metadata metadata;
    /* byte offsets in metadata and in its host mirror, after mla_counts at 0 */
    size_t slices_at, parts_at, items_at, splits_at;
    size_t part_out_at, part_lse_at;   /* latents at 0 */
    size_t lists_at;                   /* in the workspace: packed lists of the kernel over selected tokens */
    size_t rope_at;                    /* in the workspace: the rope of fp8 queries */
    size_t output_at;                  /* in the workspace: the 16-bit result of quantised outputs */
    size_t prefill_plan_bytes;         /* in the host buffer */
    int32_t widen_pages, widen_always; /* pages that a 16-bit copy has room for, 0: there is none */
    size_t widen_starts_at, widen_at;  /* in the metadata; in the workspace */
    uint64_t weight_bytes;
};

/* Head of the host buffer; the launches follow, then the mirror of the metadata. Forward reads nothing
 * else. */
typedef struct mla_host_header {
    gpu_header head;
    int32_t num_slices;
    int32_t num_absorbed; /* tokens of the absorbed form, the first of the batch */
    widened widened;      /* requests that attend to a 16-bit copy of their rows */
} mla_host_header;
typedef struct mla_launch_size {
    int32_t items, splits;
} mla_launch_size;
#define MLA_MAGIC UINT64_C(0x31616c6d6e747461)

static inline size_t mla_round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}
/* The plan of the multi-head form, if there is one. */
static inline size_t mla_prefill_plan_at(const attn_instance_t *in) {
    return mla_round_up(sizeof(mla_host_header) + (size_t)in->limits.max_slices * sizeof(mla_launch_size),
                        64);
}
static inline size_t mla_mirror_at(const attn_instance_t *in) {
    return mla_round_up(mla_prefill_plan_at(in) + in->prefill_plan_bytes, 256);
}

/* The options of both plugins, then that of mla alone and that of mla_sparse alone. */
enum {
    MLA_OPTION_ARCH,
    MLA_OPTION_PROJECTIONS,
    MLA_NUM_OPTIONS,
    MLA_OPTION_PREFILL = MLA_NUM_OPTIONS,
    MLA_NUM_DENSE_OPTIONS,
    MLA_OPTION_WIDEN = MLA_NUM_OPTIONS,
    MLA_NUM_SPARSE_OPTIONS
};
enum mla_projections { MLA_PROJECTIONS_AUTO = 0, MLA_PROJECTIONS_CUBLAS = 1, MLA_PROJECTIONS_OWN = 2 };
enum mla_prefill_choice { MLA_PREFILL_AUTO = 0, MLA_PREFILL_ABSORBED = 1, MLA_PREFILL_PROJECTED = 2 };
enum mla_widen_choice { MLA_WIDEN_AUTO = 0, MLA_WIDEN_ON = 1, MLA_WIDEN_OFF = 2 };
extern const attn_option_spec_t mla_options[MLA_NUM_DENSE_OPTIONS];
extern const attn_option_spec_t mla_sparse_options[MLA_NUM_SPARSE_OPTIONS];

int mla_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons);
/* What every backend of latent attention refuses, beside its own limits of rank, rope and device. */
void mla_check_problem(const attn_problem_t *p, attn_reasons_t *reasons);
/* open of the ABI, of a backend that outlives the instance. */
int mla_open(const mla_backend *backend, const attn_problem_t *problem, const attn_device_t *device,
             const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
             attn_instance_t **instance, attn_error_t *error);
void mla_close(attn_instance_t *instance);
int mla_kv_cache_shape(attn_instance_t *in, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                       attn_error_t *error);
int mla_space_needed(attn_instance_t *in, attn_space_needed_t *needed, attn_error_t *error);
int mla_build_metadata(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                       void *stream, attn_error_t *error);
int mla_update_block_table(attn_instance_t *in, const attn_batch_t *batch, const attn_space_t *space,
                           void *stream, attn_error_t *error);
int mla_update_kv_cache(attn_instance_t *in, const attn_kv_update_t *args, void *stream, attn_error_t *error);
int mla_prepare_weights(attn_instance_t *in, const attn_weights_t *weights, void *stream,
                        attn_error_t *error);
int mla_forward(attn_instance_t *in, const attn_forward_t *args, const attn_space_t *space, void *stream,
                attn_error_t *error);

/* Checks of the tensors of a call. */
int mla_check_scale(const DLTensor *t, const char *name, attn_error_t *error);
int mla_check_cache(const attn_instance_t *in, const DLTensor *kv_cache, const DLTensor *v_cache,
                    attn_error_t *error);

/* Quantised outputs, mla_output.c. The view is the 16-bit output in the workspace; finish quantises its
 * rows. */
int mla_output_is_quantised(const attn_instance_t *in);
int mla_check_output(const attn_instance_t *in, const attn_forward_t *a, int64_t tokens, attn_error_t *error);
void mla_output_begin(const attn_instance_t *in, const attn_space_t *s, gpu_output_view *view);
int mla_output_finish(const attn_instance_t *in, const attn_forward_t *a, const gpu_output_view *view,
                      int64_t tokens, const mla_counts *counts, void *stream);

/* Where the kernels find the absorbed queries of tokens token0 .. token0 + tokens that come from the caller,
 * and leave their latents: in the caller's tensors, or in the workspace beside a copy. A cudaError_t as
 * int. */
int mla_latent_begin(const attn_instance_t *in, const attn_forward_t *a, const attn_space_t *s,
                     int32_t token0, int32_t tokens, mla_attend_params *p, void *stream);
int mla_latent_end(const attn_instance_t *in, const attn_forward_t *a, int32_t token0, int32_t tokens,
                   const mla_attend_params *p, void *stream);

/* A projection by cuBLAS where that is there, serves it and is the faster one; else by our kernel. A
 * cudaError_t as int. */
int mla_multiply(const attn_instance_t *in, mla_product product, const mla_project_params *params,
                 void *stream);
int mla_attend(const attn_instance_t *in, const mla_attend_params *params, int num_items, void *stream);
/* Fills in->config; asks the device how many clusters it runs at once. */
int mla_choose_kernel(attn_instance_t *in, attn_error_t *error);
/* The kernel that attends, loaded once, before any capture. A cudaError_t as int. */
int mla_load_kernel(attn_instance_t *in);
/* The pieces that mla_attend left of a slice. A cudaError_t as int. */
int mla_merge_pieces(const attn_instance_t *in, const mla_attend_params *params, int num_splits,
                     void *stream);

#endif
