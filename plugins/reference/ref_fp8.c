/* SPDX-License-Identifier: Apache-2.0 */
/* ref_fp8.c: rows as e4m3: Q, K and V of a multimodal encoder with given scales or with those of the last 16
 * calls (semantics 7.6), queries of latent attention with a given one (7.4). */
#include "ref_instance.h"
#include "ref_rows.h"

#include <float.h>
#include <math.h>

enum { LARGEST_E4M3 = 448, PIECE = 256 };

void ref_fp8_row(double *row, int64_t n, const DLTensor *scale) {
    float s = (float)ref_scale_of(scale, 0);
    for (int64_t i = 0; i < n; i++)
        row[i] = attn_from_e4m3(attn_to_e4m3((double)((float)row[i] / s))) * (double)s;
}

int ref_fp8_check_scale(const DLTensor *t, const char *name, attn_error_t *error) {
    if (t == NULL) return ATTN_OK;
    if (t->ndim > 0 && t->shape[0] != 1)
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s has %lld elements; it scales a whole tensor: give 1", name,
                         (long long)t->shape[0]);
    float s = (float)ref_scale_of(t, 0);
    if (!(s > 0) || !isfinite(s))
        return attn_fail(error, ATTN_E_INVALID, name, "%s is %g; expected a positive number", name,
                         (double)s);
    return ATTN_OK;
}

/* Largest finite magnitude of the first rows: an infinity of one request must not change the scale of the
 * others. */
static float largest_of(const DLTensor *t, uint32_t dtype, int64_t tokens) {
    double piece[PIECE], largest = 0;
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            for (int64_t at = 0; at < t->shape[2]; at += PIECE) {
                int64_t n = t->shape[2] - at < PIECE ? t->shape[2] - at : PIECE;
                ref_load_row(ref_at2(t, i, h) + at * (int64_t)attn_dtype_size(dtype), dtype, n, piece);
                for (int64_t j = 0; j < n; j++)
                    if (fabs(piece[j]) > largest && isfinite(piece[j])) largest = fabs(piece[j]);
            }
    return (float)largest;
}

static int check_state(const attn_forward_t *a, attn_error_t *error) {
    if (a->scales.q != NULL || a->scales.k != NULL || a->scales.v != NULL)
        return attn_fail(error, ATTN_E_INVALID, "scales",
                         "scales and weight_space are both given; static scales or a state for dynamic ones");
    if (a->weight_space_bytes < sizeof(attn_fp8_state_t))
        return attn_fail(error, ATTN_E_SPACE, "weight_space",
                         "weight_space has %llu bytes; space_needed says %zu",
                         (unsigned long long)a->weight_space_bytes, sizeof(attn_fp8_state_t));
    return ATTN_OK;
}

static int check_given(const attn_forward_t *a, attn_error_t *error) {
    int status = ref_fp8_check_scale(a->scales.q, "q_scale", error);
    if (status == ATTN_OK) status = ref_fp8_check_scale(a->scales.k, "k_scale", error);
    return status == ATTN_OK ? ref_fp8_check_scale(a->scales.v, "v_scale", error) : status;
}

static void measure(const attn_instance_t *in, const attn_forward_t *a, int64_t tokens, int64_t key_rows,
                    attn_fp8_state_t *state) {
    const DLTensor *rows[3] = {a->query, a->key, a->value};
    for (int i = 0; i < 3; i++) {
        float largest = FLT_MIN;
        state->amax[i][state->calls % ATTN_FP8_HISTORY] =
            largest_of(rows[i], i == 0 ? in->query_dtype : in->p.dtype, i == 0 ? tokens : key_rows);
        for (int j = 0; j < ATTN_FP8_HISTORY; j++)
            if (state->amax[i][j] > largest) largest = state->amax[i][j];
        state->scale[i] = largest / LARGEST_E4M3;
    }
    state->calls++;
}

int ref_fp8_begin(const attn_instance_t *in, attn_forward_t *a, int64_t tokens, int64_t key_rows,
                  ref_fp8_scales_t *scales, attn_error_t *error) {
    if (a->weight_space == NULL) return check_given(a, error);
    int status = check_state(a, error);
    if (status != ATTN_OK) return status;
    attn_fp8_state_t *state =
        (attn_fp8_state_t *)(uintptr_t)a->weight_space; /* written in this one use of it */
    measure(in, a, tokens, key_rows, state);
    scales->shape = scales->stride = 1;
    for (int i = 0; i < 3; i++) {
        scales->value[i] = state->scale[i];
        scales->tensor[i] = (DLTensor){.data = &scales->value[i],
                                       .device = {kDLCPU, 0},
                                       .ndim = 1,
                                       .dtype = {kDLFloat, 32, 1},
                                       .shape = &scales->shape,
                                       .strides = &scales->stride};
    }
    a->scales = (attn_scales_t){.q = &scales->tensor[0], .k = &scales->tensor[1], .v = &scales->tensor[2]};
    return ATTN_OK;
}

int ref_fp8_prepare(const attn_instance_t *in, const attn_weights_t *weights, attn_error_t *error) {
    (void)in;
    if (weights->kv_b_proj != NULL)
        return attn_fail(error, ATTN_E_INVALID, "kv_b_proj",
                         "kv_b_proj is given; role mm_encoder has no weights");
    if (weights->weight_space == NULL || weights->weight_space_bytes < sizeof(attn_fp8_state_t))
        return attn_fail(
            error, ATTN_E_SPACE, "weight_space", "weight_space has %llu bytes; space_needed says %zu",
            (unsigned long long)(weights->weight_space != NULL ? weights->weight_space_bytes : 0),
            sizeof(attn_fp8_state_t));
    memset(weights->weight_space, 0, sizeof(attn_fp8_state_t));
    return ATTN_OK;
}
