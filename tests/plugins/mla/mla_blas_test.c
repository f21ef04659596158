/* SPDX-License-Identifier: Apache-2.0 */
/* mla_blas.c over a cuBLASLt of this file, which multiplies in host memory by what it is told and refuses
 * what the real one would: so the sizes, strides and transpositions that cuBLAS gets are right if the
 * products are. */
#include "kernels/cuda/latent/mla_blas.h"
#include "kernels/cuda/latent/mla_blas_calls.h"
#include "../../tap.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ CUDA in host memory */

static int has_memory = 1;
static cudaError_t last_error;
cudaError_t cudaMalloc(void **p, size_t bytes) {
    *p = has_memory ? malloc(bytes) : NULL;
    return *p != NULL ? cudaSuccess : (last_error = cudaErrorMemoryAllocation);
}
cudaError_t cudaGetLastError(void) {
    const cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}
cudaError_t cudaFree(void *p) {
    free(p);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream) {
    (void)stream;
    memset(p, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    *stream = NULL;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    (void)stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    (void)stream;
    return cudaSuccess;
}

/* --------------------------------------------------------------- a small cuBLASLt */

typedef struct matrix {
    uint64_t rows, columns;
    int64_t leading, stride;
    int32_t batch, type;
} matrix;
static int handles, multiplications, refuses_from = 1 << 30, most_tokens, chosen_for, chosen_tile,
                                     fails_for = -1;

static float f32_of(uint16_t x, int type) {
    float f;
    if (type == CUDA_R_16F) { /* normal numbers and zero */
        uint32_t bits = (uint32_t)(x & 0x8000) << 16;
        if (x & 0x7fff) bits |= ((uint32_t)(x & 0x7fff) << 13) + ((127u - 15) << 23);
        memcpy(&f, &bits, 4);
    } else {
        uint32_t bits = (uint32_t)x << 16;
        memcpy(&f, &bits, 4);
    }
    return f;
}
/* Of small integers, which both formats hold. */
static uint16_t half_of(float f, int type) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (f == 0.f) return 0;
    return type == CUDA_R_16F
               ? (uint16_t)((bits >> 16 & 0x8000) | (((bits & 0x7fffffff) - ((127u - 15) << 23)) >> 13))
               : (uint16_t)(bits >> 16);
}

