/* SPDX-License-Identifier: Apache-2.0 */
/* The extensions: attn.draft.compile/0, compiling ahead of time, without the device; attn.draft.rope_write/0
 * is in triton_rope.c. */
#include "triton_instance.h"

#include <attn/draft/attn_compile.h>

static int compile(const attn_problem_t *problem, const attn_device_t *device,
                   const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                   attn_compile_report_t *report, attn_error_t *error) {
    attn_problem_t p;
    attn_device_t dev;
    triton_config_t config;
    triton_code_t code;
    triton_toolchain_t tools = triton_toolchain_of(options, num_options, host);
    int status = attn_intake(&p, sizeof p, problem, "problem", error);
    if (status == ATTN_OK) status = attn_intake_known(&dev, sizeof dev, device, "device", error);
    if (status == ATTN_OK && (dev.type != (int)kDLCUDA || dev.compute_capability < 80))
        status = attn_fail(error, ATTN_E_UNSUPPORTED, "device",
                           "TRITON_ATTN compiles for sm_80 and later; compute capability "
                           "%d of device type %d was given",
                           (int)dev.compute_capability, (int)dev.type);
    if (status == ATTN_OK) status = triton_check_problem(&p, &dev, error);
    if (status == ATTN_OK && triton_configure(&p, dev.compute_capability, &config) != 0)
        status = attn_fail(error, ATTN_E_UNSUPPORTED, "head_size",
                           "head sizes %d and %d do not fit the shared memory of sm_%d", config.d, config.dv,
                           (int)dev.compute_capability);
    if (status != ATTN_OK) return status;
    status = triton_make_code(&config, &tools, &code, error);
    if (status != ATTN_OK) return status;
    return triton_give_report(report, &code, error);
}

static const attn_compile_extension_t compile_extension = {.struct_size = sizeof(attn_compile_extension_t),
                                                           .compile = compile};

const void *triton_get_extension(attn_instance_t *instance, const char *id) {
    (void)instance;
    if (id != NULL && strcmp(id, ATTN_ROPE_EXTENSION) == 0) return &triton_rope_extension;
    return id != NULL && strcmp(id, ATTN_COMPILE_EXTENSION) == 0 ? &compile_extension : NULL;
}
