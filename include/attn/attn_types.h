/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_types.h: the vocabulary that engines (attn.h) and plugins (attn_plugin.h) share: error codes, data
 * types, devices, the description of one attention layer (the problem), of one batch, and the arguments of
 * one call.
 *
 * "semantics n.m" is a section of doc/semantics.md (installed in share/doc/libattn): what exactly is
 * computed, stored and refused.
 *
 * RULES FOR EVERY STRUCT HERE
 *  - The first member is `uint32_t struct_size`: the caller writes sizeof(struct) of the header it was built
 *    with. Structs without it (attn_scales_t, attn_reason_t, attn_fp8_state_t; in other headers attn_range_t,
 *    attn_block_size_t, attn_split_t, attn_split3_t, attn_mla_context_t, attn_state_t) never grow.
 *  - Zero means "not given" or "as before", never a choice: start from `attn_problem_t p = {sizeof p};` or
 *    ATTN_INIT(attn_problem_t, p).
 *  - Structs grow only at the end. A reader takes members beyond struct_size as zero, and refuses a longer
 *    struct whose
 *    unknown tail is not all zero with ATTN_E_TOO_NEW: an ignored member is a wrong number in somebody's
 *    model.
 *  - Members named reserved* must be zero.
 *
 * TENSORS are borrowed `const DLTensor *` (DLPack). The address of element (i, j, ..) is
 * data + byte_offset + (i * strides[0] + j * strides[1] + ..) * element size. strides is never NULL here and
 * counts elements, as in DLPack; every product is 64-bit. 8-bit and 4-bit float element types use the DLPack
 * 1.1 type codes given below under our names, so that DLPack 0.6 headers serve. Quantised caches may be given
 * as 8-bit unsigned integers.
 *
 * MARKS at the end of a comment, in brackets: [any thread] callable from every thread at once; [instance] one
 * thread at a time per instance or layer; [pure] result depends on the arguments alone, no device work; [no
 * alloc] allocates neither host nor device memory; [no sync] never waits for the device; [capture-safe] may
 * be called while the stream records a graph.
 *
 * SYMBOLS in shapes: B requests, T query tokens of the batch, Hq query heads, Hkv key/value heads, D head
 * size of Q and K, Dv head size of V, bs tokens per cache block, nb cache blocks. MLA: N query heads, L
 * latent rank, R rope size, P nope size, V value size.
 */
#ifndef ATTN_TYPES_H
#define ATTN_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include <dlpack/dlpack.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_ABI_MAJOR 1 /* must match */
#define ATTN_ABI_MINOR 0 /* tells readers the age of a header; never asked by a program */

/* Declares and zeroes a struct of TYPE named NAME with its struct_size set. */
#define ATTN_INIT(TYPE, NAME)                                                                                \
    TYPE NAME;                                                                                               \
    (void)attn_zero(&(NAME), sizeof(NAME));                                                                  \
    (NAME).struct_size = (uint32_t)sizeof(NAME)

/* Fills n bytes with zero; ATTN_INIT's helper. */
static inline void *attn_zero(void *p, size_t n) {
    unsigned char *b = (unsigned char *)p;
    for (size_t i = 0; i < n; i++) b[i] = 0;
    return p;
}

/* ------------------------------------------------------------------ errors */

/* Every function that can fail returns one of these; the numbers are never reused. */
#define ATTN_OK 0
#define ATTN_E_INVALID (-1)     /* an argument is wrong: the text names it, what it has, what was wanted */
#define ATTN_E_UNSUPPORTED (-2) /* a valid request that this backend does not serve: see the reasons */
#define ATTN_E_NO_MEMORY (-3)
#define ATTN_E_TOO_NEW (-4)   /* a struct or feature bit newer than the reader */
#define ATTN_E_NOT_FOUND (-5) /* no such backend, plugin, layer, option, file */
#define ATTN_E_IO (-6)
/* configuration, problem text, JSON, safetensors: the text has file:line or column */
#define ATTN_E_PARSE (-7)
#define ATTN_E_DEVICE (-8) /* no device, no driver, a launch failed */
#define ATTN_E_STATE (-9)  /* calls in the wrong order */
#define ATTN_E_SPACE (-10) /* a given buffer is smaller than space_needed says */
#define ATTN_E_TRUST (-11) /* a plugin file that the trust rules refuse */
#define ATTN_E_ABI (-12)   /* not a plugin of this ABI */
#define ATTN_E_EXISTS (-13)
#define ATTN_E_FORKED (-14) /* the object belongs to the parent process */
#define ATTN_E_INTERNAL (-15)

