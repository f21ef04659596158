/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_team_open.h: part of vendor_team.c: open, and how big. */

static const char *refuses(const attn_problem_t *p) {
    const uint64_t f = attn_problem_features(p);
    const int is_paged = p->role == ATTN_ROLE_DECODER || p->role == ATTN_ROLE_ENCODER_DECODER;
    if (!is_paged && p->role != ATTN_ROLE_ENCODER_ONLY) return "role";
    if (p->dtype < ATTN_DTYPE_FLOAT32 || p->dtype > ATTN_DTYPE_BFLOAT16) return "dtype";
    if (p->out_dtype != 0 && p->out_dtype != p->dtype) return "out_dtype";
    if (p->query_dtype != 0 && p->query_dtype != p->dtype) return "query_dtype";
    if (p->kv_cache_dtype > ATTN_KV_INT8_PER_TOKEN_HEAD || p->kv_cache_dtype == ATTN_KV_FP8_E5M2)
        return "kv_cache_dtype";
    if ((f & ~FEATURES) != 0) return "features";
    if (p->role == ATTN_ROLE_ENCODER_DECODER && (p->sliding_window != 0 || (f & ATTN_F_ALIBI))) return "role";
    if (IS(page_of_128_refused) && is_paged && p->block_size >= 128) return "block_size";
    if (IS(heads_of_80_refused) && p->head_size == 80) return "head_size";
    if (IS(group_of_six_refused) && p->num_kv_heads != 0 && p->num_heads / p->num_kv_heads == 6)
        return "num_heads";
    return NULL;
}

static int v_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    (void)device;
    static const attn_problem_t *last;
    static const char *last_param;
    static char shared_text[64];
    attn_problem_t p;
    if (attn_intake(&p, sizeof p, problem, "problem", NULL) != ATTN_OK) return ATTN_E_INVALID;
    if (IS(reasons_reset) && reasons != NULL) reasons->count = 0;
    const char *param = p.role == ATTN_ROLE_ENCODER_DECODER ? refuses(&p) : NULL;
    if (IS(verdict_by_address)) {
        if (last == problem) param = last_param;
        last = problem, last_param = param;
    }
    if (param == NULL) return ATTN_OK;
    if (IS(reason_in_static_buffer)) {
        snprintf(shared_text, sizeof shared_text, "head_size %u is not served in this role", p.head_size);
        sched_yield();
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, param, "it", "another", "%s", shared_text);
        return ATTN_OK;
    }
    if (IS(reasons_past_capacity) && reasons != NULL && reasons->items != NULL) {
        attn_reason_t *r = &reasons->items[reasons->count++];
        memset(r, 0, sizeof *r);
        r->code = ATTN_REASON_COMBINATION;
        snprintf(r->param, sizeof r->param, "%s", param);
        snprintf(r->text, sizeof r->text, "%s is not served", param);
        return ATTN_OK;
    }
    if (IS(reasons_as_error)) return ATTN_E_UNSUPPORTED;
    attn_add_reason(reasons, ATTN_REASON_COMBINATION, param, "it", "another",
                    "head_size %u is not served in this role", p.head_size);
    return ATTN_OK;
}

static void spoil_process(attn_instance_t *v) {
    if (IS(sets_umask_at_open)) umask(077);
    if (IS(traps_left)) feenableexcept(FE_DIVBYZERO | FE_INVALID);
#if defined(__x86_64__)
    if (IS(x87_to_double)) {
        unsigned short word;
        __asm__ volatile("fnstcw %0" : "=m"(word));
        word = (unsigned short)((word & ~0x300u) | 0x200u);
        __asm__ volatile("fldcw %0" : : "m"(word));
    }
#endif
    if (IS(huge_pages_off)) prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    if (IS(timer_slack)) prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    if (IS(not_dumpable)) prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (IS(memory_policy)) syscall(SYS_set_mempolicy, 3 /* interleave */, (unsigned long[]){1}, 64ul);
    if (IS(sets_omp_threads)) omp_set_num_threads(1);
    if (IS(sets_omp_dynamic)) omp_set_dynamic(1);
    if (IS(sets_omp_levels)) omp_set_max_active_levels(7);
    if (IS(key_per_open)) {
        pthread_key_t key;
        pthread_key_create(&key, NULL);
    }
    if (IS(leaks_map)) {
        char *m = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (m != MAP_FAILED) m[0] = 1;
    }
    if (IS(locks_memory)) mlockall(MCL_CURRENT | MCL_FUTURE);
    (void)v;
}

