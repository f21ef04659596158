/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A section for one device overrides the section for all of them, whatever file it is in: it is the more
 * specific. Within one section `backend` overrides `priority`; backend = auto withdraws a request. The same
 * holds for the keys of each phase, prefill_backend and so on, among themselves.
 */
#include "select/select_rules.h"

#include <attn/attn_plugin_util.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Semantics 5.3: the order of upstream, reduced to the backends that libattn's own plugins hold. */
#define DENSE "FLASH_ATTN", "FLASH_ATTN_DIFFKV", "TRITON_ATTN"
static const char *const dense[] = {DENSE};
static const char *const dense_cpu[] = {DENSE, "CPU_ATTN", "REFERENCE"};
static const char *const mm[] = {"MM_ENCODER_ATTN", DENSE};
static const char *const mm_cpu[] = {"MM_ENCODER_ATTN", DENSE, "CPU_ATTN", "REFERENCE"};
static const char *const mla[] = {"FLASHMLA", "TRITON_MLA"};
static const char *const mla_cpu[] = {"FLASHMLA", "TRITON_MLA", "CPU_ATTN", "REFERENCE"};
static const char *const mla_prefill[] = {"FLASH_ATTN"};
static const char *const mla_prefill_cpu[] = {"FLASH_ATTN", "CPU_ATTN", "REFERENCE"};
static const char *const sparse[] = {"FLASHMLA_SPARSE"};
static const char *const sparse_cpu[] = {"FLASHMLA_SPARSE", "CPU_ATTN", "REFERENCE"};

struct list {
    const char *const *names;
    size_t count;
};

#define LIST(array) ((struct list){array, COUNT(array)})

static struct list default_list(uint32_t role, const attn_device_t *device) {
    int is_cpu = device->type == kDLCPU;
    switch (role) {
    case ATTN_ROLE_MLA:
        return is_cpu ? LIST(mla_cpu) : LIST(mla);
    case ATTN_ROLE_MLA_PREFILL:
        return is_cpu ? LIST(mla_prefill_cpu) : LIST(mla_prefill);
    case ATTN_ROLE_MLA_SPARSE:
        return is_cpu ? LIST(sparse_cpu) : LIST(sparse);
    case ATTN_ROLE_MM_ENCODER:
        return is_cpu ? LIST(mm_cpu) : LIST(mm);
    default:
        return is_cpu ? LIST(dense_cpu) : LIST(dense);
    }
}

const char *const *attni_default_priority(uint32_t role, const attn_device_t *device, size_t *count) {
    struct list list = default_list(role, device);
    *count = list.count;
    return list.names;
}

/* Which plugin of ours holds which backend. */
static const char *const holders[][2] = {
    {"FLASH_ATTN", "flash"},           {"FLASH_ATTN_DIFFKV", "flash"},
    {"TRITON_ATTN", "triton_like"},    {"FLASHMLA", "mla"},
    {"FLASHMLA_SPARSE", "mla_sparse"}, {"MM_ENCODER_ATTN", "mm_encoder"},
    {"TRITON_MLA", "triton_like"},     {"CPU_ATTN", "cpu"},
    {"REFERENCE", "reference"},
};

const char *attni_plugin_of_backend(const char *backend) {
    for (size_t i = 0; i < COUNT(holders); i++)
        if (!strcasecmp(holders[i][0], backend)) return holders[i][1];
    return NULL;
}

size_t attni_known_backends(const char *names[], size_t room) {
    size_t count = 0;
    for (; count < COUNT(holders) && count < room; count++)
        names[count] = holders[count][0];
    return count;
}

/* The section for this very device, as it is spelled in the sources; "" if there is none. */
static void device_section(const struct attni_config *config, uint32_t role, const attn_device_t *device,
                           char *section, size_t size) {
    char prefix[64];
    int length = snprintf(prefix, sizeof prefix, "select %s ", attn_role_name(role));
    section[0] = 0;
    for (size_t i = config->ini.count; i-- > 0;) {
        const char *name = config->ini.entries[i].section;
        if (strncmp(name, prefix, (size_t)length) != 0) continue;
        int32_t type, capability;
        if (attni_device_key(name + length, &type, &capability) == 0 && type == device->type &&
            capability == device->compute_capability) {
            snprintf(section, size, "%s", name);
            return;
        }
    }
}

static int is_auto(const char *name) {
    return !name || !name[0] || !strcasecmp(name, "auto");
}

static const char *origin(const struct attni_config *config, const char *section, const char *key,
                          struct attni_arena *arena) {
    char text[4200];
    return attni_arena_text(arena, "%s", attni_config_origin(config, section, key, text, sizeof text));
}

/* The keys of one question: who serves everything, or batches of one phase. */
struct keys {
    const char *backend, *priority;
};

static const struct keys keys_of[] = {{"backend", "priority"},
                                      [ATTN_PHASE_DECODE] = {"decode_backend", "decode_priority"},
                                      [ATTN_PHASE_PREFILL] = {"prefill_backend", "prefill_priority"}};

/* The configured list: 1, or 0 where a section has none. */
static int read_priority(const struct attni_config *config, const char *section, const char *key,
                         struct attni_arena *arena, struct attni_select_rule *rule) {
    const char *value = section[0] ? attni_config_get(config, section, key) : NULL;
    if (!value) return 0;
    char **names, *text;
    size_t count;
    if (attni_list_split(value, &names, &count, &text)) {
        arena->failed = 1;
        return 1;
    }
    const char **kept = attni_arena_alloc(arena, (count + 1) * sizeof *kept);
    for (size_t i = 0; kept && i < count; i++)
        kept[i] = attni_arena_text(arena, "%s", names[i]);
    free(text);
    free(names);
    rule->names = kept;
    rule->count = kept ? count : 0;
    rule->priority_source = origin(config, section, key, arena);
    return 1;
}

/* The section that decides on an explicit backend, or NULL. */
static const char *explicit_section(const struct attni_config *config, const struct keys *keys,
                                    const char *for_device, const char *for_all) {
    if (for_device[0]) {
        const char *preferred = attni_config_get(config, for_device, keys->backend);
        if (preferred) return is_auto(preferred) ? NULL : for_device;
        if (attni_config_get(config, for_device, keys->priority)) return NULL;
    }
    return is_auto(attni_config_get(config, for_all, keys->backend)) ? NULL : for_all;
}

int attni_select_rule(const struct attni_config *config, uint32_t role, uint32_t phase,
                      const attn_device_t *device, const char *requested, struct attni_arena *arena,
                      struct attni_select_rule *rule) {
    char for_device[80], for_all[64];
    const struct keys *keys = &keys_of[phase];
    *rule = (struct attni_select_rule){.priority_source = "default"};
    device_section(config, role, device, for_device, sizeof for_device);
    snprintf(for_all, sizeof for_all, "select %s", attn_role_name(role));
    if (!read_priority(config, for_device, keys->priority, arena, rule) &&
        !read_priority(config, for_all, keys->priority, arena, rule) && phase == 0)
        rule->names = attni_default_priority(role, device, &rule->count);
    rule->source = rule->priority_source;
    const char *section = explicit_section(config, keys, for_device, for_all);
    if (!is_auto(requested)) {
        rule->explicit_backend = attni_arena_text(arena, "%s", requested);
        rule->is_from_api = 1;
        rule->source = "api";
    } else if (section) {
        rule->explicit_backend =
            attni_arena_text(arena, "%s", attni_config_get(config, section, keys->backend));
        rule->source = origin(config, section, keys->backend, arena);
    }
    return arena->failed ? ATTN_E_NO_MEMORY : ATTN_OK;
}
