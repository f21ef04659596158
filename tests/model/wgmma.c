/* SPDX-License-Identifier: Apache-2.0 */
/* wgmma. It computes when it is issued, because PTX may copy accumulators in flight from one virtual register
 * to another; what it read of shared memory must be the same when it is waited for. */
#include "model.h"

/* Where element (row, k) of a matrix in shared memory lies: swizzled lines of 128, 64 or 32 bytes. K-major:
 * a row is a line, eight to a group of `stride` bytes. MN-major: the columns of 16 bits that a line holds,
 * eight k to a group of `stride`, the next columns `leading` behind. */
static uint32_t matrix_at(uint64_t desc, int is_mn, int row, int k, int bytes) {
    const uint32_t line = 256u >> (desc >> 62), columns = line / 2;
    const uint32_t start = (uint32_t)(desc & 0x3fff) << 4, leading = (uint32_t)(desc >> 16 & 0x3fff) << 4,
                   stride = (uint32_t)(desc >> 32 & 0x3fff) << 4;
    const uint32_t at =
        is_mn ? start + (uint32_t)row / columns * leading + (uint32_t)(k / 8) * stride +
                    (uint32_t)(k % 8) * line + (uint32_t)row % columns * 2
              : start + (uint32_t)(row / 8) * stride + (uint32_t)(row % 8) * line + (uint32_t)(k * bytes);
    return at ^ (at >> 7 & (line / 16 - 1)) << 4;
}
enum { W_F16, W_BF16, W_S8, W_E4M3 };
static int is_byte(int type) {
    return type >= W_S8;
}
static double element(int type, const uint8_t *p) {
    uint16_t x;
    if (type == W_S8) return (int8_t)*p;
    if (type == W_E4M3) return e4m3_value(*p);
    memcpy(&x, p, 2);
    return type == W_F16 ? f16_value(x) : bf16_value(x);
}
/* Rows first..first + rows of a matrix as numbers [row][k]; a hash of its bytes. 0 beyond the shared
 * memory. */
static uint64_t matrix_read(warp_t *w, const op_t *op, uint64_t desc, int type, int is_mn, int first,
                            int rows, int ks, uint32_t number, double *out) {
    const int bytes = is_byte(type) ? 1 : 2;
    uint64_t hash = 14695981039346656037ull;
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < ks; k++) {
            const uint32_t at = matrix_at(desc, is_mn, first + r, k, bytes);
            if (at + (uint32_t)bytes > w->cta->shared_bytes) return 0;
            if (at % 4 == 0 && !model_races_engine(w, op, at, number)) return 0;
            const uint8_t *p = w->cta->shared + at;
            hash = (hash ^ p[0] ^ (uint64_t)p[bytes - 1] << 8) * 1099511628211ull;
            if (out != NULL) out[r * ks + k] = element(type, p);
        }
    return hash != 0 ? hash : 1;
}
/* m64nNk16 or k32: this warp's 16 rows. Operands: N / 2 results, A (four words or a descriptor), B,
 * whether to add, then signs and transpositions. variant: type + 8 * N */
