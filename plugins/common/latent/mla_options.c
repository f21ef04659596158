/* SPDX-License-Identifier: Apache-2.0 */
/* The options of the MLA plugins: [option mla] and [option mla_sparse] of the INI file. */
#include "../descriptor.h"
#include "mla_instance.h"

#define OPTION_PROJECTIONS                                                                                   \
    {                                                                                                        \
        .struct_size = sizeof(attn_option_spec_t), .type = ATTN_OPTION_ENUM, .name = "projections",          \
        .doc = "who multiplies by kv_b_proj: auto takes cuBLAS where its library is found, cublas insists "  \
               "on it, own takes the plugin's kernel",                                                       \
        .default_value = "auto", .choices = "auto cublas own"                                                \
    }

const attn_option_spec_t mla_options[MLA_NUM_DENSE_OPTIONS] = {
    [MLA_OPTION_ARCH] = OPTION_ARCH,
    [MLA_OPTION_PROJECTIONS] = OPTION_PROJECTIONS,
    [MLA_OPTION_PREFILL] =
        {.struct_size = sizeof(attn_option_spec_t),
         .type = ATTN_OPTION_ENUM,
         .name = "prefill",
         .doc = "how prompts are attended to: auto takes the cheaper form, absorbed never projects the "
                "context up, projected does so from the first request with several query tokens on",
         .default_value = "auto",
         .choices = "auto absorbed projected"},
};
const attn_option_spec_t mla_sparse_options[MLA_NUM_SPARSE_OPTIONS] = {
    [MLA_OPTION_ARCH] = OPTION_ARCH,
    [MLA_OPTION_PROJECTIONS] = OPTION_PROJECTIONS,
    [MLA_OPTION_WIDEN] = {.struct_size = sizeof(attn_option_spec_t),
                          .type = ATTN_OPTION_ENUM,
                          .name = "widen",
                          .doc =
                              "prompts over 656-byte rows by a 16-bit copy of them in the workspace: auto "
                              "where that is faster, on wherever there is room, off never, without the room",
                          .default_value = "auto",
                          .choices = "auto on off"},
};
