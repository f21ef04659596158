/* SPDX-License-Identifier: Apache-2.0 */
/* mm_layer.c: static fp8 scales by the name of a layer, and saving what dynamic ones have become. */
#include "layer/mm_layer.h"

#include "device/device.h"
#include "load/mm_encoder.h"

#include <attn/attn_plugin_util.h>
#include <stdlib.h>

int attni_mm_encoder_scales(const attn_layer_t *layer, double *scale, int *found, attn_error_t *error) {
    const struct attni_mm_encoder *mm = layer->group->context->mm_encoder;
    *found = mm->scale_path != NULL;
    if (!*found) return ATTN_OK;
    const struct attni_mm_entry *entry = attni_mm_table_find(&mm->table, mm->scale_path, layer->name, error);
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
        c->failed =
            attni_device_read(device, &state, layer->weight_space, sizeof state, c->stream, NULL) != ATTN_OK;
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

/* The layer that saves may be another thread's, and this one's state is written by its next call: what it
 * reads is a copy. */
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
