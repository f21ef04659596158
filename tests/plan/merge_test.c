/* SPDX-License-Identifier: Apache-2.0 */
/* Merging of states and copying of rows, against the formulas of semantics 6.5, 2.14 and 8.4 in double. */
#include "../layer/layer_testing.h"

#include <attn/attn_merge.h>

enum { T = 7, H = 3, V = 70, MOST = 5, ROWS = T + 2 };

static attn_error_t error = ERROR_INIT;
static uint64_t state;

static double uniform(void) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(state >> 33) / 1073741824.0 - 1.0;
}

/* The states as doubles and as tensors of a type; rows beyond T are NaN. */
static struct {
    double out[MOST][T][H][V], want[T][H][V], total[T][H];
    float lse[MOST][H][ROWS], sinks[H], got_lse[H][ROWS];
    _Alignas(8) unsigned char data[MOST + 1][ROWS * H * V * 8];
    struct tensor tout[MOST + 1], tlse[MOST], tsinks, tgot;
    attn_state_t states[MOST];
} w;

static double read_as(uint32_t type, const void *at, size_t i) {
    const uint16_t *half = at;
    return type == ATTN_DTYPE_FLOAT32   ? ((const float *)at)[i]
           : type == ATTN_DTYPE_FLOAT64 ? ((const double *)at)[i]
           : type == ATTN_DTYPE_FLOAT16 ? attn_from_f16(half[i])
                                        : attn_from_bf16(half[i]);
}

static double write_as(uint32_t type, void *at, size_t i, double x) {
    if (type == ATTN_DTYPE_FLOAT32) ((float *)at)[i] = (float)x;
    if (type == ATTN_DTYPE_FLOAT64) ((double *)at)[i] = x;
    if (type == ATTN_DTYPE_FLOAT16) ((uint16_t *)at)[i] = attn_to_f16(x);
    if (type == ATTN_DTYPE_BFLOAT16) ((uint16_t *)at)[i] = attn_to_bf16(x);
    return read_as(type, at, i);
}

/* n states of `type`; every third row of a state has no key, and what stands there is NaN; row 3 has none in
 * any. */
static void make_states(int n, uint32_t type) {
    for (int i = 0; i <= MOST; i++)
        for (size_t k = 0; k < ROWS * H * V; k++)
            write_as(type, w.data[i], k, NAN);
    for (int i = 0; i < n; i++) {
        for (int t = 0; t < ROWS; t++)
            for (int h = 0; h < H; h++) {
                const int empty = t == 3 || (t + h + i) % 3 == 0;
                w.lse[i][h][t] = t >= T  ? NAN
                                 : empty ? ((t + i) % 2 ? INFINITY : -INFINITY)
                                         : (float)(30 * uniform());
                for (int d = 0; d < V && t < T && !empty; d++)
                    w.out[i][t][h][d] =
                        write_as(type, w.data[i], (size_t)((t * H + h) * V + d), 4 * uniform());
            }
        w.states[i].output = tensor(&w.tout[i], w.data[i], type, 3, ROWS, H, V, 0);
        w.states[i].lse = tensor(&w.tlse[i], w.lse[i], ATTN_DTYPE_FLOAT32, 2, H, ROWS, 0, 0);
    }
    tensor(&w.tout[MOST], w.data[MOST], type, 3, ROWS, H, V, 0);
    tensor(&w.tgot, w.got_lse, ATTN_DTYPE_FLOAT32, 2, H, ROWS, 0, 0);
    tensor(&w.tsinks, w.sinks, ATTN_DTYPE_FLOAT32, 1, H, 0, 0, 0);
    for (int h = 0; h < H; h++)
        w.sinks[h] = h == 0 ? -INFINITY : (float)(20 * uniform());
}

