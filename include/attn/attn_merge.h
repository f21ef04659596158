/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_merge.h: attention of parts of the keys, joined: the merge of states by their LSE, and the copies of
 * rows that an exchange between ranks needs. Engines call the functions; plugins, which link to nothing of
 * libattn, get them as the host extension ATTN_MERGE_EXTENSION. The core's own context parallelism
 * (attn_comm.h) is made of them.
 *
 * All are [any thread] [no alloc] [no sync]. The tensors of a call lie in one place: in host memory, where
 * the call is done when it returns and `stream` is not looked at, or on one device, where it is put on
 * `stream` [capture-safe] by the functions that a plugin of that device brings, once a context has loaded
 * it (on CUDA flash and mla do); without one the call is ATTN_E_UNSUPPORTED. Element types are float32,
 * float16, bfloat16 and float64; the sums are made in double and rounded once. Rows and LSE of tensors may
 * be more than num_tokens: the surplus is neither read nor written. Outputs are written on success only.
 *
 * On a device at most 64 states are merged at once, and the entries of `rows` cannot be judged: a gathered
 * row beyond `from` becomes not a number (all bits set), a scattered one beyond `to` is skipped, and of
 * entries of a scatter that occur twice any may be kept.
 *
 * A state is what forward gives: an output [>= T, H, Dv] and an LSE, float32 [H, >= T], natural logarithm
 * (semantics 2.13). An infinite LSE of either sign marks a part without keys, whose output is not looked
 * at; rows of which all parts are so become 0 and -inf (semantics 2.14, 6.5). An LSE that is not a number
 * makes the merged row and LSE not a number.
 *
 * "semantics n.m" is a section of doc/semantics.md (installed in share/doc/libattn).
 */
#ifndef ATTN_MERGE_H
#define ATTN_MERGE_H

#include <attn/attn_types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attn_state {
    const DLTensor *output; /* [>= T, H, Dv] */
    const DLTensor *lse;    /* float32 [H, >= T] */
} attn_state_t;

/* Joins num_states >= 1 states of the same queries over disjoint keys into output [>= T, H, Dv] and, if
 * given, lse, float32 [H, >= T] (semantics 6.5). Their element types may differ. sinks, float32 [H] or
 * NULL, are counted here, once: the states must then come without them (semantics 2.10). output and lse
 * may be those of one of the states. */
int attn_merge_states(const attn_state_t *states, int32_t num_states, int64_t num_tokens,
                      const DLTensor *sinks, const DLTensor *output, const DLTensor *lse, void *stream,
                      attn_error_t *error);

/* The share of one state in the merge: weighed = output * exp(lse[own] - total), total the merged LSE of
 * lses [num_states]; rows of a state without keys become 0. The sum of all states' shares is the merged
 * output (semantics 8.4). weighed may be output; lse, if given, receives the total. */
int attn_merge_weigh(const DLTensor *output, const DLTensor *const *lses, int32_t num_states, int32_t own,
                     int64_t num_tokens, const DLTensor *sinks, const DLTensor *weighed, const DLTensor *lse,
                     void *stream, attn_error_t *error);

/* Copies `from` to `to`, tensors of one shape of 1 to 6 dimensions with any strides: packs, unpacks and
 * reorders, since an order of rows or heads is a choice of strides. Equal element types are copied as they
 * are, whatever they are; else e4m3, e5m2, float16, bfloat16, float32 and float64 become float16,
 * bfloat16, float32 or float64, times scale, float32 [1] (NULL: 1), rounded once: a cache in one of the
 * fp8 formats is dequantised so. A scale with equal element types is refused. They may not overlap. */
int attn_rows_copy(const DLTensor *from, const DLTensor *scale, const DLTensor *to, void *stream,
                   attn_error_t *error);

/* to[i] = from[rows[i]] for the entries of rows, int64 [n]; to has at least n rows and otherwise from's
 * shape. A negative entry gives a row of zeros; one beyond from's rows is refused. Types and scale:
 * attn_rows_copy. */
int attn_rows_gather(const DLTensor *from, const DLTensor *rows, const DLTensor *scale, const DLTensor *to,
                     void *stream, attn_error_t *error);
/* to[rows[i]] = from[i]; a negative entry is skipped. Of entries that occur twice the last is kept. */
int attn_rows_scatter(const DLTensor *from, const DLTensor *rows, const DLTensor *scale, const DLTensor *to,
                      void *stream, attn_error_t *error);

/* The functions above for plugins: attn_host_t.get_extension(ctx, ATTN_MERGE_EXTENSION), with device_type
 * kDLCPU. In the other direction a backend gives those of its device by the same id in its get_extension, for
 * which the host asks each backend once when its plugin is loaded: the first table of a device type stays
 * until the process ends. The host checks arguments before it calls them; they must not wait. */