/* Filled by a failing call if the caller gave one; caller-owned; text is always terminated. Untouched on
 * success. */
typedef struct attn_error {
    uint32_t struct_size;
    int32_t code;     /* ATTN_E_* */
    char param[64];   /* the parameter at fault, or "" */
    char text[440];   /* one line for a person: what is wrong, what was wanted, what to do */
} attn_error_t;

/* ------------------------------------------------------------- enumerations
 * All are uint32_t in structs; 0 is always "not given". As a set, value v is bit (1 << v): ATTN_BIT(v). */

#define ATTN_BIT(v) (UINT64_C(1) << (v))

/* What an attention layer is for; selects masks, cache use and the priority list. (semantics 2.1, 7) */
enum {
    ATTN_ROLE_DECODER = 1,         /* paged self attention of a decoder */
    ATTN_ROLE_ENCODER = 2,         /* encoder of an encoder-decoder model: direct K/V, bidirectional */
    ATTN_ROLE_ENCODER_ONLY = 3,    /* BERT-like: direct K/V, bidirectional */
    ATTN_ROLE_ENCODER_DECODER = 4, /* cross attention: paged K/V of the encoder, written once */
    ATTN_ROLE_MLA = 5,             /* multi-head latent attention, dense */
    ATTN_ROLE_MLA_PREFILL = 6,     /* the MHA part of MLA alone (selection of a prefill kernel) */
    ATTN_ROLE_MLA_SPARSE = 7,      /* latent attention over top-k selected tokens */
    ATTN_ROLE_MM_ENCODER = 8,      /* multimodal encoder: varlen, no cache */
    ATTN_ROLE_COUNT_ = 9
};

/* Which keys a query sees before windows and spans (semantics 2.2). 0 is invalid on purpose: an encoder that
 * runs with a decoder's default computes nonsense silently. */
enum {
    ATTN_MASK_CAUSAL = 1,     /* key k visible iff k <= context_len + i (bottom-right aligned) */
    ATTN_MASK_FULL = 2,       /* every key below seq_len */
    ATTN_MASK_PER_REQUEST = 3 /* batch.causal[r] chooses one of the two for each request */
};

/* Element types of Q, K, V and outputs. */
enum {
    ATTN_DTYPE_FLOAT32 = 1,
    ATTN_DTYPE_FLOAT16 = 2,
    ATTN_DTYPE_BFLOAT16 = 3,
    ATTN_DTYPE_FP8_E4M3 = 4,
    ATTN_DTYPE_FP8_E5M2 = 5,
    ATTN_DTYPE_INT8 = 6,
    ATTN_DTYPE_UINT8 = 7,
    ATTN_DTYPE_INT32 = 8,
    ATTN_DTYPE_INT64 = 9,
    ATTN_DTYPE_FLOAT64 = 10
};

/* KV-cache formats (semantics 3.1); names are vLLM's, but for the last two. What each holds:
 * attn_formats.h. */
enum {
    ATTN_KV_AUTO = 1, /* the model's dtype */
    ATTN_KV_FLOAT16 = 2,
    ATTN_KV_BFLOAT16 = 3,
    ATTN_KV_FLOAT32 = 4,
    ATTN_KV_FP8_E4M3 = 5, /* also "fp8"; per tensor or per head scales */
    ATTN_KV_FP8_E5M2 = 6,
    ATTN_KV_INT8_PER_TOKEN_HEAD = 7, /* inline fp32 scale behind each row */
    ATTN_KV_FP8_PER_TOKEN_HEAD = 8,
    ATTN_KV_INT4_PER_TOKEN_HEAD = 9,
    ATTN_KV_NVFP4 = 10,
    ATTN_KV_FP8_DS_MLA = 11, /* 656 bytes per token, sparse MLA */
    ATTN_KV_TURBOQUANT_K8V4 = 12,
    ATTN_KV_TURBOQUANT_4BIT_NC = 13,
    ATTN_KV_TURBOQUANT_K3V4_NC = 14,
    ATTN_KV_TURBOQUANT_3BIT_NC = 15,
    ATTN_KV_INT8_STATIC_V = 16, /* int8 K and Q by token and head, int8 V by static scales of channels */
    ATTN_KV_INT8_K_ONLY = 17,   /* the same K and Q, V in the model's dtype */
    ATTN_KV_COUNT_ = 18
};

/* Physical order of a cache page: NHD = token, head, content; HND = head, token, content. */
enum { ATTN_LAYOUT_NHD = 1, ATTN_LAYOUT_HND = 2 };

