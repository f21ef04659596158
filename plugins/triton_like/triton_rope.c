/* SPDX-License-Identifier: Apache-2.0 */
/* attn.draft.rope_write/0: a kernel of its own, compiled when a rope is opened, and one launch for each
 * call. */
#include "triton_instance.h"

#include "../common/rope_check.h"

#include <stdlib.h>

struct attn_rope {
    rope_rules rules;
    attn_instance_t in; /* problem, configuration, driver and module; nothing of a batch */
    void *kernel;
};

static void rope_close(attn_rope_t *r) {
    if (r == NULL) return;
    if (r->in.modules[0] != NULL && triton_driver_enter(&r->in.driver, NULL) == ATTN_OK) {
        r->in.driver.module_unload(r->in.modules[0]);
        triton_driver_leave(&r->in.driver);
    }
    triton_driver_close(&r->in.driver);
    free(r);
}

static int prepare(attn_rope_t *r, const attn_device_t *device, const triton_toolchain_t *tools,
                   attn_error_t *error) {
    attn_instance_t *in = &r->in;
    triton_code_t code;
    int status = triton_driver_open(&in->driver, device, 80, error);
    if (status == ATTN_OK && triton_configure(&in->problem, in->driver.cc, &in->config) != 0)
        status =
            attn_fail(error, ATTN_E_UNSUPPORTED, "head_size", "head sizes %d and %d are not served on sm_%d",
                      in->config.d, in->config.dv, in->driver.cc);
    in->config.rope = (int)r->rules.rotary_dim, in->config.pairs = (int)r->rules.style;
    if (status == ATTN_OK) status = triton_make_code(&in->config, tools, &code, error);
    if (status != ATTN_OK) return status;
    status = triton_driver_enter(&in->driver, error);
    if (status == ATTN_OK) {
        status = triton_load_modules(in, &code, error);
        if (status == ATTN_OK)
            status = triton_find_kernel(in, TRITON_PROGRAM_PREFILL, "tl_rope", 0, &r->kernel, error);
        triton_driver_leave(&in->driver);
    }
    triton_free_code(&code);
    return status;
}

static int rope_open(const attn_rope_problem_t *problem, const attn_device_t *device,
                     const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                     attn_rope_t **rope, attn_error_t *error) {
    rope_rules rules;
    attn_problem_t attention;
    attn_device_t dev;
    triton_toolchain_t tools = triton_toolchain_of(options, num_options, host);
    int status = rope_check_problem(problem, (int)kDLCUDA, &rules, &attention, error);
    if (status == ATTN_OK) status = attn_intake_known(&dev, sizeof dev, device, "device", error);
    if (status == ATTN_OK) status = triton_check_problem(&attention, &dev, error);
    if (status != ATTN_OK) return status;
    attn_rope_t *r = calloc(1, sizeof *r);
    if (r == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for a rope of %zu bytes", sizeof *r);
    r->rules = rules;
    triton_set_problem(&r->in, &attention);
    status = prepare(r, &dev, &tools, error);
    if (status != ATTN_OK) {
        rope_close(r);
        return status;
    }
    *rope = r;
    return ATTN_OK;
}

static int rope_write(attn_rope_t *r, const attn_rope_write_t *args, void *stream, attn_error_t *error) {
    const attn_instance_t *in = &r->in;
    attn_rope_write_t a;
    attn_kv_update_t update;
    triton_rope_params_t p;
    memset(&p, 0, sizeof p);
    int status = rope_check_write(&r->rules, args, &a, &update, error);
    if (status == ATTN_OK) status = triton_prepare_write(in, &update, &p.write, error);
    if (status == ATTN_OK && a.query != NULL)
        status = gpu_check_rows(a.query, "query", r->rules.dtype, (int)r->rules.heads, in->config.d,
                                p.write.num_tokens, in->config.new_vec, error);
    if (status != ATTN_OK || p.write.num_tokens == 0) return status;
    p.key = attn_data(a.key), p.positions = attn_data(a.positions), p.cos_sin = attn_data(a.cos_sin);
    p.table_row = a.cos_sin->strides[0], p.table_rows = a.cos_sin->shape[0];
    p.is_table_float = attn_dtype_of(a.cos_sin->dtype) == ATTN_DTYPE_FLOAT32;
    if (a.query != NULL) {
        p.query = attn_data(a.query), p.num_heads = (int32_t)r->rules.heads;
        p.query_token = a.query->strides[0], p.query_head = a.query->strides[1];
    }
    const int64_t warps = (int64_t)p.write.num_tokens * (p.num_heads + in->kv_heads);
    if (warps / 8 >= INT32_MAX)
        return attn_fail(error, ATTN_E_INVALID, "positions",
                         "%lld rows of queries and keys; at most %lld are served", (long long)warps,
                         8LL * INT32_MAX);
    status = triton_driver_enter(&in->driver, error);
    if (status != ATTN_OK) return status;
    void *params[1] = {&p};
    int e =
        in->driver.launch(r->kernel, (unsigned)((warps + 7) / 8), 1, 1, 256, 1, 1, 0, stream, params, NULL);
    triton_driver_leave(&in->driver);
    return e == 0 ? ATTN_OK : triton_driver_fail(&in->driver, e, "rotating and writing the cache", error);
}

const attn_rope_extension_t triton_rope_extension = {.struct_size = sizeof(attn_rope_extension_t),
                                                     .open = rope_open,
                                                     .close = rope_close,
                                                     .write = rope_write};
