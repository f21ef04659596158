/* SPDX-License-Identifier: Apache-2.0 */
/* The fp8 cache is written without saturation: large values wrap. Caught by: numerics, fp8 saturation */
#include "bad.h"

static uint8_t bad_to_e4m3(double x) {
    return fabs(x) > 448 ? simple_to_e4m3(fmod(x, 448)) : simple_to_e4m3(x);
}
static void bad_store(char *row, int storage, int64_t i, double value) {
    if (storage == SIMPLE_E4M3)
        row[i] = (char)bad_to_e4m3(value);
    else
        simple_store(row, storage, i, value);
}
#define simple_store(row, storage, i, value) bad_store(row, storage, i, value)

#include "bad_plugin.h"