/* Feature bits: what changes the meaning or the guarantees of a call. A backend lists those that it knows;
 * the core never calls it with another one. attn_problem_features() derives the bits that a problem needs. */
#define ATTN_F_SLIDING_WINDOW (UINT64_C(1) << 0)
#define ATTN_F_SOFT_CAP (UINT64_C(1) << 1)
#define ATTN_F_ALIBI (UINT64_C(1) << 2)
#define ATTN_F_ALIBI_SQRT (UINT64_C(1) << 3)
#define ATTN_F_SINK (UINT64_C(1) << 4)              /* learned logit per query head (semantics 2.10) */
#define ATTN_F_MM_PREFIX (UINT64_C(1) << 5)         /* bidirectional spans (semantics 2.7) */
#define ATTN_F_MM_PREFIX_CLAMP (UINT64_C(1) << 6)   /* spans respect the window */
/* the backend masks chunks itself; else the core splits requests */
#define ATTN_F_CHUNKED_LOCAL (UINT64_C(1) << 7)
#define ATTN_F_CHUNK_LOOKBACK (UINT64_C(1) << 8)    /* semantics 2.5 */
#define ATTN_F_RSWA (UINT64_C(1) << 9)              /* reference sliding window (semantics 2.8) */
#define ATTN_F_NON_CAUSAL (UINT64_C(1) << 10)       /* paged decoder attention without the causal mask */
#define ATTN_F_PER_REQUEST_CAUSAL (UINT64_C(1) << 11)
#define ATTN_F_QQ_BIAS (UINT64_C(1) << 12)          /* query-query bias of tree verification */
#define ATTN_F_DIFF_KV (UINT64_C(1) << 13)          /* head_size_v != head_size */
#define ATTN_F_LSE (UINT64_C(1) << 14)              /* returns the natural log-sum-exp */
#define ATTN_F_PER_HEAD_SCALES (UINT64_C(1) << 15)  /* k/v scales per KV head */
#define ATTN_F_QUANT_QUERY (UINT64_C(1) << 16)      /* fp8 query with q_scale */
#define ATTN_F_OUT_FP8_STATIC (UINT64_C(1) << 17)   /* fp8 output with output_scale */
#define ATTN_F_OUT_FP8_GROUP (UINT64_C(1) << 18)    /* fp8 output, scale per 64 or 128 values */
#define ATTN_F_SEPARATE_KV (UINT64_C(1) << 19)      /* K and V cache as two tensors */
#define ATTN_F_CASCADE (UINT64_C(1) << 20)          /* batch.common_prefix_len > 0 */
/* static sink tokens (semantics 2.11); core rewrites tables */
#define ATTN_F_STATIC_SINK (UINT64_C(1) << 21)
#define ATTN_F_BATCH_INVARIANT (UINT64_C(1) << 22)  /* a request's result does not depend on its neighbours */
#define ATTN_F_CAPTURE (UINT64_C(1) << 23)          /* forward may be recorded into a graph */
#define ATTN_F_DCP (UINT64_C(1) << 24)              /* decode context parallelism */
/* bit 25 is not used */
#define ATTN_F_KV_CONNECTOR (UINT64_C(1) << 26)     /* pages may be filled and read by a transfer engine */
#define ATTN_F_CONTIGUOUS_KV (UINT64_C(1) << 27)    /* reads key/value of the call instead of a cache, as
                                                       roles without one always do */
/* indexes blocks by the tensor's block stride (semantics 3.9) */
#define ATTN_F_BLOCK_STRIDE (UINT64_C(1) << 28)
/* MLA from kv_b_proj: needs prepare_weights. The roles mla and mla_sparse need it or ATTN_F_LATENT */
#define ATTN_F_WEIGHTS (UINT64_C(1) << 29)
/* mm_encoder: Q, K and V become e4m3 first (attn_fp8_state) */
#define ATTN_F_FP8_ATTENTION (UINT64_C(1) << 30)
/* mla, mla_sparse: queries come absorbed, outputs are latents, no weights (semantics 7.11) */
#define ATTN_F_LATENT (UINT64_C(1) << 31)
/* roles without a cache: key and value of the call have lengths of their own (semantics 2.16) */
#define ATTN_F_KEY_LENGTHS (UINT64_C(1) << 32)
/* decoder, mla: query_start_loc and seq_lens of the device count, the host's are bounds (semantics 1.6) */
#define ATTN_F_DEVICE_LENGTHS (UINT64_C(1) << 33)
/* a bias by distance for each head: relative position bias, as T5's (semantics 2.15) */
#define ATTN_F_REL_BIAS (UINT64_C(1) << 34)
/* out_dtype uint8: two e2m1 values a byte, e4m3 scale per 16 values, and output_scale (semantics 7.7) */
#define ATTN_F_OUT_NVFP4 (UINT64_C(1) << 35)
/* with ATTN_F_OUT_FP8_GROUP: scales are powers of two, stored as their type says (semantics 7.7) */
#define ATTN_F_OUT_SCALE_UE8M0 (UINT64_C(1) << 36)
/* decoder: forward may be given slot_mapping, and then writes key and value to the cache first
 * (semantics 3.11) */
