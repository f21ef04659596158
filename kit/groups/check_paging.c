/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_paging.c: the part of group numerics about where the history lies. Tables and slots that look like a
 * run of neighbours by their first and last entry and are none; pages that several requests share; K and V in
 * tensors of their own.
 */
#include "../case/case_run.h"
#include "../run/device_image.h"

#include <stdlib.h>

static int start(check_t *c, kit_case_t *k) {
    if (!check_start_decoder(c, k)) return 0;
    k->padded_tokens = 0;
    return 1;
}

/* Page i of a request's n: neighbours, but for those between the first and the last. */
static int32_t page_of_run(int32_t first, int32_t i, int32_t n, int kind) {
    if (kind == 0 || i == 0 || i == n - 1) return first + i;
    return kind == 1 ? first + n - 1 - i : first + i + 30; /* turned round; elsewhere */
}

static void tables_like_runs(check_t *c) {
    for (int kind = 0; kind < 3 && !c->report->is_failed; kind++)
        for (int kv = 0; kv < 2; kv++) {
            kit_case_t k;
            if (!start(c, &k)) return;
            if (kv == 1 && check_fp8_cache(c) == 0) continue;
            if (kv == 1) k.problem.kv_cache_dtype = check_fp8_cache(c), check_fit_size(c, &k);
            const int32_t page = (int32_t)k.problem.block_size,
                          lens[] = {4 * page, 7 * page - 3, 5 * page + 1};
            for (int r = 0; r < 3; r++)
                kit_case_add(&k, r == 1 ? 9 : 1, lens[r]);
            kit_inputs_t *in = kit_inputs_make(&k);
            if (in == NULL) return;
            int32_t next = kind == 0 ? 0 : 1; /* the first page is one like the others */
            for (int r = 0; r < 3; r++) {
                const int32_t n = (lens[r] + page - 1) / page;
                for (int32_t i = 0; i < n; i++)
                    in->block_table[r * in->table_width + i] = page_of_run(next, i, n, kind);
                next += n;
            }
            if (next + 30 > in->num_blocks) in->num_blocks = next + 30;
            check_run(c, c->backend, &k, in);
            kit_inputs_free(in);
        }
}

/* The rows of an update but the first and the last, turned round; the slots alike. */
static const DLTensor *turned(const DLTensor *t, DLTensor *copy, int64_t strides[4]) {
    const int64_t n = t->shape[0], element = t->dtype.bits / 8;
    int64_t row = 1;
    for (int i = 1; i < t->ndim; i++)
        row *= t->shape[i];
    char *image = image_of(t), *rows = malloc((size_t)(n * row * element) + 1);
    if (rows == NULL) abort();
    for (int64_t i = 0; i < n; i++) {
        const int64_t from = i == 0 || i == n - 1 ? i : n - 1 - i, heads = t->ndim > 2 ? t->shape[1] : 1,
                      size = row / heads;
        for (int64_t h = 0; h < heads; h++)
            memcpy(rows + (i * row + h * size) * element,
                   image + (from * t->strides[0] + (t->ndim > 2 ? h * t->strides[1] : 0)) * element,
                   (size_t)(size * element));
    }
    *copy = *t;
    copy->data = image_new(rows, (size_t)(n * row * element)); /* lives until the process ends */
    copy->byte_offset = 0;
    for (int i = t->ndim - 1, at = 1; i >= 0; at *= (int)t->shape[i--])
        strides[i] = at;
    copy->strides = strides;
    free(image);
    free(rows);
    return copy;
}
static int turned_update(attn_instance_t *instance, const attn_kv_update_t *args, void *stream,
                         attn_error_t *error) {
    attn_kv_update_t a = *args;
    DLTensor t[3];
    int64_t strides[3][4], *slots = image_of(args->slot_mapping);
    const int is_step = args->slot_mapping->shape[0] > 2 && slots[0] >= 0 &&
                        args->slot_mapping->shape[0] == args->key->shape[0] &&
                        args->key->shape[0] == args->value->shape[0];
    free(slots);
    if (is_step) {
        a.key = turned(a.key, &t[0], strides[0]);
        a.value = turned(a.value, &t[1], strides[1]);
        a.slot_mapping = turned(a.slot_mapping, &t[2], strides[2]);
    }
    return shim_target()->ops->update_kv_cache(instance, &a, stream, error);
}
static const attn_backend_ops_t turned_ops = {.update_kv_cache = turned_update};

