/* SPDX-License-Identifier: Apache-2.0 */
/* st_dtypes.h: the dtype names of safetensors and what they are here. */
#ifndef ATTN_TOOLS_ST_DTYPES_H
#define ATTN_TOOLS_ST_DTYPES_H

#include <attn/attn_types.h>
#include <string.h>

typedef struct st_dtype {
    const char *name;
    uint32_t dtype; /* 0: libattn has none */
    uint32_t bits;
} st_dtype_t;

static const st_dtype_t st_dtypes[] = {
    {"F32", ATTN_DTYPE_FLOAT32, 32},
    {"F16", ATTN_DTYPE_FLOAT16, 16},
    {"BF16", ATTN_DTYPE_BFLOAT16, 16},
    {"F64", ATTN_DTYPE_FLOAT64, 64},
    {"I32", ATTN_DTYPE_INT32, 32},
    {"I64", ATTN_DTYPE_INT64, 64},
    {"I8", ATTN_DTYPE_INT8, 8},
    {"U8", ATTN_DTYPE_UINT8, 8},
    {"F8_E4M3", ATTN_DTYPE_FP8_E4M3, 8},
    {"F8_E5M2", ATTN_DTYPE_FP8_E5M2, 8},
    {"BOOL", 0, 8},
    {"I16", 0, 16},
    {"U16", 0, 16},
    {"U32", 0, 32},
    {"U64", 0, 64},
    {"F8_E8M0", 0, 8},
    {"F4", 0, 4},
    {"F6_E2M3", 0, 6},
    {"F6_E3M2", 0, 6},
    {"C64", 0, 64},
};

static inline const st_dtype_t *st_dtype_by_name(const char *name) {
    for (size_t i = 0; i < sizeof st_dtypes / sizeof st_dtypes[0]; i++)
        if (strcmp(st_dtypes[i].name, name) == 0) return &st_dtypes[i];
    return NULL;
}

static inline const char *st_dtype_word(uint32_t dtype) {
    for (size_t i = 0; i < sizeof st_dtypes / sizeof st_dtypes[0]; i++)
        if (st_dtypes[i].dtype == dtype && dtype != 0) return st_dtypes[i].name;
    return NULL;
}

#endif