#define ATTN_F_WRITE_IN_FORWARD (UINT64_C(1) << 37)
/* every bit that this header defines */
#define ATTN_F_KNOWN_ (((UINT64_C(1) << 38) - 1) & ~(UINT64_C(1) << 25))

/* ------------------------------------------------------------------- device */

typedef struct attn_device {
    uint32_t struct_size;
    int32_t type;               /* DLDeviceType: kDLCPU, kDLCUDA, .. */
    int32_t id;                 /* ordinal; -1: a hypothetical device that is not present */
    int32_t compute_capability; /* CUDA: major * 10 + minor, 90 for Hopper; CPU: 0 */
    int32_t num_sms;            /* multiprocessors, or CPU threads; 0: unknown */
    uint32_t reserved0;
    uint64_t memory_bytes; /* 0: unknown */
    char name[64];
} attn_device_t;

/* ------------------------------------------------------------------ problem */

/* One attention layer on one device: everything that is fixed when a layer is made. Roles that do not use a
 * member require it to be zero; block_size, kv_layout and num_blocks alone are ignored where there is no
 * cache. Borrowed during calls only. */
typedef struct attn_problem {
    uint32_t struct_size;
    uint32_t role;           /* ATTN_ROLE_*, required */
    uint32_t mask;           /* ATTN_MASK_*, required */
    uint32_t dtype;          /* ATTN_DTYPE_* of Q, K, V, required */
    uint32_t out_dtype;      /* 0: as dtype */
    /* 0: as dtype; FP8_E4M3: quantised query with q_scale, by the caller; MLA without ATTN_F_LATENT: by
     * forward, which absorbs a query of dtype first (semantics 7.4) */
    uint32_t query_dtype;
    uint32_t kv_cache_dtype; /* ATTN_KV_*; 0: auto */
    uint32_t kv_layout;      /* ATTN_LAYOUT_*; 0: the backend's choice */

    uint32_t num_heads;    /* Hq (MLA: N), required */
    uint32_t num_kv_heads; /* Hkv; 0: as num_heads; must divide num_heads. MLA: 0 or 1 */
    uint32_t head_size;    /* D, required; MLA: L + R */
    uint32_t head_size_v;  /* Dv; 0: as head_size. MLA: 0 (the latent rank) */
    uint32_t block_size;   /* bs, tokens per cache block; 0: the backend's preference */
    /* W in tokens, the query's own included; 0: none. A query without the causal mask sees W - 1 keys to
     * either side, in encoder_decoder too (semantics 2.3) */
    uint32_t sliding_window;
    uint32_t chunk_size;     /* chunked local attention: tokens per chunk; 0: none (semantics 2.4) */
    /* with ATTN_F_CHUNK_LOOKBACK in features: chunks visible to the left (semantics 2.5) */
    uint32_t chunk_lookback;
    uint32_t rswa_window;    /* with batch.rswa_prefix_lens; 0: none (semantics 2.8) */
    /* static sink tokens at the head of every request; multiple of block_size; 0: none */
    uint32_t static_sink_len;

    double scale;          /* softmax scale, required, finite and not 0; 1/sqrt(D) is the usual one */
    double logits_soft_cap; /* s = c * tanh(s / c); 0: off */

    /* ATTN_F_* requested beyond what the members imply: sinks, ALiBi, spans, LSE, capture, .. */
    uint64_t features;

    /* limits that space_needed answers for; a batch beyond them is refused */
    uint32_t max_num_seqs;           /* requests in a batch; 0: 256 */
    uint32_t max_num_batched_tokens; /* query tokens in a batch; 0: 8192 */
    int64_t max_model_len;           /* longest seq_len; 0: 131072 */
    int64_t num_blocks;              /* nb; 0: not known yet */

    /* MLA (semantics 7.4, 7.11) */
    uint32_t kv_lora_rank;      /* L */
    uint32_t qk_nope_head_dim;  /* P; with ATTN_F_LATENT 0, as v_head_dim */
    uint32_t qk_rope_head_dim;  /* R */
    uint32_t v_head_dim;        /* V */
    uint32_t topk;              /* sparse MLA: selected tokens per query, multiple of 128 */

    /* context parallelism (attn_comm.h, semantics 8). A backend never sees the first three: the core gathers
     * and joins, and gives it one rank's problem */
    uint32_t dcp_world_size; /* 0 and 1: off */
    uint32_t dcp_rank;
    uint32_t cp_interleave;  /* tokens; 0: 1. Only with dcp_world_size above 1 */
    uint32_t max_mm_ranges;  /* spans per request at most; with ATTN_F_MM_PREFIX; 0: 8 */
    /* rows of key and value in a batch at most; with ATTN_F_KEY_LENGTHS; 0: max_num_batched_tokens */
    uint32_t max_num_batched_keys;
    uint32_t reserved[10];
} attn_problem_t;

