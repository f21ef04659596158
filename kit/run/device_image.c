/* SPDX-License-Identifier: Apache-2.0 */
/* device_image.c: copies between a device and its images. */
#include "device_image.h"

#include <stdlib.h>

size_t image_bytes(const DLTensor *t) {
    int64_t last = 1;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 0) return 0;
        last += (t->shape[i] - 1) * t->strides[i];
    }
    return (size_t)last * (t->dtype.bits / 8u);
}

void image_read(void *to_host, const void *from, size_t bytes) {
    const kit_memory_t *m = check_memory();
    if (m->from_device(m->ctx, to_host, from, bytes) != 0) abort();
}

void image_write(void *to, const void *from_host, size_t bytes) {
    const kit_memory_t *m = check_memory();
    if (m->to_device(m->ctx, to, from_host, bytes) != 0) abort();
}

void *image_of(const DLTensor *t) {
    const size_t bytes = image_bytes(t);
    char *image = malloc(bytes + 1);
    if (image == NULL) abort();
    image_read(image, attn_data(t), bytes);
    return image;
}

void image_restore(const DLTensor *t, const void *image) {
    image_write(attn_data(t), image, image_bytes(t));
}

/* What image_new gave. */
static struct made {
    struct made *next;
    void *address;
    size_t bytes;
} * made;

void *image_new(const void *from_host, size_t bytes) {
    const kit_memory_t *m = check_memory();
    struct made *one = malloc(sizeof *one);
    void *p = m->alloc(m->ctx, bytes, 256);
    if (p == NULL || one == NULL) abort();
    *one = (struct made){made, p, bytes};
    made = one;
    if (from_host != NULL) image_write(p, from_host, bytes);
    return p;
}

void image_end(void) {
    const kit_memory_t *m = check_memory();
    while (made != NULL) {
        struct made *one = made;
        made = one->next;
        m->free(m->ctx, one->address, one->bytes);
        free(one);
    }
}

uint64_t image_print(const void *at, size_t bytes) {
    char *image = malloc(bytes + 1);
    if (image == NULL) abort();
    image_read(image, at, bytes);
    const uint64_t print = attn_fingerprint64(0, image, bytes);
    free(image);
    return print;
}
