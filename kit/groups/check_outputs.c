/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_outputs.c: the part of group numerics about outputs that are quantised, their scales in every way in
 * which they may lie.
 */
#include "../case/case_families.h"
#include "../run/check_engine.h"

#include <attn/attn_plugin_util.h>

#include <math.h>
#include <stdlib.h>

/* One head: groups of 64 values, or of 16 that leave places over; many keys, which pieces or tiles share, and
 * long queries; values below the normal codes of the static scale; a common prefix; lengths on the
 * device. */
static void shapes(check_t *c, const kit_case_t *usual) {
    const uint64_t more[] = {0, 0, 0, ATTN_F_CASCADE, ATTN_F_DEVICE_LENGTHS};
    for (int i = 0; i < 5; i++) {
        kit_case_t k = *usual;
        if ((c->can.features & more[i]) != more[i]) continue;
        k.problem.features |= more[i];
        if (i != 0) k.num_reqs = 0;
        if (i == 0) k.problem.num_heads = k.problem.num_kv_heads = 1;
        if (i == 0 && (k.problem.features & ATTN_F_OUT_NVFP4) != 0) /* five groups: places behind the last */
            k.problem.head_size = check_head_size(c, 80);
        if (i == 1) kit_case_add(&k, 1, 2500), kit_case_add(&k, 2, 2);
        if (i == 2) kit_case_add(&k, 150, 150), kit_case_add(&k, 0, 0), kit_case_add(&k, 70, 300);
        if (i == 2 && (k.problem.features & ATTN_F_OUT_FP8_STATIC) != 0) k.amplitude = 0.01;
        if (i == 3) k.common_prefix_len = (int32_t)k.problem.block_size;
        if (i >= 3)
            kit_case_add(&k, 1, k.common_prefix_len + 9), kit_case_add(&k, 5, k.common_prefix_len + 40);
        check_run(c, c->backend, &k, NULL);
    }
}

/* The feature of a quantised output, and what goes with it. 0: the backend does not serve it. */
static int output_case(check_t *c, kit_case_t *k) {
    if (!check_start_without(c, k)) return 0;
    const uint64_t f = UINT64_C(1) << c->arg;
    const uint32_t out = f == ATTN_F_OUT_NVFP4 ? ATTN_DTYPE_UINT8 : ATTN_DTYPE_FP8_E4M3;
    if (!(c->can.out_dtypes & ATTN_BIT(out))) {
        check_skip(c, "out_dtypes has no %s", attn_dtype_name(out));
        return 0;
    }
    k->problem.out_dtype = out;
    k->problem.features |= f;
    if (f == ATTN_F_OUT_SCALE_UE8M0) k->problem.features |= ATTN_F_OUT_FP8_GROUP;
    k->problem.head_size = check_head_size(c, 64);
    k->problem.scale = 1 / sqrt((double)k->problem.head_size);
    return 1;
}
static void numbers(check_t *c) {
    kit_case_t k;
    if (!output_case(c, &k)) return;
    kit_case_add(&k, 1, 40);
    kit_case_add(&k, 17, 30);
    const uint32_t layouts[] = {0, KIT_STRIDED, KIT_HEADS_FIRST}; /* of the scales of groups, too */
    for (int i = 0; i < 3; i++) {
        k.flags = layouts[i];
        check_run(c, c->backend, &k, NULL);
    }
    if (k.problem.role != ATTN_ROLE_DECODER) return;
    k.flags = 0;
    shapes(c, &k);
    /* a static scale would saturate under the last two */
    const uint32_t families[] = {KIT_CONSTANT,    KIT_UNIFORM,    KIT_NEEDLE,
                                 KIT_ALTERNATING, KIT_LARGE_MEAN, KIT_LARGE};
    for (size_t i = 0; i < ((k.problem.features & ATTN_F_OUT_FP8_STATIC) == 0 ? 6 : 4); i++) {
        k.family = families[i];
        k.num_reqs = 0;
        kit_case_add(&k, i % 2 != 0 ? 1 : 24, 600);
        check_run(c, c->backend, &k, NULL);
    }
}

/* What one group of values becomes, n of them (semantics 7.7), where the division by the scale is off by
 * `nudge`. */
static void quantised(const kit_case_t *k, const double *x, int n, float tensor, double nudge, double *out) {
    const uint64_t f = k->problem.features;
    float most = 0, scale = tensor;
    for (int i = 0; i < n; i++)
        most = fmaxf(most, (float)fabs(x[i]));
    if (f & ATTN_F_OUT_FP8_GROUP) scale = (float)(fmax((double)most, 1e-10) / ATTN_E4M3_MAX);
    if (f & ATTN_F_OUT_SCALE_UE8M0) scale = (float)exp2(ceil(log2((double)scale)));
    if (f & ATTN_F_OUT_NVFP4)
        scale = (float)attn_from_e4m3(attn_to_e4m3((double)(most / 6.0f / tensor))) * tensor;
    for (int i = 0; i < n; i++)
        if (!(f & ATTN_F_OUT_NVFP4))
            out[i] = attn_from_e4m3(attn_to_e4m3(x[i] * nudge / (double)scale)) * (double)scale;
        else
            out[i] = scale > 0
                         ? attn_from_e2m1(attn_to_e2m1((double)((float)x[i] / scale) * nudge)) * (double)scale
                         : 0;
}

