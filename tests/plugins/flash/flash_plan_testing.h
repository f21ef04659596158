/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of flash's planner have in common: devices, a batch of 8 KV heads, room for any plan. */
#ifndef FLASH_PLAN_TESTING_H
#define FLASH_PLAN_TESTING_H

#include "kernels/cuda/dense/flash_config.h"
#include "kernels/cuda/dense/flash_plan.h"
#include "../../tap.h"

static const flash_device hopper = {9, 0, 132, 232448, 233472};
static const flash_device ampere = {8, 0, 108, 166912, 167936};

static uint64_t state;
static uint32_t next_random(uint32_t below) { /* splitmix64 */
    uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((z ^ z >> 31) % below);
}

static flash_shape shape_of(int q, int kv, int d, int dv, int page) {
    return (flash_shape){q, kv, 32, 8, d, dv, page, 0, 1, 0, 0};
}

enum { SEQS = 300 };
static flash_plan_request requests[SEQS];
static flash_plan_tile tile_keys[70000];
static flash_item items[70000];
static flash_tile tiles[70000];

static flash_plan empty_plan(void) {
    return (flash_plan){.requests = requests, .tile_keys = tile_keys, .items = items, .tiles = tiles};
}

static flash_plan_input input(const int32_t *q_start, const int32_t *lens, int n) {
    return (flash_plan_input){.q_start = q_start,
                              .seq_lens = lens,
                              .num_seqs = n,
                              .num_kv_heads = 8,
                              .group = 4,
                              .decode_tokens = 4,
                              .decode_rows = 16,
                              .modes = {{264, 2, 64}, {132, 1, 128}, {528, 4, 32}},
                              .block_rows = 128,
                              .causal = 1,
                              .num_sms = 132,
                              .head_size = 128,
                              .key_bytes = 2,
                              .window_left = -1,
                              .window_right = -1};
}

#endif
