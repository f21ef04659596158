/* SPDX-License-Identifier: Apache-2.0 */
/* AMX: tiles of 16 rows of 64 bytes; C[16][16] += A[16][32] B[32][16] on bf16 with float sums (A by rows, B
 * in pairs of rows). Instructions by name: the object is compiled without their flag, and the CPU is asked at
 * open. */
#ifndef CPU_SIMD_AMX_H
#define CPU_SIMD_AMX_H

/* What tiles hold from amx_configure() to amx_end(): rows, and bytes of each row. */
struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Tile numbers are literals. Rows of a tile lie `stride` bytes apart. */
#define AMX_ZERO(T) __asm__ volatile("tilezero %%tmm" #T : : : "memory")
#define AMX_LOAD(T, p, stride)                                                                               \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #T : : "r"(p), "r"((long)(stride)) : "memory")
#define AMX_STORE(T, p, stride)                                                                              \
    __asm__ volatile("tilestored %%tmm" #T ", (%0,%1,1)" : : "r"(p), "r"((long)(stride)) : "memory")
#define AMX_DOT(C, A, B) __asm__ volatile("tdpbf16ps %%tmm" #B ", %%tmm" #A ", %%tmm" #C : : : "memory")

SI void amx_configure(const struct amx_config *c) {
    __asm__ volatile("ldtilecfg %0" : : "m"(*c) : "memory");
}
SI void amx_end(void) {
    __asm__ volatile("tilerelease" : : : "memory");
}

/* Eight whole tiles for this thread, until amx_end(). */
SI void amx_begin(void) {
    static const struct amx_config whole = {.palette = 1,
                                            .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                            .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    amx_configure(&whole);
}

#endif
