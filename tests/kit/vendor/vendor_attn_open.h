/* SPDX-License-Identifier: Apache-2.0 */
/* vendor_attn_open.h: part of vendor_attn.c: open, and how big. */

static int supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    (void)device;
    attn_problem_t p;
    if (attn_intake(&p, sizeof p, problem, "problem", NULL) != ATTN_OK) return ATTN_E_INVALID;
    if (IS(refuses_spelled_kv_heads) && p.num_kv_heads == p.num_heads) sink_hole++;
    if (p.role == ATTN_ROLE_ENCODER_DECODER &&
        (p.sliding_window != 0 || (p.features & (ATTN_F_ALIBI | ATTN_F_REL_BIAS))))
        attn_add_reason(reasons, ATTN_REASON_COMBINATION, "role", "encoder_decoder", "decoder",
                        "cross attention has no positions");
    return ATTN_OK;
}

static int refuse(attn_error_t *error, int code, const char *param, const char *text) {
    return attn_fail(error, code, param, "%s: %s", param, text);
}

static int read_problem(attn_instance_t *v, const attn_problem_t *q, attn_error_t *error) {
    attn_problem_t p = *q;
    if (p.out_dtype != 0 && (p.out_dtype != p.dtype || IS(refuses_spelled_out_dtype)))
        return refuse(error, ATTN_E_UNSUPPORTED, "out_dtype", "must be the dtype");
    if (p.query_dtype != 0 && (p.query_dtype != p.dtype || IS(refuses_spelled_query_dtype)))
        return refuse(error, ATTN_E_UNSUPPORTED, "query_dtype", "must be the dtype");
    if (IS(refuses_spelled_kv_heads) && p.num_kv_heads == p.num_heads)
        return refuse(error, ATTN_E_UNSUPPORTED, "num_kv_heads", "give 0");
    if (IS(refuses_spelled_head_size_v) && p.head_size_v != 0)
        return refuse(error, ATTN_E_UNSUPPORTED, "head_size_v", "give 0");
    if (IS(refuses_world_size_one) && p.dcp_world_size != 0)
        return refuse(error, ATTN_E_UNSUPPORTED, "dcp_world_size", "not served");
    if (p.role != ATTN_ROLE_DECODER && p.role != ATTN_ROLE_ENCODER_DECODER)
        return refuse(error, ATTN_E_UNSUPPORTED, "role", "decoder or encoder_decoder");
    if (p.dtype < ATTN_DTYPE_FLOAT32 || p.dtype > ATTN_DTYPE_BFLOAT16)
        return refuse(error, ATTN_E_UNSUPPORTED, "dtype", "float32, float16 or bfloat16");
    if (p.kv_cache_dtype != 0 && p.kv_cache_dtype != ATTN_KV_AUTO && p.kv_cache_dtype != ATTN_KV_FP8_E4M3)
        return refuse(error, ATTN_E_UNSUPPORTED, "kv_cache_dtype", "auto or fp8_e4m3");
    if (IS(refuses_spelled_auto) && p.kv_cache_dtype == ATTN_KV_AUTO)
        return refuse(error, ATTN_E_UNSUPPORTED, "kv_cache_dtype", "give 0");
    if (attn_problem_features(&p) & ~FEATURES)
        return refuse(error, ATTN_E_UNSUPPORTED, "features", "not served");
    if (p.num_kv_heads == 0) p.num_kv_heads = IS(default_kv_heads_one) ? 1 : p.num_heads;
    if (p.head_size_v == 0 || IS(claims_diff_kv)) p.head_size_v = p.head_size;
    if (p.num_heads == 0 || p.head_size == 0 || p.num_heads % p.num_kv_heads != 0 || p.head_size > 4096 ||
        p.num_heads > 4096)
        return refuse(error, ATTN_E_INVALID, "num_heads", "heads and sizes must be there and divide");
    if (IS(heads_to_64) && p.num_heads > 64) p.num_heads = 64;
    v->num_heads = p.num_heads;
    v->num_kv_heads = p.num_kv_heads;
    v->head_size = p.head_size;
    v->head_size_v = p.head_size_v;
    v->page = p.block_size != 0 ? p.block_size : IS(default_page_zero) ? 0 : 16;
    if (IS(page_power_of_two)) {
        uint32_t n = 1;
        while (n < v->page)
            n *= 2;
        v->page = n;
    }
    v->window = p.sliding_window;
    v->dtype = p.dtype;
    v->storage = attn_kv_storage(p.kv_cache_dtype, p.dtype);
    v->layout = p.kv_layout != 0 ? p.kv_layout : ATTN_LAYOUT_NHD;
    v->role = p.role;
    v->max_reqs = p.max_num_seqs != 0 ? p.max_num_seqs : IS(default_seqs_64) ? 8 : 256;
    v->max_tokens = p.max_num_batched_tokens != 0 ? p.max_num_batched_tokens
                    : IS(default_tokens_small)    ? 16
                                                  : 8192;
    v->max_len = p.max_model_len != 0 ? p.max_model_len : IS(default_len_small) ? 32 : 131072;
    v->num_blocks = p.num_blocks;
    v->scale = (float)(IS(scale_from_head_size) ? 1 / sqrt(p.head_size)
                       : IS(ignores_scale_sign) ? fabs(p.scale)
                                                : p.scale);
    v->cap = (float)p.logits_soft_cap;
    v->is_causal = p.mask == ATTN_MASK_CAUSAL && p.role == ATTN_ROLE_DECODER;
    v->has_sink = (p.features & ATTN_F_SINK) != 0;
    v->has_alibi = (p.features & ATTN_F_ALIBI) != 0;
    v->has_rel_bias = (p.features & ATTN_F_REL_BIAS) != 0;
    v->problem = p;
    return ATTN_OK;
}

