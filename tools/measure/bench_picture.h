/* SPDX-License-Identifier: Apache-2.0 */
/* bench_picture.h: measured rows as one picture: a roofline, and a bar for each row's share of its
 * ceiling. */
#ifndef ATTN_TOOLS_BENCH_PICTURE_H
#define ATTN_TOOLS_BENCH_PICTURE_H

#include "measure/bench_work.h"

/* 0 on success; errno says why not. */
int bench_picture(const char *path, const char *title, const bench_row_t *rows, int count);

#endif
