/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised outputs of CPU_ATTN (semantics 7.7) beside its own plain ones: groups that cross heads, scales
 * laid out by rows, by columns and by columns padded for TMA, values at the ends of e4m3, what is refused. */
#include "cpu_instance.h"
#include "../../tap.h"

#include <math.h>

enum { TOKENS = 37, HEADS = 8, SIZE = 40, WIDTH = HEADS * SIZE, MAX_GROUPS = WIDTH / 64, PADDED = 40 };

static attn_problem_t encoder(uint32_t dtype, uint64_t feature) {
    ATTN_INIT(attn_problem_t, p);
    p.role = ATTN_ROLE_ENCODER_ONLY;
    p.mask = ATTN_MASK_FULL;
    p.dtype = dtype;
    p.num_heads = HEADS;
    p.head_size = SIZE;
    p.scale = 0.2;
    p.features = feature;
    if (feature != 0) p.out_dtype = ATTN_DTYPE_FP8_E4M3;
    if (feature == ATTN_F_OUT_NVFP4) p.out_dtype = ATTN_DTYPE_UINT8;
    return p;
}

static DLTensor rows(void *data, uint32_t dtype, int64_t *shape, int64_t *strides) {
    shape[0] = TOKENS, shape[1] = HEADS, shape[2] = SIZE;
    strides[0] = WIDTH, strides[1] = SIZE, strides[2] = 1;
    return (DLTensor){.data = data,
                      .device = {kDLCPU, 0},
                      .ndim = 3,
                      .dtype = attn_dl_dtype(dtype),
                      .shape = shape,
                      .strides = strides};
}

/* One call with output and scales of `f`. */
static int call(const attn_problem_t *p, float *q, float *v, attn_forward_t f, attn_error_t *error) {
    const int32_t start[3] = {0, 30, TOKENS}, len[2] = {30, TOKENS - 30};
    int64_t s1[6], s2[6];
    attn_instance_t *in = NULL;
    DLTensor query = rows(q, p->dtype, s1, s1 + 3), value = rows(v, p->dtype, s2, s2 + 3);
    const attn_option_value_t o[CPU_NUM_OPTIONS] = {{.struct_size = sizeof o[0], .s = "auto"},
                                                    {.struct_size = sizeof o[0], .i = 2}};
    int status = cpu_open(p, NULL, o, CPU_NUM_OPTIONS, NULL, &in, error);
    if (status != ATTN_OK) return status;
    attn_space_needed_t need = {.struct_size = sizeof need};
    cpu_space_needed(in, &need, error);
    attn_space_t s = {.struct_size = sizeof s,
                      .metadata_bytes = need.metadata_bytes,
                      .workspace_bytes = need.workspace_bytes};
    s.metadata = aligned_alloc(64, (need.metadata_bytes + 63) & ~UINT64_C(63));
    s.workspace = aligned_alloc(64, (need.workspace_bytes + 63) & ~UINT64_C(63));
    attn_batch_t b = {.struct_size = sizeof b, .num_reqs = 2, .num_actual_tokens = TOKENS};
    b.query_start_loc_host = start;
    b.seq_lens_host = len;
    f.struct_size = sizeof f;
    f.query = f.key = &query;
    f.value = &value;
    status = cpu_build_metadata(in, &b, &s, NULL, error);
    if (status == ATTN_OK) status = cpu_forward(in, &f, &s, NULL, error);
    free(s.metadata);
    free(s.workspace);
    cpu_close(in);
    return status;
}

static float q[TOKENS * WIDTH], v[TOKENS * WIDTH], plain[TOKENS * WIDTH];
static uint8_t codes[TOKENS * WIDTH];
static attn_error_t error = {.struct_size = sizeof error};

/* Largest number of codes between what is there and e4m3(plain / scale): division in another precision may
 * end at the neighbour. */
static double worst(const float *scale, int64_t token, int64_t column, int64_t group) {
    double most = 0;
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t i = 0; i < WIDTH; i++) {
            const double x = plain[t * WIDTH + i] / (double)scale[t * token + i / group * column];
            const int have = codes[t * WIDTH + i], want = attn_to_e4m3(x);
            most = (have ^ want) & 0x80 ? fmax(most, have % 128 + want % 128) : fmax(most, abs(have - want));
        }
    return most;
}