/* The sums of 6.5, plainly: the largest first, then everything relative to it. */
static void want_merge(int n, int with_sinks) {
    for (int t = 0; t < T; t++)
        for (int h = 0; h < H; h++) {
            double top = with_sinks ? w.sinks[h] : -INFINITY, sum = 0;
            for (int i = 0; i < n; i++)
                if (!isinf(w.lse[i][h][t])) top = fmax(top, w.lse[i][h][t]);
            if (with_sinks && w.sinks[h] > -INFINITY) sum = exp(w.sinks[h] - top);
            memset(w.want[t][h], 0, sizeof w.want[t][h]);
            for (int i = 0; i < n; i++) {
                if (isinf(w.lse[i][h][t])) continue;
                const double e = exp(w.lse[i][h][t] - top);
                sum += e;
                for (int d = 0; d < V; d++)
                    w.want[t][h][d] += e * w.out[i][t][h][d];
            }
            for (int d = 0; d < V && sum > 0; d++)
                w.want[t][h][d] /= sum;
            w.total[t][h] = sum > 0 ? top + log(sum) : -INFINITY;
        }
}

static int is_close(double got, double want, double tolerance) {
    return got == want || fabs(got - want) <= tolerance * (1 + fabs(want));
}

/* Rows below T are the merge, rows beyond it untouched. */
static int count_wrong(uint32_t type, const void *data, double tolerance, int is_own) {
    int bad = 0;
    for (int t = 0; t < ROWS; t++)
        for (int h = 0; h < H; h++) {
            for (int d = 0; d < V; d++) {
                const double x = read_as(type, data, (size_t)((t * H + h) * V + d));
                bad += t < T ? !is_close(x, w.want[t][h][d], tolerance) : !is_own && !isnan(x);
            }
            if (t < T) bad += !is_close(w.got_lse[h][t], w.total[t][h], 1e-6);
        }
    return bad;
}

static void check_merges(uint32_t type, double tolerance) {
    for (int n = 1; n <= MOST; n++)
        for (int sinks = 0; sinks < 2; sinks++) {
            make_states(n, type);
            want_merge(n, sinks);
            int code = attn_merge_states(w.states, n, T, sinks ? &w.tsinks.t : NULL, &w.tout[MOST].t,
                                         &w.tgot.t, NULL, &error);
            const int bad = count_wrong(type, w.data[MOST], tolerance, 0);
            /* into its last state, LSE and all */
            const float kept = w.got_lse[1][2];
            code |= attn_merge_states(w.states, n, T, sinks ? &w.tsinks.t : NULL, w.states[n - 1].output,
                                      w.states[n - 1].lse, NULL, &error);
            const int aliased =
                count_wrong(type, w.data[n - 1], tolerance, 1) + !(kept == w.lse[n - 1][1][2]);
            ok(code == ATTN_OK && bad == 0 && aliased == 0, "%d states of %s%s (%d wrong, %d in place) %s", n,
               attn_dtype_name(type), sinks ? " with sinks" : "", bad, aliased, error.text);
        }
}

/* The weighed shares of all states sum to the merge, which is what a reduce-scatter does. */
static void check_weigh(void) {
    enum { N = 4 };
    static double sum[T][H][V];
    const DLTensor *lses[N];
    make_states(N, ATTN_DTYPE_FLOAT32);
    want_merge(N, 1);
    int code = ATTN_OK, bad = 0;
    for (int i = 0; i < N; i++)
        lses[i] = w.states[i].lse;
    for (int i = 0; i < N; i++) {
        code |= attn_merge_weigh(w.states[i].output, lses, N, i, T, &w.tsinks.t, &w.tout[MOST].t, &w.tgot.t,
                                 NULL, &error);
        for (int k = 0; k < T * H * V; k++)
            (&sum[0][0][0])[k] += read_as(ATTN_DTYPE_FLOAT32, w.data[MOST], (size_t)k);
    }
    for (int t = 0; t < T; t++)
        for (int h = 0; h < H; h++)
            for (int d = 0; d < V; d++)
                bad += !is_close(sum[t][h][d], w.want[t][h][d], 1e-6) ||
                       !is_close(w.got_lse[h][t], w.total[t][h], 1e-6);
    ok(code == ATTN_OK && bad == 0, "shares of %d states sum to the merge (%d wrong)", N, bad);
}

