/* SPDX-License-Identifier: Apache-2.0 */
/* calibrate.c: see calibrate.h. */
#include "run/calibrate.h"

#include <attn/attn_plugin_util.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/layer_sizes.h"

const char *calibrate_name(const run_input_t *in, char *text, size_t size) {
    if (in->name[0] != '\0') return in->name;
    snprintf(text, size, "layers.%lld", (long long)in->number);
    return text;
}

int calibrate_add(attn_calibration_t *calibration, const run_input_t *in, attn_error_t *error) {
    const layer_sizes_t z = layer_sizes(&in->problem);
    const st_tensor_t *value = in->value;
    char name[64];
    if (attn_role_is_mla(in->problem.role) || value == NULL)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "role",
                         "layer %lld has role %s, which keeps no V by channels", (long long)in->number,
                         attn_role_name(in->problem.role));
    void *copy = malloc((size_t)value->bytes + 1); /* a file's tensors are not aligned */
    if (copy == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "no memory for the values of a layer");
    memcpy(copy, value->data, (size_t)value->bytes);
    int64_t shape[3] = {in->k_start[in->num_reqs], z.kv_heads, z.value},
            strides[3] = {z.kv_heads * z.value, z.value, 1};
    const DLTensor t = {.data = copy,
                        .device = {kDLCPU, 0},
                        .ndim = 3,
                        .dtype = attn_dl_dtype(value->dtype),
                        .shape = shape,
                        .strides = strides};
    const int code =
        attn_calibration_add(calibration, calibrate_name(in, name, sizeof name), &t, shape[0], error);
    free(copy);
    return code;
}