/* A token's row, group by group: each value is known, but where a little more or less makes another code of
 * its scale, or of it under the same scale: values that are a round part of the largest are next to a tie
 * whatever that is. */
static void check_codes_of_row(check_t *c, const kit_case_t *k, const double *x, int64_t width, float tensor,
                               const double *got) {
    enum { NUDGED = 5 };
    static const double all[NUDGED] = {1, 1 + 1e-5, 1 - 1e-5, 1, 1},
                        one[NUDGED] = {1, 1, 1, 1 + 1e-5, 1 - 1e-5};
    double want[NUDGED][128];
    const uint64_t f = k->problem.features;
    const int n = (f & ATTN_F_OUT_NVFP4) ? 16 : width % 128 == 0 ? 128 : 64;
    for (int64_t first = 0; first < width; first += n)
        for (int j = 0; j < NUDGED; j++) {
            double near[128];
            for (int i = 0; i < n; i++)
                near[i] = x[first + i] * all[j];
            quantised(k, near, n, tensor, one[j], want[j]);
            for (int i = 0; j == NUDGED - 1 && i < n && !c->report->is_failed; i++) {
                const double w = want[0][i], off = 1e-4 * fabs(w);
                int is_sure = 1;
                for (int o = 1; o < NUDGED; o++)
                    is_sure &= fabs(want[o][i] - w) <= off;
                if (!is_sure) continue;
                if (fabs(got[first + i] - w) <= 2e-5 * fabs(w)) continue;
                check_fail(c, "the only key's value %.9g, %lld of a row, is kept as %.9g, not as %.9g",
                           x[first + i], (long long)(first + i), got[first + i], w);
            }
        }
}

/* A row of one key is its value, whatever the query: each code is known, but next to a tie. A scale that is
 * rounded, or of another group, moves some of them, and no tolerance of e4m3 would show it. */
static void codes(check_t *c) {
    /* under the last most values saturate */
    static const float scales[] = {0.02f, 0.01569375f, 0.71f, 0.0021f}, small[] = {0.002f, 0.0015f, 0.0131f};
    static const uint32_t layouts[] = {0, KIT_STRIDED, KIT_HEADS_FIRST, 0};
    kit_case_t k;
    if (!output_case(c, &k)) return;
    if (c->role != 0 || k.problem.kv_cache_dtype > ATTN_KV_AUTO) {
        check_skip(c, "values are not kept as they are");
        return;
    }
    k.problem.max_num_seqs = 24;
    for (int r = 0; r < 24; r++)
        kit_case_add(&k, 1, 1);
    if (!check_is_served(c, &k)) return;
    kit_inputs_t *in = kit_inputs_make(&k);
    const kit_sizes_t z = kit_sizes(&k.problem);
    const int64_t width = z.heads * z.output;
    double *x = malloc((size_t)width * sizeof *x);
    const int runs = (k.problem.features & ATTN_F_OUT_FP8_STATIC) ? 4 : 3;
    for (int i = 0; in != NULL && x != NULL && i < runs && !c->report->is_failed; i++) {
        kit_result_t result;
        in->output_scale = (k.problem.features & ATTN_F_OUT_NVFP4) ? small[i] : scales[i];
        k.flags = layouts[i];
        if (kit_run(c->backend, &k, in, c->memory, &result) != ATTN_OK)
            check_fail(c, "%s: %d, %s", result.operation, result.status, result.error.text);
        else if (result.fault[0] != '\0')
            check_fail(c, "%s", result.fault);
        for (int r = 0; r < 24 && !c->report->is_failed; r++) {
            for (int64_t n = 0; n < width; n++)
                x[n] = in->value[(in->key_start[r] * z.kv_heads + n / z.output / (z.heads / z.kv_heads)) *
                                     z.value +
                                 n % z.output];
            check_codes_of_row(c, &k, x, width, in->output_scale, result.out + r * width);
        }
        kit_result_free(&result);
    }
    free(x);
    kit_inputs_free(in);
}

void check_outputs_list(check_list_t *list, const check_t *c) {
    const attn_capabilities_t *t = &c->can;
    if (t->features & ATTN_F_OUT_FP8_STATIC) check_add(list, "numerics", 1, numbers, 17, "static fp8 output");
    if (t->features & ATTN_F_OUT_FP8_STATIC)
        check_add(list, "numerics", 1, codes, 17, "codes of a static fp8 output");
    if (t->features & ATTN_F_OUT_FP8_GROUP) check_add(list, "numerics", 1, numbers, 18, "group fp8 output");
    if (t->features & ATTN_F_OUT_FP8_GROUP)
        check_add(list, "numerics", 1, codes, 18, "codes of a group fp8 output");
    if (t->features & ATTN_F_OUT_SCALE_UE8M0)
        check_add(list, "numerics", 1, numbers, 36, "group fp8 output, scales of powers of two");
    if (t->features & ATTN_F_OUT_SCALE_UE8M0)
        check_add(list, "numerics", 1, codes, 36, "codes of a group fp8 output, powers of two");
    if (t->features & ATTN_F_OUT_NVFP4) check_add(list, "numerics", 1, numbers, 35, "nvfp4 output");
    if (t->features & ATTN_F_OUT_NVFP4) check_add(list, "numerics", 1, codes, 35, "codes of an nvfp4 output");
}