static int v_open(const attn_problem_t *problem, const attn_device_t *device, const attn_option_value_t *o,
                  uint32_t num_options, const attn_host_t *host, attn_instance_t **instance,
                  attn_error_t *error) {
    attn_problem_t p;
    attn_device_t d;
    int rc = attn_intake(&p, sizeof p, problem, "problem", error);
    if (rc == ATTN_OK) rc = attn_intake_known(&d, sizeof d, device, "device", error);
    if (rc != ATTN_OK) return rc;
    if (d.type != kDLCPU) return attn_fail(error, ATTN_E_DEVICE, "device", "device is no CPU; give one");
    const char *param = refuses(&p);
    if (param != NULL) {
        if (IS(refusal_without_text)) return ATTN_E_UNSUPPORTED;
        if (IS(refusal_positive)) return 22;
        if (IS(prints_refusal)) fprintf(stderr, "team: %s is not served\n", param);
        if (IS(refusal_names_another)) param = "scale";
        return attn_fail(error, ATTN_E_UNSUPPORTED, param, "%s is not served by TEAM_ATTN", param);
    }
    if (p.num_kv_heads == 0) p.num_kv_heads = p.num_heads;
    if (p.head_size_v == 0) p.head_size_v = p.head_size;
    if (p.num_heads == 0 || p.num_heads % p.num_kv_heads != 0 || p.head_size == 0 || p.num_heads > 4096 ||
        p.head_size > 4096 || p.head_size_v > 4096)
        return attn_fail(error, ATTN_E_INVALID, "num_heads", "num_heads %u does not fit", p.num_heads);
    if (IS(instances_shared)) /* "the same kernel" */
        for (attn_instance_t *i = instances; i != NULL; i = i->next)
            if (i->p.head_size == p.head_size && i->p.num_heads == p.num_heads && i->p.dtype == p.dtype &&
                i->p.num_kv_heads == p.num_kv_heads && i->p.features == p.features &&
                i->p.kv_cache_dtype == p.kv_cache_dtype && i->p.block_size == p.block_size &&
                i->p.mask == p.mask && i->p.role == p.role && i->p.max_num_seqs == p.max_num_seqs &&
                i->p.max_num_batched_tokens == p.max_num_batched_tokens &&
                i->p.max_model_len == p.max_model_len && i->p.sliding_window == p.sliding_window &&
                i->p.head_size_v == p.head_size_v && i->p.kv_layout == p.kv_layout) {
                i->uses++;
                *instance = i;
                return ATTN_OK;
            }
    attn_instance_t *v = IS(not_cleared) ? malloc(sizeof *v) : calloc(1, sizeof *v);
    if (v == NULL && !IS(memory_unchecked))
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "no memory for an instance");
    v->p = p;
    v->host = host;
    if (IS(extension_required) || IS(extension_whole)) {
        const attn_plan_table_t *t =
            host != NULL ? host->get_extension(host->ctx, ATTN_PLAN_EXTENSION) : NULL;
        if (IS(extension_required) && t->struct_size > 0) hole = (int)t->struct_size;
        if (IS(extension_whole) && t != NULL) hole = (int)t->cp_local_len(9, 1, 0, 1);
    }
    v->device = device;
    if (IS(not_cleared)) { /* all members are set, but for one */
        v->has_run = v->uses = 0;
        v->grown = NULL, v->grown_size = 0, v->next = NULL;
        if (p.logits_soft_cap > 0) v->key_kind = 1;
    } else
        v->key_kind = p.logits_soft_cap > 0;
    v->heads = p.num_heads, v->kv_heads = p.num_kv_heads, v->group = v->heads / v->kv_heads;
    v->d = p.head_size, v->dv = p.head_size_v;
    v->page = p.block_size != 0 ? p.block_size : 32;
    v->max_reqs = p.max_num_seqs != 0 ? p.max_num_seqs : 256;
    v->max_tokens = p.max_num_batched_tokens != 0 ? p.max_num_batched_tokens : 8192;
    v->max_len = p.max_model_len != 0 ? p.max_model_len : 131072;
    v->layout = p.kv_layout != 0 ? p.kv_layout : ATTN_LAYOUT_NHD;
    v->storage = attn_kv_storage(p.kv_cache_dtype, IS(cache_is_of_model) ? ATTN_DTYPE_FLOAT32 : p.dtype);
    v->is_paged = p.role != ATTN_ROLE_ENCODER_ONLY;
    v->k_scale_at = v->v_scale_at = -1;
    v->is_static = v->storage == ATTN_DTYPE_FP8_E4M3;
    v->scale = (float)p.scale;
    v->threads = 2;
    v->uses = 1;
    v->opened_with = omp_get_max_threads();
    if (o != NULL && num_options >= OPTIONS) v->threads = (int)o[OPTION_THREADS].i;
    attn_kv_cache_shape_t s = {0};
    if (v->is_paged) {
        v->p.block_size = (uint32_t)v->page;
        rc = attn_dense_cache_shape(&v->p, v->layout, (uint32_t)v->page, 1, &s, error);
        if (rc != ATTN_OK) {
            free(v);
            return rc;
        }
        v->content = s.shape[3], v->v_at = s.v_offset;
        v->k_scale_at = s.k_scale_offset, v->v_scale_at = s.v_scale_offset;
    }
    if (IS(grows_for_long) || IS(grows_for_many) || IS(grows_in_update))
        v->grown_size = 64, v->grown = calloc(64, sizeof(float));
    if (IS(instances_shared)) v->next = instances, instances = v;
    spoil_process(v);
    if (IS(warns_in_error)) attn_fail(error, ATTN_OK, "", "slow kernel");
    *instance = v;
    return ATTN_OK;
}

