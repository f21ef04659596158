dnl SPDX-License-Identifier: Apache-2.0
ATTN_INTREE_PLUGIN([mla_sparse], [auto], [ATTN_PLUGIN_NEEDS_CUDA])
