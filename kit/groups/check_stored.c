/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_stored.c: the part of group numerics about the bits in the cache: other programs read pages too
 * (transfer engines, a backend of the same fingerprint), so what update_kv_cache writes is compared bit for
 * bit with x, or with x / scale rounded to nearest even; where scales lie
 * apart every scale and code with its rule.
 */
#include "../case/case_run.h"
#include "../run/check_engine.h"

#include <attn/attn_plugin_util.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static kit_run_t run;

typedef struct count {
    int64_t num, num_off;
    double drift; /* codes too large in magnitude, minus those too small */
} count_t;

/* One row of K or V, in storage, against what it was made from. */
static int compare_row(check_t *c, const unsigned char *stored, const float *x, int64_t n, uint32_t storage,
                       double scale, count_t *seen) {
    const size_t size = attn_dtype_size(storage);
    for (int64_t i = 0; i < n; i++) {
        unsigned char want[8];
        const float scaled = (float)((double)x[i] / scale);
        kit_store_floats(want, storage, &scaled, 1);
        seen->num++;
        if (memcmp(want, stored + (size_t)i * size, size) == 0) continue;
        double was, is;
        kit_load_doubles(want, storage, &was, 1);
        kit_load_doubles(stored + (size_t)i * size, storage, &is, 1);
        if (was == 0 && is == 0)
            return check_fail(c, "the cache holds %g where %.9g / %g is %g: zero has a sign", is,
                              (double)x[i], scale, was);
        /* a tie that the division moved is one code */
        if (scale != 1 && size == 1 && fabs(is - was) <= fabs(was) / 7 + 0x1p-9) {
            seen->num_off++;
            seen->drift += fabs(is) > fabs(was) ? 1 : -1;
            continue;
        }
        return check_fail(c, "the cache holds %.9g where %.9g / %g rounded to nearest is %.9g", is,
                          (double)x[i], scale, was);
    }
    return 1;
}

/* Semantics 3.6, from the scale that is stored: a scale or a code at a tie may be the next one. */
static int compare_nvfp4_row(check_t *c, const unsigned char *codes, const unsigned char *scales,
                             const float *x, int64_t n, double scale, count_t *seen) {
    for (int64_t i = 0; i < n; i++) {
        const float *group = x + i / 16 * 16, t = (float)scale;
        float most = 0;
        for (int j = 0; j < 16; j++)
            most = fmaxf(most, fabsf(group[j]));
        const int kept = scales[i / 16], want = attn_to_e4m3((double)(most / 6.0f / t));
        const float unit = (float)attn_from_e4m3((uint8_t)kept) * t;
        const int code = codes[i / 2] >> i % 2 * 4 & 15,
                  right = unit > 0 ? attn_to_e2m1((double)(x[i] / unit)) : 0;
        seen->num++;
        if (kept < want - 1 || kept > want + 1)
            return check_fail(c, "the scale of 16 values up to %.9g is 0x%02x where %.9g / 6 / %g is 0x%02x",
                              (double)most, (unsigned)kept, (double)most, scale, (unsigned)want);
        if (abs((code & 7) - (right & 7)) > 1 || (((code ^ right) & 8) != 0 && (code & 7) + (right & 7) > 1))
            return check_fail(c, "the cache holds %g where %.9g / %.9g rounded to nearest is %g",
                              attn_from_e2m1((uint8_t)code), (double)x[i], (double)unit,
                              attn_from_e2m1((uint8_t)right));
        if (kept != want || (code & 7) != (right & 7)) seen->num_off++;
    }
    return 1;
}

/* Semantics 3.4, 3.8: n int8 codes of x by scale[i], or by scale[0] where `step` is 0. By 1 nothing moves a
 * tie, which goes away from zero. */