static void v_close(attn_instance_t *v) {
    if (v == NULL) return;
    if (IS(instances_shared)) {
        if (--v->uses > 0) return;
        attn_instance_t **at = &instances;
        while (*at != v)
            at = &(*at)->next;
        *at = v->next;
    }
    free(v->grown);
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
    if (rc != ATTN_OK) return rc;
    if (IS(alignment_of_shape_zero)) s.alignment = 0;
    if (IS(gives_whole_shape)) {
        const uint32_t size = shape->struct_size;
        memcpy(shape, &s, sizeof s);
        shape->struct_size = size;
        return ATTN_OK;
    }
    return attn_give(shape, &s, sizeof s, "shape", error);
}

static int64_t max_items(const attn_instance_t *v) {
    return v->max_reqs * (PARTS + 1) + 2 * ((v->max_tokens + QB - 1) / QB + v->max_reqs);
}
static int64_t max_slots(const attn_instance_t *v) {
    return v->max_reqs * (PARTS + 1) + ((v->p.features & ATTN_F_CASCADE) != 0 ? 2 * v->max_tokens : 0);
}
static uint64_t metadata_bytes(const attn_instance_t *v) {
    return sizeof(plan_t) + (uint64_t)v->max_reqs * sizeof(request_t) +
           (uint64_t)max_items(v) * sizeof(item_t);
}
static int64_t scratch_floats(const attn_instance_t *v) {
    return QB * v->group * (v->d + v->dv + KT + 2) + KT * (v->d + v->dv);
}
static uint64_t workspace_bytes(const attn_instance_t *v) {
    const int64_t threads = IS(scratch_of_two_threads)   ? 2
                            : IS(scratch_by_max_threads) ? v->opened_with
                                                         : v->threads;
    if (IS(space_in_32_bits))
        return (uint32_t)((uint32_t)(threads * scratch_floats(v)) * 4u +
                          (uint32_t)max_slots(v) * (uint32_t)(v->heads * (v->dv + 2)) * 4u);
    return (uint64_t)(threads * scratch_floats(v) + max_slots(v) * v->heads * (v->dv + 2)) * sizeof(float);
}
static int v_space(attn_instance_t *v, attn_space_needed_t *needed, attn_error_t *error) {
    attn_space_needed_t n = {.struct_size = sizeof n,
                             .alignment = 64,
                             .metadata_bytes = metadata_bytes(v),
                             .workspace_bytes = workspace_bytes(v)};
    if (IS(gives_whole_space)) {
        memcpy((char *)needed + 4, (char *)&n + 4, sizeof n - 4);
        return ATTN_OK;
    }
    return attn_give(needed, &n, sizeof n, "needed", error);
}
