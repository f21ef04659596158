/* SPDX-License-Identifier: Apache-2.0 */
/* device_cpu.c: the processor as a kind of device: its memory is the host's, and everything is done when a
 * call returns. */
#include "device/device_kind.h"

#include <attn/attn_plugin_util.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT ((size_t)256)
#define HUGE_PAGE ((size_t)2 << 20)

/* The model as the kernel names it, or "CPU". */
static void model_name(char *name, size_t size) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(name, size, "CPU");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || value == NULL) continue;
        value += 1 + strspn(value + 1, " \t");
        const int length = (int)strcspn(value, "\n");
        if (length > 0) snprintf(name, size, "%.*s", length, value);
        break;
    }
    if (file != NULL) fclose(file);
}

static uint64_t pages_of(int name) {
    const long pages = sysconf(name), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}

static int cpu_describe(int32_t id, attn_device_t *device, int32_t *count, attn_error_t *error) {
    if (count != NULL) *count = 1;
    if (id != 0)
        return attn_fail(error, ATTN_E_DEVICE, "device", "there is no cpu:%d; all processors are cpu:0",
                         (int)id);
    const long threads = sysconf(_SC_NPROCESSORS_ONLN);
    ATTN_INIT(attn_device_t, d);
    d.type = kDLCPU;
    d.num_sms = threads > 0 ? (int32_t)threads : 0;
    d.memory_bytes = pages_of(_SC_PHYS_PAGES);
    model_name(d.name, sizeof d.name);
    *device = d;
    return ATTN_OK;
}

static int cpu_alloc(int32_t id, size_t bytes, void **address, attn_error_t *error) {
    (void)id;
    const int is_large = bytes >= HUGE_PAGE * 4; /* large pages, which page walks do not slow down */
    const size_t alignment = is_large ? HUGE_PAGE : ALIGNMENT;
    void *p = NULL;
    if (bytes <= SIZE_MAX - alignment)
        p = aligned_alloc(alignment,
                          (bytes / alignment + (bytes % alignment != 0 || bytes == 0)) * alignment);
    if (p == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory: no %zu bytes are left", bytes);
    if (is_large) madvise(p, bytes, MADV_HUGEPAGE);
    *address = p;
    return ATTN_OK;
}

static void cpu_free(int32_t id, void *address) {
    (void)id;
    free(address);
}

static int cpu_memory_info(int32_t id, uint64_t *free_bytes, uint64_t *total_bytes, attn_error_t *error) {
    (void)id, (void)error;
    *free_bytes = pages_of(_SC_AVPHYS_PAGES);
    *total_bytes = pages_of(_SC_PHYS_PAGES);
    return ATTN_OK;
}

static int cpu_copy(int32_t id, void *to, const void *from, size_t bytes, void *stream, attn_error_t *error) {
    (void)id, (void)stream, (void)error;
    if (bytes > 0) memmove(to, from, bytes);
    return ATTN_OK;
}

static int cpu_fill(int32_t id, void *to, uint8_t byte, size_t bytes, void *stream, attn_error_t *error) {
    (void)id, (void)stream, (void)error;
    if (bytes > 0) memset(to, byte, bytes);
    return ATTN_OK;
}

static int cpu_synchronize(int32_t id, attn_error_t *error) {
    (void)id, (void)error;
    return ATTN_OK;
}

const attn_device_kind_t attni_device_cpu = {.struct_size = sizeof(attn_device_kind_t),
                                             .type = kDLCPU,
                                             .name = "cpu",
                                             .describe = cpu_describe,
                                             .alloc = cpu_alloc,
                                             .free = cpu_free,
                                             .memory_info = cpu_memory_info,
                                             .copy_to = cpu_copy,
                                             .copy_from = cpu_copy,
                                             .copy_within = cpu_copy,
                                             .fill = cpu_fill,
                                             .synchronize = cpu_synchronize};
