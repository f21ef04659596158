/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_plugin.h: the contract between libattn and an attention backend. A plugin is one shared object that
 * exports one constant, ATTN_PLUGIN_SYMBOL, and links to nothing of libattn:
 *
 *     static const attn_backend_t my_backend = { ... };
 *     static const attn_backend_t *const my_backends[] = { &my_backend };
 *     ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {
 *         ATTN_PLUGIN_MAGIC, sizeof(attn_plugin_t), ATTN_ABI_MAJOR, ATTN_ABI_MINOR, .name = "my_plugin", ...
 *         .num_backends = 1, .backends = my_backends };
 *
 * It is data: the host negotiates alone. It reads only within struct_size, and an operation exists iff the
 * ops table is long enough and the pointer is not NULL; a version number is never a presence test. The ABI
 * major must be the host's, any minor serves.
 *
 * WHAT A PLUGIN MAY NOT DO
 *  - read the environment, print, install signal or exit handlers, change MXCSR, locale, the settings of an
 *    OpenMP runtime or the current CUDA device of the calling thread (restore them, on refusals too), spawn
 *    threads that outlive a call (pools of an OpenMP runtime excepted), log a line in every step;
 *  - take stack that grows with lengths, or more than 512 KiB of it, in the calls of a step;
 *  - let a C++ exception out, keep pointers of a call after it returned, or keep state outside the instance;
 *  - allocate or synchronise in build_metadata, update_kv_cache or forward;
 *  - read cache tokens at or beyond seq_len (the tail of a page may hold NaN), or write outside its outputs.
 *
 * WHAT IT MAY COUNT ON
 *  - the core checked the problem against the capability table, and every struct for unknown tails and
 *    feature bits;
 *  - an instance is used by one thread at a time; tables by any number;
 *  - all pointers in a call stay valid until the call returned, device buffers until the stream passed the
 *    work.
 *
 * NUMBERS: doc/semantics.md (installed in share/doc/libattn) says what exactly is computed; "semantics n.m"
 * is a section of it. In short: softmax and accumulation in at least float32; LSE is the natural logarithm
 * and includes the sink; a row with no visible key gives output 0 and LSE -inf (the sink, where one is
 * given); NaN inputs of a request may only reach that request's outputs.
 *
 * HISTORY OF THE MINORS: doc/ABI.md.
 */
#ifndef ATTN_PLUGIN_H
#define ATTN_PLUGIN_H

#include <attn/attn_types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_PLUGIN_MAGIC UINT64_C(0x3167756c506e7441) /* "AtnPlug1" in memory, little endian */
#define ATTN_PLUGIN_SYMBOL attn_plugin_v1
#define ATTN_PLUGIN_SYMBOL_NAME "attn_plugin_v1"

#ifdef __cplusplus
#define ATTN_PLUGIN_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define ATTN_PLUGIN_EXPORT __attribute__((visibility("default")))
#endif

/* --------------------------------------------------------------------- host */

enum { ATTN_LOG_ERROR = 1, ATTN_LOG_WARN = 2, ATTN_LOG_INFO = 3, ATTN_LOG_DEBUG = 4 };

/* What the host offers to an instance; valid from open until close returned. */
typedef struct attn_host {
    uint32_t struct_size;
    uint32_t reserved0;
    void *ctx;
    /* One line of text without newline; the host decides where it goes. [any thread] */
    void (*log)(void *ctx, uint32_t level, const char *text);
    /* A host extension by id, or NULL: "attn.ext.NAME/N" are frozen, "attn.draft.NAME/N" may change. [any
     * thread] */
    const void *(*get_extension)(void *ctx, const char *id);
    uint64_t reserved[4];
} attn_host_t;

/* ------------------------------------------------------------------ options */

enum {
    ATTN_OPTION_INT = 1,
    ATTN_OPTION_BOOL = 2,
    ATTN_OPTION_DOUBLE = 3,
    ATTN_OPTION_STRING = 4,
    ATTN_OPTION_ENUM = 5
};

/* One option of [option PLUGIN] in the INI file. The host parses, checks and prints options from this
 * table. */
