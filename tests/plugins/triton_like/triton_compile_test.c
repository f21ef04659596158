/* SPDX-License-Identifier: Apache-2.0 */
/* Every mask, feature and cache format of triton_like compiles for sm_80 and sm_90, without a device; a
 * second time it comes out of the folder or of memory; NVRTC changes nothing of the process. A busy machine
 * may not get through in the 90 seconds that this test takes; it says how far it came. ATTN_TEST_LONG=1 has
 * no limit and crosses all masks with all shapes. Skipped where NVRTC is not installed. */
#include "../../tap.h"

#include "triton_compile.h"

#include <attn/attn.h>

#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const shapes[] = {
    "dtype=bfloat16 num_heads=8 num_kv_heads=2 head_size=128 block_size=16",
    "dtype=float16 num_heads=4 num_kv_heads=4 head_size=64 block_size=32",
    "dtype=bfloat16 num_heads=16 num_kv_heads=1 head_size=128 kv_cache_dtype=fp8_e4m3 block_size=16",
    "dtype=bfloat16 num_heads=8 num_kv_heads=2 head_size=128 kv_cache_dtype=int8_per_token_head",
    "dtype=float16 num_heads=6 num_kv_heads=2 head_size=80 kv_cache_dtype=fp8_per_token_head block_size=48",
    "dtype=float32 num_heads=8 num_kv_heads=2 head_size=64 block_size=16",
    "dtype=bfloat16 num_heads=4 num_kv_heads=1 head_size=256 block_size=64",
    "dtype=bfloat16 num_heads=4 num_kv_heads=2 head_size=192 head_size_v=128 block_size=16",
    "dtype=float16 num_heads=4 num_kv_heads=2 head_size=37 block_size=16",
    "dtype=bfloat16 num_heads=4 num_kv_heads=2 head_size=96 kv_cache_dtype=fp8_e5m2 block_size=16",
    "dtype=bfloat16 num_heads=8 num_kv_heads=2 head_size=128 kv_cache_dtype=int4_per_token_head",
    "dtype=float16 num_heads=16 num_kv_heads=1 head_size=64 kv_cache_dtype=turboquant_4bit_nc",
    "dtype=bfloat16 num_heads=8 num_kv_heads=2 head_size=72 kv_cache_dtype=turboquant_k8v4",
    "dtype=bfloat16 num_heads=4 num_kv_heads=1 head_size=256 kv_cache_dtype=turboquant_3bit_nc",
    "dtype=float32 num_heads=8 num_kv_heads=2 head_size=128 kv_cache_dtype=turboquant_k3v4_nc",
    "dtype=bfloat16 num_heads=8 num_kv_heads=2 head_size=128 kv_cache_dtype=int8_static_v",
    "dtype=bfloat16 num_heads=16 num_kv_heads=1 head_size=100 head_size_v=64 kv_cache_dtype=int8_k_only",
    "dtype=float32 num_heads=4 num_kv_heads=2 head_size=64 kv_cache_dtype=int8_static_v",
    "dtype=bfloat16 num_heads=8 num_kv_heads=2 head_size=128 kv_cache_dtype=nvfp4",
    "dtype=float16 num_heads=4 num_kv_heads=2 head_size=80 kv_cache_dtype=nvfp4"};
static const char *const masks[] = {"mask=causal",
                                    "mask=causal sliding_window=70",
                                    "mask=causal chunk_size=192 features=chunked_local",
                                    "mask=causal sliding_window=120 chunk_lookback=2 features=chunk_lookback",
                                    "mask=causal rswa_window=50",
                                    "mask=causal features=mm_prefix",
                                    "mask=causal sliding_window=40 features=mm_prefix,mm_prefix_clamp",
                                    "mask=causal features=alibi",
                                    "mask=causal features=alibi_sqrt",
                                    "mask=causal logits_soft_cap=30",
                                    "mask=causal features=sink",
                                    "mask=causal features=qq_bias",
                                    "mask=causal features=rel_bias",
                                    "mask=full logits_soft_cap=30 features=rel_bias,sink",
                                    "mask=full",
                                    "mask=per_request sliding_window=90",
                                    "mask=causal out_dtype=fp8_e4m3 features=out_fp8_static",
                                    "mask=causal out_dtype=fp8_e4m3 features=out_fp8_group",
                                    "mask=causal out_dtype=uint8 features=out_nvfp4",
                                    "mask=causal features=separate_kv,sink"};
