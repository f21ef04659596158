/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn.h: libattn for engines. Five steps:
 *
 *   1. attn_context_create            read the configuration, load the plugins
 *   2. attn_group_open                describe a layer (attn_problem_t); a backend is selected and opened.
 *      attn_layer_create              one per layer of the model, named as in the checkpoint
 *   3. attn_group_kv_cache_shape      allocate the cache; attn_group_space_needed: allocate the buffers
 *   4. attn_group_build_metadata      once per step and group
 *   5. attn_layer_update_kv_cache,    once per step and layer
 *      attn_layer_forward
 *
 * OWNERSHIP: the engine owns every tensor and buffer; the library owns what its create and open calls return
 * until the matching destroy or close. Device memory is never allocated by the library.
 * THREADS: a context is immutable after creation and may be used from every thread. A group and its layers
 * are used by one thread at a time; different groups are independent. Marks in brackets: see attn_types.h;
 * [instance] means the group, or the layer's group.
 * FORK: contexts, groups and layers belong to the process that made them; calls in a child fail with
 * ATTN_E_FORKED. A child may destroy them in any order: groups and layers, and a context that has groups, are
 * left as they are.
 * ERRORS: calls return ATTN_OK or a negative ATTN_E_* and fill *error if one is given. Outputs are written on
 * success only.
 * SIGNALS, ENVIRONMENT, OUTPUT: the library installs no handler, reads only $ATTN_CONFIG (not in setuid
 * programs), and prints nothing: messages go to the log callback of the context.
 *
 * CAVEATS
 *  - Softmax scale and mask kind must be given: 0 is refused, not guessed.
 *  - An explicitly requested backend is used or is an error with every reason; there is no silent fallback.
 *  - Cache tokens beyond seq_len may hold anything, NaN included; they are never read.
 *
 * "semantics n.m" is a section of doc/semantics.md (installed in share/doc/libattn): what exactly is
 * computed.
 */
#ifndef ATTN_H
#define ATTN_H

#include <attn/attn_plan.h>
#include <attn/attn_plugin.h>
#include <attn/attn_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the library that is running, "0.1.0". [any thread] */
const char *attn_version(void);
/* "ATTN_E_INVALID" and the like; "unknown" for other numbers. [any thread] */
const char *attn_error_name(int code);
/* "HEAD_SIZE" and the like, of ATTN_REASON_*; "unknown" for other numbers. [any thread] */
const char *attn_reason_name(int code);

/* ------------------------------------------------------------------ context */

typedef struct attn_context attn_context_t;

typedef struct attn_context_options {
    uint32_t struct_size;
    uint32_t flags;          /* ATTN_CONTEXT_* */
    const char *config_text; /* INI text, strongest of all sources; NULL: none */
    const char *config_file; /* INI file, read after the system's files; NULL: $ATTN_CONFIG if set */
    const char *plugin_dir;  /* absolute; NULL: as configured */
    void (*log)(void *ctx, uint32_t level, const char *text); /* NULL: text is dropped */
    void *log_ctx;
    uint32_t log_level; /* ATTN_LOG_*; 0: as configured, else warn */
    uint32_t reserved0;
    uint64_t reserved[4];
} attn_context_options_t;

#define ATTN_CONTEXT_NO_SYSTEM_CONFIG (UINT32_C(1) << 0) /* ignore sysconfdir and $ATTN_CONFIG */
#define ATTN_CONTEXT_NO_PLUGINS       (UINT32_C(1) << 1) /* read the configuration, load nothing */

/* Reads the configuration and loads the plugins it names. A plugin that does not load is listed with its
 * reason and is an error only if it is `required`. options NULL: all defaults. [any thread] */
int attn_context_create(const attn_context_options_t *options, attn_context_t **context, attn_error_t *error);
/* Frees a context. All groups must be closed: with an open one it logs an error and leaves the context. NULL
 * is allowed. Plugins stay mapped until the process ends. [one thread, after every other call] */
void attn_context_destroy(attn_context_t *context);

/* One effective configuration value and where it came from. Strings live as long as the context. */
typedef struct attn_config_value {
    uint32_t struct_size;
    int32_t line;        /* 0: not from a file */
    const char *section; /* "attn", "select decoder sm_90", "plugin flash", "option cpu" */
    const char *key;
    const char *value;
    const char *source; /* path, "default", "environment", "api" */
} attn_config_value_t;
/* Effective value number index, by section in file order; ATTN_E_NOT_FOUND past the end. [any thread] */
int attn_context_config(const attn_context_t *context, uint32_t index, attn_config_value_t *value);

