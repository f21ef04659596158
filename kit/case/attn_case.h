/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_case.h: one attention case from problem to numbers, for tests of backends. A case is a problem, the
 * lengths of a batch and a seed; everything else (inputs, scales, page order) follows from them, so that a
 * failing case can be reproduced from one line of text. Running a case goes through the plugin ABI alone:
 * open, kv_cache_shape, space_needed, update_kv_cache, prepare_weights, build_metadata, forward; with outputs
 * between canaries, poisoned buffers and NaN wherever nothing may be read.
 *
 *     kit_case_t c;
 *     kit_case_start(&c, ATTN_ROLE_DECODER, seed);          // then change what the test is about
 *     kit_case_add(&c, 1, 77);                              // query_len, seq_len
 *     kit_inputs_t *in = kit_inputs_make(&c);
 *     kit_result_t got, want;
 *     kit_run(backend, &c, in, &kit_cpu_memory, &got);
 *     kit_run_oracle(reference, &c, in, &want);             // same problem, float64 output
 *     kit_difference_t d = kit_compare(&c, &got, &want);    // d.is_close, d.text
 */
#ifndef ATTN_KIT_ATTN_CASE_H
#define ATTN_KIT_ATTN_CASE_H

#include <attn/attn_plugin.h>
#include <attn/draft/attn_device.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { KIT_MAX_REQS = 1040, KIT_MAX_SPANS = 10 };
#define KIT_OUTPUT_SCALE     0.02f  /* of static fp8 outputs */
#define KIT_OUTPUT_FP4_SCALE 0.004f /* of 4-bit outputs; times the size of values */

/* How a case treats its tensors. */
#define KIT_STRIDED (UINT32_C(1) << 0) /* query, new K/V and output are views with gaps and a byte_offset */
#define KIT_CROSS_LAYER                                                                                      \
    (UINT32_C(1) << 1)                   /* the cache is one layer of three: block stride 3 times as large */
#define KIT_PER_HEAD  (UINT32_C(1) << 2) /* fp8 caches: one scale per KV head (also sets the feature bit) */
#define KIT_NO_SCALES (UINT32_C(1) << 3) /* fp8 caches: no scale tensors at all: 1.0 */
#define KIT_NO_LSE    (UINT32_C(1) << 4) /* do not request the LSE */
#define KIT_NO_KEY    (UINT32_C(1) << 5) /* with a cache: forward gets neither key nor value */
#define KIT_HEADS_FIRST                                                                                      \
    (UINT32_C(1) << 6) /* rows lie [head][token]: the head's stride is the larger one; tables with gaps */
#define KIT_BARE_BATCH (UINT32_C(1) << 7) /* no optional host mirror in the batch */
#define KIT_FULL_BATCH (UINT32_C(1) << 8) /* every optional member of a batch that changes nothing */
/* with ATTN_F_SEPARATE_KV: V has memory and strides of its own; its pages lie twice apart with
 * KIT_CROSS_LAYER, K's next to each other */
#define KIT_APART         (UINT32_C(1) << 9)
#define KIT_BLOCK_WEIGHTS (UINT32_C(1) << 10) /* kv_b_proj is e4m3, with a scale for each 128 x 128 block */
/* on a device, which does not look at scales: those of K are negative, of every other head */
#define KIT_TURNED_KEYS (UINT32_C(1) << 11)

typedef struct kit_case {
    attn_problem_t problem;
    int32_t num_reqs;
    int32_t query_lens[KIT_MAX_REQS];
    int32_t seq_lens
        [KIT_MAX_REQS]; /* encoder_decoder: lengths of the encoder; without a cache: as query_lens, but
                                   with ATTN_F_KEY_LENGTHS; rows of no key lie between requests then where the
                                   case is strided */
    uint8_t causal[KIT_MAX_REQS]; /* with ATTN_MASK_PER_REQUEST */
    int32_t rswa_prefix_lens[KIT_MAX_REQS];
    int32_t spans[KIT_MAX_REQS][KIT_MAX_SPANS][2];
    int32_t num_spans;         /* columns of spans in use; 0: no tensor */
    int32_t common_prefix_len; /* the first tokens of all requests become equal, in shared pages */
    int32_t padded_tokens;     /* rows behind the last token, which must stay untouched */
    uint32_t flags;            /* KIT_* */
    double amplitude;          /* of the normal inputs; 0: 1 */
    uint32_t family;           /* what the inputs look like: case_families.h */
    uint64_t seed;
} kit_case_t;

