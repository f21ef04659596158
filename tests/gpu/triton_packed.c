/* SPDX-License-Identifier: Apache-2.0 */
/* Caches of triton_like whose rows have scales, or fewer than 8 bits, on a device: every byte that is written
 * against REFERENCE's, and attention over equal bytes against its double, to 131072 keys and whatever
 * the inputs look like, to the tolerance of the model's type instead of the one that quantising needs. Cases
 * run in several processes, because most of their time is compilation and the oracle. PACKED_TEST_PLUGINS:
 * the folder of the plugins; PACKED_TEST_JOBS=N: processes; PACKED_TEST_ONLY: a text that a case's name must
 * contain; PACKED_TEST_ALL: every case is shown; ATTN_TEST_PART, ATTN_TEST_SECONDS: part.h. */
#include "triton_tasks.h"
#include "kit/case/case_families.h"

#include <attn/attn_plugin_util.h>
#include <math.h>

enum { MAX_CASES = 1200 };
static const struct {
    uint32_t kv;
    const char *name;
    uint32_t odd_size; /* a head size that is no power of two, where there is one */
} formats[] = {{ATTN_KV_INT4_PER_TOKEN_HEAD, "int4", 0},  {ATTN_KV_TURBOQUANT_K8V4, "k8v4", 72},
               {ATTN_KV_TURBOQUANT_4BIT_NC, "4bit", 0},   {ATTN_KV_TURBOQUANT_K3V4_NC, "k3v4", 0},
               {ATTN_KV_TURBOQUANT_3BIT_NC, "3bit", 0},   {ATTN_KV_INT8_STATIC_V, "static_v", 100},
               {ATTN_KV_INT8_K_ONLY, "k_only", 76},       {ATTN_KV_NVFP4, "nvfp4", 80},
               {ATTN_KV_INT8_PER_TOKEN_HEAD, "int8", 80}, {ATTN_KV_FP8_PER_TOKEN_HEAD, "fp8", 72}};
enum { NUM_FORMATS = sizeof formats / sizeof formats[0] };

/* ------------------------------------------------------------------ what is written */

enum { ROWS = 512, PAGE = 16 };
typedef struct pages {
    unsigned char *bytes;
    size_t size;
    attn_kv_cache_shape_t shape;
} pages_t;

