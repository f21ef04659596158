/* SPDX-License-Identifier: Apache-2.0 */
/* layer_forward.c: the calls of every step. Nothing here allocates. */
#include "layer/layer.h"
#include "group/metadata_owner.h"
#include "layer/mm_layer.h"
#include "layer/ranks_forward.h"
#include "base/need.h"
#include "base/reserved.h"
#include "group/space_check.h"
#include "group/tensor_place.h"

static int check_layer(const attn_layer_t *layer, attn_error_t *error) {
    ATTNI_NEED(layer, "layer", error);
    return attni_group_check(layer->group, error);
}

/* The sink tokens go into their blocks before the first attention over a cache, and again wherever a request
 * begins: the engine may have cleared the cache since, which ends what was in it (semantics 2.11). Pages of a
 * transfer engine need no request that begins here. */
static int write_sinks(attn_layer_t *layer, const attn_group_t *g, const attn_forward_t *args,
                       const attn_space_t *space, void *stream, attn_error_t *error) {
    const void *cache = attn_data(args->kv_cache);
    const int is_needed = layer->sinks_written_to != cache || attni_metadata_begins(space->metadata) ||
                          (g->features & ATTN_F_KV_CONNECTOR) != 0;
    if (!is_needed || layer->kv_sharing_target != NULL) return ATTN_OK;
    ATTN_INIT(attn_kv_update_t, a);
    a.key = layer->sink_key;
    a.value = layer->sink_value;
    a.kv_cache = args->kv_cache;
    a.v_cache = args->v_cache;
    DLTensor slots = layer->sink_slots;
    if (g->wrap.is_device) { /* where build_metadata has put them */
        slots.data = (char *)space->metadata + attni_wrap_device_offset(g);
        slots.device = attni_device_of(g);
    }
    a.slot_mapping = &slots;
    a.scales = args->scales;
    if (g->stage.ops.update_kv_cache == NULL)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "static_sink_len",
                         "%s has no update_kv_cache to write sink tokens with", g->backend->shown.name);
    const int64_t blocks = args->kv_cache->shape[args->v_cache != NULL ? 0 : g->block_axis],
                  last = g->wrap.sink_len / g->problem.block_size;
    if (blocks <= last) /* on a device nothing else would detect it */
        return attn_fail(
            error, ATTN_E_INVALID, "kv_cache",
            "kv_cache has %lld blocks; the static sink tokens of layer '%.120s' are in blocks 1 to "
            "%lld",
            (long long)blocks, layer->name, (long long)last);
    int code = attni_layer_check_update(layer, &a, error);
    if (code == ATTN_OK) code = g->stage.ops.update_kv_cache(g->stage.instance, &a, stream, error);
    if (code == ATTN_OK) layer->sinks_written_to = cache;
    return code;
}

static int check_update_place(const attn_group_t *g, const attn_kv_update_t *a, attn_error_t *error) {
    static const struct attni_placed list[] = {ATTNI_PLACED(attn_kv_update_t, key),
                                               ATTNI_PLACED(attn_kv_update_t, value),
                                               ATTNI_PLACED(attn_kv_update_t, kv_cache),
                                               ATTNI_PLACED(attn_kv_update_t, v_cache),
                                               ATTNI_PLACED_AS(attn_kv_update_t, scales.k, "k_scale"),
                                               ATTNI_PLACED_AS(attn_kv_update_t, scales.v, "v_scale"),
                                               ATTNI_PLACED(attn_kv_update_t, slot_mapping)};
    return attni_place_check(g, a, list, sizeof list / sizeof list[0], error);
}