typedef struct attn_option_spec {
    uint32_t struct_size;
    uint32_t type; /* ATTN_OPTION_* */
    const char *name;
    const char *doc;           /* one sentence */
    const char *default_value; /* as text, never NULL */
    const char *choices;       /* ENUM: names separated by one space; else NULL */
    int64_t min_int, max_int;  /* INT: inclusive bounds; both 0: none */
    double min_double, max_double; /* DOUBLE: likewise */
} attn_option_spec_t;

/* The value of one option; open gets an array of them, in the order of the specs, which plugins index: the
 * struct does not grow in ABI 1. Strings are borrowed during open. */
typedef struct attn_option_value {
    uint32_t struct_size;
    uint32_t type;
    const char *name;
    int64_t i;     /* INT, BOOL (0 or 1), ENUM (index into choices) */
    double d;      /* DOUBLE */
    const char *s; /* every type: the text */
} attn_option_value_t;

/* ------------------------------------------------------------- capabilities */

/* An inclusive range of integers with a step: min, min + step, .., max. A list of fixed sizes is a list of
 * ranges with min = max. step 0 reads as 1. */
typedef struct attn_range {
    uint32_t min, max, step;
} attn_range_t;

/* One kernel block size: exactly `size`, or every multiple of it. */
typedef struct attn_block_size {
    uint32_t size;
    uint32_t is_multiple; /* 1: every multiple of size */
} attn_block_size_t;

/* How much of a batch may be captured into a graph (semantics 6.2). */
enum {
    ATTN_GRAPH_NEVER = 1,
    ATTN_GRAPH_UNIFORM_SINGLE_TOKEN_DECODE = 2,
    ATTN_GRAPH_UNIFORM_BATCH = 3,
    ATTN_GRAPH_ALWAYS = 4
};

/* Query lengths that the decode part takes (semantics 1.4). */
enum { ATTN_QUERY_LEN_SINGLE_ONLY = 1, ATTN_QUERY_LEN_UNIFORM = 2, ATTN_QUERY_LEN_VARLEN = 3 };

/* Everything that the attn_backend_supports_* queries answer from; pure data, valid without a device. An
 * empty list (count 0) means: nothing, except where said. Must be truthful: what it advertises opens and
 * runs, what it does not is refused by parameter name. */
typedef struct attn_capabilities {
    uint32_t struct_size;
    uint32_t graph_support;     /* ATTN_GRAPH_* */
    uint64_t roles;             /* ATTN_BIT(ATTN_ROLE_*) */
    uint64_t dtypes;            /* ATTN_BIT(ATTN_DTYPE_*) of Q, K, V */
    uint64_t out_dtypes;        /* beyond out_dtype == dtype */
    uint64_t kv_cache_dtypes;   /* ATTN_BIT(ATTN_KV_*) */
    uint64_t features;          /* ATTN_F_* */
    uint64_t device_types;      /* ATTN_BIT(DLDeviceType) */
    const attn_range_t *head_sizes; /* of D; empty: any */
    uint32_t num_head_sizes;
    uint32_t num_head_sizes_v;
    const attn_range_t *head_sizes_v; /* of Dv where it differs (ATTN_F_DIFF_KV); empty: as head_sizes */
    const attn_block_size_t *block_sizes; /* empty: any */
    uint32_t num_block_sizes;
    uint32_t num_compute_capabilities;
    const attn_range_t *compute_capabilities; /* major * 10 + minor; empty: any */
    uint32_t preferred_block_size; /* 0: 16 if supported, else the smallest listed */
    uint32_t required_layout;      /* ATTN_LAYOUT_*; 0: any */
    /* query tokens up to which a request counts as decode; 0: no reordering wanted */
    uint32_t reorder_threshold;
    uint32_t query_len_support;    /* ATTN_QUERY_LEN_*; 0: VARLEN */
    uint32_t forward_writes_cache; /* 1: forward performs update_kv_cache itself */
    uint32_t max_group;            /* largest Hq / Hkv; 0: any */
    uint32_t spec_as_decode;       /* 1: speculative verification may be treated as decode */
    uint32_t reserved0;
    uint64_t reserved[4];
} attn_capabilities_t;

/* --------------------------------------------------------------- operations */

typedef struct attn_instance attn_instance_t; /* the plugin's own */

