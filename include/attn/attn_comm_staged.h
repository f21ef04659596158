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
 */
#ifndef ATTN_COMM_STAGED_H
#define ATTN_COMM_STAGED_H

#include <attn/attn_comm.h>
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

/* Frees the host memory. [one thread] */
ATTN_UNUSED static void attn_comm_staged_end(attn_comm_staged_t *staged) {
    if (staged == NULL) return;
    free(staged->send);
    free(staged->recv);
    staged->send = staged->recv = NULL;
    staged->send_bytes = staged->recv_bytes = 0;
}

#ifdef __cplusplus
}
#endif
#endif
