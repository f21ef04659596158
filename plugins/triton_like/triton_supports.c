/* SPDX-License-Identifier: Apache-2.0 */
/* What the capability table of TRITON_ATTN cannot say, as a list of reasons. */
#include "../common/output_scales.h"
#include "../common/problem_rules.h"
#include "triton_instance.h"

#include <math.h>

static void check_sizes(const attn_problem_t *p, attn_reasons_t *r) {
    char have[32], want[96];
    const struct {
        const char *name;
        int64_t have, low, high;
        int code;
    } ranges[] = {
        {"num_heads", p->num_heads, 1, 65535, ATTN_REASON_HEAD_COUNT},
        {"head_size", p->head_size, 32, 512, ATTN_REASON_HEAD_SIZE},
        {"head_size_v", p->head_size_v ? p->head_size_v : p->head_size, 32, 512, ATTN_REASON_HEAD_SIZE},
        {"max_mm_ranges", p->max_mm_ranges, 0, 4096, ATTN_REASON_LIMIT}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (ranges[i].have < ranges[i].low || ranges[i].have > ranges[i].high) {
            snprintf(want, sizeof want, "%lld to %lld", (long long)ranges[i].low, (long long)ranges[i].high);
            attn_add_reason(r, ranges[i].code, ranges[i].name, NUMBER(have, ranges[i].have), want,
                            "%s is %lld; %s are served", ranges[i].name, (long long)ranges[i].have, want);
        }
    if (isfinite(p->logits_soft_cap) && p->logits_soft_cap > 1e30) /* scores are float32 */
        attn_add_reason(r, ATTN_REASON_COMBINATION, "logits_soft_cap", "beyond 1e30", "at most 1e30",
                        "logits_soft_cap is %g; at most 1e30 is served", p->logits_soft_cap);
    gpu_check_limits(p, 1 << 24, r);
}

static void check_masks(const attn_problem_t *p, uint64_t f, attn_reasons_t *r) {
    char have[32];
    if (p->rswa_window != 0 && p->chunk_size != 0)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "rswa_window", NUMBER(have, p->rswa_window),
                        "0 with chunk_size", "R-SWA replaces chunks; give one of the two");
    if (p->chunk_size != 0 && (p->sliding_window != 0 || (f & ATTN_F_MM_PREFIX) != 0))
        attn_add_reason(r, ATTN_REASON_COMBINATION, "chunk_size", NUMBER(have, p->chunk_size),
                        "0 with a window or spans",
                        "chunked local attention together with a window or spans is not served");
    if ((f & ATTN_F_DEVICE_LENGTHS) != 0 && output_has_groups(f))
        attn_add_reason(
            r, ATTN_REASON_COMBINATION, (f & ATTN_F_OUT_NVFP4) != 0 ? "out_nvfp4" : "out_fp8_group",
            "with device_lengths", "one of the two",
            "group scales are made of all rows that the host counts; device_lengths excludes them");
    if ((f & ATTN_F_ALIBI) != 0 && (f & ATTN_F_ALIBI_SQRT) != 0)
        attn_add_reason(r, ATTN_REASON_COMBINATION, "features", "alibi and alibi_sqrt", "one of the two",
                        "ALiBi is linear or of the square root, not both");
}

static void check_memory(const attn_problem_t *p, const attn_device_t *device, attn_reasons_t *r) {
    triton_config_t config;
    int cc = device != NULL && device->compute_capability >= 80 ? device->compute_capability : 80;
    if (r->count == 0 && triton_configure(p, cc, &config) != 0)
        attn_add_reason(r, ATTN_REASON_LIMIT, "head_size", "too large together", "smaller head sizes",
                        "head sizes %d and %d do not fit the %d bytes of shared memory of sm_%d", config.d,
                        config.dv, triton_smem_of_block(cc), cc);
}

int triton_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    attn_problem_t p;
    attn_device_t dev;
    attn_reasons_t uncounted = {.struct_size = sizeof uncounted};
    int status = attn_intake(&p, sizeof p, problem, "problem", NULL);
    if (status == ATTN_OK && device != NULL)
        status = attn_intake_known(&dev, sizeof dev, device, "device", NULL);
    if (status != ATTN_OK) return status;
    if (reasons == NULL) reasons = &uncounted;
    uint64_t f = attn_problem_features(&p);
    problem_add_rules(&p, f, reasons);
    check_sizes(&p, reasons);
    check_masks(&p, f, reasons);
    check_memory(&p, device != NULL ? &dev : NULL, reasons);
    return ATTN_OK;
}

int triton_check_problem(const attn_problem_t *p, const attn_device_t *device, attn_error_t *error) {
    return problem_check(p, device, &triton_capabilities, "TRITON_ATTN", triton_supports, error);
}