/* One update of ROWS tokens in a cache of bytes 0xa5 by one backend, in its memory; 0, or a text. */
static const char *write_pages(const attn_backend_t *backend, const attn_problem_t *problem,
                               const kit_memory_t *memory, const float *x, const int64_t *slots,
                               pages_t *to) {
    static attn_error_t e;
    attn_problem_t p = *problem;
    attn_device_t device = {.struct_size = sizeof device,
                            .type = memory->device_type,
                            .compute_capability = memory->compute_capability};
    attn_instance_t *in = NULL;
    e = (attn_error_t){.struct_size = sizeof e};
    if (backend->ops->open(&p, &device, memory->options, memory->num_options, NULL, &in, &e) != ATTN_OK)
        return e.text;
    to->shape = (attn_kv_cache_shape_t){.struct_size = sizeof to->shape};
    backend->ops->kv_cache_shape(in, (int64_t)p.num_blocks, &to->shape, &e);
    const int64_t heads = p.num_kv_heads, size = p.head_size, count = ROWS * heads * size;
    const size_t each = attn_dtype_size(p.dtype), bytes = (size_t)count * each;
    to->size = (size_t)to->shape.total_bytes;
    to->bytes = malloc(to->size);
    memset(to->bytes, 0xa5, to->size);
    unsigned char *rows = malloc(2 * bytes);
    for (int64_t i = 0; i < 2 * count; i++) {
        const uint16_t half =
            p.dtype == ATTN_DTYPE_FLOAT16 ? attn_to_f16((double)x[i]) : attn_to_bf16((double)x[i]);
        if (p.dtype == ATTN_DTYPE_FLOAT32)
            memcpy(rows + (size_t)i * 4, &x[i], 4);
        else
            memcpy(rows + (size_t)i * 2, &half, 2);
    }
    const size_t channels = (size_t)(heads * size) * sizeof(float);
    float *by = malloc(channels);
    for (int64_t i = 0; i < heads * size; i++)
        by[i] = ldexpf(1 + (float)(i % 7) / 7, (int)(i % 5) - 6);
    void *data = memory->alloc(memory->ctx, 2 * bytes, 256),
         *scale = memory->alloc(memory->ctx, channels, 256),
         *cache = memory->alloc(memory->ctx, to->size, 256),
         *where = memory->alloc(memory->ctx, ROWS * 8, 256);
    memory->to_device(memory->ctx, data, rows, 2 * bytes);
    memory->to_device(memory->ctx, scale, by, channels);
    memory->to_device(memory->ctx, cache, to->bytes, to->size);
    memory->to_device(memory->ctx, where, slots, ROWS * 8);
    const DLDevice at = {(DLDeviceType)memory->device_type, 0};
    int64_t rs[3] = {ROWS, heads, size}, rt[3] = {heads * size, size, 1}, ct[4], ss[1] = {ROWS}, st[1] = {1};
    int64_t vs[2] = {heads, size}, vt[2] = {size, 1};
    for (int i = 0; i < 4; i++)
        ct[i] = to->shape.byte_strides[i];
    DLTensor key = {.data = data,
                    .device = at,
                    .ndim = 3,
                    .dtype = attn_dl_dtype(p.dtype),
                    .shape = rs,
                    .strides = rt},
             value = key,
             kv = {.data = cache,
                   .device = at,
                   .ndim = 4,
                   .dtype = to->shape.dtype,
                   .shape = to->shape.shape,
                   .strides = ct},
             slot = {.data = where,
                     .device = at,
                     .ndim = 1,
                     .dtype = attn_dl_dtype(ATTN_DTYPE_INT64),
                     .shape = ss,
                     .strides = st};
    DLTensor channel = {.data = scale,
                        .device = at,
                        .ndim = 2,
                        .dtype = attn_dl_dtype(ATTN_DTYPE_FLOAT32),
                        .shape = vs,
                        .strides = vt};
    int64_t one[1] = {1};
    DLTensor of_k = channel, of_v = channel; /* of a tensor */
    of_k.ndim = of_v.ndim = 1, of_k.shape = of_v.shape = one, of_k.strides = of_v.strides = one;
    of_v.data = (float *)scale + 1;
    value.data = (char *)data + bytes;
    attn_kv_update_t u = {
        .struct_size = sizeof u, .key = &key, .value = &value, .kv_cache = &kv, .slot_mapping = &slot};
    if (attn_kv_has_channel_scales(p.kv_cache_dtype)) u.scales.v = &channel;
    if (attn_kv_has_static_scales(p.kv_cache_dtype)) u.scales.k = &of_k, u.scales.v = &of_v;
    int status = backend->ops->update_kv_cache(in, &u, NULL, &e);
    if (status == ATTN_OK && memory->sync(memory->ctx) != 0)
        snprintf(e.text, sizeof e.text, "the device failed"), status = -1;
    memory->from_device(memory->ctx, to->bytes, cache, to->size);
    memory->free(memory->ctx, data, 2 * bytes), memory->free(memory->ctx, cache, to->size);
    memory->free(memory->ctx, where, ROWS * 8);
    memory->free(memory->ctx, scale, channels);
    free(rows), free(by);
    backend->ops->close(in);
    return status == ATTN_OK ? NULL : e.text;
}

/* Rows of all kinds: normal of many sizes, one channel 100 times the others, constant, zero, one value, the
 * ends of the type, a NaN, an infinity. */
