/* SPDX-License-Identifier: Apache-2.0 */
/* record_call.c: a call's texts and tensors. Tensors become dense; of a cache only the blocks that the batch
 * names are kept, numbered anew in the order in which the table names them. */
#include "hook/record_call.h"
#include "base/arith.h"
#include <attn/attn_plugin_util.h>

#include <stdlib.h>

static const char no_room[] = "out of memory, or more than [hook record] max_bytes";
static const char malformed[] = "a tensor has no data, no shape or no strides";
static const char out_of_reach[] = "a tensor is on a device that the core cannot read";
static const char capturing[] = "the stream is capturing a graph";

/* -------------------------------------------------------------------- batch */

/* The backend checks its arguments after the hook has looked at them. */
static int is_whole(const DLTensor *t) {
    return t->ndim > 0 && t->shape != NULL && t->strides != NULL && t->data != NULL;
}

static void *copied(const void *from, size_t bytes, int *failed) {
    void *to = malloc(bytes + 1);
    if (to == NULL)
        *failed = 1;
    else
        memcpy(to, from, bytes);
    return to;
}

/* Rows of an int32 matrix, made dense. */
static int32_t *copied_rows(const int32_t *from, int64_t rows, int64_t columns, int64_t stride, int *failed) {
    int32_t *to = calloc((size_t)(rows * columns) + 1, sizeof *to);
    if (to == NULL) *failed = 1;
    for (int64_t r = 0; to != NULL && r < rows; r++)
        memcpy(to + r * columns, from + r * stride, (size_t)columns * sizeof *to);
    return to;
}

/* How tensors of a batch without a mirror on the host are read. */
struct reader {
    const attn_group_t *group;
    void *stream;
    int may_read;
    struct attni_host_copy copy;
};

/* NULL: *why says it. */
static const DLTensor *read_list(struct reader *r, const DLTensor *t, const char *name, const char **why) {
    const struct attni_host_read read = {r->group, r->stream, 0, -1};
    const DLTensor *seen = NULL;
    if (r->group->device.type != kDLCPU && !r->may_read) {
        *why = capturing;
        return NULL;
    }
    if (attni_host_copy(&read, t, name, &r->copy, &seen, NULL) != ATTN_OK || seen == NULL)
        *why = out_of_reach;
    return seen;
}

/* The blocks of every request's keys; what follows them in a row is not read. */
static void copy_table(struct attni_seen_batch *seen, struct reader *reader, const attn_batch_t *b,
                       int *failed) {
    const int32_t *ids = b->block_table_host;
    int64_t stride = b->block_table_host_stride, bs = reader->group->inner.block_size;
    if (b->block_table == NULL || bs == 0) return;
    if (ids == NULL) {
        const DLTensor *t = read_list(reader, b->block_table, "block_table", &seen->unseen);
        if (t == NULL) return;
        ids = (const int32_t *)attn_data(t);
        stride = t->strides[0];
    }
    for (int32_t r = 0; r < b->num_reqs; r++)
        seen->table_columns = attni_max64(seen->table_columns, attni_cdiv(b->seq_lens_host[r], bs));
    seen->table = calloc((size_t)(b->num_reqs * seen->table_columns) + 1, sizeof *seen->table);
    if (seen->table == NULL) *failed = 1;
    for (int32_t r = 0; seen->table != NULL && r < b->num_reqs; r++)
        memcpy(seen->table + r * seen->table_columns, ids + r * stride,
               (size_t)attni_cdiv(b->seq_lens_host[r], bs) * sizeof *ids);
}

