/* SPDX-License-Identifier: Apache-2.0 */
/* mm_encoder without a GPU: which problems copy rows and where to; and, where the plugin was built, its
 * table, its reasons and an open that says what is missing. */
#include "kit/case/attn_case.h"
#include "mm_layout.h"
#include "../../tap.h"

#include <attn/attn_plugin_util.h>
#include <unistd.h>

static attn_problem_t problem_of(uint32_t d, uint64_t features) {
    return (attn_problem_t){.struct_size = sizeof(attn_problem_t),
                            .role = ATTN_ROLE_MM_ENCODER,
                            .mask = ATTN_MASK_FULL,
                            .dtype = ATTN_DTYPE_BFLOAT16,
                            .num_heads = 16,
                            .num_kv_heads = 4,
                            .head_size = d,
                            .scale = 0.1,
                            .max_num_batched_tokens = 100,
                            .features = features};
}

static void layouts(void) {
    static const struct {
        uint32_t d;
        uint64_t features;
        uint32_t padded;
        int packs;
    } cases[] = {
        {80, 0, 80, 0}, {72, 0, 72, 0}, {72, ATTN_F_FP8_ATTENTION, 80, 1},  {80, ATTN_F_FP8_ATTENTION, 80, 1},
        {65, 0, 72, 1}, {1, 0, 8, 1},   {249, ATTN_F_FP8_ATTENTION, 256, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_problem_t p = problem_of(cases[i].d, cases[i].features), inner;
        mm_layout_t l;
        p.query_dtype = p.out_dtype = p.dtype; /* as the core hands it on */
        inner = mm_inner_problem(&p);
        mm_layout_of(&p, &l);
        uint64_t row = 100 * 2 * (uint64_t)l.head_size;
        int apart =
            !l.packs || (l.k_at >= row * 16 && l.v_at >= l.k_at + row * 4 && l.out_at >= l.v_at + row * 4 &&
                         l.bytes >= l.out_at + row * 16 && l.bytes < row * 40 + 4 * 256);
        int type = cases[i].features ? ATTN_DTYPE_FLOAT16 : ATTN_DTYPE_BFLOAT16;
        ok(l.head_size == cases[i].padded && l.packs == cases[i].packs && (l.packs || l.bytes == 0) &&
               apart && inner.head_size == cases[i].padded && attn_problem_features(&inner) == 0 &&
               inner.dtype == (uint32_t)type,
           "head size %u%s: rows of %u, %s", cases[i].d, cases[i].features ? " in fp8" : "", l.head_size,
           l.packs ? "copied" : "read in place");
    }
}

/* The first reason against a problem, "" if there is none. */
static const char *reason_of(const attn_backend_t *b, const attn_problem_t *p) {
    static attn_reason_t first;
    attn_device_t device = {
        .struct_size = sizeof device, .type = kDLCUDA, .id = -1, .compute_capability = 90};
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = &first};
    first.param[0] = '\0';
    b->ops->supports_combination(p, &device, &reasons);
    return reasons.count ? first.param : "";
}

static void plugin(void) {
    char file[1200], why[256] = "";
    const char *dir = getenv("ATTN_TEST_PLUGIN_DIR");
    snprintf(file, sizeof file, "%s/mm_encoder.so", dir != NULL ? dir : "plugins-built");
    if (access(file, R_OK) != 0) {
        skip(1, "mm_encoder was not built");
        return;
    }
    const attn_backend_t *b = kit_load(file, "MM_ENCODER_ATTN", why, sizeof why);
    if (b == NULL) bail_out("%s: %s", file, why);
    const attn_capabilities_t *c = b->capabilities;
    ok(c->roles == ATTN_BIT(ATTN_ROLE_MM_ENCODER) && (c->features & ATTN_F_FP8_ATTENTION) &&
           (c->features & ATTN_F_CAPTURE) && c->head_sizes[0].min == 1 && c->head_sizes[0].max == 256,
       "the capability table says what is served");
    attn_problem_t p = problem_of(72, ATTN_F_FP8_ATTENTION);
    is_str(reason_of(b, &p), "", "head size 72 in fp8 is served");
    p = problem_of(65, 0);
    is_str(reason_of(b, &p), "", "head size 65 is served");
    p = problem_of(260, 0);
    is_str(reason_of(b, &p), "head_size", "head size 260 is not");
    p = problem_of(64, 0);
    p.head_size_v = 80;
    is_str(reason_of(b, &p), "head_size_v", "values of another size are not");
    p = problem_of(64, 0);
    p.role = ATTN_ROLE_DECODER;
    is_str(reason_of(b, &p), "role", "a decoder is not");
    p = problem_of(64, ATTN_F_FP8_ATTENTION);
    p.out_dtype = ATTN_DTYPE_FLOAT32;
    is_str(reason_of(b, &p), "out_dtype", "float32 outputs are not");
    attn_error_t e = {.struct_size = sizeof e};
    attn_device_t cpu = {.struct_size = sizeof cpu, .type = kDLCPU},
                  gpu = {.struct_size = sizeof gpu, .type = kDLCUDA, .id = 77};
    attn_instance_t *instance = NULL;
    p = problem_of(80, 0);
    ok(b->ops->open(&p, &cpu, NULL, 0, NULL, &instance, &e) == ATTN_E_DEVICE && instance == NULL,
       "a CPU is refused: %s", e.text);
    ok(b->ops->open(&p, &gpu, NULL, 0, NULL, &instance, &e) == ATTN_E_DEVICE && instance == NULL,
       "a device that is not there, or no driver, is said: %s", e.text);
    p.head_size = 300;
    ok(b->ops->open(&p, &gpu, NULL, 0, NULL, &instance, &e) == ATTN_E_UNSUPPORTED &&
           !strcmp(e.param, "head_size"),
       "open gives the reasons too");
}

int main(void) {
    layouts();
    plugin();
    return tap_done();
}