static void make_rows(float *x, int64_t rows, int64_t size, uint32_t dtype, uint64_t seed) {
    const float end = dtype == ATTN_DTYPE_FLOAT16 ? 65504.0f : 0x1p126f;
    uint64_t state = seed;
    for (int64_t r = 0; r < rows; r++, x += size) {
        const int kind = (int)(r % 16);
        const float mean = kind == 1 ? 1000 : 0, by = ldexpf(1, (int)kit_random_in(&state, -6, 6));
        for (int64_t i = 0; i < size; i++)
            x[i] = mean + by * (float)kit_random_normal(&state);
        const int64_t one = kit_random_in(&state, 0, size - 1);
        for (int64_t i = 0; i < size && kind >= 3 && kind <= 6; i++)
            x[i] = kind == 3 ? 1.375f : kind == 4 ? 0 : kind == 5 ? (i == one ? -3 : 0) : i % 2 ? end : -end;
        if (kind == 2) x[one] *= 100;
        if (kind == 7 && r % 64 == 7) x[one] = NAN;
        if (kind == 7 && r % 64 == 23) x[one] = INFINITY;
        if (kind == 8)
            for (int64_t i = 0; i < size; i++)
                x[i] = i % 3 ? 1e-7f : 0;
    }
}

static int check_bytes(const attn_problem_t *p, uint64_t seed, char *why, size_t why_size) {
    const int64_t count = 2 * ROWS * (int64_t)p->num_kv_heads * p->head_size;
    float *x = malloc((size_t)count * sizeof *x);
    int64_t slots[ROWS];
    pages_t got = {0}, want = {0};
    uint64_t state = seed;
    make_rows(x, 2 * ROWS * (int64_t)p->num_kv_heads, p->head_size, p->dtype, seed);
    for (int64_t i = 0; i < ROWS; i++)
        slots[i] = i;
    for (int64_t i = ROWS - 1; i > 0; i--) {
        const int64_t j = kit_random_in(&state, 0, i), t = slots[i];
        slots[i] = slots[j], slots[j] = t;
    }
    slots[5] = -1;
    const char *text = write_pages(reference, p, &kit_cpu_memory, x, slots, &want);
    if (text == NULL) text = write_pages(triton, p, &gpu, x, slots, &got);
    int64_t off = 0, first = -1;
    /* a NaN is one, whatever its bits, where a row of bytes ends with its float32 scale */
    const size_t row =
        p->kv_cache_dtype == ATTN_KV_INT8_PER_TOKEN_HEAD || p->kv_cache_dtype == ATTN_KV_FP8_PER_TOKEN_HEAD
            ? p->head_size + 4
            : 0;
    for (size_t i = 0; text == NULL && row > 0 && i < want.size; i += row) {
        float a, b;
        memcpy(&a, got.bytes + i + p->head_size, 4), memcpy(&b, want.bytes + i + p->head_size, 4);
        if (isnan(a) && isnan(b)) memcpy(got.bytes + i + p->head_size, &b, 4);
    }
    for (size_t i = 0; text == NULL && i < want.size; i++)
        if (got.bytes[i] != want.bytes[i]) {
            if (first < 0) first = (int64_t)i;
            off++;
        }
    if (text != NULL)
        snprintf(why, why_size, "%s", text);
    else if (off > 0)
        snprintf(why, why_size, "%lld of %zu bytes differ, first %lld: %02x for %02x (row %lld, byte %lld)",
                 (long long)off, want.size, (long long)first, got.bytes[first], want.bytes[first],
                 (long long)(first / want.shape.byte_strides[1]), (long long)(first % want.shape.shape[3]));
    free(x), free(got.bytes), free(want.bytes);
    return text == NULL && off == 0;
}

/* ------------------------------------------------------------------ what is read */

/* The largest error of an output and of an LSE, in units of the largest of a row's values; and the bias, the
 * mean of signed errors and of those away from zero, in units of the mean magnitude: rounding the outputs
 * does not add up there unless all are one number (KIT_CONSTANT), so its limit is a sixth; over 1e5
 * keys a third of f16's, because tensor cores cut off what they add to a sum, or a half with centroids, whose
 * squares decode rounds to f16. */
