/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel attends. The dense Hopper kernels take what their tiles are made for: a dense list of keys,
 * latent 512; a positive scale, because they look for the largest score before they scale. */
#include "mla_config.h"

mla_config mla_config_choose(const mla_config_input *in) {
    mla_config c = {
        .kernel = MLA_KERNEL_PORTABLE, .ctas = 1, .tile_rows = MLA_TILE_ROWS, .slots = in->num_sms};
    if (in->portable || in->compute_capability != 90 || in->latent != 512) return c;
    if (in->is_sparse) { /* both caches, any scale */
        c.kernel = MLA_KERNEL_SPARSE_SM90, c.own_rows = 8192;
        /* two CTAs that share the keys of a token, where both have rows in all of its tiles */
        const int last = in->heads % (2 * MLA_TILE_ROWS);
        c.ctas = in->num_sms > 1 && in->heads > MLA_TILE_ROWS && (last == 0 || last > MLA_TILE_ROWS) ? 2 : 1;
        c.tile_rows = c.ctas * MLA_TILE_ROWS;
        c.parts = c.slots = in->num_sms / c.ctas;
        return c;
    }
    if (in->cache_kind == MLA_CACHE_DS || !(in->scale > 0.0)) return c;
    c.kernel = MLA_KERNEL_SM90, c.own_rows = 4096;
    /* over 16 bits the two CTAs of a tile are a cluster, over e4m3 neighbours */
    const int pairs = in->cache_kind == MLA_CACHE_E4M3 ? in->num_sms / 2 : in->clusters;
    c.ctas = in->heads > MLA_TILE_ROWS && pairs > 0 ? 2 : 1;
    c.tile_rows = c.ctas * MLA_TILE_ROWS;
    c.parts = c.slots = c.ctas == 2 ? pairs : in->num_sms;
    return c;
}
