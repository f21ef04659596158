/* SPDX-License-Identifier: Apache-2.0 */
/* Context parallelism over the CUDA devices of one process, a thread a rank, joined over NCCL: every family
 * and form over two, and over four where there are as many, against one rank in double on the CPU (semantics
 * 8); over two a captured step, ranks that do not come or lose their communicator; and layers on two devices
 * without ranks, whichever device is current. */
#include "../layer/ranks_world.h"
#include "ranks_cases.h"

#include <attn/attn_comm_nccl.h>

#include <signal.h>
#include <sys/wait.h>

enum { WORLD = 2, LIMIT_MS = 20000, SHORT_MS = 1500 }; /* WORLD: where it is not said */

static attn_device_t devices[MAX_WORLD];
static attn_context_t *contexts[MAX_WORLD];

/* One communicator of NCCL for each device. */
static void meet(ncclComm_t *comms, int world) {
    ncclUniqueId id;
    ncclResult_t states[MAX_WORLD] = {ncclSuccess};
    if (ncclGetUniqueId(&id) != ncclSuccess) bail_out("NCCL does not start");
    ncclGroupStart();
    for (int r = 0; r < world; r++) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        cudaSetDevice(r);
        comms[r] = NULL;
        ncclCommInitRankConfig(&comms[r], world, id, r, &config);
    }
    ncclGroupEnd();
    for (int r = 0; r < world; r++) {
        do
            ncclCommGetAsyncError(comms[r], &states[r]);
        while (states[r] == ncclInProgress);
        if (states[r] != ncclSuccess) bail_out("NCCL, rank %d: %s", r, ncclGetErrorString(states[r]));
    }
}