static void copy_masks(struct attni_seen_batch *seen, struct reader *reader, const attn_batch_t *b,
                       int *failed) {
    const DLTensor *spans = b->mm_prefix_ranges, *rswa = b->rswa_prefix_lens;
    if (b->mm_prefix_ranges_host != NULL) {
        seen->num_mm_ranges = b->num_mm_ranges;
        seen->ranges = copied_rows(b->mm_prefix_ranges_host, b->num_reqs, 2 * b->num_mm_ranges,
                                   2 * b->num_mm_ranges, failed);
    } else if (spans != NULL && spans->strides[1] != 2) {
        seen->unseen = "the spans of a request do not follow each other";
    } else if (spans != NULL &&
               (spans = read_list(reader, spans, "mm_prefix_ranges", &seen->unseen)) != NULL) {
        seen->num_mm_ranges = (int32_t)spans->shape[1];
        seen->ranges = copied_rows((const int32_t *)attn_data(spans), b->num_reqs, 2 * spans->shape[1],
                                   spans->strides[0], failed);
    }
    if (b->rswa_prefix_lens_host != NULL)
        seen->rswa = copied_rows(b->rswa_prefix_lens_host, 1, b->num_reqs, 0, failed);
    else if (rswa != NULL && rswa->strides[0] != 1)
        seen->unseen = "rswa_prefix_lens do not follow each other";
    else if (rswa != NULL && (rswa = read_list(reader, rswa, "rswa_prefix_lens", &seen->unseen)) != NULL)
        seen->rswa = copied_rows((const int32_t *)attn_data(rswa), 1, b->num_reqs, 0, failed);
}

int attni_seen_batch_copy(struct attni_seen_batch *seen, const attn_group_t *g, const attn_batch_t *b,
                          int may_read, void *stream) {
    struct reader reader = {.group = g, .stream = stream, .may_read = may_read};
    int failed = 0;
    size_t n = (size_t)b->num_reqs;
    attni_seen_batch_free(seen);
    seen->flags = b->flags;
    seen->num_reqs = b->num_reqs;
    seen->num_tokens = b->num_actual_tokens;
    seen->common_prefix_len = b->common_prefix_len;
    if (n > 0) {
        seen->starts = copied(b->query_start_loc_host, (n + 1) * sizeof *seen->starts, &failed);
        seen->lens = copied(b->seq_lens_host, n * sizeof *seen->lens, &failed);
        if (b->causal_host != NULL) seen->causal = copied(b->causal_host, n, &failed);
        if (b->key_start_loc_host != NULL)
            seen->key_starts = copied(b->key_start_loc_host, (n + 1) * sizeof *seen->key_starts, &failed);
        if ((g->features & ATTN_F_DEVICE_LENGTHS) != 0)
            seen->unseen = "its lengths are on the device, and the host knows bounds of them";
        else if (g->inner.dcp_world_size > 1)
            seen->unseen = "the cache is shared among ranks";
        else
            copy_table(seen, &reader, b, &failed);
        copy_masks(seen, &reader, b, &failed);
    }
    attni_host_copy_free(&reader.copy);
    if (failed) attni_seen_batch_free(seen);
    return failed ? -1 : 0;
}

void attni_seen_batch_free(struct attni_seen_batch *seen) {
    free(seen->starts);
    free(seen->lens);
    free(seen->rswa);
    free(seen->ranges);
    free(seen->table);
    free(seen->causal);
    free(seen->key_starts);
    memset(seen, 0, sizeof *seen);
}

/* ------------------------------------------------------------------ entries */

static void name_of(const struct attni_record *r, const char *what, char *name) {
    snprintf(name, ATTNI_TENSOR_NAME_MAX, "calls.%d.%s", r->number, what);
}

int attni_record_text(const struct attni_record *r, const char *key, const char *value) {
    char name[ATTNI_TENSOR_NAME_MAX];
    name_of(r, key, name);
    return attni_tensor_file_text(r->file, name, value);
}

static void *add(const struct attni_record *r, const char *what, uint32_t dtype, uint32_t ndim,
                 const int64_t *shape) {
    char name[ATTNI_TENSOR_NAME_MAX];
    name_of(r, what, name);
    return attni_tensor_file_add(r->file, name, dtype, ndim, shape);
}

static int add_list(const struct attni_record *r, const char *what, const void *data, uint32_t dtype,
                    uint32_t ndim, const int64_t *shape) {
    size_t bytes = attn_dtype_size(dtype);
    if (data == NULL) return 0;
    void *to = add(r, what, dtype, ndim, shape);
    for (uint32_t i = 0; i < ndim; i++)
        bytes *= (size_t)shape[i];
    if (to != NULL) memcpy(to, data, bytes);
    return to != NULL ? 0 : -1;
}

static void add_shape(char *text, size_t size, const char *what, const DLTensor *t) {
    size_t used = strlen(text);
    if (t == NULL || t->shape == NULL) return;
    used += (size_t)snprintf(text + used, size - used, "%s%s=%s[", used > 0 ? " " : "", what,
                             attn_dtype_name(attn_dtype_of(t->dtype)));
    for (int i = 0; i < t->ndim && used < size; i++)
        used +=
            (size_t)snprintf(text + used, size - used, "%s%lld", i > 0 ? "," : "", (long long)t->shape[i]);
    if (used < size) snprintf(text + used, size - used, "]");
}