static int check_attention(const kit_case_t *c, int power, double limit, char *why, size_t why_size) {
    kit_result_t got, want;
    memset(&got, 0, sizeof got), memset(&want, 0, sizeof want);
    kit_inputs_t *in = kit_inputs_make(c);
    const int64_t numbers = in->num_tokens * c->problem.num_heads * (int64_t)c->problem.head_size;
    for (int64_t i = 0; power != 0 && i < numbers; i++)
        in->query[i] = kit_round(c->problem.dtype, ldexp((double)in->query[i], power));
    kit_run(triton, c, in, &gpu, &got);
    kit_run_oracle(reference, c, in, &want);
    int good = got.status == ATTN_OK && want.status == ATTN_OK && got.fault[0] == '\0';
    if (!good)
        snprintf(why, why_size, "%s: %s%s / %s", got.operation, got.error.text, got.fault, want.error.text);
    const uint32_t kv = c->problem.kv_cache_dtype;
    const int with_centroids = kv == ATTN_KV_TURBOQUANT_4BIT_NC || kv == ATTN_KV_TURBOQUANT_K3V4_NC ||
                               kv == ATTN_KV_TURBOQUANT_3BIT_NC;
    double top = 0, off = 0, lse = 0, sum = 0, size = 0, plain = 0, away = 0;
    int64_t where = 0, unlike = 0;
    for (int64_t i = 0; good && i < want.num_out; i++) {
        if (isnan(want.out[i]) != isnan(got.out[i])) unlike++;
        if (isnan(want.out[i]) || isnan(got.out[i])) continue;
        const double error = got.out[i] - want.out[i], d = fabs(error);
        top = fmax(top, fabs(want.out[i]));
        sum += d, size += fabs(want.out[i]);
        plain += error, away += want.out[i] < 0 ? -error : error;
        if (d > off) off = d, where = i;
    }
    for (int64_t i = 0; good && want.lse != NULL && i < want.num_lse; i++)
        if (isfinite(want.lse[i]))
            lse = fmax(lse, isfinite(got.lse[i]) ? fabs(got.lse[i] - want.lse[i]) / (1 + fabs(want.lse[i]))
                                                 : INFINITY);
    plain = size > 0 ? plain / size : 0, away = size > 0 ? away / size : 0;
    const double bias = fabs(plain) > fabs(away) ? plain : away,
                 most = limit / (limit > 1e-2 || c->problem.max_model_len < 100000 ? 6
                                 : with_centroids                                  ? 2
                                                                                   : 3);
    if (good && (off > limit * top || lse > limit || unlike > 0 || !(fabs(bias) <= most))) {
        snprintf(
            why, why_size,
            "output %lld is %.5g, not %.5g (largest %.4g, mean error %.3g), bias %+.2e, lse off by %.3g, "
            "%lld NaN",
            (long long)where, got.out[where], want.out[where], top, sum / (double)want.num_out, bias, lse,
            (long long)unlike);
        good = 0;
    } else if (good)
        snprintf(why, why_size, "error %.2e, bias %+.2e, lse %.2e", top > 0 ? off / top : 0, bias, lse);
    kit_result_free(&got), kit_result_free(&want);
    kit_inputs_free(in);
    return good;
}

typedef struct task {
    char name[160];
    int is_write;
    int power; /* of two, by which queries are larger; the softmax scale makes up for it */
    kit_case_t c;
} task_t;
static task_t tasks[MAX_CASES];
static int num_tasks;

