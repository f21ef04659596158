/* SPDX-License-Identifier: Apache-2.0 */
/* The tables that the plugin header's helpers do not hold, and the way back from a name to its value. */
#include "base/names.h"

#include <attn/attn_plugin_util.h>
#include <strings.h>

static const char *mask_name(uint32_t value) {
    static const char *const names[] = {"none", "causal", "full", "per_request"};
    return names[value];
}

static const char *layout_name(uint32_t value) {
    return value == ATTN_LAYOUT_HND ? "HND" : "NHD";
}

static const char *reason_name(uint32_t value) {
    static const char *const names[] = {
        [ATTN_REASON_HEAD_SIZE] = "HEAD_SIZE",
        [ATTN_REASON_DTYPE] = "DTYPE",
        [ATTN_REASON_KV_CACHE_DTYPE] = "KV_CACHE_DTYPE",
        [ATTN_REASON_BLOCK_SIZE] = "BLOCK_SIZE",
        [ATTN_REASON_MM_PREFIX] = "MM_PREFIX",
        [ATTN_REASON_MLA] = "MLA",
        [ATTN_REASON_SINK] = "SINK",
        [ATTN_REASON_SPARSE] = "SPARSE",
        [ATTN_REASON_PER_HEAD_SCALES] = "PER_HEAD_SCALES",
        [ATTN_REASON_COMPUTE_CAPABILITY] = "COMPUTE_CAPABILITY",
        [ATTN_REASON_ATTN_TYPE] = "ATTN_TYPE",
        [ATTN_REASON_SLIDING_WINDOW] = "SLIDING_WINDOW",
        [ATTN_REASON_NON_CAUSAL] = "NON_CAUSAL",
        [ATTN_REASON_BATCH_INVARIANCE] = "BATCH_INVARIANCE",
        [ATTN_REASON_KV_CONNECTOR] = "KV_CONNECTOR",
        [ATTN_REASON_COMBINATION] = "COMBINATION",
        [ATTN_REASON_IMPORT_ERROR] = "IMPORT_ERROR",
        [ATTN_REASON_FEATURE] = "FEATURE",
        [ATTN_REASON_DEVICE] = "DEVICE",
        [ATTN_REASON_HEAD_COUNT] = "HEAD_COUNT",
        [ATTN_REASON_OUT_DTYPE] = "OUT_DTYPE",
        [ATTN_REASON_LAYOUT] = "LAYOUT",
        [ATTN_REASON_LIMIT] = "LIMIT",
        [ATTN_REASON_UNKNOWN] = "UNKNOWN",
    };
    _Static_assert(sizeof names / sizeof *names == ATTN_REASON_COUNT_, "a reason has no name");
    return names[value];
}

static const struct attni_alias dtype_aliases[] = {{"fp32", ATTN_DTYPE_FLOAT32},
                                                   {"fp16", ATTN_DTYPE_FLOAT16},
                                                   {"bf16", ATTN_DTYPE_BFLOAT16},
                                                   {"fp8", ATTN_DTYPE_FP8_E4M3},
                                                   {NULL, 0}};

static const char *kv_alias(uint32_t value) {
    return attn_kv_format(value)->alias;
}

enum { LAST_FEATURE = 37 };
_Static_assert((ATTN_F_KNOWN_ | UINT64_C(1) << 25) == ATTN_BIT(LAST_FEATURE + 1) - 1,
               "a feature bit has no name");

const struct attni_names attni_roles = {attn_role_name, 1, ATTN_ROLE_COUNT_ - 1, NULL, NULL};
const struct attni_names attni_masks = {mask_name, 1, ATTN_MASK_PER_REQUEST, NULL, NULL};
const struct attni_names attni_dtypes = {attn_dtype_name, 1, ATTN_DTYPE_FLOAT64, dtype_aliases, NULL};
const struct attni_names attni_kv_dtypes = {attn_kv_name, 1, ATTN_KV_COUNT_ - 1, NULL, kv_alias};
const struct attni_names attni_layouts = {layout_name, 1, ATTN_LAYOUT_HND, NULL, NULL};
const struct attni_names attni_reason_codes = {reason_name, 1, ATTN_REASON_COUNT_ - 1, NULL, NULL};
const struct attni_names attni_features = {attn_feature_name, 0, LAST_FEATURE, NULL, NULL};

const char *attni_name_of(const struct attni_names *table, uint32_t value) {
    return value >= table->first && value <= table->last ? table->name_of(value) : NULL;
}

long attni_value_of(const struct attni_names *table, const char *name) {
    for (uint32_t value = table->first; value <= table->last; value++)
        if (table->name_of(value) != NULL && !strcasecmp(table->name_of(value), name)) return value;
    for (const struct attni_alias *alias = table->aliases; alias && alias->name; alias++)
        if (!strcasecmp(alias->name, name)) return alias->value;
    for (uint32_t value = table->first; table->alias_of != NULL && value <= table->last; value++)
        if (table->alias_of(value) != NULL && !strcasecmp(table->alias_of(value), name)) return value;
    return -1;
}

size_t attni_names_list(const struct attni_names *table, const char *list[ATTNI_NAMES_MAX]) {
    size_t count = 0;
    for (uint32_t value = table->first; value <= table->last && count < ATTNI_NAMES_MAX; value++)
        if (table->name_of(value) != NULL) list[count++] = table->name_of(value);
    return count;
}