static void check_nan(void) {
    make_states(3, ATTN_DTYPE_FLOAT32);
    want_merge(3, 0);
    w.lse[1][2][4] = NAN;
    int code = attn_merge_states(w.states, 3, T, NULL, &w.tout[MOST].t, &w.tgot.t, NULL, &error), reached = 0,
        spared = 0;
    for (int k = 0; k < T * H * V; k++) {
        const int is_its = k / V == 4 * H + 2,
                  isn = isnan(read_as(ATTN_DTYPE_FLOAT32, w.data[MOST], (size_t)k));
        reached += is_its && isn;
        spared += !is_its && !isn;
    }
    ok(code == ATTN_OK && reached == V && isnan(w.got_lse[2][4]), "an LSE that is NaN makes its row NaN");
    is_int(spared, T * H * V - V, "and no other");
}

/* Heads of n ranks into the order of the KV heads, as strides, and a cache in fp8 as float16. */
static void check_copy(void) {
    enum { N = 3, KV = 2, G = 2, D = 5 };
    static float from[N][T][KV][G][D], to[T][KV][N][G][D];
    for (size_t i = 0; i < sizeof from / 4; i++)
        (&from[0][0][0][0][0])[i] = (float)i;
    int64_t shape[5] = {N, T, KV, G, D}, fs[5] = {T * KV * G * D, KV * G * D, G * D, D, 1};
    int64_t ts[5] = {G * D, KV * N * G * D, N * G * D, D, 1};
    DLTensor f = {.data = from,
                  .device = {kDLCPU, 0},
                  .ndim = 5,
                  .dtype = {kDLFloat, 32, 1},
                  .shape = shape,
                  .strides = fs};
    DLTensor t = f;
    t.data = to, t.strides = ts;
    int bad = attn_rows_copy(&f, NULL, &t, NULL, &error) != ATTN_OK;
    for (int r = 0; r < N; r++)
        for (int i = 0; i < T; i++)
            for (int k = 0; k < KV; k++)
                bad += memcmp(from[r][i][k], to[i][k][r], sizeof from[r][i][k]) != 0;
    is_int(bad, 0, "heads of ranks are reordered by strides");

    uint8_t cache[4][9];
    uint16_t rows[6][9];
    int64_t index[6] = {3, -1, 0, 0, 2, -5};
    float scale = 0.375f;
    struct tensor tc, tr, ti, tscale;
    for (int i = 0; i < 36; i++)
        cache[i / 9][i % 9] = attn_to_e4m3(i - 17.3);
    memset(rows, 0x11, sizeof rows);
    tensor(&tc, cache, ATTN_DTYPE_FP8_E4M3, 2, 4, 9, 0, 0);
    tensor(&tr, rows, ATTN_DTYPE_FLOAT16, 2, 6, 9, 0, 0);
    tensor(&ti, index, ATTN_DTYPE_INT64, 1, 6, 0, 0, 0);
    tensor(&tscale, &scale, ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0);
    bad = attn_rows_gather(&tc.t, &ti.t, &tscale.t, &tr.t, NULL, &error) != ATTN_OK;
    for (int i = 0; i < 6; i++)
        for (int d = 0; d < 9; d++)
            bad += rows[i][d] != (index[i] < 0 ? 0 : attn_to_f16(attn_from_e4m3(cache[index[i]][d]) * scale));
    is_int(bad, 0, "rows of an fp8 cache are gathered as float16, missing ones as zeros");

    uint16_t back[4][9];
    struct tensor tb;
    memset(back, 0x22, sizeof back);
    tensor(&tb, back, ATTN_DTYPE_FLOAT16, 2, 4, 9, 0, 0);
    index[2] = -1; /* row 0 comes from entry 3 */
    bad = attn_rows_scatter(&tr.t, &ti.t, NULL, &tb.t, NULL, &error) != ATTN_OK;
    for (int i = 0; i < 4; i++)
        for (int d = 0; d < 9; d++)
            bad += back[i][d] != (i == 1 ? 0x2222 : attn_to_f16(attn_from_e4m3(cache[i][d]) * scale));
    is_int(bad, 0, "and scattered to their places, the others left alone");
    index[0] = 4;
    ok(attn_rows_gather(&tc.t, &ti.t, &tscale.t, &tr.t, NULL, &error) == ATTN_E_INVALID &&
           strcmp(error.param, "rows") == 0,
       "a row beyond the cache: %s", error.text);
    ok(attn_rows_copy(&tr.t, &tscale.t, &tr.t, NULL, &error) == ATTN_E_INVALID &&
           strcmp(error.param, "scale") == 0,
       "a scale that would be ignored: %s", error.text);
    ok(attn_rows_copy(&tr.t, NULL, &tc.t, NULL, &error) == ATTN_E_INVALID && strcmp(error.param, "to") == 0,
       "two shapes: %s", error.text);
    shape[0] = 4, shape[1] = 9, tc.t.dtype.bits = 8, tc.t.dtype.code = kDLInt;
    tr.shape[0] = 4;
    ok(attn_rows_copy(&tc.t, NULL, &tr.t, NULL, &error) == ATTN_E_UNSUPPORTED &&
           strcmp(error.param, "from") == 0,
       "integers are copied, not converted: %s", error.text);
}