enum { NUM_SHAPES = sizeof shapes / sizeof shapes[0], NUM_MASKS = sizeof masks / sizeof masks[0] };

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compile(const char *text, int cc, const char *dir, int *cached, attn_error_t *e) {
    attn_problem_t p;
    triton_config_t c;
    triton_code_t code;
    triton_toolchain_t tools = {.cache_dir = dir, .nvrtc = ""};
    if (attn_problem_parse(text, &p, e) != ATTN_OK || triton_configure(&p, cc, &c) != 0)
        return ATTN_E_INVALID;
    int status = triton_make_code(&c, &tools, &code, e);
    if (status != ATTN_OK) return status;
    int good = code.count > 0;
    for (int i = 0; i < code.count; i++)
        good = good && code.bytes[i] > 1000 && !memcmp(code.cubin[i], "\177ELF", 4);
    *cached = code.from_cache == code.count;
    triton_free_code(&code);
    return good ? ATTN_OK : ATTN_E_INTERNAL;
}

static const char again[] = "role=mm_encoder mask=full dtype=bfloat16 num_heads=16 head_size=72 scale=0.1";

/* Steps of several tokens over a byte and less have a second decode; the writer that rotates has one
 * program. */
static void programs(const char *dir) {
    attn_problem_t p;
    triton_config_t c;
    triton_code_t code[2];
    ATTN_INIT(attn_error_t, e);
    const triton_toolchain_t tools = {.cache_dir = dir, .nvrtc = ""};
    int status =
        attn_problem_parse("role=decoder mask=causal dtype=bfloat16 num_heads=8 num_kv_heads=2 head_size=64 "
                           "block_size=16 scale=0.1 kv_cache_dtype=nvfp4",
                           &p, &e);
    if (status == ATTN_OK) status = triton_configure(&p, 90, &c);
    for (int is_rope = 0; is_rope < 2 && status == ATTN_OK; is_rope++) {
        c.rope = is_rope ? 64 : 0, c.pairs = 1;
        status = triton_make_code(&c, &tools, &code[is_rope], &e);
    }
    if (ok(status == ATTN_OK && code[0].count == 3 && code[1].count == 1 &&
               code[0].kind[2] == TRITON_PROGRAM_WIDE,
           "three programs for a decoder over nvfp4, one for its writer that rotates"))
        triton_free_code(&code[0]), triton_free_code(&code[1]);
    else
        diag("%d: %s; %d, %d", status, e.text, code[0].count, code[1].count);
}

/* Another process compiles, this one reads the folder; then its own memory. */
static void kept_code(const char *dir) {
    ATTN_INIT(attn_error_t, e);
    char other[] = "/tmp/attn-triton-compile-XXXXXX", command[128];
    int cached = 0, status = 1;
    double start = seconds(), cold, warm, memory;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(compile(again, 90, dir, &cached, &e) == ATTN_OK && !cached ? 0 : 1);
    ok(child > 0 && waitpid(child, &status, 0) == child && status == 0, "an encoder compiles");
    cold = seconds() - start, start = seconds();
    ok(compile(again, 90, dir, &cached, &e) == ATTN_OK && cached,
       "the second process takes it from the folder");
    warm = seconds() - start, start = seconds();
    ok(compile(again, 90, "", &cached, &e) == ATTN_OK && cached,
       "without the folder it comes from this process's memory");
    memory = seconds() - start;
    diag("cold %.3f s, from the folder %.2f ms, from memory %.2f ms", cold, 1e3 * warm, 1e3 * memory);
    if (mkdtemp(other) == NULL) bail_out("no temporary folder");
    ok(compile(again, 90, other, &cached, &e) == ATTN_OK && cached, "with an empty folder too");
    fflush(stdout);
    if ((child = fork()) == 0) { /* more programs than are kept push it out of memory */
        for (int i = 0; i < 40; i++) {
            snprintf(command, sizeof command, "other-%d", i);
            triton_memory_save(command, "x", 1);
        }
        _exit(compile(again, 90, other, &cached, &e) == ATTN_OK && cached ? 0 : 1);
    }
    ok(child > 0 && waitpid(child, &status, 0) == child && status == 0, "which keeps it from then on");
    struct mallinfo2 before = mallinfo2(), after;
    for (int i = 0; i < 20; i++)
        compile(again, 90, "", &cached, &e);
    after = mallinfo2();
    ok(after.uordblks + after.hblkhd <= before.uordblks + before.hblkhd,
       "opening again and again keeps no memory");
    snprintf(command, sizeof command, "rm -rf %s", other);
    if (system(command) != 0) diag("%s is left", other);
}

