/* SPDX-License-Identifier: Apache-2.0 */
/* bench_picture.c: draws the roofline (Williams, Waterman, Patterson 2009) on the left, the bars on the
 * right. Points are numbered, the bars carry the names: so labels never lie on each other. */
#include "measure/bench_picture.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/svg.h"

#define MEMORY_COLOUR  "#2563eb"
#define COMPUTE_COLOUR "#c2410c"
#define INK            "#1f2937"
#define FAINT          "#9ca3af"
#define GRID           "#e5e7eb"

enum {
    WIDTH = 1180,
    TOP = 92,
    LEFT = 74,
    PLOT_WIDTH = 430,
    PLOT_HEIGHT = 330,
    BAR_LEFT = 720,
    BAR_WIDTH = 250,
    ROW_HEIGHT = 34
};

/* The plot's window in powers of ten. */
typedef struct window {
    double x0, x1, y0, y1;
    double height;
} window_t;

static double x_of(const window_t *w, double intensity) {
    return LEFT + (log10(intensity) - w->x0) / (w->x1 - w->x0) * PLOT_WIDTH;
}
static double y_of(const window_t *w, double rate) {
    return TOP + w->height - (log10(rate) - w->y0) / (w->y1 - w->y0) * w->height;
}

static const char *colour_of(const bench_row_t *row) {
    return row->is_memory_bound ? MEMORY_COLOUR : COMPUTE_COLOUR;
}
static double gflops_of(const bench_row_t *row) {
    return row->flops / row->median * 1e-9;
}
static double intensity_of(const bench_row_t *row) {
    return row->flops / row->bytes;
}

static window_t choose_window(const bench_row_t *rows, int count, double read, double compute) {
    double x_low = 1e30, x_high = 0, y_low = 1e30, y_high = compute;
    for (int i = 0; i < count; i++) {
        if (rows[i].flops <= 0) continue;
        x_low = fmin(x_low, intensity_of(&rows[i]));
        x_high = fmax(x_high, intensity_of(&rows[i]));
        y_low = fmin(y_low, gflops_of(&rows[i]));
        y_high = fmax(y_high, gflops_of(&rows[i]));
    }
    if (read > 0 && compute > 0) x_high = fmax(x_high, 4 * compute / read);
    if (x_high == 0) x_low = x_high = y_low = y_high = 1; /* nothing to show */
    window_t w = {floor(log10(x_low / 1.5)), ceil(log10(x_high * 1.5)), floor(log10(y_low / 1.5)),
                  ceil(log10(y_high * 1.2)), 0};
    return w;
}

/* 100000 -> "100k" */
static void tick_label(double value, char *text, size_t size) {
    if (value >= 1e6)
        snprintf(text, size, "%gM", value / 1e6);
    else if (value >= 1e4)
        snprintf(text, size, "%gk", value / 1e3);
    else
        snprintf(text, size, "%g", value);
}

static void draw_axes(svg_t *svg, const window_t *w) {
    char label[32];
    for (double e = w->x0; e <= w->x1 + 0.01; e++) {
        double x = x_of(w, pow(10, e));
        svg_line(svg, x, TOP, x, TOP + w->height, GRID, 1, "");
        tick_label(pow(10, e), label, sizeof label);
        svg_text(svg, x, TOP + w->height + 18, 12, 'm', 400, INK, "%s", label);
    }
    for (double e = w->y0; e <= w->y1 + 0.01; e++) {
        double y = y_of(w, pow(10, e));
        svg_line(svg, LEFT, y, LEFT + PLOT_WIDTH, y, GRID, 1, "");
        tick_label(pow(10, e), label, sizeof label);
        svg_text(svg, LEFT - 8, y + 4, 12, 'e', 400, INK, "%s", label);
    }
    svg_text(svg, LEFT + PLOT_WIDTH / 2.0, TOP + w->height + 40, 12, 'm', 400, INK,
             "work per byte of K and V (flop/byte)");
    svg_text(svg, LEFT - 8, TOP - 12, 12, 's', 400, INK, "GFLOP/s");
}

