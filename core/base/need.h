/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of parameters that public functions begin with. */
#ifndef ATTNI_NEED_H
#define ATTNI_NEED_H

#include <attn/attn_plugin_util.h>

/* A required pointer parameter. */
#define ATTNI_NEED(POINTER, NAME, ERROR)                                                                     \
    do {                                                                                                     \
        if ((POINTER) == NULL)                                                                               \
            return attn_fail(ERROR, ATTN_E_INVALID, NAME, "%s is NULL; it is required here", NAME);          \
    } while (0)

/* A parameter that has to be at least LEAST. */
#define ATTNI_AT_LEAST(VALUE, LEAST, NAME, ERROR)                                                            \
    do {                                                                                                     \
        if ((int64_t)(VALUE) < (int64_t)(LEAST))                                                             \
            return attn_fail(ERROR, ATTN_E_INVALID, NAME, "%s is %lld; it must be at least %lld", NAME,      \
                             (long long)(VALUE), (long long)(LEAST));                                        \
    } while (0)

#endif
