/* SPDX-License-Identifier: Apache-2.0 */
/* hf_families.h: what a model_type means beyond the fields of its config.json. */
#ifndef ATTNI_HF_FAMILIES_H
#define ATTNI_HF_FAMILIES_H

#include <stddef.h>
#include <stdint.h>

enum { HF_DECODER, HF_ENCODER_ONLY, HF_ENCODER_DECODER, HF_VISION };

/* Which layers have the window, where config.json has no layer_types. */
enum {
    HF_NO_WINDOW,
    HF_ALL_WINDOW,     /* every layer, if a window is given */
    HF_WINDOW_ABOVE,   /* use_sliding_window, from layer max_window_layers on */
    HF_EVEN_WINDOW,    /* layers 0, 2, 4, .. */
    HF_NTH_IS_FULL,    /* every nth layer is full: n in sliding_window_pattern, else `period` */
    HF_NTH_IS_GLOBAL,  /* layers 0, n, 2n, .. are full: n in global_attn_every_n_layers */
    HF_CHUNKED_BUT_NTH /* every nth layer is full, the others are chunked: no_rope_layers, else `period` */
};

#define HF_SINK          (1u << 0)
#define HF_ALIBI         (1u << 1) /* always; else the config's own alibi flag decides */
#define HF_SCALAR        (1u << 2) /* scale is query_pre_attn_scalar^-1/2 */
#define HF_MM_PREFIX     (1u << 3) /* image tokens see each other */
#define HF_RELATIVE_BIAS (1u << 4) /* adds a learned bias of the distance to the scores */
#define HF_UNSCALED      (1u << 5) /* scale 1 */
#define HF_HALF_WINDOW   (1u << 6) /* the window field counts both sides: half of it on each */

typedef struct hf_family {
    const char *model_type;
    int shape;
    int pattern;
    uint32_t period;
    uint32_t flags;
    /* for fields that config.json may leave out because they are the class's defaults; 0: none */
    uint32_t heads, kv_heads, head_dim, window, scalar;
    /* with these, heads too counts only where the config gives none of heads, hidden size and depth */
    uint32_t hidden, depth;
} hf_family_t;

/* NULL: not in the table. */
const hf_family_t *attni_hf_family_find(const char *model_type);

#endif