static int check_forward_place(const attn_group_t *g, const attn_forward_t *a, attn_error_t *error) {
    static const struct attni_placed list[] = {ATTNI_PLACED(attn_forward_t, query),
                                               ATTNI_PLACED(attn_forward_t, key),
                                               ATTNI_PLACED(attn_forward_t, value),
                                               ATTNI_PLACED(attn_forward_t, kv_cache),
                                               ATTNI_PLACED(attn_forward_t, v_cache),
                                               ATTNI_PLACED(attn_forward_t, output),
                                               ATTNI_PLACED(attn_forward_t, lse),
                                               ATTNI_PLACED_AS(attn_forward_t, scales.q, "q_scale"),
                                               ATTNI_PLACED_AS(attn_forward_t, scales.k, "k_scale"),
                                               ATTNI_PLACED_AS(attn_forward_t, scales.v, "v_scale"),
                                               ATTNI_PLACED(attn_forward_t, output_scale),
                                               ATTNI_PLACED(attn_forward_t, output_block_scale),
                                               ATTNI_PLACED(attn_forward_t, sinks),
                                               ATTNI_PLACED(attn_forward_t, alibi_slopes),
                                               ATTNI_PLACED(attn_forward_t, rel_bias),
                                               ATTNI_PLACED(attn_forward_t, qq_bias),
                                               ATTNI_PLACED(attn_forward_t, topk_indices),
                                               ATTNI_PLACED(attn_forward_t, slot_mapping)};
    return attni_place_check(g, a, list, sizeof list / sizeof list[0], error);
}

int attn_layer_update_kv_cache(attn_layer_t *layer, const attn_kv_update_t *args, void *stream,
                               attn_error_t *error) {
    attn_kv_update_t a;
    int code = check_layer(layer, error);
    if (code == ATTN_OK) code = attn_intake(&a, sizeof a, args, "args", error);
    if (code == ATTN_OK) code = ATTNI_RESERVED(attn_kv_update_t, &a, error);
    if (code != ATTN_OK) return code;
    const attn_group_t *g = layer->group;
    if (!attn_role_has_cache(g->problem.role) || layer->kv_sharing_target != NULL) return ATTN_OK;
    if (g->backend->capabilities.forward_writes_cache) return ATTN_OK;
    code = attni_layer_check_update(layer, &a, error);
    if (code == ATTN_OK) code = check_update_place(g, &a, error);
    if (code != ATTN_OK) return code;
    if (g->stage.ops.update_kv_cache == NULL)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "backend",
                         "%s has no update_kv_cache, and its forward writes no cache; choose another backend "
                         "for role %s",
                         g->backend->shown.name, attn_role_name(g->problem.role));
    if (layer->measure_kv)
        code = attni_layer_measure(layer, NULL, a.key, a.value, a.slot_mapping->shape[0], stream, error);
    if (code != ATTN_OK) return code;
    attni_layer_fill_scales(layer, &a.scales);
    if ((code = attni_layer_check_scales(layer, &a.scales, error)) != ATTN_OK) return code;
    layer->group->calling = layer->name;
    return g->stage.ops.update_kv_cache(g->stage.instance, &a, stream, error);
}

/* Two backends absorb the projections each in its own way, into parts of the layer's space. */
static int prepare_both(const attn_group_t *g, const attn_weights_t *weights, void *stream,
                        attn_error_t *error) {
    const attn_group_t *const each[2] = {g, g->prefill};
    g->prefill->calling = g->calling;
    for (int i = 0; i < 2; i++) {
        attn_weights_t w = *weights;
        const uint64_t at = i == 0 ? 0 : g->prefill_weights_at;
        if (each[i]->stage.ops.prepare_weights == NULL) continue;
        w.weight_space = w.weight_space != NULL ? (char *)w.weight_space + at : NULL;
        w.weight_space_bytes = each[i]->inner_needed.weight_bytes;
        int code = each[i]->stage.ops.prepare_weights(each[i]->stage.instance, &w, stream, error);
        if (code != ATTN_OK) return code;
    }
    return ATTN_OK;
}

