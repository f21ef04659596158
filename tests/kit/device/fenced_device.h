/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fenced_device.h: an accelerator of our own imagination, for tests. Its memory is mapped twice: at the
 * addresses that it gives out every access faults, and its kernels work through a view that nobody else
 * knows. So a program that follows a pointer of the device on the host ends with a signal, always.
 */
#ifndef FENCED_DEVICE_H
#define FENCED_DEVICE_H

#include <attn/attn_merge.h>
#include <attn/attn_plugin_util.h>
#include <attn/draft/attn_device.h>

#ifndef FENCED_TYPE
#define FENCED_TYPE kDLExtDev
#endif

extern const attn_device_kind_t fenced_kind;

/* Where a kernel finds an address of the device; NULL: it is none of its addresses. */
void *fenced_view(const void *address);

/*
 * Runs a kernel on a copy of its arguments: now, or, where the stream is being captured, at each launch of
 * the graph. Returns what the kernel returns, ATTN_OK in a capture.
 */
typedef int fenced_kernel_t(void *arguments, attn_error_t *error);
int fenced_launch(void *stream, fenced_kernel_t *kernel, const void *arguments, size_t bytes,
                  attn_error_t *error);

/* Of attn_merge_table_t; the kernels wait in the thread that launches them. */
int fenced_peers_query(const attn_peers_t *peers, const DLTensor *query, int64_t num_tokens, void *stream,
                       attn_error_t *error);
int fenced_peers_join(const attn_peers_t *peers, int64_t num_tokens, const DLTensor *sinks,
                      const DLTensor *output, const DLTensor *lse, void *stream, attn_error_t *error);

#endif
