/* SPDX-License-Identifier: Apache-2.0 */
/* case_output.c: scales of quantised outputs (semantics 7.7): a tensor for each way in which they may lie,
 * what must not be written in it, and the values that an output stands for. */
#include "case_output.h"

#include <attn/attn_plugin_util.h>

#include <math.h>
#include <string.h>

enum { FLOATS, BYTES, WORDS, TILES };

static int is_fp4(const kit_run_t *x) {
    return (x->c->problem.features & ATTN_F_OUT_NVFP4) != 0;
}
static int64_t width_of(const kit_run_t *x) {
    return x->z.heads * x->z.output;
}
static int64_t group_of(const kit_run_t *x) {
    return is_fp4(x) ? 16 : width_of(x) % 128 == 0 ? 128 : 64;
}

/* The flags of a case say how its rows lie, and of the scales take each way in turn. */
static int form_of(const kit_run_t *x) {
    const int is_strided = (x->c->flags & KIT_STRIDED) != 0, by_heads = (x->c->flags & KIT_HEADS_FIRST) != 0;
    if (is_fp4(x)) return is_strided || by_heads ? BYTES : TILES;
    if ((x->c->problem.features & ATTN_F_OUT_SCALE_UE8M0) == 0 || is_strided) return FLOATS;
    return by_heads && group_of(x) == 128 ? WORDS : BYTES;
}

int kit_output_scales_make(kit_run_t *x, int64_t rows) {
    if ((x->c->problem.features & (ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4)) == 0) return ATTN_OK;
    const int form = form_of(x);
    const int64_t groups = width_of(x) / group_of(x), columns = form == WORDS ? (groups + 3) / 4 : groups;
    const int64_t tiles[5] = {(rows + 127) / 128, (groups + 3) / 4, 32, 4, 4}, plain[2] = {rows, columns};
    /* by columns, of a multiple of 4 rows, as consumers of fp8 rows want them; or rows with a gap */
    const int64_t by_column[2] = {1, (rows + 3) / 4 * 4}, gaps[2] = {columns + 3, 1};
    x->block_scale = kit_tensor_make(&x->all, "output_block_scale",
                                     form == FLOATS  ? ATTN_DTYPE_FLOAT32
                                     : form == WORDS ? ATTN_DTYPE_INT32
                                     : is_fp4(x)     ? ATTN_DTYPE_FP8_E4M3
                                                     : ATTN_DTYPE_UINT8,
                                     form == TILES ? 5 : 2, form == TILES ? tiles : plain,
                                     form == TILES                          ? NULL
                                     : (x->c->flags & KIT_HEADS_FIRST) != 0 ? by_column
                                     : (x->c->flags & KIT_STRIDED) != 0     ? gaps
                                                                            : NULL,
                                     0);
    return kit_tensor_send(&x->all, x->block_scale);
}

static const unsigned char *place(kit_run_t *x, int64_t token, int64_t group) {
    kit_tensor_t *t = x->block_scale;
    switch (form_of(x)) {
    case TILES:
        return kit_tensor_at(t, token / 128, group / 4) + token % 32 * 16 + token / 32 % 4 * 4 + group % 4;
    case WORDS:
        return kit_tensor_at(t, token, group / 4) + group % 4;
    default:
        return kit_tensor_at(t, token, group);
    }
}

int64_t kit_output_scales_damage(kit_run_t *x) {
    const int64_t tokens = x->in->num_tokens, groups = width_of(x) / group_of(x);
    const int form = form_of(x);
    const int64_t rows = form == TILES ? x->block_scale->shape[0] * 128 : tokens;
    const int64_t found =
        kit_tensor_damage(x->block_scale, 0, form == TILES ? x->block_scale->shape[0] : tokens);
    if (found >= 0 || form == FLOATS || form == BYTES) return found;
    for (int64_t t = 0; t < rows;
         t++) /* places behind the groups are 0, tokens behind the batch's untouched */
        for (int64_t g = t < tokens ? groups : 0; g < (groups + 3) / 4 * 4; g++)
            if (*place(x, t, g) != (t < tokens ? 0 : KIT_CANARY)) return place(x, t, g) - place(x, 0, 0);
    return -1;
}

/* Of what the value is divided by, in double. */
static double scale_at(kit_run_t *x, int64_t token, int64_t group) {
    const unsigned char *at = place(x, token, group);
    float scale;
    if (is_fp4(x)) return attn_from_e4m3(*at) * (double)x->in->output_scale;
    if (form_of(x) != FLOATS) return *at == 255 ? NAN : ldexp(1, *at - 127);
    memcpy(&scale, at, sizeof scale);
    return (double)scale;
}

void kit_output_load(kit_run_t *x, int64_t token, int64_t head, double *out, double *unit) {
    const unsigned char *row = kit_tensor_at(x->output, token, head);
    for (int64_t e = 0; e < x->z.output; e++) {
        const double scale = x->block_scale != NULL
                                 ? scale_at(x, token, (head * x->z.output + e) / group_of(x))
                                 : (double)x->in->output_scale;
        out[e] = scale * (is_fp4(x) ? attn_from_e2m1(row[e / 2] >> e % 2 * 4 & 15) : attn_from_e4m3(row[e]));
        if (unit != NULL) unit[e] = scale;
    }
}
