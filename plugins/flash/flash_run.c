/* SPDX-License-Identifier: Apache-2.0 */
/* From a configuration to the launch of its instance. */
#include "flash_launch.h"

int flash_run_prefill(const flash_params *p, const flash_shape *s, const flash_prefill_config *c, int num_tiles,
                      int num_sms, void *stream) {
    (void)num_sms;
    flash_prefill_func_t f = flash_prefill_sm80_instance(s->kv_dtype, c->class_index);
    int rc = f(0, c, 0, stream);
    return rc || !p ? rc : f(p, c, num_tiles, stream);
}
