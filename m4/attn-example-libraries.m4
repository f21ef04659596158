# SPDX-License-Identifier: Apache-2.0
# ATTN_EXAMPLE_LIBRARIES
# ----------------------
# What examples/embed is better with, and libattn never uses: a BLAS with CBLAS's header (--with-blas), without which
# matrices are multiplied by plain loops, and libunistring (--with-unistring), without which texts are ASCII alone.
# Sets EXAMPLE_CPPFLAGS and EXAMPLE_LIBS.
AC_DEFUN([ATTN_EXAMPLE_LIBRARIES], [
  EXAMPLE_CPPFLAGS= EXAMPLE_LIBS=
  ATTN_EXAMPLE_LIBRARY([blas], [cblas.h], [cblas_sgemm], [openblas cblas blas], [HAVE_CBLAS], [libopenblas-dev])
  ATTN_EXAMPLE_LIBRARY([unistring], [uninorm.h], [u32_normalize], [unistring], [HAVE_UNISTRING], [libunistring-dev])
  AC_SUBST([EXAMPLE_CPPFLAGS])
  AC_SUBST([EXAMPLE_LIBS])
])
# ATTN_EXAMPLE_LIBRARY(NAME, HEADER, FUNCTION, LIBRARIES, MACRO, DEBIAN PACKAGE)
AC_DEFUN([ATTN_EXAMPLE_LIBRARY], [
  AC_ARG_WITH([$1], [AS_HELP_STRING([--without-$1], [examples without $1 (Debian: $6)])], [], [with_$1=auto])
  attn_have_$1=no
  AS_IF([test "$with_$1" != no], [
    attn_saved_LIBS=$LIBS
    LIBS=
    AC_CHECK_HEADER([$2], [AC_SEARCH_LIBS([$3], [$4], [attn_have_$1=yes])])
    AS_IF([test "$attn_have_$1" = yes],
      [EXAMPLE_CPPFLAGS="$EXAMPLE_CPPFLAGS -D$5" EXAMPLE_LIBS="$EXAMPLE_LIBS $LIBS"])
    LIBS=$attn_saved_LIBS
  ])
  AS_IF([test "$with_$1" != no && test "$with_$1" != auto && test "$attn_have_$1" = no],
    [AC_MSG_ERROR([--with-$1: no $2 with $3 found: install it (Debian: $6)])])
])