static void groups(const attn_problem_t *p, DLTensor *out) {
    static const struct {
        const char *name;
        int64_t columns, token, column;
    } layouts[] = {{"by rows", MAX_GROUPS, MAX_GROUPS, 1},
                   {"by columns", MAX_GROUPS, 1, TOKENS},
                   {"by columns, padded to a multiple of 4 tokens", MAX_GROUPS, 1, PADDED}};
    for (int l = 0; l < 3; l++) {
        float scale[MAX_GROUPS * PADDED];
        for (int i = 0; i < MAX_GROUPS * PADDED; i++)
            scale[i] = -7;
        int64_t shape[2] = {TOKENS, layouts[l].columns}, strides[2] = {layouts[l].token, layouts[l].column};
        DLTensor t = {.data = scale, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}};
        t.shape = shape, t.strides = strides;
        is_int(call(p, q, v, (attn_forward_t){.output = out, .output_block_scale = &t}, &error), ATTN_OK,
               "groups of 64, heads of 40, scales %s: %s", layouts[l].name, error.text);
        double off = 0;
        int wild = 0;
        for (int64_t tok = 0; tok < TOKENS; tok++)
            for (int64_t g = 0; g < MAX_GROUPS; g++) {
                float top = 0;
                for (int64_t i = 0; i < 64; i++)
                    top = fmaxf(top, fabsf(plain[tok * WIDTH + g * 64 + i]));
                off = fmax(off, fabs(scale[tok * strides[0] + g * strides[1]] / (top / 448.0) - 1));
            }
        for (int i = 0; i < MAX_GROUPS * PADDED; i++)
            wild += scale[i] == -7.0F;
        ok(off < 1e-6, "a scale is the largest of its group over 448 (%.1e)", off);
        is_int(wild, MAX_GROUPS * (PADDED - TOKENS), "and nothing else is written");
        ok(worst(scale, strides[0], strides[1], 64) <= 1, "values are the nearest of e4m3, or its neighbour");
    }
    float scale[TOKENS * 10];
    int64_t shape[2] = {TOKENS, 10}, strides[2] = {10, 1};
    DLTensor t = {.data = scale, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}};
    t.shape = shape, t.strides = strides;
    is_int(call(p, q, v, (attn_forward_t){.output = out, .output_block_scale = &t}, &error), ATTN_E_INVALID,
           "groups of 32 are refused");
    is_str(error.param, "output_block_scale", "by name");
    has_str(error.text, "/ 64 or / 128", "with what was wanted");
    is_int(call(p, q, v, (attn_forward_t){.output = out}, &error), ATTN_E_INVALID, "no scales");
    has_str(error.text, "out_fp8_group needs it", "are named");
    t.dtype = (DLDataType){kDLUInt, 8, 1}, shape[1] = strides[0] = WIDTH / 128;
    is_int(call(p, q, v, (attn_forward_t){.output = out, .output_block_scale = &t}, &error), ATTN_E_INVALID,
           "scales of one byte, as ue8m0, are refused");
    is_str(error.param, "output_block_scale", "by name");
}

