/* SPDX-License-Identifier: Apache-2.0 */
/* case_compare.c: tolerances per element type, and the first element that is outside. */
#include "attn_case.h"
#include "case_families.h"

#include <attn/attn_plugin_util.h>

#include <math.h>
#include <stdio.h>

/* Semantics 10.2, tightened where float32 accumulation over exact inputs allows it. Caches of 8 bits are
 * quantised by the backend itself: one code of difference at a tie is its right. */
void kit_tolerance(const kit_case_t *c, double *atol, double *rtol) {
    const attn_problem_t *p = &c->problem;
    uint32_t out = p->out_dtype != 0 ? p->out_dtype : p->dtype, kv = p->kv_cache_dtype;
    *atol = *rtol = p->dtype == ATTN_DTYPE_FLOAT32 ? 2e-5 : p->dtype == ATTN_DTYPE_FLOAT16 ? 3e-3 : 1.5e-2;
    if (p->dtype == ATTN_DTYPE_FLOAT64 || out == ATTN_DTYPE_FLOAT64) *atol = *rtol = 1e-9;
    if (kv == ATTN_KV_FLOAT16 && *atol < 3e-3) *atol = *rtol = 3e-3; /* P may take V's type */
    if (kv == ATTN_KV_BFLOAT16 && *atol < 1.5e-2) *atol = *rtol = 1.5e-2;
    if (out == ATTN_DTYPE_FLOAT16 && *atol < 3e-3) *atol = *rtol = 3e-3;
    if (out == ATTN_DTYPE_BFLOAT16 && *atol < 1.5e-2) *atol = *rtol = 1.5e-2;
    if (attn_kv_is_lossy(kv)) {
        *atol = 6e-2;
        *rtol = 1e-1;
    }
    if (p->query_dtype == ATTN_DTYPE_FP8_E4M3) *atol = *rtol = 1.5e-1;
    if (out ==
        ATTN_DTYPE_FP8_E4M3) { /* half a step: of normal codes, and of those below under the static scale */
        *rtol += 0x1p-4;
        *atol += 0x1p-10 * KIT_OUTPUT_SCALE;
    }
    /* a plain sum in float32 may be off by half a unit of its last place at each of n terms, all one way */
    int32_t longest = 0;
    for (int r = 0; r < c->num_reqs; r++)
        if (c->seq_lens[r] > longest) longest = c->seq_lens[r];
    if (longest > 2048) *rtol += longest * 0x1p-26;
    /* what a float32 score is off by, and so a weight, grows with its size */
    const double score = fabs(p->scale) * sqrt((double)kit_sizes(p).key);
    if (score > 4) *atol *= score < 8 ? score / 4 : 2;
    /* keys after the query raise it by their distance: the largest score is as large as the largest bias, and
     * it and the greatest of its row are each off by half a unit */
    if (p->dtype == ATTN_DTYPE_FLOAT32 && (p->features & ATTN_F_ALIBI) && p->mask != ATTN_MASK_CAUSAL)
        *atol += KIT_MAX_SLOPE * longest * 0x1p-23;
    *atol *= kit_value_size(c);
}

/* The unit in the last place of x in a 16-bit type; 0 for other types and for zero. */
static double unit_of(uint32_t dtype, double x) {
    const int bits = dtype == ATTN_DTYPE_BFLOAT16 ? 7 : dtype == ATTN_DTYPE_FLOAT16 ? 10 : 0;
    const int least = dtype == ATTN_DTYPE_FLOAT16 ? -14 : -126;
    if (bits == 0 || x == 0 || !isfinite(x)) return 0;
    const int e = ilogb(x);
    return ldexp(1, (e > least ? e : least) - bits);
}

static double fp4_scale(const kit_case_t *c) {
    const double amplitude = c->amplitude != 0 ? c->amplitude : 1.0;
    return (double)(KIT_OUTPUT_FP4_SCALE * (float)(amplitude * kit_value_size(c)));
}

/* Half of the distance between the 4-bit values around x, which are times `unit`. */
static double half_step(double x, double unit, double tensor) {
    const double a = unit > 0 ? fabs(x) / unit : 0;
    return unit > 0 ? unit * (a < 2 ? 0.25 : a < 4 ? 0.5 : 1) : 6 * 0x1p-10 * tensor;
}

