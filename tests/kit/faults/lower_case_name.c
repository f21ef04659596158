/* SPDX-License-Identifier: Apache-2.0 */
/* The name of the backend is not in capitals. Caught by: abi */
#include "bad.h"

#define BAD_NAME "bad attention"

#include "bad_plugin.h"
