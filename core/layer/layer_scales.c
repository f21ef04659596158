/* SPDX-License-Identifier: Apache-2.0 */
/* layer_scales.c: where the scales of a layer come from: the checkpoint, the engine's tensors, or the first
 * activations (semantics 3.3). */
#include "device/device.h"
#include "layer/layer.h"
#include "layer/mm_layer.h"
#include "base/arith.h"
#include "base/number_text.h"
#include <attn/attn_plugin_util.h>
#include "group/tensor_place.h"
#include "base/tensor_values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const scale_names[ATTNI_NUM_SCALES] = {"q_scale", "k_scale", "v_scale"};

static int check_number(const char *name, float value, attn_error_t *error) {
    if (!isfinite(value))
        return attn_fail(error, ATTN_E_INVALID, name, "%s is %g; a scale is a finite number, or 0 for none",
                         name, (double)value);
    return ATTN_OK;
}

/* A tensor of the scales of V's channels (semantics 3.8): [Hkv, Dv], or one number. */
static int check_channels(const attn_layer_t *layer, const DLTensor *t, attn_error_t *error) {
    const attn_problem_t *p = &layer->group->problem;
    const int64_t heads = p->num_kv_heads != 0 ? p->num_kv_heads : p->num_heads, one = 1,
                  shape[2] = {heads, p->head_size_v != 0 ? p->head_size_v : p->head_size};
    if (t->ndim == 2) return attn_check_tensor(t, "v_scale", ATTN_DTYPE_FLOAT32, 2, shape, error);
    return attn_check_tensor(t, "v_scale", ATTN_DTYPE_FLOAT32, 1, &one, error);
}

/* One element, or one per KV head where the problem asks for that. */
static int check_count(const attn_problem_t *p, int which, int64_t n, attn_error_t *error) {
    const int64_t heads = p->num_kv_heads != 0 ? p->num_kv_heads : p->num_heads;
    if (n != 1 && n != heads)
        return attn_fail(error, ATTN_E_INVALID, scale_names[which],
                         "%s has %lld elements; expected 1 or one per KV head (%lld)", scale_names[which],
                         (long long)n, (long long)heads);
    if (n != 1 && (p->features & ATTN_F_PER_HEAD_SCALES) == 0)
        return attn_fail(error, ATTN_E_INVALID, scale_names[which],
                         "%s has %lld elements, but the problem lacks ATTN_F_PER_HEAD_SCALES",
                         scale_names[which], (long long)n);
    return ATTN_OK;
}

