/* SPDX-License-Identifier: Apache-2.0 */
/* case_agree.c: one case on a backend and on the oracle, for tests that only want to know whether they
 * agree. */
#include "attn_case.h"

#include <attn/attn_plugin_util.h>

#include <stdio.h>
#include <string.h>

int kit_is_served(const attn_backend_t *backend, const kit_case_t *c, const kit_memory_t *memory, char *why,
                  size_t why_size) {
    const attn_device_t device = {.struct_size = sizeof device,
                                  .type = memory->device_type,
                                  .compute_capability = memory->compute_capability};
    attn_reason_t first = {0};
    attn_reasons_t reasons = {.struct_size = sizeof reasons, .capacity = 1, .items = &first};
    backend->ops->supports_combination(&c->problem, &device, &reasons);
    if (reasons.count != 0) snprintf(why, why_size, "refused: %s", first.text);
    return reasons.count == 0;
}

int kit_agrees(const attn_backend_t *backend, const attn_backend_t *oracle, const kit_case_t *c,
               const kit_inputs_t *in_or_null, const kit_memory_t *memory, kit_difference_t *d, char *why,
               size_t why_size) {
    kit_result_t got, want;
    char text[1024];
    memset(&got, 0, sizeof got);
    memset(&want, 0, sizeof want);
    memset(d, 0, sizeof *d);
    kit_inputs_t *made = in_or_null == NULL ? kit_inputs_make(c) : NULL;
    const kit_inputs_t *in = made != NULL ? made : in_or_null;
    int is_good = 0;
    if (in != NULL) {
        kit_run(backend, c, in, memory, &got);
        kit_run_oracle(oracle, c, in, &want);
        *d = kit_compare(c, &got, &want);
        is_good = got.status == ATTN_OK && want.status == ATTN_OK && got.fault[0] == '\0' && d->is_close;
    }
    if (!is_good)
        snprintf(why, why_size, "%s: status %d/%d in %s: %s %s %s", kit_case_text(c, text, sizeof text),
                 got.status, want.status, in != NULL ? got.operation : "out of memory for the inputs",
                 got.error.text, got.fault, d->text);
    kit_result_free(&got);
    kit_result_free(&want);
    kit_inputs_free(made);
    return is_good;
}