static void product(warp_t *w, const op_t *op, uint32_t mask) {
    const int type = op->variant & 7, n = op->variant >> 3, ks = is_byte(type) ? 32 : 16;
    const uint32_t num_d = (uint32_t)n / 2, in_registers = op->o[num_d].width == 4;
    const uint32_t at_b = num_d + (in_registers ? 4 : 1), at_p = at_b + 1;
    const operand_t *p = &op->o[at_p];
    const int adds = (int)(p->is_constant ? p->value != 0 : IS_SET(w->regs[p->at], 0) != p->negate);
    const int tail = (int)(op->num - at_p); /* p, 1, 1[, ta][, tb] */
    const int is_mn = !is_byte(type) && op->o[at_p + (uint32_t)tail - 1].value != 0 && tail > 3;
    const int is_mn_a = tail > 4 && op->o[at_p + 3].value != 0;
    static _Thread_local double a[16][32], b[256 * 32], row[256];
    const uint64_t desc_b = lane_value(w, &op->o[at_b], 0);
    const uint32_t number = ++w->product_count;
    const uint64_t hash_b = matrix_read(w, op, desc_b, type, is_mn, 0, n, ks, number, b);
    uint64_t hash_a = 1, desc_a = 0;
    (void)mask;
    if (desc_b >> 62 == 0) {
        model_fault(w, op, 0, "a swizzle of wgmma that the model has not", desc_b);
        return;
    }
    if (in_registers) {
        for (int l = 0; l < LANES; l++)
            for (int i = 0; i < 4; i++) {
                const uint32_t x = REG(uint32_t, num_d + (uint32_t)i)[l];
                const int each = ks / 8; /* elements of a word */
                for (int j = 0; j < each; j++) {
                    const uint16_t one = (uint16_t)(x >> 32 / each * j);
                    a[(l >> 2) + 8 * (i & 1)][each * (l & 3) + j + (i >> 1) * ks / 2] =
                        element(type, (const uint8_t *)&one);
                }
            }
    } else {
        desc_a = lane_value(w, &op->o[num_d], 0);
        double rows[16 * 32];
        hash_a = matrix_read(w, op, desc_a, type, is_mn_a, (int)(w->index % 4) * 16, 16, ks, number, rows);
        for (int r = 0; r < 16; r++)
            memcpy(a[r], rows + r * ks, (size_t)ks * sizeof(double));
    }
    if (hash_a == 0 || hash_b == 0) {
        model_fault(w, op, 0, "a matrix beyond the block's shared memory", hash_b == 0 ? desc_b : desc_a);
        return;
    }
    for (int r = 0; r < 16; r++) {
        for (int c = 0; c < n; c++) {
            double s = 0;
            for (int k = 0; k < ks; k++)
                s += a[r][k] * b[c * ks + k];
            row[c] = s;
        }
        for (int c = 0; c < n; c++) {
            uint32_t *d = REG(uint32_t, (uint32_t)(c / 8 * 4 + (r >= 8 ? 2 : 0) + (c & 1)));
            const int l = (r & 7) * 4 + c % 8 / 2;
            d[l] = type == W_S8 ? (uint32_t)((int64_t)row[c] + (adds ? (int32_t)d[l] : 0))
                                : as_bits((float)(row[c] + (adds ? (double)as_float(d[l]) : 0)));
        }
    }
    for (uint32_t i = 0; i < num_d; i++)
        w->in_flight[op->o[i].at / 16] = w->product_group + 1;
    if (w->num_products == sizeof w->products / sizeof w->products[0]) {
        model_fault(w, op, 0, "more wgmma under way than the model keeps", w->num_products);
        return;
    }
    w->products[w->num_products++] = (product_t){.op = op,
                                                 .a = hash_a,
                                                 .b = hash_b,
                                                 .desc_a = desc_a,
                                                 .desc_b = desc_b,
                                                 .is_mn = is_mn,
                                                 .is_mn_a = is_mn_a,
                                                 .group = w->product_group,
                                                 .number = number};
}
static void product_commit(warp_t *w, const op_t *op, uint32_t mask) {
    (void)op, (void)mask;
    w->product_group++;
}
static int is_done(const warp_t *w, const product_t *p, uint32_t newest) {
    return p->group < w->product_group && w->product_group - p->group > newest;
}
/* A warp's products up to `last` have read what is still there. */
static int unchanged(warp_t *w, uint32_t last) {
    for (uint32_t i = 0; i < w->num_products && w->products[i].number <= last; i++) {
        product_t *p = &w->products[i];
        const int type = p->op->variant & 7, n = p->op->variant >> 3, ks = is_byte(type) ? 32 : 16;
        if (p->checked) continue;
        if (matrix_read(w, p->op, p->desc_b, type, p->is_mn, 0, n, ks, p->number, NULL) != p->b ||
            (p->desc_a != 0 && matrix_read(w, p->op, p->desc_a, type, p->is_mn_a, (int)(w->index % 4) * 16,
                                           16, ks, p->number, NULL) != p->a)) {
            model_fault(w, p->op, 0, "shared memory changed while wgmma was reading it", p->desc_b);
            return 0;
        }
        p->checked = 1;
    }
    return 1;
}
/* Products are of four warps at once: one that has been waited for is done for all of them. */
static void product_wait(warp_t *w, const op_t *op, uint32_t mask) {
    const uint32_t newest = (uint32_t)op->o[0].value, first = w->index / 4 * 4;
    uint32_t kept = 0, last = 0, *done = &w->clocks[model_races_group(w)];
    warp_t *const warps = w->cta->warps;
    (void)mask;
    for (uint32_t i = 0; i < w->num_products; i++)
        if (is_done(w, &w->products[i], newest)) last = w->products[i].number;
    for (uint32_t i = first; i < first + 4 && i < w->cta->num_warps; i++)
        if (warps[i].product_count < last) { /* it has not begun yet */
            w->pc--, w->yields = 1;
            return;
        }
    for (uint32_t i = first; i < first + 4 && i < w->cta->num_warps; i++)
        if (!unchanged(&warps[i], last)) return;
    for (uint32_t i = 0; i < w->num_products; i++)
        if (!is_done(w, &w->products[i], newest)) w->products[kept++] = w->products[i];
    w->num_products = kept;
    *done = last > *done ? last : *done;
    if (w->product_group > newest && w->product_group - newest > w->products_done)
        w->products_done = w->product_group - newest;
}
static uint32_t group_of(const warp_t *w, const operand_t *o) {
    const uint32_t group = o->is_constant || o->width != 4 ? 0 : w->in_flight[o->at / 16];
    return group > w->products_done ? group : 0;
}
void model_accumulators(warp_t *w, const op_t *op) {
    uint32_t group = 0;
    for (uint32_t i = 1; i < op->num && group == 0; i++)
        group = group_of(w, &op->o[i]);
    if (group != 0 && !op->is_move)
        model_fault(w, op, 0, "touches accumulators of a wgmma that was not waited for", group);
    if (op->num > 0 && op->o[0].width == 4) w->in_flight[op->o[0].at / 16] = group;
}
static void nothing(warp_t *w, const op_t *op, uint32_t mask) {
    (void)w, (void)op, (void)mask;
}

const op_name_t model_product_ops[] = {{"wgmma.fence.sync.aligned", nothing, OP_WARP, 0},
                                       {"wgmma.commit_group.sync.aligned", product_commit, OP_WARP, 0},
                                       {"wgmma.wait_group.sync.aligned", product_wait, OP_WARP, 0},
                                       {NULL, NULL, 0, 0}};

int model_find_product(const char *name, op_t *op) {
    static const struct {
        const char *tail;
        int type;
    } types[] = {{"k16.f32.f16.f16", W_F16},
                 {"k16.f32.bf16.bf16", W_BF16},
                 {"k32.s32.s8.s8", W_S8},
                 {"k32.f32.e4m3.e4m3", W_E4M3}};
    int n = 0, end = 0;
    if (sscanf(name, "wgmma.mma_async.sync.aligned.m64n%d%n", &n, &end) != 1 || n < 8 || n > 256) return 0;
    for (unsigned i = 0; i < sizeof types / sizeof types[0]; i++)
        if (!strcmp(name + end, types[i].tail)) {
            op->run = product, op->kind = OP_WARP, op->variant = types[i].type + 8 * n;
            return 1;
        }
    return 0;
}
