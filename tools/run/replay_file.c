/* SPDX-License-Identifier: Apache-2.0 */
/* replay_file.c: finds a recorded call's texts and tensors and checks that they belong together. */
#include "run/replay_file.h"

#include <attn/attn.h>
#include <attn/attn_plugin_util.h>
#include <stdlib.h>

enum { MAX_CALLS = 1 << 20 };

/* The file and the call that is being read. */
typedef struct reader {
    const st_file_t *file;
    const char *path;
    replay_call_t *call;
    attn_error_t *error;
} reader_t;

static int bad(const reader_t *r, const char *param, const char *what) {
    return attn_fail(r->error, ATTN_E_PARSE, param,
                     "%s: call %d: %s %s; record the call again with attn record", r->path, r->call->number,
                     param, what);
}

static const char *text_of(const reader_t *r, const char *what) {
    char key[64];
    snprintf(key, sizeof key, "calls.%d.%s", r->call->number, what);
    return st_metadata(r->file, key);
}

static const st_tensor_t *tensor_of(const reader_t *r, const char *what) {
    char key[64];
    snprintf(key, sizeof key, "calls.%d.%s", r->call->number, what);
    return st_find(r->file, key);
}

int replay_file_calls(const st_file_t *file, const char *path, attn_error_t *error) {
    const char *format = st_metadata(file, "format"), *version = st_metadata(file, "version"),
               *calls = st_metadata(file, "calls");
    if (format == NULL || strcmp(format, "attn-record") != 0)
        return attn_fail(error, ATTN_E_PARSE, "format",
                         "%s: the metadata has no format = attn-record; attn record makes such files%s", path,
                         format != NULL && strcmp(format, "attn-activations") == 0
                             ? ", and attn run FILE without --replay runs this one"
                             : "");
    if (version == NULL || strcmp(version, "1") != 0)
        return attn_fail(error, ATTN_E_TOO_NEW, "version",
                         "%s: version %.20s of the format; this attn reads 1: use the attn that recorded it",
                         path, version != NULL ? version : "none");
    char *end = NULL;
    long count = calls != NULL ? strtol(calls, &end, 10) : -1;
    if (end == NULL || *end != '\0' || count < 1 || count > MAX_CALLS)
        return attn_fail(error, ATTN_E_PARSE, "calls",
                         "%s: the metadata's calls is '%.20s'; expected a number from 1 on: nothing was "
                         "recorded, or the file is damaged",
                         path, calls != NULL ? calls : "");
    return (int)count;
}

/* A copy at an aligned address, if the tensor is there and has the wanted shape; sizes -1: any. */
static int read_list(const reader_t *r, const char *what, uint32_t dtype, uint32_t ndim, const int64_t *sizes,
                     int is_needed, void *list, const st_tensor_t **found) {
    const st_tensor_t *t = tensor_of(r, what);
    if (found != NULL) *found = t;
    if (t == NULL) return is_needed ? bad(r, what, "is missing") : ATTN_OK;
    int fits = t->dtype == dtype && t->ndim == ndim;
    for (uint32_t i = 0; fits && i < ndim; i++)
        fits = sizes[i] < 0 || t->shape[i] == sizes[i];
    if (!fits) return bad(r, what, "does not have the shape or element type that its batch needs");
    void *copy = malloc((size_t)t->bytes + 1);
    if (copy == NULL)
        return attn_fail(r->error, ATTN_E_NO_MEMORY, "", "out of memory for call %d", r->call->number);
    memcpy(copy, t->data, (size_t)t->bytes);
    memcpy(list, &copy, sizeof copy);
    return ATTN_OK;
}

static int read_batch(const reader_t *r) {
    replay_call_t *c = r->call;
    const char *text = text_of(r, "batch");
    if (text == NULL || sscanf(text, "num_reqs=%d num_tokens=%d flags=%u common_prefix_len=%d", &c->num_reqs,
                               &c->num_tokens, &c->flags, &c->common_prefix_len) != 4)
        return bad(r, "batch", "is missing or has another form");
    if (c->num_reqs < 0 || c->num_tokens < 0 || (uint32_t)c->num_reqs > c->problem.max_num_seqs ||
        (uint32_t)c->num_tokens > c->problem.max_num_batched_tokens)
        return bad(r, "batch", "exceeds max_num_seqs or max_num_batched_tokens of the problem");
    c->flags &= ~ATTN_BATCH_CAPTURE; /* nothing is captured here */
    const int64_t reqs[1] = {c->num_reqs}, starts[1] = {c->num_reqs + 1}, table[2] = {c->num_reqs, -1},
                  ranges[3] = {c->num_reqs, -1, 2};
    const st_tensor_t *found_table = NULL, *found_ranges = NULL;
    int is_needed = c->num_reqs > 0;
    int code = read_list(r, "query_start_loc", ATTN_DTYPE_INT32, 1, starts, is_needed, &c->starts, NULL);
    if (code == ATTN_OK)
        code = read_list(r, "seq_lens", ATTN_DTYPE_INT32, 1, reqs, is_needed, &c->lens, NULL);
    if (code == ATTN_OK)
        code = read_list(r, "block_table", ATTN_DTYPE_INT32, 2, table, 0, &c->table, &found_table);
    if (code == ATTN_OK)
        code = read_list(r, "rswa_prefix_lens", ATTN_DTYPE_INT32, 1, reqs, 0, &c->rswa, NULL);
    if (code == ATTN_OK)
        code = read_list(r, "mm_prefix_ranges", ATTN_DTYPE_INT32, 3, ranges, 0, &c->ranges, &found_ranges);
    if (code == ATTN_OK) code = read_list(r, "causal", ATTN_DTYPE_UINT8, 1, reqs, 0, &c->causal, NULL);
    const int has_key_starts = (c->problem.features & ATTN_F_KEY_LENGTHS) != 0;
    if (code == ATTN_OK)
        code = read_list(r, "key_start_loc", ATTN_DTYPE_INT32, 1, starts, has_key_starts && is_needed,
                         &c->key_starts, NULL);
    if (code != ATTN_OK) return code;
    if (found_table != NULL) c->table_columns = found_table->shape[1];
    if (found_ranges != NULL && found_ranges->shape[1] > INT32_MAX)
        return bad(r, "mm_prefix_ranges", "has too many spans");
    if (found_ranges != NULL) c->num_mm_ranges = (int32_t)found_ranges->shape[1];
    return ATTN_OK;
}