/* Inputs as float, rounded to the element type that the backend receives. Token order: request after request.
 * */
typedef struct kit_inputs {
    int64_t num_tokens; /* T */
    int64_t num_keys;   /* sum of seq_lens */
    /* query [T, Hq, D], of a quantised query the stored values; MLA: [T, N, P + R], never quantised, or
     * with ATTN_F_LATENT [T, N, L + R] */
    float *query;
    /* [num_keys, Hkv, D] and [num_keys, Hkv, Dv]; MLA: kv_c [num_keys, L] and k_pe [num_keys, R] */
    float *key, *value;
    float *kv_b_proj;    /* MLA: [N * (P + V), L]; NULL with ATTN_F_LATENT */
    float *weight_scale; /* with KIT_BLOCK_WEIGHTS: of each block of kv_b_proj, which holds the products */
    /* sparse MLA: [T, topk]; every list has holes of -1 and keys that come twice, request 0's first is
     * empty */
    int32_t *topk_indices;
    float *sinks, *alibi_slopes;        /* [Hq] */
    float *qq_bias;                     /* [bias_rows > T, bias_width] */
    float *rel_bias;                    /* [Hq, 2 * rel_max + 1] */
    float *q_scale, *k_scale, *v_scale; /* [num_scales] */
    float *channel_scale;               /* of V, [KV heads, Dv], for formats that have such */
    float output_scale;
    int64_t bias_width, bias_rows, num_scales, rel_max;
    int64_t key_start[KIT_MAX_REQS + 1];
    int64_t num_blocks;
    int32_t *block_table; /* [num_reqs, table_width]: shuffled pages; unused entries are garbage on purpose */
    int64_t table_width;
} kit_inputs_t;

/* Where tensors live. All functions return 0 on success. Copies are on the default stream: host bytes are
 * taken, or are there, on return. */
typedef struct kit_memory {
    void *ctx;
    const attn_device_kind_t *kind; /* streams and graphs; NULL: no such */
    int32_t device_type, device_id; /* DLPack */
    int32_t compute_capability, num_sms;
    void *stream;
    void *(*alloc)(void *ctx, size_t bytes, size_t alignment); /* NULL on failure */
    void (*free)(void *ctx, void *p, size_t bytes);
    int (*to_device)(void *ctx, void *dst, const void *src, size_t bytes);
    int (*from_device)(void *ctx, void *dst, const void *src, size_t bytes);
    int (*sync)(void *ctx);
    /* what the backend is opened with beside the problem; NULL and 0: nothing */
    const attn_host_t *host;
    const attn_option_value_t *options;
    uint32_t num_options;
} kit_memory_t;
extern const kit_memory_t kit_cpu_memory;
/* Memory of a device that is present, by the operations of its kind. ATTN_OK or ATTN_E_NO_MEMORY. */
int kit_memory_of(const attn_device_kind_t *kind, const attn_device_t *device, kit_memory_t *memory);
/* Ends what kit_memory_of made; its allocations are freed before. Memory of the host has nothing to end. */
void kit_memory_end(kit_memory_t *memory);

/* Sizes of one row of each tensor, by role. */
typedef struct kit_sizes {
    int64_t heads, kv_heads;
    int64_t query, key, value, output; /* elements per head */
    int is_latent;                     /* key and value have no heads dimension */
    uint32_t query_dtype;              /* of the tensor; quantised later where forward absorbs */
} kit_sizes_t;
kit_sizes_t kit_sizes(const attn_problem_t *p);

typedef struct kit_result {
    int status;         /* ATTN_OK, or the first failing operation's code */
    char operation[32]; /* that operation */
    attn_error_t error;
    int64_t page_bytes; /* of the cache that the backend wanted; 0: none */
    char fault[200];    /* "", or what was written that must not be: canary, padded row, host memory */
    double *out;        /* [T, Hq, Dv], dequantised */
    double *lse;        /* [Hq, T], NULL if not requested */
    double *unit;       /* [T, Hq, Dv], of outputs of 4 bits: what each value was divided by; else NULL */
    int64_t num_out, num_lse;
} kit_result_t;

