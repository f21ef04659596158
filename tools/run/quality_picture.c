/* SPDX-License-Identifier: Apache-2.0 */
/* quality_picture.c: error of the attention outputs against bytes of a token and KV head, both on logarithmic
 * scales. Points are numbered, the list beside them has the names. */
#include <errno.h>
#include <math.h>

#include <attn/attn_plugin_util.h>

#include "base/svg.h"
#include "run/run_quality.h"

#define INK    "#1f2937"
#define GRID   "#e5e7eb"
#define COLOUR "#2563eb"

enum { WIDTH = 900, HEIGHT = 460, LEFT = 84, TOP = 60, PLOT_WIDTH = 470, PLOT_HEIGHT = 330, LIST = 590 };

static double place(double x, double low, double high, double from, double length) {
    return from + (log10(x) - low) / (high - low) * length;
}

int quality_picture(const char *path, const char *title, const quality_row_t *rows, int count) {
    double low = 1e30, high = 0, few = 1e30, many = 0;
    svg_t svg;
    for (int i = 0; i < count; i++) {
        if (!rows[i].is_served || !(rows[i].error > 0)) continue;
        low = fmin(low, rows[i].error);
        high = fmax(high, rows[i].error);
        few = fmin(few, rows[i].bytes);
        many = fmax(many, rows[i].bytes);
    }
    if (high == 0) low = 1e-3, high = 1, few = 1, many = 10;
    low = floor(log10(low)), high = fmax(ceil(log10(high)), low + 1);
    few = log10(few / 1.2), many = log10(many * 1.2);
    if (svg_open(&svg, WIDTH, HEIGHT) != 0) {
        errno = ENOMEM;
        return -1;
    }
    svg_rect(&svg, 0, 0, WIDTH, HEIGHT, "#ffffff");
    svg_text(&svg, LEFT, 30, 15, 's', 600, INK, "%s", title);
    for (double power = low; power <= high; power++) {
        const double y = place(pow(10, power), low, high, TOP + PLOT_HEIGHT, -PLOT_HEIGHT);
        svg_line(&svg, LEFT, y, LEFT + PLOT_WIDTH, y, GRID, 1, "");
        svg_text(&svg, LEFT - 8, y + 4, 12, 'e', 400, INK, "1e%.0f", power);
    }
    for (int64_t bytes = 1; bytes <= INT64_C(1) << 20; bytes *= 2) {
        if (log10((double)bytes) < few || log10((double)bytes) > many) continue;
        const double x = place((double)bytes, few, many, LEFT, PLOT_WIDTH);
        svg_line(&svg, x, TOP, x, TOP + PLOT_HEIGHT, GRID, 1, "");
        svg_text(&svg, x, TOP + PLOT_HEIGHT + 18, 12, 'm', 400, INK, "%lld", (long long)bytes);
    }
    svg_text(&svg, LEFT, TOP + PLOT_HEIGHT + 44, 12, 's', 400, INK,
             "bytes of a token and KV head; upwards: relative error of the outputs");
    int number = 0;
    for (int i = 0; i < count; i++) {
        if (!rows[i].is_served) continue;
        number++;
        if (rows[i].error > 0) {
            const double x = place(rows[i].bytes, few, many, LEFT, PLOT_WIDTH),
                         y = place(rows[i].error, low, high, TOP + PLOT_HEIGHT, -PLOT_HEIGHT);
            svg_circle(&svg, x, y, 4.5, COLOUR);
            svg_text(&svg, x + 8, y + 4, 11, 's', 600, INK, "%d", number);
        }
        svg_text(&svg, LIST, TOP + 20.0 * number, 12, 's', 400, INK, "%d  %s  %.0f B  %.1e", number,
                 attn_kv_name(rows[i].kv), rows[i].bytes, rows[i].error);
    }
    return svg_close(&svg, path);
}
