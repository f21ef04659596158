/* SPDX-License-Identifier: Apache-2.0 */
/* What a calibration holds, for what adds to it and for what reads and writes its file. */
#ifndef ATTNI_CALIBRATION_H
#define ATTNI_CALIBRATION_H

#include <attn/attn_calibration.h>

struct attni_calibrated {
    char *name;
    int64_t heads, size, tokens;
    float *largest; /* [heads][size], finite, 0 or above */
};

struct attn_calibration {
    struct attni_calibrated *layers;
    uint32_t count;
};

/* The layer of a name, or NULL. */
struct attni_calibrated *attni_calibration_find(const attn_calibration_t *c, const char *name);
/* A new one, of zeros; NULL: no memory. */
struct attni_calibrated *attni_calibration_new(attn_calibration_t *c, const char *name, int64_t heads,
                                               int64_t size);

#endif
