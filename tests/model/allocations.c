/* SPDX-License-Identifier: Apache-2.0 */
/* What is allocated, by address. Callers hold the lock of the driver. */
#include "model.h"

typedef struct range {
    uintptr_t first, end;
} range_t;
static range_t *ranges, last_hit;
static size_t num_ranges, room_ranges;

static size_t range_place(uintptr_t p) { /* the first that ends behind p */
    size_t low = 0, high = num_ranges;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (ranges[middle].end > p)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}
int model_memory_has(const void *p, size_t bytes) {
    const uintptr_t at = (uintptr_t)p;
    if (at >= last_hit.first && at + bytes <= last_hit.end) return 1;
    const size_t i = range_place(at);
    if (i == num_ranges || at < ranges[i].first || at + bytes > ranges[i].end) return 0;
    last_hit = ranges[i];
    return 1;
}
void model_memory_add(const void *p, size_t bytes) {
    if (num_ranges == room_ranges) {
        room_ranges = room_ranges ? 2 * room_ranges : 256;
        ranges = realloc(ranges, room_ranges * sizeof *ranges);
    }
    const size_t i = range_place((uintptr_t)p);
    memmove(ranges + i + 1, ranges + i, (num_ranges - i) * sizeof *ranges);
    ranges[i] = (range_t){(uintptr_t)p, (uintptr_t)p + bytes};
    num_ranges++;
}
/* Its size; 0: there is none that begins here. */
size_t model_memory_remove(const void *p) {
    const size_t i = range_place((uintptr_t)p);
    if (i == num_ranges || ranges[i].first != (uintptr_t)p) return 0;
    const size_t bytes = ranges[i].end - ranges[i].first;
    memmove(ranges + i, ranges + i + 1, (num_ranges - i - 1) * sizeof *ranges);
    num_ranges--;
    last_hit = (range_t){0, 0};
    return bytes;
}
