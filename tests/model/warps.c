/* SPDX-License-Identifier: Apache-2.0 */
/* What the lanes of a warp do together: shuffles, votes, matrices of 8 x 8 and products of fragments
 * (PTX ISA, "Warp level matrix instructions", has the layouts). */
#include "model.h"

/* variant: 0 idx, 1 bfly, 2 up, 3 down. With a predicate for "in range" as the second operand there are
 * six. */
static void shuffle(warp_t *w, const op_t *op, uint32_t mask) {
    const uint32_t pair = op->num == 6, k = 1 + pair;
    uint32_t from[LANES], given[LANES], in_range = 0;
    for (int l = 0; l < LANES; l++)
        given[l] = (uint32_t)lane_value(w, &op->o[k], l);
    for (int l = 0; l < LANES; l++) {
        const uint32_t b = (uint32_t)lane_value(w, &op->o[k + 1], l) & 31,
                       c = (uint32_t)lane_value(w, &op->o[k + 2], l), clamp = c & 31, segment = c >> 8 & 31;
        const uint32_t least = (uint32_t)l & segment, last = least | (clamp & ~segment);
        int source = op->variant == 0   ? (int)(least | (b & ~segment))
                     : op->variant == 1 ? l ^ (int)b
                     : op->variant == 2 ? l - (int)b
                                        : l + (int)b;
        const int ok = op->variant == 2 ? source >= (int)last : source <= (int)last;
        if (!ok) source = l;
        in_range |= (uint32_t)ok << l;
        from[l] = (uint32_t)source & 31;
        if (IS_SET(mask, l) && !IS_SET(mask, from[l])) {
            model_fault(w, op, l, "a shuffle reads a lane that does not take part", from[l]);
            return;
        }
    }
    uint32_t *d = REG(uint32_t, 0);
    EACH(d[l] = given[from[l]]);
    if (pair) {
        uint32_t *p = REG(uint32_t, 1);
        *p = (*p & ~mask) | (in_range & mask);
    }
}
/* variant: 0 all, 1 any, 2 ballot */
static void vote(warp_t *w, const op_t *op, uint32_t mask) {
    const operand_t *o = &op->o[1];
    const uint32_t p =
        (o->is_constant ? (o->value != 0 ? ~0u : 0u) : w->regs[o->at] ^ (o->negate ? ~0u : 0u)) & mask;
    uint32_t *d = REG(uint32_t, 0);
    if (op->variant == 2) {
        EACH(d[l] = p);
    } else {
        const int yes = op->variant == 0 ? p == mask : p != 0;
        *d = (*d & ~mask) | (yes ? mask : 0);
    }
}
/* Four matrices of 8 rows of 16 bytes; lane l has the row l & 7 of matrix l >> 3. variant: 1 transposed;
 * the number of matrices is that of the operands before the address. */