#define ATTN_MERGE_EXTENSION "attn.ext.merge/1"

/* Ranks that load and store each other's memory (attn_comm_t.peers): of every rank of_rank[r] begins with
 * ATTN_PEERS_CONTROL_BYTES that belong to the two functions below, zeroes at first; the regions lie alike on
 * all ranks, at multiples of 256 bytes. Heads of all ranks are in the order of semantics 8.6. Ranks that
 * share a device must be on streams of their own, since a kernel of one waits there for kernels of the
 * other. */
enum { ATTN_PEERS_MAX = 8, ATTN_PEERS_CONTROL_BYTES = 256 };
typedef struct attn_peers {
    uint32_t struct_size;
    int32_t world, rank;    /* 2 .. ATTN_PEERS_MAX */
    uint32_t dtype;         /* ATTN_DTYPE_* of queries, of 2 or 4 bytes */
    uint32_t partial_dtype; /* of results: ATTN_DTYPE_FLOAT32, _FLOAT16 or _BFLOAT16 */
    int32_t num_heads;      /* of a rank */
    int32_t num_kv_heads;
    int32_t query_size; /* a row has a multiple of 16 bytes */
    int32_t value_size; /* a multiple of 8 */
    int32_t lse_columns;
    int32_t device_id;   /* of this rank's memory and stream */
    int32_t first_token; /* of the batch: token 0 of the regions below */
    uint64_t limit_ms;   /* of a wait for another rank, at least 1 */
    uint64_t query_at;   /* [T, world num_heads, query_size], received */
    uint64_t output_at;  /* [T, world num_heads, value_size], this rank's partial results */
    uint64_t lse_at;     /* float32 [world num_heads, lse_columns], with their LSE */
    uint64_t
        places_at; /* int64 [T]: first_token + t, or another number where this rank has no key of token t */
    void *const *of_rank; /* [world] */
    /* [2][world][packed_bytes], zeroes at first: for queries and for results, room for what each rank sends
     * in a form of the functions' own. packed_bytes 0: there is none, and where it is too small, or parts
     * are more than 1, it is not used */
    uint64_t packed_at;
    uint64_t packed_bytes;
    /* The queries of parts 0, 1 .. parts - 1 of a batch are exchanged one after the other, and behind them
     * the results in the same order, all on one stream; of a batch in one piece parts is 1. */
    int32_t part;
    int32_t parts;
} attn_peers_t;

/* The first member of the memory's control bytes: bit r says that rank r did not come within the limit. What
 * was not there of that call's results, and those of all later ones, are not numbers then, on this rank and
 * in the end on all. */
typedef uint64_t attn_peers_failed_t;

typedef struct attn_merge_table {
    uint32_t struct_size;
    int32_t device_type; /* DLDeviceType of the tensors */
    int (*merge_states)(const attn_state_t *states, int32_t num_states, int64_t num_tokens,
                        const DLTensor *sinks, const DLTensor *output, const DLTensor *lse, void *stream,
                        attn_error_t *error);
    int (*merge_weigh)(const DLTensor *output, const DLTensor *const *lses, int32_t num_states, int32_t own,
                       int64_t num_tokens, const DLTensor *sinks, const DLTensor *weighed,
                       const DLTensor *lse, void *stream, attn_error_t *error);
    int (*rows_copy)(const DLTensor *from, const DLTensor *scale, const DLTensor *to, void *stream,
                     attn_error_t *error);
    int (*rows_gather)(const DLTensor *from, const DLTensor *rows, const DLTensor *scale, const DLTensor *to,
                       void *stream, attn_error_t *error);
    int (*rows_scatter)(const DLTensor *from, const DLTensor *rows, const DLTensor *scale, const DLTensor *to,
                        void *stream, attn_error_t *error);
    /* Both or neither; the kernels wait for the other ranks, the calls do not. Stores query [>= T, H, D],
     * and goes on when those of all ranks are here. NULL: this rank has none, but the others must not wait
     * for it. Rows are dense in their last dimension, here and below. */
    int (*peers_query)(const attn_peers_t *peers, const DLTensor *query, int64_t num_tokens, void *stream,
                       attn_error_t *error);
    /* When the partial results of all ranks are there, merges those of this rank's heads: sinks, output and
     * lse as attn_merge_states, in float32. output NULL: this rank wants none, and the others get theirs. */
    int (*peers_join)(const attn_peers_t *peers, int64_t num_tokens, const DLTensor *sinks,
                      const DLTensor *output, const DLTensor *lse, void *stream, attn_error_t *error);
} attn_merge_table_t;

#ifdef __cplusplus
}
#endif
#endif
