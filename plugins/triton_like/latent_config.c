/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of TRITON_MLA. The size of shared memory repeats the formula of latent_attend.cuh, which checks
 * it. */
#include "latent_config.h"

static int smem_of(const latent_config *c) {
    const int unit_rows = c->rows == 64 ? 32 : 16, unit_keys = c->rows >= 32 && c->keys >= 32 ? 16 : 8;
    const int pitch = (c->latent + c->rope) * 2 + 16, units = c->rows / unit_rows * (c->keys / unit_keys),
              warps = LATENT_THREADS / 32, depths = units < warps ? warps / units : 1;
    return (c->rows + c->keys) * pitch + depths * c->rows * (c->keys + 8) * 4 + c->rows * (c->keys * 2 + 16) +
           c->rows * 4 + c->keys * 4;
}

int latent_configure(const attn_problem_t *p, int page, int cc, latent_config *c) {
    /* More rows read keys less often, more keys wait less often. */
    static const int tiles[][2] = {{64, 32}, {32, 32}, {32, 16}, {16, 32}, {16, 16}};
    memset(c, 0, sizeof *c);
    c->cc = cc;
    c->type = p->dtype == ATTN_DTYPE_FLOAT16 ? TRITON_F16 : TRITON_BF16;
    c->is_e4m3 = p->kv_cache_dtype == ATTN_KV_FP8_E4M3;
    c->latent = (int)p->kv_lora_rank, c->rope = (int)p->qk_rope_head_dim;
    c->page = page;
    for (size_t i = 0; i < sizeof tiles / sizeof tiles[0]; i++) {
        c->rows = tiles[i][0], c->keys = tiles[i][1];
        /* of 64 rows, a token's heads or none: half of the registers are sums */
        if (c->rows == 64 && (p->num_heads <= 32 || p->kv_lora_rank > 512)) continue;
        if ((c->smem = smem_of(c)) > triton_smem_of_block(cc)) continue;
        /* two need half of the registers: up to 64 sums a thread leave enough of them */
        const int sums = c->rows / 16 * ((c->latent + 127) / 128) * 8;
        c->ctas = 2 * (c->smem + 1024) <= triton_smem_of_sm(cc) && sums <= 64 ? 2 : 1;
        return 0;
    }
    return -1;
}

int latent_make_code(const latent_config *c, const triton_toolchain_t *tools, triton_code_t *code,
                     attn_error_t *error) {
    char macros[512];
    snprintf(macros, sizeof macros,
             "-DTM_TYPE=%d\n-DTM_E4M3=%d\n-DTM_LATENT=%d\n-DTM_ROPE=%d\n-DTM_PAGE=%d\n-DTM_ROWS=%d\n"
             "-DTM_KEYS=%d\n-DTM_CTAS=%d\n-DTM_SMEM=%d\n",
             c->type, c->is_e4m3, c->latent, c->rope, c->page, c->rows, c->keys, c->ctas, c->smem);
    const triton_request_t request = {
        .count = 2,
        .sources = {"#include \"latent_attend.cuh\"\n", "#include \"latent_rows.cuh\"\n"},
        .kinds = {LATENT_PROGRAM_ATTEND, LATENT_PROGRAM_ROWS},
        .macros = {macros, macros},
        .cc = c->cc,
        .is_virtual = c->is_virtual};
    return triton_make_programs(&request, tools, code, error);
}
