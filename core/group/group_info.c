/* SPDX-License-Identifier: Apache-2.0 */
/* group_info.c: queries about an open group. */
#include "group/group.h"
#include "base/need.h"

const attn_backend_t *attn_group_backend(const attn_group_t *group) {
    return group != NULL ? &group->backend->shown : NULL;
}

const attn_problem_t *attn_group_problem(const attn_group_t *group) {
    return group != NULL ? &group->problem : NULL;
}

int attn_group_kv_cache_shape(attn_group_t *group, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                              attn_error_t *error) {
    int code = attni_group_check(group, error);
    if (code != ATTN_OK) return code;
    ATTNI_NEED(shape, "shape", error);
    ATTNI_AT_LEAST(num_blocks, 0, "num_blocks", error);
    if (num_blocks > INT32_MAX)
        return attn_fail(error, ATTN_E_INVALID, "num_blocks",
                         "num_blocks is %lld; block tables are int32, so give at most %d",
                         (long long)num_blocks, INT32_MAX);
    ATTN_INIT(attn_kv_cache_shape_t, s);
    if (attn_role_has_cache(group->problem.role))
        code = group->stage.ops.kv_cache_shape(
            group->stage.instance, num_blocks != 0 ? num_blocks : group->problem.num_blocks, &s, error);
    if (code == ATTN_OK && group->prefill != NULL && group->prefill->shape.alignment > s.alignment)
        s.alignment = group->prefill->shape.alignment;
    return code != ATTN_OK ? code : attn_give(shape, &s, sizeof s, "shape", error);
}

int attn_group_kv_spec(attn_group_t *group, attn_kv_spec_t *spec, attn_error_t *error) {
    attn_kv_spec_t s;
    int code = attni_group_check(group, error);
    if (code != ATTN_OK) return code;
    ATTNI_NEED(spec, "spec", error);
    code = attn_kv_spec_of(&group->problem, group->problem.block_size, &s, error);
    return code != ATTN_OK ? code : attn_give(spec, &s, sizeof s, "spec", error);
}

int attn_group_space_needed(attn_group_t *group, attn_space_needed_t *needed, attn_error_t *error) {
    int code = attni_group_check(group, error);
    if (code != ATTN_OK) return code;
    return attn_give(needed, &group->needed, sizeof group->needed, "needed", error);
}

const void *attn_group_get_extension(attn_group_t *group, const char *id) {
    if (attni_group_check(group, NULL) != ATTN_OK || id == NULL || group->stage.ops.get_extension == NULL)
        return NULL;
    return group->stage.ops.get_extension(group->stage.instance, id);
}
