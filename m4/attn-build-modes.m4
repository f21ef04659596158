# SPDX-License-Identifier: Apache-2.0
# ATTN_BUILD_MODES
# ----------------
# --enable-sanitizers=LIST and --enable-coverage. The flags go into CFLAGS, CXXFLAGS and LDFLAGS at the end of
# configure, because every object of the build has to have them. -z defs is dropped with clang's sanitizers, whose
# runtime is in the program and not in the libraries.
AC_DEFUN([ATTN_BUILD_MODES], [
  AC_ARG_ENABLE([sanitizers],
    [AS_HELP_STRING([--enable-sanitizers=LIST], [build with sanitizers, for instance address,undefined or thread])],
    [], [enable_sanitizers=no])
  AC_ARG_ENABLE([coverage],
    [AS_HELP_STRING([--enable-coverage], [build for make coverage (gcc and lcov)])],
    [], [enable_coverage=no])
  attn_mode_flags=
  AS_CASE([$enable_sanitizers], [no|""], [enable_sanitizers=no],
    [yes], [enable_sanitizers=address,undefined])
  AS_IF([test "$enable_sanitizers" != no], [
    attn_mode_flags="-g -O1 -fno-omit-frame-pointer -fsanitize=$enable_sanitizers"
    AS_CASE([,$enable_sanitizers,], [*,undefined,*],
      [attn_mode_flags="$attn_mode_flags -fno-sanitize-recover=all"])
    attn_saved_cflags=$CFLAGS
    CFLAGS="$CFLAGS $attn_mode_flags"
    AC_MSG_CHECKING([whether $CC has -fsanitize=$enable_sanitizers])
    AC_LINK_IFELSE([AC_LANG_PROGRAM()], [AC_MSG_RESULT([yes])],
      [AC_MSG_RESULT([no])
       AC_MSG_ERROR([--enable-sanitizers=$enable_sanitizers: $CC cannot link with it])])
    CFLAGS=$attn_saved_cflags
  ])
  AS_IF([test "$enable_coverage" = yes],
    [attn_mode_flags="$attn_mode_flags -g -O0 --coverage -fprofile-update=atomic"])
  AS_IF([test -n "$attn_mode_flags"], [
    CFLAGS="$CFLAGS $attn_mode_flags"
    CXXFLAGS="$CXXFLAGS $attn_mode_flags"
    LDFLAGS="$LDFLAGS $attn_mode_flags"
  ])
  ATTN_NO_UNDEFINED="-no-undefined -Wl,-z,defs"
  AC_MSG_CHECKING([whether a shared library links with -z defs])
  attn_saved_ldflags=$LDFLAGS attn_saved_cflags=$CFLAGS
  LDFLAGS="$LDFLAGS -shared -Wl,-z,defs" CFLAGS="$CFLAGS -fPIC"
  AC_LINK_IFELSE([AC_LANG_SOURCE([int f(int *p) { return p@<:@1@:>@; }])], [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     ATTN_NO_UNDEFINED=])
  LDFLAGS=$attn_saved_ldflags CFLAGS=$attn_saved_cflags
  AC_SUBST([ATTN_NO_UNDEFINED])
  AM_CONDITIONAL([ATTN_SANITIZED], [test "$enable_sanitizers" != no])
  AM_CONDITIONAL([ATTN_COVERAGE], [test "$enable_coverage" = yes])
])