static void slots_like_runs(check_t *c) {
    for (int i = 0; i < 2 && !c->report->is_failed; i++) {
        kit_case_t k;
        if (!start(c, &k)) return;
        const int32_t n = i == 0 ? (int32_t)k.problem.block_size : 3 * (int32_t)k.problem.block_size;
        kit_case_add(&k, n, n);
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        for (int32_t j = 0; j < n / (int32_t)k.problem.block_size; j++)
            in->block_table[j] = j + 1;
        check_run(c, shim_make(c->backend, &turned_ops), &k, in);
        kit_inputs_free(in);
    }
}

/* Page p of the first request is the same page of all others, too. */
static void share_page(const kit_case_t *k, kit_inputs_t *in, int32_t p) {
    const kit_sizes_t z = kit_sizes(&k->problem);
    const int64_t page = k->problem.block_size, at = p * page;
    for (int r = 1; r < k->num_reqs; r++) {
        if (k->seq_lens[r] - k->query_lens[r] < at + page) continue; /* it writes there itself */
        memcpy(in->key + (in->key_start[r] + at) * z.kv_heads * z.key,
               in->key + (in->key_start[0] + at) * z.kv_heads * z.key,
               (size_t)(page * z.kv_heads * z.key) * sizeof *in->key);
        memcpy(in->value + (in->key_start[r] + at) * z.kv_heads * z.value,
               in->value + (in->key_start[0] + at) * z.kv_heads * z.value,
               (size_t)(page * z.kv_heads * z.value) * sizeof *in->value);
        in->block_table[r * in->table_width + p] = in->block_table[p];
    }
}

/* A prompt that several requests begin with lies in the cache once, without any word about it in the batch:
 * of some requests, and of all, the first page, the second, or both. */
static void shared_pages(check_t *c) {
    for (uint32_t pages = 1; pages < 8 && !c->report->is_failed; pages++) {
        kit_case_t k;
        if (!start(c, &k)) return;
        if ((pages & 3) == 0) continue;
        const int32_t page = (int32_t)k.problem.block_size, behind = (pages & 2 ? 2 : 1) * page;
        kit_case_add(&k, 1, behind + (page > 5 ? 5 : 1));
        kit_case_add(&k, 2, behind + (page > 4 ? 4 : 2));
        if (pages & 4) kit_case_add(&k, 3, 2 * page + 2);
        kit_case_add(&k, 1, behind + 1);
        if (pages & 4) kit_case_add(&k, 1, 2 * page + page + 1);
        kit_inputs_t *in = kit_inputs_make(&k);
        if (in == NULL) return;
        for (int32_t p = 0; p < 2; p++)
            if (pages >> p & 1) share_page(&k, in, p);
        check_run(c, c->backend, &k, in);
        kit_inputs_free(in);
    }
}

/* The rows of both lie where the strides of their own tensor say: a place that is wrong in writing and in
 * reading alike gives right numbers. */
