/* SPDX-License-Identifier: Apache-2.0 */
/* A group over ranks: what the files ranks_*.c share. */
#ifndef ATTNI_RANKS_H
#define ATTNI_RANKS_H

#include "group/group.h"

#include <attn/attn_comm.h>
#include <attn/attn_merge.h>
#include <attn/draft/attn_device.h>

/* What a rank says of itself in every exchange, before its data. */
struct attni_word {
    uint32_t what;    /* ATTNI_WORD_* */
    int32_t code;     /* ATTN_OK, or why this rank cannot go on */
    int32_t num_reqs; /* of a batch */
    int32_t tokens;
    uint64_t starts, lens, causal; /* fingerprints of the batch's lists; starts: of the layer's name */
    uint64_t ran;                  /* on a device: of the layers since the batch before */
    char param[32];
    char text[176];
};
enum { ATTNI_WORD_BATCH = 1, ATTNI_WORD_QUERY, ATTNI_WORD_RESULT, ATTNI_WORD_WEIGHTS };
_Static_assert(sizeof(struct attni_word) == 256, "payloads behind it are aligned");

/* A large batch on a device is attended to in parts, the exchanges of one beside attention to another. */
enum { ATTNI_RANKS_PARTS = 8 };
struct attni_ranks_part {
    int32_t first_piece, longest_query, longest_seq; /* of a rewritten batch */
};

struct attni_ranks {
    int32_t world, rank, interleave;
    uint32_t partial; /* ATTN_DTYPE_* of partial results */
    int64_t heads, kv_heads, query_size, value_size;
    int64_t max_pieces, columns; /* of a rewritten batch */
    uint64_t workspace_at;       /* of the ranks' part of the workspace */
    uint64_t send_bytes, recv_bytes, query_bytes, partial_bytes, lse_bytes; /* its regions */
    uint32_t join;                                                          /* ATTN_JOIN_* */
    int is_joined;
    attn_comm_t comm;
    int is_device;                  /* attention and exchanges are on a stream */
    const attn_device_kind_t *kind; /* then: its operations */
    int32_t device_id;
    char *exchange; /* then: memory there for what the host sends, [exchange_bytes] to send, then received */
    uint64_t exchange_bytes;
    uint64_t ran;             /* then: fingerprint of the layers that ran since the last batch */
    struct attni_word late;   /* then: an error of this rank that the others do not know yet */
    struct attni_word own;    /* sent */
    struct attni_word *words; /* [world], received */
    int64_t peer_tokens;      /* of the largest batch: all go through the peers' memory; 0: none does */
    attn_peers_t peers;       /* then: what lies where */
    void *peer_memory[ATTN_PEERS_MAX];
    int is_hooked;       /* calls of the backend are watched, which parts would confuse */
    uint64_t query_row;  /* bytes of a token's queries */
    uint64_t part_bytes; /* of a rank's queries in a part, at least; 0: batches have one part */
    int32_t most_parts;  /* of the largest batch */
    struct attni_ranks_part parts[ATTNI_RANKS_PARTS + 1]; /* of the batch that is built */
    attn_instance_t *beside; /* then, or NULL: the backend, leaving multiprocessors to the exchanges */
    void *side;              /* then: a stream for exchanges */
    void *gathered[ATTNI_RANKS_PARTS], *passed; /* then: events */
    int has_empty;  /* on a device: a token of the last batch may have no key here */
    int32_t *lists; /* of batches that differ: own, then all ranks' */
    int64_t list_entries;
    struct attni_ranks_state *states; /* [world], for merging */
    attn_state_t *merged;             /* [world] */
    const DLTensor **lses;            /* [world] */
};

/* A received partial result as tensors. */
struct attni_ranks_state {
    DLTensor output, lse;
    int64_t output_shape[3], output_strides[3], lse_shape[2], lse_strides[2];
};

/* The ranks' part of the metadata on a CPU. */
struct attni_ranks_meta {
    int32_t tokens;
    uint8_t is_empty[]; /* [max_num_batched_tokens]: this rank has no key of the token */
};

/* For a problem of more than one rank: *ranks, and the problem of the backend. */
int attni_ranks_open(const struct attni_backend *backend, const attn_device_t *device,
                     const attn_problem_t *p, struct attni_ranks **ranks, attn_problem_t *inner,
                     attn_error_t *error);
void attni_ranks_close(struct attni_ranks *ranks);
/* Adds what a group over ranks needs beside its backend. */
void attni_ranks_needed(attn_group_t *g);
static inline struct attni_ranks_meta *attni_ranks_meta(const attn_group_t *g, const attn_space_t *s) {
    return (struct attni_ranks_meta *)(void *)((char *)s->metadata + attni_wrap_device_offset(g));
}

