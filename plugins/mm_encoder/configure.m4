dnl SPDX-License-Identifier: Apache-2.0
ATTN_INTREE_PLUGIN([mm_encoder], [auto], [ATTN_PLUGIN_NEEDS_CUDA])
