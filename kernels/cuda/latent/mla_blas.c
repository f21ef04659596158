/* SPDX-License-Identifier: Apache-2.0 */
/* What cuBLASLt is asked for: its matrices are column-major, so C^T [n, tokens] = op(weights) [n, k] x A^T
 * [k, tokens], one for each head. The choice for 2^(i-1) < tokens <= 2^i is the one that it proposes for
 * 2^i. */
#include "mla_blas.h"

#include "mla_blas_calls.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

/* CUBLASLT_MATMUL_TILE_*, two names of which older headers lack. */
enum { TILE_128X160 = 29, TILE_168X128 = 197, TILE_176X128 = 201 };
/* WARM_*: what warms the code up; at least as many columns as a latent or a head has. */
enum { MAX_SIZES = 32, ALIGNMENT = 16, MAX_PROPOSALS = 8, WARM_TOKENS = 8, WARM_COLUMNS = 1024 };

struct mla_blas {
    mla_blas_calls calls;
    cublasLtHandle_t handle;
    cublasLtMatmulAlgo_t choice[MLA_NUM_PRODUCTS][MAX_SIZES];
    unsigned char has[MLA_NUM_PRODUCTS][MAX_SIZES];
};

typedef struct question {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t weights, rows, result;
} question;

static int size_of(int64_t tokens) {
    int i = 0;
    while (i < MAX_SIZES - 1 && (INT64_C(1) << i) < tokens)
        i++;
    return i;
}

static int describe_matrix(const mla_blas_calls *c, cublasLtMatrixLayout_t m, const mla_project_params *p,
                           int rows, int columns, int64_t leading, int64_t stride) {
    const cudaDataType type = p->dtype == MLA_BF16 ? CUDA_R_16BF : CUDA_R_16F;
    const int32_t batch = p->num_heads;
    cublasStatus_t s = c->layout_init(m, sizeof *m, type, (uint64_t)rows, (uint64_t)columns, leading);
    if (!s) s = c->layout_set(m, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
    if (!s) s = c->layout_set(m, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
    return s != CUBLAS_STATUS_SUCCESS;
}

static int describe(const mla_blas_calls *c, const mla_project_params *p, question *q) {
    const cublasOperation_t op = p->b_is_nk ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (c->matmul_init(&q->product, sizeof q->product, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
        c->matmul_set(&q->product, CUBLASLT_MATMUL_DESC_TRANSA, &op, sizeof op))
        return 1;
    return describe_matrix(c, &q->weights, p, p->b_is_nk ? p->k : p->n, p->b_is_nk ? p->n : p->k, p->b_row,
                           p->b_head) ||
           describe_matrix(c, &q->rows, p, p->k, p->tokens, p->a_token, p->a_head) ||
           describe_matrix(c, &q->result, p, p->n, p->tokens, p->c_token, p->c_head);
}

static int multiply(const mla_blas *b, const mla_project_params *p, question *q,
                    const cublasLtMatmulAlgo_t *choice, void *stream) {
    const float one = 1, zero = 0;
    return b->calls.matmul(b->handle, &q->product, &one, p->b, &q->weights, p->a, &q->rows, &zero, p->c,
                           &q->result, p->c, &q->result, choice, NULL, 0,
                           (cudaStream_t)stream) != CUBLAS_STATUS_SUCCESS;
}

/* The product as the layer has it, of tensors without padding. */
static mla_project_params usual(const mla_blas_input *in, mla_product product, int64_t tokens) {
    const int64_t per_head = (int64_t)in->nope + in->value, heads = in->heads;
    mla_project_params p = {.b_head = per_head * in->latent,
                            .b_row = in->latent,
                            .tokens = (int32_t)tokens,
                            .num_heads = in->heads,
                            .b_is_nk = product != MLA_ABSORB,
                            .dtype = in->dtype};
    if (product == MLA_ABSORB) {
        p.n = in->latent, p.k = in->nope;
        p.a_head = in->nope + MLA_ROPE, p.c_head = in->latent;
    } else if (product == MLA_VALUES) {
        p.n = in->value, p.k = in->latent;
        p.a_head = in->latent, p.c_head = in->value;
    } else { /* of as many heads as the result has room for */
        int64_t n = in->up_elements / (tokens * per_head);
        n = n < 1 ? 1 : n < heads ? n : heads;
        p.num_heads = 1, p.n = (int32_t)(n * per_head), p.k = in->latent;
        p.a_head = in->latent + MLA_ROPE, p.c_head = p.n;
    }
    p.a_token = p.a_head * p.num_heads, p.c_token = p.c_head * p.num_heads;
    return p;
}

/* Of its proposals the first; on Hopper for the up-projection, 512 deep and thousands of columns wide, the
 * first whose tile leaves room for its result beside the operands: there they multiply 10 % faster
 * (latent-notes.md). */
static const cublasLtMatmulHeuristicResult_t *
preferred(const mla_blas *b, const cublasLtMatmulHeuristicResult_t *found, int count) {
    for (int i = 0; i < count; i++) {
        int32_t tile = 0;
        size_t written;
        if (found[i].state == CUBLAS_STATUS_SUCCESS && found[i].workspaceSize == 0 &&
            !b->calls.choice_get(&found[i].algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile,
                                 &written) &&
            (tile == TILE_128X160 || tile == TILE_168X128 || tile == TILE_176X128))
            return &found[i];
    }
    return &found[0];
}

/* No workspace and no sums across CTAs; tensors as the ABI asks for them. */
static void choose(mla_blas *b, const mla_blas_input *in, mla_product product, int size) {
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const mla_blas_calls *c = &b->calls;
    const mla_project_params p = usual(in, product, INT64_C(1) << size);
    const int wants_small_tiles = product == MLA_UP && in->is_sm90;
    const uint64_t workspace = 0;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = ALIGNMENT;
    question q;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t found[MAX_PROPOSALS];
    int count = 0;
    if (describe(c, &p, &q) || c->preference_init(&preference, sizeof preference) ||
        c->preference_set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                          sizeof workspace) ||
        c->preference_set(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                          sizeof reductions))
        return;
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++)
        if (c->preference_set(&preference, alignments[i], &alignment, sizeof alignment)) return;
    if (c->heuristic(b->handle, &q.product, &q.weights, &q.rows, &q.result, &q.result, &preference,
                     wants_small_tiles ? MAX_PROPOSALS : 1, found, &count) ||
        count < 1)
        return;
    const cublasLtMatmulHeuristicResult_t *best = wants_small_tiles ? preferred(b, found, count) : &found[0];
    if (best->state != CUBLAS_STATUS_SUCCESS || best->workspaceSize > 0) return;
    b->choice[product][size] = best->algo, b->has[product][size] = 1;
}

/* Runs every choice once, on a few rows, so that its code is on the device before anything is captured; one
 * that does not run is none. All heads have the same rows and weights. */
static int warm(mla_blas *b, const mla_blas_input *in) {
    cudaStream_t stream;
    char *memory = NULL;
    const size_t rows = WARM_TOKENS * WARM_COLUMNS * 2, weights = WARM_COLUMNS * WARM_COLUMNS * 2,
                 results = rows * (size_t)in->heads;
    cudaError_t e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (e != cudaSuccess) return e;
    e = cudaMalloc((void **)&memory, rows + weights + results);
    if (e == cudaSuccess) e = cudaMemsetAsync(memory, 0, rows + weights, stream);
    for (int product = 0; product < MLA_NUM_PRODUCTS; product++)
        for (int size = 0; size < MAX_SIZES; size++) {
            if (e != cudaSuccess || !b->has[product][size]) continue;
            mla_project_params p = usual(in, (mla_product)product, INT64_C(1) << size);
            question q;
            p.a = memory, p.b = memory + rows, p.c = memory + rows + weights;
            p.tokens = p.tokens < WARM_TOKENS ? p.tokens : WARM_TOKENS;
            p.n = p.n < WARM_COLUMNS ? p.n : WARM_COLUMNS;
            p.a_token = p.k, p.a_head = p.b_head = 0;
            p.c_head = p.n, p.c_token = (int64_t)p.n * p.num_heads;
            if (describe(&b->calls, &p, &q) || multiply(b, &p, &q, &b->choice[product][size], stream))
                b->has[product][size] = 0;
        }
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream), cudaFree(memory);
    return e;
}