/* A tensor given for a scale: one element, or one per KV head. */
static int keep_tensor(attn_layer_t *layer, int which, const DLTensor *t, attn_error_t *error) {
    const attn_problem_t *p = &layer->group->problem;
    const char *name = scale_names[which];
    struct attni_scale *s = &layer->scales[which];
    const int has_channels = attn_kv_has_channel_scales(p->kv_cache_dtype);
    if (t == NULL) return ATTN_OK;
    if (has_channels && which == ATTNI_SCALE_K)
        return attn_fail(
            error, ATTN_E_INVALID, name,
            "k_scale is given as a tensor; a cache of %s keeps a scale with every K row: leave it "
            "out",
            attn_kv_name(p->kv_cache_dtype));
    if (has_channels && which == ATTNI_SCALE_V) {
        int status = check_channels(layer, t, error);
        if (status == ATTN_OK) status = attni_place_check_one(layer->group, t, name, error);
        if (status == ATTN_OK) s->given = t;
        return status;
    }
    int code = attn_check_tensor(t, name, ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (code == ATTN_OK) code = attni_place_check_one(layer->group, t, name, error);
    if (code == ATTN_OK) code = check_count(p, which, t->shape[0], error);
    if (code != ATTN_OK) return code;
    s->given = t;
    if (t->shape[0] == 1 && t->device.device_type == kDLCPU) s->value = *(const float *)attn_data(t);
    return ATTN_OK;
}

/* The loading rules for k and v: both, none (1.0), or one that serves for both. */
static void load_kv(attn_layer_t *layer, float k, float v) {
    if (k <= 0 && v <= 0) return;
    if (k <= 0 || v <= 0) k = v = k > v ? k : v;
    layer->scales[ATTNI_SCALE_K].value = k;
    layer->scales[ATTNI_SCALE_V].value = v;
}

/* Formats whose rows carry their own scales: the layer's are not used. */
static int has_row_scales(uint32_t kv) {
    const uint32_t scale = attn_kv_format(kv)->scale;
    return scale == ATTN_KV_SCALE_ROW_INLINE || scale == ATTN_KV_SCALE_GROUP_INLINE ||
           scale == ATTN_KV_SCALE_K_APART;
}

static void warn_uncalibrated(const attn_layer_t *layer) {
    attn_context_t *context = layer->group->context;
    uint32_t kv = layer->group->problem.kv_cache_dtype;
    const struct attni_scale *s = layer->scales;
    int plain_kv =
        s[ATTNI_SCALE_K].value == 1 && s[ATTNI_SCALE_V].value == 1 && s[ATTNI_SCALE_K].given == NULL;
    int plain_q = s[ATTNI_SCALE_Q].value == 1 && s[ATTNI_SCALE_Q].given == NULL;
    if (plain_kv && kv != ATTN_KV_FP8_E5M2 && !layer->measure_kv &&
        attni_layers_once(context, ATTNI_ONCE_KV_UNCALIBRATED))
        attni_log(&context->log, ATTN_LOG_WARN,
                  "layer %s: the %s cache has k_scale and v_scale 1.0; accuracy may suffer without "
                  "calibrated scales",
                  layer->name, attn_kv_name(kv));
    if (plain_q && kv == ATTN_KV_FP8_E4M3 && !layer->measure_q &&
        (layer->group->features & ATTN_F_QUANT_QUERY) != 0 &&
        attni_layers_once(context, ATTNI_ONCE_Q_UNCALIBRATED))
        attni_log(&context->log, ATTN_LOG_WARN,
                  "layer %s: the fp8 query has q_scale 1.0; accuracy may suffer without a calibrated scale",
                  layer->name);
}

static void say_dropped(const attn_layer_t *layer, const char *why) {
    attn_context_t *context = layer->group->context;
    if (attni_layers_once(context, ATTNI_ONCE_SCALES_DROPPED))
        attni_log(&context->log, ATTN_LOG_INFO, "layer %s: loaded k and v scales are not used: %s",
                  layer->name, why);
}

static void load_numbers(attn_layer_t *layer, const attn_layer_options_t *o) {
    const attn_problem_t *p = &layer->group->problem;
    uint32_t kv = attn_role_has_cache(p->role) ? p->kv_cache_dtype : (uint32_t)ATTN_KV_AUTO;
    struct attni_scale *s = layer->scales;
    int has_kv = o->k_scale > 0 || o->v_scale > 0;
    const int is_static = attn_kv_is_quantized(kv) && !has_row_scales(kv);
    const int is_fp8_query = (layer->group->features & ATTN_F_QUANT_QUERY) != 0;
    /* A quantised query has its scale whatever the cache holds. */
    if (o->q_scale > 0 && (is_static || is_fp8_query)) s[ATTNI_SCALE_Q].value = o->q_scale;
    if (has_row_scales(kv)) {
        if (has_kv) say_dropped(layer, "the cache keeps a scale with every row");
        return;
    }
    if (attn_kv_has_channel_scales(kv)) {
        if (o->k_scale > 0) say_dropped(layer, "the cache keeps a scale with every K row");
        if (o->v_scale > 0) s[ATTNI_SCALE_V].value = o->v_scale, s[ATTNI_SCALE_V].is_set = 1;
        return;
    }
    if (!is_static) {
        if (has_kv) say_dropped(layer, "the cache is not quantised");
        return;
    }
    /* A dense query arrives as codes, which say nothing of its scale: that is the caller's, and decides
     * nothing about K and V. A latent one is rounded after absorption. */
    const int are_codes = is_fp8_query && !attn_problem_projects(p);
    layer->measure_kv = o->calculate_kv_scales && (are_codes || !(o->q_scale > 0));
    layer->measure_q = layer->measure_kv && !are_codes;
    if (!layer->measure_kv) load_kv(layer, o->k_scale, o->v_scale);
}

/* fp8 attention of a multimodal encoder: three scales from the engine or from the configured file, or none,
 * which makes them dynamic (semantics 7.6). */
static int load_fp8(attn_layer_t *layer, const attn_layer_options_t *o, attn_error_t *error) {
    const float numbers[ATTNI_MM_SCALES] = {o->q_scale, o->k_scale, o->v_scale};
    const DLTensor *tensors[ATTNI_MM_SCALES] = {o->scales.q, o->scales.k, o->scales.v};
    double loaded[ATTNI_MM_SCALES];
    int count = 0, found = 0;
    if (o->calculate_kv_scales)
        return attn_fail(error, ATTN_E_INVALID, "calculate_kv_scales",
                         "calculate_kv_scales is for caches; fp8 attention measures where it gets no scales");
    for (int i = 0; i < ATTNI_MM_SCALES; i++)
        count += numbers[i] > 0 || tensors[i] != NULL;
    for (int i = 0; i < ATTNI_MM_SCALES; i++)
        if (numbers[i] < 0 || (count > 0 && !(numbers[i] > 0) && tensors[i] == NULL))
            return attn_fail(
                error, ATTN_E_INVALID, scale_names[i],
                "%s is %g; fp8 attention needs q_scale, k_scale and v_scale above 0, or none of them",
                scale_names[i], (double)numbers[i]);
    for (int i = 0; i < ATTNI_MM_SCALES && count > 0; i++)
        if (numbers[i] > 0) layer->scales[i].value = numbers[i];
    if (count > 0) return ATTN_OK;
    int code = attni_mm_encoder_scales(layer, loaded, &found, error);
    for (int i = 0; i < ATTNI_MM_SCALES && code == ATTN_OK && found; i++)
        layer->scales[i].value = (float)loaded[i];
    layer->is_dynamic = !found;
    return code;
}

/* Numbers reach a backend as tensors; on a device that memory would have to be the engine's. */
static int place_numbers(attn_layer_t *layer, attn_error_t *error) {
    int is_cpu_fine =
        layer->group->device.type == kDLCPU || (layer->group->features & ATTN_F_FP8_ATTENTION) != 0;
    for (int i = 0; i < ATTNI_NUM_SCALES; i++) {
        struct attni_scale *s = &layer->scales[i];
        s->shape = s->stride = 1;
        s->own = (DLTensor){.data = &s->value,
                            .device = {kDLCPU, 0},
                            .ndim = 1,
                            .dtype = {kDLFloat, 32, 1},
                            .shape = &s->shape,
                            .strides = &s->stride};
        if (s->value != 1 && s->given == NULL && !is_cpu_fine)
            return attn_fail(error, ATTN_E_INVALID, scale_names[i],
                             "%s is %g and the device is no CPU: put it into a float32 device tensor of one "
                             "element and give "
                             "that in options.scales",
                             scale_names[i], (double)s->value);
    }
    return ATTN_OK;
}

/* A given tensor is where a measured scale goes. On a device there must be one, because a backend reads
 * scales there and the library owns no memory of a device. */
static int resolve_measuring(attn_layer_t *layer, const DLTensor *const given[ATTNI_NUM_SCALES],
                             attn_error_t *error) {
    const int is_cpu = layer->group->device.type == kDLCPU;
    const int needs_q = layer->measure_q && (layer->group->features & ATTN_F_QUANT_QUERY) != 0;
    if (!is_cpu) layer->measure_q = needs_q;
    for (int i = ATTNI_SCALE_Q; i <= ATTNI_SCALE_V; i++) {
        const int is_measured = i == ATTNI_SCALE_Q ? layer->measure_q : layer->measure_kv;
        if (!is_measured || (is_cpu && given[i] == NULL)) continue;
        if (given[i] == NULL || (!is_cpu && given[i]->device.device_type == kDLCPU))
            return attn_fail(error, ATTN_E_INVALID, scale_names[i],
                             "there is no tensor to write %s to: with calculate_kv_scales on a device, give "
                             "float32 device "
                             "tensors of one element in options.scales",
                             scale_names[i]);
        if (given[i]->shape[0] != 1)
            return attn_fail(
                error, ATTN_E_INVALID, scale_names[i],
                "%s has %lld elements, and calculate_kv_scales measures one number; give a tensor of "
                "one element, or the scales without calculate_kv_scales",
                scale_names[i], (long long)given[i]->shape[0]);
        layer->scales[i].value = 1; /* what the tensor holds by now is not a scale */
    }
    return ATTN_OK;
}

int attni_layer_set_scales(attn_layer_t *layer, const attn_layer_options_t *o, attn_error_t *error) {
    const float loaded[ATTNI_NUM_SCALES] = {o->q_scale, o->k_scale, o->v_scale};
    const DLTensor *given[ATTNI_NUM_SCALES] = {o->scales.q, o->scales.k, o->scales.v};
    int code = ATTN_OK;
    if (o->calculate_kv_scales > 1)
        return attn_fail(error, ATTN_E_INVALID, "calculate_kv_scales",
                         "calculate_kv_scales is %u; it must be 0 or 1", (unsigned)o->calculate_kv_scales);
    for (int i = 0; i < ATTNI_NUM_SCALES && code == ATTN_OK; i++) {
        layer->scales[i].value = 1;
        code = check_number(scale_names[i], loaded[i], error);
    }
    if (code != ATTN_OK) return code;
    const uint32_t kv = layer->group->problem.kv_cache_dtype;
    const int has_channels = attn_kv_has_channel_scales(kv);
    if (has_channels && o->calculate_kv_scales)
        return attn_fail(
            error, ATTN_E_UNSUPPORTED, "calculate_kv_scales",
            "calculate_kv_scales measures one number on the first call; a cache of %s needs a scale "
            "for each channel of V: calibrate over many calls (attn_calibration_add, attn calibrate)",
            attn_kv_name(kv));
    if ((layer->group->features & ATTN_F_FP8_ATTENTION) != 0)
        code = load_fp8(layer, o, error);
    else
        load_numbers(layer, o);
    for (int i = 0; i < ATTNI_NUM_SCALES && code == ATTN_OK; i++)
        code = keep_tensor(layer, i, given[i], error);
    if (code != ATTN_OK) return code;
    if (has_channels) return place_numbers(layer, error);
    if ((given[ATTNI_SCALE_K] != NULL) != (given[ATTNI_SCALE_V] != NULL) ||
        (given[ATTNI_SCALE_K] != NULL && given[ATTNI_SCALE_K]->shape[0] != given[ATTNI_SCALE_V]->shape[0]))
        return attn_fail(error, ATTN_E_INVALID, "v_scale",
                         "scales.k and scales.v must be given together and have one size");
    code = resolve_measuring(layer, given, error);
    if (code != ATTN_OK) return code;
    if (attn_role_has_cache(layer->group->problem.role) &&
        attn_kv_is_quantized(layer->group->problem.kv_cache_dtype) &&
        !has_row_scales(layer->group->problem.kv_cache_dtype))
        warn_uncalibrated(layer);
    return place_numbers(layer, error);
}

int attn_layer_scales(const attn_layer_t *layer, float *q, float *k, float *v) {
    float *out[ATTNI_NUM_SCALES] = {q, k, v};
    if (layer == NULL) return ATTN_E_INVALID;
    for (int i = 0; i < ATTNI_NUM_SCALES; i++)
        if (out[i] != NULL) *out[i] = layer->scales[i].value;
    return ATTN_OK;
}

/* 1.0 is what a missing tensor means, so it stays missing. */
static const DLTensor *scale_tensor(const struct attni_scale *s) {
    return s->given != NULL ? s->given : s->value != 1 || s->is_set ? &s->own : NULL;
}

void attni_layer_fill_scales(const attn_layer_t *layer, attn_scales_t *scales) {
    if (scales->q == NULL) scales->q = scale_tensor(&layer->scales[ATTNI_SCALE_Q]);
    if (scales->k == NULL) scales->k = scale_tensor(&layer->scales[ATTNI_SCALE_K]);
    if (scales->v == NULL) scales->v = scale_tensor(&layer->scales[ATTNI_SCALE_V]);
}

static int check_values(const DLTensor *t, const char *name, attn_error_t *error) {
    const int64_t columns = t->ndim == 2 ? t->shape[1] : 1;
    for (int64_t i = 0; i < t->shape[0] * columns; i++) {
        const int64_t h = i / columns, d = i % columns;
        const float value = ((const float *)attn_data(t))[t->ndim == 2 ? h * t->strides[0] + d : h];
        char column[32] = "";
        if (value > 0 && isfinite(value)) continue;
        if (t->ndim == 2) snprintf(column, sizeof column, "[%lld]", (long long)d);
        return attn_fail(error, ATTN_E_INVALID, name, "%s[%lld]%s is %g; expected a finite number above 0",
                         name, (long long)h, column, (double)value);
    }
    return ATTN_OK;
}

int attni_layer_check_scales(const attn_layer_t *layer, const attn_scales_t *scales, attn_error_t *error) {
    const attn_group_t *g = layer->group;
    const DLTensor *given[] = {scales->q, scales->k, scales->v};
    int is_fp8 = (g->features & ATTN_F_FP8_ATTENTION) != 0;
    int is_cache = attn_kv_has_static_scales(g->problem.kv_cache_dtype);
    const int has_channels = attn_kv_has_channel_scales(g->problem.kv_cache_dtype);
    int is_used[] = {is_fp8 || (g->features & ATTN_F_QUANT_QUERY) != 0, is_fp8 || is_cache,
                     is_fp8 || is_cache || has_channels};
    for (int i = ATTNI_SCALE_Q; i <= ATTNI_SCALE_V; i++) {
        const DLTensor *t = given[i];
        if (t == NULL || !is_used[i]) continue;
        const int is_channels = i == ATTNI_SCALE_V && has_channels;
        int code = is_channels ? check_channels(layer, t, error)
                               : attn_check_tensor(t, scale_names[i], ATTN_DTYPE_FLOAT32, 1, NULL, error);
        if (code == ATTN_OK && !is_channels) code = check_count(&g->problem, i, t->shape[0], error);
        if (code == ATTN_OK && t->device.device_type == kDLCPU) code = check_values(t, scale_names[i], error);
        if (code != ATTN_OK) return code;
    }
    return ATTN_OK;
}

/* Rows of a device in host memory; their shape and strides are the tensor's. */
static int fetch_rows(const attn_layer_t *layer, const DLTensor *t, int64_t rows, void *stream,
                      DLTensor *host, attn_error_t *error) {
    int64_t last = t->dtype.bits / 8;
    for (int i = 0; i < t->ndim; i++) {
        const int64_t size = i == 0 ? attni_min64(rows, t->shape[0]) : t->shape[i];
        if (size == 0) last = 0;
        if (last > 0) last += (size - 1) * attn_byte_stride(t, i);
    }
    *host = *t;
    host->byte_offset = 0;
    host->data = malloc((size_t)last + 1);
    if (host->data == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "calculate_kv_scales",
                         "layer '%.120s': no memory for the %lld bytes that its scales are measured on",
                         layer->name, (long long)last);
    return attni_device_read(&layer->group->device, host->data, attn_data(t), (size_t)last, stream, error);
}

/* All zero activations would make a scale of 0, by which nothing can be divided. */
/* The scale of values up to `largest`, over the constant of the configuration. */
static int make_scale(const attn_layer_t *layer, int which, float largest, float *scale,
                      attn_error_t *error) {
    static const char *const keys[] = {"q_scale_constant", "k_scale_constant", "v_scale_constant"};
    double constant = 1;
    attni_double_parse(attni_config_get(&layer->group->context->config, "attn", keys[which]), &constant);
    *scale = largest > 0 ? (float)(largest / constant) : 1;
    if (*scale > 0 && isfinite(*scale)) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, keys[which],
                     "%s = %g makes %s %g of values up to %g, which scales nothing; the usual one is %d",
                     keys[which], constant, scale_names[which], (double)*scale, (double)largest,
                     which == ATTNI_SCALE_V ? 100 : 200);
}

