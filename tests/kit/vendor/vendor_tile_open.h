/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_tile_open.h: part of vendor_tile.c: numbers, open, how big. */

static float load(const char *row, uint32_t dtype, int64_t i) {
    uint16_t h;
    float x;
    if (dtype == ATTN_DTYPE_FLOAT32) return memcpy(&x, row + 4 * i, 4), x;
    if (dtype == ATTN_DTYPE_FP8_E4M3) return (float)attn_from_e4m3((uint8_t)row[i]);
    memcpy(&h, row + 2 * i, 2);
    return (float)(dtype == ATTN_DTYPE_FLOAT16 ? attn_from_f16(h) : attn_from_bf16(h));
}
static void store(char *row, uint32_t dtype, int64_t i, float x) {
    if (dtype == ATTN_DTYPE_FLOAT32) {
        memcpy(row + 4 * i, &x, 4);
        return;
    }
    if (dtype == ATTN_DTYPE_FP8_E4M3) {
        if (IS(nan_saturates)) x = fminf(fmaxf(x, -448), 448);
        row[i] = (char)attn_to_e4m3(x);
        return;
    }
    const uint16_t h = dtype == ATTN_DTYPE_FLOAT16 ? attn_to_f16(x) : attn_to_bf16(x);
    memcpy(row + 2 * i, &h, 2);
}
static float as_bf16(float x) {
    return (float)attn_from_bf16(attn_to_bf16(x));
}

/* --------------------------------------------------------------------- open */

static void on_exit_of(void) {
    hole = 1;
}
static void on_fork(void) {
    hole = 2;
}

static void spoil_process(void) {
    if (IS(registers_atexit)) atexit(on_exit_of);
    if (IS(registers_atfork)) pthread_atfork(on_fork, NULL, NULL);
    if (IS(sets_timer)) {
        const struct itimerval t = {.it_value = {3600, 0}, .it_interval = {0, 0}};
        setitimer(ITIMER_REAL, &t, NULL);
    }
    if (IS(uses_own_locale)) uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
    if (IS(sets_signal_stack)) {
        static char memory[1 << 16];
        const stack_t s = {.ss_sp = memory, .ss_size = sizeof memory};
        sigaltstack(&s, NULL);
    }
    if (IS(closes_stdin)) close(0);
    if (IS(seeds_drand48)) srand48(7);
    if (IS(cancel_disabled)) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
}

static int supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    (void)device, (void)reasons;
    attn_problem_t p;
    return attn_intake(&p, sizeof p, problem, "problem", NULL) == ATTN_OK ? ATTN_OK : ATTN_E_INVALID;
}

