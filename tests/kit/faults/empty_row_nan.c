/* SPDX-License-Identifier: Apache-2.0 */
/* A row without a visible key divides by zero. Caught by: numerics, rows without */
#include "bad.h"

static double bad_lse(double max, double sum, double *acc, int64_t n) {
    if (sum == 0)
        for (int64_t i = 0; i < n; i++)
            acc[i] = (double)NAN;
    return simple_lse(max, sum);
}
#define simple_lse(max, sum) bad_lse(max, sum, acc, l->head_size_v)

#include "bad_plugin.h"