/* The same on a device, in the metadata there: requests of the pieces, places of the tokens in the LSE,
 * tables of the pieces, and -inf. */
struct attni_ranks_lists {
    int64_t *requests;   /* [max_pieces] */
    int64_t *lse_places; /* [max_pieces]: the token, or lse_columns - 1, where -inf stands: no key here */
    int32_t *table;      /* [max_pieces][columns] */
    float *minus_infinity;
};
struct attni_ranks_lists attni_ranks_lists(const attn_group_t *g, const attn_space_t *s);
uint64_t attni_ranks_lists_bytes(const attn_group_t *g);
/* Columns of the LSE of all heads in the workspace: tokens, and on a device one more. */
static inline int64_t attni_ranks_lse_columns(const struct attni_ranks *k, int64_t tokens) {
    return k->is_device ? k->max_pieces + 1 : tokens;
}

/* Around a wait of the communicator's: the group's device is current. The default stream (NULL) is that of
 * the current device, and a wait for another device's would end at once. */
static inline int attni_ranks_enter(const struct attni_ranks *k, void **previous, attn_error_t *error) {
    return k->kind->enter != NULL ? k->kind->enter(k->device_id, previous, error) : ATTN_OK;
}
static inline void attni_ranks_leave(const struct attni_ranks *k, void *previous) {
    if (k->kind->leave != NULL) k->kind->leave(k->device_id, previous);
}

/* recv [world][bytes] of send [bytes], both in host memory. Waits. [collective] */
int attni_ranks_gather(const struct attni_ranks *k, const attn_comm_t *comm, const void *send, void *recv,
                       uint64_t bytes, void *stream, attn_error_t *error);

/* Fills a word for a rank whose own checks gave `code`. */
void attni_word_say(struct attni_word *w, uint32_t what, int code, const attn_error_t *error);
/* The received words, `step` bytes apart: the own error, else that of a rank that has one. */
int attni_words_check(const struct attni_ranks *k, uint32_t what, const void *words, uint64_t step, int code,
                      attn_error_t *error);

/* Whether the ranks can exchange in each other's memory, as far as one can say alone; takes the memory,
 * unless the communicator says that there is none [collective]; what the device says of waits that were not
 * met, as this rank's late error. */
int attni_ranks_can_peers(const attn_group_t *g, const attn_comm_t *comm, uint32_t join);
int attni_ranks_open_peers(attn_group_t *g, const attn_comm_t *comm, attn_error_t *error);
int attni_ranks_check_peers(struct attni_ranks *k, void *stream, attn_error_t *error);

/* How many parts batches can have at most, with what they need; before the ranks have agreed. */
int attni_ranks_open_parts(attn_group_t *g, attn_error_t *error);
void attni_ranks_close_parts(struct attni_ranks *k);
/* Parts of a batch, at least 1, and the first token of part i. The same on every rank. */
int32_t attni_ranks_parts(const struct attni_ranks *k, int64_t tokens, uint32_t batch_flags);
int64_t attni_ranks_part_begin(int64_t tokens, int32_t parts, int32_t i);
/* Where the backend's metadata of a part lie; bytes that parts beyond the first add. */
attn_space_t attni_ranks_part_space(const attn_group_t *g, const attn_space_t *space, int32_t part);
uint64_t attni_ranks_parts_metadata(const attn_group_t *g);
uint64_t attni_ranks_parts_host(const attn_group_t *g);
static inline attn_instance_t *attni_ranks_instance(const attn_group_t *g, int32_t parts) {
    return parts > 1 && g->ranks->beside != NULL ? g->ranks->beside : g->stage.instance;
}
/* Lets the backend plan each part of a rewritten batch. */
typedef int attni_ranks_plan(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                             void *stream, attn_error_t *error);
int attni_ranks_build(const attn_group_t *g, attni_ranks_plan *plan, const attn_batch_t *b,
                      const attn_space_t *space, void *stream, attn_error_t *error);

/* Host bytes of a batch that attni_ranks_cut rewrites. */
uint64_t attni_ranks_host_bytes(const attn_group_t *g);

/* Compares the ranks' batches; code: of the checks that this rank made. [collective] */
int attni_ranks_agree(const attn_group_t *g, const attn_batch_t *b, int code, void *stream,
                      attn_error_t *error);
/* Cuts the batch into pieces whose keys this rank has. */
int attni_ranks_cut(const attn_group_t *g, attn_batch_t *b, void *room, const attn_space_t *space,
                    void *stream, attn_error_t *error);
/* Local lengths that the engine gives must be those that follow from the others. */
int attni_ranks_check_local(const attn_group_t *g, const attn_batch_t *b, attn_error_t *error);

#endif