int attn_layer_prepare_weights(attn_layer_t *layer, const attn_weights_t *weights, void *stream,
                               attn_error_t *error) {
    attn_weights_t w;
    int code = check_layer(layer, error);
    if (code == ATTN_OK) code = attn_intake(&w, sizeof w, weights, "weights", error);
    if (code == ATTN_OK) code = ATTNI_RESERVED(attn_weights_t, &w, error);
    if (code != ATTN_OK) return code;
    const attn_group_t *g = layer->group;
    const attn_problem_t *p = &g->problem;
    if (layer->kind != ATTN_LAYER_MLA && !layer->is_dynamic)
        return attn_fail(
            error, ATTN_E_INVALID, "layer",
            "layer '%.120s' has role %s; only MLA layers have absorbed weights, and encoders with dynamic "
            "fp8 scales a state",
            layer->name, attn_role_name(p->role));
    if ((p->features & ATTN_F_LATENT) != 0)
        return attn_fail(error, ATTN_E_INVALID, "layer",
                         "layer '%.120s' has the feature latent: the caller projects, there are no weights",
                         layer->name);
    const int64_t shape[2] = {(int64_t)p->num_heads * (p->qk_nope_head_dim + p->v_head_dim), p->kv_lora_rank};
    if (!layer->is_dynamic)
        code = attn_check_tensor(w.kv_b_proj, "kv_b_proj", 0, 2, shape, error);
    else if (w.kv_b_proj != NULL || w.kv_b_proj_scale != NULL)
        code =
            attn_fail(error, ATTN_E_INVALID, "kv_b_proj",
                      "kv_b_proj is given for layer '%.120s', which has no weights, only a state; pass NULL",
                      layer->name);
    if (code == ATTN_OK) code = attni_place_check_one(g, w.kv_b_proj, "kv_b_proj", error);
    if (code == ATTN_OK) code = attni_place_check_one(g, w.kv_b_proj_scale, "kv_b_proj_scale", error);
    if (code == ATTN_OK)
        code = attni_buffer_check(w.weight_space, w.weight_space_bytes, g->needed.weight_bytes, 0, "weights",
                                  "weight_space", error);
    layer->group->calling = layer->name;
    if (g->ranks != NULL)
        code = attni_ranks_weights(layer, &w, code, stream, error);
    else if (code == ATTN_OK && g->prefill != NULL)
        code = prepare_both(g, &w, stream, error);
    else if (code == ATTN_OK && g->stage.ops.prepare_weights != NULL)
        code = g->stage.ops.prepare_weights(g->stage.instance, &w, stream, error);
    if (code != ATTN_OK) return code;
    pthread_mutex_lock(&g->context->lock);
    layer->weight_space = w.weight_space;
    layer->weight_space_bytes = w.weight_space_bytes;
    layer->seen.calls = 0;
    pthread_mutex_unlock(&g->context->lock);
    return ATTN_OK;
}

/* fp8 attention: either scales or a state; and a state is counted by calls, which a graph's replays are
 * not. */
static int check_fp8(const attn_layer_t *layer, const attn_forward_t *a, attn_error_t *error) {
    if (!layer->is_dynamic && a->weight_space != NULL)
        return attn_fail(error, ATTN_E_INVALID, "weight_space",
                         "weight_space is given, but layer '%.120s' has static scales; leave it NULL",
                         layer->name);
    if (!layer->is_dynamic) return ATTN_OK;
    if (a->scales.q != NULL || a->scales.k != NULL || a->scales.v != NULL)
        return attn_fail(
            error, ATTN_E_INVALID, "scales",
            "scales are given, but layer '%.120s' measures its own; give them when it is created",
            layer->name);
    if ((layer->group->built_flags & ATTN_BATCH_CAPTURE) != 0)
        return attn_fail(
            error, ATTN_E_STATE, "flags",
            "layer '%.120s' has dynamic fp8 scales, whose history cannot be kept in a captured graph; give "
            "it static scales",
            layer->name);
    return ATTN_OK;
}

static int check_weights(const attn_layer_t *layer, const attn_forward_t *a, attn_error_t *error) {
    if ((layer->group->features & ATTN_F_FP8_ATTENTION) != 0) {
        int code = check_fp8(layer, a, error);
        if (code != ATTN_OK || !layer->is_dynamic) return code;
    }
    if (layer->group->needed.weight_bytes == 0 || a->weight_space != NULL) return ATTN_OK;
    return attn_fail(error, ATTN_E_STATE, "weight_space",
                     "layer '%.120s' has no prepared %s; call attn_layer_prepare_weights after loading",
                     layer->name, layer->is_dynamic ? "state for its fp8 scales" : "weights");
}