/* The largest of 16 values by 6 and by the tensor's scale, as e4m3, which has a bit more than 3 digits and
 * below 2^-6 steps of 2^-9; NaN where one is not finite. */
static int is_unit_close(double unit, const double *want, double tensor, double atol, double rtol) {
    double most = 0;
    for (int i = 0; i < 16; i++) {
        if (!isfinite(want[i])) return isnan(unit);
        most = fmax(most, fabs(want[i]));
    }
    const double right = fmin(most / 6, 448 * tensor), most_off = right * (0x1.1p-4 + rtol) + atol / 6;
    return fabs(unit - right) <= most_off + 0x1.1p-10 * tensor;
}

static int is_close(double got, double want, double atol, double rtol) {
    if (isnan(want)) return isnan(got);
    if (isinf(want) || isinf(got)) return got == want;
    return fabs(got - want) <= atol + rtol * fabs(want);
}

kit_difference_t kit_compare(const kit_case_t *c, const kit_result_t *got, const kit_result_t *want) {
    kit_difference_t d = {.is_close = 1};
    double atol, rtol;
    int64_t heads = c->problem.num_heads, tokens = want->num_out;
    int64_t dv = kit_sizes(&c->problem).output;
    tokens /= heads * dv;
    kit_tolerance(c, &atol, &rtol);
    if (got->status != ATTN_OK || want->status != ATTN_OK) {
        const kit_result_t *bad = got->status != ATTN_OK ? got : want;
        d.is_close = 0;
        snprintf(d.text, sizeof d.text, "%s failed (%d): %s: %.200s", bad->operation, bad->status,
                 bad->error.param, bad->error.text);
        return d;
    }
    if (got->fault[0] != '\0') {
        d.is_close = 0;
        snprintf(d.text, sizeof d.text, "%s", got->fault);
        return d;
    }
    const uint32_t out_dtype = c->problem.out_dtype != 0 ? c->problem.out_dtype : c->problem.dtype;
    const double tensor = fp4_scale(c);
    int64_t num_units = 0;
    for (int64_t i = 0; i < want->num_out; i++) {
        const double unit = unit_of(out_dtype, want->out[i]);
        if (unit > 0) d.bias += copysign(1, want->out[i]) * (got->out[i] - want->out[i]) / unit, num_units++;
        double e = fabs(got->out[i] - want->out[i]);
        if (e > d.max_abs) d.max_abs = e;
        double more = 0;
        if (got->unit != NULL) {
            if (d.is_close && i % 16 == 0 &&
                !is_unit_close(got->unit[i], want->out + i, tensor, atol, rtol)) {
                d.is_close = 0;
                snprintf(
                    d.text, sizeof d.text,
                    "token %lld: the 16 values from %lld are divided by %.9g, which is not a sixth of their "
                    "largest",
                    (long long)(i / dv / heads), (long long)(i % (dv * heads)), got->unit[i]);
            }
            if (isnan(got->unit[i])) continue; /* as is_unit_close has found right */
            more = half_step(want->out[i], got->unit[i], tensor);
        }
        if (d.is_close && !is_close(got->out[i], want->out[i], atol + more, rtol)) {
            d.is_close = 0;
            snprintf(d.text, sizeof d.text,
                     "output[%lld][%lld][%lld] is %.9g, expected %.9g within %.3g + %.3g * |expected|",
                     (long long)(i / dv / heads), (long long)(i / dv % heads), (long long)(i % dv),
                     got->out[i], want->out[i], atol, rtol);
        }
    }
    if (num_units > 0) d.bias /= (double)num_units;
    atol /= kit_value_size(c); /* the LSE has nothing of the values */
    for (int64_t i = 0; got->lse != NULL && want->lse != NULL && i < want->num_lse; i++) {
        double e = fabs(got->lse[i] - want->lse[i]);
        if (e > d.max_lse) d.max_lse = e;
        if (d.is_close && !is_close(got->lse[i], want->lse[i], atol, rtol)) {
            d.is_close = 0;
            snprintf(d.text, sizeof d.text,
                     "lse[%lld][%lld] is %.9g, expected %.9g within %.3g + %.3g * |expected|",
                     (long long)(i / tokens), (long long)(i % tokens), got->lse[i], want->lse[i], atol, rtol);
        }
    }
    return d;
}
