/* SPDX-License-Identifier: Apache-2.0 */
/* flash.so on a machine that may have no GPU and no driver: it loads, answers its capabilities, gives its
 * reasons, and open says what is missing instead of crashing. */
#include "kit/case/attn_case.h"
#include "plugins/common/gpu_arch.h"
#include "../../tap.h"

#include <attn/attn_plugin_util.h>
#include <unistd.h>

static attn_problem_t problem_of(void) {
    return (attn_problem_t){.struct_size = sizeof(attn_problem_t),
                            .role = ATTN_ROLE_DECODER,
                            .mask = ATTN_MASK_CAUSAL,
                            .dtype = ATTN_DTYPE_BFLOAT16,
                            .num_heads = 32,
                            .num_kv_heads = 8,
                            .head_size = 128,
                            .block_size = 16,
                            .scale = 0.0883883};
}

/* The first reason against a problem on a compute capability, "" if there is none. */
static const char *reason_on(const attn_backend_t *b, const attn_problem_t *p, int cc) {
    static attn_reason_t first;
    attn_device_t device = {
        .struct_size = sizeof device, .type = kDLCUDA, .id = -1, .compute_capability = cc};
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = &first};
    first.param[0] = '\0';
    b->ops->supports_combination(p, &device, &reasons);
    return reasons.count ? first.param : "";
}

static const char *reason_of(const attn_backend_t *b, const attn_problem_t *p) {
    return reason_on(b, p, 0); /* whatever GPU it is */
}

int main(void) {
    char file[1200], cwd[1000], why[256] = "";
    if (getcwd(cwd, sizeof cwd) == NULL) bail_out("getcwd failed");
    snprintf(file, sizeof file, "%s/plugins-built/flash.so", cwd);
    const attn_backend_t *flash = kit_load(file, "FLASH_ATTN", why, sizeof why);
    if (flash == NULL) bail_out("%s: %s", file, why);
    ok(kit_load(file, "FLASH_ATTN_DIFFKV", why, sizeof why) != NULL, "both backends are there");
    const attn_capabilities_t *c = flash->capabilities;
    ok((c->features & ATTN_F_CAPTURE) && !(c->features & (ATTN_F_RSWA | ATTN_F_DIFF_KV)) &&
           c->device_types == ATTN_BIT(kDLCUDA),
       "the capability table says what is served");

    attn_problem_t p = problem_of();
    is_str(reason_of(flash, &p), "", "a plain decoder is served");
    p.head_size = 260;
    is_str(reason_of(flash, &p), "head_size", "head size 260 is not");
    p = problem_of();
    p.num_kv_heads = 5;
    is_str(reason_of(flash, &p), "num_kv_heads", "5 KV heads under 32 are not");
    p = problem_of();
    p.block_size = 24;
    is_str(reason_of(flash, &p), "block_size", "pages of 24 tokens are not");
    p = problem_of();
    p.kv_cache_dtype = ATTN_KV_FLOAT16;
    is_str(reason_of(flash, &p), "kv_cache_dtype", "a float16 cache under bfloat16 is not");
    p.kv_cache_dtype = ATTN_KV_INT8_PER_TOKEN_HEAD;
    is_str(reason_of(flash, &p), "", "what the table lacks is said by the table alone");
    p = problem_of();
    p.features = ATTN_F_CONTIGUOUS_KV;
    is_str(reason_of(flash, &p), "contiguous_kv", "keys of the call instead of a decoder's cache are not");
    p = problem_of();
    p.scale = 0;
    is_str(reason_of(flash, &p), "scale", "scale 0 is not");
    p = problem_of();
    static const int capabilities[] = {80, 90, 100, 120};
    for (int i = 0; i < 4; i++)
        is_str(reason_on(flash, &p, capabilities[i]),
               gpu_arch_runs(gpu_archs(), capabilities[i]) ? "" : "compute_capability",
               "sm_%d under a build for %s", capabilities[i], gpu_archs());

    attn_instance_t *instance = NULL;
    attn_error_t e = {.struct_size = sizeof e};
    p = problem_of();
    attn_device_t device = {.struct_size = sizeof device, .type = kDLCPU};
    ok(flash->ops->open(&p, &device, NULL, 0, NULL, &instance, &e) == ATTN_E_DEVICE && instance == NULL,
       "a CPU is refused: %s", e.text);
    device.type = kDLCUDA;
    device.id = 4096; /* absent with a driver, and unreachable without one */
    ok(flash->ops->open(&p, &device, NULL, 0, NULL, &instance, &e) == ATTN_E_DEVICE && instance == NULL &&
           strcmp(e.param, "device") == 0,
       "a device that is not there is refused by name");
    diag("%s", e.text);
    p.role = ATTN_ROLE_MLA;
    ok(flash->ops->open(&p, &device, NULL, 0, NULL, &instance, &e) == ATTN_E_UNSUPPORTED &&
           strcmp(e.param, "role") == 0,
       "role mla is refused by name");
    flash->ops->close(NULL);
    return tap_done();
}
