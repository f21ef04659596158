/* SPDX-License-Identifier: Apache-2.0 */
/* flash.so through the plugin ABI on a device: random cases within its capability table against the reference
 * plugin in double, forced and chosen kernels, capture and replay with another batch, new block tables,
 * errors that name the parameter. FLASH_TEST_CASES=N sets the number of random cases;
 * ATTN_TEST_PART, ATTN_TEST_SECONDS: part.h. */
#include "dense_step.h"
#include "part.h"

#include <attn/attn_plugin_util.h>
#include <time.h>
#include <unistd.h>

static const attn_backend_t *flash, *diffkv, *reference;

/* One case on both; returns 1 if it passed or is not served. */
static int run_one(const attn_backend_t *backend, const kit_case_t *c, char *why, size_t size, int *served) {
    kit_difference_t d;
    *served = kit_is_served(backend, c, &gpu, why, size);
    return !*served || kit_agrees(backend, reference, c, NULL, &gpu, &d, why, size);
}

static void random_cases(uint64_t seed) {
    const char *text = getenv("FLASH_TEST_CASES");
    int n = text ? atoi(text) : 300, taken = 0, served = 0, failed = 0;
    for (int i = 0; i < n; i++) {
        kit_case_t c;
        char why[2048] = "";
        int is_served = 0;
        if (!part_takes()) continue;
        taken++;
        const attn_backend_t *backend = i % 5 == 4 ? diffkv : flash;
        kit_case_random(&c, backend->capabilities, seed + (uint64_t)i, i % 10 == 0 ? 400 : 120);
        if (!run_one(backend, &c, why, sizeof why, &is_served) && failed++ < 12) diag("case %d: %s", i, why);
        served += is_served;
    }
    ok(failed == 0 && served > taken / 3,
       "%d random cases agree with the reference (%d failed, %d of %d are served)", served, failed, served,
       taken);
}

/* Host time of forward, and the portable kernels over the same batch. */
static void options_and_time(dense_step *s, cudaStream_t stream) {
    uint16_t *want = malloc(dense_step_bytes), *got = malloc(dense_step_bytes);
    dense_step_build(s, dense_step_decode, 8, 0, 0, 0, 0, stream);
    cudaStreamSynchronize(stream);
    struct timespec t0, t1;
    const int times = part_is_short() ? 5 : 500;
    for (int round = 0; round < 2; round++) {
        clock_gettime(CLOCK_MONOTONIC, &t0);
        for (int i = 0; i < times; i++)
            dense_step_forward(s, stream);
        clock_gettime(CLOCK_MONOTONIC, &t1);
        cudaStreamSynchronize(stream);
    }
    diag("host time of one forward (decode, enqueue only): %.2f us",
         ((double)(t1.tv_sec - t0.tv_sec) * 1e9 + (double)(t1.tv_nsec - t0.tv_nsec)) / (1e3 * times));

    attn_option_value_t options[2] = {
        {.struct_size = sizeof options[0], .type = ATTN_OPTION_ENUM, .name = "arch", .i = 1, .s = "sm80"},
        {.struct_size = sizeof options[0], .type = ATTN_OPTION_INT, .name = "num_splits", .i = 3, .s = "3"}};
    dense_step t;
    dense_step_output(s, dense_step_mixed, 8, 3, 0, 0, NULL, stream, want);
    if (dense_step_open(&t, flash, 0, options, 2)) {
        dense_step_output(&t, dense_step_mixed, 8, 3, 0, 0, NULL, stream, got);
        double num = 0, den = 0;
        for (size_t i = 0; i < 199 * (size_t)DENSE_STEP_ROW; i++) {
            uint32_t x = (uint32_t)got[i] << 16, y = (uint32_t)want[i] << 16;
            float a, b;
            memcpy(&a, &x, 4), memcpy(&b, &y, 4);
            num += (double)(a - b) * (a - b), den += (double)b * b;
        }
        ok(num < 3e-5 * den, "arch = sm80 with 3 splits computes the same (relative difference %.1e)",
           sqrt(num / den));
        dense_step_wild_pages(&t, "arch = sm80", stream);
        dense_step_close(&t);
    } else
        ok(0, "an instance opens with options");
    free(want), free(got);
}

/* Prompts and decodes of a step are two launches, one beside the other: what follows in the stream finds
 * both. */
static void follow_steps(dense_step *s, cudaStream_t stream) {
    static const int lens[8] = {1, 480, 1, 1, 1, 1, 1, 1};
    const size_t bytes = 487 * (size_t)DENSE_STEP_ROW * 2;
    uint16_t *now = malloc(bytes), *end = malloc(bytes);
    void *copy;
    int early = 0;
    cudaMalloc(&copy, bytes);
    for (int i = 0; i < 20; i++) {
        dense_step_build(s, lens, 8, 0, 0, 0, 0, stream);
        cudaMemsetAsync(s->o, 0xee, dense_step_bytes, stream);
        dense_step_forward(s, stream);
        cudaMemcpyAsync(copy, s->o, bytes, cudaMemcpyDeviceToDevice, stream);
        cudaStreamSynchronize(stream);
        cudaMemcpy(now, copy, bytes, cudaMemcpyDeviceToHost);
        cudaMemcpy(end, s->o, bytes, cudaMemcpyDeviceToHost);
        early += memcmp(now, end, bytes) != 0;
    }
    ok(early == 0, "a copy behind a step has all of its rows (%d of 20 do not)", early);
    cudaFree(copy);
    free(now), free(end);
}

static void steps(void) {
    dense_step s;
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    if (dense_step_open(&s, flash, 0, NULL, 0)) {
        dense_step_replays(&s, ATTN_BATCH_CAPTURE, stream);
        dense_step_wild_pages(&s, "arch = auto", stream);
        follow_steps(&s, stream);
        options_and_time(&s, stream);
        dense_step_refusals(&s, stream);
        attn_error_t e = {.struct_size = sizeof e};
        attn_forward_t f = {.struct_size = sizeof f, .output = &s.t_o};
        s.t_o.byte_offset = 2; /* zero is stored 16 bytes at a time */
        ok(flash->ops->forward(s.instance, &f, NULL, stream, &e) == ATTN_E_INVALID &&
               !strcmp(e.param, "output"),
           "a misaligned output of the profiling run is refused");
        dense_step_close(&s);
    } else
        ok(0, "an instance opens");
    cudaStreamDestroy(stream);
}

int main(void) {
    char why[256] = "";
    if (gpu_start() != 0) skip_all("no CUDA device");
    const char *dir = getenv("FLASH_TEST_PLUGINS");
    char path[1024], cwd[900];
    if (dir == NULL && getcwd(cwd, sizeof cwd) != NULL) {
        snprintf(path, sizeof path, "%s/plugins-built", cwd);
        dir = path;
    }
    char file[1200];
    snprintf(file, sizeof file, "%s/flash.so", dir);
    flash = kit_load(file, "FLASH_ATTN", why, sizeof why);
    diffkv = kit_load(file, "FLASH_ATTN_DIFFKV", why, sizeof why);
    snprintf(file, sizeof file, "%s/reference.so", dir);
    reference = kit_load(file, NULL, why, sizeof why);
    if (flash == NULL || diffkv == NULL || reference == NULL) bail_out("%s: %s", file, why);
    uint64_t seed = tap_seed();
    steps();
    random_cases(seed);
    return tap_done();
}
