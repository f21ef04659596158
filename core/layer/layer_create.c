/* SPDX-License-Identifier: Apache-2.0 */
/* layer_create.c: making, naming and finding layers (semantics 7.1, 7.2, 7.9). */
#include "layer/layer.h"
#include "base/need.h"
#include "base/reserved.h"
#include "group/tensor_place.h"

#include <stdlib.h>

enum { LONGEST_NAME = 1023 };

const char *attn_layer_kind_name(uint32_t kind) {
    static const char *const names[] = {"unknown",
                                        "Attention",
                                        "CrossAttention",
                                        "EncoderOnlyAttention",
                                        "ChunkedLocalAttention",
                                        "StaticSinkAttention",
                                        "MLAAttention",
                                        "MMEncoderAttention"};
    return kind < sizeof names / sizeof names[0] ? names[kind] : names[0];
}

static uint32_t kind_of(const attn_problem_t *p) {
    if (attn_role_is_mla(p->role)) return ATTN_LAYER_MLA;
    if (p->role == ATTN_ROLE_MM_ENCODER) return ATTN_LAYER_MM_ENCODER;
    if (p->role == ATTN_ROLE_ENCODER_DECODER) return ATTN_LAYER_CROSS;
    if (!attn_role_has_cache(p->role)) return ATTN_LAYER_ENCODER_ONLY;
    if (p->static_sink_len != 0) return ATTN_LAYER_STATIC_SINK;
    return p->chunk_size != 0 ? ATTN_LAYER_CHUNKED_LOCAL : ATTN_LAYER_ATTENTION;
}

/* A float32 number per query head, or nothing; has the problem requested it? */
static int keep_per_head(const attn_layer_t *layer, const DLTensor *t, const char *name, uint64_t feature,
                         attn_error_t *error) {
    const int64_t shape[1] = {layer->group->problem.num_heads};
    if (t == NULL) return ATTN_OK;
    if ((layer->group->features & feature) == 0)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s are given, but the problem did not request that feature", name);
    int code = attn_check_tensor(t, name, ATTN_DTYPE_FLOAT32, 1, shape, error);
    return code != ATTN_OK ? code : attni_place_check_one(layer->group, t, name, error);
}

/* The table of distances, or nothing: a column for each of -m .. m (semantics 2.15). */
static int keep_rel_bias(attn_layer_t *layer, const DLTensor *t, attn_error_t *error) {
    const int64_t shape[2] = {layer->group->problem.num_heads, -1};
    if (t == NULL) return ATTN_OK;
    if ((layer->group->features & ATTN_F_REL_BIAS) == 0)
        return attn_fail(error, ATTN_E_INVALID, "rel_bias",
                         "rel_bias is given, but the problem did not request feature rel_bias");
    int code = attn_check_tensor(t, "rel_bias", ATTN_DTYPE_FLOAT32, 2, shape, error);
    if (code != ATTN_OK) return code;
    if (t->shape[1] % 2 == 0)
        return attn_fail(error, ATTN_E_INVALID, "rel_bias",
                         "rel_bias has %lld columns; expected an odd number, 2 m + 1 for distances -m to m",
                         (long long)t->shape[1]);
    layer->rel_bias = t;
    return attni_place_check_one(layer->group, t, "rel_bias", error);
}

static int keep_sink_tokens(attn_layer_t *layer, const attn_layer_options_t *o, attn_error_t *error) {
    attn_group_t *g = layer->group;
    const attn_problem_t *p = &g->problem;
    const int64_t key_shape[3] = {p->static_sink_len, p->num_kv_heads, p->head_size};
    const int64_t value_shape[3] = {p->static_sink_len, p->num_kv_heads, p->head_size_v};
    int wanted = g->wrap.sink_len != 0;
    if (!wanted && (o->sink_key != NULL || o->sink_value != NULL))
        return attn_fail(error, ATTN_E_INVALID, "sink_key", "sink_key and sink_value are given, but %s",
                         p->static_sink_len != 0
                             ? "on this device the engine writes the sink tokens into their blocks"
                             : "the problem has no static_sink_len");
    if (!wanted) return ATTN_OK;
    int code = attn_check_tensor(o->sink_key, "sink_key", p->dtype, 3, key_shape, error);
    if (code == ATTN_OK)
        code = attn_check_tensor(o->sink_value, "sink_value", p->dtype, 3, value_shape, error);
    if (code == ATTN_OK) code = attni_place_check_one(g, o->sink_key, "sink_key", error);
    if (code == ATTN_OK) code = attni_place_check_one(g, o->sink_value, "sink_value", error);
    if (code != ATTN_OK) return code;
    layer->sink_key = o->sink_key;
    layer->sink_value = o->sink_value;
    layer->sink_slots_shape = g->wrap.sink_len;
    layer->sink_slots_stride = 1;
    layer->sink_slots = (DLTensor){.data = g->sink_slots,
                                   .device = {kDLCPU, 0},
                                   .ndim = 1,
                                   .dtype = {kDLInt, 64, 1},
                                   .shape = &layer->sink_slots_shape,
                                   .strides = &layer->sink_slots_stride};
    return ATTN_OK;
}