/* One plugin that the configuration names, loaded or refused. Strings live as long as the context. */
typedef struct attn_plugin_info {
    uint32_t struct_size;
    int32_t status; /* ATTN_OK or why it was refused, ATTN_E_* */
    const char *name;
    const char *path;    /* absolute, "" if none was found */
    const char *version; /* "" unless loaded; likewise below */
    const char *vendor;
    const char *license;
    const char *build_id;
    /* what is wrong and what to do; "" if nothing is. With ATTN_OK: its file was replaced since */
    const char *reason;
    const attn_plugin_t *plugin; /* NULL unless loaded */
} attn_plugin_info_t;
/* Plugin number index, in the order of the configuration; ATTN_E_NOT_FOUND past the end. [any thread] */
int attn_context_plugin(const attn_context_t *context, uint32_t index, attn_plugin_info_t *info);

/* Backends of the loaded plugins, in load order; NULL past the end. Owned by the context. [any thread] */
const attn_backend_t *attn_context_backend(const attn_context_t *context, uint32_t index);
/* A backend by name, case-insensitive; NULL and an error with the nearest name if there is none.
 * [any thread] */
const attn_backend_t *attn_context_find_backend(const attn_context_t *context, const char *name,
                                                attn_error_t *error);

/* ------------------------------------------------------------------ devices */

/* A device by text: "cpu", "cuda:0" (present), "NAME:N" of a kind that a plugin brought which this process
 * has loaded (draft/attn_device.h), "sm_90" (hypothetical). NULL: cuda:0 if there is one, else cpu.
 * [any thread] */
int attn_device_parse(const char *text, attn_device_t *device, attn_error_t *error);

/* ------------------------------------------------------ capability queries */
/* Answered from the backend's table, no device needed: 1 yes, 0 no. What a table cannot say is left to
 * attn_backend_validate. (semantics 4.2) All of them: [any thread] [pure] */
/* Head sizes of Q and K; of latent attention, of a cache row. */
int attn_backend_supports_head_size(const attn_backend_t *backend, uint32_t head_size);
/* ATTN_DTYPE_* of Q, K and V. */
int attn_backend_supports_dtype(const attn_backend_t *backend, uint32_t dtype);
/* ATTN_KV_*; 0 passes. */
int attn_backend_supports_kv_cache_dtype(const attn_backend_t *backend, uint32_t kv_cache_dtype);
/* Tokens of a cache block; 0 passes. */
int attn_backend_supports_block_size(const attn_backend_t *backend, uint32_t block_size);
/* ATTN_ROLE_*. */
int attn_backend_supports_attn_type(const attn_backend_t *backend, uint32_t role);
/* ATTN_F_*: all bits of `feature`. The functions below ask for one feature by name. */
int attn_backend_supports_feature(const attn_backend_t *backend, uint64_t feature);
/* ATTN_F_SINK: a learned logit per query head. */
int attn_backend_supports_sink(const attn_backend_t *backend);
/* ATTN_F_ALIBI_SQRT: ALiBi on the root of the distance. */
int attn_backend_supports_alibi_sqrt(const attn_backend_t *backend);
/* ATTN_F_MM_PREFIX: bidirectional spans. */
int attn_backend_supports_mm_prefix(const attn_backend_t *backend);
/* ATTN_F_PER_HEAD_SCALES: static scales for each KV head. */
int attn_backend_supports_per_head_quant_scales(const attn_backend_t *backend);
/* ATTN_F_SLIDING_WINDOW. */
int attn_backend_supports_sliding_window(const attn_backend_t *backend);
/* ATTN_F_NON_CAUSAL: cached attention without the causal mask. */
int attn_backend_supports_non_causal(const attn_backend_t *backend);
/* ATTN_F_BATCH_INVARIANT: a request's bits do not depend on the others of its batch. */
int attn_backend_supports_batch_invariance(const attn_backend_t *backend);
/* ATTN_F_KV_CONNECTOR: the cache may be filled by someone else. */
int attn_backend_supports_kv_connector(const attn_backend_t *backend);
/* It can serve a rank's share of the tokens (semantics 8.5), itself or with the core around it. */
int attn_backend_supports_dcp(const attn_backend_t *backend);
/* A number such as 90 for sm_90. */
int attn_backend_supports_compute_capability(const attn_backend_t *backend, int32_t compute_capability);
/* A DLDeviceType. */
int attn_backend_supports_device_type(const attn_backend_t *backend, int32_t device_type);
/* ATTN_F_LSE: returns the natural log-sum-exp. */
int attn_backend_supports_lse(const attn_backend_t *backend);
/* ATTN_F_CASCADE: a prefix that all requests share is attended to once. */
int attn_backend_supports_cascade(const attn_backend_t *backend);
/* ATTN_F_QUANT_QUERY: queries of e4m3. */
int attn_backend_supports_quant_query_input(const attn_backend_t *backend);
/* The operation update_block_table is there. */
int attn_backend_supports_update_block_table(const attn_backend_t *backend);
/* Role mla or mla_sparse. */
int attn_backend_is_mla(const attn_backend_t *backend);
/* Role mla_sparse. */
int attn_backend_is_sparse(const attn_backend_t *backend);
/* forward writes the step's K and V: update_kv_cache is not called. */
int attn_backend_forward_includes_kv_cache_update(const attn_backend_t *backend);
/* ATTN_F_BLOCK_STRIDE: takes blocks further apart than a page. */
int attn_backend_indexes_kv_by_block_stride(const attn_backend_t *backend);
/* ATTN_LAYOUT_* that its cache must have; 0: any. */
uint32_t attn_backend_required_kv_layout(const attn_backend_t *backend);
/* ATTN_GRAPH_*: which batches may be captured. */
uint32_t attn_backend_graph_support(const attn_backend_t *backend);
/* The longest query that counts as decode when a batch is reordered; 0: no order is needed. */
uint32_t attn_backend_reorder_threshold(const attn_backend_t *backend);
/* ATTN_QUERY_LEN_* of the decode part. */
uint32_t attn_backend_query_len_support(const attn_backend_t *backend);
/* Tokens of a cache block to take where the caller does not mind: default_size, or what suits better. */
uint32_t attn_backend_preferred_block_size(const attn_backend_t *backend, uint32_t default_size);

