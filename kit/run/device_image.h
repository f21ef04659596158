/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_image.h: what a check looks at or changes lies on a device, whose memory the host cannot touch:
 * images of it on the host. They are of the memory of the check that runs (check_memory), and a copy that
 * fails ends the check's process.
 */
#ifndef ATTN_KIT_DEVICE_IMAGE_H
#define ATTN_KIT_DEVICE_IMAGE_H

#include "check_engine.h"

/* Bytes from the first element of a tensor to its last; strides are not negative. */
size_t image_bytes(const DLTensor *t);
/* A copy of those bytes, to be freed; one byte more than that is allocated. */
void *image_of(const DLTensor *t);
/* Puts such a copy back. */
void image_restore(const DLTensor *t, const void *image);
/* `bytes` at an address of the device, and the other way. */
void image_read(void *to_host, const void *from, size_t bytes);
void image_write(void *to, const void *from_host, size_t bytes);
/* New memory of the device with that content (NULL: none); it stays until the check ends. */
void *image_new(const void *from_host, size_t bytes);
/* The end of a check that others follow in its process. */
void image_end(void);
/* The fingerprint of bytes at an address of the device. */
uint64_t image_print(const void *at, size_t bytes);

#endif