static task_t *add(uint32_t kv, uint32_t dtype, uint32_t size, uint32_t heads, uint32_t kv_heads,
                   const char *what) {
    const char *only = getenv("PACKED_TEST_ONLY");
    task_t *t = &tasks[num_tasks];
    int f = 0;
    while (formats[f].kv != kv)
        f++;
    snprintf(t->name, sizeof t->name, "%s %s d%u %u/%u %s", formats[f].name,
             dtype == ATTN_DTYPE_FLOAT32   ? "f32"
             : dtype == ATTN_DTYPE_FLOAT16 ? "f16"
                                           : "bf16",
             size, heads, kv_heads, what);
    kit_case_start(&t->c, ATTN_ROLE_DECODER, 71 + (uint64_t)num_tasks);
    attn_problem_t *p = &t->c.problem;
    p->dtype = dtype, p->kv_cache_dtype = kv, p->head_size = size, p->head_size_v = 0;
    p->num_heads = heads, p->num_kv_heads = kv_heads, p->block_size = PAGE, p->scale = 1 / sqrt((double)size);
    p->features = ATTN_F_LSE;
    t->is_write = t->power = 0;
    if (num_tasks + 1 == MAX_CASES) bail_out("more than %d cases: raise MAX_CASES", MAX_CASES);
    if (only == NULL || strstr(t->name, only) != NULL) num_tasks++;
    return t;
}

static void lengths(kit_case_t *c) {
    static const int32_t some[][2] = {{1, 1},   {1, 15}, {1, 16},    {1, 17},  {1, 1300},
                                      {2, 129}, {5, 64}, {130, 700}, {33, 33}, {1, 640}};
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
        kit_case_add(c, some[i][0], some[i][1]);
}

/* As speculative decoding has them: more rows of a KV head than one tile of decode. */
static void several(kit_case_t *c) {
    static const int32_t some[][2] = {{3, 1300}, {8, 2049}, {4, 17}, {1, 640}, {5, 5}};
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
        kit_case_add(c, some[i][0], some[i][1]);
}

static void prompts(kit_case_t *c) {
    c->problem.max_model_len = 8200;
    kit_case_add(c, 1000, 1000);
    kit_case_add(c, 257, 3000);
    kit_case_add(c, 40, 8200);
}