static int measure_one(attn_layer_t *layer, int which, const DLTensor *t, int64_t rows, void *stream,
                       attn_error_t *error) {
    struct attni_scale *s = &layer->scales[which];
    const int is_cpu = layer->group->device.type == kDLCPU;
    DLTensor host = {.data = NULL};
    int code = is_cpu ? ATTN_OK : fetch_rows(layer, t, rows, stream, &host, error);
    if (code == ATTN_OK)
        code = make_scale(layer, which, attni_largest(is_cpu ? t : &host, rows), &s->value, error);
    if (!is_cpu) free(host.data);
    if (code == ATTN_OK && is_cpu && s->given != NULL) *(float *)attn_data(s->given) = s->value;
    if (code == ATTN_OK && !is_cpu)
        code = attni_device_write(&layer->group->device, attn_data(s->given), &s->value, sizeof s->value,
                                  stream, error);
    return code;
}

int attni_layer_measure(attn_layer_t *layer, const DLTensor *query, const DLTensor *key,
                        const DLTensor *value, int64_t rows, void *stream, attn_error_t *error) {
    int code = ATTN_OK;
    if (rows <= 0) return ATTN_OK;
    if (layer->measure_q && query != NULL) {
        code = measure_one(layer, ATTNI_SCALE_Q, query, rows, stream, error);
        if (code != ATTN_OK) return code;
        layer->measure_q = 0;
    }
    if (layer->measure_kv && key != NULL && value != NULL) {
        /* MLA: both come from the latent, which `key` is. */
        const DLTensor *v = layer->kind == ATTN_LAYER_MLA ? key : value;
        code = measure_one(layer, ATTNI_SCALE_K, key, rows, stream, error);
        if (code == ATTN_OK) code = measure_one(layer, ATTNI_SCALE_V, v, rows, stream, error);
        if (code == ATTN_OK) layer->measure_kv = 0;
    }
    return code;
}
