/* SPDX-License-Identifier: Apache-2.0 */
/* svg.h: the few shapes that a chart needs. Colours are SVG words; text is escaped. */
#ifndef ATTN_TOOLS_SVG_H
#define ATTN_TOOLS_SVG_H

#include <stdio.h>

typedef struct svg {
    FILE *file; /* in memory */
    char *text;
    size_t size;
} svg_t;

/* Begins a picture in memory. 0, or -1: no memory. *svg must stay where it is. */
int svg_open(svg_t *svg, double width, double height);
/* Ends it and writes the file. 0, or -1 with errno. */
int svg_close(svg_t *svg, const char *path);
void svg_rect(svg_t *svg, double x, double y, double width, double height, const char *fill);
/* dash: "" or as "4 3". */
void svg_line(svg_t *svg, double x1, double y1, double x2, double y2, const char *stroke, double width,
              const char *dash);
void svg_circle(svg_t *svg, double x, double y, double radius, const char *fill);
/* anchor: 's' start, 'm' middle, 'e' end; weight: 400 or 600. */
void svg_text(svg_t *svg, double x, double y, double size, char anchor, int weight, const char *fill,
              const char *format, ...);

#endif