/* ------------------------------------------------------------------ problem */

/* Checks a problem by itself: every member in range and consistent. [any thread] [pure] */
int attn_problem_check(const attn_problem_t *problem, attn_error_t *error);
/* Canonical text, one line of key=value words in a fixed order, members that are zero left out:
 * "role=decoder mask=causal dtype=bfloat16 num_heads=32 .. scale=0.088388347648318447". parse(format(p)) == p
 * exactly. Returns the length without the terminator (as snprintf), or a negative code. [any thread]
 * [pure] */
int attn_problem_format(const attn_problem_t *problem, char *text, size_t size);
/* The problem of a canonical text; ATTN_E_PARSE names the word that is wrong. [any thread] [pure] */
int attn_problem_parse(const char *text, attn_problem_t *problem, attn_error_t *error);
/* All reasons why a backend does not serve a problem on a device, in the order of semantics 4.3; ATTN_OK and
 * reasons->count 0: it does. device NULL: device questions are skipped. [any thread] [pure] */
int attn_backend_validate(const attn_backend_t *backend, const attn_problem_t *problem,
                          const attn_device_t *device, attn_reasons_t *reasons, attn_error_t *error);

/* ---------------------------------------------------------------- selection */

typedef struct attn_candidate {
    uint32_t struct_size;
    int32_t rank;      /* place in the priority list, from 0 */
    int32_t is_chosen; /* 1: this one */
    int32_t is_valid;
    const char *backend; /* name */
    const char *plugin;  /* "" if no loaded plugin has it */
    uint32_t num_reasons;
    uint32_t reserved0;
    const attn_reason_t *reasons;
} attn_candidate_t;

/* The record of one decision; shared by the API, the log and `attn select`. Owned by the caller through
 * attn_selection_free; made also when nothing was found. */
typedef struct attn_selection {
    uint32_t struct_size;
    uint32_t num_candidates;
    const attn_candidate_t *candidates; /* in priority order */
    const attn_backend_t *backend;      /* NULL: none serves the problem */
    const char *plugin;
    const char *rule;    /* "explicit" or "priority" */
    const char *source;  /* where the rule came from: "default", "/etc/attn/attn.ini:12", "api" */
    const char *warning; /* "" or e.g. the better backends that only the block size ruled out */
    uint32_t block_size; /* of the problem, or the chosen backend's preference */
    uint32_t reserved0;
} attn_selection_t;

