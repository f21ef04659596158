/* SPDX-License-Identifier: Apache-2.0 */
/* Calibrations of V's channels (semantics 3.8): the largest magnitudes over calls, the scales that follow,
 * and files that are no calibration. */
#include <attn/attn_calibration.h>
#include <attn/attn_plugin_util.h>

#include "tests/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static attn_error_t error = {.struct_size = sizeof error};
static char path[4200], other[4200];

typedef struct values {
    DLTensor t;
    int64_t shape[3], strides[3];
} values_t;

static const DLTensor *values(values_t *v, void *data, uint32_t dtype, int ndim, int64_t a, int64_t b,
                              int64_t c) {
    *v = (values_t){.shape = {a, b, c}, .strides = {ndim == 3 ? b * c : b, ndim == 3 ? c : 1, 1}};
    v->t = (DLTensor){.data = data,
                      .device = {kDLCPU, 0},
                      .ndim = ndim,
                      .dtype = attn_dl_dtype(dtype),
                      .shape = v->shape,
                      .strides = v->strides};
    return &v->t;
}

#define BAD(CALL, CODE, TEXT, NAME)                                                                          \
    do {                                                                                                     \
        error.text[0] = '\0';                                                                                \
        const int code_ = (CALL);                                                                            \
        if (!ok(code_ == (CODE) && strstr(error.text, TEXT) != NULL, "%s", NAME))                            \
            diag("code %d, text '%s'", code_, error.text);                                                   \
    } while (0)

static void write_text(const char *name, const char *text) {
    FILE *f = fopen(name, "w");
    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0) bail_out("cannot write %s", name);
}

/* Random values in pieces, of three dtypes, against a plain loop. */
static void test_largest(uint64_t *rng) {
    enum { TOKENS = 40, HEADS = 3, SIZE = 7 };
    static float x[TOKENS][HEADS][SIZE], scales[HEADS][SIZE];
    static uint16_t half[TOKENS][HEADS][SIZE];
    attn_calibration_t *c = NULL;
    values_t v;
    int wrong = 0;
    float *all = &x[0][0][0];
    uint16_t *halves = &half[0][0][0];
    is_int(attn_calibration_create(&c, &error), ATTN_OK, "an empty one");
    for (int i = 0; i < TOKENS * HEADS * SIZE; i++)
        all[i] = (float)attn_from_bf16(attn_to_bf16(tap_rand_normal(rng) * (i % SIZE == 2 ? 100 : 1)));
    x[3][0][1] = NAN, x[4][1][1] = -INFINITY;
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HEADS; h++) {
            x[t][h][5] = 0; /* a channel of zeros */
            if (h == 2) memset(x[t][h], 0, sizeof x[t][h]);
        }
    for (int i = 0; i < TOKENS * HEADS * SIZE; i++)
        halves[i] = attn_to_bf16((double)all[i]);
    attn_calibration_add(c, "a", values(&v, x, ATTN_DTYPE_FLOAT32, 3, 11, HEADS, SIZE), 11, &error);
    attn_calibration_add(c, "b", values(&v, x, ATTN_DTYPE_FLOAT32, 3, 1, HEADS, SIZE), 0, &error);
    attn_calibration_add(c, "a", values(&v, half[11], ATTN_DTYPE_BFLOAT16, 3, TOKENS - 11, HEADS, SIZE),
                         TOKENS - 12, &error); /* the last row does not count */
    x[TOKENS - 1][0][0] = 0, x[TOKENS - 1][0][2] = 0;
    is_int(
        attn_calibration_scales(
            c, "a", (DLTensor *)(uintptr_t)values(&v, scales, ATTN_DTYPE_FLOAT32, 2, HEADS, SIZE, 0), &error),
        ATTN_OK, "scales");
    for (int h = 0; h < HEADS; h++) {
        float most[SIZE] = {0}, head = 0;
        for (int d = 0; d < SIZE; d++) {
            for (int t = 0; t < TOKENS - 1; t++)
                if (isfinite(x[t][h][d])) most[d] = fmaxf(most[d], fabsf(x[t][h][d]));
            head = fmaxf(head, most[d]);
        }
        for (int d = 0; d < SIZE; d++)
            wrong += scales[h][d] != (h == 2 ? 1.0f : (d == 5 ? head : most[d]) / 127.0f);
    }
    is_int(wrong, 0, "max / 127 by channel; zeros as their head, heads of zeros 1");
    attn_calibration_layer_t l = {.struct_size = sizeof l};
    attn_calibration_layer(c, 0, &l, &error);
    ok(attn_calibration_num_layers(c) == 2 && strcmp(l.name, "a") == 0 && l.tokens == TOKENS - 1 &&
           l.num_kv_heads == HEADS && l.head_size_v == SIZE,
       "what is known of a layer");
    BAD(attn_calibration_layer(c, 2, &l, &error), ATTN_E_NOT_FOUND, "2 layers", "a layer beyond the last");

    /* through a file, and on */
    attn_calibration_t *again = NULL;
    static float twice[HEADS][SIZE];
    is_int(attn_calibration_save(c, path, &error), ATTN_OK, "saved");
    is_int(attn_calibration_load(path, &again, &error), ATTN_OK, "loaded");
    attn_calibration_scales(
        again, "a", (DLTensor *)(uintptr_t)values(&v, twice, ATTN_DTYPE_FLOAT32, 2, HEADS, SIZE, 0), &error);
    ok(memcmp(scales, twice, sizeof scales) == 0, "every bit is there");
    attn_calibration_add(again, "a", values(&v, x, ATTN_DTYPE_FLOAT32, 3, 5, HEADS, SIZE), 5, &error);
    attn_calibration_layer(again, 0, &l, &error);
    is_int((int)l.tokens, TOKENS + 4, "tokens go on counting");
    BAD(attn_calibration_add(again, "a", values(&v, x, ATTN_DTYPE_FLOAT32, 3, 5, HEADS, SIZE - 1), 5, &error),
        ATTN_E_INVALID, "two models", "another head size");
    BAD(attn_calibration_add(again, "a", values(&v, x, ATTN_DTYPE_FLOAT32, 3, 5, HEADS, SIZE), 6, &error),
        ATTN_E_INVALID, "5 rows", "more tokens than rows");
    BAD(attn_calibration_add(again, "a", values(&v, x, ATTN_DTYPE_FP8_E4M3, 3, 5, HEADS, SIZE), 5, &error),
        ATTN_E_INVALID, "fp8_e4m3", "quantised values");
    BAD(attn_calibration_add(again, "", values(&v, x, ATTN_DTYPE_FLOAT32, 3, 5, HEADS, SIZE), 5, &error),
        ATTN_E_INVALID, "empty", "no name");
    BAD(attn_calibration_scales(again, "aa", NULL, &error), ATTN_E_NOT_FOUND, "attn calibrate",
        "no such layer");
    BAD(attn_calibration_scales(
            again, "a", (DLTensor *)(uintptr_t)values(&v, twice, ATTN_DTYPE_FLOAT32, 2, HEADS, SIZE + 1, 0),
            &error),
        ATTN_E_INVALID, "expected 7", "a tensor of another shape");
    is_int(attn_calibration_save(again, path, &error), ATTN_OK, "a second file takes the place of the first");
    attn_calibration_destroy(again);
    attn_calibration_destroy(c);
}

