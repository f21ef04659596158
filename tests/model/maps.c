/* SPDX-License-Identifier: Apache-2.0 */
/* Maps of tensors, for bulk copies of boxes: the driver call that makes one, and where the bytes of a box
 * lie. */
#include "model.h"

/* What cuTensorMapEncodeTiled says of its arguments; the map is the model's. */
int cuTensorMapEncodeTiled(tensor_map_t *map, int type, unsigned rank, void *data, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                           int interleave, int swizzle, int promotion, int fill) {
    static const uint8_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
    tensor_map_t m = {
        .magic = TENSOR_MAGIC, .data = data, .rank = (uint8_t)rank, .swizzle = (uint8_t)swizzle};
    (void)promotion;
    if ((uintptr_t)map % 64 != 0 || type < 0 || type > 9 || rank < 1 || rank > 5 ||
        (uintptr_t)data % 16 != 0 || interleave != 0 || swizzle < 0 || swizzle > 3)
        return 1 /* CUDA_ERROR_INVALID_VALUE */;
    m.bytes = bytes[type], m.fill = (uint8_t)fill;
    for (unsigned i = 0; i < rank; i++) {
        m.size[i] = sizes[i], m.box[i] = (uint16_t)box[i];
        m.stride[i] = i > 0 ? strides[i - 1] : m.bytes;
        if (sizes[i] == 0 || sizes[i] > 1ull << 32 || box[i] == 0 || box[i] > 256 || steps[i] != 1 ||
            (i > 0 && (m.stride[i] % 16 != 0 || m.stride[i] >= 1ull << 40)))
            return 1 /* CUDA_ERROR_INVALID_VALUE */;
    }
    const unsigned inner = box[0] * m.bytes;
    if (inner % 16 != 0 || (swizzle != 0 && inner > 16u << swizzle)) return 1 /* CUDA_ERROR_INVALID_VALUE */;
    memset(map, 0, 128);
    *map = m;
    return 0;
}

uint32_t model_box_bytes(const tensor_map_t *m) {
    uint32_t bytes = m->bytes;
    for (int i = 0; i < m->rank; i++)
        bytes *= m->box[i];
    return bytes;
}
/* Byte `at` of shared memory by the swizzle: 0 none, 1, 2 and 3 of 32, 64 and 128 bytes. */
uint32_t model_swizzled(const tensor_map_t *m, uint32_t at) {
    const uint32_t bits = m->swizzle == 0 ? 0 : (1u << m->swizzle) - 1;
    return at ^ (at >> 7 & bits) << 4;
}
box_row_t model_box_row(const tensor_map_t *m, const int32_t *place, uint32_t number) {
    box_row_t r = {.data = m->data, .at = number * m->box[0] * m->bytes};
    int is_in = 1;
    uint64_t offset = 0;
    for (int i = 1; i < m->rank; i++) {
        const int64_t x = (int64_t)place[i] + number % m->box[i];
        number /= m->box[i];
        is_in &= x >= 0 && (uint64_t)x < m->size[i];
        offset += (uint64_t)x * m->stride[i];
    }
    r.first = place[0] < 0 ? -(int64_t)place[0] : 0;
    r.end = (int64_t)m->size[0] - place[0];
    if (r.end > m->box[0]) r.end = m->box[0];
    if (!is_in || r.first >= r.end) r.first = r.end = 0;
    r.data += offset + (uint64_t)((int64_t)place[0] * m->bytes);
    return r;
}
uint32_t model_box_rows(const tensor_map_t *m) {
    return model_box_bytes(m) / ((uint32_t)m->box[0] * m->bytes);
}

void model_tensor_arrives(const flight_t *f) {
    uint8_t *shared = f->cta->shared;
    if (f->kind == FLIGHT_BULK) {
        memcpy(shared + f->to, f->from, f->bytes);
        return;
    }
    const tensor_map_t *m = &f->map;
    for (uint32_t i = 0; i < model_box_rows(m); i++) {
        const box_row_t r = model_box_row(m, f->at, i);
        if (r.end > r.first &&
            !model_memory_has(r.data + r.first * m->bytes, (size_t)((r.end - r.first) * m->bytes))) {
            model_fault(f->w, f->op, f->lane, "a box in memory nobody allocated", (uintptr_t)r.data);
            return;
        }
        for (int64_t e = 0; e < m->box[0]; e++) {
            uint8_t *to = shared + model_swizzled(m, f->to + r.at + (uint32_t)(e * m->bytes));
            if (e >= r.first && e < r.end)
                memcpy(to, r.data + e * m->bytes, m->bytes);
            else
                memset(to, m->fill ? 0xff : 0, m->bytes);
        }
    }
}
