/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_comm.h: context parallelism. A group whose problem has dcp_world_size n above 1 keeps one n-th of
 * every request's tokens in its cache, and n groups on n ranks attend together: queries are gathered, each
 * rank attends to the keys that it has, and the results are joined by their LSE (semantics 8).
 * doc/parallel.md is the guide.
 *
 *   1. attn_group_open            on every rank, the same problem but for dcp_rank. num_heads are the
 *   rank's own
 *                                 query heads; every rank has the same KV heads
 *   2. attn_group_set_comm        once; collective
 *   3. attn_group_build_metadata  once per step, the same batch on every rank but for its tables; collective
 *   4. attn_layer_update_kv_cache with slots of attn_plan_slot_mapping, which knows the ranks
 *   5. attn_layer_forward         each layer in the same order on every rank; collective. Gives the rank's
 *   heads
 *
 * COLLECTIVE calls are made by all ranks, in the same order, and return on every rank. If one rank refuses
 * its arguments, or the ranks do not agree, all of them get an error that names the rank or the member and
 * both values; if a rank does not come, the communicator's time limit ends the wait. Profiling runs (space
 * NULL) and batches without tokens are collective only as far as build_metadata is.
 *
 * WHERE: on CPUs, and on devices on which a loaded plugin merges (attn_merge.h; on CUDA flash and mla do),
 * with every backend that lists ATTN_F_LSE, for the roles decoder and mla. What a group over ranks does not
 * serve is refused by name when it is selected: semantics 8.5.
 *
 * ON A DEVICE forward waits for nothing, so a rank cannot tell the others in it that its arguments are
 * refused: it makes its exchanges all the same, the others' results of that call are not numbers, and the
 * next build_metadata gives all ranks its error. set_comm, build_metadata and prepare_weights wait for the
 * stream.
 *
 * PEERS: where the communicator gives memory that all ranks load and store (`peers`), all are asked to join
 * by all-to-all, and the plugin that merges has kernels for it, batches are exchanged inside two kernels,
 * without calls of the communicator: the first stores the queries where they are wanted, the second takes
 * the peers' results and merges them. Prompts are cut into parts, of which one is exchanged while another is
 * attended to. The kernels wait on the device; a wait longer than limit_ms ends, and the next build_metadata
 * says which rank did not come.
 *
 * The communicator is the engine's: libattn links no transport. attn_comm_threads.h makes one of threads,
 * attn_comm_mpi.h one of MPI, attn_comm_nccl.h one of NCCL, and attn_comm_staged.h takes one of host
 * memory to a device; all are compiled by the engine.
 *
 * "semantics n.m" is a section of doc/semantics.md (installed in share/doc/libattn).
 */
#ifndef ATTN_COMM_H
#define ATTN_COMM_H

#include <attn/attn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Buffers of the calls are memory of the group's device and the calls are put on `stream`, and there is
 * `wait`; without it they are host memory and the calls are done when they return. A group takes the one that
 * fits its device. */
#define ATTN_COMM_DEVICE (UINT32_C(1) << 0)

/* One rank of a communicator. Every function is collective, is called with equal sizes on every rank, returns
 * ATTN_OK or ATTN_E_* with *error filled, and never waits without a limit. After an error the communicator is
 * used no more. One thread at a time per rank. */
typedef struct attn_comm {
    uint32_t struct_size;
    uint32_t flags; /* ATTN_COMM_* */
    int32_t world;  /* ranks, at least 1 */
    int32_t rank;   /* 0 .. world - 1 */
    void *ctx;      /* first argument of the functions */
    /* recv [world][bytes]: part i is what rank i gave as send [bytes]. */
    int (*all_gather)(void *ctx, const void *send, void *recv, uint64_t bytes, void *stream,
                      attn_error_t *error);
    /* recv [world][bytes]: part i is part `rank` of what rank i gave as send [world][bytes]. */
    int (*all_to_all)(void *ctx, const void *send, void *recv, uint64_t bytes, void *stream,
                      attn_error_t *error);
    /* recv [count] = sum over ranks of part `rank` of their send [world][count]; dtype: ATTN_DTYPE_FLOAT32,
     * _FLOAT64, _FLOAT16 or _BFLOAT16. */
    int (*reduce_scatter)(void *ctx, const void *send, void *recv, uint64_t count, uint32_t dtype,
                          void *stream, attn_error_t *error);
    /* With ATTN_COMM_DEVICE: waits until what was put on the stream is done, or an error is known: also
     * that a rank did not come within the communicator's limit. NULL without. */
    int (*wait)(void *ctx, void *stream, attn_error_t *error);
    /* With ATTN_COMM_DEVICE, or NULL: `bytes` of memory on the group's device, zeroes, aligned to 256, and
     * in of_rank [world] where this rank's kernels load and store what every rank got by the same call;
     * of_rank[rank] is its own. It stays until the communicator is ended. Where one rank cannot reach
     * another, all get ATTN_E_UNSUPPORTED, and a group goes on without. [collective] */
    int (*peers)(void *ctx, uint64_t bytes, void **of_rank, attn_error_t *error);
    uint64_t limit_ms; /* with peers: how long a kernel waits there for another rank, at least 1 */
    uint64_t reserved[1];
} attn_comm_t;

/* How the results of the ranks are joined (semantics 8.4). */
enum {
    ATTN_JOIN_ALL_TO_ALL = 1,    /* each rank gets results and LSE of its heads from all and merges them */
    ATTN_JOIN_REDUCE_SCATTER = 2 /* all LSE are gathered, each rank weighs its results, sums are scattered */
};

/* Gives a group of dcp_world_size above 1 its communicator and compares the ranks: world, ranks, backend
 * and its options, join and every member of the problem but dcp_rank and num_blocks must agree. comm is
 * copied; its ctx must live until the group is closed. join: ATTN_JOIN_*, 0: all-to-all. Once per group,
 * before its first batch; may allocate. [instance] [collective] */
int attn_group_set_comm(attn_group_t *group, const attn_comm_t *comm, uint32_t join, attn_error_t *error);

#ifdef __cplusplus
}
#endif
#endif
