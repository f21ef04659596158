/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_comm.c: a group gets its communicator, and the ranks compare what they were opened with. */
#include "base/need.h"
#include "base/reserved.h"
#include "group/ranks.h"

#include <stdio.h>
#include <stdlib.h>

/* What one rank says when the ranks meet: words of problem text, so that a difference has a name. */
struct meeting {
    int32_t code;
    int32_t rank;
    char param[64];
    char error[176];
    uint64_t part_bytes; /* 0: this rank's batches have one part */
    char text[3840];
};

static int check_comm(const attn_comm_t *c, const struct attni_ranks *k, attn_error_t *error) {
    if (c->all_gather == NULL || c->all_to_all == NULL || c->reduce_scatter == NULL)
        return attn_fail(error, ATTN_E_INVALID, "comm",
                         "comm lacks all_gather, all_to_all or reduce_scatter; a group uses all three");
    if (c->world < 1 || c->rank < 0 || c->rank >= c->world)
        return attn_fail(error, ATTN_E_INVALID, "comm", "comm is rank %d of %d; ranks are 0 .. world - 1",
                         (int)c->rank, (int)c->world);
    if ((c->flags & ~ATTN_COMM_DEVICE) != 0)
        return attn_fail(error, ATTN_E_TOO_NEW, "comm",
                         "comm has flags 0x%x; this library knows ATTN_COMM_DEVICE", (unsigned)c->flags);
    const int is_device = (c->flags & ATTN_COMM_DEVICE) != 0;
    if (is_device != k->is_device)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "comm",
                         is_device
                             ? "comm exchanges device memory (ATTN_COMM_DEVICE), and this group runs on a CPU"
                             : "comm exchanges host memory, and this group runs on a device; give one with "
                               "ATTN_COMM_DEVICE (attn_comm_nccl.h), or stage it (attn_comm_staged.h)");
    if (is_device && c->wait == NULL)
        return attn_fail(error, ATTN_E_INVALID, "comm",
                         "comm has ATTN_COMM_DEVICE and no wait; without it a missing rank is not noticed");
    if (c->peers != NULL && (!is_device || c->limit_ms < 1 || c->limit_ms > UINT32_MAX))
        return attn_fail(error, ATTN_E_INVALID, is_device ? "limit_ms" : "peers",
                         is_device
                             ? "comm has peers and limit_ms %llu; expected 1 to 4294967295: how long a "
                               "kernel waits for another rank"
                             : "comm has peers, limit_ms %llu, and exchanges host memory; peers are for "
                               "devices (ATTN_COMM_DEVICE)",
                         (unsigned long long)c->limit_ms);
    return ATTN_OK;
}

/* What can be said only to all ranks, since the communicator works. */
static int check_place(const attn_comm_t *c, const struct attni_ranks *k, uint32_t join,
                       attn_error_t *error) {
    if (k->is_joined)
        return attn_fail(error, ATTN_E_STATE, "comm", "the group has a communicator; it is given once");
    if (c->world != k->world)
        return attn_fail(error, ATTN_E_INVALID, "dcp_world_size",
                         "dcp_world_size is %d and the communicator has %d ranks; they must be equal",
                         (int)k->world, (int)c->world);
    if (c->rank != k->rank)
        return attn_fail(error, ATTN_E_INVALID, "dcp_rank",
                         "dcp_rank is %d and the communicator's rank %d; they must be equal", (int)k->rank,
                         (int)c->rank);
    if (join != ATTN_JOIN_ALL_TO_ALL && join != ATTN_JOIN_REDUCE_SCATTER)
        return attn_fail(error, ATTN_E_INVALID, "join",
                         "join is %u; give ATTN_JOIN_ALL_TO_ALL, ATTN_JOIN_REDUCE_SCATTER or 0",
                         (unsigned)join);
    return ATTN_OK;
}

static void say(const attn_group_t *g, const attn_comm_t *c, uint32_t join, struct meeting *m) {
    attn_problem_t p = g->problem;
    p.dcp_rank = 0;
    p.num_blocks = 0; /* a rank may have more room than another */
    int used = attn_problem_format(&p, m->text, sizeof m->text);
    if (used > 0 && (size_t)used < sizeof m->text)
        snprintf(m->text + used, sizeof m->text - (size_t)used,
                 " backend=%s options=%016llx join=%s peers=%s", g->backend->shown.name,
                 (unsigned long long)g->options_hash,
                 join == ATTN_JOIN_ALL_TO_ALL ? "all_to_all" : "reduce_scatter",
                 attni_ranks_can_peers(g, c, join) ? "yes" : "no");
}

