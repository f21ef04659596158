/* SPDX-License-Identifier: Apache-2.0 */
/* run_convert.c: the same layer in another dtype, for backends that do not take the file's own. */
#include <attn/attn_plugin_util.h>
#include <stdlib.h>

#include "run/run_input.h"
#include "tensor/tensor.h"

int run_input_convert(run_input_t *input, uint32_t dtype, attn_error_t *error) {
    const st_tensor_t **tensors[5] = {&input->query, &input->key, &input->value, &input->output,
                                      &input->weights};
    uint32_t from = input->problem.dtype;
    if (from == dtype) return ATTN_OK;
    size_t element = attn_dtype_size(dtype);
    for (int i = 0; i < 5; i++) {
        const st_tensor_t *old = *tensors[i];
        if (old == NULL) continue;
        size_t count = (size_t)old->bytes / attn_dtype_size(from);
        unsigned char *data = malloc(count * element + 1);
        if (data == NULL)
            return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory: cannot convert '%s'", old->name);
        for (size_t k = 0; k < count; k++)
            tensor_store(data, dtype, k, tensor_load(old->data, from, k));
        input->converted[i] = *old;
        input->converted[i].dtype = dtype;
        input->converted[i].data = data;
        input->converted[i].bytes = count * element;
        *tensors[i] = &input->converted[i];
    }
    input->problem.dtype = dtype;
    return ATTN_OK;
}

void run_input_free(run_input_t *input) {
    for (int i = 0; i < 5; i++)
        free((void *)(uintptr_t)input->converted[i].data);
}