static int compare_int8_row(check_t *c, const unsigned char *codes, const float *x, int64_t n,
                            const float *scale, int step, count_t *seen) {
    for (int64_t i = 0; i < n; i++) {
        const double s = (double)scale[i * step], right = round((double)x[i] / s);
        const double want = right > 127 ? 127 : right < -128 ? -128 : right, is = (signed char)codes[i];
        seen->num++;
        if (fabs(is - want) > (s == 1 ? 0 : 1))
            return check_fail(c, "the cache holds %g where %.9g / %.9g rounded to nearest is %g", is,
                              (double)x[i], s, want);
        if (is != want) seen->num_off++;
    }
    return 1;
}

/* K by the scale that is stored for it, which is max|x| / 127; V by the call's, or as it is. */
static int compare_int8(check_t *c, const kit_case_t *k, const unsigned char *const row[2],
                        const unsigned char *stored_scale, const float *const x[2], const float *channels,
                        count_t *seen) {
    float most = 0, kept;
    memcpy(&kept, stored_scale, sizeof kept);
    for (int64_t i = 0; i < run.z.key; i++)
        most = fmaxf(most, fabsf(x[0][i]));
    const float want = fmaxf(most / 127.0f, 1e-6f);
    if (!(fabsf(kept - want) <= want * 0x1p-22f))
        return check_fail(c, "the scale of a K row up to %.9g is %.9g; max / 127 is %.9g", (double)most,
                          (double)kept, (double)want);
    if (!compare_int8_row(c, row[0], x[0], run.z.key, &kept, 0, seen)) return 0;
    if (channels != NULL) return compare_int8_row(c, row[1], x[1], run.z.value, channels, 1, seen);
    return compare_row(c, row[1], x[1], run.z.value, k->problem.dtype, 1, seen);
}

/* Semantics 3.4: codes, and behind them the scale that was made of the row. */
static int compare_inline_row(check_t *c, const unsigned char *codes, const unsigned char *stored_scale,
                              const float *x, int64_t n, count_t *seen) {
    const double largest = c->arg == ATTN_KV_INT8_PER_TOKEN_HEAD ? 127 : ATTN_E4M3_MAX;
    float most = 0, kept;
    int is_nan = 0;
    memcpy(&kept, stored_scale, sizeof kept);
    for (int64_t i = 0; i < n; i++) {
        is_nan = is_nan || isnan(x[i]);
        most = fmaxf(most, fabsf(x[i]));
    }
    if (is_nan && !isnan(kept))
        return check_fail(c, "the scale of a row with NaN in it is %.9g; it is NaN, and so the row",
                          (double)kept);
    if (is_nan) return 1;
    const float want = fmaxf(most / (float)largest, 1e-6f);
    if (!(fabsf(kept - want) <= want * 0x1p-21f))
        return check_fail(c, "the scale of a row up to %.9g is %.9g; the larger of max / %g and 1e-6 is %.9g",
                          (double)most, (double)kept, largest, (double)want);
    if (c->arg == ATTN_KV_INT8_PER_TOKEN_HEAD) return compare_int8_row(c, codes, x, n, &kept, 0, seen);
    return compare_row(c, codes, x, n, ATTN_DTYPE_FP8_E4M3, (double)kept, seen);
}
static int is_inline(uint32_t kv) {
    return kv == ATTN_KV_INT8_PER_TOKEN_HEAD || kv == ATTN_KV_FP8_PER_TOKEN_HEAD;
}

/* Rows of K and V of a page whose scales are apart. */
static int compare_apart(check_t *c, const kit_case_t *k, const kit_inputs_t *in, int r, int64_t position,
                         int64_t h, count_t *seen) {
    const attn_kv_cache_shape_t *s = &run.shape;
    const attn_kv_page_t page = attn_kv_page(attn_kv_format(c->arg), k->problem.dtype, s->kv_layout,
                                             run.z.kv_heads, s->block_size, run.z.key, run.z.value);
    const int64_t slot = kit_run_slot(&run, r, position), token = slot % s->block_size,
                  from = (in->key_start[r] + position) * run.z.kv_heads + h;
    const unsigned char *block = kit_tensor_at(run.cache, slot / s->block_size, 0), *row[2], *scale[2];
    const float *const x[2] = {in->key + from * run.z.key, in->value + from * run.z.value};
    for (int i = 0; i < 2; i++) {
        const attn_kv_part_t *v = &page.values[i], *b = &page.scales[i];
        row[i] = block + v->at + h * v->head + token * v->token;
        scale[i] = block + b->at + h * b->head + token * b->token;
    }
    if (attn_kv_rounds_query(c->arg))
        return compare_int8(c, k, row, scale[0], x,
                            in->channel_scale != NULL ? in->channel_scale + h * run.z.value : NULL, seen);
    const int64_t at = in->num_scales > 1 ? h : 0;
    return compare_nvfp4_row(c, row[0], scale[0], x[0], run.z.key, (double)in->k_scale[at], seen) &&
           compare_nvfp4_row(c, row[1], scale[1], x[1], run.z.value, (double)in->v_scale[at], seen);
}

