/* SPDX-License-Identifier: Apache-2.0 */
/* CPU_ATTN through its operations: options, sizes of its buffers, one call per level, and a call after
 * fork(). */
#include "cpu_instance.h"
#include "../../tap.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOKENS = 400, HEADS = 4, SIZE = 32 }; /* enough work for a team of threads */

static attn_problem_t encoder(void) {
    ATTN_INIT(attn_problem_t, p);
    p.role = ATTN_ROLE_ENCODER_ONLY;
    p.mask = ATTN_MASK_FULL;
    p.dtype = ATTN_DTYPE_FLOAT32;
    p.num_heads = HEADS;
    p.head_size = SIZE;
    p.scale = 0.2;
    return p;
}

static int open_with(const attn_problem_t *p, const char *level, int threads, attn_instance_t **in,
                     attn_error_t *error) {
    attn_option_value_t o[CPU_NUM_OPTIONS] = {{.struct_size = sizeof o[0], .s = level},
                                              {.struct_size = sizeof o[0], .i = threads}};
    return cpu_open(p, NULL, o, CPU_NUM_OPTIONS, NULL, in, error);
}

/* One call; out[TOKENS * HEADS * SIZE]. Returns the status. */
static int call(attn_instance_t *in, const float *x, float *out, attn_error_t *error) {
    const int32_t start[2] = {0, TOKENS}, len[1] = {TOKENS};
    int64_t shape[3] = {TOKENS, HEADS, SIZE}, strides[3] = {HEADS * SIZE, SIZE, 1};
    DLTensor q = {.data = (void *)(uintptr_t)x, .device = {kDLCPU, 0}, .ndim = 3, .dtype = {kDLFloat, 32, 1}};
    q.shape = shape;
    q.strides = strides;
    DLTensor o = q;
    o.data = out;
    attn_space_needed_t need = {.struct_size = sizeof need};
    cpu_space_needed(in, &need, error);
    attn_space_t s = {.struct_size = sizeof s,
                      .metadata_bytes = need.metadata_bytes,
                      .workspace_bytes = need.workspace_bytes};
    s.metadata = aligned_alloc(64, (need.metadata_bytes + 63) & ~UINT64_C(63));
    s.workspace = aligned_alloc(64, (need.workspace_bytes + 63) & ~UINT64_C(63));
    attn_batch_t b = {.struct_size = sizeof b, .num_reqs = 1, .num_actual_tokens = TOKENS};
    b.query_start_loc_host = start;
    b.seq_lens_host = len;
    attn_forward_t f = {.struct_size = sizeof f, .query = &q, .key = &q, .value = &q, .output = &o};
    int status = cpu_build_metadata(in, &b, &s, NULL, error);
    if (status == ATTN_OK) status = cpu_forward(in, &f, &s, NULL, error);
    free(s.metadata);
    free(s.workspace);
    return status;
}

/* What a child's body ends with; 14 (SIGALRM) if it hangs. */
static int in_child(int (*body)(const float *x, const float *want), const float *x, const float *want) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        _exit(body(x, want));
    }
    int state = -1;
    waitpid(child, &state, 0);
    return state;
}

static int open_and_call(const float *x, const float *want) {
    static float out[TOKENS * HEADS * SIZE];
    attn_error_t error = {.struct_size = sizeof error};
    const attn_problem_t p = encoder();
    attn_instance_t *in = NULL;
    int bad = open_with(&p, "generic", 4, &in, &error) != ATTN_OK || call(in, x, out, &error) != ATTN_OK;
    for (int i = 0; !bad && i < TOKENS * HEADS * SIZE; i++)
        bad = !(fabsf(out[i] - want[i]) < 1e-5f);
    cpu_close(in);
    return bad;
}

/* No thread can start: root's limit does not count, so that root becomes somebody else. */
static int without_threads(const float *x, const float *want) {
    const struct rlimit one = {1, 1};
    if (setrlimit(RLIMIT_NPROC, &one) != 0 || (geteuid() == 0 && setuid(65534) != 0)) return 77;
    return open_and_call(x, want);
}

