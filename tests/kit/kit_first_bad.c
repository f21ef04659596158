/* SPDX-License-Identifier: Apache-2.0 */
/* kit_first_bad.c: the reference plugin with one mistake, -DMISTAKE=name, for tests/kit/kit_first.sh: what
 * two threads begin at once, what is kept from one call or instance for another, and sizes at which
 * something else begins. It has two options, pieces and width, of 1 to 64. -DREFERENCE="path" is the
 * plugin that does the work. */
#define _GNU_SOURCE
#define BAD_NAME "BAD_FIRST"
#include "over_reference.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

enum mistakes {
    NOTHING,
    TABLE_WITHOUT_LOCK, /* filled by the first open, which says first that it is full */
    STATIC_ROWS,        /* of update_kv_cache, through one buffer of the process */
    WINDOW_OF_16_BITS,
    ALIGNED_ROWS,      /* by 32 bytes */
    PARTS_OF_CALLER,   /* by the processors of the thread that builds */
    SCALE_OF_HEAD,     /* where one is given for all */
    KEEPS_LENS_OF_70,  /* requests and more: the address of the host's */
    QUERY_OF_16_BITS,  /* tokens of a request */
    EMPTY_PART,        /* of sixteen, of 64 keys or a multiple each: what was there */
    LAST_ONE_OPENED,   /* its option serves all */
    ROOM_FOR_GROUP,    /* of 32 heads and more: forward takes it */
    SLOPES_BY_ADDRESS, /* are copied */
    PRODUCT_OF_7_BITS, /* of both options */
    ROWS_BEYOND_256,   /* columns, with 64 pieces */
    CAP_OF_LAST,       /* opened serves all */
    WINDOW_OF_LAST,    /* likewise */
    SINK_OF_LAST,      /* likewise */
    FIRST_LONGEST,     /* and 4096 more are what later batches may have */
    TABLE_OF_FP8,      /* filled as TABLE_WITHOUT_LOCK */
    TEAM_FLUSHES,      /* small numbers to 0, ever after */
    TEAM_IS_BOUND      /* to one processor */
};

static attn_problem_t problem; /* of the last open */
static int64_t pieces, width;
static struct {
    const attn_instance_t *instance;
    int64_t pieces;
    attn_problem_t problem;
} opened[64]; /* the last ones, in turns */
static unsigned num_opened;
static int32_t first_longest; /* of the first batch that was built */
static int num_cpus, is_off;
static volatile int is_filled;
static const int32_t *host_lens;
static int32_t lens_of_host;
static const void *slopes_at;
static float slopes[256], row[4096];
static volatile float table[4096];

/* In each thread of the OpenMP runtime. */
static void spoil_thread(void *unused) {
    (void)unused;
#if defined(__x86_64__)
    if (MISTAKE == TEAM_FLUSHES && gettid() != getpid())
        __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#endif
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (MISTAKE != TEAM_IS_BOUND || sched_getaffinity(0, sizeof all, &all) != 0 || gettid() == getpid())
        return;
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
    sched_setaffinity(0, sizeof one, &one);
}
static void spoil_team(void) {
    void (*region)(void (*body)(void *), void *data, unsigned threads, unsigned flags) = NULL;
    void *runtime = dlopen("libgomp.so.1", RTLD_NOW);
    if (runtime != NULL) *(void **)&region = dlsym(runtime, "GOMP_parallel");
    if (region != NULL) region(spoil_thread, NULL, 4, 0);
}

static int open_bad(const attn_problem_t *args, const attn_device_t *device,
                    const attn_option_value_t *options, uint32_t num_options, const attn_host_t *given,
                    attn_instance_t **i, attn_error_t *error) {
    PASS_ON(open, args, device, NULL, 0, given, i, error);
    if ((MISTAKE == TABLE_WITHOUT_LOCK ||
         (MISTAKE == TABLE_OF_FP8 && attn_kv_has_static_scales(args->kv_cache_dtype))) &&
        !is_filled) {
        is_filled = 1;
        for (int j = 0; j < 4096; j++)
            table[j] = 1 + 0 * expf((float)-j * 1e-3F);
    }
    problem = *args;
    first_longest = 0;
    pieces = num_options == 2 ? options[0].i : 1;
    width = num_options == 2 ? options[1].i : 1;
    slopes_at = NULL;
    attn_problem_t p = *args;
    if (MISTAKE == WINDOW_OF_16_BITS) p.sliding_window = (uint16_t)p.sliding_window;
    const int status = target->ops->open(&p, device, NULL, 0, given, i, error);
    if (status != ATTN_OK || (MISTAKE != LAST_ONE_OPENED && MISTAKE != CAP_OF_LAST &&
                              MISTAKE != WINDOW_OF_LAST && MISTAKE != SINK_OF_LAST))
        return status;
    opened[num_opened % 64].instance = *i;
    opened[num_opened % 64].problem = *args;
    opened[num_opened++ % 64].pieces = pieces;
    return status;
}

static int is_of_another(const attn_instance_t *i) {
    for (unsigned j = num_opened; j-- > 0 && j + 64 >= num_opened;)
        if (opened[j % 64].instance == i)
            return MISTAKE == CAP_OF_LAST ? opened[j % 64].problem.logits_soft_cap != problem.logits_soft_cap
                   : MISTAKE == WINDOW_OF_LAST
                       ? opened[j % 64].problem.sliding_window != problem.sliding_window
                   : MISTAKE == SINK_OF_LAST
                       ? ((opened[j % 64].problem.features ^ problem.features) & ATTN_F_SINK) != 0
                       : opened[j % 64].pieces != pieces;
    return 0;
}