static void compare_cache(check_t *c, const kit_case_t *k, const kit_inputs_t *in) {
    const attn_kv_cache_shape_t *s = &run.shape;
    const uint32_t storage = attn_dtype_of(s->dtype) == ATTN_DTYPE_UINT8
                                 ? attn_kv_storage(k->problem.kv_cache_dtype, k->problem.dtype)
                                 : attn_dtype_of(s->dtype);
    count_t seen = {0, 0, 0};
    for (int r = 0; r < k->num_reqs; r++)
        for (int64_t i = 0; i < k->seq_lens[r]; i++)
            for (int64_t h = 0; h < run.z.kv_heads; h++) {
                if (attn_kv_is_whole_page(c->arg)) {
                    if (!compare_apart(c, k, in, r, i, h, &seen)) return;
                    continue;
                }
                const int64_t slot = kit_run_slot(&run, r, i),
                              from = (in->key_start[r] + i) * run.z.kv_heads + h;
                const unsigned char *row = kit_tensor_at(run.cache, slot / s->block_size, h) +
                                           slot % s->block_size * run.cache->strides[2] * (s->dtype.bits / 8);
                if (is_inline(c->arg)) {
                    if (!compare_inline_row(c, row + s->k_offset, row + s->k_scale_offset,
                                            in->key + from * run.z.key, run.z.key, &seen) ||
                        !compare_inline_row(c, row + s->v_offset, row + s->v_scale_offset,
                                            in->value + from * run.z.value, run.z.value, &seen))
                        return;
                    continue;
                }
                const double ks = run.k_scale != NULL ? (double)in->k_scale[in->num_scales > 1 ? h : 0] : 1,
                             vs = run.v_scale != NULL ? (double)in->v_scale[in->num_scales > 1 ? h : 0] : 1;
                if (!compare_row(c, row + s->k_offset, in->key + from * run.z.key, run.z.key, storage, ks,
                                 &seen) ||
                    !compare_row(c, row + s->v_offset, in->value + from * run.z.value, run.z.value, storage,
                                 vs, &seen))
                    return;
            }
    if (seen.num_off * 200 > seen.num)
        check_fail(c, "%lld of %lld codes in the cache are not x / scale rounded to nearest",
                   (long long)seen.num_off, (long long)seen.num);
    c->report->num_cases++;
}

/* The page is that of semantics 3.6 with scales in their plain order, or of 3.8. */
static int has_plain_page(const kit_case_t *k) {
    attn_kv_cache_shape_t plain = {.struct_size = sizeof plain};
    const int status =
        attn_dense_cache_shape(&k->problem, run.shape.kv_layout, run.shape.block_size, 1, &plain, NULL);
    return status == ATTN_OK && plain.fingerprint == run.shape.fingerprint &&
           plain.page_bytes == run.shape.page_bytes;
}

/* Value i of a row whose scale is 1 as int8; all but one are ties. */
static float ties_by_one(int64_t i) {
    return i == 0 ? 127 : (float)(i % 61 - 30) + 0.5f;
}