/* Scales of powers of two: as floats, as exponents, as four exponents in a word. */
static void powers(DLTensor *out) {
    const attn_problem_t p = encoder(ATTN_DTYPE_FLOAT32, ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_SCALE_UE8M0);
    static const struct {
        const char *name;
        DLDataType type;
    } forms[] = {{"floats", {kDLFloat, 32, 1}},
                 {"bytes", {kDLUInt, 8, 1}},
                 {"bytes of DLPack's e8m0", {ATTN_DL_FLOAT8_E8M0FNU, 8, 1}}};
    for (int f = 0; f < 3; f++) {
        float scale[MAX_GROUPS * TOKENS];
        uint8_t bytes[MAX_GROUPS * TOKENS];
        int64_t shape[2] = {TOKENS, MAX_GROUPS}, strides[2] = {1, TOKENS};
        DLTensor t = {.data = f == 0 ? (void *)scale : bytes, .device = {kDLCPU, 0}, .ndim = 2};
        t.dtype = forms[f].type, t.shape = shape, t.strides = strides;
        is_int(call(&p, q, v, (attn_forward_t){.output = out, .output_block_scale = &t}, &error), ATTN_OK,
               "powers of two as %s: %s", forms[f].name, error.text);
        int wrong = 0;
        for (int64_t tok = 0; tok < TOKENS; tok++)
            for (int64_t g = 0; g < MAX_GROUPS; g++) {
                float top = 0, *at = &scale[tok + g * TOKENS];
                for (int64_t i = 0; i < 64; i++)
                    top = fmaxf(top, fabsf(plain[tok * WIDTH + g * 64 + i]));
                if (f > 0) *at = ldexpf(1, bytes[tok + g * TOKENS] - 127);
                const float right = top / 448; /* no power of two, with these inputs */
                wrong += !(*at > right && *at < 2 * right) || log2f(*at) != rintf(log2f(*at));
            }
        is_int(wrong, 0, "each is the next above the largest of its group over 448");
        ok(worst(scale, 1, TOKENS, 64) <= 1, "values are the nearest of e4m3, or its neighbour");
    }
    int32_t words[TOKENS];
    int64_t shape[2] = {TOKENS, 1}, strides[2] = {1, TOKENS};
    DLTensor t = {.data = words, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLInt, 32, 1}};
    t.shape = shape, t.strides = strides;
    is_int(call(&p, q, v, (attn_forward_t){.output = out, .output_block_scale = &t}, &error), ATTN_E_INVALID,
           "words of groups of 128, of rows of 320");
    has_str(error.text, "four groups of 128 in a word", "are refused");
    attn_problem_t alone = encoder(ATTN_DTYPE_FLOAT32, ATTN_F_OUT_SCALE_UE8M0);
    is_int(call(&alone, q, v, (attn_forward_t){.output = out}, &error), ATTN_E_UNSUPPORTED,
           "powers of two as scales of no groups");
    is_str(error.param, "out_scale_ue8m0", "are refused by name");
}

/* The distance from x of the nearest 4-bit value times unit. */
static double nearest(double x, double unit) {
    double least = INFINITY;
    for (uint8_t c = 0; c < 16; c++)
        least = fmin(least, fabs(attn_from_e2m1(c) * unit - x));
    return least;
}

/* 4 bits: scales by rows, by columns, and in tiles of 128 tokens. */
static void four_bits(void) {
    const attn_problem_t p = encoder(ATTN_DTYPE_FLOAT32, ATTN_F_OUT_NVFP4);
    enum { GROUPS = WIDTH / 16 };
    static uint8_t pairs[TOKENS * WIDTH / 2], scales[128 * GROUPS];
    int64_t out_shape[3] = {TOKENS, HEADS, SIZE / 2}, out_strides[3] = {WIDTH / 2, SIZE / 2, 1};
    int64_t one[1] = {1}, shapes[3][5] = {{TOKENS, GROUPS}, {TOKENS, GROUPS}, {1, GROUPS / 4, 32, 4, 4}};
    int64_t strides[3][5] = {{GROUPS, 1}, {1, PADDED}, {GROUPS / 4 * 512, 512, 16, 4, 1}};
    DLTensor out = {.data = pairs, .device = {kDLCPU, 0}, .ndim = 3, .dtype = {kDLUInt, 8, 1}};
    DLTensor scale = {.device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 32, 1}};
    out.shape = out_shape, out.strides = out_strides, scale.shape = scale.strides = one;
    float tensor = 0.05F;
    scale.data = &tensor;
    for (int form = 0; form < 3; form++) {
        DLTensor t = {.data = scales, .device = {kDLCPU, 0}, .ndim = form == 2 ? 5 : 2};
        t.dtype = attn_dl_dtype(form == 1 ? ATTN_DTYPE_UINT8 : ATTN_DTYPE_FP8_E4M3);
        t.shape = shapes[form], t.strides = strides[form];
        memset(scales, 0xee, sizeof scales);
        const attn_forward_t f = {.output = &out, .output_scale = &scale, .output_block_scale = &t};
        is_int(call(&p, q, v, f, &error), ATTN_OK, "4 bits, form %d: %s", form, error.text);
        int wrong = 0, wild = 0;
        double off = 0;
        for (int64_t tok = 0; tok < TOKENS; tok++)
            for (int64_t g = 0; g < GROUPS; g++) {
                uint8_t *at = &scales[form == 0   ? tok * GROUPS + g
                                      : form == 1 ? tok + g * PADDED
                                                  : g / 4 * 512 + tok % 32 * 16 + tok / 32 * 4 + g % 4];
                double top = 0;
                for (int64_t i = g * 16; i < g * 16 + 16; i++)
                    top = fmax(top, fabs((double)plain[tok * WIDTH + i]));
                wrong += abs(*at - attn_to_e4m3(top / 6 / (double)tensor)) > 1;
                const double unit = attn_from_e4m3(*at) * (double)tensor;
                for (int64_t i = g * 16; i < g * 16 + 16; i++) {
                    const double x = (double)plain[tok * WIDTH + i],
                                 got = attn_from_e2m1(pairs[(tok * WIDTH + i) / 2] >> i % 2 * 4 & 15) * unit;
                    off = fmax(off, (fabs(got - x) - nearest(x, unit)) / unit);
                }
                *at = 0xee;
            }
        for (size_t i = 0; i < sizeof scales; i++)
            wild += scales[i] != 0xee;
        is_int(wrong, 0, "scales are the largest of 16 by 6 and by the tensor's");
        is_int(wild, 0, "and nothing else is written");
        ok(off < 1e-3, "values are the nearest (off by %.1e)", off);
    }
    DLTensor t = {.data = scales, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}};
    t.shape = shapes[0], t.strides = strides[0];
    const attn_forward_t f = {.output = &out, .output_scale = &scale, .output_block_scale = &t};
    is_int(call(&p, q, v, f, &error), ATTN_E_INVALID, "scales of float32");
    has_str(error.text, "expected fp8_e4m3", "are refused");
    t.dtype = attn_dl_dtype(ATTN_DTYPE_FP8_E4M3), shapes[0][1] = GROUPS - 1;
    is_int(call(&p, q, v, f, &error), ATTN_E_INVALID, "one group too few");
    has_str(error.text, "tiles [1, 5, 32, 4, 4]", "is refused with both shapes");
    shapes[0][1] = GROUPS, tensor = 0;
    is_int(call(&p, q, v, f, &error), ATTN_E_INVALID, "a scale of 0 for all");
    is_str(error.param, "output_scale", "is refused by name");
    const attn_forward_t without = {.output = &out, .output_block_scale = &t};
    is_int(call(&p, q, v, without, &error), ATTN_E_INVALID, "no scale for all");
    has_str(error.text, "out_nvfp4 needs it", "is named");
}