static int build(attn_instance_t *i, const attn_batch_t *args, const attn_space_t *space, void *stream,
                 attn_error_t *error) {
    PASS_ON(build_metadata, i, args, space, stream, error);
    const attn_batch_t b = *args;
    const int status = target->ops->build_metadata(i, args, space, stream, error);
    if (status != ATTN_OK) return status;
    cpu_set_t cpus;
    num_cpus = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
    is_off = 0;
    host_lens = MISTAKE == KEEPS_LENS_OF_70 && b.num_reqs >= 70 ? b.seq_lens_host : NULL;
    lens_of_host = host_lens != NULL ? host_lens[0] : 0;
    for (int32_t r = 0; r < b.num_reqs; r++)
        is_off |= MISTAKE == FIRST_LONGEST && first_longest != 0 && b.seq_lens_host[r] > first_longest + 4096;
    for (int32_t r = 0; r < b.num_reqs && first_longest == 0; r++)
        first_longest = b.seq_lens_host[r];
    for (int32_t r = 0; r < b.num_reqs; r++) {
        const int32_t chunk = (b.seq_lens_host[r] / 16 + 64) / 64 * 64;
        is_off |= MISTAKE == EMPTY_PART && b.seq_lens_host[r] > 4096 && 15 * chunk >= b.seq_lens_host[r];
        is_off |=
            MISTAKE == QUERY_OF_16_BITS && b.query_start_loc_host[r + 1] - b.query_start_loc_host[r] > 65535;
    }
    return status;
}

/* Rows of float32, each through the buffer. */
static int update(attn_instance_t *i, const attn_kv_update_t *args, void *stream, attn_error_t *error) {
    PASS_ON(update_kv_cache, i, args, stream, error);
    attn_kv_update_t a = *args;
    if (MISTAKE != STATIC_ROWS || a.key == NULL || a.key->ndim != 3 || a.key->dtype.bits != 32 ||
        a.key->shape[1] * a.key->shape[2] > 4096 || a.key->strides[0] != a.key->shape[1] * a.key->shape[2])
        return target->ops->update_kv_cache(i, &a, stream, error);
    const int64_t size = a.key->strides[0], n = a.key->shape[0];
    float *copy = malloc((size_t)(n * size + 1) * sizeof *copy);
    if (copy == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "no memory");
    for (int64_t j = 0; j < n; j++) {
        memcpy(row, (const float *)attn_data(a.key) + j * size, (size_t)size * sizeof *row);
        for (volatile int k = 0; k < 2000;) /* as long as quantising it takes */
            k = k + 1;
        memcpy(copy + j * size, row, (size_t)size * sizeof *row);
    }
    DLTensor key = *a.key;
    key.data = copy;
    key.byte_offset = 0;
    a.key = &key;
    const int status = target->ops->update_kv_cache(i, &a, stream, error);
    free(copy);
    return status;
}

static int forward(attn_instance_t *i, const attn_forward_t *args, const attn_space_t *space, void *stream,
                   attn_error_t *error) {
    PASS_ON(forward, i, args, space, stream, error);
    attn_forward_t a = *args;
    DLTensor kept;
    if (MISTAKE == SLOPES_BY_ADDRESS && a.alibi_slopes != NULL && a.alibi_slopes->shape[0] <= 256) {
        const size_t bytes = (size_t)a.alibi_slopes->shape[0] * sizeof *slopes;
        if (slopes_at != attn_data(a.alibi_slopes)) memcpy(slopes, attn_data(a.alibi_slopes), bytes);
        slopes_at = attn_data(a.alibi_slopes);
        kept = *a.alibi_slopes;
        kept.data = slopes;
        kept.byte_offset = 0;
        a.alibi_slopes = &kept;
    }
    if (MISTAKE == ROOM_FOR_GROUP && problem.num_kv_heads != 0 &&
        problem.num_heads / problem.num_kv_heads >= 32) {
        void *volatile room = malloc(4096);
        free(room);
    }
    const int status = target->ops->forward(i, &a, space, stream, error);
    if (status != ATTN_OK || space == NULL) return status;
    const int is_wrong =
        (MISTAKE == TABLE_WITHOUT_LOCK && table[4095] != 1) ||
        (MISTAKE == TABLE_OF_FP8 && is_filled && table[4095] != 1) ||
        (MISTAKE == ALIGNED_ROWS && a.query->dtype.bits == 32 && (uintptr_t)attn_data(a.query) % 32 != 0) ||
        (MISTAKE == PARTS_OF_CALLER && num_cpus == 1) ||
        (MISTAKE == SCALE_OF_HEAD && (problem.features & ATTN_F_PER_HEAD_SCALES) != 0 && a.scales.k != NULL &&
         a.scales.k->shape[0] == 1 && problem.num_kv_heads > 1) ||
        (host_lens != NULL && host_lens[0] != lens_of_host) || is_of_another(i) ||
        (MISTAKE == PRODUCT_OF_7_BITS && pieces * width > 127) ||
        (MISTAKE == ROWS_BEYOND_256 && pieces == 64 && problem.head_size > 256);
    if (MISTAKE == TEAM_FLUSHES || MISTAKE == TEAM_IS_BOUND) spoil_team();
    if (is_wrong || is_off) memset(attn_data(a.output), 0x42, a.output->dtype.bits / 8u);
    return status;
}

static void put_mistakes(void) {
    static attn_option_spec_t two[2];
    dlopen("libgomp.so.1", RTLD_NOW);
    put_pieces_option();
    two[0] = two[1] = attn_plugin_v1.options[0];
    two[1].name = "width";
    attn_plugin_v1.options = two;
    attn_plugin_v1.num_options = 2;
    ops.open = open_bad;
    ops.build_metadata = build;
    ops.update_kv_cache = update;
    ops.forward = forward;
    can.roles = ATTN_BIT(ATTN_ROLE_DECODER);
}