static void stored_in_layout(check_t *c, uint32_t layout, uint32_t dtype) {
    static kit_result_t result;
    kit_case_t k;
    if (!check_plain_case(c, &k) || k.problem.role != ATTN_ROLE_DECODER) {
        check_skip(c, "not a decoder backend");
        return;
    }
    k.problem.dtype = dtype;
    k.problem.kv_cache_dtype = c->arg;
    k.problem.kv_layout = layout;
    k.seed += 10 * dtype + layout;                                         /* other scales */
    if (c->can.features & ATTN_F_BLOCK_STRIDE) k.flags |= KIT_CROSS_LAYER; /* blocks lie three pages apart */
    if (attn_kv_has_static_scales(c->arg)) k.amplitude = 3;
    check_fit_size(c, &k);
    check_running(c, &k);
    if (!check_is_served(c, &k)) {
        check_skip(c, "supports_combination refuses the plain case with it");
        return;
    }
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL) return;
    const kit_sizes_t z = kit_sizes(&k.problem);
    /* by 1 nothing moves a tie, of which numbers of 16 bits have many: then every bit counts */
    const int is_exact = dtype != ATTN_DTYPE_FLOAT32 && layout == ATTN_LAYOUT_HND &&
                         (c->arg == ATTN_KV_FP8_E4M3 || c->arg == ATTN_KV_FP8_E5M2);
    for (int64_t i = 0; is_exact && i < in->num_scales; i++)
        in->k_scale[i] = in->v_scale[i] = 1;
    for (int64_t i = 5; i < in->num_keys * z.kv_heads * z.key; i += 37)
        in->key[i] = -0.0f;
    for (int64_t i = 7; i < in->num_keys * z.kv_heads * z.value; i += 37)
        in->value[i] = -0.0f;
    if (is_inline(c->arg)) { /* a row of zeros, which has a scale too, and one with NaN in it */
        memset(in->key, 0, (size_t)z.key * sizeof *in->key);
        memset(in->value, 0, (size_t)z.value * sizeof *in->value);
        in->key[z.kv_heads * z.key + 1] = in->value[z.kv_heads * z.value + 1] = NAN;
    }
    const int is_int8 = c->arg == ATTN_KV_INT8_PER_TOKEN_HEAD;
    for (int64_t i = 0; (is_int8 || attn_kv_rounds_query(c->arg)) && i < z.kv_heads * z.key; i++)
        in->key[2 * z.kv_heads * z.key + i] = ties_by_one(i % z.key);
    for (int64_t i = 0; is_int8 && i < z.kv_heads * z.value; i++)
        in->value[2 * z.kv_heads * z.value + i] = ties_by_one(i % z.value);
    int status = kit_run_open(&run, c->backend, &k, in, c->memory, &result);
    if (status == ATTN_OK) status = kit_run_fill(&run);
    const int is_packed = run.shape.ndim == 4 && run.shape.axes[1] == ATTN_AXIS_HEAD &&
                          run.shape.axes[3] == ATTN_AXIS_CONTENT &&
                          (run.shape.k_scale_offset < 0) == !is_inline(c->arg);
    if (status == ATTN_OK && !(attn_kv_is_whole_page(c->arg) ? has_plain_page(&k) : is_packed)) {
        check_skip(c, "its pages have a layout of their own");
        return;
    }
    if (status == ATTN_OK) status = kit_run_update(&run);
    if (status == ATTN_OK) status = c->memory->sync(c->memory->ctx);
    if (status != ATTN_OK)
        check_fail(c, "%s: %d, %s", result.operation, status, result.error.text);
    else if (c->can.forward_writes_cache != 0)
        check_skip(c, "forward writes the cache");
    else if (!kit_tensor_fetch(&run.all, run.cache))
        compare_cache(c, &k, in);
    kit_run_close(&run);
    kit_inputs_free(in);
}

/* In both orders of a page: one that is read as it was written, and both the wrong way, gives right numbers;
 * and of every element type. */
static void stored_bits(check_t *c) {
    for (uint32_t d = ATTN_DTYPE_FLOAT32; d <= ATTN_DTYPE_BFLOAT16; d++)
        for (uint32_t layout = ATTN_LAYOUT_NHD; layout <= ATTN_LAYOUT_HND && !c->report->is_failed; layout++)
            if ((c->can.dtypes & ATTN_BIT(d)) &&
                (c->can.required_layout == 0 || c->can.required_layout == layout))
                stored_in_layout(c, layout, d);
    if (c->report->num_cases > 0 && !c->report->is_failed) c->report->is_skipped = 0;
}

