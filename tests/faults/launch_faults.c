/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch_faults.c: launchers of kernels over a CUDA runtime of this file's, which runs nothing and fails
 * on demand. Each launch fails once: its launcher returns that error. An error that the engine left
 * pending before the call is neither returned nor cleared. Needs the objects of a build with CUDA, no
 * device.
 */
#include "../nvcc_stubs.h"
#include "../tap.h"
#include "kernels/cuda/dense/flash_launch.h"
#include "kernels/cuda/dense/pack_rows.h"
#include "kernels/cuda/dense/read_lengths.h"
#include "kernels/cuda/latent/mla_launch.h"
#include "kernels/cuda/output/quantise_rows.h"

static cudaError_t pending;         /* what cudaGetLastError would say */
static int launches, fails_at = -1; /* the launch that fails */

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args) {
    (void)config, (void)kernel, (void)args;
    if (launches++ != fails_at) return cudaSuccess;
    return pending = cudaErrorLaunchOutOfResources;
}
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream) {
    (void)grid, (void)block, (void)shared, (void)stream;
    return cudaLaunchKernelExC(NULL, kernel, args);
}
cudaError_t cudaGetLastError(void) {
    const cudaError_t e = pending;
    pending = cudaSuccess;
    return e;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *kernel) {
    (void)a, (void)kernel;
    return cudaSuccess;
}

/* Kernels are registered nowhere. */
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit,
                            void *a, void *b, void *c, void *d, int *e) {
    (void)handle, (void)host, (void)device, (void)name, (void)limit, (void)a, (void)b, (void)c, (void)d,
        (void)e;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    (void)grid, (void)block, (void)shared, (void)stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    (void)grid, (void)block, (void)shared, (void)stream;
    return cudaSuccess;
}

static char somewhere[64];

static int zero_rows(void) {
    return flash_zero_rows(somewhere, 3, 2, 64, 128, 64, NULL);
}
static int merge(void) {
    flash_merge_params p = {0};
    p.all.q_len = p.num_rows = 3, p.num_q_heads = 2, p.head_size_v = 64, p.dtype = FLASH_BF16;
    return flash_merge(&p, NULL);
}
static int write_cache(void) {
    flash_write_params p = {0};
    p.num_tokens = 3, p.num_kv_heads = 2, p.head_size = p.head_size_v = 64, p.dtype = FLASH_F16;
    return flash_write_cache(&p, NULL);
}
static int read_lengths(void) {
    flash_params p = {0};
    return flash_read_lengths(&p, (flash_tile *)(void *)somewhere, 3, NULL);
}
static int measure(void) {
    mm_pack_params_t p = {0};
    return mm_measure(&p, 1, NULL);
}
static int pack(void) {
    mm_pack_params_t p = {0};
    return mm_pack(&p, 1, NULL);
}
static int mla_zero(void) {
    return mla_zero_rows(somewhere, 3, 2, 64, 128, 64, NULL);
}
static int mla_weights(void) {
    return mla_copy_weights(somewhere, somewhere, 1, 8, 8, 0, 0, (mla_weight_scale){NULL, 0, 0}, NULL);
}
static int mla_write(void) {
    mla_write_params p = {0};
    p.num_tokens = 3, p.latent_rank = 512;
    return mla_write_cache(&p, NULL);
}

static int quantise(void) {
    quantise_params p = {0};
    p.tokens = 3, p.num_heads = 2, p.size = 64, p.dtype = FLASH_F16;
    return quantise_rows(&p, NULL);
}

static const struct launcher {
    const char *name;
    int (*call)(void);
} launchers[] = {{"flash_zero_rows", zero_rows},
                 {"flash_merge", merge},
                 {"flash_write_cache", write_cache},
                 {"flash_read_lengths", read_lengths},
                 {"mm_measure", measure},
                 {"mm_pack", pack},
                 {"mla_zero_rows", mla_zero},
                 {"mla_copy_weights", mla_weights},
                 {"mla_write_cache", mla_write},
                 {"quantise_rows", quantise}};

int main(void) {
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const struct launcher *l = &launchers[i];
        launches = 0, fails_at = -1, pending = cudaErrorInvalidValue; /* the engine's */
        is_int(l->call(), 0, "%s: an earlier error is not its own", l->name);
        is_int(pending, cudaErrorInvalidValue, "%s: nor is it cleared", l->name);
        const int made = launches;
        ok(made > 0, "%s: %d launches", l->name, made);
        for (int n = 0; n < made; n++) {
            launches = 0, fails_at = n, pending = cudaSuccess;
            is_int(l->call(), cudaErrorLaunchOutOfResources, "%s: launch %d fails", l->name, n);
            is_int(launches, n + 1, "%s: and nothing is launched after it", l->name);
        }
        fails_at = -1, pending = cudaSuccess;
        is_int(l->call(), 0, "%s: usable afterwards", l->name);
    }
    return tap_done();
}
