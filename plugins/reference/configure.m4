dnl SPDX-License-Identifier: Apache-2.0
ATTN_PLUGIN([reference], [yes])
