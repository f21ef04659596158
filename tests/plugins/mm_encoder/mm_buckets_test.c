/* SPDX-License-Identifier: Apache-2.0 */
/* A tiny vision tower of real head shape (two heads of 80) end to end on the reference plugin: a fused QKV
 * projection whose parts are read in place, a layer over windows and one over whole images (Qwen2.5-VL's two
 * kinds), output projection and residual, against the same tower written down plainly in double. */
#include "mm_encoder_setup.h"

enum { HEADS = 2, D = 80, HIDDEN = HEADS * D, LAYERS = 2 };

static const int32_t windows[6] = {0, 16, 32, 41, 57, 64}, whole[3] = {0, 41, 64};
static attn_error_t error = {.struct_size = sizeof error};

struct weights {
    float qkv[3 * HIDDEN][HIDDEN], out[HIDDEN][HIDDEN];
};
static struct weights tower[LAYERS];

static double next(uint64_t *s) {
    *s = *s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*s >> 33) / 1073741824.0 - 1.0;
}

/* softmax(q k^T / sqrt(d)) v over the tokens of each sequence */
static void attend_plainly(const double (*qkv)[3 * HIDDEN], const int32_t *cu, int n, double (*out)[HIDDEN]) {
    for (int r = 0; r < n; r++)
        for (int i = cu[r]; i < cu[r + 1]; i++)
            for (int h = 0; h < HEADS; h++) {
                double p[MM_ROWS], sum = 0;
                for (int j = cu[r]; j < cu[r + 1]; j++) {
                    double s = 0;
                    for (int c = 0; c < D; c++)
                        s += qkv[i][h * D + c] * qkv[j][HIDDEN + h * D + c];
                    sum += p[j] = exp(s / sqrt(D));
                }
                for (int c = 0; c < D; c++) {
                    double x = 0;
                    for (int j = cu[r]; j < cu[r + 1]; j++)
                        x += p[j] / sum * qkv[j][2 * HIDDEN + h * D + c];
                    out[i][h * D + c] = x;
                }
            }
}

static double (*plain_tower(const double (*input)[HIDDEN]))[HIDDEN] {
    static double x[MM_ROWS][HIDDEN], qkv[MM_ROWS][3 * HIDDEN], y[MM_ROWS][HIDDEN];
    memcpy(x, input, sizeof x);
    for (int l = 0; l < LAYERS; l++) {
        for (int t = 0; t < whole[2]; t++)
            for (int i = 0; i < 3 * HIDDEN; i++) {
                qkv[t][i] = 0;
                for (int j = 0; j < HIDDEN; j++)
                    qkv[t][i] += (double)tower[l].qkv[i][j] * x[t][j];
            }
        attend_plainly((const double(*)[3 * HIDDEN]) qkv, l == 0 ? windows : whole, l == 0 ? 5 : 2, y);
        for (int t = 0; t < whole[2]; t++)
            for (int i = 0; i < HIDDEN; i++)
                for (int j = 0; j < HIDDEN; j++)
                    x[t][i] += (double)tower[l].out[i][j] * y[t][j];
    }
    return x;
}

/* The same through the library: one group for both layers, as they are one problem. */
static int run_tower(attn_context_t *context, float (*x)[HIDDEN]) {
    mm_layer_t l;
    mm_open(&l, context, HEADS, D, 0);
    int code = ATTN_OK;
    for (int i = 0; i < LAYERS && code == ATTN_OK; i++) {
        char name[64];
        snprintf(name, sizeof name, "visual.blocks.%d.attn", i);
        code = attn_layer_create(l.group, name, NULL, &l.layer, &error);
        if (code == ATTN_OK) code = mm_build(&l, i == 0 ? windows : whole, i == 0 ? 5 : 2, 0, &error);
        for (int t = 0; t < whole[2]; t++)
            for (int o = 0; o < 3 * HIDDEN; o++) {
                double s = 0;
                for (int j = 0; j < HIDDEN; j++)
                    s += (double)(tower[i].qkv[o][j] * x[t][j]);
                l.qkv[t * 3 * HIDDEN + o] = (float)s;
            }
        for (int t = whole[2]; t < MM_ROWS; t++) /* rows that belong to nobody */
            for (int o = 0; o < 3 * HIDDEN; o++)
                l.qkv[t * 3 * HIDDEN + o] = NAN;
        if (code == ATTN_OK) code = mm_forward(&l, &error);
        for (int t = 0; t < whole[2]; t++)
            for (int o = 0; o < HIDDEN; o++)
                for (int j = 0; j < HIDDEN; j++)
                    x[t][o] += tower[i].out[o][j] * l.out[t * HIDDEN + j];
        ok(code == ATTN_OK && attn_layer_kind(l.layer) == ATTN_LAYER_MM_ENCODER,
           "layer %d is a %s and runs (%s)", i, attn_layer_kind_name(attn_layer_kind(l.layer)),
           code ? error.text : "no error");
        attn_layer_destroy(l.layer);
        l.layer = NULL;
    }
    mm_close(&l);
    return code;
}

int main(void) {
    static float x[MM_ROWS][HIDDEN];
    static double input[MM_ROWS][HIDDEN];
    uint64_t s = tap_seed();
    for (int t = 0; t < MM_ROWS; t++)
        for (int i = 0; i < HIDDEN; i++)
            input[t][i] = (double)(x[t][i] = (float)next(&s));
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < HIDDEN; i++)
            for (int j = 0; j < HIDDEN; j++) {
                for (int part = 0; part < 3; part++)
                    tower[l].qkv[part * HIDDEN + i][j] = (float)(next(&s) / 4);
                tower[l].out[i][j] = (float)(next(&s) / 16);
            }
    attn_context_t *context = mm_context("");
    int code = run_tower(context, x);
    const double(*want)[HIDDEN] = (const double(*)[HIDDEN])plain_tower((const double(*)[HIDDEN])input);
    double worst = 0, changed = 0;
    for (int t = 0; t < whole[2]; t++)
        for (int i = 0; i < HIDDEN; i++) {
            worst = fmax(worst, fabs(want[t][i] - (double)x[t][i]));
            changed = fmax(changed, fabs(want[t][i] - input[t][i]));
        }
    ok(code == ATTN_OK && worst < 2e-5 && changed > 0.01,
       "two layers, windows then whole images: %.1e from the plain tower", worst);
    attn_context_destroy(context);
    return tap_done();
}
