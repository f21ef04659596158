/* SPDX-License-Identifier: Apache-2.0 */
/* Which requests over 656-byte rows attend to a 16-bit copy: the last, within the room, where it pays. */
#include "kernels/cuda/sparse/widen_rows.h"
#include "../../tap.h"

#include <string.h>

enum { MOST = 64 };
static int32_t start[MOST + 1], lens[MOST];

/* requests: pairs of tokens and keys, ended by keys 0. */
static widen_batch batch(const int32_t (*requests)[2], int heads) {
    int n = 0;
    start[0] = 0;
    for (; n < MOST && requests[n][1] > 0; n++)
        start[n + 1] = start[n] + requests[n][0], lens[n] = requests[n][1];
    return (widen_batch){.q_start = start,
                         .seq_lens = lens,
                         .num_reqs = n,
                         .num_heads = heads,
                         .topk = 2048,
                         .page_size = 64,
                         .max_pages = 2048,
                         .max_entries = 8192};
}

static void choices(void) {
    static const struct {
        const char *what;
        int heads, always, max_pages, max_entries, first, num, pages, longest; /* num 0: none */
        int32_t requests[8][2];
    } cases[] = {
        {"a prompt", 16, 0, 2048, 8192, 0, 1, 32, 32, {{2048, 2048}}},
        {"a chunk of 256 behind 32768 keys", 16, 0, 2048, 8192, 0, 1, 512, 512, {{256, 32768}}},
        {"64 tokens of 64 heads cost as much as they save", 64, 0, 2048, 8192, 0, 0, 0, 0, {{64, 8192}}},
        {"of 128 heads less", 128, 0, 2048, 8192, 0, 1, 128, 128, {{64, 8192}}},
        {"decodes alone", 128, 0, 2048, 8192, 0, 0, 0, 0, {{1, 8192}, {4, 300}, {1, 1}}},
        {"decodes before a prompt", 16, 0, 2048, 8192, 2, 1, 32, 32, {{1, 8192}, {1, 9000}, {2048, 2048}}},
        {"between prompts", 16, 0, 2048, 8192, 0, 3, 66, 32, {{2048, 2048}, {1, 100}, {2048, 2048}}},
        {"a request without tokens has no pages",
         16,
         0,
         2048,
         8192,
         0,
         3,
         64,
         32,
         {{2048, 2048}, {0, 9000}, {2048, 2048}}},
        {"and is no first one", 16, 1, 2048, 8192, 1, 1, 32, 32, {{0, 9000}, {2048, 2048}}},
        {"no room for the first", 16, 0, 63, 8192, 1, 1, 32, 32, {{2048, 2048}, {2048, 2048}}},
        {"nor for any", 16, 0, 31, 8192, 0, 0, 0, 0, {{2048, 2048}}},
        {"no room in the table", 16, 0, 2048, 63, 1, 1, 32, 32, {{2048, 2048}, {2048, 2048}}},
        {"always: few tokens as well", 16, 1, 2048, 8192, 0, 2, 3, 2, {{1, 100}, {3, 20}}},
        {"always, within the room", 16, 1, 2, 8192, 1, 2, 2, 1, {{1, 100}, {3, 20}, {1, 64}}},
        {"a copy beyond the L2 saves less", 16, 0, 4096, 8192, 0, 0, 0, 0, {{400, 131072}}},
        {"but enough for more tokens", 16, 0, 4096, 8192, 0, 1, 2048, 2048, {{2048, 131072}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        widen_batch b = batch(cases[i].requests, cases[i].heads);
        b.max_pages = cases[i].max_pages, b.max_entries = cases[i].max_entries, b.always = cases[i].always;
        const widened w = widen_choose(&b);
        const int none = w.num_pages == 0 && cases[i].num == 0;
        ok(none || (w.first_request == cases[i].first && w.num_reqs == cases[i].num &&
                    w.num_pages == cases[i].pages && w.longest == cases[i].longest &&
                    w.first_token == start[cases[i].first]),
           "%s (%d requests from %d on, %d pages)", cases[i].what, w.num_reqs, w.first_request, w.num_pages);
    }
}

/* What the kernel relies on, of any batch. */
static void any_batch(void) {
    uint64_t seed = tap_seed();
    int bad = 0, chosen = 0, some = 0;
    for (int i = 0; i < 20000; i++) {
        int32_t requests[MOST + 1][2] = {{0}}, starts[MOST + 1];
        const int n = (int)tap_rand_in(&seed, 1, MOST);
        for (int r = 0; r < n; r++) {
            requests[r][0] =
                (int32_t)(tap_rand_in(&seed, 0, 2) ? tap_rand_in(&seed, 0, 2) : tap_rand_in(&seed, 0, 3000));
            requests[r][1] = requests[r][0] + (int32_t)tap_rand_in(&seed, 1, 20000);
        }
        widen_batch b = batch(requests, (int)tap_rand_in(&seed, 1, 128));
        b.max_pages = (int32_t)tap_rand_in(&seed, 1, 4096), b.max_entries = 4 * b.max_pages;
        b.always = tap_rand_in(&seed, 0, 3) == 0;
        const widened w = widen_choose(&b);
        if (w.num_pages == 0) continue;
        chosen++, some += w.first_request > 0;
        widen_starts(&b, &w, starts);
        int fits = starts[0] == 0 && starts[w.num_reqs] == w.num_pages && w.num_pages <= b.max_pages &&
                   (int64_t)w.num_reqs * w.longest <= b.max_entries && w.first_request + w.num_reqs == n &&
                   w.first_token == start[w.first_request] && start[w.first_request + 1] > w.first_token;
        for (int r = 0; r < w.num_reqs; r++) {
            const int32_t q = w.first_request + r, pages = starts[r + 1] - starts[r];
            fits &= pages <= w.longest &&
                    pages == (start[q + 1] > start[q] ? (lens[q] + b.page_size - 1) / b.page_size : 0);
        }
        bad += !fits;
    }
    ok(bad == 0 && chosen > 5000 && some > 1000,
       "20000 batches: %d with a copy, of some requests %d, %d wrong", chosen, some, bad);
}

int main(void) {
    choices();
    any_batch();
    return tap_done();
}
