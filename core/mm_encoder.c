/* SPDX-License-Identifier: Apache-2.0 */
/* mm_encoder.c: fp8 attention by configuration: which problems get it, static scales by layer name, and saving what dynamic
 * scales have become. */
#include "mm_encoder.h"

#include "device.h"
#include "fail.h"
#include "number_text.h"

#include <stdlib.h>

static const char *text_of(const attn_context_t *context, const char *key) {
    return attni_config_get(&context->config, "mm_encoder", key);
}

static int check_settings(const struct attni_mm_encoder *mm, attn_error_t *err) {
    const char *path = mm->scale_path ? "fp8_scale_path" : "fp8_scale_save_path";
    if (mm->scale_path && mm->save_path)
        return attni_fail_param(
            err, ATTN_E_INVALID, "fp8_scale_save_path",
            "[mm_encoder] has fp8_scale_path and fp8_scale_save_path; static scales come from a file, "
            "dynamic ones go into one: keep one of the two");
    if (!mm->is_fp8 && (mm->scale_path || mm->save_path))
        return attni_fail_param(err, ATTN_E_INVALID, path,
                                "[mm_encoder] has %s without attn_dtype = fp8; add that or remove the path",
                                path);
    return ATTN_OK;
}

int attni_mm_encoder_open(attn_context_t *context, attn_error_t *err) {
    struct attni_mm_encoder *mm = calloc(1, sizeof *mm);
    if (!mm) return attni_fail(err, ATTN_E_NO_MEMORY, "out of memory for a context");
    context->mm_encoder = mm;
    mm->is_fp8 = !strcmp(text_of(context, "attn_dtype"), "fp8");
    mm->scale_path = text_of(context, "fp8_scale_path");
    mm->save_path = text_of(context, "fp8_scale_save_path");
    attni_double_parse(text_of(context, "fp8_scale_save_margin"), &mm->margin);
    int code = check_settings(mm, err);
    return code || !mm->scale_path ? code : attni_mm_table_read(&mm->table, mm->scale_path, err);
}

void attni_mm_encoder_free(struct attni_mm_encoder *mm) {
    if (!mm) return;
    attni_mm_table_free(&mm->table);
    free(mm);
}

void attni_mm_encoder_apply(const attn_context_t *context, attn_problem_t *problem) {
    if (context->mm_encoder->is_fp8 && problem->role == ATTN_ROLE_MM_ENCODER)
        problem->features |= ATTN_F_FP8_ATTENTION;
}

int attni_mm_encoder_scales(const attn_layer_t *layer, double *scale, int *found, attn_error_t *err) {
    const struct attni_mm_encoder *mm = layer->group->context->mm_encoder;
    *found = mm->scale_path != NULL;
    if (!*found) return ATTN_OK;
    const struct attni_mm_entry *entry = attni_mm_table_find(&mm->table, mm->scale_path, layer->name, err);
    if (!entry) return ATTN_E_NOT_FOUND;
    memcpy(scale, entry->scale, sizeof entry->scale);
    return ATTN_OK;
}

struct collection {
    struct attni_mm_table table;
    void *stream;
    int failed;
};

static void collect(void *user, const attn_layer_t *layer) {
    struct collection *c = user;
    attn_fp8_state_t state = layer->seen;
    if (!layer->is_dynamic || !layer->weight_space || c->failed) return;
    const attn_device_t *device = &layer->group->device;
    if (device->type != kDLCPU)
        c->failed = attni_cuda_read(&state, layer->weight_space, sizeof state, device->id, c->stream, NULL) !=
                    ATTN_OK;
    if (c->failed || state.calls == 0) return; /* no call yet: nothing is known about this layer */
    const double scale[ATTNI_MM_SCALES] = {(double)state.scale[0], (double)state.scale[1],
                                           (double)state.scale[2]};
    c->failed = attni_mm_table_add(&c->table, layer->name, scale) != 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct attni_mm_entry *)a)->layer, ((const struct attni_mm_entry *)b)->layer);
}

static void save(attn_context_t *context, void *stream) {
    const struct attni_mm_encoder *mm = context->mm_encoder;
    struct collection c = {.stream = stream};
    attn_error_t error = {.struct_size = sizeof error};
    attni_layers_each(context, collect, &c);
    if (c.failed) {
        attni_log(&context->log, ATTN_LOG_ERROR,
                  "mm_encoder: the fp8 scales of the layers cannot be read; %s is not written",
                  mm->save_path);
    } else {
        qsort(c.table.entries, c.table.count, sizeof *c.table.entries, by_name);
        if (attni_mm_table_write(&c.table, mm->save_path, mm->margin, &error))
            attni_log(&context->log, ATTN_LOG_ERROR, "mm_encoder: %s", error.text);
        else
            attni_log(&context->log, ATTN_LOG_INFO,
                      "mm_encoder: fp8 scales of %zu layers, times %g, written to %s", c.table.count,
                      mm->margin, mm->save_path);
    }
    attni_mm_table_free(&c.table);
}

/* The layer that saves may be another thread's, and this one's state is written by its next call: what it reads is a copy. */
static void keep_seen(attn_layer_t *layer) {
    attn_context_t *context = layer->group->context;
    if (layer->group->device.type != kDLCPU || !layer->weight_space) return;
    pthread_mutex_lock(&context->lock);
    memcpy(&layer->seen, layer->weight_space, sizeof layer->seen);
    pthread_mutex_unlock(&context->lock);
}

void attni_mm_encoder_count(attn_layer_t *layer, void *stream) {
    struct attni_mm_encoder *mm = layer->group->context->mm_encoder;
    if (!mm->save_path || atomic_load(&mm->is_saved)) return;
    keep_seen(layer);
    if (++layer->dynamic_calls != ATTN_FP8_HISTORY || atomic_exchange(&mm->is_saved, 1)) return;
    save(layer->group->context, stream);
}