/* The value of the word `key`= in text, or nothing. */
static const char *value_of(const char *text, const char *key, size_t length, size_t *size) {
    for (const char *w = text; *w != '\0';) {
        const size_t n = strcspn(w, " ");
        if (n > length && w[length] == '=' && memcmp(w, key, length) == 0) {
            *size = n - length - 1;
            return w + length + 1;
        }
        w += n;
        w += *w == ' ';
    }
    *size = strlen("not given");
    return "not given";
}

/* The first word of a that b has not, or has with another value. */
static int differs(const char *a, const char *b, int32_t rank_a, int32_t rank_b, attn_error_t *error) {
    for (const char *w = a; *w != '\0';) {
        const size_t n = strcspn(w, " "), key = strcspn(w, "=");
        size_t size;
        const char *other = value_of(b, w, key, &size);
        if (size != n - key - 1 || memcmp(other, w + key + 1, size) != 0) {
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)key, w);
            return attn_fail(error, ATTN_E_INVALID, name,
                             "%s is %.*s on rank %d and %.*s on rank %d; the ranks must agree", name,
                             (int)(n - key - 1), w + key + 1, (int)rank_a, (int)size, other, (int)rank_b);
        }
        w += n;
        w += *w == ' ';
    }
    return ATTN_OK;
}

static int compare(const struct meeting *all, int32_t world, attn_error_t *error) {
    int code = ATTN_OK;
    for (int32_t r = 0; r < world && code == ATTN_OK; r++)
        if (all[r].code != ATTN_OK)
            code = attn_fail(error, all[r].code, all[r].param, "rank %d of %d: %s", (int)r, (int)world,
                             all[r].error);
    for (int32_t r = 1; r < world && code == ATTN_OK; r++) {
        code = differs(all[0].text, all[r].text, 0, r, error);
        if (code == ATTN_OK) code = differs(all[r].text, all[0].text, r, 0, error);
    }
    return code;
}

/* Memory of the device for what the host exchanges, in this call and in every batch. */
static int reserve_exchange(struct attni_ranks *k, attn_error_t *error) {
    void *memory = NULL;
    if (!k->is_device || k->exchange != NULL) return ATTN_OK;
    uint64_t bytes = sizeof(struct meeting), lists = (uint64_t)k->list_entries * sizeof *k->lists;
    if (bytes < lists) bytes = lists;
    bytes = (bytes + 255) / 256 * 256;
    int code = k->kind->alloc(k->device_id, (size_t)(bytes * ((uint64_t)k->world + 1)), &memory, error);
    if (code != ATTN_OK) return code;
    k->exchange = memory;
    k->exchange_bytes = bytes;
    return ATTN_OK;
}

int attn_group_set_comm(attn_group_t *group, const attn_comm_t *comm, uint32_t join, attn_error_t *error) {
    attn_comm_t c;
    attn_error_t own = {.struct_size = sizeof own};
    int code = attni_group_check(group, error);
    if (code == ATTN_OK) code = attn_intake(&c, sizeof c, comm, "comm", error);
    if (code == ATTN_OK)
        code = attni_reserved_check("attn_comm_t", 0, c.reserved, sizeof c.reserved / sizeof c.reserved[0],
                                    error);
    if (code != ATTN_OK) return code;
    struct attni_ranks *k = group->ranks;
    if (k == NULL)
        return attn_fail(error, ATTN_E_INVALID, "group",
                         "the group has dcp_world_size %u; a communicator would be ignored",
                         (unsigned)group->problem.dcp_world_size);
    if (join == 0) join = ATTN_JOIN_ALL_TO_ALL;
    code = check_comm(&c, k, error);
    if (code != ATTN_OK) return code;
    code = reserve_exchange(k, error);
    if (code != ATTN_OK) return code;
    struct meeting *all = calloc((size_t)c.world + 1, sizeof *all);
    if (all == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the ranks' problems");
    struct meeting *mine = &all[c.world];
    mine->code = check_place(&c, k, join, &own);
    snprintf(mine->param, sizeof mine->param, "%s", own.param);
    snprintf(mine->error, sizeof mine->error, "%.*s", (int)sizeof mine->error - 1, own.text);
    mine->part_bytes = k->part_bytes;
    say(group, &c, join, mine);
    code = attni_ranks_gather(k, &c, mine, all, sizeof *mine, NULL, error);
    if (code == ATTN_OK) code = compare(all, c.world, error);
    for (int32_t r = 0; r < c.world && code == ATTN_OK; r++) /* all cut alike, or none does */
        if (all[r].part_bytes == 0 || all[r].part_bytes > k->part_bytes)
            k->part_bytes = k->part_bytes == 0 ? 0 : all[r].part_bytes;
    free(all);
    if (code == ATTN_OK && attni_ranks_can_peers(group, &c, join))
        code = attni_ranks_open_peers(group, &c, error);
    if (code != ATTN_OK) return code;
    k->comm = c;
    k->join = join;
    k->is_joined = 1;
    return ATTN_OK;
}
