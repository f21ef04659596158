/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_comm_staged.h: a communicator of host memory (attn_comm_threads.h, attn_comm_mpi.h) for a group on a
 * device: what is exchanged goes through host memory, and every call waits for its stream. It serves where
 * there is no transport between the devices, and tests. Header only; the engine compiles it.
 *
 *     attn_comm_staged_t staged;
 *     attn_comm_t comm;
 *     attn_comm_staged_init(&staged, &host_comm, &device, &comm, &error);
 *     .. attn_group_set_comm(group, &comm, 0, &error);
 *     attn_comm_staged_end(&staged);           after the groups are closed
 *
 * Calls cannot be captured in a graph.
 *
 * Ranks that are threads of one process and share the device can exchange in its memory, which also can be
 * captured:
 *
 *     attn_comm_staged_offer_peers(&staged, 10000, &comm, &error);     before attn_group_set_comm
 *
 * Kernels of one rank then wait for kernels of another, so every rank needs a stream of its own that does
 * not wait for the default stream, and between build_metadata and the end of a step nothing may stop the
 * device: no allocation, no first use of a kernel (run with CUDA_MODULE_LOADING=EAGER). It serves tests
 * above all.
 */
#ifndef ATTN_COMM_STAGED_H
#define ATTN_COMM_STAGED_H

#include <attn/attn_comm.h>
#include <attn/attn_comm_process.h>
#include <attn/attn_plugin_util.h>
#include <attn/draft/attn_device.h>

#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Members are private. */
typedef struct attn_comm_staged {
    attn_comm_t host;
    const attn_device_kind_t *kind;
    int32_t device_id;
    void *send, *recv;
    uint64_t send_bytes, recv_bytes;
    void **given; /* memory of the ranks, freed at the end */
    uint32_t num_given;
} attn_comm_staged_t;

ATTN_UNUSED static int attn_comm_staged_room_(void **room, uint64_t *has, uint64_t bytes,
                                              attn_error_t *error) {
    if (*has >= bytes) return ATTN_OK;
    free(*room);
    *room = malloc((size_t)bytes);
    *has = *room != NULL ? bytes : 0;
    return *room != NULL ? ATTN_OK
                         : attn_fail(error, ATTN_E_NO_MEMORY, "comm", "out of memory for %llu staged bytes",
                                     (unsigned long long)bytes);
}

/* What is sent, in host memory; room for what comes. */
ATTN_UNUSED static int attn_comm_staged_begin_(attn_comm_staged_t *s, const void *send, uint64_t send_bytes,
                                               uint64_t recv_bytes, void *stream, attn_error_t *error) {
    int code = attn_comm_staged_room_(&s->send, &s->send_bytes, send_bytes, error);
    if (code == ATTN_OK) code = attn_comm_staged_room_(&s->recv, &s->recv_bytes, recv_bytes, error);
    if (code == ATTN_OK)
        code = s->kind->copy_from(s->device_id, s->send, send, (size_t)send_bytes, stream, error);
    return code;
}

ATTN_UNUSED static int attn_comm_staged_finish_(attn_comm_staged_t *s, int code, void *recv, uint64_t bytes,
                                                void *stream, attn_error_t *error) {
    return code != ATTN_OK ? code
                           : s->kind->copy_to(s->device_id, recv, s->recv, (size_t)bytes, stream, error);
}

ATTN_UNUSED static int attn_comm_staged_all_gather_(void *ctx, const void *send, void *recv, uint64_t bytes,
                                                    void *stream, attn_error_t *error) {
    attn_comm_staged_t *s = (attn_comm_staged_t *)ctx;
    const uint64_t all = bytes * (uint64_t)s->host.world;
    int code = attn_comm_staged_begin_(s, send, bytes, all, stream, error);
    if (code == ATTN_OK) code = s->host.all_gather(s->host.ctx, s->send, s->recv, bytes, NULL, error);
    return attn_comm_staged_finish_(s, code, recv, all, stream, error);
}

ATTN_UNUSED static int attn_comm_staged_all_to_all_(void *ctx, const void *send, void *recv, uint64_t bytes,
                                                    void *stream, attn_error_t *error) {
    attn_comm_staged_t *s = (attn_comm_staged_t *)ctx;
    const uint64_t all = bytes * (uint64_t)s->host.world;
    int code = attn_comm_staged_begin_(s, send, all, all, stream, error);
    if (code == ATTN_OK) code = s->host.all_to_all(s->host.ctx, s->send, s->recv, bytes, NULL, error);
    return attn_comm_staged_finish_(s, code, recv, all, stream, error);
}

ATTN_UNUSED static int attn_comm_staged_reduce_scatter_(void *ctx, const void *send, void *recv,
                                                        uint64_t count, uint32_t dtype, void *stream,
                                                        attn_error_t *error) {
    attn_comm_staged_t *s = (attn_comm_staged_t *)ctx;
    const uint64_t bytes = count * attn_dtype_size(dtype);
    int code = attn_comm_staged_begin_(s, send, bytes * (uint64_t)s->host.world, bytes, stream, error);
    if (code == ATTN_OK)
        code = s->host.reduce_scatter(s->host.ctx, s->send, s->recv, count, dtype, NULL, error);
    return attn_comm_staged_finish_(s, code, recv, bytes, stream, error);
}

/* Every call has waited already. */
ATTN_UNUSED static int attn_comm_staged_wait_(void *ctx, void *stream, attn_error_t *error) {
    (void)ctx, (void)stream, (void)error;
    return ATTN_OK;
}

