/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_split_open.h: part of vendor_split.c: open, the cache's shape, how big the buffers are. */

static int refuses(const attn_problem_t *p, const char **param, const char **text) {
    *text = "is not served by SPLIT_ATTN";
    if (p->role != ATTN_ROLE_DECODER && p->role != ATTN_ROLE_ENCODER && p->role != ATTN_ROLE_ENCODER_ONLY)
        return *param = "role", 1;
    if (p->kv_cache_dtype > ATTN_KV_AUTO && p->kv_cache_dtype != ATTN_KV_FP8_E4M3 &&
        p->kv_cache_dtype != ATTN_KV_FP8_E5M2)
        return *param = "kv_cache_dtype", 1;
    if (p->rswa_window != 0 && (p->features & ATTN_F_MM_PREFIX) != 0) return *param = "rswa_window", 1;
    const uint64_t f = p->features, out = ATTN_F_OUT_FP8_STATIC | ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_NVFP4;
    const uint32_t dtype = f & ATTN_F_OUT_NVFP4 ? ATTN_DTYPE_UINT8 : f & out ? ATTN_DTYPE_FP8_E4M3 : 0;
    const uint64_t width = (uint64_t)p->num_heads * (p->head_size_v != 0 ? p->head_size_v : p->head_size);
    if (((f & out) & ((f & out) - 1)) != 0 || ((f & ATTN_F_OUT_SCALE_UE8M0) && !(f & ATTN_F_OUT_FP8_GROUP)) ||
        ((f & out) ? p->out_dtype != dtype : p->out_dtype != 0 && p->out_dtype != p->dtype) ||
        ((f & ATTN_F_OUT_FP8_GROUP) && width % 64 != 0) || ((f & ATTN_F_OUT_NVFP4) && width % 16 != 0))
        return *param = "out_dtype", 1;
    if ((f & ATTN_F_WRITE_IN_FORWARD) && p->role != ATTN_ROLE_DECODER) return *param = "role", 1;
    return 0;
}

static int supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    (void)device;
    attn_problem_t p;
    const char *param, *text;
    if (attn_intake(&p, sizeof p, problem, "problem", NULL) != ATTN_OK) return ATTN_E_INVALID;
    if (IS(refuses_without_reason)) return ATTN_OK;
    if (refuses(&p, &param, &text))
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, IS(reason_without_param) ? "" : param, "it",
                        "another", "%s%s%s", IS(reason_without_text) ? "" : param,
                        IS(reason_without_text) ? "" : " ", IS(reason_without_text) ? "" : text);
    return ATTN_OK;
}

static void fill_table(void) {
    if (has_exp_table) return;
    has_exp_table = 1;
    for (int i = 0; i < 1024; i++)
        exp_table[i] = expf(-(float)i / 32);
}

static void *volatile lost;
__attribute__((constructor)) static void at_load(void) {
    if (IS(sets_environment)) setenv("OMP_WAIT_POLICY", "passive", 0);
}