static int fill_layer(attn_layer_t *layer, const attn_layer_options_t *o, attn_error_t *error) {
    layer->kind = kind_of(&layer->group->problem);
    layer->sinks = o->sinks;
    layer->alibi_slopes = o->alibi_slopes;
    int code = keep_per_head(layer, o->sinks, "sinks", ATTN_F_SINK, error);
    if (code == ATTN_OK)
        code = keep_per_head(layer, o->alibi_slopes, "alibi_slopes", ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT, error);
    if (code == ATTN_OK) code = keep_rel_bias(layer, o->rel_bias, error);
    if (code == ATTN_OK) code = keep_sink_tokens(layer, o, error);
    if (code == ATTN_OK && o->kv_sharing_target != NULL) {
        code = attni_layer_check_sharing(layer, o->kv_sharing_target, error);
        if (code != ATTN_OK) return code;
        layer->kv_sharing_target = strdup(o->kv_sharing_target);
        if (layer->kv_sharing_target == NULL)
            return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for a layer");
    }
    return code == ATTN_OK ? attni_layer_set_scales(layer, o, error) : code;
}

static void free_layer(attn_layer_t *layer) {
    free(layer->kv_sharing_target);
    free(layer->name);
    free(layer);
}

int attn_layer_create(attn_group_t *group, const char *name, const attn_layer_options_t *options,
                      attn_layer_t **layer, attn_error_t *error) {
    ATTN_INIT(attn_layer_options_t, o);
    int code = attni_group_check(group, error);
    if (code != ATTN_OK) return code;
    ATTNI_NEED(layer, "layer", error);
    ATTNI_NEED(name, "name", error);
    if (name[0] == '\0' || strlen(name) > LONGEST_NAME)
        return attn_fail(error, ATTN_E_INVALID, "name", "the name has %zu characters; give 1 to %d",
                         strlen(name), LONGEST_NAME);
    if (options != NULL) code = attn_intake(&o, sizeof o, options, "options", error);
    if (code == ATTN_OK)
        code = attni_reserved_check("attn_layer_options_t", o.reserved0, o.reserved,
                                    sizeof o.reserved / sizeof o.reserved[0], error);
    if (code != ATTN_OK) return code;
    attn_layer_t *made = calloc(1, sizeof *made);
    if (made == NULL || (made->name = strdup(name)) == NULL) {
        free(made);
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for a layer");
    }
    made->group = group;
    code = fill_layer(made, &o, error);
    if (code == ATTN_OK) code = attni_layers_add(group->context, made, error);
    if (code != ATTN_OK) {
        free_layer(made);
        return code;
    }
    atomic_fetch_add(&group->num_layers, 1);
    *layer = made;
    return ATTN_OK;
}

void attn_layer_destroy(attn_layer_t *layer) {
    if (layer == NULL || attni_group_check(layer->group, NULL) != ATTN_OK) return;
    attni_layers_remove(layer->group->context, layer);
    atomic_fetch_sub(&layer->group->num_layers, 1);
    free_layer(layer);
}

attn_layer_t *attn_context_find_layer(attn_context_t *context, const char *name) {
    if (name == NULL || attni_context_check(context, NULL) != ATTN_OK) return NULL;
    return attni_layers_find(context, name);
}

uint32_t attn_layer_kind(const attn_layer_t *layer) {
    return layer != NULL ? layer->kind : 0;
}
const char *attn_layer_name(const attn_layer_t *layer) {
    return layer != NULL ? layer->name : NULL;
}
attn_group_t *attn_layer_group(const attn_layer_t *layer) {
    return layer != NULL ? layer->group : NULL;
}
const char *attn_layer_kv_sharing_target(const attn_layer_t *layer) {
    return layer != NULL ? layer->kv_sharing_target : NULL;
}
