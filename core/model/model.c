/* SPDX-License-Identifier: Apache-2.0 */
/* model.c: attn_model.h over what hf_config.c reads. */
#include <attn/attn_model.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/need.h"
#include "model/hf_config.h"

struct attn_model {
    hf_model_t read;
    uint32_t *layers[HF_MAX_KINDS]; /* the numbers of a kind's layers */
};

/* The bits of a kind as a list. */
static uint32_t *list_of(const hf_kind_t *kind) {
    uint32_t *list = calloc(kind->num_layers != 0 ? kind->num_layers : 1, sizeof *list);
    for (uint32_t i = 0, n = 0; list != NULL && i < HF_MAX_DEPTH && n < kind->num_layers; i++)
        if ((kind->is_member[i / 8] >> i % 8 & 1) != 0) list[n++] = i;
    return list;
}

/* After reading: lists, and the model for the caller; or what went wrong, with nothing left behind. */
static int finish(int code, attn_model_t *made, const char *label, attn_model_t **model,
                  attn_error_t *error) {
    for (uint32_t i = 0; code == ATTN_OK && i < made->read.num_kinds; i++) {
        made->layers[i] = list_of(&made->read.kinds[i]);
        if (made->layers[i] == NULL)
            code = attn_fail(error, ATTN_E_NO_MEMORY, "", "%s: out of memory", label);
    }
    if (code == ATTN_OK)
        *model = made;
    else
        attn_model_free(made);
    return code;
}

int attn_model_load(const char *path, attn_model_t **model, attn_error_t *error) {
    ATTNI_NEED(path, "path", error);
    ATTNI_NEED(model, "model", error);
    struct stat st;
    char inside[4096];
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        if ((size_t)snprintf(inside, sizeof inside, "%s/config.json", path) >= sizeof inside)
            return attn_fail(error, ATTN_E_INVALID, "path", "path is longer than %zu bytes",
                             sizeof inside - 1);
        path = inside;
    }
    attn_model_t *made = calloc(1, sizeof *made);
    if (made == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "%s: out of memory", path);
    return finish(attni_hf_config_load(path, &made->read, error), made, path, model, error);
}

int attn_model_parse(const char *text, size_t size, const char *label, attn_model_t **model,
                     attn_error_t *error) {
    ATTNI_NEED(text, "text", error);
    ATTNI_NEED(label, "label", error);
    ATTNI_NEED(model, "model", error);
    attn_model_t *made = calloc(1, sizeof *made);
    if (made == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "%s: out of memory", label);
    return finish(attni_hf_config_parse(text, size, label, &made->read, error), made, label, model, error);
}

void attn_model_free(attn_model_t *model) {
    if (model == NULL) return;
    for (uint32_t i = 0; i < HF_MAX_KINDS; i++)
        free(model->layers[i]);
    free(model);
}

const char *attn_model_type(const attn_model_t *model) {
    return model != NULL ? model->read.model_type : "unknown";
}

const char *attn_model_note(const attn_model_t *model, uint32_t index) {
    return model != NULL && index < model->read.num_notes ? model->read.notes[index] : NULL;
}

const char *attn_model_not_understood(const attn_model_t *model, uint32_t index) {
    return model != NULL && index < model->read.num_unread ? model->read.unread[index] : NULL;
}

/* A program built with an older header gets the problem only if it says everything in what that header
 * has. */
static int give_problem(const attn_problem_t *from, attn_problem_t *to, attn_error_t *error) {
    const unsigned char *bytes = (const unsigned char *)from;
    for (size_t i = to->struct_size; i < sizeof *from && to->struct_size >= sizeof(uint32_t); i++)
        if (bytes[i] != 0)
            return attn_fail(error, ATTN_E_TOO_NEW, "problem",
                             "problem.struct_size is %u: these layers need a member beyond it; build with "
                             "newer headers of libattn",
                             to->struct_size);
    return attn_give(to, from, sizeof *from, "problem", error);
}

int attn_model_kind(const attn_model_t *model, uint32_t index, attn_model_kind_t *kind,
                    attn_problem_t *problem, attn_error_t *error) {
    ATTNI_NEED(model, "model", error);
    ATTNI_NEED(kind, "kind", error);
    if (index >= model->read.num_kinds)
        return attn_fail(error, ATTN_E_NOT_FOUND, "index", "index is %u; the model has %u kinds of layers",
                         index, model->read.num_kinds);
    const hf_kind_t *k = &model->read.kinds[index];
    const attn_model_kind_t out = {.num_layers = k->num_layers,
                                   .layers = model->layers[index],
                                   .layers_text = k->layers,
                                   .name = k->name,
                                   .unserved = k->unserved,
                                   .indexer_dim = k->indexer_dim};
    if (kind->struct_size < sizeof kind->struct_size)
        return attn_give(kind, &out, sizeof out, "kind", error); /* which refuses it */
    int code = problem != NULL ? give_problem(&k->problem, problem, error) : ATTN_OK;
    return code == ATTN_OK ? attn_give(kind, &out, sizeof out, "kind", error) : code;
}

int attn_model_split(attn_problem_t *problem, uint32_t world, attn_error_t *error) {
    ATTNI_NEED(problem, "problem", error);
    ATTNI_AT_LEAST(world, 1, "world", error);
    const uint32_t heads = problem->num_heads, kv_heads = problem->num_kv_heads;
    if (heads % world != 0)
        return attn_fail(error, ATTN_E_INVALID, "num_heads", "%u heads cannot be divided over %u ranks",
                         heads, world);
    if (kv_heads > 1 && kv_heads % world != 0 && world % kv_heads != 0)
        return attn_fail(error, ATTN_E_INVALID, "num_kv_heads",
                         "%u KV heads cannot be divided over %u ranks, nor ranks over heads", kv_heads,
                         world);
    problem->num_heads = heads / world;
    if (kv_heads > 1) problem->num_kv_heads = kv_heads > world ? kv_heads / world : 1;
    return ATTN_OK;
}