int attni_record_shapes(const struct attni_record *r) {
    char text[2048];
    const attn_group_t *g = r->group;
    const struct attni_seen_batch *b = r->batch;
    const attn_forward_t *a = r->args;
    attn_problem_t problem = g->inner;
    if (problem.role == ATTN_ROLE_MLA_SPARSE) problem.kv_cache_dtype = g->problem.kv_cache_dtype; /* 5.7 */
    int n = attn_problem_format(&problem, text, sizeof text);
    int failed = n <= 0 || (size_t)n >= sizeof text || attni_record_text(r, "problem", text) != 0 ||
                 attni_record_text(r, "backend", g->backend->shown.name) != 0 ||
                 attni_record_text(r, "plugin", g->backend->plugin->info.name) != 0 ||
                 attni_record_text(r, "plugin_version", g->backend->plugin->info.version) != 0 ||
                 attni_record_text(r, "device", g->device.name) != 0;
    snprintf(text, sizeof text, "num_reqs=%d num_tokens=%d flags=%u common_prefix_len=%d", (int)b->num_reqs,
             (int)b->num_tokens, (unsigned)b->flags, (int)b->common_prefix_len);
    failed = failed || attni_record_text(r, "batch", text) != 0;
    text[0] = '\0';
    add_shape(text, sizeof text, "query", a->query);
    add_shape(text, sizeof text, "key", a->key);
    add_shape(text, sizeof text, "value", a->value);
    add_shape(text, sizeof text, "kv_cache", a->kv_cache);
    add_shape(text, sizeof text, "v_cache", a->v_cache);
    add_shape(text, sizeof text, "topk_indices", a->topk_indices);
    add_shape(text, sizeof text, "output", a->output);
    add_shape(text, sizeof text, "lse", a->lse);
    failed = failed || attni_record_text(r, "shapes", text) != 0;
    const int64_t reqs[1] = {b->num_reqs}, starts[1] = {b->num_reqs + 1},
                  ranges[3] = {b->num_reqs, b->num_mm_ranges, 2};
    return failed || add_list(r, "query_start_loc", b->starts, ATTN_DTYPE_INT32, 1, starts) != 0 ||
                   add_list(r, "seq_lens", b->lens, ATTN_DTYPE_INT32, 1, reqs) != 0 ||
                   add_list(r, "key_start_loc", b->key_starts, ATTN_DTYPE_INT32, 1, starts) != 0 ||
                   add_list(r, "causal", b->causal, ATTN_DTYPE_UINT8, 1, reqs) != 0 ||
                   add_list(r, "rswa_prefix_lens", b->rswa, ATTN_DTYPE_INT32, 1, reqs) != 0 ||
                   add_list(r, "mm_prefix_ranges", b->ranges, ATTN_DTYPE_INT32, 3, ranges) != 0
               ? -1
               : 0;
}

/* ------------------------------------------------------------------ tensors */

/* A dense copy of the first sizes[] of a tensor; dimension `mapped` is read in the order of map (-1: no
 * such). */
struct dense {
    const DLTensor *t;
    const int64_t *sizes;
    int mapped;
    const int32_t *map;
};

static char *copy_dense(const struct dense *d, int dim, const char *from, char *to) {
    int64_t n = d->sizes[dim], size = d->t->dtype.bits / 8, step = attn_byte_stride(d->t, dim);
    int is_last = dim == d->t->ndim - 1;
    if (is_last && step == size && dim != d->mapped) {
        memcpy(to, from, (size_t)(n * size));
        return to + n * size;
    }
    for (int64_t i = 0; i < n; i++) {
        const char *row = from + (dim == d->mapped ? d->map[i] : i) * step;
        if (is_last) {
            memcpy(to, row, (size_t)size);
            to += size;
        } else {
            to = copy_dense(d, dim + 1, row, to);
        }
    }
    return to;
}

