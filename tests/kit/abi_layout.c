/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abi_layout.c: offsets and sizes of every public struct against the frozen table of tests/kit/abi/, and the
 * numbers that cross the border: error codes, enumerators, feature bits. One moved member breaks every plugin
 * that was ever built.
 */
#include <attn/attn.h>
#include <attn/attn_comm.h>
#include <attn/attn_merge.h>
#include <attn/attn_model.h>
#include <attn/attn_plan.h>
#include <attn/attn_plugin_util.h>

#include "../tap.h"

typedef struct layout {
    const char *name;
    size_t offset, size, frozen_offset, frozen_size;
} layout_t;

#define STRUCT(TYPE, SIZE) {#TYPE, 0, sizeof(TYPE), 0, SIZE},
#define MEMBER(TYPE, NAME, OFFSET, SIZE)                                                                     \
    {#TYPE "." #NAME, offsetof(TYPE, NAME), sizeof(((TYPE *)0)->NAME), OFFSET, SIZE},
static const layout_t layouts[] = {
#include "abi/layout-1.0.h"
};

/* Values that are written into plugins and files, so that a renumbering fails here. */
static const struct {
    const char *name;
    int64_t value, frozen;
} numbers[] = {
    {"ATTN_ABI_MAJOR", ATTN_ABI_MAJOR, 1},
    {"ATTN_ABI_MINOR", ATTN_ABI_MINOR, 0},
    {"ATTN_PLUGIN_MAGIC", (int64_t)ATTN_PLUGIN_MAGIC, INT64_C(0x3067756c506e7441)},
    {"ATTN_E_INVALID", ATTN_E_INVALID, -1},
    {"ATTN_E_UNSUPPORTED", ATTN_E_UNSUPPORTED, -2},
    {"ATTN_E_NO_MEMORY", ATTN_E_NO_MEMORY, -3},
    {"ATTN_E_TOO_NEW", ATTN_E_TOO_NEW, -4},
    {"ATTN_E_NOT_FOUND", ATTN_E_NOT_FOUND, -5},
    {"ATTN_E_IO", ATTN_E_IO, -6},
    {"ATTN_E_PARSE", ATTN_E_PARSE, -7},
    {"ATTN_E_DEVICE", ATTN_E_DEVICE, -8},
    {"ATTN_E_STATE", ATTN_E_STATE, -9},
    {"ATTN_E_SPACE", ATTN_E_SPACE, -10},
    {"ATTN_E_TRUST", ATTN_E_TRUST, -11},
    {"ATTN_E_ABI", ATTN_E_ABI, -12},
    {"ATTN_E_EXISTS", ATTN_E_EXISTS, -13},
    {"ATTN_E_FORKED", ATTN_E_FORKED, -14},
    {"ATTN_E_INTERNAL", ATTN_E_INTERNAL, -15},
    {"ATTN_ROLE_MM_ENCODER", ATTN_ROLE_MM_ENCODER, 8},
    {"ATTN_MASK_PER_REQUEST", ATTN_MASK_PER_REQUEST, 3},
    {"ATTN_DTYPE_FLOAT64", ATTN_DTYPE_FLOAT64, 10},
    {"ATTN_KV_TURBOQUANT_3BIT_NC", ATTN_KV_TURBOQUANT_3BIT_NC, 15},
    {"ATTN_LAYOUT_HND", ATTN_LAYOUT_HND, 2},
    {"ATTN_REASON_UNKNOWN", ATTN_REASON_UNKNOWN, 25},
    {"ATTN_AXIS_KV", ATTN_AXIS_KV, 6},
    {"ATTN_GRAPH_ALWAYS", ATTN_GRAPH_ALWAYS, 4},
    {"ATTN_OPTION_ENUM", ATTN_OPTION_ENUM, 5},
    {"ATTN_LOG_DEBUG", ATTN_LOG_DEBUG, 4},
    {"ATTN_F_SLIDING_WINDOW", (int64_t)ATTN_F_SLIDING_WINDOW, 1},
    {"ATTN_F_WEIGHTS", (int64_t)ATTN_F_WEIGHTS, 1 << 29},
    {"ATTN_F_FP8_ATTENTION", (int64_t)ATTN_F_FP8_ATTENTION, 1 << 30},
    {"ATTN_F_LATENT", (int64_t)ATTN_F_LATENT, INT64_C(1) << 31},
    {"ATTN_F_KEY_LENGTHS", (int64_t)ATTN_F_KEY_LENGTHS, INT64_C(1) << 32},
    {"ATTN_F_DEVICE_LENGTHS", (int64_t)ATTN_F_DEVICE_LENGTHS, INT64_C(1) << 33},
    {"ATTN_F_REL_BIAS", (int64_t)ATTN_F_REL_BIAS, INT64_C(1) << 34},
    {"ATTN_F_OUT_NVFP4", (int64_t)ATTN_F_OUT_NVFP4, INT64_C(1) << 35},
    {"ATTN_F_OUT_SCALE_UE8M0", (int64_t)ATTN_F_OUT_SCALE_UE8M0, INT64_C(1) << 36},
    {"ATTN_F_WRITE_IN_FORWARD", (int64_t)ATTN_F_WRITE_IN_FORWARD, INT64_C(1) << 37},
    {"ATTN_F_KNOWN_", (int64_t)ATTN_F_KNOWN_, ((INT64_C(1) << 38) - 1) & ~(INT64_C(1) << 25)},
    {"ATTN_DL_FLOAT8_E4M3FN", ATTN_DL_FLOAT8_E4M3FN, 10},
    {"ATTN_DL_FLOAT8_E5M2", ATTN_DL_FLOAT8_E5M2, 12},
    {"ATTN_DL_FLOAT8_E8M0FNU", ATTN_DL_FLOAT8_E8M0FNU, 14},
};

/* The order of the bits, by name. */
static void check_feature_names(void) {
    static const char *const order[] = {"sliding_window",
                                        "soft_cap",
                                        "alibi",
                                        "alibi_sqrt",
                                        "sink",
                                        "mm_prefix",
                                        "mm_prefix_clamp",
                                        "chunked_local",
                                        "chunk_lookback",
                                        "rswa",
                                        "non_causal",
                                        "per_request_causal",
                                        "qq_bias",
                                        "diff_kv",
                                        "lse",
                                        "per_head_scales",
                                        "quant_query",
                                        "out_fp8_static",
                                        "out_fp8_group",
                                        "separate_kv",
                                        "cascade",
                                        "static_sink",
                                        "batch_invariant",
                                        "capture",
                                        "dcp",
                                        NULL,
                                        "kv_connector",
                                        "contiguous_kv",
                                        "block_stride",
                                        "weights",
                                        "fp8_attention",
                                        "latent",
                                        "key_lengths",
                                        "device_lengths",
                                        "rel_bias",
                                        "out_nvfp4",
                                        "out_scale_ue8m0",
                                        "write_in_forward"};
    unsigned wrong = 0;
    for (unsigned i = 0; i < sizeof order / sizeof order[0]; i++) {
        const char *name = attn_feature_name(i);
        const char *was = order[i] != NULL ? order[i] : "nameless";
        if (name == NULL) name = "nameless";
        if (strcmp(name, was) == 0) continue;
        diag("bit %u is %s, was %s", i, name, was);
        wrong++;
    }
    ok(wrong == 0, "feature bits keep their places");
}

int main(void) {
    if (sizeof(void *) != 8 || sizeof(long) != 8) skip_all("the frozen table is for LP64");
    const char *type = NULL;
    unsigned wrong = 0;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        const layout_t *l = &layouts[i];
        if (strchr(l->name, '.') == NULL) { /* a new struct: report on the one before it */
            if (type != NULL) ok(wrong == 0, "%s is laid out as frozen", type);
            type = l->name;
            wrong = 0;
        }
        if (l->offset == l->frozen_offset && l->size == l->frozen_size) continue;
        diag("%s is at %zu with %zu bytes, was at %zu with %zu", l->name, l->offset, l->size,
             l->frozen_offset, l->frozen_size);
        wrong++;
    }
    ok(wrong == 0, "%s is laid out as frozen", type);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        is_int(numbers[i].value, numbers[i].frozen, "%s", numbers[i].name);
    check_feature_names();
    return tap_done();
}
