/* SPDX-License-Identifier: Apache-2.0 */
/* The way out of a struct: the counterpart of attn_intake. */
#ifndef ATTNI_STRUCT_GIVE_H
#define ATTNI_STRUCT_GIVE_H

#include <stdint.h>
#include <string.h>

/* Copies a filled struct of known size to a caller, who may have an older and shorter one: not more than the caller's
 * struct_size, which is kept. A struct_size of 0 or beyond the known one reads as "the one of this header". */
static inline void attni_give(void *dst, const void *src, size_t known_size) {
    uint32_t size;
    memcpy(&size, dst, sizeof size);
    if (size < sizeof size || size > known_size) size = (uint32_t)known_size;
    memcpy(dst, src, size);
    memcpy(dst, &size, sizeof size);
}

#endif