/* Values at the lower end of an 8-bit format, the same behind every key: they are the output, whatever the
 * weights, and not 0. */
static void subnormals(check_t *c) {
    kit_case_t k;
    kit_result_t got;
    if (!check_plain_case(c, &k) || k.problem.role != ATTN_ROLE_DECODER) {
        check_skip(c, "not a decoder backend");
        return;
    }
    k.problem.kv_cache_dtype = c->arg;
    k.flags |= KIT_NO_SCALES;
    check_fit_size(c, &k);
    if (!check_is_served(c, &k)) {
        check_skip(c, "supports_combination refuses the plain case with it");
        return;
    }
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL) return;
    const kit_sizes_t z = kit_sizes(&k.problem);
    const int is_e4m3 = attn_kv_storage(c->arg, k.problem.dtype) == ATTN_DTYPE_FP8_E4M3;
    const int64_t width = z.kv_heads * z.value;
    const double least = is_e4m3 ? 0x1p-9 : 0x1p-16;
    for (int64_t i = 0; i < in->num_keys * width; i++)
        in->value[i] = (float)(least * (double)(1 + i % width % (is_e4m3 ? 7 : 3)));
    if (check_run_alone(c, c->backend, &k, in, c->memory, &got)) {
        for (int64_t i = 0; i < got.num_out && !c->report->is_failed; i++) {
            const int64_t head = i / z.output % z.heads / (z.heads / z.kv_heads);
            const double want = (double)in->value[head * z.value + i % z.output];
            if (!(fabs(got.out[i] - want) <= 0.12 * want))
                check_fail(c, "every key has the value %.6g, a subnormal of %s; output %lld is %.6g", want,
                           attn_kv_name(c->arg), (long long)i, got.out[i]);
        }
        c->report->num_cases++;
        kit_result_free(&got);
    }
    kit_inputs_free(in);
}

/* Of a row with one key the output is its value as stored: which code a value gets shows there, however
 * pages lie. */
static void read_back(check_t *c) {
    static kit_case_t k;
    kit_result_t got, want;
    if (!check_start_decoder(c, &k)) return;
    k.problem.kv_cache_dtype = c->arg;
    if (c->can.dtypes & ATTN_BIT(ATTN_DTYPE_FLOAT32)) k.problem.dtype = ATTN_DTYPE_FLOAT32;
    k.problem.max_num_seqs = 40;
    check_fit_size(c, &k);
    for (int r = 0; r < 40; r++)
        kit_case_add(&k, 1, 1);
    if (!check_is_served(c, &k)) {
        check_skip(c, "supports_combination refuses the plain case with it");
        return;
    }
    kit_inputs_t *in = kit_inputs_make(&k);
    if (in == NULL) return;
    const kit_sizes_t z = kit_sizes(&k.problem);
    const int64_t width = z.kv_heads * z.value;
    for (int64_t i = 0; is_inline(c->arg) && i < 10 * width; i++)
        in->value[i] = ties_by_one(i % z.value) * (i / width % 2 == 0 ? 1 : 0.25F);
    check_running(c, &k);
    if (kit_run_oracle(&kit_oracle, &k, in, &want) != ATTN_OK) {
        check_fail(c, "the oracle failed");
        return;
    }
    if (check_run_alone(c, c->backend, &k, in, c->memory, &got)) {
        for (int64_t row = 0; row < got.num_out / z.output && !c->report->is_failed; row++) {
            double largest = 0;
            for (int64_t i = row * z.output; i < (row + 1) * z.output; i++)
                largest = fmax(largest, fabs(want.out[i]));
            for (int64_t i = row * z.output; i < (row + 1) * z.output && !c->report->is_failed; i++)
                if (!(fabs(got.out[i] - want.out[i]) <= 1e-3 * largest + 5e-3 * fabs(want.out[i])))
                    check_fail(c,
                               "a row with one key: output %lld is %.9g, its value in a cache of %s is %.9g: "
                               "another code",
                               (long long)i, got.out[i], attn_kv_name(c->arg), want.out[i]);
        }
        c->report->num_cases++;
        kit_result_free(&got);
    }
    kit_result_free(&want);
    kit_inputs_free(in);
}

