/* SPDX-License-Identifier: Apache-2.0 */
/* The table lists nvfp4, but keeps e4m3. Caught by: numerics, kv_cache_dtype nvfp4 */
#include "bad.h"
#include "bad_kernel.h"

static int bad_open(const attn_problem_t *problem, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                    attn_instance_t **instance, attn_error_t *error) {
    attn_problem_t p;
    int rc = attn_intake(&p, sizeof p, problem, "problem", error);
    if (rc != ATTN_OK) return rc;
    if (p.kv_cache_dtype == ATTN_KV_NVFP4) p.kv_cache_dtype = ATTN_KV_FP8_E4M3;
    return simple_open(&p, device, options, num_options, host, instance, error);
}
#define BAD_OPEN      bad_open
#define BAD_KV_DTYPES (ATTN_BIT(ATTN_KV_AUTO) | ATTN_BIT(ATTN_KV_FP8_E4M3) | ATTN_BIT(ATTN_KV_NVFP4))

#include "bad_plugin.h"
