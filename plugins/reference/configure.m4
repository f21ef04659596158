dnl SPDX-License-Identifier: Apache-2.0
ATTN_INTREE_PLUGIN([reference], [yes])