/* Selects (semantics 5.2). backend: an explicit request by name ("auto" and NULL: none). On
 * ATTN_E_UNSUPPORTED and ATTN_E_NOT_FOUND *selection is still made and holds every reason. [any thread] */
int attn_select(const attn_context_t *context, const attn_problem_t *problem, const attn_device_t *device,
                const char *backend, attn_selection_t **selection, attn_error_t *error);
/* Frees a record. NULL is allowed. [any thread] */
void attn_selection_free(attn_selection_t *selection);

/* ------------------------------------------------------------------- groups */

/* A group: one problem opened on one backend and device. Layers that share problem, backend and device share
 * a group, its cache shape and its metadata. */
typedef struct attn_group attn_group_t;

/* Selects and opens; may be slow and may allocate. device NULL: as attn_device_parse; backend: as
 * attn_select. selection may be NULL; else *selection receives the record, also on failure, for
 * attn_selection_free. ATTN_E_UNSUPPORTED: the record has every reason. [any thread] */
int attn_group_open(attn_context_t *context, const attn_problem_t *problem, const attn_device_t *device,
                    const char *backend, attn_group_t **group, attn_selection_t **selection,
                    attn_error_t *error);
/* Closes a group. Its layers must be destroyed first: with one left it logs an error and leaves the group.
 * NULL is allowed. [instance] */
void attn_group_close(attn_group_t *group);

/* The backend that serves the group; of two (phases, below) that of decode. Owned by the context.
 * [any thread] */
const attn_backend_t *attn_group_backend(const attn_group_t *group);
/* The problem as opened: every default filled in (block size, limits, cache dtype; sparse MLA with fp8 says
 * fp8_ds_mla where the backend keeps its rows so). Owned by the group. [any thread] */
const attn_problem_t *attn_group_problem(const attn_group_t *group);
/* The KV cache of one layer with num_blocks pages (0: as many as the problem says): dims, byte strides, page
 * bytes. Roles without a cache give an empty shape. shape->struct_size is the caller's. [any thread]
 * [pure] */
int attn_group_kv_cache_shape(attn_group_t *group, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                              attn_error_t *error);
/* The group's cache as a spec, for attn_kv_spec_* of attn_plan.h. [any thread] [pure] */
int attn_group_kv_spec(attn_group_t *group, attn_kv_spec_t *spec, attn_error_t *error);
/* Bytes of metadata, workspace and pinned host memory that the calls of this group need, exact for the
 * problem's limits. [any thread] [pure] */
int attn_group_space_needed(attn_group_t *group, attn_space_needed_t *needed, attn_error_t *error);

/* Checks the batch (as attn_plan_check_batch) and lets the backend plan it into *space. Wrapping layer
 * families (cross, chunked local, static sink) are rewritten here as semantics 6.8 says. [instance] [no
 * alloc] [no sync] */
int attn_group_build_metadata(attn_group_t *group, const attn_batch_t *batch, const attn_space_t *space,
                              void *stream, attn_error_t *error);
/* New block table and slot mapping in built metadata. The batch is the one that was built but for these two:
 * other requests, lengths or masks are ATTN_E_STATE. Metadata that this kind of group did not build last is
 * built anew. [instance] [no alloc] [no sync] */
int attn_group_update_block_table(attn_group_t *group, const attn_batch_t *batch, const attn_space_t *space,
                                  void *stream, attn_error_t *error);
/* The extension of attn_group_backend by id ("attn.ext.NAME/N"), or NULL. [any thread] */
const void *attn_group_get_extension(attn_group_t *group, const char *id);

/* ------------------------------------------------------------------- layers */

/* The layer families (semantics 7); which one a layer is follows from its group's problem. */
enum {
    ATTN_LAYER_ATTENTION = 1,
    ATTN_LAYER_CROSS = 2,
    ATTN_LAYER_ENCODER_ONLY = 3,
    ATTN_LAYER_CHUNKED_LOCAL = 4,
    ATTN_LAYER_STATIC_SINK = 5,
    ATTN_LAYER_MLA = 6,
    ATTN_LAYER_MM_ENCODER = 7
};

typedef struct attn_layer attn_layer_t;

