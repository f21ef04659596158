/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA runtime over the driver of this folder, for plugins that nvcc compiled: linked into them in place
 * of the real one (model.am). Their machine code is not looked at: the kernel of a stub is found by its name
 * among the texts in the folders of ATTN_MODEL_PTX, separated by colons, whose files `index` say where each
 * is (make_ptx), and read when it is first launched. */
#include "cudart.h"
#include "../nvcc_stubs.h"

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct stub {
    const void *host;
    const char *name;
    CUfunction function; /* NULL: not read yet */
    int dynamic_bytes;   /* what it may have of shared memory; 0: the usual */
    struct stub *next;
} stub_t;
static stub_t *stubs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local cudaError_t pending;
static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} pushed;

cudaError_t cudart_said(int e) {
    if (e != 0) pending = (cudaError_t)e;
    return (cudaError_t)e;
}
void *cudart_driver(const char *name) {
    static void *library;
    if (library == NULL) library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *f = library != NULL ? dlsym(library, name) : NULL;
    if (f == NULL) fprintf(stderr, "model: its driver has no %s\n", name);
    return f;
}

static int read_kernel(stub_t *s) {
    char name[NAME_SIZE], *own = cudart_text(s->name, name);
    CUmodule module = NULL;
    if (own == NULL) {
        fprintf(stderr, "model: no text of kernel %s; ATTN_MODEL_PTX is %s\n", s->name,
                getenv("ATTN_MODEL_PTX") ? getenv("ATTN_MODEL_PTX") : "not set");
        return cudaErrorInvalidDeviceFunction;
    }
    int e = DRIVER("cuModuleLoadData", (CUmodule *, const void *), (&module, own));
    free(own);
    if (e == 0)
        e = DRIVER("cuModuleGetFunction", (CUfunction *, CUmodule, const char *),
                   (&s->function, module, name));
    if (e == 0 && s->dynamic_bytes != 0)
        e = DRIVER("cuFuncSetAttribute", (CUfunction, int, int),
                   (s->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, s->dynamic_bytes));
    return e;
}
static stub_t *find(const void *host) {
    stub_t *s = stubs;
    while (s != NULL && s->host != host)
        s = s->next;
    return s;
}
static int stub_of(const void *host, CUfunction *function) {
    stub_t *s = find(host);
    if (s == NULL) return cudaErrorInvalidDeviceFunction;
    pthread_mutex_lock(&lock);
    const int e = s->function != NULL ? 0 : read_kernel(s);
    *function = s->function;
    pthread_mutex_unlock(&lock);
    return e;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit,
                            void *a, void *b, void *c, void *d, int *e) {
    (void)handle, (void)device, (void)limit, (void)a, (void)b, (void)c, (void)d, (void)e;
    stub_t *s = calloc(1, sizeof *s);
    if (s == NULL) return;
    s->host = host, s->name = name, s->next = stubs;
    stubs = s;
}
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t size,
                       int constant, int global);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t size,
                       int constant, int global) {
    (void)handle, (void)host, (void)device, (void)name, (void)ext, (void)size, (void)constant, (void)global;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *(void **)stream = pushed.stream;
    return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args) {
    CUfunction f = NULL;
    int e = stub_of(kernel, &f);
    /* the two structs differ in the shared memory's type alone */
    if (e == 0)
        e = DRIVER("cuLaunchKernelEx", (const void *, CUfunction, void **, void **), (config, f, args, NULL));
    return cudart_said(e);
}
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream) {
    const cudaLaunchConfig_t c = {
        .gridDim = grid, .blockDim = block, .dynamicSmemBytes = shared, .stream = stream};
    return cudaLaunchKernelExC(&c, kernel, args);
}
/* Kernels are loaded when they are launched: what is set before is kept until then. */
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
    stub_t *s = find(kernel);
    int e = s != NULL ? 0 : cudaErrorInvalidDeviceFunction;
    if (e == 0 && attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        int most = 0;
        e = DRIVER("cuDeviceGetAttribute", (int *, int, int), (&most, 97, 0));
        if (e == 0 && value > most) e = cudaErrorInvalidValue;
        if (e == 0) s->dynamic_bytes = value;
        if (e == 0 && s->function != NULL)
            e = DRIVER("cuFuncSetAttribute", (CUfunction, int, int), (s->function, (int)attribute, value));
    }
    return cudart_said(e);
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *kernel) {
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024;
    return cudart_said(find(kernel) != NULL ? 0 : cudaErrorInvalidDeviceFunction);
}
cudaError_t cudaOccupancyMaxActiveClusters(int *count, const void *kernel, const cudaLaunchConfig_t *config) {
    CUfunction f = NULL;
    int e = stub_of(kernel, &f);
    if (e == 0)
        e = DRIVER("cuOccupancyMaxActiveClusters", (int *, CUfunction, const void *), (count, f, config));
    return cudart_said(e);
}

cudaError_t cudaGetLastError(void) {
    const cudaError_t e = pending;
    pending = cudaSuccess;
    return e;
}
const char *cudaGetErrorString(cudaError_t error) {
    const char *text = "";
    DRIVER("cuGetErrorString", (int, const char **), ((int)error, &text));
    return text;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
    (void)version, (void)flags;
    *function = cudart_driver(symbol);
    *result = *function != NULL ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