static const char *add_mapped(const struct attni_record *r, const char *what, const struct dense *d) {
    const DLTensor *t = d->t;
    uint32_t dtype = attn_dtype_of(t->dtype);
    int64_t count = 1;
    if (dtype == 0 || t->ndim < 1 || t->ndim > ATTNI_TENSOR_DIMS)
        return "a tensor has an element type or a rank that safetensors lacks";
    for (int i = 0; i < t->ndim; i++)
        count *= d->sizes[i];
    char *to = add(r, what, dtype, (uint32_t)t->ndim, d->sizes);
    if (to == NULL) return no_room;
    if (count > 0) copy_dense(d, 0, attn_data(t), to);
    return NULL;
}

/* The first `most` of dimension dim, -1: all. Tensors that are not given are no obstacle. */
static const char *add_tensor(const struct attni_record *r, const char *what, const DLTensor *t, int dim,
                              int64_t most) {
    int64_t sizes[ATTNI_TENSOR_DIMS] = {0};
    struct attni_host_copy copy = {.memory = NULL};
    const struct attni_host_read read = {r->group, r->stream, dim, most};
    struct dense d = {.sizes = sizes, .mapped = -1};
    attn_error_t error = {.struct_size = sizeof error};
    if (t == NULL) return NULL;
    if (!is_whole(t)) return malformed;
    if (r->is_capturing) return capturing;
    const int code = attni_host_copy(&read, t, what, &copy, &d.t, &error);
    const char *why = code == ATTN_E_NO_MEMORY ? no_room : out_of_reach;
    if (code == ATTN_OK && d.t != NULL) {
        for (int i = 0; i < t->ndim && i < ATTNI_TENSOR_DIMS; i++)
            sizes[i] = i == dim && most >= 0 ? attni_min64(most, t->shape[i]) : t->shape[i];
        why = add_mapped(r, what, &d);
    }
    attni_host_copy_free(&copy);
    return why;
}

/* The projection, which the layer keeps in the backend's own form. */
static const char *add_weights(const struct attni_record *r) {
    const struct attni_seen_weights *w = r->weights;
    if (!attn_problem_projects(&r->group->inner)) return NULL;
    if (w == NULL) return "the layer's kv_b_proj was not kept: [hook record] max_bytes has no room for it";
    const char *why = add_tensor(r, "kv_b_proj", &w->kv_b_proj.t, -1, -1);
    return why != NULL || w->scale.memory == NULL ? why
                                                  : add_tensor(r, "kv_b_proj_scale", &w->scale.t, -1, -1);
}

const char *attni_record_inputs(const struct attni_record *r) {
    const attn_forward_t *a = r->args;
    if (r->group->inner.role == ATTN_ROLE_MLA_PREFILL) return "it is a part of a layer";
    if (a->weight_space != NULL && !attn_role_is_mla(r->group->inner.role))
        return "dynamic fp8 scales depend on earlier calls";
    if (a->output_block_scale != NULL) return "outputs with block scales are not recorded";
    if (r->batch->unseen != NULL) return r->batch->unseen;
    /* Without a cache the keys of all requests are those of the call. */
    int64_t rows = r->batch->num_tokens, key_rows = a->kv_cache != NULL ? rows : -1;
    const struct {
        const char *what;
        const DLTensor *t;
        int64_t rows;
    } inputs[] = {{"query", a->query, rows},
                  {"key", a->key, key_rows},
                  {"value", a->value, key_rows},
                  {"qq_bias", a->qq_bias, rows},
                  {"topk_indices", a->topk_indices, rows},
                  {"q_scale", a->scales.q, -1},
                  {"k_scale", a->scales.k, -1},
                  {"v_scale", a->scales.v, -1},
                  {"output_scale", a->output_scale, -1},
                  {"sinks", a->sinks, -1},
                  {"alibi_slopes", a->alibi_slopes, -1},
                  {"rel_bias", a->rel_bias, -1}};
    const char *why = NULL;
    for (size_t i = 0; why == NULL && i < sizeof inputs / sizeof inputs[0]; i++)
        why = add_tensor(r, inputs[i].what, inputs[i].t, 0, inputs[i].rows);
    return why != NULL ? why : add_weights(r);
}