static int read_layout(const reader_t *r) {
    replay_call_t *c = r->call;
    const char *text = text_of(r, "cache"), *axes;
    if (text == NULL ||
        sscanf(text, "block_axis=%d k_offset=%lld v_offset=%lld k_scale_offset=%lld v_scale_offset=%lld",
               &c->block_axis, &c->k_offset, &c->v_offset, &c->k_scale_offset, &c->v_scale_offset) != 5 ||
        (axes = strstr(text, "axes=")) == NULL)
        return bad(r, "cache", "is missing or has another form");
    for (axes += 5; c->num_axes < REPLAY_MAX_DIMS && *axes != '\0'; c->num_axes++) {
        char *end;
        c->axes[c->num_axes] = (uint32_t)strtoul(axes, &end, 10);
        if (end == axes) return bad(r, "cache", "is missing or has another form");
        axes = *end == ',' ? end + 1 : end;
    }
    int axis = c->v_cache != NULL ? 0 : c->block_axis;
    if (axis < 0 || axis >= (int)c->kv_cache->ndim ||
        (c->v_cache == NULL && (axis >= c->num_axes || c->axes[axis] != ATTN_AXIS_BLOCK)) ||
        (c->v_cache != NULL &&
         (c->v_cache->ndim != 4 || c->kv_cache->ndim != 4 || c->v_cache->shape[0] != c->kv_cache->shape[0])))
        return bad(r, "kv_cache", "does not have the shape that its layout says");
    c->num_blocks = c->kv_cache->bytes > 0 ? c->kv_cache->shape[axis] : 0;
    if (c->table == NULL) return bad(r, "block_table", "is missing");
    return ATTN_OK;
}

