/* SPDX-License-Identifier: Apache-2.0 */
/* Finding devices. */
#ifndef ATTNI_DEVICE_H
#define ATTNI_DEVICE_H

#include <attn/attn.h>

/* Asks the CUDA driver, opened at run time, for one device. ATTN_E_DEVICE with the reason if there is no driver, it does
 * not start, or has no such device. *count receives the number of devices where the driver got as far. [any thread] */
int attni_cuda_device(int32_t ordinal, attn_device_t *device, int32_t *count, attn_error_t *error);

/* Copies bytes between device memory and the host, after the work that the stream has now. Waits for it. */
int attni_cuda_read(void *host, const void *device, size_t bytes, int32_t ordinal, void *stream,
                    attn_error_t *error);
/* The same to the device without waiting: the bytes of pageable memory are taken before it returns. */
int attni_cuda_send(void *device, const void *host, size_t bytes, int32_t ordinal, void *stream,
                    attn_error_t *error);
int attni_cuda_write(void *device, const void *host, size_t bytes, int32_t ordinal, void *stream,
                     attn_error_t *error);

#endif