/* Tensors of type uint8 stand for every format of 8 bits. */
static const DLTensor *as_bytes(const DLTensor *t, DLTensor *copy) {
    if (t == NULL || t->dtype.bits != 8) return t;
    *copy = *t;
    copy->dtype = attn_dl_dtype(ATTN_DTYPE_UINT8);
    return copy;
}
static int update_bytes(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                        attn_error_t *error) {
    attn_kv_update_t a = *args;
    DLTensor copies[2];
    a.kv_cache = as_bytes(a.kv_cache, &copies[0]);
    a.v_cache = as_bytes(a.v_cache, &copies[1]);
    return shim_target()->ops->update_kv_cache(instance, &a, stream, error);
}
static int forward_bytes(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space,
                         void *stream, attn_error_t *error) {
    attn_forward_t a = *args;
    DLTensor copies[2];
    a.kv_cache = as_bytes(a.kv_cache, &copies[0]);
    a.v_cache = as_bytes(a.v_cache, &copies[1]);
    return shim_target()->ops->forward(instance, &a, space, stream, error);
}
static const attn_backend_ops_t bytes_ops = {.update_kv_cache = update_bytes, .forward = forward_bytes};

static void cache_as_bytes(check_t *c) {
    kit_case_t k;
    if (!check_start_decoder(c, &k)) return;
    k.problem.kv_cache_dtype = c->arg;
    check_fit_size(c, &k);
    kit_case_add(&k, 1, 40);
    kit_case_add(&k, 5, 20);
    check_run(c, shim_make(c->backend, &bytes_ops), &k, NULL);
    if (c->report->num_cases == 0) check_skip(c, "supports_combination refuses the plain case with it");
}

void check_stored_list(check_list_t *list, const check_t *c) {
    /* formats whose stored element is the value itself, or the value divided by a scale of the call; and
     * those with scales apart */
    const uint64_t formats = c->can.kv_cache_dtypes & attn_kv_formats_of(ATTN_BIT(ATTN_ROLE_DECODER));
    for (uint32_t kv = 1; kv < ATTN_KV_COUNT_ && (c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER)); kv++)
        if ((formats & ATTN_BIT(kv)) &&
            ((attn_kv_format(kv)->k_bits == 0 && attn_kv_format(kv)->scale <= ATTN_KV_SCALE_STATIC) ||
             attn_kv_is_whole_page(kv) || is_inline(kv)))
            check_add(list, "numerics", 1, stored_bits, kv, "bits in a cache of %s", attn_kv_name(kv));
    for (uint32_t kv = 1; kv < ATTN_KV_COUNT_ && (c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER)); kv++) {
        if (!(formats & ATTN_BIT(kv))) continue;
        if (attn_kv_format(kv)->k_bits != 0 || attn_kv_format(kv)->scale != 0)
            check_add(list, "numerics", CHECK_RUNS_ON_CPU, read_back, kv, "codes of one key in a cache of %s",
                      attn_kv_name(kv));
        if (kv == ATTN_KV_FP8_E4M3 || kv == ATTN_KV_FP8_E5M2)
            check_add(list, "numerics", 1, cache_as_bytes, kv, "a cache of %s as uint8", attn_kv_name(kv));
    }
    for (uint32_t kv = 1; kv < ATTN_KV_COUNT_ && (c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER)); kv++)
        if ((formats & ATTN_BIT(kv)) && (kv == ATTN_KV_FP8_E4M3 || kv == ATTN_KV_FP8_E5M2))
            check_add(list, "numerics", 1, subnormals, kv, "subnormal values in a cache of %s",
                      attn_kv_name(kv));
}
