/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_weights.c: the projections of latent attention over ranks: each rank has those of its own heads,
 * and its backend needs those of all (semantics 8.6). Once, after loading; waits for the exchange. */
#include "layer/ranks_forward.h"

#include <stdlib.h>

/* Room in host memory, or on the group's device. */
static int take_room(const struct attni_ranks *k, uint64_t bytes, char **room, attn_error_t *error) {
    void *memory = NULL;
    if (k->is_device) {
        int code = k->kind->alloc(k->device_id, (size_t)bytes, &memory, error);
        *room = memory;
        return code;
    }
    *room = malloc((size_t)bytes);
    return *room != NULL ? ATTN_OK
                         : attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the ranks' projections");
}

static void give_room(const struct attni_ranks *k, char *room) {
    if (k->is_device)
        k->kind->free(k->device_id, room);
    else
        free(room);
}

/* All ranks go on, or none. */
static int agree(struct attni_ranks *k, int code, void *stream, attn_error_t *error) {
    attni_word_say(&k->own, ATTNI_WORD_WEIGHTS, code, error);
    attn_error_t comm_error = {.struct_size = sizeof comm_error};
    const int sent = attni_ranks_gather(k, &k->comm, &k->own, k->words, sizeof k->own, stream, &comm_error);
    if (sent != ATTN_OK)
        return code != ATTN_OK ? code : attn_fail(error, sent, comm_error.param, "%s", comm_error.text);
    return attni_words_check(k, ATTNI_WORD_WEIGHTS, k->words, sizeof *k->words, code, error);
}

int attni_ranks_weights(attn_layer_t *layer, const attn_weights_t *weights, int code, void *stream,
                        attn_error_t *error) {
    const attn_group_t *g = layer->group;
    struct attni_ranks *k = g->ranks;
    const attn_problem_t *p = &g->problem;
    const DLTensor *proj = weights->kv_b_proj;
    attn_error_t own = {.struct_size = sizeof own};
    if (error == NULL) error = &own;
    if (!k->is_joined)
        return attn_fail(
            error, ATTN_E_STATE, "group",
            "the group has dcp_world_size %d and no communicator; call attn_group_set_comm first",
            (int)k->world);
    if (code == ATTN_OK && (attn_dtype_of(proj->dtype) != p->dtype || weights->kv_b_proj_scale != NULL))
        code = attn_fail(
            error, ATTN_E_UNSUPPORTED, "kv_b_proj",
            "kv_b_proj is %s%s; over ranks the projections of all are gathered in the model's dtype %s, "
            "without a scale",
            attn_dtype_name(attn_dtype_of(proj->dtype)),
            weights->kv_b_proj_scale != NULL ? " with a scale" : "", attn_dtype_name(p->dtype));
    int64_t shape[2] = {(int64_t)p->num_heads * (p->qk_nope_head_dim + p->v_head_dim), p->kv_lora_rank},
            strides[2] = {p->kv_lora_rank, 1};
    const uint64_t rows = (uint64_t)(shape[0] * shape[1]) * attn_dtype_size(p->dtype);
    char *room = NULL;
    if (code == ATTN_OK) code = take_room(k, rows * (uint64_t)(k->world + 1), &room, error);
    void *on = k->is_device ? stream : NULL;
    DLTensor mine = {.data = room,
                     .device = attni_device_of(g),
                     .ndim = 2,
                     .dtype = attn_dl_dtype(p->dtype),
                     .shape = shape,
                     .strides = strides};
    if (code == ATTN_OK) {
        DLTensor from = *proj;
        from.shape = shape; /* rows of more are not looked at */
        code = attn_rows_copy(&from, NULL, &mine, on, error);
    }
    code = agree(k, code, stream, error);
    if (code == ATTN_OK) code = k->comm.all_gather(k->comm.ctx, room, room + rows, rows, on, error);
    if (code == ATTN_OK) {
        attn_weights_t w = *weights;
        mine.data = room + rows;
        shape[0] *= k->world;
        w.kv_b_proj = &mine;
        code = g->stage.ops.prepare_weights(g->stage.instance, &w, stream, error);
    }
    void *previous = NULL;
    if (code == ATTN_OK && k->is_device) code = attni_ranks_enter(k, &previous, error);
    if (code == ATTN_OK && k->is_device) {
        code = k->comm.wait(k->comm.ctx, stream, error);
        attni_ranks_leave(k, previous);
    }
    if (room != NULL) give_room(k, room);
    return code;
}