static void ldmatrix(warp_t *w, const op_t *op, uint32_t mask) {
    const uint32_t count = op->num - 1;
    uint16_t rows[4][8][8];
    for (uint32_t l = 0; l < 8 * count; l++) {
        const uint64_t address = lane_value(w, &op->o[count], (int)l) + (uint64_t)op->offset;
        const uint8_t *p = model_at(w, op, SPACE_SHARED, address, 16, (int)l);
        if (p == NULL) return;
        model_races_read(w, op, w->cta, (uint32_t)address, 16, (int)l);
        memcpy(rows[l >> 3][l & 7], p, 16);
    }
    for (uint32_t i = 0; i < count; i++)
        for (int l = 0; l < LANES; l++) {
            const int r = l >> 2, c = 2 * (l & 3);
            const uint32_t low = op->variant ? rows[i][c][r] : rows[i][r][c],
                           high = op->variant ? rows[i][c + 1][r] : rows[i][r][c + 1];
            REG(uint32_t, i)[l] = low | high << 16;
        }
    (void)mask;
}
static void stmatrix(warp_t *w, const op_t *op, uint32_t mask) {
    const uint32_t count = op->num - 1;
    for (uint32_t l = 0; l < 8 * count; l++) {
        const uint64_t address = lane_value(w, &op->o[0], (int)l) + (uint64_t)op->offset;
        uint8_t *p = model_at(w, op, SPACE_SHARED, address, 16, (int)l);
        if (p == NULL) return;
        model_races_write(w, op, w->cta, (uint32_t)address, 16, (int)l, WRITE_PLAIN);
        const uint32_t *from = REG(uint32_t, 1 + (l >> 3)), r = l & 7;
        uint16_t row[8];
        for (uint32_t c = 0; c < 8; c++)
            row[c] = op->variant ? (uint16_t)(from[c * 4 + r / 2] >> 16 * (r & 1))
                                 : (uint16_t)(from[r * 4 + c / 2] >> 16 * (c & 1));
        memcpy(p, row, 16);
    }
    (void)mask;
}
static void movmatrix(warp_t *w, const op_t *op, uint32_t mask) {
    uint32_t given[LANES];
    memcpy(given, REG(uint32_t, 1), sizeof given);
    uint32_t *d = REG(uint32_t, 0);
    for (int l = 0; l < LANES; l++) {
        const int r = l >> 2, c = 2 * (l & 3); /* element [r][c] of the result is [c][r] of what was given */
        const uint32_t low = given[c * 4 + r / 2] >> 16 * (r & 1) & 0xffff,
                       high = given[(c + 1) * 4 + r / 2] >> 16 * (r & 1) & 0xffff;
        d[l] = low | high << 16;
    }
    (void)mask;
}

enum { MMA_F16, MMA_BF16, MMA_S8, MMA_F16_HALF };
/* m16n8k16 of 16-bit elements, m16n8k32 of int8: 4 results, 4 words of A, 2 of B, 4 of C. m16n8k8 has half
 * of A and of B. */
static void mma(warp_t *w, const op_t *op, uint32_t mask) {
    const int is_int = op->variant == MMA_S8, is_half = op->variant == MMA_F16_HALF;
    const int k_size = is_int ? 32 : is_half ? 8 : 16, num_a = is_half ? 2 : 4, num_b = num_a / 2;
    static _Thread_local double a[16][32], b[32][8], sum[16][8];
    for (int l = 0; l < LANES; l++) {
        const int g = l >> 2, q = l & 3;
        for (int i = 0; i < num_a + num_b; i++) {
            const uint32_t x = REG(uint32_t, 4 + i)[l];
            double v[4];
            if (is_int)
                for (int j = 0; j < 4; j++)
                    v[j] = (int8_t)(x >> 8 * j);
            else
                for (int j = 0; j < 2; j++)
                    v[j] = op->variant != MMA_BF16 ? f16_value((uint16_t)(x >> 16 * j))
                                                   : bf16_value((uint16_t)(x >> 16 * j));
            const int each = is_int ? 4 : 2;
            for (int j = 0; j < each; j++) {
                if (i < num_a)
                    a[g + 8 * (i & 1)][each * q + j + (i >> 1) * k_size / 2] = v[j];
                else
                    b[each * q + j + (i - num_a) * k_size / 2][g] = v[j];
            }
        }
    }
    for (int r = 0; r < 16; r++) {
        double row[8] = {0};
        for (int k = 0; k < k_size; k++)
            for (int c = 0; c < 8; c++)
                row[c] += a[r][k] * b[k][c];
        memcpy(sum[r], row, sizeof row);
    }
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 4; i++) {
            const double s = sum[(l >> 2) + 8 * (i >> 1)][2 * (l & 3) + (i & 1)];
            const uint32_t c = REG(uint32_t, 4 + num_a + num_b + i)[l];
            REG(uint32_t, i)
            [l] = is_int ? (uint32_t)((int64_t)s + (int32_t)c) : as_bits((float)(s + (double)as_float(c)));
        }
    (void)mask;
}
/* variant: 0 the sum, 1 the greatest, unsigned */
static void reduce(warp_t *w, const op_t *op, uint32_t mask) {
    const uint32_t *a = REG(uint32_t, 1);
    uint32_t *d = REG(uint32_t, 0), r = 0;
    for (int l = 0; l < LANES; l++)
        if (IS_SET(mask, l)) r = op->variant == 0 ? r + a[l] : r > a[l] ? r : a[l];
    EACH(d[l] = r);
}
static void order(warp_t *w, const op_t *op, uint32_t mask) {
    (void)op, (void)mask;
    w->turn++;
}
static void proxy_fence(warp_t *w, const op_t *op, uint32_t mask) {
    (void)op, (void)mask;
    model_races_fence(w);
}