static void one_scale(const attn_problem_t *p, DLTensor *out) {
    static const float scales[] = {0.01F, 1e-6F, 1e30F}; /* usual, saturates, vanishes */
    int64_t shape[1] = {1}, strides[1] = {1};
    DLTensor t = {.device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 32, 1}};
    t.shape = shape, t.strides = strides;
    for (int i = 0; i < 3; i++) {
        float scale = scales[i];
        t.data = &scale;
        is_int(call(p, q, v, (attn_forward_t){.output = out, .output_scale = &t}, &error), ATTN_OK,
               "one scale of %g: %s", (double)scale, error.text);
        ok(worst(&scale, 0, 0, WIDTH) <= 1, "values are the nearest of e4m3, or its neighbour");
    }
    const float bad[] = {0, -1, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        float scale = bad[i];
        t.data = &scale;
        is_int(call(p, q, v, (attn_forward_t){.output = out, .output_scale = &t}, &error), ATTN_E_INVALID,
               "a scale of %g is refused", (double)bad[i]);
        is_str(error.param, "output_scale", "by name");
    }
}

int main(void) {
    uint64_t rng = tap_seed();
    int64_t s[6], s8[6];
    DLTensor f32 = rows(plain, ATTN_DTYPE_FLOAT32, s, s + 3);
    DLTensor fp8 = rows(codes, ATTN_DTYPE_FP8_E4M3, s8, s8 + 3);
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        q[i] = (float)tap_rand_normal(&rng);
        v[i] = (float)(tap_rand_normal(&rng) * (i % SIZE == 3 ? 100 : 1) + (i % SIZE == 7 ? 50 : 0));
    }
    attn_problem_t p = encoder(ATTN_DTYPE_FLOAT32, 0);
    is_int(call(&p, q, v, (attn_forward_t){.output = &f32}, &error), ATTN_OK, "the plain output: %s",
           error.text);
    p = encoder(ATTN_DTYPE_FLOAT32, ATTN_F_OUT_FP8_GROUP);
    groups(&p, &fp8);
    p = encoder(ATTN_DTYPE_FLOAT32, ATTN_F_OUT_FP8_STATIC);
    one_scale(&p, &fp8);
    powers(&fp8);
    four_bits();
    return tap_done();
}
