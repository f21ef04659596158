/* SPDX-License-Identifier: Apache-2.0 */
/* The table lists a feature bit that no header defines. Caught by: abi */
#include "bad.h"

#define BAD_FEATURES (SIMPLE_FEATURES | UINT64_C(1) << 50)

#include "bad_plugin.h"