typedef struct attn_layer_options {
    uint32_t struct_size;
    /* 1: k and v scales from the first call (semantics 3.3), from every row that it counts, rows of slot -1
     * too. What it measures is written into `scales`, tensors of one element, where they are given; on a
     * device they must be, and that call waits for the stream and takes host memory for a moment, so it
     * cannot be captured. */
    uint32_t calculate_kv_scales;
    const char *kv_sharing_target; /* name of an earlier layer whose cache this one reads; NULL: own cache */
    /* Checkpoint scales as loaded; 0: absent. Resolved by the rules of semantics 3.3 */
    float q_scale, k_scale, v_scale;
    uint32_t reserved0;
    const DLTensor *sinks;        /* float32 [Hq], kept by reference: must outlive the layer */
    const DLTensor *alibi_slopes; /* float32 [Hq], likewise */
    /* Static sink tokens [sink_len, Hkv, D], model dtype, likewise. forward writes them into blocks 1 ..
     * sink_len / bs of a cache that it has not seen and with every batch that begins a request or is built
     * for capture: so a cache may be cleared in place, as long as the requests in it begin anew. With
     * ATTN_F_KV_CONNECTOR every forward writes them. */
    const DLTensor *sink_key;
    const DLTensor *sink_value; /* [sink_len, Hkv, Dv] */
    /* tensors where the layer runs that replace the loaded numbers, kept by reference likewise */
    attn_scales_t scales;
    const DLTensor *rel_bias; /* float32 [Hq, 2 m + 1], kept by reference as sinks are (semantics 2.15) */
    uint64_t reserved[4];
} attn_layer_options_t;

/* Creates a layer. The name ("model.layers.3.self_attn.attn") is unique in the context: a second one is
 * ATTN_E_EXISTS. options NULL: none. [instance] */
int attn_layer_create(attn_group_t *group, const char *name, const attn_layer_options_t *options,
                      attn_layer_t **layer, attn_error_t *error);
/* Destroys a layer; its name is free again. NULL is allowed. [instance] */
void attn_layer_destroy(attn_layer_t *layer);
/* A layer by name, or NULL. [any thread] */
attn_layer_t *attn_context_find_layer(attn_context_t *context, const char *name);

/* The family of a layer, ATTN_LAYER_*. [any thread] */
uint32_t attn_layer_kind(const attn_layer_t *layer);
/* "ChunkedLocalAttention" and the like; "unknown" for other numbers. [any thread] */
const char *attn_layer_kind_name(uint32_t kind);
/* The name given at creation; lives as long as the layer. [any thread] */
const char *attn_layer_name(const attn_layer_t *layer);
/* The group that the layer was created in. [any thread] */
attn_group_t *attn_layer_group(const attn_layer_t *layer);
/* The layer whose cache this one reads, by name; NULL: its own. [any thread] */
const char *attn_layer_kv_sharing_target(const attn_layer_t *layer);
/* The single integer component of a dotted layer name: "model.layers.3.attn" is 3; an error if there is not
 * exactly one. [any thread] [pure] */
int attn_layer_index(const char *name, int32_t *index, attn_error_t *error);
/* The scales in use after loading rules and dynamic calculation; host floats, 1.0 by default. Any pointer may
 * be NULL. [instance] */
int attn_layer_scales(const attn_layer_t *layer, float *q, float *k, float *v);

/* The cache dtype of one layer: `kv_cache_dtype`, or auto if a rule of the list skips it (semantics 3.3): the
 * word "sliding_window" or the layer's index in decimal. [any thread] [pure] */
int attn_layer_resolve_kv_cache_dtype(const char *name, uint32_t kv_cache_dtype, int has_sliding_window,
                                      const char *const *skip, uint32_t num_skip, uint32_t *resolved,
                                      attn_error_t *error);

/* Writes this step's K and V; or attn_layer_forward does, with ATTN_F_WRITE_IN_FORWARD and its slot_mapping.
 * A layer that shares another's cache, and roles without a cache, do nothing.
 * args->scales may be empty: the layer's are used. [instance] [no alloc] [no sync] [capture-safe] */
int attn_layer_update_kv_cache(attn_layer_t *layer, const attn_kv_update_t *args, void *stream,
                               attn_error_t *error);