int main(void) {
    uint64_t rng = tap_seed();
    static float x[TOKENS * HEADS * SIZE], first[TOKENS * HEADS * SIZE], out[TOKENS * HEADS * SIZE];
    attn_error_t error = {.struct_size = sizeof error};
    attn_problem_t p = encoder();
    attn_instance_t *in = NULL;
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)tap_rand_normal(&rng);

    ok(open_with(&p, "generic", 1, &in, &error) == ATTN_OK && call(in, x, first, &error) == ATTN_OK,
       "one thread");
    cpu_close(in);
    is_int(in_child(without_threads, x, first), 0, "where threads cannot start, one computes");

    int opened = 0;
    for (int l = 0; cpu_levels[l] != NULL; l++) {
        const struct cpu_kernels *k = cpu_levels[l];
        const uint32_t missing = k->needs & ~cpu_bits();
        if (missing != 0) {
            int bit = 0;
            while (!(missing >> bit & 1))
                bit++;
            is_int(open_with(&p, k->name, 1, &in, &error), ATTN_E_UNSUPPORTED, "%s cannot run here", k->name);
            is_str(error.param, "level", "the error names the option");
            has_str(error.text, cpu_bit_name(bit), "and the missing bit");
            continue;
        }
        double worst = 0;
        ok(open_with(&p, k->name, 2, &in, &error) == ATTN_OK, "%s opens", k->name);
        ok(call(in, x, opened ? out : first, &error) == ATTN_OK, "%s runs", k->name);
        for (size_t i = 0; opened && i < sizeof x / sizeof *x; i++)
            worst = fmax(worst, fabs((double)out[i] - (double)first[i]));
        ok(worst < 1e-5, "%s agrees with the first level (%.1e)", k->name, worst);
        opened++;
        cpu_close(in);
    }

    ok(open_with(&p, "auto", 2, &in, &error) == ATTN_OK && call(in, x, first, &error) == ATTN_OK,
       "two threads");
    const pid_t child = fork();
    if (child == 0) {
        alarm(20); /* a call that waits for the parent's team ends here */
        const int same = call(in, x, out, &error) == ATTN_OK && memcmp(out, first, sizeof out) == 0;
        _exit(same ? 0 : 1);
    }
    int state = -1;
    waitpid(child, &state, 0);
    is_int(state, 0, "a child after fork runs the same call on its own");
    cpu_close(in);
    is_int(in_child(open_and_call, x, first), 0, "and so does one that opens an instance of its own");

    ATTN_INIT(attn_problem_t, d);
    d.role = ATTN_ROLE_DECODER;
    d.mask = ATTN_MASK_CAUSAL;
    d.dtype = ATTN_DTYPE_BFLOAT16;
    d.num_heads = 32;
    d.num_kv_heads = 8;
    d.head_size = 128;
    d.scale = 0.088;
    d.max_model_len = 1 << 20;
    attn_space_needed_t need = {.struct_size = sizeof need};
    ok(open_with(&d, "auto", 2, &in, &error) == ATTN_OK && cpu_space_needed(in, &need, &error) == ATTN_OK,
       "a decoder");
    attn_instance_t *huge = NULL;
    attn_problem_t h = d;
    h.num_heads = h.num_kv_heads = 65536;
    h.head_size = 1;
    h.max_num_seqs = h.max_num_batched_tokens = 1u << 30;
    for (uint32_t group = 1; group <= 65536; group *= 4) {
        h.num_kv_heads = 65536 / group;
        int code = open_with(&h, "auto", 2, &huge, &error);
        attn_space_needed_t most = {.struct_size = sizeof most};
        if (code == ATTN_OK) cpu_space_needed(huge, &most, &error);
        ok(code == ATTN_E_UNSUPPORTED || most.metadata_bytes > UINT64_C(1) << 40,
           "limits whose product wraps are refused or counted: group %u, %d, %llu bytes", group, code,
           (unsigned long long)most.metadata_bytes);
        if (code == ATTN_OK) cpu_close(huge);
    }
    const uint64_t total = need.metadata_bytes + need.workspace_bytes;
    ok(total < UINT64_C(64) << 20, "a million tokens on two threads: %llu bytes, below 64 MiB",
       (unsigned long long)total);
    cpu_close(in);
    return tap_done();
}