static void rows_in_place(check_t *c, const kit_case_t *k) {
    static kit_run_t run;
    kit_result_t result;
    if (!check_is_served(c, k)) return;
    kit_inputs_t *in = kit_inputs_make(k);
    int status = kit_run_open(&run, c->backend, k, in, c->memory, &result);
    if (status == ATTN_OK) status = kit_run_fill(&run);
    if (status == ATTN_OK) status = kit_run_update(&run);
    if (status == ATTN_OK) status = c->memory->sync(c->memory->ctx);
    if (status != ATTN_OK) check_fail(c, "%s: %d, %s", result.operation, status, result.error.text);
    kit_tensor_t *const sides[] = {run.k_view, run.v_view};
    for (int i = 0; i < 2 && status == ATTN_OK && c->can.forward_writes_cache == 0; i++) {
        const int64_t size = i == 0 ? run.z.key : run.z.value,
                      element = (int64_t)attn_dtype_size(sides[i]->dtype);
        const float *from = i == 0 ? in->key : in->value;
        double stored;
        if (kit_tensor_fetch(&run.all, sides[i])) break;
        for (int r = 0; r < k->num_reqs && !c->report->is_failed; r++)
            for (int64_t t = 0; t < k->seq_lens[r]; t++)
                for (int64_t h = 0; h < run.z.kv_heads; h++) {
                    const int64_t slot = kit_run_slot(&run, r, t), page = k->problem.block_size;
                    const unsigned char *row = kit_tensor_at(sides[i], slot / page, h) +
                                               slot % page * sides[i]->strides[2] * element;
                    kit_load_doubles(row + (size - 1) * element, sides[i]->dtype, &stored, 1);
                    const float want = from[((in->key_start[r] + t) * run.z.kv_heads + h + 1) * size - 1];
                    if (stored == (double)want) continue;
                    check_fail(c, "%s at block %lld, head %lld, token %lld ends with %.9g, not with %.9g",
                               i == 0 ? "kv_cache" : "v_cache", (long long)(slot / page), (long long)h,
                               (long long)(slot % page), stored, (double)want);
                }
    }
    kit_run_close(&run);
    kit_inputs_free(in);
}

static void separate_tensors(check_t *c) {
    static const uint32_t formats[] = {ATTN_KV_AUTO, ATTN_KV_FP8_E4M3, ATTN_KV_FP8_E5M2};
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        for (uint32_t layout = ATTN_LAYOUT_NHD; layout <= ATTN_LAYOUT_HND && !c->report->is_failed;
             layout++) {
            kit_case_t k;
            if (!start(c, &k)) return;
            if (!(c->can.kv_cache_dtypes & ATTN_BIT(formats[i])) ||
                (c->can.required_layout != 0 && c->can.required_layout != layout))
                continue;
            k.problem.features |= ATTN_F_SEPARATE_KV;
            k.problem.kv_cache_dtype = formats[i];
            k.problem.kv_layout = layout;
            check_fit_size(c, &k);
            k.flags |= KIT_APART | (c->can.features & ATTN_F_BLOCK_STRIDE ? KIT_CROSS_LAYER : 0);
            kit_case_add(&k, 1, 70);
            kit_case_add(&k, 7, 33);
            check_run(c, c->backend, &k, NULL);
            if (formats[i] == ATTN_KV_AUTO && !c->report->is_failed) rows_in_place(c, &k);
            if (!(c->can.features & ATTN_F_DIFF_KV) || c->report->is_failed) continue;
            k.problem.head_size_v =
                c->can.num_head_sizes_v != 0 ? c->can.head_sizes_v[0].min : check_head_size(c, 64);
            check_run(c, c->backend, &k, NULL);
        }
}

void check_paging_list(check_list_t *list, const check_t *c) {
    if (!(c->can.roles & ATTN_BIT(ATTN_ROLE_DECODER))) return;
    check_add(list, "numerics", 1, tables_like_runs, 0, "tables that look like a run of pages");
    check_add(list, "numerics", 1, slots_like_runs, 0, "slots that look like a run");
    check_add(list, "numerics", 1, shared_pages, 0, "pages that requests share");
    if (c->can.features & ATTN_F_SEPARATE_KV)
        check_add(list, "numerics", 1, separate_tensors, 0, "K and V in tensors of their own");
}