#define BAD(CALL, CODE, PARAM)                                                                               \
    ok((CALL) == (CODE) && strcmp(error.param, PARAM) == 0, "%s: %s", PARAM, error.text)

static void check_errors(void) {
    const DLTensor *out = &w.tout[MOST].t;
    make_states(2, ATTN_DTYPE_FLOAT32);
    BAD(attn_merge_states(NULL, 2, T, NULL, out, NULL, NULL, &error), ATTN_E_INVALID, "states");
    BAD(attn_merge_states(w.states, 0, T, NULL, out, NULL, NULL, &error), ATTN_E_INVALID, "num_states");
    BAD(attn_merge_states(w.states, 2, ROWS + 1, NULL, out, NULL, NULL, &error), ATTN_E_INVALID, "output");
    w.tlse[1].shape[1] = T - 1;
    BAD(attn_merge_states(w.states, 2, T, NULL, out, NULL, NULL, &error), ATTN_E_INVALID, "states.lse");
    make_states(2, ATTN_DTYPE_FLOAT32);
    w.tout[1].shape[2] = V - 1;
    BAD(attn_merge_states(w.states, 2, T, NULL, out, NULL, NULL, &error), ATTN_E_INVALID, "states.output");
    make_states(2, ATTN_DTYPE_FLOAT32);
    w.tsinks.shape[0] = H + 1;
    BAD(attn_merge_states(w.states, 2, T, &w.tsinks.t, out, NULL, NULL, &error), ATTN_E_INVALID, "sinks");
    w.tout[0].t.device.device_type = kDLCUDA;
    BAD(attn_merge_states(w.states, 2, T, NULL, out, NULL, NULL, &error), ATTN_E_UNSUPPORTED,
        "states.output");
    const DLTensor *lses[2] = {w.states[0].lse, w.states[1].lse};
    BAD(attn_merge_weigh(out, lses, 2, 2, T, NULL, out, NULL, NULL, &error), ATTN_E_INVALID, "own");
    BAD(attn_merge_weigh(out, NULL, 2, 0, T, NULL, out, NULL, NULL, &error), ATTN_E_INVALID, "lses");
}

/* Plugins get the same functions by name. */
static void check_extension(void) {
    attn_context_t *context = fake_context("");
    attn_problem_t p = small_problem(ATTN_ROLE_DECODER);
    attn_group_t *g = open_group(context, &p, "FAKE_PLAIN");
    const attn_merge_table_t *table = fake_log_of(g)->merge;
    ok(table != NULL && table->struct_size >= sizeof *table && table->merge_states == attn_merge_states &&
           table->merge_weigh == attn_merge_weigh && table->rows_copy == attn_rows_copy &&
           table->rows_gather == attn_rows_gather && table->rows_scatter == attn_rows_scatter,
       "the host has " ATTN_MERGE_EXTENSION);
    attn_group_close(g);
    attn_context_destroy(context);
    remove_fake();
}

int main(void) {
    state = tap_seed();
    check_merges(ATTN_DTYPE_FLOAT64, 1e-13);
    check_merges(ATTN_DTYPE_FLOAT32, 1e-7);
    check_merges(ATTN_DTYPE_FLOAT16, 1e-3);
    check_merges(ATTN_DTYPE_BFLOAT16, 8e-3);
    check_weigh();
    check_nan();
    check_copy();
    check_errors();
    check_extension();
    return tap_done();
}
