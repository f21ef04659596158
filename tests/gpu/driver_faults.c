/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver_faults.c: CUDA errors at the calls that the GPU plugins, their CUDA runtime and NVRTC make of the
 * driver. This program's own dlsym hands out wrappers of libcuda's functions, and the runtime asks for all of
 * them by dlsym and cuGetProcAddress. Each fault fails one call of one operation: the answer is right, or an
 * error with a text; then the same case is right to the bit, and nothing is left allocated. "First" faults
 * hit a process that opens the plugin for the first time and are a process each; the others are dealt out to
 * a few. Besides: a context that a trap or a wild store lost; another current device where there are two.
 * folder of the plugins; GPU_FAULTS_ONLY: one of them, "mla with cuBLAS" say.
 */
#include "gpu_memory.h"
#include "kit/case/case_run.h"
#include "mla_options.h"
#include "../tap.h"

#include <attn/attn_plugin_util.h>

#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ------------------------------------------------------------- the false driver */

typedef long (*driver_fn)(long, long, long, long, long, long, long, long, long, long, long, long);
enum { MAX_SLOTS = 640, MAX_CALLS = 8192, TEXT = 48, NO_MEMORY = 2, UNKNOWN = 999 };
static struct {
    char name[TEXT];
    driver_fn real;
} slots[MAX_SLOTS];
static int num_slots;

/* What may be left behind, by the calls that make and end it. */
static const struct {
    const char *what, *makes, *ends;
} balances[] = {
    {"device memory", "cuMemAlloc", "cuMemFree"},      {"host memory", "cuMemHostAlloc", "cuMemFreeHost"},
    {"a module", "cuModuleLoad", "cuModuleUnload"},    {"a library", "cuLibraryLoad", "cuLibraryUnload"},
    {"a stream", "cuStreamCreate", "cuStreamDestroy"}, {"an event", "cuEventCreate", "cuEventDestroy"},
    {"a pushed context", "cuCtxPush", "cuCtxPop"}};
enum { BALANCES = sizeof balances / sizeof balances[0] };

static struct {
    int is_inside;               /* an operation of the plugin */
    int is_closing, was_closing; /* that is close; while a call failed */
    int code;
    long calls, fail_at; /* of this run; -1: none */
    int sequence[MAX_CALLS];
    long made[BALANCES];
    char failed[TEXT];
} faults = {.fail_at = -1};

static int begins(const char *name, const char *with) {
    return strncmp(name, with, strlen(with)) == 0;
}
static int is_ending(const char *name) {
    return strstr(name, "Free") || strstr(name, "Destroy") || strstr(name, "Unload") || strstr(name, "Pop") ||
           strstr(name, "Release");
}

static long call(int slot, long a, long b, long c, long d, long e, long f, long g, long h, long i, long j,
                 long k, long l);
