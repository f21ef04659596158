#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peers that torch carries, on the workloads of flash_bench and by the same method: bf16 and e4m3 matmul ceilings,
SDPA with the cuDNN and the FlashAttention-2 backends. torch hands e4m3 to neither of them: their rows say so. Burst is
the median of about 12 ms after 120 ms of rest, sustained the median of 260 ms after 200 ms of the same load; graph
replays. Arguments: only rows whose name contains one of these texts."""
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def time_it(call):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        call()
        stream.synchronize()

        def graph_of(n):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(n):
                    call()
            return graph

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def replay(graph, n):
            start.record()
            for _ in range(n):
                graph.replay()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) * 1e3

        one = graph_of(4)
        replay(one, 1)
        us = replay(one, 1) / 4
        per = max(1, min(256, int(2000 / us)))
        graph = graph_of(per)
        replay(graph, 1)
        time.sleep(0.12)
        times = []
        while sum(times) * per < 12000 and len(times) < 12:
            times.append(replay(graph, 1) / per)
        burst = sorted(times)[len(times) // 2]
        replay(graph, int(200000 / (us * per)) + 1)
        chunk = max(1, int(20000 / (us * per)))
        times = [replay(graph, chunk) / (chunk * per) for _ in range(13)]
        return burst, sorted(times)[6]


def row(name, call, flops=0, nbytes=0):
    if len(sys.argv) > 1 and not any(text in name for text in sys.argv[1:]):
        return
    try:
        burst, sustained = time_it(call)
    except Exception as error:  # a backend that does not take the shape is a line, not the end
        print(f"{name:44s} failed: {str(error).splitlines()[0][:90]}", flush=True)
        return
    if flops:
        print(f"{name:44s} {sustained:9.2f} us {flops / sustained * 1e-6:7.1f} TFLOP/s sustained, "
              f"{burst:9.2f} us {flops / burst * 1e-6:7.1f} burst", flush=True)
    else:
        print(f"{name:44s} {sustained:9.2f} us {nbytes / sustained * 1e-3:7.0f} GB/s sustained, {burst:9.2f} us burst",
              flush=True)


def bf16(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


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

for d in (80, 72, 64, 128):
    q, k, v = (bf16(8, 4096, 16, d).transpose(1, 2) for _ in range(3))
    flops = 4.0 * 8 * 16 * 4096 * 4096 * d
    for backend, name in ((SDPBackend.CUDNN_ATTENTION, "cudnn"), (SDPBackend.FLASH_ATTENTION, "fa2")):
        def call(q=q, k=k, v=v, backend=backend):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v)
        row(f"E1 D={d} 8x4096 {name}", call, flops=flops)

for n, length in ((64, 8192), (1, 131072), (256, 1024), (8, 32768), (1, 1024)):
    q, k, v = bf16(n, 32, 1, 128), bf16(n, length, 8, 128).transpose(1, 2), bf16(n, length, 8, 128).transpose(1, 2)

    def call(q=q, k=k, v=v):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    row(f"D1 {n}x{length} contiguous cudnn", call, nbytes=4.0 * n * length * 8 * 128)