static void list_tasks(void) {
    static const uint32_t dtypes[] = {ATTN_DTYPE_BFLOAT16, ATTN_DTYPE_FLOAT16, ATTN_DTYPE_FLOAT32};
    for (int f = 0; f < NUM_FORMATS; f++) {
        const uint32_t kv = formats[f].kv, bf16 = ATTN_DTYPE_BFLOAT16;
        const uint32_t sizes[] = {128, 64, 256, 32, 512, formats[f].odd_size};
        const int num_sizes = formats[f].odd_size != 0 ? 6 : 5;
        const uint64_t apart = attn_kv_is_whole_page(kv) ? 0 : ATTN_F_SEPARATE_KV;
        for (int d = 0; d < 3; d++)
            for (int s = 0; s < num_sizes; s++) {
                task_t *t = add(kv, dtypes[d], sizes[s], 2, 2, "bytes");
                t->is_write = 1, t->c.problem.num_blocks = ROWS / PAGE,
                t->c.problem.kv_layout = (uint32_t)(1 + s % 2);
            }
        for (int s = 0; s < num_sizes; s++)
            lengths(&add(kv, s % 2 ? ATTN_DTYPE_FLOAT16 : bf16, sizes[s], 8, 2, "usual")->c);
        for (int i = 0; i < num_sizes; i++)
            several(&add(kv, i % 2 ? ATTN_DTYPE_FLOAT16 : bf16, sizes[i], 8, 2, "several tokens")->c);
        for (uint32_t family = KIT_NORMAL; family < KIT_NUM_FAMILIES; family++) {
            char name[64];
            snprintf(name, sizeof name, "several tokens, %s", kit_family_name(family));
            task_t *few = add(kv, bf16, 128, 4, 1, name);
            few->c.family = family;
            several(&few->c);
        }
        task_t *many = add(kv, bf16, 128, 32, 8, "usual, NHD"); /* rows multiples of 16 bytes apart */
        lengths(&many->c);
        many->c.problem.kv_layout = ATTN_LAYOUT_NHD;
        lengths(&add(kv, ATTN_DTYPE_FLOAT32, 64, 8, 2, "usual")->c);
        lengths(&add(kv, bf16, 128, 16, 4, "usual")->c);
        lengths(&add(kv, ATTN_DTYPE_FLOAT16, 64, 4, 4, "usual")->c);
        task_t *u = add(kv, bf16, 128, 8, 4, "usual, HND, apart");
        lengths(&u->c);
        u->c.problem.kv_layout = ATTN_LAYOUT_HND, u->c.problem.features |= apart;
        task_t *t = add(kv, bf16, 128, 16, 1, "usual");
        lengths(&t->c);
        prompts(&add(kv, bf16, 128, 8, 2, "prompts")->c);
        t = add(kv, ATTN_DTYPE_FLOAT16, 128, 8, 2, "prompts, NHD");
        prompts(&t->c);
        t->c.problem.kv_layout = ATTN_LAYOUT_NHD;
        for (uint32_t size = 64; size <= 256; size += 192) {
            prompts(&add(kv, bf16, size, 8, 2, "prompts")->c);
            t = add(kv, ATTN_DTYPE_FLOAT16, size, 6, 2, "prompts, NHD, page 48");
            prompts(&t->c);
            t->c.problem.kv_layout = ATTN_LAYOUT_NHD, t->c.problem.block_size = 48;
        }
        t = add(kv, bf16, 128, 12, 2, "prompts, page 48, alibi");
        prompts(&t->c);
        t->c.problem.block_size = 48, t->c.problem.features |= ATTN_F_ALIBI;
        t = add(kv, bf16, 128, 4, 1, "prompts, soft cap, window, sinks");
        prompts(&t->c);
        t->c.problem.logits_soft_cap = 30, t->c.problem.sliding_window = 300;
        t->c.problem.features |= ATTN_F_SINK;
        t = add(kv, ATTN_DTYPE_FLOAT16, 128, 5, 1, "prompts, window");
        prompts(&t->c);
        if (attn_kv_has_static_scales(kv)) { /* which a device does not look at */
            t = add(kv, bf16, 128, 8, 2, "prompts, negative scale of K");
            prompts(&t->c);
            t->c.flags |= KIT_TURNED_KEYS;
        }
        /* scores that grow by tens of powers of two from tile to tile, one key with half of the weight, equal
         * ones */
        static const uint32_t families[] = {KIT_GEOMETRIC, KIT_NEEDLE, KIT_UNIFORM};
        for (int i = 0; i < 3; i++) {
            char what[64];
            snprintf(what, sizeof what, "prompts, %s", kit_family_name(families[i]));
            t = add(kv, i % 2 ? ATTN_DTYPE_FLOAT16 : bf16, 128, 8, 2, what);
            prompts(&t->c);
            t->c.family = families[i];
        }
        t->c.problem.sliding_window = 200;
        t = add(kv, bf16, 128, 6, 3, "HND, apart, sinks, window");
        lengths(&t->c);
        t->c.problem.kv_layout = ATTN_LAYOUT_HND, t->c.problem.sliding_window = 90;
        t->c.problem.features |= apart | ATTN_F_SINK;
        t = add(kv, bf16, 128, 6, 3, "sinks, window"); /* blocks whose first keys are not wanted */
        lengths(&t->c);
        t->c.problem.sliding_window = 90, t->c.problem.features |= ATTN_F_SINK;
        t = add(kv, bf16, 64, 6, 3, "HND, soft cap");
        lengths(&t->c);
        t->c.problem.kv_layout = ATTN_LAYOUT_HND, t->c.problem.logits_soft_cap = 30;
        t = add(kv, bf16, 128, 8, 2, "alibi, cross-layer");
        lengths(&t->c);
        t->c.problem.features |= ATTN_F_ALIBI, t->c.flags |= KIT_CROSS_LAYER;
        if (!attn_kv_has_one_size(kv) && kv != ATTN_KV_INT4_PER_TOKEN_HEAD) {
            t = add(kv, bf16, 128, 8, 2, "values of 64");
            lengths(&t->c);
            t->c.problem.head_size_v = 64;
        }
        t = add(kv, bf16, 128, 8, 2, "spans, page 64");
        lengths(&t->c);
        t->c.problem.features |= ATTN_F_MM_PREFIX, t->c.num_spans = 1, t->c.problem.block_size = 64;
        for (int r = 0; r < t->c.num_reqs; r++)
            t->c.spans[r][0][0] = t->c.seq_lens[r] / 3, t->c.spans[r][0][1] = t->c.seq_lens[r] - 1;
        for (uint32_t family = KIT_NORMAL; family < KIT_NUM_FAMILIES; family++) {
            char name[64];
            snprintf(name, sizeof name, "family %s", kit_family_name(family));
            t = add(kv, bf16, 128, 4, 2, name);
            t->c.family = family;
            kit_case_add(&t->c, 1, 2049);
            kit_case_add(&t->c, 17, 511);
            kit_case_add(&t->c, 3, 1000);
        }
        static const int powers[] = {110, -19}; /* a scale may be 1e6 */
        for (int i = 0; i < 2; i++)
            for (int is_prompt = 0; is_prompt < 2; is_prompt++) {
                if (attn_kv_rounds_query(kv) && powers[i] < 0) continue; /* their scales end at 1e-6 */
                char name[64];
                snprintf(name, sizeof name, "queries by 2^%d, %s", powers[i],
                         is_prompt ? "prompts" : "short");
                t = add(kv, bf16, 128, 4, 1, name);
                t->power = powers[i], t->c.problem.scale = ldexp(t->c.problem.scale, -powers[i]);
                is_prompt ? prompts(&t->c) : lengths(&t->c);
            }
        static const uint32_t far[] = {KIT_CONSTANT, KIT_LARGE_MEAN, KIT_UNIFORM, KIT_NEEDLE, KIT_CHANNEL};
        for (size_t i = 0; i < sizeof far / sizeof far[0]; i++) {
            char name[64];
            snprintf(name, sizeof name, "131072 keys, %s", kit_family_name(far[i]));
            t = add(kv, ATTN_DTYPE_FLOAT16, 128, 4, 1 + (uint32_t)i % 2,
                    name); /* whose outputs show a bias */
            t->c.family = far[i], t->c.problem.max_model_len = 131072;
            kit_case_add(&t->c, 1, 131072);
            kit_case_add(&t->c, 5, 131072);
            kit_case_add(&t->c, 9, 131072);
        }
    }
}

