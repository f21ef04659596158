/* SPDX-License-Identifier: Apache-2.0 */
/* TRITON_MLA's device for plugins/common/latent: kernels that NVRTC makes, through the driver. */
#include "latent_backend.h"

#include <stdlib.h>

enum { ATTRIBUTE_MAX_DYNAMIC_SMEM = 8, FEW = 16, MANY = 64, PROJECT_THREADS = 128, COLUMNS = 64 };

typedef enum latent_kernel {
    ATTEND,
    MERGE,
    ABSORB,
    ABSORB_FEW,
    VALUES,
    VALUES_FEW,
    WRITE,
    COPY,
    WEIGHTS,
    ZERO,
    NUM_KERNELS
} latent_kernel;

/* What hangs on attn_instance.made. */
typedef struct latent_made {
    triton_driver_t driver;
    latent_config config;
    void *modules[TRITON_MAX_PROGRAMS];
    void *kernels[NUM_KERNELS];
} latent_made;

static const latent_made *made_of(const attn_instance_t *in) {
    return in->made;
}

static int find(attn_instance_t *in, const attn_device_t *device, const attn_option_value_t *options,
                uint32_t num_options, attn_error_t *error) {
    latent_made *m = calloc(1, sizeof *m);
    if (m == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for an instance of %zu bytes",
                         sizeof *m);
    in->made = m;
    int status = triton_driver_open(&m->driver, device, LATENT_LEAST_CC, error);
    if (status != ATTN_OK) return status;
    const int as = latent_arch_of(options, num_options), cc = m->driver.cc;
    if (as > cc)
        return attn_fail(
            error, ATTN_E_UNSUPPORTED, "arch",
            "option arch is sm_%d, and the device is sm_%d, which does not run its code; give auto", as, cc);
    if (as == 75 && in->dtype == MLA_BF16)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "dtype",
                         "dtype is bfloat16; tensor cores of sm_75 (option arch) have float16 alone");
    if (latent_configure(&in->problem, in->page_size, as ? as : cc, &m->config) != 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "kv_lora_rank",
                         "rank %d and rope %d do not fit the %d bytes of shared memory of sm_%d", in->latent,
                         in->rope, triton_smem_of_block(as ? as : cc), as ? as : cc);
    m->config.is_virtual = as != 0;
    in->device_id = device->id, in->num_sms = m->driver.num_sms, in->compute_capability = cc;
    in->stages = 1;
    return ATTN_OK;
}

static int choose(attn_instance_t *in, attn_error_t *error) {
    const latent_config *c = &made_of(in)->config;
    (void)error;
    in->config = (mla_config){
        .kernel = MLA_KERNEL_PORTABLE, .ctas = 1, .tile_rows = c->rows, .slots = in->num_sms * c->ctas};
    return ATTN_OK;
}

static int fail(const attn_instance_t *in, attn_error_t *error, int code, const char *what) {
    return triton_driver_fail(&made_of(in)->driver, code, what, error);
}

static int load(attn_instance_t *in, const attn_option_value_t *options, uint32_t num_options,
                const attn_host_t *host, attn_error_t *error) {
    static const struct {
        const char *name;
        int program;
    } wanted[NUM_KERNELS] = {[ATTEND] = {"tm_attend", LATENT_PROGRAM_ATTEND},
                             [MERGE] = {"tm_merge", LATENT_PROGRAM_ATTEND},
                             [ABSORB] = {"tm_absorb", LATENT_PROGRAM_ROWS},
                             [ABSORB_FEW] = {"tm_absorb_few", LATENT_PROGRAM_ROWS},
                             [VALUES] = {"tm_values", LATENT_PROGRAM_ROWS},
                             [VALUES_FEW] = {"tm_values_few", LATENT_PROGRAM_ROWS},
                             [WRITE] = {"tm_write", LATENT_PROGRAM_ROWS},
                             [COPY] = {"tm_copy", LATENT_PROGRAM_ROWS},
                             [WEIGHTS] = {"tm_weights", LATENT_PROGRAM_ROWS},
                             [ZERO] = {"tm_zero", LATENT_PROGRAM_ROWS}};
    latent_made *m = in->made;
    const triton_toolchain_t tools = triton_toolchain_of(options, num_options, host);
    triton_code_t code;
    int status = latent_make_code(&m->config, &tools, &code, error), e = 0, registers = 0;
    if (status != ATTN_OK) return status;
    for (int i = 0; i < code.count && e == 0; i++)
        e = m->driver.module_load(&m->modules[code.kind[i]], code.cubin[i]);
    for (int i = 0; i < NUM_KERNELS && e == 0; i++) {
        e = m->driver.module_function(&m->kernels[i], m->modules[wanted[i].program], wanted[i].name);
        if (e == 0 && i == ATTEND)
            e = m->driver.function_set(m->kernels[i], ATTRIBUTE_MAX_DYNAMIC_SMEM, m->config.smem);
        /* the driver loads lazily, which must not happen while a graph is captured */
        if (e == 0) e = m->driver.function_get(&registers, 4, m->kernels[i]);
    }
    triton_log(host, ATTN_LOG_INFO, "TRITON_MLA: %d of %d programs for sm_%d were already compiled",
               code.from_cache, code.count, m->config.cc);
    triton_free_code(&code);
    return e == 0 ? ATTN_OK : fail(in, error, e, "loading compiled kernels");
}