/* ------------------------------------------------------------------- reason */

/* Why a backend does not serve a problem. Codes 1..17 keep the order of semantics 4.3. */
enum {
    ATTN_REASON_HEAD_SIZE = 1,
    ATTN_REASON_DTYPE = 2,
    ATTN_REASON_KV_CACHE_DTYPE = 3,
    ATTN_REASON_BLOCK_SIZE = 4,
    ATTN_REASON_MM_PREFIX = 5,
    ATTN_REASON_MLA = 6, /* the problem is MLA, the backend not, or the other way round */
    ATTN_REASON_SINK = 7,
    ATTN_REASON_SPARSE = 8,
    ATTN_REASON_PER_HEAD_SCALES = 9,
    ATTN_REASON_COMPUTE_CAPABILITY = 10,
    ATTN_REASON_ATTN_TYPE = 11,
    ATTN_REASON_SLIDING_WINDOW = 12,
    ATTN_REASON_NON_CAUSAL = 13,
    ATTN_REASON_BATCH_INVARIANCE = 14,
    ATTN_REASON_KV_CONNECTOR = 15,
    /* 16 is not used */
    ATTN_REASON_COMBINATION = 17, /* said by supports_combination */
    ATTN_REASON_IMPORT_ERROR = 18, /* the plugin that holds it did not load */
    ATTN_REASON_FEATURE = 19,      /* another feature bit; param is its name */
    ATTN_REASON_DEVICE = 20,       /* wrong device type, no driver, not present */
    ATTN_REASON_HEAD_COUNT = 21,
    ATTN_REASON_OUT_DTYPE = 22,
    ATTN_REASON_LAYOUT = 23,
    ATTN_REASON_LIMIT = 24,   /* beyond a size that the backend can address */
    ATTN_REASON_UNKNOWN = 25, /* no backend of that name is known */
    ATTN_REASON_COUNT_ = 26
};

typedef struct attn_reason {
    int32_t code;    /* ATTN_REASON_* */
    char param[28];  /* member of the problem, or feature name */
    char have[64];   /* what was requested */
    char want[96];   /* what would be served */
    char text[192];  /* one sentence */
} attn_reason_t;

/* Caller-owned list. items may be NULL with capacity 0: then reasons are only counted. */
typedef struct attn_reasons {
    uint32_t struct_size;
    uint32_t capacity;    /* entries in items */
    uint32_t count;       /* reasons found; may exceed capacity: the surplus was not stored */
    uint32_t reserved0;
    attn_reason_t *items;
} attn_reasons_t;

/* ---------------------------------------------------------- cache and space */

/* What each logical axis of a cache tensor counts. */
enum {
    ATTN_AXIS_BLOCK = 1,
    ATTN_AXIS_HEAD = 2,
    ATTN_AXIS_TOKEN = 3,
    ATTN_AXIS_CONTENT = 4, /* K then V of one token and head (elements); MLA: latent then rope */
    ATTN_AXIS_LAYER = 5,
    ATTN_AXIS_KV = 6 /* 0 = K, 1 = V where they are separate planes */
};

#define ATTN_CACHE_MAX_DIMS 8

/* The cache of one layer: its logical shape and how to lay it out. In-tree dense backends use (nb, Hkv, bs,
 * content) with content = [K data (D), K scale, V data (Dv), V scale], scales only in *_per_token_head
 * formats; nvfp4 has pages of parts, whose beginnings the offsets say (attn_kv_page); MLA uses (nb, bs, L +
 * R) or (nb, bs, 656). (semantics 3.4, 3.5, 3.6, 3.9)
 * stride_order: physical dimension j (slowest first) is logical dimension stride_order[j];
 * stride_order_layers is the same with a layers dimension put in front of the logical shape. */
