/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors are not checked. Caught by: errors */
#include "bad.h"

static int bad_check_tensor(const DLTensor *t, const char *name, attn_error_t *error) {
    return t != NULL ? ATTN_OK : attn_fail(error, ATTN_E_INVALID, name, "%s is not given", name);
}
#define attn_check_tensor(t, name, dtype, ndim, shape, error)                                                \
    ((void)(shape), (void)(dtype), bad_check_tensor(t, name, error))

#include "bad_plugin.h"
