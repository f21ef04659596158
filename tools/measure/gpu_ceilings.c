/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_ceilings.c: what a device can do at best: its own copy, and where its driver has the functions of
 * CUDA, a kernel that reads, and cuBLAS if its library is there.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "measure/bench_data.h"
#include "measure/bench_gpu.h"

/* Four 16-byte reads in flight for each thread, over the whole buffer; the store keeps them from being
 * left out. */
static const char read_kernel[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry read_all(.param .u64 from, .param .u64 count, .param .u64 to) {\n"
    ".reg .pred %p<3>; .reg .b32 %r<24>; .reg .b64 %d<12>;\n"
    "ld.param.u64 %d0, [from]; ld.param.u64 %d1, [count]; ld.param.u64 %d2, [to];\n"
    "mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;\n"
    "mov.u32 %r3, %nctaid.x; mul.wide.u32 %d3, %r0, %r1; cvt.u64.u32 %d4, %r2;\n"
    "shl.b64 %d3, %d3, 2; add.s64 %d3, %d3, %d4; mul.wide.u32 %d5, %r3, %r1; shl.b64 %d5, %d5, 2;\n"
    "mul.wide.u32 %d6, %r1, 3; mul.wide.u32 %d7, %r1, 16; mov.u32 %r20, 0;\n"
    "again: add.s64 %d8, %d3, %d6; setp.ge.u64 %p1, %d8, %d1; @%p1 bra done;\n"
    "shl.b64 %d9, %d3, 4; add.s64 %d9, %d0, %d9;\n"
    "ld.global.cs.v4.u32 {%r4,%r5,%r6,%r7}, [%d9]; add.s64 %d9, %d9, %d7;\n"
    "ld.global.cs.v4.u32 {%r8,%r9,%r10,%r11}, [%d9]; add.s64 %d9, %d9, %d7;\n"
    "ld.global.cs.v4.u32 {%r12,%r13,%r14,%r15}, [%d9]; add.s64 %d9, %d9, %d7;\n"
    "ld.global.cs.v4.u32 {%r16,%r17,%r18,%r19}, [%d9];\n"
    "xor.b32 %r4, %r4, %r5; xor.b32 %r6, %r6, %r7; xor.b32 %r8, %r8, %r9;\n"
    "xor.b32 %r10, %r10, %r11; xor.b32 %r12, %r12, %r13; xor.b32 %r14, %r14, %r15;\n"
    "xor.b32 %r16, %r16, %r17; xor.b32 %r18, %r18, %r19; xor.b32 %r4, %r4, %r6;\n"
    "xor.b32 %r8, %r8, %r10; xor.b32 %r12, %r12, %r14; xor.b32 %r16, %r16, %r18;\n"
    "xor.b32 %r4, %r4, %r8; xor.b32 %r12, %r12, %r16; xor.b32 %r20, %r20, %r4;\n"
    "xor.b32 %r20, %r20, %r12; add.s64 %d3, %d3, %d5; bra again;\n"
    "done: setp.ne.u32 %p2, %r20, 305419896; @%p2 bra end;\n"
    "st.global.u32 [%d2], %r20;\n"
    "end: ret;\n}\n";

/* The driver and cuBLAS calls that are used, with their signatures. */
typedef int load_func_t(void **module, const void *image);
typedef int function_func_t(void **function, void *module, const char *name);
typedef int launch_func_t(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, void *stream, void **params, void **extra);
typedef int blas_create_t(void **handle);
typedef int blas_stream_t(void *handle, void *stream);
typedef int blas_gemm_t(void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,
                        int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c,
                        int c_type, int ldc, int compute_type, int algorithm);

/* POSIX: a function pointer is had from dlsym through an object pointer. */
static void find_symbol(void *library, const char *name, void **function) {
    *function = library != NULL ? dlsym(library, name) : NULL;
}

/* The same of a device's driver. */
static void find_native(const attn_device_kind_t *kind, const char *name, void **function) {
    *function = kind->native_function != NULL ? kind->native_function(name) : NULL;
}

typedef struct reading {
    launch_func_t *launch;
    void *function;
    unsigned blocks;
    unsigned long long from, count, to;
} reading_t;

static int read_once(void *user, void *stream) {
    reading_t *r = user;
    void *params[] = {&r->from, &r->count, &r->to};
    return r->launch(r->function, r->blocks, 1, 1, 512, 1, 1, 0, stream, params, NULL);
}

typedef struct copying {
    device_timer_t *timer;
    char *from, *to;
    size_t bytes;
} copying_t;

static int copy_once(void *user, void *stream) {
    const copying_t *c = user;
    (void)stream; /* it is the timer's */
    return device_timer_copy(c->timer, c->to, c->from, c->bytes);
}

enum { GEMM_SIZE = 8192, CUDA_BF16 = 14, COMPUTE_F32 = 68, ALGORITHM_DEFAULT = -1, TRANSPOSED = 1 };

typedef struct multiplying {
    blas_gemm_t *gemm;
    blas_stream_t *set_stream;
    void *handle, *a, *b, *c;
} multiplying_t;

static int multiply_once(void *user, void *stream) {
    const multiplying_t *m = user;
    const float one = 1, zero = 0;
    int failed = m->set_stream(m->handle, stream);
    return failed != 0 ? failed
                       : m->gemm(m->handle, TRANSPOSED, 0, GEMM_SIZE, GEMM_SIZE, GEMM_SIZE, &one, m->a,
                                 CUDA_BF16, GEMM_SIZE, m->b, CUDA_BF16, GEMM_SIZE, &zero, m->c, CUDA_BF16,
                                 GEMM_SIZE, COMPUTE_F32, ALGORITHM_DEFAULT);
}

static void *open_blas(void) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && library == NULL; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

static void rate_of(device_timer_t *timer, device_work_t *work, void *user, double amount, double *sustained,
                    double *burst) {
    gpu_times_t t;
    /* A copy is slower as a node of a graph, and cuBLAS may keep its own workspace. */
    if (bench_gpu_time(timer, work, user, 0, &t) != 0) return;
    *sustained = amount / t.sustained * 1e-9;
    *burst = amount / t.burst * 1e-9;
}

static void matmul_ceiling(device_memory_t *memory, device_timer_t *timer, gpu_ceilings_t *c) {
    const int64_t count = (int64_t)GEMM_SIZE * GEMM_SIZE;
    void *library = open_blas();
    blas_create_t *create, *destroy;
    bench_tables_t tables = {.dtype = ATTN_DTYPE_BFLOAT16, .query_dtype = ATTN_DTYPE_BFLOAT16};
    multiplying_t m = {.a = device_memory_new(memory, (size_t)count * 2),
                       .b = device_memory_new(memory, (size_t)count * 2),
                       .c = device_memory_new(memory, (size_t)count * 2)};
    find_symbol(library, "cublasCreate_v2", (void **)&create);
    find_symbol(library, "cublasDestroy_v2", (void **)&destroy);
    find_symbol(library, "cublasSetStream_v2", (void **)&m.set_stream);
    find_symbol(library, "cublasGemmEx", (void **)&m.gemm);
    if (create == NULL || destroy == NULL || m.set_stream == NULL || m.gemm == NULL || m.a == NULL ||
        m.b == NULL || m.c == NULL || bench_fill_device(&tables, memory, BENCH_KEY, 0, count, m.a) != 0 ||
        bench_fill_device(&tables, memory, BENCH_VALUE, 0, count, m.b) != 0 ||
        device_memory_sync(memory) != 0 || create(&m.handle) != 0)
        return;
    rate_of(timer, multiply_once, &m, 2.0 * GEMM_SIZE * (double)count, &c->matmul, &c->matmul_burst);
    destroy(m.handle);
}

static void read_ceiling(const attn_device_kind_t *kind, device_timer_t *timer, reading_t *r,
                         gpu_ceilings_t *c) {
    load_func_t *load;
    function_func_t *find;
    void *module = NULL;
    find_native(kind, "cuModuleLoadData", (void **)&load);
    find_native(kind, "cuModuleGetFunction", (void **)&find);
    find_native(kind, "cuLaunchKernel", (void **)&r->launch);
    if (load != NULL && find != NULL && r->launch != NULL && load(&module, read_kernel) == 0 &&
        find(&r->function, module, "read_all") == 0)
        rate_of(timer, read_once, r, 16.0 * (double)r->count, &c->read, &c->read_burst);
}

void bench_gpu_ceilings(const attn_device_t *device, device_memory_t *memory, device_timer_t *timer,
                        gpu_ceilings_t *c) {
    const attn_device_kind_t *kind = device_kind_of(device, NULL);
    size_t bytes = (size_t)4 << 30;
    const uint64_t left = device_memory_left(memory);
    void *previous = NULL;
    *c = (gpu_ceilings_t){0};
    if (left != 0 && left / 4 < bytes) bytes = (size_t)(left / 4) / 4096 * 4096;
    char *buffer = device_memory_new(memory, bytes), *out = device_memory_new(memory, 4);
    if (buffer == NULL || out == NULL || device_memory_fill(memory, buffer, 0x5a, bytes) != 0 ||
        device_memory_sync(memory) != 0) /* the timer's stream does not wait for the default one */
        return;
    copying_t copy = {.timer = timer, .from = buffer, .to = buffer + bytes / 2, .bytes = bytes / 2};
    rate_of(timer, copy_once, &copy, 2.0 * (double)copy.bytes, &c->copy, &c->copy_burst);
    if (kind->enter == NULL || kind->enter(device->id, &previous, NULL) != ATTN_OK) return;
    reading_t r = {.blocks = (unsigned)device->num_sms * 8,
                   .from = (unsigned long long)(uintptr_t)buffer,
                   .count = bytes / 16,
                   .to = (unsigned long long)(uintptr_t)out};
    read_ceiling(kind, timer, &r, c);
    if (r.launch != NULL) matmul_ceiling(memory, timer, c);
    kind->leave(device->id, previous);
}
