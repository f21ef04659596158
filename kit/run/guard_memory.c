/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard_memory.c: buffers between pages that fault. Either the end (up to the alignment) or the start of a
 * buffer lies at such a page: a read or a write outside is a crash at the instruction that did it. Also
 * copies of tensors in there.
 */
#include "device_image.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void *guard_alloc(guard_t *g, size_t bytes, size_t alignment, int at_end) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inner;
    if (alignment == 0) alignment = 1;
    size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    inner = (rounded + page - 1) / page * page;
    g->mapped = inner + 2 * page;
    g->base = mmap(NULL, g->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (g->base == MAP_FAILED) {
        g->base = NULL;
        return NULL;
    }
    if (inner > 0 && mprotect(g->base + page, inner, PROT_READ | PROT_WRITE) != 0) return NULL;
    memset(g->base + page, 0xc7, inner);
    return g->base + page + (at_end ? inner - rounded : 0);
}

void guard_free(guard_t *g) {
    if (g->base != NULL) munmap(g->base, g->mapped);
    g->base = NULL;
}

const DLTensor *guard_tensor(guarded_t *g, const DLTensor *t, size_t alignment, int at_end) {
    if (t == NULL) return NULL;
    g->original = t;
    g->copy = *t;
    g->bytes = image_bytes(t);
    g->copy.data = guard_alloc(&g->memory, g->bytes, alignment, at_end);
    g->copy.byte_offset = 0;
    if (g->copy.data == NULL) return t;
    if (g->bytes > 0) memcpy(g->copy.data, attn_data(t), g->bytes);
    return &g->copy;
}

void guard_return(guarded_t *g, int is_output) {
    if (g->original == NULL) return;
    if (is_output && g->copy.data != NULL && g->bytes > 0)
        memcpy(attn_data(g->original), g->copy.data, g->bytes);
    guard_free(&g->memory);
    g->original = NULL;
}