static void close_device(attn_instance_t *in) {
    latent_made *m = in->made;
    if (m == NULL) return;
    if (m->driver.context != NULL && triton_driver_enter(&m->driver, NULL) == ATTN_OK) {
        for (int i = 0; i < TRITON_MAX_PROGRAMS; i++)
            if (m->modules[i] != NULL) m->driver.module_unload(m->modules[i]);
        triton_driver_leave(&m->driver);
    }
    triton_driver_close(&m->driver);
    free(m);
}

static int enter(const attn_instance_t *in, gpu_device_guard *guard, attn_error_t *error) {
    guard->is_pushed = 1;
    return triton_driver_enter(&made_of(in)->driver, error);
}

static void leave(const attn_instance_t *in, const gpu_device_guard *guard) {
    (void)guard;
    triton_driver_leave(&made_of(in)->driver);
}

static int copy(const attn_instance_t *in, void *to, const void *from, size_t bytes, void *stream,
                attn_error_t *error) {
    const triton_driver_t *d = &made_of(in)->driver;
    int status = triton_driver_enter(d, error);
    if (status != ATTN_OK) return status;
    const int e = d->copy_to_device((uintptr_t)to, from, bytes, stream);
    triton_driver_leave(d);
    return e == 0 ? ATTN_OK : fail(in, error, e, "copying the metadata");
}

typedef struct grid {
    unsigned x, y, z;
} grid;

static int launch(const attn_instance_t *in, latent_kernel kernel, grid g, unsigned threads, int smem,
                  void **args, void *stream) {
    const latent_made *m = in->made;
    if (g.x == 0 || g.y == 0 || g.z == 0) return 0;
    return m->driver.launch(m->kernels[kernel], g.x, g.y, g.z, threads, 1, 1, (unsigned)smem, stream, args,
                            NULL);
}

/* Kernels that stride over n units, one a thread. */
static grid strided(int64_t n) {
    const int64_t blocks = (n + 255) / 256;
    return (grid){(unsigned)(blocks < 4096 ? blocks : 4096), 1, 1};
}

static int attend(const attn_instance_t *in, const mla_attend_params *p, int num_items, void *stream) {
    void *args[] = {(void *)(uintptr_t)p};
    return launch(in, ATTEND, (grid){(unsigned)num_items, 1, 1}, LATENT_THREADS, made_of(in)->config.smem,
                  args, stream);
}

static int merge(const attn_instance_t *in, const mla_attend_params *p, int num_splits, void *stream) {
    void *args[] = {(void *)(uintptr_t)p};
    const int64_t rows = (int64_t)num_splits * p->tile_rows;
    return launch(in, MERGE, (grid){(unsigned)(rows < 4096 ? rows : 4096), 1, 1}, 128, 0, args, stream);
}

static int multiply(const attn_instance_t *in, mla_product product, const mla_project_params *p,
                    void *stream) {
    void *args[] = {(void *)(uintptr_t)p};
    const int is_few = p->tokens <= FEW, tokens = is_few ? FEW : MANY;
    const latent_kernel kernel = product == MLA_ABSORB ? is_few ? ABSORB_FEW : ABSORB
                                 : is_few              ? VALUES_FEW
                                                       : VALUES;
    const grid g = {(unsigned)(p->n + COLUMNS - 1) / COLUMNS,
                    (unsigned)(p->tokens + tokens - 1) / (unsigned)tokens, (unsigned)p->num_heads};
    return launch(in, kernel, g, PROJECT_THREADS, 0, args, stream);
}

static int write_cache(const attn_instance_t *in, const mla_write_params *p, void *stream) {
    void *args[] = {(void *)(uintptr_t)p};
    return launch(in, WRITE, strided(p->num_tokens * (in->latent + in->rope) / 8), 256, 0, args, stream);
}

static int copy_weights(const attn_instance_t *in, void *to, const void *from, int64_t rows, int64_t from_row,
                        int is_e4m3, const mla_weight_scale *scale, void *stream) {
    mla_weight_scale s = *scale;
    void *args[] = {&to, &from, &rows, &from_row, &is_e4m3, &s.at, &s.row, &s.column};
    return launch(in, WEIGHTS, strided(rows * in->latent), 256, 0, args, stream);
}

static int copy_rows(const attn_instance_t *in, const mla_copy_params *p, void *stream) {
    void *args[] = {(void *)(uintptr_t)p};
    return launch(in, COPY, strided((int64_t)p->tokens * p->num_heads * p->width / 8), 256, 0, args, stream);
}

static int zero_rows(const attn_instance_t *in, void *out, int64_t rows, int size, int64_t token,
                     int64_t head, void *stream) {
    int heads = in->heads;
    void *args[] = {&out, &rows, &heads, &size, &token, &head};
    return launch(in, ZERO, strided(rows * heads * size), 256, 0, args, stream);
}

const mla_device_ops latent_device = {.find = find,
                                      .choose = choose,
                                      .load = load,
                                      .close = close_device,
                                      .enter = enter,
                                      .leave = leave,
                                      .fail = fail,
                                      .copy = copy,
                                      .attend = attend,
                                      .merge = merge,
                                      .multiply = multiply,
                                      .write_cache = write_cache,
                                      .copy_weights = copy_weights,
                                      .copy_rows = copy_rows,
                                      .zero_rows = zero_rows};