#define W(N)                                                                                                 \
    static long w##N(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, \
                     long l) {                                                                               \
        return call(0x##N, a, b, c, d, e, f, g, h, i, j, k, l);                                              \
    }
#define W16(N)                                                                                               \
    W(N##0)                                                                                                  \
    W(N##1)                                                                                                  \
    W(N##2) W(N##3) W(N##4) W(N##5) W(N##6) W(N##7) W(N##8) W(N##9) W(N##a) W(N##b) W(N##c) W(N##d) W(N##e)  \
        W(N##f)
#define N16(N)                                                                                               \
    w##N##0, w##N##1, w##N##2, w##N##3, w##N##4, w##N##5, w##N##6, w##N##7, w##N##8, w##N##9, w##N##a,       \
        w##N##b, w##N##c, w##N##d, w##N##e, w##N##f
#define ALL(X, S)                                                                                            \
    X(00)                                                                                                    \
    S X(01) S X(02) S X(03) S X(04) S X(05) S X(06) S X(07) S X(08) S X(09) S X(0a) S X(0b) S X(0c) S X(0d)  \
        S X(0e) S X(0f) S X(10) S X(11) S X(12) S X(13) S X(14) S X(15) S X(16) S X(17) S X(18) S X(19)      \
            S X(1a) S X(1b) S X(1c) S X(1d) S X(1e) S X(1f) S X(20) S X(21) S X(22) S X(23) S X(24) S X(25)  \
                S X(26) S X(27)
#define NOTHING
#define COMMA ,
ALL(W16, NOTHING)
static const driver_fn wrappers[MAX_SLOTS] = {ALL(N16, COMMA)};

static void *wrapped(const char *name, void *real) {
    driver_fn f;
    memcpy(&f, &real, sizeof f);
    for (int i = 0; i < num_slots; i++)
        if (slots[i].real == f && strcmp(slots[i].name, name) == 0) {
            memcpy(&real, &wrappers[i], sizeof real);
            return real;
        }
    for (int i = 0; i < MAX_SLOTS && real != NULL; i++)
        if (f == wrappers[i]) return real;
    if (real == NULL || num_slots == MAX_SLOTS || strlen(name) >= TEXT) return real;
    strcpy(slots[num_slots].name, name);
    slots[num_slots].real = f;
    memcpy(&real, &wrappers[num_slots++], sizeof real);
    return real;
}

static long call(int slot, long a, long b, long c, long d, long e, long f, long g, long h, long i, long j,
                 long k, long l) {
    const char *name = slots[slot].name;
    const int is_inside = faults.is_inside;
    int is_failed = 0;
    if (is_inside) {
        if (faults.calls < MAX_CALLS) faults.sequence[faults.calls] = slot;
        is_failed = faults.calls++ == faults.fail_at;
        if (is_failed) strcpy(faults.failed, name), faults.was_closing = faults.is_closing;
        if (is_failed && !is_ending(name)) return faults.code;
    }
    const long status = (int)slots[slot].real(a, b, c, d, e, f, g, h, i, j, k, l);
    if (status == 0 && begins(name, "cuGetProcAddress") && b != 0)
        *(void **)b = wrapped((const char *)a, *(void **)b);
    for (int x = 0; x < BALANCES && is_inside && status == 0; x++) {
        /* cuMemFree begins cuMemFreeHost and cuMemFreeAsync too */
        const int is_host = begins(name, "cuMemFreeHost");
        if (begins(name, balances[x].makes)) faults.made[x]++;
        if (begins(name, balances[x].ends) && (x == 1 || !is_host)) faults.made[x]--;
    }
    return is_failed ? faults.code : status; /* what ends something reports an error of before */
}

/* In place of libc's for the whole process. */
__attribute__((visibility("default"))) void *dlsym(void *restrict handle, const char *restrict name) {
    static void *(*real)(void *, const char *);
    if (real == NULL) {
        void *p = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        if (p == NULL) p = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        memcpy(&real, &p, sizeof real);
    }
    void *found = real(handle, name);
    if (found == NULL || name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z') return found;
    if (strcmp(name, "cuGetErrorString") == 0 || strcmp(name, "cuGetErrorName") == 0) return found;
    return wrapped(name, found);
}

/* ------------------------------------------------------------------- the plugins */

static const attn_backend_ops_t *real_ops;
static int other_device = -1; /* to be current during operations */
static int changed_device;

static void inside(void) {
    if (other_device >= 0) cudaSetDevice(other_device);
    faults.is_inside = 1;
}
static int outside(int status) {
    int current = -1;
    faults.is_inside = 0;
    if (other_device < 0) return status;
    cudaGetDevice(&current);
    changed_device += current != other_device;
    cudaSetDevice(0);
    return status;
}
static int f_open(const attn_problem_t *p, const attn_device_t *d, const attn_option_value_t *o, uint32_t n,
                  const attn_host_t *h, attn_instance_t **x, attn_error_t *e) {
    return inside(), outside(real_ops->open(p, d, o, n, h, x, e));
}
static void f_close(attn_instance_t *x) {
    faults.is_closing = 1;
    inside(), real_ops->close(x), outside(0);
    faults.is_closing = 0;
}
static int f_shape(attn_instance_t *x, int64_t n, attn_kv_cache_shape_t *s, attn_error_t *e) {
    return inside(), outside(real_ops->kv_cache_shape(x, n, s, e));
}
static int f_space(attn_instance_t *x, attn_space_needed_t *n, attn_error_t *e) {
    return inside(), outside(real_ops->space_needed(x, n, e));
}
static int f_build(attn_instance_t *x, const attn_batch_t *b, const attn_space_t *s, void *t,
                   attn_error_t *e) {
    return inside(), outside(real_ops->build_metadata(x, b, s, t, e));
}
static attn_kv_update_t last_update;
static attn_weights_t last_weights;
static int f_update(attn_instance_t *x, const attn_kv_update_t *a, void *t, attn_error_t *e) {
    last_update = *a;
    return inside(), outside(real_ops->update_kv_cache(x, a, t, e));
}
static int f_forward(attn_instance_t *x, const attn_forward_t *a, const attn_space_t *s, void *t,
                     attn_error_t *e) {
    return inside(), outside(real_ops->forward(x, a, s, t, e));
}
static int f_weights(attn_instance_t *x, const attn_weights_t *w, void *t, attn_error_t *e) {
    last_weights = *w;
    return inside(), outside(real_ops->prepare_weights(x, w, t, e));
}

static const struct {
    const char *name, *file;
    uint32_t role;
    int has_blas; /* cuBLAS keeps memory of its own */
    int32_t lens[3][2];
} plugins[] = {{"flash", "flash", ATTN_ROLE_DECODER, 0, {{1, 300}, {40, 70}, {1, 5}}},
               {"triton_like", "triton_like", ATTN_ROLE_DECODER, 0, {{1, 300}, {40, 70}, {1, 5}}},
               {"mm_encoder", "mm_encoder", ATTN_ROLE_MM_ENCODER, 0, {{70, 70}, {33, 33}}},
               {"mla", "mla", ATTN_ROLE_MLA, 0, {{1, 300}, {40, 70}, {1, 5}}},
               {"mla with cuBLAS", "mla", ATTN_ROLE_MLA, 1, {{1, 300}, {40, 70}, {1, 5}}},
               {"mla_sparse", "mla_sparse", ATTN_ROLE_MLA_SPARSE, 0, {{1, 300}, {4, 70}}}};
enum { PLUGINS = sizeof plugins / sizeof plugins[0] };
static attn_backend_ops_t false_ops;
static attn_backend_t false_backend;
static kit_case_t the_case;
static kit_inputs_t *inputs;

/* Of a child: nothing of CUDA was touched before. 0, or -1 where there is no device. */
static int load(int plugin) {
    char path[1200], cwd[900] = ".", why[256] = "";
    const char *dir = getenv("GPU_FAULTS_PLUGINS");
    if (gpu_start() != 0) return -1;
    cudaFree(NULL);
    if (dir == NULL && getcwd(cwd, sizeof cwd) == NULL) return -1;
    snprintf(path, sizeof path, "%s%s/%s.so", dir != NULL ? dir : cwd, dir != NULL ? "" : "/plugins-built",
             plugins[plugin].file);
    const attn_backend_t *b = kit_load(path, NULL, why, sizeof why);
    if (b == NULL) {
        diag("%s: %s", path, why);
        return -1;
    }
    real_ops = b->ops;
    false_ops = *b->ops, false_backend = *b, false_backend.ops = &false_ops;
    false_ops.open = f_open, false_ops.close = f_close, false_ops.kv_cache_shape = f_shape;
    false_ops.space_needed = f_space, false_ops.build_metadata = f_build, false_ops.forward = f_forward;
    if (b->ops->update_kv_cache != NULL) false_ops.update_kv_cache = f_update;
    if (b->ops->prepare_weights != NULL) false_ops.prepare_weights = f_weights;
    kit_case_start(&the_case, plugins[plugin].role, 5);
    if (plugins[plugin].role == ATTN_ROLE_MLA)
        kit_case_set_mla(&the_case, 16, 512, 64, 128, 128, 0);
    else if (plugins[plugin].role == ATTN_ROLE_MLA_SPARSE)
        kit_case_set_mla(&the_case, 16, 512, 64, 128, 128, 128);
    else
        the_case.problem.head_size = 128;
    if (attn_role_is_mla(plugins[plugin].role)) {
        the_case.problem.block_size = 64;
        mla_test_set(MLA_TEST_PROJECTIONS, plugins[plugin].has_blas ? "auto" : "own");
        gpu.options = mla_test_options, gpu.num_options = mla_test_num_options(plugins[plugin].role);
    }
    the_case.problem.dtype = ATTN_DTYPE_BFLOAT16;
    for (int r = 0; r < 3 && plugins[plugin].lens[r][1] > 0; r++)
        kit_case_add(&the_case, plugins[plugin].lens[r][0], plugins[plugin].lens[r][1]);
    inputs = kit_inputs_make(&the_case);
    return inputs != NULL ? 0 : -1;
}

static int run(kit_result_t *result, long fail_at, int code) {
    faults.calls = 0, faults.fail_at = fail_at, faults.code = code, faults.failed[0] = '\0';
    faults.was_closing = 0;
    kit_run(&false_backend, &the_case, inputs, &gpu, result);
    faults.fail_at = -1;
    return result->status;
}

/* -------------------------------------------------------------------- the faults */

enum outcome { SERVED, REFUSED, NOT_REACHED, UNEXPLAINED, WRONG, UNUSABLE, LEFT, OUTCOMES };
static const char *const outcome_names[OUTCOMES] = {
    "served",        "refused with a text",   "not reached",      "an error without a text",
    "wrong numbers", "not usable afterwards", "something is left"};
enum { STATUS_OF_OUTCOMES = 64, STATUS_NO_DEVICE = 63 };

static int equal(const kit_result_t *a, const kit_result_t *b) {
    return a->num_out == b->num_out && a->fault[0] == '\0' &&
           memcmp(a->out, b->out, (size_t)a->num_out * sizeof *a->out) == 0;
}

/* A hurt run, then a good one. good: what is right; NULL: the good run's result is. */
static enum outcome hurt(long at, int code, const kit_result_t *good, int blas, int show) {
    kit_result_t bad, again;
    long before[BALANCES];
    memcpy(before, faults.made, sizeof before);
    run(&bad, at, code);
    char failed[TEXT];
    strcpy(failed, faults.failed);
    const int was_closing = faults.was_closing;
    enum outcome o = failed[0] == '\0'           ? NOT_REACHED
                     : bad.status == ATTN_OK     ? SERVED
                     : bad.error.text[0] != '\0' ? REFUSED
                                                 : UNEXPLAINED;
    if (run(&again, -1, 0) != ATTN_OK)
        o = UNUSABLE;
    else if ((o == SERVED && !equal(&bad, &again)) || (good != NULL && !equal(good, &again)))
        o = WRONG;
    /* close cannot say that it could not get to its context, nor try again later */
    const int is_exact = good != NULL && !blas && !was_closing;
    for (int i = 0; i < BALANCES && is_exact && o < UNEXPLAINED; i++)
        if (faults.made[i] != before[i]) {
            o = LEFT;
            diag("%s left by call %ld, %s", balances[i].what, at, failed);
        }
    if (o > NOT_REACHED && show)
        diag("call %ld, %s = %d: %s; %s: %s; then %s %s", at, failed, code, outcome_names[o], bad.operation,
             bad.error.text, again.operation, again.error.text);
    kit_result_free(&bad), kit_result_free(&again);
    return o;
}

static void show(const char *plugin, const char *what, const int *count) {
    int tried = 0, bad = 0;
    for (int i = 0; i < OUTCOMES; i++)
        tried += count[i], bad += i > NOT_REACHED ? count[i] : 0;
    diag("%-15s %-14s %4d tried: %3d served, %3d refused with a text, %d not reached, %d refused for good, "
         "%d other",
         plugin, what, tried, count[SERVED], count[REFUSED], count[NOT_REACHED], count[UNUSABLE],
         bad - count[UNUSABLE]);
}

/* What the processes of one plugin count together. */
enum { SHARES = 6, OFTEN = 4, ONE_IN = 8 };
static atomic_int *counts;

/* cuBLAS makes its handle with hundreds of calls of a few kinds: of each kind the first ones, and then one in
 * ONE_IN. */
static int is_tried(int plugin, const int *sequence, long at) {
    int before = 0;
    for (long i = 0; i < at; i++)
        before += sequence[i] == sequence[at];
    return !plugins[plugin].has_blas || before < OFTEN || before % ONE_IN == 0;
}

/* The whole of a child, which tries one call in SHARES; the first one writes the calls of its first run to a
 * pipe. */
static int warm(int plugin, int share, int to) {
    static int sequence[MAX_CALLS];
    kit_result_t good;
    int bad = 0;
    if (load(plugin) != 0) return STATUS_NO_DEVICE;
    if (run(&good, -1, 0) != ATTN_OK) {
        diag("%s: %s: %s", plugins[plugin].name, good.operation, good.error.text);
        return 1;
    }
    for (long i = 0; share == 0 && i < faults.calls && i < MAX_CALLS; i++)
        if (write(to, slots[faults.sequence[i]].name, TEXT) != TEXT) return 1;
    kit_result_free(&good);
    run(&good, -1, 0); /* what is made once is made */
    const long calls = faults.calls < MAX_CALLS ? faults.calls : MAX_CALLS;
    memcpy(sequence, faults.sequence, sizeof sequence);
    long turn = 0;
    for (long i = 0; i < calls; i++)
        for (int k = 0; k < 2 && is_tried(plugin, sequence, i); k++) {
            if (turn++ % SHARES != share) continue;
            const enum outcome o =
                hurt(i, k ? UNKNOWN : NO_MEMORY, &good, plugins[plugin].has_blas, bad < 20);
            atomic_fetch_add(&counts[o], 1), bad += o > NOT_REACHED;
        }
    if (share == 0) diag("%-15s %ld driver calls when it was opened before", plugins[plugin].name, calls);
    kit_result_free(&good);
    return bad != 0;
}

static int first(int plugin, long at, int code) {
    if (load(plugin) != 0) return STATUS_NO_DEVICE;
    return STATUS_OF_OUTCOMES + (int)hurt(at, code, NULL, 1, 0);
}

/* Every operation on an instance of a lost context: an error that says what. */
static int all_refuse(const char *plugin, const char *which, const kit_run_t *x, attn_instance_t *instance) {
    static const char *const names[] = {"update_kv_cache", "prepare_weights", "build_metadata", "forward"};
    int bad = 0;
    for (int i = 0; i < 4; i++) {
        attn_error_t error = {.struct_size = sizeof error};
        if ((i == 0 && last_update.struct_size == 0) || (i == 1 && last_weights.struct_size == 0)) continue;
        const int status = i == 0   ? false_ops.update_kv_cache(instance, &last_update, NULL, &error)
                           : i == 1 ? false_ops.prepare_weights(instance, &last_weights, NULL, &error)
                           : i == 2 ? false_ops.build_metadata(instance, &x->batch, &x->space, NULL, &error)
                                    : false_ops.forward(instance, &x->args, &x->space, NULL, &error);
        const int is_good = status != ATTN_OK && error.text[0] != '\0';
        if (!is_good || i == 3)
            diag("%-15s lost context, %s instance: %s%s: %d %s", plugin, which, is_good ? "" : "NOT ",
                 names[i], status, error.text);
        bad += !is_good;
    }
    return bad;
}

/* A kernel of the engine that traps, or stores where nothing is, loses the context: then every operation is
 * an error, of an instance that was used before and of one that was not, and closing both is possible. */
static int lost(int plugin, int is_wild) {
#define PTX(BODY) ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry t()\n{\n" BODY "}\n"
    static const char *const kernels[2] = {
        PTX("trap;\n"), PTX(".reg .u64 %a;\n.reg .u32 %x;\nmov.u64 %a, 8;\nmov.u32 %x, 0;\n"
                            "st.global.u32 [%a], %x;\nret;\n")};
    kit_result_t result, second;
    kit_run_t x;
    attn_instance_t *unused = NULL;
    attn_error_t error = {.struct_size = sizeof error};
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *module = NULL, *function = NULL;
    if (load(plugin) != 0 || library == NULL) return STATUS_NO_DEVICE;
    int (*module_load)(void **, const void *), (*get)(void **, void *, const char *);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                  void **, void **);
    const struct {
        const char *name;
        void *to;
    } wanted[] = {
        {"cuModuleLoadData", &module_load}, {"cuModuleGetFunction", &get}, {"cuLaunchKernel", &launch}};
    for (int i = 0; i < 3; i++) {
        void *p = dlsym(library, wanted[i].name);
        memcpy(wanted[i].to, &p, sizeof p);
    }
    int status = kit_run_open(&x, &false_backend, &the_case, inputs, &gpu, &result);
    if (status == ATTN_OK) status = kit_run_fill(&x);
    if (status == ATTN_OK) status = kit_run_update(&x);
    if (status == ATTN_OK) status = kit_run_prepare(&x);
    if (status == ATTN_OK) status = kit_run_outputs(&x);
    if (status == ATTN_OK) status = kit_run_build(&x);
    if (status == ATTN_OK) status = kit_run_forward(&x);
    const attn_device_t device = {
        .struct_size = sizeof device, .type = kDLCUDA, .compute_capability = gpu.compute_capability};
    if (status == ATTN_OK)
        status = false_ops.open(&the_case.problem, &device, gpu.options, gpu.num_options, gpu.host, &unused,
                                &error);
    if (status != ATTN_OK || module_load(&module, kernels[is_wild]) != 0 ||
        get(&function, module, "t") != 0 || launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) != 0) {
        diag("%s: no lost context was made: %s %s %s", plugins[plugin].name, result.operation,
             result.error.text, error.text);
        return 1;
    }
    const int is_lost = cudaDeviceSynchronize() != cudaSuccess;
    const char *name = plugins[plugin].name;
    const int bad = all_refuse(name, "a used", &x, x.instance) + all_refuse(name, "an unused", &x, unused);
    false_ops.close(unused);
    kit_run_close(&x);
    kit_run_open(&x, &false_backend, &the_case, inputs, &gpu, &second);
    diag("%-15s               %s: %s", name, second.operation, second.error.text);
    return !(is_lost && bad == 0 && second.status != ATTN_OK && second.error.text[0] != '\0');
}

/* Another device is current during every operation, and stays so. */
static int elsewhere(int plugin) {
    kit_result_t want, got;
    if (load(plugin) != 0) return STATUS_NO_DEVICE;
    run(&want, -1, 0);
    other_device = 1;
    run(&got, -1, 0);
    return !(want.status == ATTN_OK && got.status == ATTN_OK && equal(&want, &got) && changed_device == 0);
}

/* -------------------------------------------------------------------- processes */

/* at: the call that fails first, the share of a warm one, or 1 for a wild store. */
static pid_t start(int kind, int plugin, long at, int code, int to) {
    fflush(stdout);
    const pid_t pid = fork();
    if (pid != 0) return pid;
    const struct rlimit core = {0, 0};
    setrlimit(RLIMIT_CORE, &core);
    alarm(120);
    const int status = kind == 0   ? warm(plugin, (int)at, to)
                       : kind == 1 ? first(plugin, at, code)
                       : kind == 2 ? lost(plugin, (int)at)
                                   : elsewhere(plugin);
    fflush(stdout);
    _exit(status);
}

static int ended(pid_t pid) {
    int status = 0;
    if (waitpid(pid, &status, 0) < 0) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void firsts(int plugin, char (*names)[TEXT], long n) {
    enum { AT_ONCE = 6 };
    pid_t pids[AT_ONCE];
    long at[AT_ONCE];
    int running = 0, count[OUTCOMES] = {0}, bad = 0, lookups = 0;
    for (long i = 0; i <= n; i++) {
        int is_new = i < n;
        for (long j = 0; j < i && is_new; j++)
            is_new = strcmp(names[i], names[j]) != 0;
        if (i < n && begins(names[i], "cuGetProcAddress")) is_new = lookups++ % 60 == 0;
        if (is_new) at[running] = i, pids[running++] = start(1, plugin, i, i % 2 ? UNKNOWN : NO_MEMORY, -1);
        for (; running > 0 && (running == AT_ONCE || i == n); running--) {
            const int status = ended(pids[running - 1]), outcome = status - STATUS_OF_OUTCOMES;
            const int is_outcome = outcome >= 0 && outcome < OUTCOMES;
            if (is_outcome) count[outcome]++;
            /* the CUDA runtime remembers that it did not start */
            if (is_outcome && (outcome <= NOT_REACHED || outcome == UNUSABLE)) continue;
            bad++;
            diag("%s: first call %ld, %s: %s %d", plugins[plugin].name, at[running - 1],
                 names[at[running - 1]], is_outcome ? outcome_names[outcome] : "ended with", status);
        }
    }
    show(plugins[plugin].name, "first", count);
    ok(bad == 0, "%s: errors of a first start are served or refused with a text", plugins[plugin].name);
}

int main(void) {
    static char names[MAX_CALLS][TEXT];
    const char *only = getenv("GPU_FAULTS_ONLY");
    int count = 0;
    /* in a child: CUDA does not survive a fork */
    fflush(stdout);
    const pid_t asks = fork();
    if (asks == 0) _exit(cudaGetDeviceCount(&count) == cudaSuccess ? count : 0);
    count = ended(asks);
    if (count <= 0) skip_all("no CUDA device");
    counts = mmap(NULL, OUTCOMES * sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED) bail_out("no memory");
    for (int p = 0; p < PLUGINS; p++) {
        const char *name = plugins[p].name;
        if (only != NULL && strcmp(only, name) != 0) continue;
        int ends[2], status = 0, sums[OUTCOMES];
        pid_t pids[SHARES];
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        if (pipe(ends) != 0) bail_out("no pipe");
        for (int i = 0; i < OUTCOMES; i++)
            atomic_store(&counts[i], 0);
        for (int i = 0; i < SHARES; i++)
            pids[i] = start(0, p, i, 0, ends[1]);
        close(ends[1]);
        long n = 0;
        while (n < MAX_CALLS && read(ends[0], names[n], TEXT) == TEXT)
            n++;
        close(ends[0]);
        for (int i = 0; i < SHARES; i++) {
            const int one = ended(pids[i]);
            if (one != 0) status = one;
        }
        for (int i = 0; i < OUTCOMES; i++)
            sums[i] = atomic_load(&counts[i]);
        show(name, "opened before", sums);
        is_int(status, 0, "%s: each of its driver calls may fail", name);
        diag("%-15s %ld driver calls when it is opened first", name, n);
        ok(n > 20, "%s: the calls of its runtime are seen", name);
        firsts(p, names, n);
        is_int(ended(start(2, p, 0, 0, -1)), 0, "%s: a context that a trap lost is an error", name);
        is_int(ended(start(2, p, 1, 0, -1)), 0, "%s: so is one that a wild store lost", name);
        if (count > 1)
            is_int(ended(start(3, p, 0, 0, -1)), 0, "%s: another current device stays current", name);
        else
            skip(1, "%s: another current device: there is one device", name);
        clock_gettime(CLOCK_MONOTONIC, &to);
        diag("%-15s took %.0f s", name, (double)(to.tv_sec - from.tv_sec));
    }
    return tap_done();
}
