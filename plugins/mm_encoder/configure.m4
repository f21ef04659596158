dnl SPDX-License-Identifier: Apache-2.0
dnl After flash: its kernels and the code between them and the ABI are linked in.
ATTN_INTREE_PLUGIN([mm_encoder], [auto], [ATTN_PLUGIN_NEEDS_CUDA
  AS_IF([test "$attn_plugin_flash" != yes], [ATTN_PLUGIN_NEEDS([its kernels are those of flash, which is not built])])])
