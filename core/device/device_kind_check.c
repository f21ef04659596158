/* SPDX-License-Identifier: Apache-2.0 */
/* device_kind_check.c: whether the table of a plugin's device kind is whole. Apart from the list, so that the
 * command's probe judges a file as the loader does. */
#include "device/device_kind.h"

#include <attn/attn_plugin_util.h>
#include <ctype.h>
#include <string.h>

enum { MAX_TYPE = 63 };

static int is_word(const char *text, size_t most) {
    const size_t length = text != NULL ? strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_") : 0;
    return length > 0 && length < most && text[length] == '\0' && islower((unsigned char)text[0]);
}

/* The first function that a table lacks: one that every kind has, or one of a group that it has in part;
 * NULL: none. */
static const char *missing_function(const attn_device_kind_t *k) {
    const int streams = k->stream_create != NULL, events = k->event_create != NULL,
              graphs = k->capture_begin != NULL;
    const struct {
        int is_wanted, is_there;
        const char *name;
    } functions[] = {{1, k->describe != NULL, "describe"},
                     {1, k->alloc != NULL, "alloc"},
                     {1, k->free != NULL, "free"},
                     {1, k->copy_to != NULL, "copy_to"},
                     {1, k->copy_from != NULL, "copy_from"},
                     {1, k->copy_within != NULL, "copy_within"},
                     {1, k->fill != NULL, "fill"},
                     {1, k->synchronize != NULL, "synchronize"},
                     {events || graphs, streams, "stream_create"},
                     {streams, k->stream_destroy != NULL, "stream_destroy"},
                     {events, k->event_destroy != NULL, "event_destroy"},
                     {events, k->event_record != NULL, "event_record"},
                     {events, k->event_seconds != NULL, "event_seconds"},
                     {graphs, k->capture_end != NULL, "capture_end"},
                     {graphs, k->graph_launch != NULL, "graph_launch"},
                     {graphs, k->graph_destroy != NULL, "graph_destroy"},
                     {k->stream_wait != NULL, events, "event_create"},
                     {k->stream_create_first != NULL, streams, "stream_create"},
                     {k->enter != NULL, k->leave != NULL, "leave"}};
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (functions[i].is_wanted && !functions[i].is_there) return functions[i].name;
    return NULL;
}

int attni_device_kind_check(const attn_device_kind_t *raw, attn_device_kind_t *taken, const char *bringer,
                            attn_error_t *error) {
    const attn_device_kind_t *k = taken;
    int code = attn_intake(taken, sizeof *taken, raw, "device kind", error);
    if (code != ATTN_OK) return code;
    if (!is_word(k->name, 32) || (k->capability_prefix != NULL && !is_word(k->capability_prefix, 16)))
        return attn_fail(error, ATTN_E_ABI, "device",
                         "%s: the name or capability_prefix of its device kind is missing or not made of "
                         "lower-case letters, digits and '_'",
                         bringer);
    if (k->type < 1 || k->type > MAX_TYPE)
        return attn_fail(error, ATTN_E_ABI, "device",
                         "%s: device kind %s has type %d; expected a DLDeviceType from 1 to %d", bringer,
                         k->name, (int)k->type, MAX_TYPE);
    const char *missing = missing_function(k);
    if (missing != NULL)
        return attn_fail(
            error, ATTN_E_ABI, "device",
            "%s: device kind %s has no operation %s; see attn_device.h for those that go together", bringer,
            k->name, missing);
    return ATTN_OK;
}
