# SPDX-License-Identifier: Apache-2.0
# attn.m4: for those who write attention backends for libattn with Autoconf, Automake and Libtool.  serial 2
#
# ATTN_PLUGIN(NAME)
# -----------------
# Finds the installed headers of libattn and says how to build and where to install the plugin NAME. In Makefile.am:
#
#     plugin_LTLIBRARIES = NAME.la
#     NAME_la_SOURCES = NAME.c
#     NAME_la_CFLAGS = $(ATTN_PLUGIN_CFLAGS)
#     NAME_la_LDFLAGS = -module $(ATTN_PLUGIN_LDFLAGS)
#     attnconf_DATA = NAME.ini
#
# Gives ATTN_PLUGIN_CFLAGS (also for C++), ATTN_PLUGIN_LDFLAGS, plugindir (where libattn looks for NAME.so),
# attnconfdir (drop-ins of its configuration) and ATTN (the `attn` command, for `attn check` in tests).
# --with-attn-plugindir and --with-attn-confdir choose other folders. Libtool (LT_INIT) must come before it.
AC_DEFUN([ATTN_PLUGIN], [
  AC_REQUIRE([PKG_PROG_PKG_CONFIG])
  PKG_CHECK_MODULES([ATTN_SDK], [attn-plugin])
  AC_ARG_WITH([attn-plugindir],
    [AS_HELP_STRING([--with-attn-plugindir=DIR], [install the plugin $1 in DIR (default: where libattn looks)])],
    [plugindir=$withval], [plugindir=`$PKG_CONFIG --variable=plugindir attn-plugin`])
  AC_ARG_WITH([attn-confdir],
    [AS_HELP_STRING([--with-attn-confdir=DIR], [install the drop-in of $1 in DIR (default: libattn's conf.d)])],
    [attnconfdir=$withval], [attnconfdir=`$PKG_CONFIG --variable=configdir attn-plugin`])
  AS_IF([test -z "$plugindir" || test -z "$attnconfdir"],
    [AC_MSG_ERROR([attn-plugin.pc has no plugindir or no configdir: is libattn installed completely?])])
  attn_saved_CPPFLAGS=$CPPFLAGS
  CPPFLAGS="$CPPFLAGS $ATTN_SDK_CFLAGS"
  AC_CHECK_HEADER([attn/attn_plugin.h], [],
    [AC_MSG_ERROR([attn/attn_plugin.h does not compile: it needs dlpack/dlpack.h too (Debian: libdlpack-dev)])])
  CPPFLAGS=$attn_saved_CPPFLAGS
  attn_bindir=`$PKG_CONFIG --variable=bindir attn-plugin`
  AC_PATH_PROG([ATTN], [attn], [attn], [$attn_bindir$PATH_SEPARATOR$PATH])
  ATTN_PLUGIN_CFLAGS="$ATTN_SDK_CFLAGS -fvisibility=hidden"
  ATTN_PLUGIN_LDFLAGS="-module -avoid-version -no-undefined `$PKG_CONFIG --variable=plugin_ldflags attn-plugin`"
  AC_SUBST([plugindir])
  AC_SUBST([attnconfdir])
  AC_SUBST([ATTN_PLUGIN_CFLAGS])
  AC_SUBST([ATTN_PLUGIN_LDFLAGS])
])