static void on_signal(int number) {
    (void)number;
}

/* NVRTC handles these signals while it compiles. */
static void polite_compile(void) {
    ATTN_INIT(attn_error_t, e);
    static const int numbers[] = {SIGINT, SIGTERM, SIGXFSZ};
    struct sigaction mine = {.sa_handler = on_signal}, found;
    int cached = 0, same = 0;
    sigemptyset(&mine.sa_mask);
    for (int i = 0; i < 3; i++)
        sigaction(numbers[i], &mine, NULL);
    int rc =
        compile("role=decoder mask=causal dtype=bfloat16 num_heads=1 head_size=32 block_size=16 scale=0.7",
                90, "", &cached, &e);
    for (int i = 0; i < 3; i++)
        same += sigaction(numbers[i], NULL, &found) == 0 && found.sa_handler == on_signal &&
                !(found.sa_flags & SA_RESTART);
    ok(rc == ATTN_OK && !cached && same == 3, "signal handlers stay as they were (%d of 3)", same);
    mine.sa_handler = SIG_DFL;
    for (int i = 0; i < 3; i++)
        sigaction(numbers[i], &mine, NULL);
}

typedef struct tally {
    int count, failed, left;
} tally_t;

/* Every jobs-th specialisation; each mask once, or all of them. */
static void some_specialisations(const char *dir, int job, int jobs, int all, double start, tally_t *t) {
    ATTN_INIT(attn_error_t, e);
    char text[600];
    int cached, n = 0;
    for (int i = 0; i < 2 * NUM_SHAPES * NUM_MASKS; i++) {
        const int arch = 80 + 10 * (i % 2), s = i / 2 % NUM_SHAPES, m = i / 2 / NUM_SHAPES;
        const int is_pair = s == m % NUM_SHAPES || m == s % NUM_MASKS; /* each of both at least once */
        if (!all && (!is_pair || (arch == 80 && m % 4 != 0))) continue;
        if (n++ % jobs != job) continue;
        if (!all && seconds() - start > 90.0) {
            __atomic_fetch_add(&t->left, 1, __ATOMIC_RELAXED);
            continue;
        }
        snprintf(text, sizeof text, "role=decoder %s %s scale=0.1", masks[m], shapes[s]);
        int rc = compile(text, arch, dir, &cached, &e);
        __atomic_fetch_add(&t->count, 1, __ATOMIC_RELAXED);
        if (rc != ATTN_OK && __atomic_fetch_add(&t->failed, 1, __ATOMIC_RELAXED) < 5)
            diag("sm_%d, %s: %s", arch, text, e.text);
    }
}

/* In several processes: each of them compiles on two threads. */
static void all_specialisations(const char *dir) {
    const int all = getenv("ATTN_TEST_LONG") != NULL;
    long jobs = sysconf(_SC_NPROCESSORS_ONLN);
    jobs = jobs < 2 ? 1 : jobs > 16 ? 16 : jobs;
    tally_t *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED) bail_out("no shared memory");
    double start = seconds();
    pid_t children[16];
    int status, bad = 0;
    fflush(stdout);
    for (int j = 0; j < jobs; j++)
        if ((children[j] = fork()) == 0) {
            some_specialisations(dir, j, (int)jobs, all, start, t);
            fflush(stdout);
            _exit(0);
        }
    for (int j = 0; j < jobs; j++)
        bad += children[j] < 0 || waitpid(children[j], &status, 0) != children[j] || status != 0;
    if (t->left > 0) diag("%d more were left out after 90 seconds; ATTN_TEST_LONG=1 takes the time", t->left);
    ok(t->failed == 0 && bad == 0 && t->count > 0,
       "%d specialisations compile for sm_80 and sm_90 (%d do not; %.1f s)", t->count, t->failed,
       seconds() - start);
    munmap(t, sizeof *t);
}

int main(void) {
    ATTN_INIT(attn_error_t, e);
    triton_nvrtc_t nvrtc;
    if (triton_nvrtc_open(&nvrtc, "", 90, &e) != ATTN_OK) skip_all("%s", e.text);
    diag("NVRTC %d.%d", nvrtc.major, nvrtc.minor);
    triton_nvrtc_close(&nvrtc);
    char dir[] = "/tmp/attn-triton-compile-XXXXXX", command[128];
    if (mkdtemp(dir) == NULL) bail_out("no temporary folder");
    all_specialisations(dir);
    programs(dir);
    kept_code(dir);
    polite_compile();
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command) != 0) diag("%s is left", dir);
    return tap_done();
}