static char cache_dir[] = "/tmp/attn-packed-XXXXXX";

static int run_task(const task_t *t, char *why, size_t size) {
    if (t->is_write) return check_bytes(&t->c.problem, t->c.seed, why, size);
    const uint32_t dtype = t->c.problem.dtype;
    if (!kit_is_served(triton, &t->c, &gpu, why, size)) return 0;
    return check_attention(&t->c, t->power,
                           dtype == ATTN_DTYPE_FLOAT32   ? 2e-5
                           : dtype == ATTN_DTYPE_FLOAT16 ? 4e-3
                                                         : 1.2e-2,
                           why, size);
}

static int run_one(int i, char *why, size_t size) {
    return run_task(&tasks[i], why, size);
}
static int process_of(int i) {
    return i;
}
static const char *name_of(int i) {
    return tasks[i].name;
}

int main(void) {
    tasks_load(getenv("PACKED_TEST_PLUGINS"));
    list_tasks();
    const double start = part_seconds();
    const task_list_t list = {num_tasks, run_one, process_of, name_of, getenv("PACKED_TEST_ALL") != NULL};
    const int passed = tasks_run(&list, tasks_jobs(getenv("PACKED_TEST_JOBS")), cache_dir);
    tasks_end(cache_dir);
    ok(passed >= 0, "%d of %d cases: bytes as REFERENCE's, and attention over them (%.0f s)",
       passed < 0 ? -1 - passed : passed, num_tasks, part_seconds() - start);
    return tap_done();
}
