dnl SPDX-License-Identifier: Apache-2.0
dnl The levels above "generic" are built where the compiler takes their flags, the user's CFLAGS behind them: a user's
dnl -mno-avx512f really removes an instruction set, and then the generic level alone is built.
ATTN_INTREE_PLUGIN([cpu], [yes])
AC_CACHE_CHECK([whether $CC builds the AVX2 and AVX-512 levels], [attn_cv_cpu_x86_levels], [
  attn_saved_CFLAGS=$CFLAGS
  CFLAGS="-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 $attn_saved_CFLAGS"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <immintrin.h>]],
    [[__m512 a = _mm512_set1_ps(1.0f), b = _mm512_fmadd_ps(a, a, a);
      __m512bh c = _mm512_cvtne2ps_pbh(a, b);
      a = _mm512_dpbf16_ps(a, c, c);
      return (int)_mm512_cvtss_f32(_mm512_reduce_ps(a, 9)) + (int)sizeof(_mm256_cvtph_ps(_mm_setzero_si128()));]])],
    [attn_cv_cpu_x86_levels=yes], [attn_cv_cpu_x86_levels=no])
  CFLAGS=$attn_saved_CFLAGS])
AM_CONDITIONAL([ATTN_CPU_X86_LEVELS], [test "$attn_cv_cpu_x86_levels" = yes])
AC_CACHE_CHECK([whether $CC builds the NEON level], [attn_cv_cpu_neon_level],
  [AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <arm_neon.h>
#if !defined(__aarch64__) || defined(__AARCH64EB__)
#error "the level is for little-endian AArch64"
#endif]],
    [[float32x4_t a = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(0)));
      return (int)vaddvq_f32(vfmaq_f32(a, a, a));]])],
    [attn_cv_cpu_neon_level=yes], [attn_cv_cpu_neon_level=no])])
AM_CONDITIONAL([ATTN_CPU_NEON_LEVEL], [test "$attn_cv_cpu_neon_level" = yes])
AC_CACHE_CHECK([whether $CC builds the NEON level of bf16 products], [attn_cv_cpu_neon_bf16_level], [
  attn_saved_CFLAGS=$CFLAGS
  CFLAGS="$attn_saved_CFLAGS -march=armv8.2-a+bf16"
  attn_cv_cpu_neon_bf16_level=no
  AS_IF([test "$attn_cv_cpu_neon_level" = yes],
    [AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <arm_neon.h>]],
      [[float32x4_t a = vdupq_n_f32(1);
        bfloat16x8_t b = vreinterpretq_bf16_f32(a);
        return (int)vaddvq_f32(vbfdotq_f32(a, b, b)) + (int)sizeof(vcvt_bf16_f32(a));]])],
      [attn_cv_cpu_neon_bf16_level=yes])])
  CFLAGS=$attn_saved_CFLAGS])
AM_CONDITIONAL([ATTN_CPU_NEON_BF16_LEVEL], [test "$attn_cv_cpu_neon_bf16_level" = yes])
AC_CACHE_CHECK([whether $CC builds the SVE level of 256 bits], [attn_cv_cpu_sve256_level], [
  attn_saved_CFLAGS=$CFLAGS
  CFLAGS="$attn_saved_CFLAGS -march=armv8.2-a+sve+bf16 -msve-vector-bits=256"
  attn_cv_cpu_sve256_level=no
  AS_IF([test "$attn_cv_cpu_neon_level" = yes],
    [AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <arm_sve.h>
typedef svfloat32_t vf __attribute__((arm_sve_vector_bits(256)));]],
      [[vf a[2] = {svdup_n_f32(1), svdup_n_f32(2)};
        a[0] = svbfdot_f32(a[0], svreinterpret_bf16_f32(a[1]), svreinterpret_bf16_f32(a[1]));
        return (int)svaddv_f32(svptrue_b32(), a[0]) + (int)sizeof a;]])],
      [attn_cv_cpu_sve256_level=yes])])
  CFLAGS=$attn_saved_CFLAGS])
AM_CONDITIONAL([ATTN_CPU_SVE256_LEVEL], [test "$attn_cv_cpu_sve256_level" = yes])
CPU_LEVELS_CPPFLAGS=
AS_IF([test "$attn_cv_cpu_x86_levels" = yes], [CPU_LEVELS_CPPFLAGS=-DCPU_HAVE_X86_LEVELS=1])
AS_IF([test "$attn_cv_cpu_neon_level" = yes], [CPU_LEVELS_CPPFLAGS=-DCPU_HAVE_NEON_LEVEL=1])
AS_IF([test "$attn_cv_cpu_neon_bf16_level" = yes],
  [CPU_LEVELS_CPPFLAGS="$CPU_LEVELS_CPPFLAGS -DCPU_HAVE_NEON_BF16_LEVEL=1"])
AS_IF([test "$attn_cv_cpu_sve256_level" = yes],
  [CPU_LEVELS_CPPFLAGS="$CPU_LEVELS_CPPFLAGS -DCPU_HAVE_SVE256_LEVEL=1"])
AC_SUBST([CPU_LEVELS_CPPFLAGS])
dnl Instrumented code is five times as long: without the unrolling that speed needs it compiles in 40% of the time.
CPU_LEVEL_CPPFLAGS=
AS_IF([test -n "$enable_sanitizers" && test "$enable_sanitizers" != no], [CPU_LEVEL_CPPFLAGS=-DCPU_NO_UNROLL=1])
AC_SUBST([CPU_LEVEL_CPPFLAGS])