typedef struct kit_difference {
    int is_close;
    double max_abs; /* largest |got - want| of the output */
    double max_lse;
    double bias;    /* mean of (got - want) towards or away from zero, in units of the output's last place */
    char text[320]; /* first element out of tolerance, or "" */
} kit_difference_t;

/* A plain decoder problem of that role (4 heads over 2, D 32, f32, pages of 16) without requests. */
void kit_case_start(kit_case_t *c, uint32_t role, uint64_t seed);
/* Makes it an MLA problem of N heads with these sizes, topk for the sparse role (else 0), before requests are
 * added. */
void kit_case_set_mla(kit_case_t *c, uint32_t heads, uint32_t latent, uint32_t rope, uint32_t nope,
                      uint32_t value, uint32_t topk);
/* Queries come absorbed, and outputs are latents: after kit_case_set_mla, of the roles mla and mla_sparse. */
void kit_case_set_latent(kit_case_t *c);
/* 1 if a request's keys may be others than those of its query tokens, so that seq_len counts. */
int kit_has_context(const kit_case_t *c);
/* Adds one request; spans, prefixes and causality of it are 0 (causal = 1). Returns its index, -1 if there is
 * no room. */
int kit_case_add(kit_case_t *c, int32_t query_len, int32_t seq_len);
/* A random case within what the capability table advertises: role, dtypes, masks, features, lengths around
 * page and window borders. The caller still has to ask supports_combination. max_len bounds the lengths. */
void kit_case_random(kit_case_t *c, const attn_capabilities_t *can, uint64_t seed, int32_t max_len);
/* One line that names everything: for failure messages and for replay. Returns text. */
const char *kit_case_text(const kit_case_t *c, char *text, size_t size);

/* Query tokens of request r that the host's lists of a run have beyond the case's, because the device's count
 * (ATTN_F_DEVICE_LENGTHS). */
int32_t kit_case_more_tokens(const kit_case_t *c, int r);

kit_inputs_t *kit_inputs_make(const kit_case_t *c); /* NULL: no memory */
/* A number as the element type has it. */
float kit_round(uint32_t dtype, double x);
void kit_inputs_free(kit_inputs_t *in);

/* Runs one backend. The result's arrays are the caller's until kit_result_free. Returns result->status. */
int kit_run(const attn_backend_t *backend, const kit_case_t *c, const kit_inputs_t *in,
            const kit_memory_t *memory, kit_result_t *result);
/* Runs the oracle on the CPU: the same case with float64 output that is not quantised. */
int kit_run_oracle(const attn_backend_t *reference, const kit_case_t *c, const kit_inputs_t *in,
                   kit_result_t *result);
void kit_result_free(kit_result_t *result);

/* Tolerances of one case: |got - want| <= atol + rtol * |want| (semantics 10.2). */
void kit_tolerance(const kit_case_t *c, double *atol, double *rtol);
kit_difference_t kit_compare(const kit_case_t *c, const kit_result_t *got, const kit_result_t *want);

/* 1 if the backend says that it serves the case on the device of memory; else its first reason is in why. */
int kit_is_served(const attn_backend_t *backend, const kit_case_t *c, const kit_memory_t *memory, char *why,
                  size_t why_size);
/* Runs the case on the backend and on the oracle; 1 if all went well and they agree, else what did not is in
 * why. in_or_null: inputs other than those of the seed. */
int kit_agrees(const attn_backend_t *backend, const attn_backend_t *oracle, const kit_case_t *c,
               const kit_inputs_t *in_or_null, const kit_memory_t *memory, kit_difference_t *d, char *why,
               size_t why_size);

/* The backend `name` of a plugin file (NULL: its first), or NULL with a line of text in why. The file stays
 * loaded. */
const attn_backend_t *kit_load(const char *path, const char *name, char *why, size_t why_size);

/* splitmix64 and what follows from it. */
uint64_t kit_random(uint64_t *state);
int64_t kit_random_in(uint64_t *state, int64_t low, int64_t high); /* both included */
double kit_random_normal(uint64_t *state);

#ifdef __cplusplus
}
#endif
#endif