/* How a backend places K, V and scales in a row: two backends can share pages only if they agree. */
static int add_layout(const struct attni_record *r) {
    const attn_kv_cache_shape_t *s = &r->group->shape;
    char text[256], *at = text;
    at +=
        sprintf(at, "block_axis=%d k_offset=%lld v_offset=%lld k_scale_offset=%lld v_scale_offset=%lld axes=",
                r->group->block_axis, (long long)s->k_offset, (long long)s->v_offset,
                (long long)s->k_scale_offset, (long long)s->v_scale_offset);
    for (uint32_t i = 0; i < s->ndim; i++)
        at += sprintf(at, "%s%u", i > 0 ? "," : "", (unsigned)(s->axes[i] & 255));
    return attni_record_text(r, "cache", text);
}

/* New block numbers, and map: the old number of each new one. Returns how many, or -1: a number that is no
 * block. */
static int64_t renumber(const struct attni_record *r, int64_t num_blocks, int32_t *seen, int32_t *map,
                        int32_t *table) {
    const struct attni_seen_batch *b = r->batch;
    int64_t count = 0, bs = r->group->inner.block_size;
    for (int32_t q = 0; q < b->num_reqs; q++)
        for (int64_t j = 0; j < attni_cdiv(b->lens[q], bs); j++) {
            int32_t id = b->table[q * b->table_columns + j];
            if (id < 0 || id >= num_blocks) return -1;
            if (seen[id] == 0) {
                map[count] = id;
                seen[id] = (int32_t)++count;
            }
            table[q * b->table_columns + j] = seen[id] - 1;
        }
    return count;
}

/* The blocks in the order of the map, which is that of the copy. */
static const char *add_blocks(const struct attni_record *r, const DLTensor *t, const char *what, int axis,
                              const int32_t *map, int64_t count) {
    int64_t sizes[ATTNI_TENSOR_DIMS] = {0};
    struct attni_host_copy copy = {.memory = NULL};
    struct dense d = {.t = t, .sizes = sizes, .mapped = axis, .map = map};
    const char *why = NULL;
    for (int i = 0; i < t->ndim && i < ATTNI_TENSOR_DIMS; i++)
        sizes[i] = i == axis ? count : t->shape[i];
    if (r->group->device.type != kDLCPU) {
        const int code = attni_host_copy_blocks(r->group, t, what, axis, map, count, r->stream, &copy, NULL);
        if (code != ATTN_OK) why = code == ATTN_E_NO_MEMORY ? no_room : out_of_reach;
        d.t = &copy.t, d.mapped = -1;
    }
    if (why == NULL) why = add_mapped(r, what, &d);
    attni_host_copy_free(&copy);
    return why;
}

const char *attni_record_cache(const struct attni_record *r) {
    const DLTensor *cache = r->args->kv_cache, *v_cache = r->args->v_cache;
    const struct attni_seen_batch *b = r->batch;
    if (cache == NULL || b->table == NULL) return NULL;
    if (!is_whole(cache) || (v_cache != NULL && !is_whole(v_cache))) return malformed;
    if (r->is_capturing) return capturing;
    int axis = v_cache != NULL ? 0 : r->group->block_axis;
    int64_t num_blocks = cache->shape[axis], columns = b->table_columns;
    const int64_t shape[2] = {b->num_reqs, columns};
    if (v_cache != NULL) num_blocks = attni_min64(num_blocks, v_cache->shape[0]);
    int32_t *seen = calloc((size_t)num_blocks + 1, sizeof *seen);
    int32_t *map = calloc((size_t)num_blocks + 1, sizeof *map);
    int32_t *table = add(r, "block_table", ATTN_DTYPE_INT32, 2, shape);
    const char *why = seen == NULL || map == NULL || table == NULL || add_layout(r) != 0 ? no_room : NULL;
    if (why == NULL) {
        memset(table, 0, (size_t)(b->num_reqs * columns) * sizeof *table);
        int64_t count = renumber(r, num_blocks, seen, map, table);
        why = count < 0 ? "the block table names a block that the cache does not have"
                        : add_blocks(r, cache, "kv_cache", axis, map, count);
        if (why == NULL && v_cache != NULL) why = add_blocks(r, v_cache, "v_cache", axis, map, count);
    }
    free(seen);
    free(map);
    return why;
}

const char *attni_record_outputs(const struct attni_record *r) {
    int64_t rows = r->batch->num_tokens;
    const char *why = add_tensor(r, "output", r->args->output, 0, rows);
    return why != NULL ? why : add_tensor(r, "lse", r->args->lse, 1, rows);
}
