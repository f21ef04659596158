/* SPDX-License-Identifier: Apache-2.0 */
/* run_input.c: finds a layer's tensors in an activations file and checks that they belong together. */
#include "run/run_input.h"

#include <attn/attn.h>
#include <attn/attn_plugin_util.h>

#include "base/args.h"
#include "base/layer_sizes.h"

static int bad(const char *path, const char *what, attn_error_t *error) {
    return attn_fail(error, ATTN_E_PARSE, "",
                     "%s: %s; examples/data/README.md describes the file, examples/capture.py makes one",
                     path, what);
}

int run_input_layers(const st_file_t *file, const char *path, int64_t *numbers, int capacity,
                     attn_error_t *error) {
    const char *format = st_metadata(file, "format"), *layers = st_metadata(file, "layers");
    if (format == NULL || strcmp(format, "attn-activations") != 0)
        return bad(path, "the metadata has no format = attn-activations", error);
    int count = layers != NULL ? tool_parse_list(layers, 100000, numbers, capacity) : -1;
    return count > 0 ? count : bad(path, "the metadata has no list of numbers 'layers'", error);
}

/* "0,21,46" -> offsets that do not decrease; returns the number of requests, or -1. */
static int read_starts(const char *text, int32_t *starts) {
    static int64_t values[RUN_MAX_REQS + 1];
    int n = text != NULL ? tool_parse_list(text, INT32_MAX, values, RUN_MAX_REQS + 1) : -1;
    if (n < 2 || values[0] != 0) return -1;
    for (int i = 0; i < n; i++) {
        if (i > 0 && values[i] < values[i - 1]) return -1;
        starts[i] = (int32_t)values[i];
    }
    return n - 1;
}

static int check_shape(const st_tensor_t *t, const char *path, const char *what, uint32_t dtype,
                       uint32_t ndim, const int64_t *wanted, attn_error_t *error) {
    int fits = t != NULL && t->dtype == dtype && t->ndim == ndim;
    for (uint32_t i = 0; fits && i < ndim; i++)
        fits = t->shape[i] == wanted[i];
    if (fits) return ATTN_OK;
    char sizes[80] = "";
    for (uint32_t i = 0, used = 0; i < ndim && used < sizeof sizes; i++)
        used += (uint32_t)snprintf(sizes + used, sizeof sizes - used, "%s%lld", i != 0 ? ", " : "",
                                   (long long)wanted[i]);
    return attn_fail(error, ATTN_E_PARSE, what, "%s: tensor '%s' %s; expected %s [%s] by the layer's problem",
                     path, what, t == NULL ? "is missing" : "has another shape or dtype",
                     attn_dtype_name(dtype), sizes);
}

static int read_tensors(const st_file_t *file, const char *path, run_input_t *in, attn_error_t *error) {
    const attn_problem_t *p = &in->problem;
    const layer_sizes_t z = layer_sizes(p);
    int64_t hq = z.heads;
    int64_t tq = in->q_start[in->num_reqs], tk = in->k_start[in->num_reqs];
    const struct {
        const char *what;
        const st_tensor_t **to;
        int is_needed;
        uint32_t dtype, ndim;
        int64_t sizes[3];
    } wanted[] = {
        {"query", &in->query, 1, p->dtype, 3, {tq, hq, z.query}},
        {"key", &in->key, !z.is_latent, p->dtype, 3, {tk, z.kv_heads, z.key}},
        {"value", &in->value, !z.is_latent, p->dtype, 3, {tk, z.kv_heads, z.value}},
        {"kv_c", &in->key, z.is_latent, p->dtype, 2, {tk, z.key}},
        {"k_pe", &in->value, z.is_latent, p->dtype, 2, {tk, z.value}},
        {"kv_b_proj",
         &in->weights,
         attn_problem_projects(p),
         p->dtype,
         2,
         {layer_weight_rows(p), p->kv_lora_rank}},
        {"topk_indices", &in->topk, p->topk != 0, ATTN_DTYPE_INT32, 2, {tq, p->topk}},
        {"output", &in->output, 0, p->dtype, 3, {tq, hq, z.output}},
        {"sinks", &in->sinks, (p->features & ATTN_F_SINK) != 0, ATTN_DTYPE_FLOAT32, 1, {hq}},
        {"alibi_slopes",
         &in->slopes,
         (p->features & (ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT)) != 0,
         ATTN_DTYPE_FLOAT32,
         1,
         {hq}},
        {"rel_bias", &in->rel_bias, (p->features & ATTN_F_REL_BIAS) != 0, ATTN_DTYPE_FLOAT32, 2, {hq, -1}},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%lld.%s", (long long)in->number, wanted[i].what);
        const st_tensor_t *found = st_find(file, name);
        if (found == NULL && !wanted[i].is_needed) continue;
        int code = check_shape(found, path, name, wanted[i].dtype, wanted[i].ndim, wanted[i].sizes, error);
        *wanted[i].to = found;
        if (code != ATTN_OK) return code;
    }
    return ATTN_OK;
}

int run_input_read(const st_file_t *file, const char *path, int64_t number, run_input_t *in,
                   attn_error_t *error) {
    memset(in, 0, sizeof *in);
    in->number = number;
    char key[64];
    snprintf(key, sizeof key, "layers.%lld.problem", (long long)number);
    const char *text = st_metadata(file, key), *keys = st_metadata(file, "cu_seqlens_k");
    if (text == NULL)
        return attn_fail(error, ATTN_E_PARSE, key, "%s: the metadata has no '%s': the file has no layer %lld",
                         path, key, (long long)number);
    snprintf(key, sizeof key, "layers.%lld.name", (long long)number);
    in->name = st_metadata(file, key) != NULL ? st_metadata(file, key) : "";
    in->model = st_metadata(file, "model") != NULL ? st_metadata(file, "model") : "";
    ATTN_INIT(attn_error_t, inner);
    in->problem.struct_size = sizeof in->problem;
    int code = attn_problem_parse(text, &in->problem, &inner);
    if (code == ATTN_OK) code = attn_problem_check(&in->problem, &inner);
    if (code != ATTN_OK)
        return attn_fail(error, ATTN_E_PARSE, inner.param, "%s: problem of layer %lld: %.250s", path,
                         (long long)number, inner.text);
    in->num_reqs = read_starts(st_metadata(file, "cu_seqlens"), in->q_start);
    if (in->num_reqs < 0) return bad(path, "cu_seqlens in the metadata is not a list of offsets 0,..", error);
    int32_t num_keys = read_starts(keys != NULL ? keys : st_metadata(file, "cu_seqlens"), in->k_start);
    if (num_keys != in->num_reqs)
        return bad(path, "cu_seqlens_k is not a list of offsets as long as cu_seqlens", error);
    if (in->problem.role != ATTN_ROLE_ENCODER_DECODER &&
        memcmp(in->q_start, in->k_start, sizeof in->q_start) != 0)
        return bad(path, "cu_seqlens_k differs from cu_seqlens in a layer that is not cross attention",
                   error);
    return read_tensors(file, path, in, error);
}
