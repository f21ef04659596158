/* SPDX-License-Identifier: Apache-2.0 */
/* svg.c: writes SVG elements. */
#include "base/svg.h"
#include "../../core/base/out_file.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>

int svg_open(svg_t *svg, double width, double height) {
    *svg = (svg_t){NULL, NULL, 0};
    svg->file = open_memstream(&svg->text, &svg->size);
    if (svg->file == NULL) return -1;
    fprintf(
        svg->file,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
        "font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n",
        width, height, width, height);
    svg_rect(svg, 0, 0, width, height, "#ffffff");
    return 0;
}

int svg_close(svg_t *svg, const char *path) {
    fputs("</svg>\n", svg->file);
    int failed = ferror(svg->file) ? ENOMEM : 0;
    if (fclose(svg->file) != 0) failed = ENOMEM;
    const struct attni_bytes part = {svg->text, svg->size};
    mode_t mask = umask(0);
    umask(mask);
    if (failed == 0) failed = attni_out_file_write(path, &part, 1, 0666 & ~mask);
    free(svg->text);
    errno = failed;
    return failed == 0 ? 0 : -1;
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
