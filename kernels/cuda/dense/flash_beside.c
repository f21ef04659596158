/* SPDX-License-Identifier: Apache-2.0 */
/* A step of prompts and decodes: prefill multiplies and decode reads, so that both at once take less than one
 * after the other. How many SMs prefill had better take, from what each takes alone (dense-notes.md). */
#include "flash_plan.h"

/* Multiplications and additions of a tile in the time in which the memory brings a byte, by short prompts on
 * an H200; and how much slower tiles are while decode has the memory. */
static const double operations_a_byte = 98, slower = 1.15;

/* Part of the read rate that CTAs on a part of the SMs reach: on half of them nearly all. */
static double read_rate(double part) {
    return part < 0.5 ? 1.84 * part : 0.84 + 0.16 * part;
}

/* Times are in bytes that the memory brings meanwhile, by the sum of the head sizes, which both have in
 * common. */
int32_t flash_plan_beside(const flash_plan_input *in, const flash_plan *plan) {
    const int32_t num_sms = in->num_sms, tile_heads = in->tile_heads > 0 ? in->tile_heads : 1;
    const double decode = (double)plan->decode_keys * in->num_kv_heads * in->key_bytes,
                 tile = 2.0 * plan->keys_per_tile * in->block_rows * tile_heads * num_sms / operations_a_byte,
                 tiles = (double)plan->counts.num_tiles * in->num_kv_heads * (in->packed ? 1 : in->group) /
                         tile_heads;
    if (decode <= 0 || tiles < 1) return 0;
    const double apart = tile * (tiles > num_sms ? tiles / num_sms : 1) + decode;
    double least = 0.98 * apart;
    int32_t best = 0;
    for (int32_t sms = 4; sms < num_sms; sms += 4) {
        const double prefill = slower * tile * (tiles > sms ? tiles / sms : 1),
                     left = decode - prefill * read_rate((double)(num_sms - sms) / num_sms),
                     both = prefill + (left > 0 ? left : 0);
        if (both < least) least = both, best = sms;
    }
    return best;
}
