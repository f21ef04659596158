/* SPDX-License-Identifier: Apache-2.0 */
/* The exchanges of attn_merge.h in peers' memory on CUDA devices: what the host has laid out becomes the
 * kernels' parameters. */
#include "gpu_device.h"
#include "gpu_merge.h"
#include "kernels/cuda/merge/peers_params.h"

#include <string.h>

_Static_assert(sizeof(peers_control) <= ATTN_PEERS_CONTROL_BYTES && (int)PEERS_MAX == (int)ATTN_PEERS_MAX,
               "the header promises no more");

static int type_of(uint32_t dtype) {
    return dtype == ATTN_DTYPE_FLOAT32 ? MERGE_F32 : dtype == ATTN_DTYPE_FLOAT16 ? MERGE_F16 : MERGE_BF16;
}

static int begin(peers_params *p, const attn_peers_t *raw, attn_peers_t *peers, int64_t num_tokens,
                 attn_error_t *error) {
    int code = attn_intake(peers, sizeof *peers, raw, "attn_peers_t", error);
    if (code != ATTN_OK) return code;
    if (peers->world < 2 || peers->world > PEERS_MAX || num_tokens > INT32_MAX)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "peers",
                         "%d ranks and %lld tokens; at most %d ranks do so", (int)peers->world,
                         (long long)num_tokens, PEERS_MAX);
    memset(p, 0, sizeof *p);
    for (int32_t r = 0; r < peers->world; r++)
        p->base[r] = peers->of_rank[r];
    p->world = peers->world, p->rank = peers->rank, p->tokens = (int32_t)num_tokens;
    p->heads = peers->num_heads, p->group = peers->num_heads / peers->num_kv_heads;
    p->limit_ns = peers->limit_ms * 1000000;
    p->partial = type_of(peers->partial_dtype);
    p->part = peers->part, p->parts = peers->parts, p->first = peers->first_token;
    /* Each rank has one room for another's packed message. Between the messages of two layers lies an
     * exchange the other way, which says that the first was taken; between those of a batch's parts there is
     * none. */
    p->packed_bytes = peers->parts > 1 ? 0 : peers->packed_bytes;
    p->lse_at = peers->lse_at, p->places_at = peers->places_at, p->columns = peers->lse_columns;
    return ATTN_OK;
}

/* Entered on the device of the memory, and left again. */
static int run(int (*launch)(const peers_params *, void *), const peers_params *p, int32_t device,
               const char *what, void *stream, attn_error_t *error) {
    gpu_device_guard guard;
    int code = gpu_enter(device, &guard, error);
    if (code != ATTN_OK) return code;
    const int e = launch(p, stream);
    gpu_leave(&guard);
    return e ? gpu_fail(error, e, what) : ATTN_OK;
}

int gpu_peers_query(const attn_peers_t *raw, const DLTensor *query, int64_t num_tokens, void *stream,
                    attn_error_t *error) {
    attn_peers_t peers;
    peers_params p;
    int code = begin(&p, raw, &peers, num_tokens, error);
    if (code != ATTN_OK) return code;
    const uint64_t row = (uint64_t)peers.query_size * attn_dtype_size(peers.dtype);
    p.at = peers.query_at;
    p.packed_at = peers.packed_at;
    p.unit = 16;
    if (query != NULL) {
        const uint64_t token = (uint64_t)attn_byte_stride(query, 0),
                       head = (uint64_t)attn_byte_stride(query, 1);
        p.from = attn_data(query);
        if ((((uintptr_t)p.from | token | head | row) & 15) != 0) p.unit = 2;
        p.from_token = (int64_t)token / p.unit, p.from_head = (int64_t)head / p.unit;
    }
    p.size = (int32_t)(row / (uint64_t)p.unit);
    return run(peers_query_run, &p, peers.device_id, "storing queries with the peers", stream, error);
}

int gpu_peers_join(const attn_peers_t *raw, int64_t num_tokens, const DLTensor *sinks, const DLTensor *output,
                   const DLTensor *lse, void *stream, attn_error_t *error) {
    attn_peers_t peers;
    peers_params p;
    int code = begin(&p, raw, &peers, num_tokens, error);
    if (code != ATTN_OK) return code;
    p.at = peers.output_at;
    p.packed_at = peers.packed_at + (uint64_t)peers.world * peers.packed_bytes;
    p.size = peers.value_size;
    for (p.lanes = 1; p.lanes * 8 < p.size && p.lanes < 128; p.lanes *= 2)
        ;
    if (output != NULL) {
        const uint64_t bytes = attn_dtype_size(attn_dtype_of(output->dtype));
        const uint64_t all = (uint64_t)(uintptr_t)attn_data(output) | (uint64_t)attn_byte_stride(output, 0) |
                             (uint64_t)attn_byte_stride(output, 1);
        p.output = attn_data(output), p.type = type_of(attn_dtype_of(output->dtype));
        p.token = output->strides[0], p.head = output->strides[1];
        p.is_aligned = (all & (bytes * 4 - 1)) == 0;
    }
    if (sinks != NULL) p.sinks = attn_data(sinks), p.sink = sinks->strides[0];
    if (lse != NULL) p.lse = attn_data(lse), p.lse_head = lse->strides[0], p.lse_token = lse->strides[1];
    return run(peers_join_run, &p, peers.device_id, "merging the peers' results", stream, error);
}
