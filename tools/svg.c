/* SPDX-License-Identifier: Apache-2.0 */
/* svg.c: writes SVG elements. */
#include "svg.h"

#include <stdarg.h>

svg_t svg_open(const char *path, double width, double height) {
    svg_t svg = {fopen(path, "we")};
    if (svg.file == NULL) return svg;
    fprintf(
        svg.file,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
        "font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n",
        width, height, width, height);
    svg_rect(&svg, 0, 0, width, height, "#ffffff");
    return svg;
}

int svg_close(svg_t *svg) {
    fputs("</svg>\n", svg->file);
    int failed = ferror(svg->file);
    return fclose(svg->file) != 0 || failed;
}

void svg_rect(svg_t *svg, double x, double y, double width, double height, const char *fill) {
    fprintf(svg->file, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x, y,
            width, height, fill);
}

void svg_line(svg_t *svg, double x1, double y1, double x2, double y2, const char *stroke, double width,
              const char *dash) {
    fprintf(svg->file,
            "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%.1f\" "
            "stroke-dasharray=\"%s\"/>\n",
            x1, y1, x2, y2, stroke, width, dash[0] != '\0' ? dash : "none");
}

void svg_circle(svg_t *svg, double x, double y, double radius, const char *fill) {
    fprintf(svg->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\"/>\n", x, y, radius, fill);
}

void svg_text(svg_t *svg, double x, double y, double size, char anchor, int weight, const char *fill,
              const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(
        svg->file,
        "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%.1f\" text-anchor=\"%s\" font-weight=\"%d\" fill=\"%s\">",
        x, y, size,
        anchor == 'e'   ? "end"
        : anchor == 'm' ? "middle"
                        : "start",
        weight, fill);
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '<')
            fputs("&lt;", svg->file);
        else if (*c == '>')
            fputs("&gt;", svg->file);
        else if (*c == '&')
            fputs("&amp;", svg->file);
        else if ((unsigned char)*c >= 32)
            fputc(*c, svg->file);
    }
    fputs("</text>\n", svg->file);
}