static int v_open(const attn_problem_t *problem, const attn_device_t *device, const attn_option_value_t *o,
                  uint32_t num_options, const attn_host_t *host, attn_instance_t **instance,
                  attn_error_t *error) {
    attn_problem_t p;
    attn_device_t d;
    const char *param, *text;
    int rc = attn_intake(&p, sizeof p, problem, "problem", error);
    if (rc == ATTN_OK) rc = attn_intake_known(&d, sizeof d, device, "device", error);
    if (rc != ATTN_OK) return rc;
    if (d.type != kDLCPU) return attn_fail(error, ATTN_E_DEVICE, "device", "device is no CPU; give one");
    attn_instance_t *v = calloc(1, sizeof *v);
    if (v == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "no memory for an instance");
    if (refuses(&p, &param, &text)) {
        if (!IS(leaks_refused_instance) && !(IS(leaks_refused_pair) && p.rswa_window != 0)) free(v);
        return attn_fail(error, ATTN_E_UNSUPPORTED, param, "%s %s", param, text);
    }
    if ((attn_problem_features(&p) & ~FEATURES) != 0) {
        free(v);
        return attn_fail(error, ATTN_E_UNSUPPORTED, "features", "features has bits that SPLIT_ATTN lacks");
    }
    v->p = p;
    v->row = malloc((size_t)p.num_heads * (p.head_size_v != 0 ? p.head_size_v : p.head_size) * sizeof(float));
    v->heads = p.num_heads;
    v->kv_heads = p.num_kv_heads != 0 ? p.num_kv_heads : p.num_heads;
    v->group = v->heads / v->kv_heads;
    v->d = p.head_size;
    v->dv = p.head_size_v != 0 ? p.head_size_v : p.head_size;
    v->page = p.block_size != 0 ? p.block_size : 16;
    v->max_reqs = p.max_num_seqs != 0 ? p.max_num_seqs : 256;
    v->max_tokens = p.max_num_batched_tokens != 0 ? p.max_num_batched_tokens : 8192;
    v->max_len = p.max_model_len != 0 ? p.max_model_len : 131072;
    v->storage = attn_kv_storage(p.kv_cache_dtype, p.dtype);
    v->query_dtype = p.query_dtype != 0 ? p.query_dtype : p.dtype;
    v->out_dtype = p.out_dtype != 0 ? p.out_dtype : p.dtype;
    v->layout = p.kv_layout != 0 ? p.kv_layout : ATTN_LAYOUT_HND;
    v->is_paged = p.role == ATTN_ROLE_DECODER;
    v->is_separate = (p.features & ATTN_F_SEPARATE_KV) != 0;
    v->scale = (float)p.scale;
    v->kept_problem = problem;
    v->host = host;
    of_this_thread = 1;
    if (IS(leaks_with_alibi) && (p.features & ATTN_F_ALIBI)) lost = malloc(64);
    if (IS(cap_in_bf16)) v->p.logits_soft_cap = (float)attn_from_bf16(attn_to_bf16((float)p.logits_soft_cap));
    if (o != NULL && num_options >= OPTIONS) v->kept_text = o[OPTION_CACHE].s;
    if (IS(scale_in_bf16)) v->scale = (float)attn_from_bf16(attn_to_bf16(p.scale));
    v->splits = 0;
    if (o != NULL && num_options >= OPTIONS) {
        v->splits = (int)o[OPTION_SPLITS].i;
        v->kept_option = &o[OPTION_EXACT];
        if (IS(option_wrong_for_other_sizes) && v->splits == MAX_SPLITS && v->d % 16 != 0) v->scale *= 0.9f;
        if (IS(option_zero_is_none) && v->splits == 0) v->splits = -1;
        if (IS(option_most_unchecked) && v->splits == MAX_SPLITS) v->splits = MAX_SPLITS + 1;
        if (IS(option_exact_drops_sink) && o[OPTION_EXACT].i) v->p.features &= ~ATTN_F_SINK;
        if (IS(option_enum_last_wrong) && o[OPTION_CACHE].i == 2) v->scale *= 0.9f;
    }
    if (IS(exp_by_table)) fill_table();
    if (IS(open_race)) {
        counter++;
        if (counter != 1) usleep(200);
        const int mine = counter;
        usleep(300);
        v->splits = mine != counter ? -1 : v->splits;
    }
    if (IS(pins_thread)) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(sched_getcpu(), &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    if (IS(names_thread)) pthread_setname_np(pthread_self(), "split-attn");
    if (IS(blocks_signals)) {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, NULL);
    }
    if (IS(seeds_rand)) srand(42);
    if (IS(lowers_priority)) setpriority(PRIO_PROCESS, 0, 5);
    if (IS(raises_limit)) {
        struct rlimit files;
        getrlimit(RLIMIT_NOFILE, &files);
        files.rlim_cur -= files.rlim_cur > 100;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (IS(leaks_instance_memory)) v->leak = calloc(1, 4000);
    *instance = v;
    return ATTN_OK;
}

static void v_close(attn_instance_t *v) {
    if (v == NULL) return;
    free(v->row);
    free(v);
}

static int v_shape(attn_instance_t *v, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                   attn_error_t *error) {
    attn_kv_cache_shape_t s;
    if (!v->is_paged) {
        attn_zero(&s, sizeof s);
        return attn_give(shape, &s, sizeof s, "shape", error);
    }
    if (num_blocks == 0) num_blocks = v->p.num_blocks;
    if (IS(shape_clamped) && num_blocks > 1 << 20) num_blocks = 1 << 20;
    int rc = attn_dense_cache_shape(&v->p, v->layout, (uint32_t)v->page, num_blocks, &s, error);
    if (rc != ATTN_OK) return rc;
    if (v->kept_blocks == 0) v->kept_blocks = num_blocks;
    if (IS(fingerprint_of_instance)) s.fingerprint = attn_fingerprint64(s.fingerprint, &v, sizeof v);
    if (IS(fingerprint_without_page)) {
        int64_t key[4] = {v->kv_heads, v->d, v->dv, v->storage};
        s.fingerprint = attn_fingerprint64(0, key, sizeof key);
    }
    if (IS(page_of_query_heads)) s.page_bytes *= v->group, s.total_bytes *= v->group;
    if (IS(shape_says_nhd)) s.kv_layout = ATTN_LAYOUT_NHD;
    return attn_give(shape, &s, sizeof s, "shape", error);
}

static uint64_t metadata_bytes(const attn_instance_t *v) {
    return sizeof(plan_t) + (uint64_t)v->max_reqs * sizeof(item_t);
}
static uint64_t workspace_bytes(const attn_instance_t *v) {
    return MAX_SPLITS * (uint64_t)((IS(space_of_key_size) ? v->d : v->dv) + 2) * sizeof(float);
}

static int v_space(attn_instance_t *v, attn_space_needed_t *needed, attn_error_t *error) {
    attn_space_needed_t n = {0};
    n.struct_size = sizeof n;
    n.alignment = IS(alignment_small) ? 4 : 64;
    n.metadata_bytes = metadata_bytes(v);
    n.workspace_bytes = workspace_bytes(v);
    if (IS(space_of_builds)) n.workspace_bytes += 64 * (uint64_t)v->num_builds;
    if (IS(space_of_8192_tokens) && v->max_tokens > 8192) n.metadata_bytes /= 2;
    return attn_give(needed, &n, sizeof n, "needed", error);
}
