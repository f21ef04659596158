/* SPDX-License-Identifier: Apache-2.0 */
/* layer_table.c: the layers of a context by name: a hash table under the context's lock, made with the first
 * layer. */
#include "layer/layer.h"

#include <attn/attn_plugin_util.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUM_CHAINS = 1024 }; /* models have some hundreds of layers */

struct table {
    attn_layer_t *chains[NUM_CHAINS];
    unsigned said; /* bits of attni_layers_once */
};

static struct table *table_of(attn_context_t *context) {
    if (context->layers == NULL) {
        context->layers = calloc(1, sizeof(struct table));
        context->free_layers = free;
    }
    return context->layers;
}

static attn_layer_t **find_link(struct table *t, const char *name, uint64_t hash) {
    attn_layer_t **link = &t->chains[hash % NUM_CHAINS];
    while (*link != NULL && ((*link)->hash != hash || strcmp((*link)->name, name) != 0))
        link = &(*link)->next;
    return link;
}

int attni_layers_add(attn_context_t *context, attn_layer_t *layer, attn_error_t *error) {
    layer->hash = attn_fingerprint64(0, layer->name, strlen(layer->name));
    layer->next = NULL;
    pthread_mutex_lock(&context->lock);
    struct table *t = table_of(context);
    attn_layer_t **link = t != NULL ? find_link(t, layer->name, layer->hash) : NULL;
    int exists = link != NULL && *link != NULL;
    if (link != NULL && !exists) *link = layer;
    pthread_mutex_unlock(&context->lock);
    if (t == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the table of layers");
    if (exists)
        return attn_fail(error, ATTN_E_EXISTS, "name",
                         "a layer named '%s' already exists; names are unique in a context", layer->name);
    return ATTN_OK;
}

void attni_layers_remove(attn_context_t *context, attn_layer_t *layer) {
    pthread_mutex_lock(&context->lock);
    struct table *t = context->layers;
    if (t != NULL) {
        attn_layer_t **link = find_link(t, layer->name, layer->hash);
        if (*link == layer) *link = layer->next;
    }
    pthread_mutex_unlock(&context->lock);
}

attn_layer_t *attni_layers_find(attn_context_t *context, const char *name) {
    uint64_t hash = attn_fingerprint64(0, name, strlen(name));
    pthread_mutex_lock(&context->lock);
    struct table *t = context->layers;
    attn_layer_t *found = t != NULL ? *find_link(t, name, hash) : NULL;
    pthread_mutex_unlock(&context->lock);
    return found;
}

int attni_layers_facts(attn_context_t *context, const char *name, struct attni_layer_facts *facts) {
    uint64_t hash = attn_fingerprint64(0, name, strlen(name));
    pthread_mutex_lock(&context->lock);
    struct table *t = context->layers;
    const attn_layer_t *found = t != NULL ? *find_link(t, name, hash) : NULL;
    if (found != NULL) { /* a layer of the table has an open group */
        const char *target = found->kv_sharing_target;
        *facts = (struct attni_layer_facts){.role = found->group->problem.role,
                                            .fingerprint = found->group->shape.fingerprint,
                                            .is_sharer = target != NULL};
        snprintf(facts->target, sizeof facts->target, "%s", target != NULL ? target : "");
    }
    pthread_mutex_unlock(&context->lock);
    return found != NULL;
}

void attni_layers_each(attn_context_t *context, void (*visit)(void *user, const attn_layer_t *layer),
                       void *user) {
    pthread_mutex_lock(&context->lock);
    const struct table *t = context->layers;
    for (size_t i = 0; t != NULL && i < NUM_CHAINS; i++)
        for (const attn_layer_t *layer = t->chains[i]; layer != NULL; layer = layer->next)
            visit(user, layer);
    pthread_mutex_unlock(&context->lock);
}

int attni_layers_once(attn_context_t *context, unsigned what) {
    int first = 0;
    pthread_mutex_lock(&context->lock);
    struct table *t = table_of(context);
    if (t != NULL) {
        first = (t->said & (1u << what)) == 0;
        t->said |= 1u << what;
    }
    pthread_mutex_unlock(&context->lock);
    return first;
}
