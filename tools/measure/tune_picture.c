/* SPDX-License-Identifier: Apache-2.0 */
/* tune_picture.c: a bar for each backend and setting, batch by batch. Its length is the time over that of the
 * batch's best, up to SLOWEST times; beyond, the bar has no end. */
#include <errno.h>

#include "base/svg.h"
#include "measure/tune.h"

#define INK   "#1f2937"
#define GRID  "#e5e7eb"
#define BEST  "#2563eb"
#define OTHER "#9ca3af"
#define WRONG "#b91c1c"

enum { WIDTH = 960, LEFT = 330, UNIT = 110, SLOWEST = 4, LINE = 18, GAP = 10, TOP = 64 };

static int is_shown(const tune_result_t *r) {
    return r->seconds > 0 || r->failure[0] != '\0';
}

/* The least time of a batch among the candidates whose outputs are right; 0: none. */
static double best_of(const tune_t *t, uint32_t kind, int point) {
    double best = 0;
    for (int c = 0; c < t->num_candidates; c++) {
        const tune_result_t *r = tune_result(t, kind, c, point);
        if (r->seconds > 0 && !r->is_wrong && (best == 0 || r->seconds < best)) best = r->seconds;
    }
    return best;
}

static void draw_bar(svg_t *svg, double y, const tune_candidate_t *candidate, const tune_result_t *r,
                     double best) {
    const int is_best = r->seconds == best && !r->is_wrong;
    svg_text(svg, LEFT - 8, y + 12, 12, 'e', is_best ? 600 : 400, INK, "%s%s%s", candidate->backend,
             candidate->setting[0] != '\0' ? "  " : "", candidate->setting);
    if (r->is_wrong) {
        svg_text(svg, LEFT, y + 12, 12, 's', 400, WRONG, "wrong by %.1e", r->error);
    } else if (r->seconds == 0) {
        svg_text(svg, LEFT, y + 12, 12, 's', 400, WRONG, "%.80s", r->failure);
    } else {
        const double times = r->seconds / best, shown = times < SLOWEST ? times : SLOWEST;
        svg_rect(svg, LEFT, y + 2, shown * UNIT, LINE - 4, is_best ? BEST : OTHER);
        if (times > SLOWEST)
            svg_line(svg, LEFT + shown * UNIT - 6, y, LEFT + shown * UNIT - 12, y + LINE, "#ffffff", 3, "");
        svg_text(svg, LEFT + shown * UNIT + 8, y + 12, 12, 's', 400, INK, "%.1f us, %.2f", r->seconds * 1e6,
                 times);
    }
}

/* Draws if svg is not NULL. The height of it all. */
static double draw(const tune_t *t, svg_t *svg) {
    double y = TOP;
    for (uint32_t k = 0; k < t->model->num_kinds; k++) {
        if (svg != NULL)
            svg_text(svg, 16, y + 12, 13, 's', 600, INK, "%s (%u layers)", t->model->kinds[k].is.name,
                     (unsigned)t->model->kinds[k].is.num_layers);
        y += LINE + GAP;
        for (int p = 0; p < t->num_points; p++) {
            const tune_point_t *point = &t->points[p];
            const double best = best_of(t, k, p), top = y;
            for (int c = 0; c < t->num_candidates; c++) {
                const tune_result_t *r = tune_result(t, k, c, p);
                if (!is_shown(r)) continue;
                if (svg != NULL) draw_bar(svg, y, &t->candidates[c], r, best);
                y += LINE;
            }
            if (y == top) continue;
            if (svg != NULL) {
                svg_text(svg, 16, top + 12, 12, 's', 400, INK, "%s %d x %d of %d",
                         point->is_decode ? "decode" : "prefill", (int)point->requests, (int)point->query_len,
                         (int)point->seq_len);
                svg_line(svg, 16, y + GAP / 2.0, WIDTH - 16, y + GAP / 2.0, GRID, 1, "");
            }
            y += GAP;
        }
    }
    return y + GAP;
}

int tune_picture(const tune_t *t, const char *path) {
    svg_t svg;
    if (svg_open(&svg, WIDTH, draw(t, NULL)) != 0) {
        errno = ENOMEM;
        return -1;
    }
    svg_text(&svg, 16, 26, 15, 's', 600, INK, "attn tune, %s", t->device->name);
    svg_text(&svg, 16, 46, 12, 's', 400, INK,
             "requests x new tokens of a context; time of one call, and times the batch's best");
    draw(t, &svg);
    return svg_close(&svg, path);
}
