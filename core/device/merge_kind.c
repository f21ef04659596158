/* SPDX-License-Identifier: Apache-2.0 */
/* merge_kind.c: one table a device type. An entry never changes, so that readers take no lock. */
#include "device/merge_kind.h"

#include <attn/attn_plugin_util.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { NUM_TYPES = 64 };

static _Atomic(const attn_merge_table_t *) tables[NUM_TYPES];

const attn_merge_table_t *attni_merge_kind(int32_t type) {
    return type > 0 && type < NUM_TYPES ? atomic_load_explicit(&tables[type], memory_order_acquire) : NULL;
}

static int check_table(const attn_merge_table_t *raw, attn_merge_table_t *taken, const char *bringer,
                       attn_error_t *error) {
    int code = attn_intake(taken, sizeof *taken, raw, "attn_merge_table_t", error);
    if (code != ATTN_OK) return code;
    if (taken->device_type <= kDLCPU || taken->device_type >= NUM_TYPES)
        return attn_fail(error, ATTN_E_ABI, "merge",
                         "%s: attn_merge_table_t has device_type %d; expected that of a device, 2 to %d",
                         bringer, (int)taken->device_type, NUM_TYPES - 1);
    if (taken->merge_states == NULL || taken->merge_weigh == NULL || taken->rows_copy == NULL ||
        taken->rows_gather == NULL || taken->rows_scatter == NULL)
        return attn_fail(error, ATTN_E_ABI, "merge",
                         "%s: attn_merge_table_t lacks a function; a table has all five of them", bringer);
    if ((taken->peers_query == NULL) != (taken->peers_join == NULL))
        return attn_fail(error, ATTN_E_ABI, "merge",
                         "%s: attn_merge_table_t has one of peers_query and peers_join; give both or neither",
                         bringer);
    return ATTN_OK;
}

int attni_merge_kind_add(const attn_merge_table_t *raw, const char *bringer, attn_error_t *error) {
    attn_merge_table_t taken;
    int code = check_table(raw, &taken, bringer, error);
    if (code != ATTN_OK || attni_merge_kind(taken.device_type) != NULL) return code;
    attn_merge_table_t *kept = malloc(sizeof *kept);
    if (kept == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for the merging functions of %s",
                         bringer);
    *kept = taken;
    const attn_merge_table_t *none = NULL;
    if (!atomic_compare_exchange_strong(&tables[taken.device_type], &none, kept)) free(kept);
    return ATTN_OK;
}
