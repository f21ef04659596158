/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of devices that this process knows: cpu and cuda from the start, others from the plugins that
 * were loaded. */
#ifndef ATTNI_DEVICE_KIND_H
#define ATTNI_DEVICE_KIND_H

#include <attn/draft/attn_device.h>

extern const attn_device_kind_t attni_device_cpu, attni_device_cuda;

/* Copies a plugin's table to *taken and checks that it is whole. ATTN_E_ABI names what is missing. [any
 * thread] */
int attni_device_kind_check(const attn_device_kind_t *raw, attn_device_kind_t *taken, const char *bringer,
                            attn_error_t *error);

/*
 * Takes the kind that a plugin brings: a copy stays until the process ends. bringer names the plugin in
 * errors. ATTN_E_ABI: the table is not whole; ATTN_E_STATE: its type or name belongs to another kind. [any
 * thread]
 */
int attni_device_kind_add(const attn_device_kind_t *raw, const char *bringer, attn_error_t *error);

/* By name, letter case ignored, of the first `length` characters; NULL: unknown. [any thread] */
const attn_device_kind_t *attni_device_kind_named(const char *name, size_t length);

/* "cpu", "cuda", "sm_90" for a capability of a kind that has them, "device type 12" for an unknown one.
 * Returns text. */
const char *attni_device_text(int32_t type, int32_t capability, char *text, size_t size);

/*
 * The capability in "sm_90", also as compilers write it (sm_90a, sm_100f), of a kind whose prefix text
 * begins with; -1: it is not such a text.
 */
int32_t attni_device_capability(const char *text, const attn_device_kind_t **kind);

#endif