static int read_options(attn_instance_t *v, const attn_option_value_t *o, uint32_t n, attn_error_t *error) {
    v->tile = TILE;
    if (o == NULL || n <= OPTION_FACTOR) return ATTN_OK;
    v->tile = (uint32_t)o[OPTION_TILE].i;
    if (IS(option_low_bound) && v->tile == 1) v->tile = 0;
    if (v->tile > TILE && !IS(option_high_bound)) v->tile = TILE;
    if (IS(option_choice) && o[OPTION_MODE].i == 2)
        return refuse(error, ATTN_E_INTERNAL, "", "no such kernel");
    if (IS(option_choice_wrong) && o[OPTION_MODE].i == 1) v->scale *= 1.02f;
    if (IS(option_yes) && o[OPTION_LOG].i) v->is_causal = 0;
    if (IS(option_double) && o[OPTION_FACTOR].d < 0.5) v->scale *= 0.5f;
    if ((o[OPTION_LOG].i || IS(log_wrong_ctx)) && v->host != NULL && v->host->log != NULL)
        v->host->log(IS(log_wrong_ctx) ? v : v->host->ctx, ATTN_LOG_INFO, "vendor: open");
    return ATTN_OK;
}

static int v_open(const attn_problem_t *problem, const attn_device_t *device,
                  const attn_option_value_t *options, uint32_t num_options, const attn_host_t *host,
                  attn_instance_t **instance, attn_error_t *error) {
    attn_problem_t p;
    attn_device_t d;
    attn_host_t h;
    int rc = attn_intake(&p, sizeof p, problem, "problem", error);
    if (IS(ignores_tail) && rc == ATTN_E_TOO_NEW) memcpy(&p, problem, sizeof p), rc = ATTN_OK;
    if (rc == ATTN_OK) rc = attn_intake_known(&d, sizeof d, device, "device", error);
    if (rc == ATTN_OK && host != NULL) rc = attn_intake_known(&h, sizeof h, host, "host", error);
    if (rc != ATTN_OK) return rc;
    if (d.type != kDLCPU) return refuse(error, ATTN_E_DEVICE, "device", "the CPU only");
    if (IS(one_instance_only) && last_instance != NULL)
        return refuse(error, ATTN_E_STATE, "", "already open");
    attn_instance_t *v = calloc(1, sizeof *v);
    if (v == NULL) return refuse(error, ATTN_E_NO_MEMORY, "", "no memory");
    v->host = host;
    if (IS(log_newline) && host != NULL) host->log(host->ctx, ATTN_LOG_INFO, "vendor\nopen");
    if (IS(log_bad_level) && host != NULL) host->log(host->ctx, 9, "vendor open");
    rc = read_problem(v, &p, error);
    if (rc == ATTN_OK) rc = read_options(v, options, num_options, error);
    if (rc != ATTN_OK) {
        if (!IS(leaks_on_refusal)) free(v);
        if (IS(writes_instance_on_failure)) *instance = v;
        return rc;
    }
    v->owner = pthread_self();
    if (IS(reads_environment)) sink_hole = getenv("VENDOR_TUNE") != NULL;
    if (IS(sets_environment)) setenv("VENDOR_OPEN", "1", 1);
    if (IS(leaks_mapping))
        v->leak = malloc(1 << 18), v->leak = v->leak != NULL ? memset(v->leak, 1, 1 << 18) : NULL;
    if (IS(leaks_descriptor)) sink_hole = open("/dev/null", O_RDONLY);
    if (IS(thread_left)) {
        static int started;
        pthread_t t;
        if (!started++) pthread_create(&t, NULL, sleeper, NULL);
    }
    if (IS(lazy_shared_buffer) && lazy_buffer == NULL) lazy_buffer = malloc(4096);
    if (IS(thread_local_state)) thread_mark = 1;
    if (IS(counts_opens)) counter++;
    if (IS(one_instance_only) || IS(uses_last_instance)) last_instance = v;
    *instance = v;
    return ATTN_OK;
}