static void part(ncclComm_t *comms, int world) {
    for (int r = 0; r < world; r++)
        if (comms[r] != NULL) ncclCommFinalize(comms[r]);
    for (int r = 0; r < world; r++) {
        ncclResult_t state = ncclInProgress;
        while (comms[r] != NULL && state == ncclInProgress)
            if (ncclCommGetAsyncError(comms[r], &state) != ncclSuccess) break;
        if (comms[r] != NULL) ncclCommDestroy(comms[r]);
    }
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---------------------------------------------------------- families and forms */

struct job {
    struct rank_world *w;
    ncclComm_t nccl;
    int rank, current, code, left;
    attn_error_t error;
    char *output;
    float *lse;
};

static void *run_job(void *user) {
    struct job *j = user;
    attn_comm_nccl_t n;
    attn_comm_t comm;
    cudaSetDevice(j->current);
    j->code = attn_comm_nccl_init(&n, j->nccl, LIMIT_MS, &comm, &j->error);
    if (j->code == ATTN_OK)
        j->code = run_rank(j->w, contexts[j->rank], j->w->c.backend, j->w->c.dtype, j->w->world, j->rank,
                           &comm, j->w->c.seq, j->output, j->lse, &j->error);
    cudaGetDevice(&j->left);
    return NULL;
}

/* The largest difference over all ranks; is_crossed: each thread has the next one's device current. */
static double run_devices(struct rank_world *w, ncclComm_t *comms, int is_crossed) {
    struct job jobs[MAX_WORLD];
    pthread_t threads[MAX_WORLD];
    double worst = 0;
    const size_t rows = (size_t)w->tokens * w->c.heads;
    for (int r = 0; r < w->world; r++) {
        rank_own_device[r] = &devices[r];
        jobs[r] = (struct job){.w = w,
                               .nccl = comms[r],
                               .rank = r,
                               .current = is_crossed ? (r + 1) % w->world : r,
                               .error = ERROR_INIT,
                               .output = malloc(rows * (size_t)w->value_size * 8 + 8),
                               .lse = malloc(rows * 4 + 8)};
        pthread_create(&threads[r], NULL, run_job, &jobs[r]);
    }
    for (int r = 0; r < w->world; r++) {
        pthread_join(threads[r], NULL);
        rank_own_device[r] = NULL;
    }
    for (int r = 0; r < w->world; r++) {
        const struct job *j = &jobs[r];
        double d = j->code == ATTN_OK ? rank_difference(w, r, w->c.dtype, j->output, j->lse) : 9;
        if (j->code != ATTN_OK) diag("rank %d: %s: %s", r, j->error.param, j->error.text);
        if (j->left != j->current) {
            diag("rank %d: device %d was current, and then %d", r, j->current, j->left);
            d = 9;
        }
        if (!(d <= worst)) worst = d;
        free(j->output), free(j->lse);
    }
    return worst;
}

static void families(int world, uint64_t seed) {
    ncclComm_t comms[MAX_WORLD];
    meet(comms, world);
    for (size_t i = 0; i < NUM_GPU_CASES; i++) {
        double worst[3] = {0}, crossed = 0;
        struct rank_case c = gpu_cases[i];
        const double start = seconds_now();
        rank_bias = 0;
        for (c.join = ATTN_JOIN_ALL_TO_ALL; c.join <= ATTN_JOIN_REDUCE_SCATTER; c.join++) {
            struct rank_world w;
            attn_error_t error = ERROR_INIT;
            if (make_rank_world(&w, &c, world, contexts[0], seed + (uint64_t)i, &error) != ATTN_OK)
                bail_out("%s: one rank: %s", c.what, error.text);
            worst[c.join] = run_devices(&w, comms, 0);
            const double d = run_devices(&w, comms, 1);
            if (!(d <= crossed)) crossed = d;
            free_rank_world(&w);
        }
        ok(worst[1] < c.tolerance && worst[2] < c.tolerance && crossed < c.tolerance &&
               rank_bias < RANK_MOST_BIAS * c.tolerance,
           "%s over %d devices, %s (all-to-all %.1e, reduce-scatter %.1e, another device current %.1e, "
           "mean %.1e, %.1f s)",
           c.backend, world, c.what, worst[1], worst[2], crossed, rank_bias, seconds_now() - start);
    }
    part(comms, world);
}

/* ------------------------------------------------- two devices without ranks */

/* One layer on cuda:0 and on cuda:1, each with either device current: the same bits. */
static void without_ranks(uint64_t seed) {
    for (size_t i = 0; i < NUM_GPU_CASES; i++) {
        const struct rank_case *c = &gpu_cases[i];
        struct rank_world w;
        attn_error_t error = ERROR_INIT;
        if (c->hard == RANK_FORMAT_END) continue; /* one rank sums both values before it divides */
        if (make_rank_world(&w, c, 1, contexts[0], seed + (uint64_t)i, &error) != ATTN_OK)
            bail_out("%s: one rank: %s", c->what, error.text);
        const size_t rows = (size_t)w.tokens * c->heads, bytes = rows * (size_t)w.value_size * 2;
        char *output[2] = {malloc(bytes + 8), malloc(bytes + 8)};
        float *lse[2] = {malloc(rows * 4 + 8), malloc(rows * 4 + 8)};
        int alike = 0, kept = 0;
        double worst = 0;
        for (int way = 0; way < 4; way++) { /* device, and which one is current */
            const int on = way / 2, current = way % 2, slot = way > 0;
            int left = -1;
            cudaSetDevice(current);
            rank_own_device[0] = &devices[on];
            const int code = run_rank(&w, contexts[on], c->backend, c->dtype, 1, 0, NULL, c->seq,
                                      output[slot], lse[slot], &error);
            rank_own_device[0] = NULL;
            cudaGetDevice(&left);
            if (code != ATTN_OK) diag("cuda:%d, %d current: %s", on, current, error.text);
            const double d = code == ATTN_OK ? rank_difference(&w, 0, c->dtype, output[slot], lse[slot]) : 9;
            if (!(d <= worst)) worst = d;
            kept += left == current;
            alike += slot == 0 ||
                     (memcmp(output[0], output[1], bytes) == 0 && memcmp(lse[0], lse[1], rows * 4) == 0);
        }
        ok(kept == 4 && alike == 4 && worst < c->tolerance,
           "%s on two devices, either current, %s (%d of 4 alike, current kept %d, error %.1e)", c->backend,
           c->what, alike, kept, worst);
        for (int k = 0; k < 2; k++)
            free(output[k]), free(lse[k]);
        free_rank_world(&w);
    }
}

/* ---------------------------------------------- captured steps and lost ranks */

enum { REQS = 6, HEADS = 4, SIZE = 64, PAGES = 64, WIDTH = 8, OUT = REQS * HEADS * SIZE * 2 };
enum { LSE = REQS * HEADS * 4 };

/* A rank's decode group for capture, with random keys. */
struct side {
    int rank;
    struct rank_memory m;
    attn_group_t *group;
    attn_layer_t *layer;
    attn_comm_nccl_t nccl;
    attn_space_t space;
    attn_batch_t batch;
    attn_forward_t args;
    struct tensor tq, to, tl, tc, tt;
    void *stream, *there;
    attn_error_t error;
};

static void open_side(struct side *s, int rank, ncclComm_t nccl, int64_t limit_ms, uint32_t join) {
    static const int32_t starts[REQS + 1] = {0, 1, 2, 3, 4, 5, 6};
    *s = (struct side){.rank = rank, .error = ERROR_INIT};
    s->m = (struct rank_memory){.kind = attn_device_kind(kDLCUDA), .device = {kDLCUDA, rank}};
    s->space.struct_size = sizeof s->space;
    s->batch.struct_size = sizeof s->batch;
    s->args.struct_size = sizeof s->args;
    cudaSetDevice(rank);
    ATTN_INIT(attn_problem_t, p);
    p.role = ATTN_ROLE_DECODER, p.mask = ATTN_MASK_CAUSAL, p.dtype = ATTN_DTYPE_BFLOAT16;
    p.num_heads = HEADS, p.num_kv_heads = 1, p.head_size = SIZE, p.block_size = 16, p.scale = 0.125;
    p.features = ATTN_F_LSE | ATTN_F_CAPTURE;
    p.max_num_seqs = p.max_num_batched_tokens = 8, p.max_model_len = 256, p.num_blocks = PAGES;
    p.dcp_world_size = WORLD, p.dcp_rank = (uint32_t)rank, p.cp_interleave = 1;
    ATTN_INIT(attn_kv_cache_shape_t, shape);
    ATTN_INIT(attn_space_needed_t, need);
    attn_comm_t comm;
    int code = attn_group_open(contexts[rank], &p, &devices[rank], "FLASH_ATTN", &s->group, NULL, &s->error);
    if (code == ATTN_OK) code = attn_comm_nccl_init(&s->nccl, nccl, limit_ms, &comm, &s->error);
    if (code == ATTN_OK) code = attn_group_kv_cache_shape(s->group, 0, &shape, &s->error);
    if (code == ATTN_OK) code = attn_group_space_needed(s->group, &need, &s->error);
    if (code == ATTN_OK) code = attn_layer_create(s->group, "captured", NULL, &s->layer, &s->error);
    if (code == ATTN_OK) code = s->m.kind->stream_create(rank, &s->stream, &s->error);
    if (code != ATTN_OK) bail_out("rank %d: %s", rank, s->error.text);
    s->space.metadata = take(&s->m, need.metadata_bytes), s->space.metadata_bytes = need.metadata_bytes;
    s->space.workspace = take(&s->m, need.workspace_bytes), s->space.workspace_bytes = need.workspace_bytes;
    s->space.host = calloc(need.host_bytes + 1, 1), s->space.host_bytes = need.host_bytes;
    uint64_t seed = tap_seed() + (uint64_t)rank;
    uint16_t *cache = malloc((size_t)shape.total_bytes), query[REQS * HEADS * SIZE];
    for (int64_t i = 0; i < shape.total_bytes / 2; i++)
        cache[i] = attn_to_bf16((double)tap_rand_in(&seed, 0, 2000) / 1000 - 1);
    for (int i = 0; i < REQS * HEADS * SIZE; i++)
        query[i] = attn_to_bf16((double)tap_rand_in(&seed, 0, 4000) / 1000 - 2);
    s->tc.t = (DLTensor){.data = put(&s->m, cache, (uint64_t)shape.total_bytes),
                         .device = s->m.device,
                         .ndim = (int)shape.ndim,
                         .dtype = shape.dtype,
                         .shape = s->tc.shape,
                         .strides = s->tc.strides};
    free(cache);
    for (uint32_t i = 0; i < shape.ndim; i++)
        s->tc.shape[i] = shape.shape[i], s->tc.strides[i] = shape.byte_strides[i] / 2;
    int32_t table[REQS * WIDTH];
    for (int i = 0; i < REQS * WIDTH; i++)
        table[i] = (i * 29 + 5) % PAGES;
    s->there = take(&s->m, OUT + LSE);
    s->args.query = put_tensor(&s->m, &s->tq, query, ATTN_DTYPE_BFLOAT16, 3, REQS, HEADS, SIZE);
    s->args.output = tensor(&s->to, s->there, ATTN_DTYPE_BFLOAT16, 3, REQS, HEADS, SIZE, 0);
    s->args.lse = tensor(&s->tl, (char *)s->there + OUT, ATTN_DTYPE_FLOAT32, 2, HEADS, REQS, 0, 0);
    s->to.t.device = s->tl.t.device = s->m.device;
    s->args.kv_cache = &s->tc.t;
    s->batch.flags = ATTN_BATCH_CAPTURE;
    s->batch.num_reqs = s->batch.num_actual_tokens = REQS;
    s->batch.query_start_loc_host = starts;
    s->batch.block_table = put_tensor(&s->m, &s->tt, table, ATTN_DTYPE_INT32, 2, REQS, WIDTH, 0);
    code = s->m.kind->synchronize(rank, &s->error);
    if (code == ATTN_OK) code = attn_group_set_comm(s->group, &comm, join, &s->error);
    if (code != ATTN_OK) bail_out("rank %d: %s", rank, s->error.text);
}

static void close_side(struct side *s) {
    s->m.kind->synchronize(s->rank, NULL);
    if (s->stream != NULL) s->m.kind->stream_destroy(s->rank, s->stream);
    attn_layer_destroy(s->layer);
    attn_group_close(s->group);
    give_back(&s->m);
    free(s->space.host);
}

static int build(struct side *s, const int32_t *lens) {
    s->batch.seq_lens_host = lens;
    return attn_group_build_metadata(s->group, &s->batch, &s->space, s->stream, &s->error);
}
static int forward(struct side *s) {
    return attn_layer_forward(s->layer, &s->args, &s->space, s->stream, &s->error);
}

struct turn {
    int rank, count, code; /* count: what was right; code: of the call that had to fail */
    int is_crossed;        /* on the default stream, while the other's device is current */
    uint32_t join;
    ncclComm_t nccl;
    double seconds;
    char text[512];
};

static const int32_t lens[3][REQS] = {
    {40, 90, 3, 64, 17, 5}, {1, 100, 2, 1, 33, 120}, {127, 1, 1, 9, 64, 65}};

static void *captured(void *user) {
    struct turn *t = user;
    static char got[WORLD][2][OUT + LSE];
    struct side s;
    void *graph = NULL;
    open_side(&s, t->rank, t->nccl, LIMIT_MS, t->join);
    const attn_device_kind_t *kind = s.m.kind;
    int code = build(&s, lens[0]);
    if (code == ATTN_OK) code = forward(&s); /* connects the ranks for what follows */
    if (code == ATTN_OK) code = build(&s, lens[0]);
    if (code == ATTN_OK) code = kind->capture_begin(t->rank, s.stream, 0, &s.error);
    if (code == ATTN_OK) code = forward(&s);
    if (code == ATTN_OK) code = kind->capture_end(t->rank, s.stream, &graph, &s.error);
    for (int round = 0; round < 3 && code == ATTN_OK; round++) {
        code = build(&s, lens[round]);
        for (int way = 0; way < 2 && code == ATTN_OK; way++) {
            kind->fill(t->rank, s.there, 0xee, OUT + LSE, s.stream, NULL);
            code = way == 0 ? forward(&s) : kind->graph_launch(t->rank, graph, s.stream, &s.error);
            if (code == ATTN_OK)
                code = kind->copy_from(t->rank, got[t->rank][way], s.there, OUT + LSE, s.stream, &s.error);
        }
        t->count += code == ATTN_OK && memcmp(got[t->rank][0], got[t->rank][1], OUT + LSE) == 0;
    }
    /* many replays without a wait between them */
    for (int i = 0; i < 100 && code == ATTN_OK; i++)
        code = kind->graph_launch(t->rank, graph, s.stream, &s.error);
    memset(got[t->rank][1], 0, OUT + LSE);
    if (code == ATTN_OK)
        code = kind->copy_from(t->rank, got[t->rank][1], s.there, OUT + LSE, s.stream, &s.error);
    t->count += code == ATTN_OK && memcmp(got[t->rank][0], got[t->rank][1], OUT + LSE) == 0;
    t->code = code;
    snprintf(t->text, sizeof t->text, "%s", s.error.text);
    if (graph != NULL) kind->graph_destroy(t->rank, graph);
    close_side(&s);
    return NULL;
}

/* Rank 1 comes when rank 0 has given up. What rank 0 sent before may still let it through this batch; then it
 * waits for a rank that does not come. */
static void *missing(void *user) {
    struct turn *t = user;
    struct side s;
    const struct timespec late = {.tv_sec = SHORT_MS / 1000 + 1};
    open_side(&s, t->rank, t->nccl, LIMIT_MS, 0);
    if (t->is_crossed) {
        s.m.kind->stream_destroy(t->rank, s.stream);
        s.stream = NULL;
        cudaSetDevice(1 - t->rank);
    }
    t->code = build(&s, lens[0]);
    if (t->code == ATTN_OK) t->code = forward(&s);
    t->count = t->code == ATTN_OK;
    s.nccl.limit_ms = SHORT_MS; /* connecting the ranks may take longer on a busy machine */
    if (t->rank == 1) nanosleep(&late, NULL);
    const double start = seconds_now();
    for (int i = 0; i < 1 + t->rank && t->code == ATTN_OK; i++) {
        t->code = build(&s, lens[1]);
        if (t->code == ATTN_OK && t->rank == 1) t->code = forward(&s);
    }
    t->seconds = seconds_now() - start;
    snprintf(t->text, sizeof t->text, "%s", s.error.text);
    close_side(&s);
    return NULL;
}

/* The communicator of rank 1 is aborted between two layers, and it goes on. */
static void *aborted(void *user) {
    struct turn *t = user;
    struct side s;
    open_side(&s, t->rank, t->nccl, LIMIT_MS, 0);
    int code = build(&s, lens[0]);
    if (code == ATTN_OK) code = forward(&s);
    if (code == ATTN_OK) t->count = 1;
    s.nccl.limit_ms = SHORT_MS;
    if (t->rank == 1) {
        ncclComm_t mine = s.nccl.comm;
        cudaStreamSynchronize((cudaStream_t)s.stream);
        s.nccl.comm = NULL; /* as an engine says it */
        snprintf(s.nccl.why, sizeof s.nccl.why, "the engine aborted it");
        ncclCommAbort(mine);
    }
    const double start = seconds_now();
    code = forward(&s);
    t->code = build(&s, lens[1]);
    if (t->rank == 1 && code == ATTN_OK) t->count = 0; /* it has no communicator any more */
    t->seconds = seconds_now() - start;
    snprintf(t->text, sizeof t->text, "%s", s.error.text);
    close_side(&s);
    return NULL;
}

static void run_turns(struct turn *turns, void *(*run)(void *), uint32_t join) {
    pthread_t threads[WORLD];
    for (int r = 0; r < WORLD; r++) {
        turns[r].rank = r, turns[r].join = join;
        pthread_create(&threads[r], NULL, run, &turns[r]);
    }
    for (int r = 0; r < WORLD; r++)
        pthread_join(threads[r], NULL);
}

static void steps_and_losses(void) {
    for (uint32_t join = ATTN_JOIN_ALL_TO_ALL; join <= ATTN_JOIN_REDUCE_SCATTER; join++) {
        struct turn turns[WORLD] = {{0}};
        ncclComm_t comms[WORLD];
        meet(comms, WORLD);
        for (int r = 0; r < WORLD; r++)
            turns[r].nccl = comms[r];
        run_turns(turns, captured, join);
        ok(turns[0].code == ATTN_OK && turns[1].code == ATTN_OK && turns[0].count == 4 && turns[1].count == 4,
           "a captured step over two devices, %s, replayed with other lengths (%d and %d of 4 alike) %s%s",
           join == ATTN_JOIN_ALL_TO_ALL ? "all-to-all" : "reduce-scatter", turns[0].count, turns[1].count,
           turns[0].code != ATTN_OK ? turns[0].text : "", turns[1].code != ATTN_OK ? turns[1].text : "");
        part(comms, WORLD);
    }
    static const char *const names[] = {"rank 1 does not come", "the same on default streams, crossed",
                                        "rank 1's communicator is aborted"};
    for (int which = 0; which < 3; which++) {
        struct turn turns[WORLD] = {{0}};
        ncclComm_t comms[WORLD];
        meet(comms, WORLD);
        for (int r = 0; r < WORLD; r++)
            turns[r].nccl = comms[r], turns[r].is_crossed = which == 1;
        run_turns(turns, which < 2 ? missing : aborted, 0);
        for (int r = 0; r < WORLD; r++)
            ok(turns[r].count == 1 && turns[r].code == ATTN_E_STATE &&
                   turns[r].seconds < 2 * SHORT_MS / 1000.0,
               "%s: rank %d has an error after %.1f s (code %d): %s", names[which], r, turns[r].seconds,
               turns[r].code, turns[r].text);
    }
}

/* ------------------------------------------------------------ ranks as processes */

/* A process of its own: rank 1 is killed between two layers, rank 0 must get an error. */
static int process(int rank, const char *hex) {
    ncclUniqueId id;
    ncclComm_t nccl = NULL;
    struct side s;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    for (size_t i = 0; i < sizeof id; i++) {
        unsigned byte = 0;
        sscanf(hex + 2 * i, "%2x", &byte);
        id.internal[i] = (char)byte;
    }
    cudaSetDevice(rank);
    ncclResult_t state = ncclCommInitRankConfig(&nccl, WORLD, id, rank, &config);
    while (state == ncclInProgress)
        ncclCommGetAsyncError(nccl, &state);
    if (state != ncclSuccess) bail_out("NCCL, process %d: %s", rank, ncclGetErrorString(state));
    open_side(&s, rank, nccl, LIMIT_MS, 0);
    int code = build(&s, lens[0]);
    if (code == ATTN_OK) code = forward(&s);
    if (code == ATTN_OK) code = build(&s, lens[0]); /* both are through the first layer */
    if (code != ATTN_OK) bail_out("process %d: %s", rank, s.error.text);
    s.nccl.limit_ms = SHORT_MS;
    if (rank == 1) {
        cudaDeviceSynchronize();
        kill(getpid(), SIGKILL);
    }
    const double start = seconds_now();
    for (int i = 0; i < 3 && code == ATTN_OK; i++) {
        code = forward(&s);
        if (code == ATTN_OK) code = build(&s, lens[1]);
    }
    printf("# after %.1f s: %s\n", seconds_now() - start, s.error.text);
    fflush(stdout);
    _exit((code == ATTN_E_STATE || code == ATTN_E_DEVICE) && seconds_now() - start < 3 * SHORT_MS / 1000.0
              ? 42
              : 1);
}

static void processes(void) {
    ncclUniqueId id;
    char hex[2 * sizeof id + 1], own[512];
    pid_t children[WORLD];
    int status[WORLD];
    setenv("NCCL_SOCKET_IFNAME", "lo", 0); /* the ranks of one machine */
    const ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    if (n <= 0 || ncclGetUniqueId(&id) != ncclSuccess) bail_out("no id for processes");
    own[n] = '\0';
    for (size_t i = 0; i < sizeof id; i++)
        snprintf(hex + 2 * i, 3, "%02x", (unsigned)(unsigned char)id.internal[i]);
    fflush(stdout);
    for (int r = 0; r < WORLD; r++) {
        children[r] = fork();
        if (children[r] == 0) {
            execl(own, own, r == 0 ? "0" : "1", hex, (char *)NULL);
            _exit(127);
        }
    }
    for (int r = WORLD - 1; r >= 0; r--) {
        const double until = seconds_now() + 30;
        const struct timespec moment = {.tv_nsec = 20000000};
        while (waitpid(children[r], &status[r], WNOHANG) == 0) {
            if (seconds_now() > until) kill(children[r], SIGKILL);
            nanosleep(&moment, NULL);
        }
    }
    ok(WIFSIGNALED(status[1]) && WTERMSIG(status[1]) == SIGKILL && WIFEXITED(status[0]) &&
           WEXITSTATUS(status[0]) == 42,
       "a process that is killed between two layers is an error on the other rank (status 0x%x and 0x%x)",
       (unsigned)status[0], (unsigned)status[1]);
}

int main(int argc, char **argv) {
    const uint64_t seed = tap_seed();
    attn_error_t error = ERROR_INIT;
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < WORLD)
        skip_all("ranks_nccl needs two CUDA devices, here are %d", count);
    const int most = count < MAX_WORLD ? WORLD : MAX_WORLD;
    for (int r = 0; r < most; r++) {
        char name[16];
        snprintf(name, sizeof name, "cuda:%d", r);
        devices[r].struct_size = sizeof devices[r];
        if (attn_device_parse(name, &devices[r], &error) != ATTN_OK) skip_all("%s", error.text);
        contexts[r] = rank_context_of("reference, flash, triton_like, mla", "");
    }
    if (argc == 3) return process(argv[1][0] - '0', argv[2]);
    const double start = seconds_now();
    without_ranks(seed);
    diag("%.1f s: layers without ranks", seconds_now() - start);
    families(WORLD, seed);
    if (most > WORLD) families(most, seed);
    diag("%.1f s: families", seconds_now() - start);
    steps_and_losses();
    diag("%.1f s: captured steps, lost ranks", seconds_now() - start);
    processes();
    diag("%.1f s: processes", seconds_now() - start);
    for (int r = 0; r < most; r++)
        attn_context_destroy(contexts[r]);
    return tap_done();
}
