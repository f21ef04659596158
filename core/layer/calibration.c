/* SPDX-License-Identifier: Apache-2.0 */
/* calibration.c: the largest magnitude of each channel of V over many calls, and the scales that follow
 * (semantics 3.8). */
#include "layer/calibration.h"

#include "base/nearest.h"
#include "base/need.h"
#include "plan/element.h"

#include <math.h>
#include <stdlib.h>

int attn_calibration_create(attn_calibration_t **calibration, attn_error_t *error) {
    ATTNI_NEED(calibration, "calibration", error);
    attn_calibration_t *c = calloc(1, sizeof *c);
    if (c == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for a calibration");
    *calibration = c;
    return ATTN_OK;
}

void attn_calibration_destroy(attn_calibration_t *c) {
    if (c == NULL) return;
    for (uint32_t i = 0; i < c->count; i++) {
        free(c->layers[i].name);
        free(c->layers[i].largest);
    }
    free(c->layers);
    free(c);
}

struct attni_calibrated *attni_calibration_find(const attn_calibration_t *c, const char *name) {
    for (uint32_t i = 0; i < c->count; i++)
        if (strcmp(c->layers[i].name, name) == 0) return &c->layers[i];
    return NULL;
}

struct attni_calibrated *attni_calibration_new(attn_calibration_t *c, const char *name, int64_t heads,
                                               int64_t size) {
    struct attni_calibrated *more = realloc(c->layers, (c->count + 1) * sizeof *more);
    if (more == NULL) return NULL;
    c->layers = more;
    struct attni_calibrated *l = &more[c->count];
    *l = (struct attni_calibrated){.name = strdup(name), .heads = heads, .size = size};
    l->largest = calloc((size_t)(heads * size), sizeof *l->largest);
    if (l->name == NULL || l->largest == NULL) {
        free(l->name);
        free(l->largest);
        return NULL;
    }
    c->count++;
    return l;
}

/* Calibration reads and writes with the processor. */
static int check_host(const DLTensor *t, const char *name, attn_error_t *error) {
    if (attni_is_host_memory((int32_t)t->device.device_type)) return ATTN_OK;
    return attn_fail(error, ATTN_E_UNSUPPORTED, name,
                     "%s lies on a device of DLPack type %d; calibration works on host memory: copy it there",
                     name, (int)t->device.device_type);
}

static int check_value(const DLTensor *t, int64_t tokens, attn_error_t *error) {
    int code = attn_check_tensor(t, "value", 0, 3, NULL, error);
    if (code == ATTN_OK) code = check_host(t, "value", error);
    if (code != ATTN_OK) return code;
    const uint32_t type = attn_dtype_of(t->dtype);
    if (type < ATTN_DTYPE_FLOAT32 || type > ATTN_DTYPE_BFLOAT16)
        return attn_fail(
            error, ATTN_E_INVALID, "value",
            "value has element type %s; expected float32, float16 or bfloat16: what is quantised "
            "already says nothing of the scale",
            attn_dtype_name(type));
    if (t->shape[1] < 1 || t->shape[2] < 1 || t->shape[1] > 65536 || t->shape[2] > 65536)
        return attn_fail(error, ATTN_E_INVALID, "value",
                         "value has %lld heads of %lld; expected 1 to 65536 of each", (long long)t->shape[1],
                         (long long)t->shape[2]);
    if (tokens < 0 || tokens > t->shape[0])
        return attn_fail(error, ATTN_E_INVALID, "num_tokens", "num_tokens is %lld; value has %lld rows",
                         (long long)tokens, (long long)t->shape[0]);
    return ATTN_OK;
}

int attn_calibration_add(attn_calibration_t *c, const char *layer, const DLTensor *value, int64_t num_tokens,
                         attn_error_t *error) {
    ATTNI_NEED(c, "calibration", error);
    ATTNI_NEED(layer, "layer", error);
    if (layer[0] == '\0')
        return attn_fail(error, ATTN_E_INVALID, "layer", "layer is empty; give the layer's name");
    int code = check_value(value, num_tokens, error);
    if (code != ATTN_OK) return code;
    const int64_t heads = value->shape[1], size = value->shape[2];
    struct attni_calibrated *l = attni_calibration_find(c, layer);
    if (l != NULL && (l->heads != heads || l->size != size))
        return attn_fail(
            error, ATTN_E_INVALID, "value",
            "value has %lld heads of %lld; layer '%.120s' was calibrated with %lld of %lld: these "
            "are two models",
            (long long)heads, (long long)size, layer, (long long)l->heads, (long long)l->size);
    if (l == NULL) l = attni_calibration_new(c, layer, heads, size);
    double *row = malloc((size_t)size * sizeof *row);
    if (l == NULL || row == NULL) {
        free(row);
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for layer '%.120s'", layer);
    }
    for (int64_t t = 0; t < num_tokens; t++)
        for (int64_t h = 0; h < heads; h++) {
            float *largest = l->largest + h * size;
            attni_elements_load(attn_dtype_of(value->dtype),
                                (const char *)attn_data(value) + t * attn_byte_stride(value, 0) +
                                    h * attn_byte_stride(value, 1),
                                size, row);
            for (int64_t d = 0; d < size; d++)
                if (isfinite(row[d]) && fabs(row[d]) > (double)largest[d]) largest[d] = (float)fabs(row[d]);
        }
    l->tokens += num_tokens;
    free(row);
    return ATTN_OK;
}

uint32_t attn_calibration_num_layers(const attn_calibration_t *c) {
    return c != NULL ? c->count : 0;
}

static float largest_of(const float *x, int64_t n) {
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

int attn_calibration_layer(const attn_calibration_t *c, uint32_t i, attn_calibration_layer_t *layer,
                           attn_error_t *error) {
    ATTNI_NEED(c, "calibration", error);
    if (i >= c->count)
        return attn_fail(error, ATTN_E_NOT_FOUND, "i", "i is %u; the calibration has %u layers", (unsigned)i,
                         (unsigned)c->count);
    const struct attni_calibrated *l = &c->layers[i];
    const attn_calibration_layer_t full = {.struct_size = sizeof full,
                                           .name = l->name,
                                           .num_kv_heads = l->heads,
                                           .head_size_v = l->size,
                                           .tokens = l->tokens,
                                           .largest = largest_of(l->largest, l->heads * l->size)};
    return attn_give(layer, &full, sizeof full, "layer", error);
}

int attn_calibration_scales(const attn_calibration_t *c, const char *layer, DLTensor *scales,
                            attn_error_t *error) {
    ATTNI_NEED(c, "calibration", error);
    ATTNI_NEED(layer, "layer", error);
    const struct attni_calibrated *l = attni_calibration_find(c, layer);
    if (l == NULL) {
        char near[160] = "";
        const char **names = calloc(c->count + 1u, sizeof *names);
        for (uint32_t i = 0; names != NULL && i < c->count; i++)
            names[i] = c->layers[i].name;
        if (names != NULL) attni_did_you_mean(near, sizeof near, layer, names, c->count);
        free(names);
        return attn_fail(
            error, ATTN_E_NOT_FOUND, "layer",
            "the calibration has no layer '%.120s' among its %u%s; calibrate it (attn calibrate)", layer,
            (unsigned)c->count, near);
    }
    const int64_t shape[2] = {l->heads, l->size};
    int code = attn_check_tensor(scales, "scales", ATTN_DTYPE_FLOAT32, 2, shape, error);
    if (code == ATTN_OK) code = check_host(scales, "scales", error);
    for (int64_t h = 0; code == ATTN_OK && h < l->heads; h++) {
        const float *from = l->largest + h * l->size, most = largest_of(from, l->size);
        float *to = (float *)(void *)((char *)attn_data(scales) + h * attn_byte_stride(scales, 0));
        for (int64_t d = 0; d < l->size; d++) {
            const float x = (from[d] > 0 ? from[d] : most) / 127.0f;
            to[d] = x > 0 ? x : 1.0f; /* zeros alone, or so small that the quotient is */
        }
    }
    return code;
}