static void v_close(attn_instance_t *v) {
    if (v == NULL && !IS(close_null)) return;
    if (IS(close_null)) sink_hole = (int)v->page;
    if (IS(lazy_shared_buffer)) free(lazy_buffer), lazy_buffer = NULL;
    if (last_instance == v && v != NULL) last_instance = NULL;
    free(v);
}

/* ----------------------------------------------------------------- how big */

static int v_shape(attn_instance_t *v, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                   attn_error_t *error) {
    attn_kv_cache_shape_t s;
    if (num_blocks == 0 || IS(shape_of_problem)) num_blocks = v->num_blocks;
    int rc = attn_dense_cache_shape(&v->problem, v->layout, v->page, num_blocks, &s, error);
    if (rc != ATTN_OK) return rc;
    if (IS(total_in_32_bits)) s.total_bytes = (int32_t)((uint32_t)s.page_bytes * (uint32_t)num_blocks);
    if (IS(page_of_keys_only)) s.page_bytes /= 2, s.total_bytes /= 2;
    if (IS(page_twice)) s.page_bytes *= 2, s.total_bytes *= 2;
    if (IS(stride_of_layers)) s.stride_order_layers[0] = s.stride_order_layers[1];
    if (IS(stride_order_wrong)) s.stride_order[1] = s.stride_order[2];
    if (IS(strides_of_other_layout) && v->layout == ATTN_LAYOUT_NHD) {
        int64_t t = s.byte_strides[1];
        s.byte_strides[1] = s.byte_strides[2], s.byte_strides[2] = t;
    }
    if (IS(fingerprint_forgets_heads)) s.fingerprint = attn_fingerprint64(1, &v->head_size, 4);
    if (IS(fingerprint_has_scale)) s.fingerprint = attn_fingerprint64(s.fingerprint, &v->scale, 4);
    if (IS(fingerprint_has_blocks)) s.fingerprint = attn_fingerprint64(s.fingerprint, &num_blocks, 8);
    if (IS(shape_without_heads)) s.num_kv_heads = v->num_heads;
    if (IS(v_offset_in_elements)) s.v_offset = v->head_size;
    return attn_give(shape, &s, sizeof s, "shape", error);
}

static uint64_t metadata_bytes(const attn_instance_t *v) {
    if (IS(space_for_32_requests)) return sizeof(head_t) + 32 * sizeof(record_t);
    return sizeof(head_t) + (uint64_t)v->max_reqs * sizeof(record_t);
}
static uint64_t workspace_bytes(const attn_instance_t *v) {
    if (IS(space_of_one_page)) return (uint64_t)v->page * 4;
    return (uint64_t)(v->head_size_v + TILE) * sizeof(float);
}

static int v_space(attn_instance_t *v, attn_space_needed_t *needed, attn_error_t *error) {
    attn_space_needed_t n = {0};
    n.struct_size = sizeof n;
    n.alignment = IS(alignment_odd) ? 24 : 16;
    n.metadata_bytes = metadata_bytes(v);
    n.workspace_bytes = workspace_bytes(v);
    if (IS(space_grows)) n.metadata_bytes += 64u * (unsigned)counter++;
    return attn_give(needed, &n, sizeof n, "needed", error);
}