static int v_open(const attn_problem_t *problem, const attn_device_t *device, const attn_option_value_t *o,
                  uint32_t num_options, const attn_host_t *host, attn_instance_t **instance,
                  attn_error_t *error) {
    attn_problem_t p;
    attn_device_t d;
    (void)o, (void)num_options;
    int rc = attn_intake(&p, sizeof p, problem, "problem", error);
    if (rc == ATTN_OK) rc = attn_intake_known(&d, sizeof d, device, "device", error);
    if (rc != ATTN_OK) return rc;
    if (d.type != kDLCPU) return attn_fail(error, ATTN_E_DEVICE, "device", "device is no CPU; give one");
    const char *param = p.role != ATTN_ROLE_DECODER && p.role != ATTN_ROLE_ENCODER_ONLY ? "role"
                        : p.dtype < ATTN_DTYPE_FLOAT32 || p.dtype > ATTN_DTYPE_BFLOAT16 ? "dtype"
                        : p.kv_cache_dtype > ATTN_KV_AUTO && p.kv_cache_dtype != ATTN_KV_FP8_E4M3
                            ? "kv_cache_dtype"
                        : p.out_dtype != 0 && p.out_dtype != p.dtype         ? "out_dtype"
                        : p.query_dtype != 0 && p.query_dtype != p.dtype     ? "query_dtype"
                        : p.head_size_v != 0 && p.head_size_v != p.head_size ? "head_size_v"
                        : (attn_problem_features(&p) & ~FEATURES) != 0       ? "features"
                                                                             : NULL;
    if (param != NULL)
        return attn_fail(error, ATTN_E_UNSUPPORTED, param, "%s is not served by TILE_ATTN", param);
    const int64_t kv_heads = p.num_kv_heads != 0 ? p.num_kv_heads : p.num_heads;
    if (p.num_heads == 0 || p.num_heads % kv_heads != 0 || p.head_size == 0 || p.head_size > 1024 ||
        p.num_heads > 4096)
        return attn_fail(error, ATTN_E_INVALID, "num_heads", "num_heads %u does not fit the others",
                         p.num_heads);
    if (IS(open_refuses_pair) && p.sliding_window != 0 && p.logits_soft_cap > 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "features", "no kernel has both a window and a soft cap");
    if (IS(instances_to_32) && num_alive >= 32)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "32 instances are open; close one");
    attn_instance_t *v = calloc(1, sizeof *v);
    if (v == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "no memory for an instance");
    v->p = p;
    v->heads = p.num_heads, v->kv_heads = kv_heads, v->group = v->heads / kv_heads;
    v->d = v->dv = p.head_size;
    v->page = p.block_size != 0 ? p.block_size : 16;
    v->max_reqs = p.max_num_seqs != 0 ? p.max_num_seqs : 256;
    v->max_tokens = p.max_num_batched_tokens != 0 ? p.max_num_batched_tokens : 8192;
    v->max_len = p.max_model_len != 0 ? p.max_model_len : 131072;
    v->storage = attn_kv_storage(p.kv_cache_dtype, p.dtype);
    v->layout = p.kv_layout != 0 ? p.kv_layout : ATTN_LAYOUT_NHD;
    v->is_paged = p.role == ATTN_ROLE_DECODER;
    v->is_separate = (p.features & ATTN_F_SEPARATE_KV) != 0;
    v->scale = (float)p.scale;
    if (IS(instances_to_32)) num_alive++;
    if (IS(handles_of_10_bits)) v->handle = ++num_opens & 1023, by_handle[v->handle] = v;
    if (IS(keeps_dequantised_pages)) v->kept_tile = calloc((size_t)(KEPT * KT * 256), sizeof *v->kept_tile);
    if (IS(table_changes)) changing.features &= ~(uint64_t)ATTN_F_ALIBI;
    if (IS(writes_problem)) ((attn_problem_t *)problem)->block_size = (uint32_t)v->page;
    spoil_process();
    *instance = v;
    return ATTN_OK;
}

static void v_close(attn_instance_t *v) {
    if (v != NULL && IS(instances_to_32)) num_alive--;
    if (v != NULL) free(v->kept_tile);
    free(v);
}

static int v_shape(attn_instance_t *v, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                   attn_error_t *error) {
    attn_kv_cache_shape_t s;
    if (!v->is_paged) {
        attn_zero(&s, sizeof s);
        return attn_give(shape, &s, sizeof s, "shape", error);
    }
    int rc = attn_dense_cache_shape(&v->p, v->layout, (uint32_t)v->page,
                                    num_blocks != 0 ? num_blocks : v->p.num_blocks, &s, error);
    return rc != ATTN_OK ? rc : attn_give(shape, &s, sizeof s, "shape", error);
}

static int64_t max_tiles(const attn_instance_t *v) {
    const int64_t tokens = IS(tiles_of_4096_tokens) && v->max_tokens > 4096 ? 4096 : v->max_tokens;
    return (tokens * v->group + QT - 1) / QT + v->max_reqs;
}
static uint64_t metadata_bytes(const attn_instance_t *v) {
    if (IS(space_for_tokens_requests) && v->max_tokens < v->max_reqs) /* "a request has a token at least" */
        return sizeof(plan_t) + (uint64_t)v->max_tokens * sizeof(request_t) +
               (uint64_t)max_tiles(v) * sizeof(tile_t);
    return sizeof(plan_t) + (uint64_t)v->max_reqs * sizeof(request_t) +
           (uint64_t)max_tiles(v) * sizeof(tile_t);
}
static uint64_t workspace_bytes(const attn_instance_t *v) {
    return ((uint64_t)QT * (uint64_t)(v->d + v->dv + KT + 2) + (uint64_t)KT * (uint64_t)(v->d + v->dv)) *
           sizeof(float);
}
static int v_space(attn_instance_t *v, attn_space_needed_t *needed, attn_error_t *error) {
    attn_space_needed_t n = {.struct_size = sizeof n,
                             .alignment = 64,
                             .metadata_bytes = metadata_bytes(v),
                             .workspace_bytes = workspace_bytes(v)};
    return attn_give(needed, &n, sizeof n, "needed", error);
}