typedef struct attn_kv_cache_shape {
    uint32_t struct_size;
    uint32_t ndim;
    int64_t shape[ATTN_CACHE_MAX_DIMS];
    int64_t byte_strides[ATTN_CACHE_MAX_DIMS]; /* of the recommended layout without layers */
    uint32_t axes[ATTN_CACHE_MAX_DIMS];        /* ATTN_AXIS_* */
    uint32_t stride_order[ATTN_CACHE_MAX_DIMS];
    uint32_t stride_order_layers[ATTN_CACHE_MAX_DIMS];
    DLDataType dtype;      /* element type of the tensor to allocate */
    uint32_t kv_layout;    /* ATTN_LAYOUT_* chosen */
    uint32_t alignment;    /* bytes, of the base address */
    uint32_t block_size;   /* tokens per block chosen */
    uint32_t num_kv_heads;
    int64_t page_bytes;    /* one block of one layer, K and V */
    int64_t total_bytes;   /* page_bytes * nb */
    int64_t k_offset;      /* bytes inside a content row */
    int64_t v_offset;
    int64_t k_scale_offset; /* -1: no inline scales */
    int64_t v_scale_offset;
    uint32_t layout_id;  /* chosen by the plugin; equal ids and fingerprints may share pages */
    uint32_t reserved0;
    uint64_t fingerprint; /* attn_fingerprint64 over everything that fixes the bytes of a page */
    uint64_t reserved[4];
} attn_kv_cache_shape_t;

/* Buffers that an instance needs for the limits of its problem. The host owns all of them. */
typedef struct attn_space_needed {
    uint32_t struct_size;
    uint32_t alignment;       /* bytes, of metadata and workspace; host memory as malloc gives it: 16 */
    /* device memory written by build_metadata; keep its address while graphs refer to it */
    uint64_t metadata_bytes;
    uint64_t workspace_bytes; /* device memory, scratch; may be shared by all layers that run on one stream */
    /* host memory (pinned for CUDA) belonging to the metadata: one per metadata buffer */
    uint64_t host_bytes;
    uint64_t weight_bytes;    /* device memory for prepare_weights, per layer; 0: none */
} attn_space_needed_t;

/* One set of buffers, of the sizes and the alignment that attn_space_needed_t says at least, where it says
 * they lie. Contents are undefined before build_metadata. Several sets may exist for one instance. */
typedef struct attn_space {
    uint32_t struct_size;
    uint32_t reserved0;
    void *metadata;
    uint64_t metadata_bytes;
    void *workspace;
    uint64_t workspace_bytes;
    void *host;
    uint64_t host_bytes;
} attn_space_t;

/* -------------------------------------------------------------------- batch */

/* build for graph capture: worst-case launch shapes, rebuildable */
#define ATTN_BATCH_CAPTURE (UINT32_C(1) << 1)

/* One step's batch, common to all layers of a group (semantics 1.2). Host arrays are exact, but with
 * ATTN_F_DEVICE_LENGTHS upper bounds of lengths that forward reads in query_start_loc and seq_lens; device
 * tensors live on the instance's device (on a CPU they may alias the host arrays). For
 * roles without a cache seq_lens equals the query lengths, unless keys have lengths of their own
 * (ATTN_F_KEY_LENGTHS), and block_table, slot_mapping are NULL; mm_encoder: query_start_loc = cu_seqlens.
 * encoder_decoder: engines give encoder_seq_lens(_host); the core hands plugins a batch whose seq_lens are
 * those lengths, so plugins read seq_lens alone and never encoder_seq_lens. */