/* What a rank says of its memory. */
typedef struct attn_comm_staged_peer {
    attn_comm_process_t process;
    void *memory;
    int32_t device_type, device_id;
    int32_t code;
} attn_comm_staged_peer_t;

ATTN_UNUSED static int attn_comm_staged_take_(attn_comm_staged_t *s, uint64_t bytes, void **memory,
                                              attn_error_t *error) {
    void **given = (void **)realloc(s->given, (s->num_given + 1) * sizeof *given);
    if (given == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "comm", "out of memory for peers' memory");
    s->given = given;
    int code = s->kind->alloc(s->device_id, (size_t)bytes, memory, error);
    if (code != ATTN_OK) return code;
    given[s->num_given++] = *memory;
    code = s->kind->fill(s->device_id, *memory, 0, (size_t)bytes, NULL, error);
    return code == ATTN_OK ? s->kind->synchronize(s->device_id, error) : code;
}

ATTN_UNUSED static int attn_comm_staged_peers_(void *ctx, uint64_t bytes, void **of_rank,
                                               attn_error_t *error) {
    attn_comm_staged_t *s = (attn_comm_staged_t *)ctx;
    attn_comm_staged_peer_t own, *all;
    int code, is_one = 1;
    memset(&own, 0, sizeof own);
    own.process = attn_comm_process_self();
    own.device_type = s->kind->type, own.device_id = s->device_id;
    own.code = attn_comm_staged_take_(s, bytes, &own.memory, error);
    all = (attn_comm_staged_peer_t *)calloc((size_t)s->host.world, sizeof *all);
    if (all == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "comm", "out of memory for the ranks' peers");
    code = s->host.all_gather(s->host.ctx, &own, all, sizeof own, NULL, error);
    for (int32_t r = 0; r < s->host.world && code == ATTN_OK; r++) {
        is_one = is_one && attn_comm_process_is_same(&all[r].process, &all[0].process) &&
                 all[r].device_type == all[0].device_type && all[r].device_id == all[0].device_id;
        of_rank[r] = all[r].memory;
        if (all[r].code != ATTN_OK) /* its own error stays as it is */
            code = own.code != ATTN_OK
                       ? own.code
                       : attn_fail(error, all[r].code, "comm",
                                   "rank %d has no memory for what the ranks exchange", (int)r);
    }
    free(all);
    if (code == ATTN_OK && !is_one)
        code = attn_fail(
            error, ATTN_E_UNSUPPORTED, "comm",
            "the ranks are several processes or on several devices; they exchange through the host");
    return code;
}

/* Adds to comm, made by attn_comm_staged_init, what is above. limit_ms: how long a kernel waits for another
 * rank, at least 1. [one thread] */
ATTN_UNUSED static int attn_comm_staged_offer_peers(attn_comm_staged_t *staged, int64_t limit_ms,
                                                    attn_comm_t *comm, attn_error_t *error) {
    if (staged == NULL || comm == NULL || comm->ctx != staged || limit_ms < 1)
        return attn_fail(error, ATTN_E_INVALID, limit_ms < 1 ? "limit_ms" : "comm",
                         "limit_ms is %lld, expected at least 1, and comm that of attn_comm_staged_init",
                         (long long)limit_ms);
    comm->peers = attn_comm_staged_peers_;
    comm->limit_ms = (uint64_t)limit_ms;
    return ATTN_OK;
}

/* Makes *made of a communicator of host memory, for groups on `device`. staged must stay where it is until
 * attn_comm_staged_end, as host's ctx must. [one thread] */
ATTN_UNUSED static int attn_comm_staged_init(attn_comm_staged_t *staged, const attn_comm_t *host,
                                             const attn_device_t *device, attn_comm_t *made,
                                             attn_error_t *error) {
    if (staged == NULL || host == NULL || device == NULL || made == NULL)
        return attn_fail(error, ATTN_E_INVALID, "staged",
                         "staged, host, device or made is NULL; give all four");
    const attn_device_kind_t *kind = attn_device_kind(device->type);
    if (kind == NULL || (host->flags & ATTN_COMM_DEVICE) != 0)
        return attn_fail(error, ATTN_E_INVALID, kind == NULL ? "device" : "host",
                         kind == NULL ? "the kind of the device is not known: load the plugin that brings it"
                                      : "host exchanges device memory itself; give it to the group");
    memset(staged, 0, sizeof *staged);
    staged->host = *host;
    staged->kind = kind;
    staged->device_id = device->id;
    ATTN_INIT(attn_comm_t, c);
    c.flags = ATTN_COMM_DEVICE;
    c.world = host->world;
    c.rank = host->rank;
    c.ctx = staged;
    c.all_gather = attn_comm_staged_all_gather_;
    c.all_to_all = attn_comm_staged_all_to_all_;
    c.reduce_scatter = attn_comm_staged_reduce_scatter_;
    c.wait = attn_comm_staged_wait_;
    *made = c;
    return ATTN_OK;
}

/* Frees the host memory, and what peers were given, so after the groups of all ranks are closed. [one
 * thread] */
ATTN_UNUSED static void attn_comm_staged_end(attn_comm_staged_t *staged) {
    if (staged == NULL) return;
    free(staged->send);
    free(staged->recv);
    for (uint32_t i = 0; i < staged->num_given; i++)
        staged->kind->free(staged->device_id, staged->given[i]);
    free(staged->given);
    staged->given = NULL;
    staged->num_given = 0;
    staged->send = staged->recv = NULL;
    staged->send_bytes = staged->recv_bytes = 0;
}

#ifdef __cplusplus
}
#endif
#endif