mla_blas *mla_blas_open(const mla_blas_input *in, const char **why) {
    mla_blas *b = calloc(1, sizeof *b);
    *why = b == NULL ? "no memory" : mla_blas_load(&b->calls);
    if (*why == NULL && b->calls.create(&b->handle)) *why = "cublasLtCreate failed", b->handle = NULL;
    for (int product = 0; *why == NULL && product < MLA_NUM_PRODUCTS; product++) {
        const int64_t most = product == MLA_UP ? in->up_rows : in->max_tokens;
        for (int size = 0; most > 0 && size <= size_of(most); size++)
            choose(b, in, (mla_product)product, size);
    }
    if (*why == NULL && warm(b, in)) {
        (void)cudaGetLastError(); /* ours; it is answered here */
        *why = "multiplying some rows of zeros failed";
    }
    if (*why == NULL) return b;
    mla_blas_close(b);
    return NULL;
}

void mla_blas_close(mla_blas *b) {
    if (b != NULL && b->handle != NULL) b->calls.destroy(b->handle);
    free(b);
}

int mla_blas_multiply(const mla_blas *b, mla_product product, const mla_project_params *p, void *stream) {
    const int size = size_of(p->tokens);
    const uint64_t bytes = (uint64_t)(uintptr_t)p->a | (uint64_t)(uintptr_t)p->b | (uint64_t)(uintptr_t)p->c,
                   strides =
                       (uint64_t)(p->a_token | p->a_head | p->b_row | p->b_head | p->c_token | p->c_head);
    question q;
    if (!b->has[product][size] || (bytes | strides * 2) % ALIGNMENT != 0 || describe(&b->calls, p, &q))
        return 1;
    return multiply(b, p, &q, &b->choice[product][size], stream);
}
