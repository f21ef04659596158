/* SPDX-License-Identifier: Apache-2.0 */
/* mm_encoder.c: fp8 attention by configuration: which problems get it, and the file of static scales. */
#include "load/mm_encoder.h"

#include "base/number_text.h"
#include "load/context.h"

#include <attn/attn_plugin_util.h>
#include <stdlib.h>

static const char *text_of(const attn_context_t *context, const char *key) {
    return attni_config_get(&context->config, "mm_encoder", key);
}

static int check_settings(const struct attni_mm_encoder *mm, attn_error_t *error) {
    const char *path = mm->scale_path ? "fp8_scale_path" : "fp8_scale_save_path";
    if (mm->scale_path && mm->save_path)
        return attn_fail(
            error, ATTN_E_INVALID, "fp8_scale_save_path",
            "[mm_encoder] has fp8_scale_path and fp8_scale_save_path; static scales come from a file, "
            "dynamic ones go into one: keep one of the two");
    if (!mm->is_fp8 && (mm->scale_path || mm->save_path))
        return attn_fail(error, ATTN_E_INVALID, path,
                         "[mm_encoder] has %s without attn_dtype = fp8; add that or remove the path", path);
    return ATTN_OK;
}

int attni_mm_encoder_open(attn_context_t *context, attn_error_t *error) {
    struct attni_mm_encoder *mm = calloc(1, sizeof *mm);
    if (!mm) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for a context");
    context->mm_encoder = mm;
    mm->is_fp8 = !strcmp(text_of(context, "attn_dtype"), "fp8");
    mm->scale_path = text_of(context, "fp8_scale_path");
    mm->save_path = text_of(context, "fp8_scale_save_path");
    attni_double_parse(text_of(context, "fp8_scale_save_margin"), &mm->margin);
    int code = check_settings(mm, error);
    return code || !mm->scale_path ? code : attni_mm_table_read(&mm->table, mm->scale_path, error);
}

void attni_mm_encoder_free(struct attni_mm_encoder *mm) {
    if (!mm) return;
    attni_mm_table_free(&mm->table);
    free(mm);
}

void attni_mm_encoder_apply(const attn_context_t *context, attn_problem_t *problem) {
    if (context->mm_encoder->is_fp8 && problem->role == ATTN_ROLE_MM_ENCODER)
        problem->features |= ATTN_F_FP8_ATTENTION;
}
