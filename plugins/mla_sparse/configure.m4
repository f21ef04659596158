dnl SPDX-License-Identifier: Apache-2.0
ATTN_INTREE_PLUGIN([mla_sparse], [auto], [ATTN_PLUGIN_NEEDS_CUDA])
AM_CONDITIONAL([ATTN_MLA_KERNELS], [test "$attn_plugin_mla" = yes || test "$attn_plugin_mla_sparse" = yes])
