/* SPDX-License-Identifier: Apache-2.0 */
/* What this CPU and its operating system can run: CPUID and XGETBV on x86-64, HWCAP on AArch64;
 * compiled with baseline flags. */
#include "cpu_kernels.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t read_xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* AMX tiles and their bf16 products; the kernel keeps their state only for a process that has asked for it
 * once. */
static int has_tiles(uint64_t xcr0) {
#if defined(__linux__) && defined(__x86_64__)
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, asm/prctl.h of Linux 5.16 */
    uint32_t a, b, c, d;
    return (xcr0 >> 17 & 3) == 3 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 5) == 5 &&
           syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
#else
    (void)xcr0;
    return 0;
#endif
}

uint32_t cpu_bits(void) {
    uint32_t a, b, c, d, bits = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) /* OSXSAVE: XGETBV exists */
        return 0;
    const uint64_t xcr0 = read_xcr0();
    if ((xcr0 & 6) != 6) /* XMM and YMM state saved */
        return 0;
    const int zmm = (xcr0 & 0xe0) == 0xe0;
    bits |= c >> 12 & 1 ? CPU_BIT_FMA : 0;
    bits |= c >> 29 & 1 ? CPU_BIT_F16C : 0;
    /* Measured: prefetches of 16-bit rows into L1, whose 32 KiB a tile and the next one fill, halve the
     * decode of a Zen 4; and two tiles ahead is faster than one for every format. */
    if (__get_cpuid(0, &a, &b, &c, &d)) bits |= b == signature_AMD_ebx ? CPU_BIT_PREFETCH_L2 : 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return bits;
    uint32_t a1 = 0, b1, c1, d1;
    if (a >= 1 && !__get_cpuid_count(7, 1, &a1, &b1, &c1, &d1)) a1 = 0;
    bits |= b >> 5 & 1 ? CPU_BIT_AVX2 : 0;
    bits |= a1 >> 4 & 1 ? CPU_BIT_AVXVNNI : 0;
    if (zmm) {
        bits |= b >> 16 & 1 ? CPU_BIT_AVX512F : 0;
        bits |= b >> 17 & 1 ? CPU_BIT_AVX512DQ : 0;
        bits |= b >> 30 & 1 ? CPU_BIT_AVX512BW : 0;
        bits |= b >> 31 & 1 ? CPU_BIT_AVX512VL : 0;
        bits |= c >> 1 & 1 ? CPU_BIT_AVX512VBMI : 0;
        bits |= c >> 11 & 1 ? CPU_BIT_AVX512VNNI : 0;
        if (a1 >> 5 & 1) {
            bits |= CPU_BIT_AVX512BF16;
            /* Measured: a Xeon with AMX gives half of its FMA rate with vdpbf16ps, Zen 5 twice. The vendor
             * decides, not a timing: two instances must not differ by chance. */
            __cpuid(0, a, b, c, d);
            bits |= b == signature_INTEL_ebx ? 0 : CPU_BIT_FAST_BF16;
            bits |= has_tiles(xcr0) ? CPU_BIT_AMX_BF16 | CPU_BIT_FAST_BF16 : 0;
        }
    }
    return bits;
}
#elif defined(__aarch64__)
#ifdef __linux__
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

uint32_t cpu_bits(void) {
    uint32_t bits = CPU_BIT_NEON; /* the baseline has it */
#ifdef __linux__
    /* HWCAP_SVE, HWCAP2_SVEBF16 and HWCAP2_BF16, asm/hwcap.h of Linux 5.6; PR_SVE_GET_VL, linux/prctl.h */
    enum { HAS_SVE = 1 << 22, HAS_SVE_BF16 = 1 << 12, HAS_BF16 = 1 << 14, GET_LENGTH = 51 };
    bits |= getauxval(AT_HWCAP2) & HAS_BF16 ? CPU_BIT_NEON_BF16 : 0;
    bits |= getauxval(AT_HWCAP2) & HAS_SVE_BF16 ? CPU_BIT_SVE_BF16 : 0;
    if (getauxval(AT_HWCAP) & HAS_SVE && (prctl(GET_LENGTH) & 0xffff) == 32) bits |= CPU_BIT_SVE256;
#endif
    return bits;
}
#else
uint32_t cpu_bits(void) {
    return 0;
}
#endif

const char *cpu_bit_name(int bit) {
    static const char *const names[CPU_NUM_BITS] = {
        "avx2",     "fma",         "f16c",      "avx512f",     "avx512bw", "avx512dq",
        "avx512vl", "avx512_bf16", "fast_bf16", "avx512_vnni", "amx_bf16", "avx512_vbmi",
        "avx_vnni", "neon",        "neon_bf16", "prefetch_l2", "sve256",   "sve_bf16"};
    return bit >= 0 && bit < CPU_NUM_BITS ? names[bit] : "unknown";
}
