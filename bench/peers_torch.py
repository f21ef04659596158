#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peers that torch carries, on the workloads of flash_bench and by the same method: bf16 and e4m3 matmul ceilings,
SDPA with the cuDNN and the FlashAttention-2 backends. torch hands e4m3 to neither of them: their rows say so.
peers_common.py says how they are measured, and what arguments do."""
import itertools

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from peers_common import bf16, row

a, b = bf16(8192, 8192), bf16(8192, 8192)
c = torch.empty_like(a)
row("matmul bf16 8192", lambda: torch.mm(a, b, out=c), flops=2.0 * 8192**3)
a8, b8, one = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t(), torch.ones((), device="cuda")
row("matmul e4m3 8192", lambda: torch._scaled_mm(a8, b8, scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
    flops=2.0 * 8192**3)
del a, b, c, a8, b8

for batch, s, causal in ((1, 16384, True), (4, 4096, True), (32, 512, True), (4, 4096, False)):
    q, k, v = (bf16(batch, s, h, 128).transpose(1, 2) for h in (32, 8, 8))
    flops = 4.0 * batch * 32 * s * s * 128 * (0.5 if causal else 1.0)
    kr, vr = (x.repeat_interleave(4, dim=1) for x in (k, v))
    for backend, name in ((SDPBackend.CUDNN_ATTENTION, "cudnn"), (SDPBackend.FLASH_ATTENTION, "fa2")):
        def call(q=q, k=k, v=v, kr=kr, vr=vr, backend=backend, causal=causal):
            with sdpa_kernel(backend):
                if backend == SDPBackend.CUDNN_ATTENTION:
                    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
                return F.scaled_dot_product_attention(q, kr, vr, is_causal=causal)
        row(f"P1 {batch}x{s} {'causal' if causal else 'full'} {name}", call, flops=flops)

for batch, s, heads, kv_heads, d in ((4, 4096, 32, 32, 96), (8, 2048, 64, 8, 64)):
    q, k, v = (bf16(batch, s, h, d).transpose(1, 2) for h in (heads, kv_heads, kv_heads))
    kr, vr = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    for backend, name in ((SDPBackend.CUDNN_ATTENTION, "cudnn"), (SDPBackend.FLASH_ATTENTION, "fa2")):
        def call(q=q, k=k, v=v, kr=kr, vr=vr, backend=backend):
            with sdpa_kernel(backend):
                if backend == SDPBackend.CUDNN_ATTENTION:
                    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                return F.scaled_dot_product_attention(q, kr, vr, is_causal=True)
        row(f"P4 D={d} {batch}x{s} causal {name}", call, flops=2.0 * batch * heads * s * s * d)

for heads in (128, 16):
    q, k, v = (bf16(1, 8192, heads, d).transpose(1, 2) for d in (192, 192, 128))
    flops = 1.0 * heads * 8192**2 * (192 + 128)
    wide = F.pad(v, (0, 64))  # FlashAttention-2 wants one head size
    for backend, name in ((SDPBackend.CUDNN_ATTENTION, "cudnn"), (SDPBackend.FLASH_ATTENTION, "fa2, values padded")):
        def call(q=q, k=k, v=v if name == "cudnn" else wide, backend=backend):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        row(f"M2 H={heads} 1x8192 causal {name}", call, flops=flops)
    del q, k, v, wide, call

for kv_only in (False, True):
    q, k, v = (bf16(1, 16384, h, 128).transpose(1, 2) for h in (32, 8, 8))
    k, v = (x.to(torch.float8_e4m3fn) for x in (k, v))
    q = q if kv_only else q.to(torch.float8_e4m3fn)
    for backend, name in ((SDPBackend.CUDNN_ATTENTION, "cudnn"), (SDPBackend.FLASH_ATTENTION, "fa2")):
        def call(q=q, k=k, v=v, backend=backend):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        row(f"P3 1x16384 causal {'bf16 query, e4m3 keys' if kv_only else 'e4m3'} {name}", call,
            flops=2.0 * 32 * 16384**2 * 128)

images = [(f"E1 D={d} 8x4096", 8, 4096, d) for d in (80, 72, 64, 128)]
images += [(f"E 16x{d} {batch}x{s}", batch, s, d) for batch, s, d in (
    (16, 256, 72), (64, 196, 72), (16, 256, 80), (64, 196, 80), (256, 64, 80), (64, 196, 64), (16, 256, 64))]
for shape, batch, s, d in images:
    q, k, v = (bf16(batch, s, 16, d).transpose(1, 2) for _ in range(3))
    for backend, name in ((SDPBackend.CUDNN_ATTENTION, "cudnn"), (SDPBackend.FLASH_ATTENTION, "fa2")):
        def call(q=q, k=k, v=v, backend=backend):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v)
        row(f"{shape} {name}", call, flops=4.0 * batch * 16 * s * s * d)

# steps of several tokens: no mask, since SDPA's causal one begins at the first key
for heads, d, n, tokens, length in ((64, 128, 64, 4, 8192), (64, 64, 64, 4, 8192), (32, 128, 32, 8, 4096),
                                    (64, 128, 4, 4, 32768)):
    q, k, v = (bf16(n, x, h, d).transpose(1, 2) for x, h in ((tokens, heads), (length, 8), (length, 8)))

    def call(q=q, k=k, v=v):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    row(f"D6 {heads}/8 x{d} {n}x{tokens} of {length} contiguous cudnn", call, nbytes=4.0 * n * length * 8 * d)

for name, n, length in (("D1", 64, 8192), ("D1", 1, 131072), ("D1", 256, 1024), ("D1", 8, 32768), ("D1", 1, 1024),
                        ("D4", 64, 512), ("D4", 1, 4096), ("D4", 1, 8192), ("D4", 1, 32768), ("D4", 8, 1024)):
    copies = 16 if name == "D4" else 1  # one after the other, so that none is in the L2
    sets = [[bf16(n, length, 8, 128).transpose(1, 2) for _ in range(2)] for _ in range(copies)]
    turn, q = itertools.cycle(sets), bf16(n, 32, 1, 128)

    def call(q=q, turn=turn):
        k, v = next(turn)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    row(f"{name} {n}x{length} contiguous cudnn", call, nbytes=4.0 * n * length * 8 * 128)