typedef struct attn_batch {
    uint32_t struct_size;
    uint32_t flags;            /* ATTN_BATCH_* */
    int32_t num_reqs;          /* B >= 0 */
    int32_t num_actual_tokens; /* T without padding: rows that forward touches */
    int32_t max_query_len;     /* 0: computed from the host arrays */
    /* leading tokens shared by all requests, multiple of block_size; > 0: use cascade */
    int32_t common_prefix_len;
    int64_t max_seq_len;       /* 0: computed; may be an upper bound (graph capture) */

    const int32_t *query_start_loc_host;  /* [B + 1], non-decreasing, [0] = 0, [B] = T. Required */
    const int32_t *seq_lens_host;         /* [B] total length after this step. Required */
    const uint8_t *causal_host;           /* [B] with ATTN_MASK_PER_REQUEST: 1 causal, 0 full */
    const int32_t *encoder_seq_lens_host; /* [B] encoder_decoder: key lengths */

    /* int32 [B + 1] and [B]. With ATTN_F_DEVICE_LENGTHS required; they keep their addresses while metadata
     * refers to them, and may advance between calls of forward and replays of a graph */
    const DLTensor *query_start_loc;
    const DLTensor *seq_lens;
    /* int32 [B, max_blocks]; entries past ceil(seq_len / bs) are never read; pages that a window has left
     * behind: any cleared page */
    const DLTensor *block_table;
    const DLTensor *slot_mapping;     /* int64 [>= T]; negative: do not write */
    const DLTensor *causal;           /* int32 [B] with ATTN_MASK_PER_REQUEST */
    const DLTensor *mm_prefix_ranges; /* int32 [B, ranges, 2] (start, end) inclusive, padded with (0, 0) */
    const DLTensor *rswa_prefix_lens; /* int32 [B] */
    const DLTensor *encoder_seq_lens; /* int32 [B] */
    const DLTensor *dcp_local_seq_lens; /* int32 [B] with dcp_world_size above 1; checked; NULL: computed */
    const int32_t *block_table_host;    /* optional mirror [B, block_table_host_stride] */
    int64_t block_table_host_stride;    /* entries per row */
    const int32_t *mm_prefix_ranges_host; /* optional mirror [B, num_mm_ranges, 2] */
    int32_t num_mm_ranges;
    int32_t reserved0;
    const int32_t *rswa_prefix_lens_host; /* optional mirror [B] */
    /* [B + 1] with ATTN_F_KEY_LENGTHS, required then: first row of each request in key and value, [0] = 0,
     * non-decreasing; seq_lens[r] rows from there are its keys, and what follows them is not read */
    const int32_t *key_start_loc_host;
    uint64_t reserved[7];
} attn_batch_t;

/* ---------------------------------------------------------------- call args */

/* Scales of quantised tensors: float32 tensors of 1 element (per tensor) or Hkv elements (per head), v of
 * int8_static_v [Hkv, Dv]; NULL: 1.0. stored = x / scale, x = stored * scale (semantics 3.2, 3.8). */
typedef struct attn_scales {
    const DLTensor *q;
    const DLTensor *k;
    const DLTensor *v;
} attn_scales_t;

/* update_kv_cache: scatter K and V rows of this step into the cache, quantising where the format asks. */
typedef struct attn_kv_update {
    uint32_t struct_size;
    uint32_t reserved0;
    const DLTensor *key;          /* [>= n, Hkv, D];  MLA: kv_c [>= n, L] */
    const DLTensor *value;        /* [>= n, Hkv, Dv]; MLA: k_pe [>= n, R] or [>= n, 1, R] */
    const DLTensor *kv_cache;     /* as kv_cache_shape, with its own strides. Written */
    /* with ATTN_F_SEPARATE_KV: K is kv_cache [nb, Hkv, bs, D], V is this [nb, Hkv, bs, Dv] */
    const DLTensor *v_cache;
    /* int64 [n]; n decides how many rows are written; negative slots are skipped */
    const DLTensor *slot_mapping;
    attn_scales_t scales;
    uint64_t reserved[5];
} attn_kv_update_t;

