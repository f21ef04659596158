# SPDX-License-Identifier: Apache-2.0
# ATTN_INTREE_PLUGIN(NAME, DEFAULT, [CHECKS])
# -------------------------------------------
# The switch of one in-tree plugin, called from plugins/NAME/configure.m4. DEFAULT is yes, no or auto. CHECKS is
# shell code that runs unless the answer is no; it says what is missing with ATTN_PLUGIN_NEEDS([why]). A plugin
# that was asked for by name and cannot be built is an error, not a note.
#
# Gives the conditional ATTN_PLUGIN_NAME (upper case) and a line in the summary of configure.
AC_DEFUN([ATTN_INTREE_PLUGIN], [
  AC_ARG_ENABLE([plugin-$1],
    [AS_HELP_STRING([--enable-plugin-$1=auto|yes|no],
      [build the plugin $1 (default: $2)])],
    [attn_plugin_$1=$enableval], [attn_plugin_$1=$2])
  attn_plugin_missing=
  AS_CASE([$attn_plugin_$1],
    [no], [attn_plugin_why="switched off"],
    [yes|auto], [
      $3
      AS_IF([test -z "$attn_plugin_missing"], [attn_plugin_asked=$attn_plugin_$1
          attn_plugin_$1=yes attn_plugin_why=],
        [test "$attn_plugin_$1" = yes],
        [AC_MSG_ERROR([plugin $1 was asked for and cannot be built: $attn_plugin_missing])],
        [attn_plugin_$1=no attn_plugin_why=$attn_plugin_missing])],
    [AC_MSG_ERROR([--enable-plugin-$1=$attn_plugin_$1: wanted auto, yes or no])])
  AC_MSG_NOTICE([plugin $1: $attn_plugin_$1${attn_plugin_why:+ ($attn_plugin_why)}])
  ATTN_PLUGINS_SUMMARY="$ATTN_PLUGINS_SUMMARY
    $1: $attn_plugin_$1${attn_plugin_why:+ ($attn_plugin_why)}"
  AM_CONDITIONAL([ATTN_PLUGIN_]m4_toupper([$1]), [test "$attn_plugin_$1" = yes])
])

# ATTN_PLUGIN_NEEDS(WHY): within CHECKS, the plugin cannot be built; only the first reason is kept.
AC_DEFUN([ATTN_PLUGIN_NEEDS], [
  AS_IF([test -z "$attn_plugin_missing"], [attn_plugin_missing="$1"])])

# ATTN_PLUGIN_NEEDS_CUDA: within CHECKS, no CUDA toolkit is a reason.
AC_DEFUN([ATTN_PLUGIN_NEEDS_CUDA], [
  AS_IF([test "$have_cuda" != yes], [ATTN_PLUGIN_NEEDS([no CUDA toolkit: $cuda_missing])])])