const op_name_t model_warp_ops[] = {
    {"shfl.sync.idx.b32", shuffle, OP_MEMBERS, 0},
    {"shfl.sync.bfly.b32", shuffle, OP_MEMBERS, 1},
    {"shfl.sync.up.b32", shuffle, OP_MEMBERS, 2},
    {"shfl.sync.down.b32", shuffle, OP_MEMBERS, 3},
    {"vote.sync.all.pred", vote, OP_MEMBERS, 0},
    {"vote.sync.any.pred", vote, OP_MEMBERS, 1},
    {"vote.sync.ballot.b32", vote, OP_MEMBERS, 2},
    {"ldmatrix.sync.aligned.m8n8.x1.shared.b16", ldmatrix, OP_WARP, 0},
    {"ldmatrix.sync.aligned.m8n8.x2.shared.b16", ldmatrix, OP_WARP, 0},
    {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", ldmatrix, OP_WARP, 0},
    {"ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16", ldmatrix, OP_WARP, 1},
    {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", ldmatrix, OP_WARP, 1},
    {"stmatrix.sync.aligned.m8n8.x2.shared.b16", stmatrix, OP_WARP, 0},
    {"stmatrix.sync.aligned.m8n8.x4.shared.b16", stmatrix, OP_WARP, 0},
    {"stmatrix.sync.aligned.m8n8.x4.trans.shared.b16", stmatrix, OP_WARP, 1},
    {"movmatrix.sync.aligned.m8n8.trans.b16", movmatrix, OP_WARP, 0},
    {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", mma, OP_WARP, MMA_F16},
    {"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", mma, OP_WARP, MMA_F16_HALF},
    {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", mma, OP_WARP, MMA_BF16},
    {"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", mma, OP_WARP, MMA_S8},
    {"redux.sync.add.s32", reduce, OP_MEMBERS, 0},
    {"redux.sync.add.u32", reduce, OP_MEMBERS, 0},
    {"redux.sync.max.u32", reduce, OP_MEMBERS, 1},
    {"bar.warp.sync", order, OP_MEMBERS, 0},
    {"membar.gl", NULL, OP_NOTHING, 0},
    {"membar.cta", NULL, OP_NOTHING, 0},
    {"fence.proxy.async.shared::cta", proxy_fence, 0, 0},
    {"fence.mbarrier_init.release.cluster", NULL, OP_NOTHING, 0},
    {"griddepcontrol.wait", NULL, OP_NOTHING, 0},
    {"griddepcontrol.launch_dependents", NULL, OP_NOTHING, 0},
    {"setmaxnreg.dec.sync.aligned.u32", NULL, OP_NOTHING, 0},
    {"setmaxnreg.inc.sync.aligned.u32", NULL, OP_NOTHING, 0},
    {"bra", NULL, OP_BRANCH, 0},
    {"bra.uni", NULL, OP_BRANCH, 0},
    {"ret", NULL, OP_EXIT, 0},
    {"exit", NULL, OP_EXIT, 0},
    {NULL, NULL, 0, 0}};
