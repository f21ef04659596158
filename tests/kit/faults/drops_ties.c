/* SPDX-License-Identifier: Apache-2.0 */
/* Of equal scores only the first counts. Caught by: numerics, ties */
#include "bad.h"

static _Thread_local double bad_last;
static double bad_score(double s) {
    if (s == bad_last) return -1e300;
    return bad_last = s;
}
#define simple_score(l, dot) bad_score(simple_score(l, dot))

#include "bad_plugin.h"
