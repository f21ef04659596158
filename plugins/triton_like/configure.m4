dnl SPDX-License-Identifier: Apache-2.0
dnl No CUDA toolkit is needed to build: driver and NVRTC are loaded when a problem is opened. The folder of the toolkit that
dnl configure found is one of the places where NVRTC is looked for.
ATTN_INTREE_PLUGIN([triton_like], [auto])