/* MLA: call once after loading. Encoders with ATTN_F_FP8_ATTENTION and no scales: gives the layer the device
 * memory (attn_group_space_needed.weight_bytes) where its history of magnitudes is kept; weights->kv_b_proj
 * is NULL. [instance] */
int attn_layer_prepare_weights(attn_layer_t *layer, const attn_weights_t *weights, void *stream,
                               attn_error_t *error);
/* Attention with the metadata in space; space NULL: profiling run, output becomes zero. Scales, sinks and
 * slopes not given in args come from the layer. Metadata that a group of another problem or of other options
 * built is ATTN_E_STATE. [instance] [no alloc] [no sync] [capture-safe]
 * One exception: with [mm_encoder] fp8_scale_save_path the 16th call of the first layer with dynamic scales
 * waits for the stream and writes the file, once for a context. Such layers are refused in a batch built with
 * ATTN_BATCH_CAPTURE. */
int attn_layer_forward(attn_layer_t *layer, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error);

/* -------------------------------------------------------- multimodal encoders
 * A batch of role mm_encoder is cu_seqlens as query_start_loc: images, or the windows of a layer.
 * ATTN_F_FP8_ATTENTION, by the problem or by [mm_encoder] attn_dtype = fp8 of the configuration, quantises Q,
 * K and V (attn_fp8_state_t). Static scales: q_scale, k_scale, v_scale or the tensors of attn_layer_options_t
 * (on the device, or host numbers), or the entry of the layer's name in [mm_encoder] fp8_scale_path; with
 * none of these they are dynamic. */

/* Lengths and batches rounded up, so that an engine needs few captured graphs (semantics 7.6). Nothing is
 * compiled or sized anew when lengths change. */

/* The largest difference of neighbours of cu_seqlens [num_entries]; 0 below 2 entries. [any thread] [pure] */
int32_t attn_mm_max_seqlen(const int32_t *cu_seqlens, int32_t num_entries);
/* The bucket of a length: 1024, 2048, .., 131072, then multiples of 131072. [any thread] [pure] */
int64_t attn_mm_seqlen_bucket(int64_t max_seqlen);
/* The bucket of a number of sequences: 8, 16, 32, 64, then multiples of 8. [any thread] [pure] */
int32_t attn_mm_batch_bucket(int32_t num_seqs);
/* padded [bucket + 1] = cu_seqlens [num_seqs + 1] and then its last value: empty sequences. bucket >=
 * num_seqs. [any thread] [pure] */
int attn_mm_pad_cu_seqlens(const int32_t *cu_seqlens, int32_t num_seqs, int32_t bucket, int32_t *padded,
                           attn_error_t *error);

/* ------------------------------------------------------------------- phases
 * The configuration may name one backend for batches that hold prefill and another for decode
 * (prefill_backend, decode_backend and their lists, semantics 5.8). Where both serve the problem and their
 * caches are the same, attn_group_open opens both: attn_group_backend is that of decode,
 * attn_group_space_needed has room for either, each batch goes to the backend of its phase and the layers
 * follow the metadata that they are given. Where not, one backend does both and the record's warning says
 * why; or it is an error, as for any backend that the configuration names. An engine that names a backend
 * itself gets that one alone. */
enum {
    ATTN_PHASE_DECODE = 1, /* no query longer than the decode backend's reorder threshold, at least 1 */
    ATTN_PHASE_PREFILL = 2
};

/* The backend that the configuration names for a phase, as far as tables say: whether caches agree is known
 * when a group is open. *selection NULL: none is named; without a backend: none of its list serves, and the
 * choice of attn_select does this phase too. Errors as those of attn_select. [any thread] */
int attn_select_phase(const attn_context_t *context, const attn_problem_t *problem,
                      const attn_device_t *device, uint32_t phase, attn_selection_t **selection,
                      attn_error_t *error);
/* The backend of a phase; the same for both unless the group has two. NULL for other phases. Owned by the
 * context. [any thread] */
const attn_backend_t *attn_group_phase_backend(const attn_group_t *group, uint32_t phase);
/* Which phase a batch is of: ATTN_PHASE_DECODE also with ATTN_BATCH_CAPTURE, whatever its lengths, so that a
 * graph's backend is the one whose graph_support the engine asked. 0: NULL, or not a batch. [any thread]
 * [pure] */
uint32_t attn_group_phase(const attn_group_t *group, const attn_batch_t *batch);

#ifdef __cplusplus
}
#endif
#endif