/* All return ATTN_OK or ATTN_E_*, and fill *error (which may be NULL) on failure. `stream` is the device's
 * stream handle (cudaStream_t as void *, NULL: the default stream; ignored on CPUs). */
typedef struct attn_backend_ops {
    uint32_t struct_size;
    uint32_t reserved0;

    /* What the table cannot say: appends reasons; none means yes. Optional. [any thread] [pure] [no alloc] */
    int (*supports_combination)(const attn_problem_t *problem, const attn_device_t *device,
                                attn_reasons_t *reasons);

    /* Makes an instance for one problem on one present device. Everything slow or allocating happens here,
     * run-time compilation too. options has one value per option spec. *instance is written on success only.
     * [any thread] */
    int (*open)(const attn_problem_t *problem, const attn_device_t *device,
                const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                attn_instance_t **instance, attn_error_t *error);
    /* Frees it; the device must have finished its work. NULL is allowed. [instance] */
    void (*close)(attn_instance_t *instance);

    /* Shape of the cache for num_blocks blocks (0: as the problem says). Roles without a cache: ndim 0.
     * [instance] [pure] */
    int (*kv_cache_shape)(attn_instance_t *instance, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                          attn_error_t *error);

    /* Exact for the limits in the problem: a batch within them never needs more. [instance] [pure] */
    int (*space_needed)(attn_instance_t *instance, attn_space_needed_t *needed, attn_error_t *error);

    /* Writes space->metadata and space->host for this batch. Rebuilding in place between graph replays is
     * allowed as soon as the stream passed the previous copy out of space->host. [instance] [no alloc] [no
     * sync] */
    int (*build_metadata)(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                          void *stream, attn_error_t *error);
    /* Replaces block table and slot mapping of built metadata, for groups that differ only in tables.
     * Optional. [as above] */
    int (*update_block_table)(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                              void *stream, attn_error_t *error);

    /* Scatter and quantise. NULL for roles without a cache. [instance] [no alloc] [no sync] [capture-safe] */
    int (*update_kv_cache)(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                           attn_error_t *error);

    /* One attention call with the metadata in space. The tensors of the batch (block table, lengths) that
     * metadata refers to must still be valid. space NULL: the profiling run, fill output with zero and do
     * nothing else. Instances opened for equal problems and options may use each other's metadata. [instance]
     * [no alloc] [no sync] [capture-safe] if ATTN_F_CAPTURE */
    int (*forward)(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                   void *stream, attn_error_t *error);

    /* MLA: makes W_UK_T and W_UV of one layer after its weights were loaded. Optional. [instance] */
    int (*prepare_weights)(attn_instance_t *instance, const attn_weights_t *weights, void *stream,
                           attn_error_t *error);

    /* A backend extension by id, or NULL. instance may be NULL. Optional. [any thread] */
    const void *(*get_extension)(attn_instance_t *instance, const char *id);
} attn_backend_ops_t;

/* One backend of a plugin. */
typedef struct attn_backend {
    uint32_t struct_size;
    uint32_t flags;   /* 0 */
    const char *name; /* registry name in capitals: FLASH_ATTN, CPU_ATTN; unique among loaded plugins */
    const char *doc;  /* one sentence */
    const attn_capabilities_t *capabilities;
    const attn_backend_ops_t *ops;
    uint64_t reserved[4];
} attn_backend_t;

/* The exported object. The first four members never move in any ABI. */
typedef struct attn_plugin {
    uint64_t magic;       /* ATTN_PLUGIN_MAGIC */
    uint32_t struct_size; /* sizeof(attn_plugin_t) */
    uint32_t abi_major;
    uint32_t abi_minor;
    uint32_t flags;       /* 0 */
    const char *name;     /* of the plugin: flash, cpu; letters, digits, '_' */
    const char *version;
    const char *vendor;
    const char *license;  /* SPDX */
    const char *build_id; /* free text: commit, compiler; may be "" */
    uint32_t num_backends;
    uint32_t num_options;
    const attn_backend_t *const *backends;
    /* [option NAME] of the INI file; element size is options[0].struct_size */
    const attn_option_spec_t *options;
    uint64_t reserved[4];
} attn_plugin_t;

#ifdef __cplusplus
}
#endif
#endif