static cublasStatus_t fake_create(cublasLtHandle_t *handle) {
    *handle = (cublasLtHandle_t)(void *)&handles;
    handles++;
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t fake_destroy(cublasLtHandle_t handle) {
    (void)handle;
    handles--;
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t fake_matmul_init(cublasLtMatmulDesc_t d, size_t size, cublasComputeType_t compute,
                                       cudaDataType_t scale) {
    memset(d, 0, size);
    return compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS
                                                                : CUBLAS_STATUS_NOT_SUPPORTED;
}
static cublasStatus_t fake_matmul_set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what,
                                      const void *value, size_t size) {
    if (what != CUBLASLT_MATMUL_DESC_TRANSA || size != sizeof(int32_t)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(d->data, value, size);
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t fake_layout_init(cublasLtMatrixLayout_t m, size_t size, cudaDataType type,
                                       uint64_t rows, uint64_t columns, int64_t leading) {
    const matrix x = {.rows = rows, .columns = columns, .leading = leading, .batch = 1, .type = (int)type};
    if (size < sizeof x || leading < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(m->data, &x, sizeof x);
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t fake_layout_set(cublasLtMatrixLayout_t m, cublasLtMatrixLayoutAttribute_t what,
                                      const void *value, size_t size) {
    matrix x;
    memcpy(&x, m->data, sizeof x);
    if (what == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && size == sizeof x.batch)
        memcpy(&x.batch, value, size);
    else if (what == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && size == sizeof x.stride)
        memcpy(&x.stride, value, size);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(m->data, &x, sizeof x);
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t fake_preference_init(cublasLtMatmulPreference_t p, size_t size) {
    memset(p, 0xff, size);
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t fake_preference_set(cublasLtMatmulPreference_t p,
                                          cublasLtMatmulPreferenceAttributes_t what, const void *value,
                                          size_t size) {
    if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) memcpy(p->data, value, size);
    return CUBLAS_STATUS_SUCCESS;
}
/* What it chooses says for how many tokens; of several proposals the second has a tile of 128 x 160. */
static cublasStatus_t fake_heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t d,
                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                     cublasLtMatmulPreference_t preference, int wanted,
                                     cublasLtMatmulHeuristicResult_t *result, int *found) {
    matrix x;
    uint64_t workspace;
    (void)handle, (void)d, (void)a, (void)c, (void)out;
    memcpy(&x, b->data, sizeof x), memcpy(&workspace, preference->data, sizeof workspace);
    *found = workspace == 0 && (int)x.columns < refuses_from ? wanted < 2 ? wanted : 2 : 0;
    for (int i = 0; i < *found; i++) {
        memset(&result[i], 0, sizeof result[i]);
        result[i].algo.data[0] = x.columns;
        result[i].algo.data[1] = i == 0 ? CUBLASLT_MATMUL_TILE_320x128 : CUBLASLT_MATMUL_TILE_128x160;
    }
    if ((int)x.columns > most_tokens) most_tokens = (int)x.columns;
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t fake_choice_get(const cublasLtMatmulAlgo_t *choice,
                                      cublasLtMatmulAlgoConfigAttributes_t what, void *value, size_t size,
                                      size_t *written) {
    const int32_t tile = (int32_t)choice->data[1];
    if (what != CUBLASLT_ALGO_CONFIG_TILE_ID || size != sizeof tile) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &tile, size), *written = size;
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t fake_matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, const void *alpha,
                                  const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                                  cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                                  cublasLtMatrixLayout_t c_layout, void *out,
                                  cublasLtMatrixLayout_t out_layout, const cublasLtMatmulAlgo_t *choice,
                                  void *workspace, size_t workspace_bytes, cudaStream_t stream) {
    matrix x, y, z;
    int32_t transposed;
    (void)handle, (void)stream, (void)workspace;
    memcpy(&x, a_layout->data, sizeof x), memcpy(&y, b_layout->data, sizeof y);
    memcpy(&z, out_layout->data, sizeof z), memcpy(&transposed, d->data, sizeof transposed);
    const uint64_t n = transposed ? x.columns : x.rows, k = transposed ? x.rows : x.columns;
    if (*(const float *)alpha != 1.f || *(const float *)beta != 0.f || c != out || c_layout != out_layout ||
        workspace_bytes != 0 || choice == NULL || z.rows != n || z.columns != y.columns || y.rows != k ||
        x.batch != z.batch || y.batch != z.batch || x.type != z.type || y.type != z.type)
        return CUBLAS_STATUS_INVALID_VALUE;
    if ((int)choice->data[0] == fails_for) return CUBLAS_STATUS_NOT_SUPPORTED;
    multiplications++, chosen_for = (int)choice->data[0], chosen_tile = (int)choice->data[1];
    for (int64_t h = 0; h < z.batch; h++)
        for (uint64_t j = 0; j < z.columns; j++)
            for (uint64_t i = 0; i < n; i++) {
                const uint16_t *w = (const uint16_t *)a + h * x.stride,
                               *r = (const uint16_t *)b + h * y.stride + (int64_t)j * y.leading;
                float sum = 0;
                for (uint64_t m = 0; m < k; m++)
                    sum += f32_of(transposed ? w[(int64_t)i * x.leading + (int64_t)m]
                                             : w[(int64_t)m * x.leading + (int64_t)i],
                                  x.type) *
                           f32_of(r[m], y.type);
                ((uint16_t *)out)[h * z.stride + (int64_t)j * z.leading + (int64_t)i] = half_of(sum, z.type);
            }
    return CUBLAS_STATUS_SUCCESS;
}

static const char *missing;
const char *mla_blas_load(mla_blas_calls *c) {
    *c = (mla_blas_calls){.create = fake_create,
                          .destroy = fake_destroy,
                          .matmul = fake_matmul,
                          .heuristic = fake_heuristic,
                          .choice_get = fake_choice_get,
                          .matmul_init = fake_matmul_init,
                          .matmul_set = fake_matmul_set,
                          .layout_init = fake_layout_init,
                          .layout_set = fake_layout_set,
                          .preference_init = fake_preference_init,
                          .preference_set = fake_preference_set};
    return missing;
}

/* --------------------------------------------------------------------- the tests */

enum { HEADS = 3, LATENT = 16, NOPE = 8, VALUE = 24, TOKENS = 5, MAX_VALUES = 4096 };
static mla_blas_input input = {.heads = HEADS,
                               .latent = LATENT,
                               .nope = NOPE,
                               .value = VALUE,
                               .dtype = MLA_BF16,
                               .max_tokens = 20,
                               .up_rows = 40,
                               .up_elements = 40 * (NOPE + VALUE)};
static _Alignas(16) uint16_t rows[MAX_VALUES], weights[MAX_VALUES], results[MAX_VALUES];

static void fill(int type) {
    uint64_t state = tap_seed();
    for (int i = 0; i < MAX_VALUES; i++) {
        rows[i] = half_of((float)((int)(tap_rand(&state) % 5) - 2), type);
        weights[i] = half_of((float)((int)(tap_rand(&state) % 3) - 1), type);
    }
    memset(results, 0xab, sizeof results);
}

/* c[t][h][:] = a[t][h][:] x b[h] as mla_params.h has it, and nothing else is written. */
static int is_product(const mla_project_params *p, int type) {
    static uint16_t want[MAX_VALUES];
    const uint16_t *w = p->b;
    memset(want, 0xab, sizeof want);
    for (int h = 0; h < p->num_heads; h++)
        for (int t = 0; t < p->tokens; t++)
            for (int i = 0; i < p->n; i++) {
                float sum = 0;
                for (int m = 0; m < p->k; m++)
                    sum +=
                        f32_of(rows[t * p->a_token + h * p->a_head + m], type) *
                        f32_of(w[h * p->b_head + (p->b_is_nk ? i * p->b_row + m : m * p->b_row + i)], type);
                want[t * p->c_token + h * p->c_head + i] = half_of(sum, type);
            }
    return memcmp(want, results, sizeof want) == 0;
}

static mla_project_params product_of(mla_product product, int dtype) {
    mla_project_params p = {.a = rows,
                            .b = weights,
                            .c = results,
                            .b_head = (NOPE + VALUE) * LATENT,
                            .b_row = LATENT,
                            .tokens = TOKENS,
                            .num_heads = HEADS,
                            .b_is_nk = product != MLA_ABSORB,
                            .dtype = dtype};
    if (product == MLA_ABSORB) { /* a query with rope, of a wider tensor */
        p.n = LATENT, p.k = NOPE, p.a_head = 80, p.a_token = 80 * HEADS + 8;
        p.c_head = LATENT, p.c_token = LATENT * HEADS;
    } else if (product == MLA_VALUES) { /* into a tensor with padding */
        p.n = VALUE, p.k = LATENT, p.a_head = LATENT, p.a_token = LATENT * HEADS;
        p.b = weights + NOPE * LATENT, p.c_head = 32, p.c_token = 32 * HEADS + 16;
    } else {
        p.num_heads = 1, p.n = 2 * (NOPE + VALUE), p.k = LATENT;
        p.a_token = LATENT + MLA_ROPE, p.c_token = p.n;
    }
    return p;
}

static void products(int dtype, const char *name) {
    static const char *const names[] = {"absorption", "values", "keys and values of two heads"};
    const char *why = NULL;
    const int type = dtype == MLA_BF16 ? CUDA_R_16BF : CUDA_R_16F;
    input.dtype = dtype;
    mla_blas *b = mla_blas_open(&input, &why);
    if (!ok(b != NULL, "%s: opens (%s)", name, why ? why : "")) return;
    for (int i = 0; i < MLA_NUM_PRODUCTS; i++) {
        fill(type);
        mla_project_params p = product_of((mla_product)i, dtype);
        ok(mla_blas_multiply(b, (mla_product)i, &p, NULL) == 0 && is_product(&p, type), "%s: %s", name,
           names[i]);
    }
    mla_blas_close(b);
}

int main(void) {
    const char *why = NULL;
    products(MLA_BF16, "bfloat16"), products(MLA_F16, "float16");

    input.dtype = MLA_BF16, most_tokens = multiplications = 0;
    mla_blas *b = mla_blas_open(&input, &why);
    is_int(most_tokens, 64, "choices up to the power of two that holds the most rows");
    is_int(multiplications, 6 + 6 + 7, "each choice has run once before anything is asked for");
    mla_project_params p = product_of(MLA_ABSORB, MLA_BF16);
    static const int sizes[][2] = {{1, 1}, {2, 2}, {3, 4}, {5, 8}, {8, 8}, {9, 16}, {16, 16}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        p.tokens = sizes[i][0], chosen_for = 0;
        p.c_token = LATENT, p.c_head = 0; /* where it goes does not matter here */
        ok(mla_blas_multiply(b, MLA_ABSORB, &p, NULL) == 0 && chosen_for == sizes[i][1],
           "%d tokens: what was chosen for %d", sizes[i][0], sizes[i][1]);
    }
    p.tokens = 33, multiplications = 0;
    ok(mla_blas_multiply(b, MLA_ABSORB, &p, NULL) != 0 && multiplications == 0,
       "more than it was opened for");
    static const char *const odd[] = {"rows", "weights", "results", "stride of a row", "stride of a head"};
    for (int i = 0; i < 5; i++) {
        p = product_of(MLA_ABSORB, MLA_BF16);
        if (i == 0) p.a = rows + 4;
        if (i == 1) p.b = weights + 1;
        if (i == 2) p.c = results + 2;
        if (i == 3) p.a_token += 4;
        if (i == 4) p.c_head += 2;
        ok(mla_blas_multiply(b, MLA_ABSORB, &p, NULL) != 0 && multiplications == 0,
           "%s not at 16 bytes: left to others", odd[i]);
    }
    mla_blas_close(b);

    for (int is_sm90 = 0; is_sm90 < 2; is_sm90++) {
        input.is_sm90 = is_sm90;
        b = mla_blas_open(&input, &why);
        p = product_of(MLA_UP, MLA_BF16), chosen_tile = 0;
        mla_blas_multiply(b, MLA_UP, &p, NULL);
        is_int(chosen_tile, is_sm90 ? CUBLASLT_MATMUL_TILE_128x160 : CUBLASLT_MATMUL_TILE_320x128,
               "up-projection: %s", is_sm90 ? "on Hopper small tiles" : "elsewhere what is proposed first");
        p = product_of(MLA_ABSORB, MLA_BF16), chosen_tile = 0;
        mla_blas_multiply(b, MLA_ABSORB, &p, NULL);
        is_int(chosen_tile, CUBLASLT_MATMUL_TILE_320x128, "absorption: what is proposed first");
        mla_blas_close(b);
    }

    fails_for = 8;
    b = mla_blas_open(&input, &why);
    p = product_of(MLA_ABSORB, MLA_BF16);
    fails_for = -1;
    ok(b != NULL && mla_blas_multiply(b, MLA_ABSORB, &p, NULL) != 0,
       "a choice that did not run at first is none");
    p.tokens = 4;
    ok(b != NULL && mla_blas_multiply(b, MLA_ABSORB, &p, NULL) == 0, "others are");
    mla_blas_close(b);

    refuses_from = 8;
    b = mla_blas_open(&input, &why);
    p = product_of(MLA_ABSORB, MLA_BF16), p.tokens = 4;
    ok(b != NULL && mla_blas_multiply(b, MLA_ABSORB, &p, NULL) == 0, "some sizes served");
    p.tokens = 5;
    ok(b != NULL && mla_blas_multiply(b, MLA_ABSORB, &p, NULL) != 0,
       "those without a choice are left to others");
    mla_blas_close(b);
    refuses_from = 1 << 30;
    input.up_rows = input.up_elements = 0;
    b = mla_blas_open(&input, &why);
    p = product_of(MLA_UP, MLA_BF16);
    ok(b != NULL && mla_blas_multiply(b, MLA_UP, &p, NULL) != 0,
       "no up-projection where there is no prefill");
    mla_blas_close(b);

    has_memory = 0;
    b = mla_blas_open(&input, &why);
    ok(b == NULL && why != NULL && last_error == cudaSuccess,
       "no memory: it says so, and no later launch does");
    mla_blas_close(b);
    has_memory = 1;

    missing = "it is not here";
    b = mla_blas_open(&input, &why);
    ok(b == NULL && why == missing, "no library: it says so");
    mla_blas_close(NULL);
    is_int(handles, 0, "every handle is given back");
    return tap_done();
}
