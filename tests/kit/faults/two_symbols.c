/* SPDX-License-Identifier: Apache-2.0 */
/* A second symbol is exported. Caught by: abi */
#include "bad.h"

__attribute__((visibility("default"))) int bad_helper(int x);
int bad_helper(int x) {
    return x + 1;
}

#include "bad_plugin.h"
