/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks sit between a group and its backend's operations, as stages that look like a backend themselves. A
 * hook that is off does not exist: the group then calls the backend directly.
 */
#ifndef ATTNI_HOOK_H
#define ATTNI_HOOK_H

#include "group/group.h"

/* First member of every hook's instance. */
struct attni_hook {
    struct attni_stage next;
    attn_group_t *group;
    int said_capturing; /* the log has it already: attni_hook_must_not_read */
};

/* Operations that pass the call on to hook->next; those that next lacks stay absent. What every hook watches
 * (build, update_block_table, forward) and close are the hook's to fill in. */
attn_backend_ops_t attni_hook_pass(const struct attni_stage *next);

static inline struct attni_hook *attni_hook_of(attn_instance_t *instance) {
    return (struct attni_hook *)(void *)instance;
}

/* Each puts itself before *stage, or leaves it as it is. They own what follows them: closing a hook closes
 * next. */
int attni_hook_trace_open(attn_group_t *group, struct attni_stage *stage, const char *file, int is_chrome,
                          uint64_t max_bytes, attn_error_t *error);
int attni_hook_record_open(attn_group_t *group, struct attni_stage *stage, const char *file,
                           attn_error_t *error);
int attni_hook_check_open(attn_group_t *group, struct attni_stage *stage, int everything,
                          attn_error_t *error);
int attni_hook_shadow_open(attn_group_t *group, struct attni_stage *stage, const char *backend,
                           uint64_t sample, attn_error_t *error);

/* Puts a made hook before *stage. */
static inline void attni_hook_insert(struct attni_hook *hook, attn_group_t *group, struct attni_stage *stage,
                                     attn_backend_ops_t ops) {
    hook->next = *stage;
    hook->group = group;
    stage->ops = ops;
    stage->instance = (attn_instance_t *)(void *)hook;
}

#endif