static int read_tensors(const reader_t *r) {
    replay_call_t *c = r->call;
    const attn_problem_t *p = &c->problem;
    int64_t t = c->num_tokens, hq = p->num_heads, d = attn_query_size(p), dv = attn_output_size(p),
            hkv = p->num_kv_heads;
    const int has_cache = attn_role_has_cache(p->role), is_mla = attn_role_is_mla(p->role),
              projects = attn_problem_projects(p), is_sparse = p->role == ATTN_ROLE_MLA_SPARSE;
    /* latents and their positional part may come without the dimension of their one head */
    const uint32_t key_dims = is_mla ? 2 : 3, value_dims = is_mla ? 0 : 3;
    const int64_t rows = hq * (p->qk_nope_head_dim + p->v_head_dim);
    /* an fp8 query of latent attention is what the backend makes of it (semantics 7.4) */
    const uint32_t query_dtype = projects ? p->dtype : p->query_dtype;
    const struct {
        const char *what;
        const st_tensor_t **to;
        int is_needed;
        uint32_t dtype; /* 0: any */
        uint32_t ndim;  /* 0: any */
        int64_t sizes[3];
    } wanted[] = {{"query", &c->query, 1, query_dtype, 3, {t, hq, d}},
                  {"key", &c->key, !has_cache, p->dtype, key_dims, {-1, is_mla ? p->kv_lora_rank : hkv, d}},
                  {"value", &c->value, !has_cache, p->dtype, value_dims, {-1, hkv, dv}},
                  {"topk_indices", &c->topk_indices, is_sparse, ATTN_DTYPE_INT32, 2, {t, p->topk}},
                  {"kv_b_proj", &c->kv_b_proj, projects, 0, 2, {rows, p->kv_lora_rank}},
                  {"kv_b_proj_scale", &c->kv_b_proj_scale, 0, ATTN_DTYPE_FLOAT32, 0, {0}},
                  {"kv_cache", &c->kv_cache, 0, 0, 0, {0}},
                  {"v_cache", &c->v_cache, 0, 0, 0, {0}},
                  {"q_scale", &c->q_scale, 0, ATTN_DTYPE_FLOAT32, 1, {-1}},
                  {"k_scale", &c->k_scale, 0, ATTN_DTYPE_FLOAT32, 1, {-1}},
                  {"v_scale", &c->v_scale, 0, ATTN_DTYPE_FLOAT32, 1, {-1}},
                  {"output_scale", &c->output_scale, 0, ATTN_DTYPE_FLOAT32, 1, {1}},
                  {"sinks", &c->sinks, 0, ATTN_DTYPE_FLOAT32, 1, {hq}},
                  {"alibi_slopes", &c->slopes, 0, ATTN_DTYPE_FLOAT32, 1, {hq}},
                  {"rel_bias", &c->rel_bias, 0, ATTN_DTYPE_FLOAT32, 2, {hq, -1}},
                  {"qq_bias", &c->qq_bias, 0, ATTN_DTYPE_FLOAT32, 2, {t, -1}},
                  {"output", &c->output, 0, p->out_dtype, 3, {t, hq, dv}},
                  {"lse", &c->lse, 0, ATTN_DTYPE_FLOAT32, 2, {hq, t}}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        const st_tensor_t *f = *wanted[i].to = tensor_of(r, wanted[i].what);
        if (f == NULL && !wanted[i].is_needed) continue;
        if (f == NULL) return bad(r, wanted[i].what, "is missing");
        /* 8-bit floats may have been given as plain bytes */
        int fits = f->dtype != 0 && (wanted[i].dtype == 0 || f->dtype == wanted[i].dtype ||
                                     (f->dtype == ATTN_DTYPE_UINT8 && attn_dtype_size(wanted[i].dtype) == 1));
        fits = fits && (wanted[i].ndim == 0 || f->ndim == wanted[i].ndim);
        for (uint32_t k = 0; fits && k < wanted[i].ndim; k++)
            fits = wanted[i].sizes[k] < 0 || f->shape[k] == wanted[i].sizes[k];
        if (!fits)
            return bad(r, wanted[i].what, "does not have the shape or element type that its problem needs");
    }
    const st_tensor_t *const scales[] = {c->q_scale, c->k_scale, c->v_scale};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        if (scales[i] != NULL && scales[i]->shape[0] != 1 && scales[i]->shape[0] != hkv)
            return bad(r, "q_scale, k_scale or v_scale", "has neither 1 nor num_kv_heads values");
    const int64_t key_rows = c->key_starts != NULL ? c->key_starts[c->num_reqs] : t;
    if (c->key != NULL && (c->key->shape[0] < key_rows || c->value == NULL || c->value->shape[0] < key_rows))
        return bad(r, "key", "has fewer rows than the batch has keys, or no value beside it");
    return c->kv_cache != NULL ? read_layout(r) : ATTN_OK;
}

int replay_file_read(const st_file_t *file, const char *path, int number, replay_call_t *c,
                     attn_error_t *error) {
    reader_t r = {file, path, c, error};
    memset(c, 0, sizeof *c);
    c->number = number;
    const char *problem = text_of(&r, "problem"), *status = text_of(&r, "status");
    if (problem == NULL) return bad(&r, "problem", "is missing");
    ATTN_INIT(attn_error_t, inner);
    c->problem.struct_size = sizeof c->problem;
    int code = attn_problem_parse(problem, &c->problem, &inner);
    if (code == ATTN_OK) code = attn_problem_check(&c->problem, &inner);
    if (code != ATTN_OK)
        return attn_fail(error, ATTN_E_PARSE, inner.param, "%s: problem of call %d: %.250s", path, number,
                         inner.text);
    if (c->problem.max_num_seqs == 0 || c->problem.max_num_batched_tokens == 0 ||
        c->problem.num_kv_heads == 0 || c->problem.out_dtype == 0 || c->problem.query_dtype == 0)
        return bad(&r, "problem", "lacks limits or types that an opened problem has");
    c->backend = text_of(&r, "backend") != NULL ? text_of(&r, "backend") : "";
    c->device = text_of(&r, "device") != NULL ? text_of(&r, "device") : "";
    c->shapes = text_of(&r, "shapes") != NULL ? text_of(&r, "shapes") : "";
    c->tensors = text_of(&r, "tensors") != NULL ? text_of(&r, "tensors") : "no";
    c->error = text_of(&r, "error") != NULL ? text_of(&r, "error") : "";
    c->has_tensors = strcmp(c->tensors, "yes") == 0;
    c->has_returned = status != NULL;
    c->status = status != NULL ? (int)strtol(status, NULL, 10) : ATTN_OK;
    code = read_batch(&r);
    return code == ATTN_OK && c->has_tensors ? read_tensors(&r) : code;
}

void replay_call_free(replay_call_t *c) {
    free(c->starts);
    free(c->lens);
    free(c->table);
    free(c->rswa);
    free(c->ranges);
    free(c->causal);
    free(c->key_starts);
    memset(c, 0, sizeof *c);
}
