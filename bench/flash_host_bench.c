/* SPDX-License-Identifier: Apache-2.0 */
/* The host time of FLASH_ATTN itself: its own code of open, build_metadata and forward over a CUDA runtime
 * and launchers that do nothing, so that what is left is everything but the driver. Needs no GPU. Usage:
 * flash_host_bench */
#include "plugins/common/dense/flash_instance.h"
#include "host_bench.h"

/* Merging is another plugin file's, and nobody asks for it here. */
const void *gpu_merge_extension(attn_instance_t *instance, const char *id) {
    (void)instance, (void)id;
    return NULL;
}

extern const attn_plugin_t ATTN_PLUGIN_SYMBOL; /* plugins/flash/plugin.c */
static volatile int64_t seen;                  /* so that no argument is computed in vain */
static int launch_decode(const flash_params *p, const flash_decode_config *c, int items, void *stream) {
    (void)stream;
    if (p != NULL) launches++, seen += p->max_rows + c->warps + items;
    return 0;
}
#define DECODE(NAME, DK, DV, TYPE, ...) [FLASH_TYPE_##TYPE - FLASH_F16][FLASH_CLASS_##NAME] = launch_decode,
const flash_kernels flash_all_kernels = {.decode = {DENSE_SM80_INSTANCES(DECODE, )}};
int flash_run_prefill(const flash_params *p, const flash_shape *s, const flash_prefill_config *c, int tiles,
                      const flash_runtime *r, void *stream) {
    (void)s, (void)c, (void)tiles, (void)r, (void)stream;
    return launch(p);
}
int flash_run_prefill_more(const flash_params *p, const flash_prefill_more *m, const flash_shape *s,
                           const flash_prefill_config *c, int tiles, const flash_runtime *r, void *stream) {
    (void)m;
    return flash_run_prefill(p, s, c, tiles, r, stream);
}
int flash_runtime_init(flash_runtime *r, const flash_kernels *kernels, int num_sms, int needs_tensor_maps) {
    (void)needs_tensor_maps;
    r->kernels = kernels;
    r->num_sms = num_sms;
    return 0;
}
int flash_zero_rows(void *out, int64_t rows, int heads, int size, int64_t token, int64_t head, void *stream) {
    (void)out, (void)rows, (void)heads, (void)size, (void)token, (void)head, (void)stream;
    return 0;
}
int quantise_rows(const quantise_params *p, void *stream) {
    (void)stream;
    return launch(p);
}
int flash_read_lengths(const flash_params *p, flash_tile *tiles, int max_tiles, void *stream) {
    (void)tiles, (void)max_tiles, (void)stream;
    return launch(p);
}
int flash_merge(const flash_merge_params *p, void *stream) {
    (void)stream;
    return launch(p);
}
int flash_write_cache(const flash_write_params *p, void *stream) {
    (void)stream;
    return launch(p);
}

static int build(void) {
    return flash_build_metadata(in, &batch, &space, NULL, &error);
}
static int call_forward(void) {
    return flash_forward(in, &forward, &space, NULL, &error);
}

int main(void) {
    const attn_problem_t problem = {.struct_size = sizeof problem,
                                    .role = ATTN_ROLE_DECODER,
                                    .mask = ATTN_MASK_CAUSAL,
                                    .dtype = ATTN_DTYPE_BFLOAT16,
                                    .num_heads = 32,
                                    .num_kv_heads = 8,
                                    .head_size = 128,
                                    .block_size = HB_PAGE,
                                    .scale = 0.0883883,
                                    .max_num_seqs = HB_REQS,
                                    .max_num_batched_tokens = HB_TOKENS,
                                    .max_model_len = HB_KEYS};
    const attn_device_t device = {.struct_size = sizeof device, .type = kDLCUDA, .compute_capability = 90};
    need(ATTN_PLUGIN_SYMBOL.backends[0]->ops->open(&problem, &device, NULL, 0, NULL, &in, &error));
    attn_space_needed_t needed = {.struct_size = sizeof needed};
    need(flash_space_needed(in, &needed, &error));
    space = hb_space_of(&needed);
    int64_t table_shape[2] = {HB_REQS, HB_KEYS / HB_PAGE}, cache_shape[4] = {1 << 20, 8, HB_PAGE, 256},
            row_shape[3] = {HB_TOKENS, 32, 128}, strides[4][4];
    void *data = space.workspace;
    table = tensor_of(data, ATTN_DTYPE_INT32, 2, table_shape, strides[0]);
    DLTensor cache = tensor_of(data, ATTN_DTYPE_BFLOAT16, 4, cache_shape, strides[1]),
             query = tensor_of(data, ATTN_DTYPE_BFLOAT16, 3, row_shape, strides[2]),
             output = tensor_of(data, ATTN_DTYPE_BFLOAT16, 3, row_shape, strides[3]);
    forward = (attn_forward_t){
        .struct_size = sizeof forward, .query = &query, .kv_cache = &cache, .output = &output};
    hb_head("FLASH_ATTN, ns by requests");
    for (int kind = 0; kind < HB_NUM_BATCHES; kind++)
        hb_row("build_metadata", kind, prepare, build);
    for (int kind = 0; kind < HB_NUM_BATCHES; kind++)
        hb_row("forward", kind, prepare, call_forward);
    flash_close(in);
    free(space.host);
    return seen == 0 || launches == 0;
}
