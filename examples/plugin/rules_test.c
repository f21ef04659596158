/* SPDX-License-Identifier: Apache-2.0 */
/* rules_test.c: the rules by hand, before the conformance kit looks at the whole. Prints what is wrong. */
#include "simple_rules.h"

#include <stdio.h>

static int failures;
#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) failures++, printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);                 \
    } while (0)

int main(void) {
    simple_layer_t l = {
        .num_heads = 8, .num_kv_heads = 2, .head_size = 4, .head_size_v = 4, .block_size = 16};
    l.scale = 0.5;
    l.is_causal = 1;
    CHECK(simple_kv_head(&l, 3) == 0 && simple_kv_head(&l, 4) == 1);
    CHECK(simple_query_position(0, 3, 10) == 7); /* the queries are the last tokens */
    CHECK(simple_is_visible(&l, 5, 5, 10) && !simple_is_visible(&l, 5, 6, 10));
    l.window = 2; /* the token itself and one before it */
    CHECK(simple_is_visible(&l, 5, 4, 10) && !simple_is_visible(&l, 5, 3, 10));
    l.is_causal = 0;
    CHECK(simple_is_visible(&l, 5, 6, 10) && !simple_is_visible(&l, 5, 7, 10));
    CHECK(simple_score(&l, 4) == 2);
    l.soft_cap = 1;
    CHECK(simple_score(&l, 1e9) == 1);
    CHECK(simple_lse(0, 0) == -INFINITY && simple_lse(2, 1) == 2 && isnan(simple_lse(2, NAN)));
    CHECK(simple_to_bf16(1.00390625f) == 0x3f80 && simple_to_bf16(1.01171875f) == 0x3f82); /* ties to even */
    CHECK(simple_to_e4m3(1000) == 0x7e && simple_to_e4m3(-1000) == 0xfe);
    for (int v = 0; v < 256; v++)
        if ((v & 0x7f) != 0x7f) CHECK(simple_to_e4m3(simple_from_e4m3((uint8_t)v)) == v);
    CHECK(simple_to_e4m3(17) == simple_to_e4m3(16)); /* halfway between 16 and 18 */
    return failures != 0;
}
