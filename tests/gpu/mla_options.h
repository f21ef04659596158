/* SPDX-License-Identifier: Apache-2.0 */
/* mla_options.h: the options of the plugins mla and mla_sparse as `open` takes them, set by their names. */
#ifndef ATTN_TESTS_MLA_OPTIONS_H
#define ATTN_TESTS_MLA_OPTIONS_H

#include <attn/attn_plugin_util.h>

/* mla_sparse has the first MLA_TEST_SPARSE_OPTIONS. */
enum { MLA_TEST_ARCH, MLA_TEST_PROJECTIONS, MLA_TEST_SPARSE_OPTIONS, MLA_TEST_PREFILL = 2, MLA_TEST_OPTIONS };
#define MLA_TEST_OPTION(NAME)                                                                                \
    { .struct_size = sizeof(attn_option_value_t), .type = ATTN_OPTION_ENUM, .name = NAME, .s = "auto" }
static attn_option_value_t mla_test_options[MLA_TEST_OPTIONS] = {
    MLA_TEST_OPTION("arch"), MLA_TEST_OPTION("projections"), MLA_TEST_OPTION("prefill")};

/* 0, or -1 where the option has no such choice. */
static inline int mla_test_set(int option, const char *choice) {
    static const char *const choices[MLA_TEST_OPTIONS][3] = {
        {"auto", "sm80", ""}, {"auto", "cublas", "own"}, {"auto", "absorbed", "projected"}};
    for (int i = 0; i < 3; i++)
        if (strcmp(choice, choices[option][i]) == 0) {
            mla_test_options[option].i = i, mla_test_options[option].s = choices[option][i];
            return 0;
        }
    return -1;
}

static inline uint32_t mla_test_num_options(uint32_t role) {
    return role == ATTN_ROLE_MLA ? MLA_TEST_OPTIONS : MLA_TEST_SPARSE_OPTIONS;
}

#endif