/* A good file cut at every place is refused by name, and so is what only looks like one. */
static void test_files(void) {
    static const char good[] =
        "{\"format\": \"attn-calibration/1\", \"layers\": {\"a\": {\"tokens\": 3, \"v_max\": "
        "[[1, 2.5], [0, 4]]}}}";
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "cut short"},
        {"[1, 2]", "is no calibration"},
        {"{\"layers\": {}}", "\"format\" is not there"},
        {"{\"format\": \"attn-tune/1\", \"layers\": {}}", "attn-tune/1"},
        {"{\"format\": \"attn-calibration/1\", \"layers\": []}", "is no calibration"},
        {"{\"format\": \"attn-calibration/1\", \"layers\": {\"a\": 3}}", "layer 'a'"},
        {"{\"format\": \"attn-calibration/1\", \"layers\": {\"a\": {\"tokens\": -1, \"v_max\": [[1]]}}}",
         "layer 'a'"},
        {"{\"format\": \"attn-calibration/1\", \"layers\": {\"a\": {\"tokens\": 1, \"v_max\": []}}}",
         "layer 'a'"},
        {"{\"format\": \"attn-calibration/1\", \"layers\": {\"a\": {\"tokens\": 1, \"v_max\": [[1, 2], "
         "[3]]}}}",
         "expected 2 as for head 0"},
        {"{\"format\": \"attn-calibration/1\", \"layers\": {\"a\": {\"tokens\": 1, \"v_max\": [[1, -2]]}}}",
         "v_max[0][1] is no magnitude"},
        {"{\"format\": \"attn-calibration/1\", \"layers\": {\"a\": {\"tokens\": 1, \"v_max\": [[1, "
         "\"2\"]]}}}",
         "v_max[0][1] is no magnitude"},
        {"{\"format\": \"attn-calibration/1\", \"layers\": {\"a\": {\"tokens\": 1, \"v_max\": [[1e300]]}}}",
         "v_max[0][0] is no magnitude"}};
    attn_calibration_t *c = NULL;
    char text[sizeof good];
    int accepted = 0, silent = 0;
    write_text(path, good);
    is_int(attn_calibration_load(path, &c, &error), ATTN_OK, "a file by hand");
    attn_calibration_destroy(c);
    c = NULL;
    for (size_t n = 0; n < sizeof good - 1; n++) {
        memcpy(text, good, n);
        text[n] = '\0';
        write_text(other, text);
        error.text[0] = '\0';
        accepted += attn_calibration_load(other, &c, &error) != ATTN_E_PARSE;
        silent += strstr(error.text, other) == NULL;
    }
    ok(accepted == 0 && silent == 0 && c == NULL, "cut at every place it is refused, and the file named");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_text(other, bad[i].text);
        BAD(attn_calibration_load(other, &c, &error), ATTN_E_PARSE, bad[i].says, bad[i].says);
    }
    BAD(attn_calibration_load("/no/such/file", &c, &error), ATTN_E_IO, "No such file", "no file");
    BAD(attn_calibration_load("/dev/zero", &c, &error), ATTN_E_IO, "regular file",
        "a device that never ends");
    unlink(other);
    if (mkfifo(other, 0600) != 0) bail_out("no pipe");
    BAD(attn_calibration_load(other, &c, &error), ATTN_E_IO, "regular file", "a pipe nobody writes to");
    attn_calibration_create(&c, &error);
    BAD(attn_calibration_save(c, other, &error), ATTN_E_IO, "regular file", "a pipe is not replaced");
    BAD(attn_calibration_save(c, "/no/such/folder/file", &error), ATTN_E_IO, "No such file", "no folder");
    attn_calibration_destroy(c);
    attn_calibration_destroy(NULL);
}

int main(void) {
    uint64_t rng = tap_seed();
    char folder[] = "/tmp/attn-calibration.XXXXXX";
    if (mkdtemp(folder) == NULL) bail_out("no folder for the test");
    snprintf(path, sizeof path, "%s/a.json", folder);
    snprintf(other, sizeof other, "%s/b.json", folder);
    test_largest(&rng);
    test_files();
    unlink(path);
    unlink(other);
    rmdir(folder);
    return tap_done();
}