/* The call with what the layer adds, checked. */
static int prepare_call(attn_layer_t *layer, const attn_group_t *g, attn_forward_t *a, const attn_space_t *s,
                        void *stream, attn_error_t *error) {
    if (a->sinks == NULL) a->sinks = layer->sinks;
    if (a->alibi_slopes == NULL) a->alibi_slopes = layer->alibi_slopes;
    if (a->rel_bias == NULL) a->rel_bias = layer->rel_bias;
    if (a->weight_space == NULL) {
        a->weight_space = layer->weight_space;
        a->weight_space_bytes = layer->weight_space_bytes;
    }
    if (layer->kv_sharing_target != NULL) a->slot_mapping = NULL; /* the target has written */
    int code = attni_layer_check_forward(layer, a, s == NULL, error);
    if (code == ATTN_OK) code = check_forward_place(g, a, error);
    if (code == ATTN_OK && s != NULL) code = attni_space_check(g, s, error);
    if (code == ATTN_OK && s != NULL) code = attni_metadata_check(g, s->metadata, error);
    if (code == ATTN_OK && s != NULL) code = check_weights(layer, a, error);
    if (code != ATTN_OK) return code;
    if (s != NULL && (layer->measure_q || layer->measure_kv))
        code = attni_layer_measure(layer, a->query, a->key, a->value, g->built_tokens, stream, error);
    if (code != ATTN_OK) return code;
    attni_layer_fill_scales(layer, &a->scales);
    return s != NULL ? attni_layer_check_scales(layer, &a->scales, error) : ATTN_OK;
}

/* By the one of two backends that planned the metadata, with its part of the prepared weights. */
static int forward_of_two(attn_layer_t *layer, attn_forward_t *a, const attn_space_t *s, void *stream,
                          attn_error_t *error) {
    attn_group_t *const outer = layer->group;
    int code = attni_space_check(outer, s, error);
    if (code != ATTN_OK) return code;
    attn_group_t *const g = attni_phase_owner(outer, s->metadata, error);
    if (g == NULL) return ATTN_E_STATE;
    g->calling = layer->name;
    code = prepare_call(layer, g, a, s, stream, error);
    if (code != ATTN_OK) return code;
    if (g != outer && a->weight_space != NULL) {
        a->weight_space = (const char *)a->weight_space + outer->prefill_weights_at;
        a->weight_space_bytes -= outer->prefill_weights_at;
    }
    if (g->wrap.sink_len != 0) code = write_sinks(layer, g, a, s, stream, error);
    return code != ATTN_OK ? code : g->stage.ops.forward(g->stage.instance, a, s, stream, error);
}

int attn_layer_forward(attn_layer_t *layer, const attn_forward_t *args, const attn_space_t *space,
                       void *stream, attn_error_t *error) {
    attn_forward_t a;
    attn_space_t s;
    int code = check_layer(layer, error);
    if (code == ATTN_OK) code = attn_intake(&a, sizeof a, args, "args", error);
    if (code == ATTN_OK) code = ATTNI_RESERVED(attn_forward_t, &a, error);
    if (code == ATTN_OK && space != NULL) code = attni_space_intake(&s, space, error);
    if (code != ATTN_OK) return code;
    attn_group_t *g = layer->group;
    g->calling = layer->name;
    if (!g->is_plain && space != NULL) {
        if (g->prefill != NULL) return forward_of_two(layer, &a, &s, stream, error);
        /* the other ranks learn of an error here */
        attn_error_t own = {.struct_size = sizeof own};
        if (error == NULL) error = &own;
        code = prepare_call(layer, g, &a, &s, stream, error);
        return attni_ranks_forward(layer, &a, &s, code, stream, error);
    }
    code = prepare_call(layer, g, &a, space != NULL ? &s : NULL, stream, error);
    if (code != ATTN_OK) return code;
    if (space != NULL && g->wrap.sink_len != 0) code = write_sinks(layer, g, &a, &s, stream, error);
    if (code != ATTN_OK) return code;
    code = g->stage.ops.forward(g->stage.instance, &a, space != NULL ? &s : NULL, stream, error);
    if (code == ATTN_OK && space != NULL && layer->is_dynamic) attni_mm_encoder_count(layer, stream);
    return code;
}
