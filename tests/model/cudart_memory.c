/* SPDX-License-Identifier: Apache-2.0 */
/* The rest of that runtime: devices, memory, streams, events and graphs, by the driver's calls. Tests for a
 * device that are linked with it run on the model, too. */
#include "cudart.h"

#include <stdint.h>

cudaError_t cudaGetDeviceCount(int *count) {
    return cudart_said(DRIVER("cuDeviceGetCount", (int *), (count)));
}
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    return cudart_said(device == 0 ? 0 : cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceSynchronize(void) {
    return cudart_said(DRIVER("cuCtxSynchronize", (void), ()));
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    return cudart_said(DRIVER("cuDeviceGetAttribute", (int *, int, int), (value, (int)attribute, device)));
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    return cudart_said(DRIVER("cuMemGetInfo_v2", (size_t *, size_t *), (free_bytes, total)));
}
cudaError_t cudaMalloc(void **p, size_t bytes) {
    unsigned long long address = 0;
    const int e = DRIVER("cuMemAlloc_v2", (unsigned long long *, size_t), (&address, bytes));
    *p = (void *)(uintptr_t)address;
    return cudart_said(e);
}
cudaError_t cudaMallocHost(void **p, size_t bytes) {
    return cudaMalloc(p, bytes);
}
cudaError_t cudaFree(void *p) {
    return p != NULL ? cudart_said(DRIVER("cuMemFree_v2", (unsigned long long), ((uintptr_t)p)))
                     : cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
    return cudaFree(p);
}
cudaError_t cudaMemsetAsync(void *p, int byte, size_t bytes, cudaStream_t stream) {
    return cudart_said(DRIVER("cuMemsetD8Async", (unsigned long long, unsigned char, size_t, void *),
                              ((uintptr_t)p, (unsigned char)byte, bytes, stream)));
}
cudaError_t cudaMemset(void *p, int byte, size_t bytes) {
    return cudaMemsetAsync(p, byte, bytes, NULL);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    if (kind == cudaMemcpyHostToDevice)
        return cudart_said(DRIVER("cuMemcpyHtoDAsync_v2", (unsigned long long, const void *, size_t, void *),
                                  ((uintptr_t)to, from, bytes, stream)));
    if (kind == cudaMemcpyDeviceToHost)
        return cudart_said(DRIVER("cuMemcpyDtoHAsync_v2", (void *, unsigned long long, size_t, void *),
                                  (to, (uintptr_t)from, bytes, stream)));
    return cudart_said(DRIVER("cuMemcpyDtoDAsync_v2",
                              (unsigned long long, unsigned long long, size_t, void *),
                              ((uintptr_t)to, (uintptr_t)from, bytes, stream)));
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudart_said(DRIVER("cuStreamCreate", (cudaStream_t *, unsigned), (stream, flags)));
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithFlags(stream, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return cudart_said(DRIVER("cuStreamDestroy_v2", (cudaStream_t), (stream)));
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return cudart_said(DRIVER("cuStreamSynchronize", (cudaStream_t), (stream)));
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    return cudart_said(DRIVER("cuStreamBeginCapture_v2", (cudaStream_t, int), (stream, (int)mode)));
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    return cudart_said(DRIVER("cuStreamEndCapture", (cudaStream_t, cudaGraph_t *), (stream, graph)));
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    return cudart_said(DRIVER("cuGraphInstantiateWithFlags",
                              (cudaGraphExec_t *, cudaGraph_t, unsigned long long), (exec, graph, flags)));
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    return cudart_said(DRIVER("cuGraphLaunch", (cudaGraphExec_t, cudaStream_t), (exec, stream)));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    return cudart_said(DRIVER("cuGraphDestroy", (cudaGraph_t), (graph)));
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    return cudart_said(DRIVER("cuGraphExecDestroy", (cudaGraphExec_t), (exec)));
}
cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudart_said(DRIVER("cuEventCreate", (cudaEvent_t *, unsigned), (event, 0)));
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return cudart_said(DRIVER("cuEventDestroy_v2", (cudaEvent_t), (event)));
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudart_said(DRIVER("cuEventRecord", (cudaEvent_t, cudaStream_t), (event, stream)));
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return cudart_said(DRIVER("cuEventSynchronize", (cudaEvent_t), (event)));
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t first, cudaEvent_t last) {
    return cudart_said(
        DRIVER("cuEventElapsedTime", (float *, cudaEvent_t, cudaEvent_t), (milliseconds, first, last)));
}
