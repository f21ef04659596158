/* SPDX-License-Identifier: Apache-2.0 */
/* device_memory.c: CPU memory, or GPU memory through the CUDA driver's own entry points. */
#include "device_memory.h"

#include <attn/attn_plugin_util.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { MAX_BLOCKS = 4096 };
#define HUGE_PAGE ((size_t)2 << 20)

typedef unsigned long long gpu_address_t; /* CUdeviceptr */

/* The few driver calls that are used, with the driver's signatures. */
typedef struct cuda_driver {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*context_retain)(void **context, int device);
    int (*context_set)(void *context);
    int (*alloc)(gpu_address_t *address, size_t bytes);
    int (*free)(gpu_address_t address);
    int (*to_device)(gpu_address_t to, const void *from, size_t bytes);
    int (*from_device)(void *to, gpu_address_t from, size_t bytes);
    int (*fill)(gpu_address_t to, unsigned char byte, size_t bytes);
    int (*copy)(gpu_address_t to, gpu_address_t from, size_t bytes);
    int (*sync)(void);
} cuda_driver_t;

struct device_memory {
    DLDevice device;
    cuda_driver_t cuda;
    void *blocks[MAX_BLOCKS];
    size_t num_blocks;
};

static int open_cuda(cuda_driver_t *cuda, int ordinal, attn_error_t *error) {
    static const char *const names[] = {"cuInit",          "cuDeviceGet",     "cuDevicePrimaryCtxRetain",
                                        "cuCtxSetCurrent", "cuMemAlloc_v2",   "cuMemFree_v2",
                                        "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemsetD8_v2",
                                        "cuMemcpyDtoD_v2", "cuCtxSynchronize"};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context;
    if (library == NULL)
        return attn_fail(error, ATTN_E_DEVICE, "device", "no CUDA driver: libcuda.so.1 was not found");
    void **slots = (void **)cuda; /* POSIX: a function pointer fits and is had from dlsym this way */
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        slots[i] = dlsym(library, names[i]);
        if (slots[i] == NULL)
            return attn_fail(error, ATTN_E_DEVICE, "device", "the CUDA driver has no %s", names[i]);
    }
    int device, code;
    if ((code = cuda->init(0)) != 0 || (code = cuda->device_get(&device, ordinal)) != 0 ||
        (code = cuda->context_retain(&context, device)) != 0 || (code = cuda->context_set(context)) != 0)
        return attn_fail(error, ATTN_E_DEVICE, "device", "cuda:%d cannot be used: CUDA error %d", ordinal,
                         code);
    return ATTN_OK;
}

int device_memory_open(const attn_device_t *device, device_memory_t **memory, attn_error_t *error) {
    if (device->id < 0)
        return attn_fail(error, ATTN_E_DEVICE, "device",
                         "nothing can run on %s; give --device cpu or cuda:N of this machine", device->name);
    if (device->type != kDLCPU && device->type != kDLCUDA)
        return attn_fail(error, ATTN_E_DEVICE, "device", "device type %d; cpu and cuda are known here",
                         device->type);
    device_memory_t *made = calloc(1, sizeof *made);
    if (made == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "no memory");
    made->device.device_type = (DLDeviceType)device->type;
    made->device.device_id = device->id;
    int code = device->type == kDLCUDA ? open_cuda(&made->cuda, device->id, error) : ATTN_OK;
    if (code != ATTN_OK) {
        free(made);
        return code;
    }
    *memory = made;
    return ATTN_OK;
}

void device_memory_close(device_memory_t *memory) {
    if (memory == NULL) return;
    for (size_t i = 0; i < memory->num_blocks; i++) {
        if (memory->device.device_type == kDLCPU)
            free(memory->blocks[i]);
        else
            memory->cuda.free((gpu_address_t)(uintptr_t)memory->blocks[i]);
    }
    free(memory);
}

DLDevice device_memory_device(const device_memory_t *memory) {
    return memory->device;
}

void *device_memory_new(device_memory_t *memory, size_t bytes) {
    if (memory->num_blocks == MAX_BLOCKS) return NULL;
    size_t rounded = (bytes / 256 + 1) * 256;
    void *block = NULL;
    if (memory->device.device_type == kDLCPU) {
        int is_large =
            rounded >= HUGE_PAGE * 4; /* such blocks get large pages, which page walks do not slow down */
        if (is_large) rounded = (rounded + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        block = aligned_alloc(is_large ? HUGE_PAGE : 256, rounded);
        if (is_large && block != NULL) madvise(block, rounded, MADV_HUGEPAGE);
    } else {
        gpu_address_t address;
        if (memory->cuda.alloc(&address, rounded) == 0) block = (void *)(uintptr_t)address;
    }
    if (block != NULL) memory->blocks[memory->num_blocks++] = block;
    return block;
}

int device_memory_write(device_memory_t *memory, void *to, const void *from, size_t bytes) {
    if (bytes == 0) return 0;
    if (memory->device.device_type != kDLCPU)
        return memory->cuda.to_device((gpu_address_t)(uintptr_t)to, from, bytes);
    memcpy(to, from, bytes);
    return 0;
}

int device_memory_read(device_memory_t *memory, void *to, const void *from, size_t bytes) {
    if (bytes == 0) return 0;
    if (memory->device.device_type != kDLCPU)
        return memory->cuda.from_device(to, (gpu_address_t)(uintptr_t)from, bytes);
    memcpy(to, from, bytes);
    return 0;
}

int device_memory_fill(device_memory_t *memory, void *to, int byte, size_t bytes) {
    if (bytes == 0) return 0;
    if (memory->device.device_type != kDLCPU)
        return memory->cuda.fill((gpu_address_t)(uintptr_t)to, (unsigned char)byte, bytes);
    memset(to, byte, bytes);
    return 0;
}

int device_memory_copy(device_memory_t *memory, void *to, const void *from, size_t bytes) {
    if (bytes == 0) return 0;
    if (memory->device.device_type != kDLCPU)
        return memory->cuda.copy((gpu_address_t)(uintptr_t)to, (gpu_address_t)(uintptr_t)from, bytes);
    memcpy(to, from, bytes);
    return 0;
}

int device_memory_sync(device_memory_t *memory) {
    return memory->device.device_type == kDLCPU ? 0 : memory->cuda.sync();
}
