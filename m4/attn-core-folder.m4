# SPDX-License-Identifier: Apache-2.0
# Autoconf's checks remove core dumps with `rm -f core ...`, which collides with our folder core/ (an error for
# every check). Rewrite those macros; this file is included before AC_INIT, when they are defined and not yet used.
m4_foreach([attn_macro],
  [[_AC_INIT_PREPARE], [_AC_COMPILE_IFELSE_BODY], [_AC_LINK_IFELSE_BODY],
   [_AC_RUN_IFELSE_BODY], [_AC_COMPILE_IFELSE], [_AC_LINK_IFELSE], [_AC_RUN_IFELSE],
   [_AM_PROG_CC_C_O]],
  [m4_ifdef(m4_defn([attn_macro]),
    [m4_define(m4_defn([attn_macro]),
      m4_bpatsubst(m4_dquote(m4_defn(m4_defn([attn_macro]))), [rm -f core ], [rm -f ]))])])
