/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_calibration.h: static scales of V's channels, for caches of int8_static_v: the largest magnitudes over
 * as many calls as an engine likes, kept in a file (semantics 3.8). For engines; plugins do not see it.
 *
 *     attn_calibration_create(&c, &error);            or attn_calibration_load, to go on with a file
 *     attn_calibration_add(c, name, value, n, &error);            for each layer and step
 *     attn_calibration_save(c, path, &error);                     whenever: the file is replaced as a whole
 *
 *     attn_calibration_load(path, &c, &error);
 *     attn_calibration_scales(c, name, &scales, &error);          float32 [Hkv, Dv], for
 *     options.scales.v = &scales;                                 attn_layer_create
 *
 * A calibration is used by one thread at a time: [one thread]. "Semantics n.m" is a section of
 * doc/semantics.md.
 */
#ifndef ATTN_CALIBRATION_H
#define ATTN_CALIBRATION_H

#include <attn/attn_types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attn_calibration attn_calibration_t;

/* What is known of one layer. The name lives as long as the calibration. */
typedef struct attn_calibration_layer {
    uint32_t struct_size;
    uint32_t reserved0;
    const char *name;
    int64_t num_kv_heads, head_size_v;
    int64_t tokens; /* that were seen */
    float largest;  /* magnitude of all channels */
    uint32_t reserved1;
} attn_calibration_layer_t;

/* An empty one. [one thread] */
int attn_calibration_create(attn_calibration_t **calibration, attn_error_t *error);
/* Reads a file that attn_calibration_save or `attn calibrate` wrote. ATTN_E_IO: it cannot be read;
 * ATTN_E_PARSE: it is cut short, is no such file, or holds a number that is no magnitude, with the place.
 * [one thread] */
int attn_calibration_load(const char *path, attn_calibration_t **calibration, attn_error_t *error);
/* NULL is allowed. [one thread] */
void attn_calibration_destroy(attn_calibration_t *calibration);

/* Takes in the first num_tokens rows of V, [tokens, Hkv, Dv] of float32, float16 or bfloat16 in host
 * memory: what update_kv_cache is given. Values that are not finite do not count. A layer keeps the heads
 * and the size that it had first. [one thread] */
int attn_calibration_add(attn_calibration_t *calibration, const char *layer, const DLTensor *value,
                         int64_t num_tokens, attn_error_t *error);

/* Writes the file: a new one takes the place of the old one when it is complete. [one thread] */
int attn_calibration_save(const attn_calibration_t *calibration, const char *path, attn_error_t *error);

/* How many layers it has seen. [one thread] */
uint32_t attn_calibration_num_layers(const attn_calibration_t *calibration);
/* Layer i, in the order in which they came. [one thread] */
int attn_calibration_layer(const attn_calibration_t *calibration, uint32_t i, attn_calibration_layer_t *layer,
                           attn_error_t *error);

/* Fills float32 [Hkv, Dv] in host memory with the scales of a layer: max|x| / 127 of each channel; a
 * channel that was always 0 has its head's largest, a head of zeros 1. ATTN_E_NOT_FOUND: no such layer,
 * with the nearest name. [one thread] */
int attn_calibration_scales(const attn_calibration_t *calibration, const char *layer, DLTensor *scales,
                            attn_error_t *error);

#ifdef __cplusplus
}
#endif
#endif