/* forward: one attention call. Rows at and beyond batch.num_actual_tokens are neither read nor written. */
typedef struct attn_forward {
    uint32_t struct_size;
    uint32_t reserved0;
    const DLTensor *query;  /* [>= T, Hq, D]; MLA: [>= T, N, P + R], with ATTN_F_LATENT [>= T, N, L + R] */
    /* [>= T, Hkv, D] new keys; required without a cache, else optional. MLA: kv_c [>= T, L]. With
     * ATTN_F_KEY_LENGTHS as many rows, of value too, as key_start_loc_host ends with */
    const DLTensor *key;
    const DLTensor *value;  /* [>= T, Hkv, Dv]; MLA: k_pe [>= T, R] or [>= T, 1, R] */
    const DLTensor *kv_cache; /* as update_kv_cache; NULL for roles without a cache */
    const DLTensor *v_cache;  /* with ATTN_F_SEPARATE_KV, as update_kv_cache */
    /* [>= T, Hq, Dv]; MLA: [>= T, N, V], with ATTN_F_LATENT [>= T, N, L]. Written; every row below T. With
     * ATTN_F_OUT_NVFP4 half of the last size, in bytes of two values, the first in the low four bits */
    const DLTensor *output;
    /* float32 [Hq, >= T], natural log, -inf for empty rows; NULL: not wanted. Written */
    const DLTensor *lse;
    attn_scales_t scales;
    /* float32 [1], static fp8 and nvfp4 outputs: what the stored values are multiplied with */
    const DLTensor *output_scale;
    /* Scales of a row's groups, strides in any order. Written. (semantics 7.7)
     *  - ATTN_F_OUT_FP8_GROUP: float32 [>= T, groups]
     *  - and ATTN_F_OUT_SCALE_UE8M0: the same, or exponents (of 2^(x - 127)): uint8 [>= T, groups], or int32
     *    [>= T, groups / 4 rounded up], four of groups of 128 in a word, the first in the low byte
     *  - ATTN_F_OUT_NVFP4: e4m3 [>= T, groups], or in tiles of 128 tokens and 4 groups, as block-scaled
     *    products of cuBLASLt and CUTLASS read them: e4m3 [>= T / 128 rounded up, groups / 4 rounded up, 32,
     *    4, 4], token t and group g at [t / 128, g / 4, t mod 32, t / 32 mod 4, g mod 4] */
    const DLTensor *output_block_scale;
    const DLTensor *sinks;              /* float32 [Hq] with ATTN_F_SINK */
    const DLTensor *alibi_slopes;       /* float32 [Hq] with ATTN_F_ALIBI or _SQRT */
    const DLTensor *qq_bias;            /* float32 [T, width] with ATTN_F_QQ_BIAS (semantics 2.9) */
    /* int32 [>= T, topk], request-relative key positions, -1: none. MLA sparse */
    const DLTensor *topk_indices;
    /* MLA: as prepare_weights filled it; mm_encoder: attn_fp8_state_t or NULL */
    const void *weight_space;
    uint64_t weight_space_bytes;
    /* float32 [Hq, 2 m + 1] with ATTN_F_REL_BIAS: distances -m to m (semantics 2.15) */
    const DLTensor *rel_bias;
    /* int64 [n] with ATTN_F_WRITE_IN_FORWARD: the first n rows of key and value are written to kv_cache, and
     * v_cache, as update_kv_cache does, and then attended to like all others; each goes to the slot of its
     * own position, or nowhere. NULL: nothing is written */
    const DLTensor *slot_mapping;
    uint64_t reserved[5];
} attn_forward_t;

/* ATTN_F_FP8_ATTENTION (semantics 7.6): forward reads Q, K and V as e4m3(x / scale) * scale, with the
 * division in float32, rounding to nearest even and saturation at 448; the output has the model's dtype. Two
 * ways to get the three scales:
 *  - static: attn_forward.scales.q, .k, .v, one element each, on the device or on the CPU (read during the
 *    call). NULL: 1.
 *  - dynamic: attn_forward.weight_space is this struct, in device memory, which belongs to one layer, was
 *    zeroed by
 *    prepare_weights and is written by forward; scales must be NULL then. Each call stores the largest finite
 *    magnitudes of its rows in entry calls % 16, and its scales are max(largest entry, FLT_MIN) / 448. Not
 *    under graph capture: what counts and saves the calls is the host.
 * Plain device data: no struct_size, and it never grows. */
enum { ATTN_FP8_HISTORY = 16 };
typedef struct attn_fp8_state {
    float amax[3][ATTN_FP8_HISTORY]; /* of Q, K, V */
    float scale[3];                  /* of the last call; 0: none yet */
    uint32_t calls;
} attn_fp8_state_t;

/* prepare_weights of MLA: writes what forward needs (absorbed projections) into weight_space, which belongs
 * to one layer and is handed back in attn_forward.weight_space. The instance keeps nothing, so layers can
 * share it. With ATTN_F_FP8_ATTENTION there are no weights: kv_b_proj is NULL and weight_space becomes an
 * empty attn_fp8_state_t. With ATTN_F_LATENT there are none either, and the call is refused. */
typedef struct attn_weights {
    uint32_t struct_size;
    uint32_t reserved0;
    /* [N * (P + V), L], row-major as in checkpoints, in the model's dtype or fp8_e4m3 */
    const DLTensor *kv_b_proj;
    /* of fp8 weights, float32: [1], or one for each block of 128 x 128, [N * (P + V) / 128, L / 128], both
     * rounded up (semantics 7.4); NULL: 1.0 */
    const DLTensor *kv_b_proj_scale;
    void *weight_space;              /* device memory, written */
    uint64_t weight_space_bytes;     /* at least space_needed.weight_bytes */
    uint64_t reserved[4];
} attn_weights_t;

#ifdef __cplusplus
}
#endif
#endif
