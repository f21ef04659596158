/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_safetensors.c: any bytes as a safetensors file. What is accepted lies within the bytes, and every
 * byte is readable. */
// SOURCES: tools/tensor/safetensors*.c tools/base/tool.c tools/base/args.c core/*/*.c
#include <stdlib.h>
#include <string.h>

#include "tensor/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned char sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    st_file_t *file = NULL;
    attn_error_t err = {.struct_size = sizeof err};
    int code = st_parse(data, size, "fuzz", &file, &err);
    if (code) {
        if (code > 0 || file || err.code != code || !err.text[0]) abort();
        if (!memchr(err.text, '\0', sizeof err.text)) abort();
        return 0;
    }
    for (size_t i = 0; i < st_count(file); i++) {
        const st_tensor_t *t = st_at(file, i);
        if (!t->name || t->ndim > ST_MAX_DIMS || st_find(file, t->name) != t) abort();
        if (t->bytes > size || (t->bytes && (t->data < data || t->data + t->bytes > data + size))) abort();
        for (uint32_t d = 0; d < t->ndim; d++)
            if (t->shape[d] < 0) abort();
        if (t->bytes) sink = (unsigned char)(t->data[0] ^ t->data[t->bytes - 1]);
    }
    (void)st_metadata(file, "attn.scale");
    st_close(file);
    return 0;
}