/* The slanted roof of memory up to the first flat one, and a flat roof for each kind of arithmetic. */
static void draw_roofs(svg_t *svg, const window_t *w, const bench_row_t *rows, int count, double read,
                       double compute) {
    const char *drawn[8] = {0};
    int num_drawn = 0;
    for (int i = 0; i < count; i++) {
        const bench_ceiling_t *c = &rows[i].ceilings[0];
        int is_new = !rows[i].is_memory_bound && c->rate > 0 && num_drawn < 8;
        for (int k = 0; k < num_drawn; k++)
            is_new = is_new && strcmp(drawn[k], c->name) != 0;
        if (!is_new) continue;
        drawn[num_drawn++] = c->name;
        double from = read > 0 ? fmax(x_of(w, c->rate / read), LEFT) : LEFT, y = y_of(w, c->rate);
        svg_line(svg, from, y, LEFT + PLOT_WIDTH, y, COMPUTE_COLOUR, 2, "");
        svg_text(svg, from + 8, y - 6, 12, 's', 400, COMPUTE_COLOUR, "%s %.0f GFLOP/s", c->name, c->rate);
    }
    if (read <= 0) return;
    double high = compute > 0 ? compute / read : pow(10, w->x1),
           low = fmax(pow(10, w->x0), pow(10, w->y0) / read);
    high = fmin(high, pow(10, w->y1) / read);
    svg_line(svg, x_of(w, low), y_of(w, low * read), x_of(w, high), y_of(w, high * read), MEMORY_COLOUR, 2,
             "");
    double at = low * pow(high / low, 0.3);
    svg_text(svg, x_of(w, at) + 12, y_of(w, at * read) + 8, 12, 's', 400, MEMORY_COLOUR, "read %.0f GB/s",
             read);
}

static void draw_points(svg_t *svg, const window_t *w, const bench_row_t *rows, int count) {
    for (int i = 0; i < count; i++) {
        if (rows[i].flops <= 0) continue; /* a cache writer has no place on a roofline */
        double x = x_of(w, intensity_of(&rows[i])), y = y_of(w, gflops_of(&rows[i]));
        svg_circle(svg, x, y, 4.5, colour_of(&rows[i]));
        int side = i % 2 == 0 ? 1 : -1; /* neighbours are often near */
        svg_text(svg, x + side * 8, y + 4, 11, side > 0 ? 's' : 'e', 600, INK, "%d", i + 1);
    }
}

static void draw_bars(svg_t *svg, const bench_row_t *rows, int count) {
    double height = count * (double)ROW_HEIGHT;
    for (int percent = 0; percent <= 100; percent += 25) {
        double x = BAR_LEFT + BAR_WIDTH * percent / 100.0;
        svg_line(svg, x, TOP, x, TOP + height, percent == 100 ? FAINT : GRID, 1, percent == 100 ? "4 3" : "");
        svg_text(svg, x, TOP + height + 18, 12, 'm', 400, INK, "%d%%", percent);
    }
    for (int i = 0; i < count; i++) {
        const bench_row_t *row = &rows[i];
        double y = TOP + i * (double)ROW_HEIGHT,
               ratio = row->ceilings[0].rate > 0 ? row->rate / row->ceilings[0].rate : 0;
        svg_text(svg, BAR_LEFT - 12, y + 21, 13, 'e', 400, INK, "%s", row->name);
        svg_text(svg, BAR_LEFT - 165, y + 21, 11, 'e', 600, FAINT, "%d", i + 1);
        svg_rect(svg, BAR_LEFT, y + 7, BAR_WIDTH * fmin(ratio, 1.12), ROW_HEIGHT - 14, colour_of(row));
        if (ratio > 0)
            svg_text(svg, BAR_LEFT + 8, y + 21, 12, 's', 600, ratio > 0.16 ? "#ffffff" : INK, "%.0f%%",
                     ratio * 100);
        char rate[40];
        bench_rate_text(row, row->rate, rate, sizeof rate);
        svg_text(svg, BAR_LEFT + BAR_WIDTH + 34, y + 21, 12, 's', 400, INK, "%s, %s", rate,
                 ratio > 0 ? row->ceilings[0].name : "no ceiling");
    }
    svg_text(svg, BAR_LEFT, TOP - 12, 12, 's', 400, INK, "share of the ceiling that was measured beside it");
}

int bench_picture(const char *path, const char *title, const bench_row_t *rows, int count) {
    double read = 0, compute = 0;
    for (int i = 0; i < count; i++) {
        if (rows[i].read_ceiling > read) read = rows[i].read_ceiling;
        if (!rows[i].is_memory_bound && rows[i].ceilings[0].rate > compute)
            compute = rows[i].ceilings[0].rate;
    }
    window_t w = choose_window(rows, count, read, compute);
    w.height = fmax(PLOT_HEIGHT, count * (double)ROW_HEIGHT);
    svg_t svg;
    if (svg_open(&svg, WIDTH, TOP + w.height + 64) != 0) return -1;
    svg_text(&svg, LEFT - 50, 36, 19, 's', 600, INK, "Attention beside the limits of the machine");
    svg_text(&svg, LEFT - 50, 58, 13, 's', 400, INK, "%s", title);
    draw_axes(&svg, &w);
    draw_roofs(&svg, &w, rows, count, read, compute);
    draw_points(&svg, &w, rows, count);
    draw_bars(&svg, rows, count);
    return svg_close(&svg, path);
}
