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
#define NUMBER(NAME, VALUE) {#NAME, (int64_t)(NAME), VALUE},
static const struct {
    const char *name;
    int64_t value, frozen;
} numbers[] = {
#include "abi/numbers-1.0.h"
    {"ATTN_F_KNOWN_", (int64_t)ATTN_F_KNOWN_, ((INT64_C(1) << 38) - 1) & ~(INT64_C(1) << 25)},
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
