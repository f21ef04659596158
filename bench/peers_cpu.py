#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The attention that torch carries for CPUs, on the workloads of cpu_kernels_bench: scaled_dot_product_attention with
its flash kernel and with its unfused one, grouped heads. Decode reads its keys contiguously, which is the easier task:
torch has no paged cache. Layers alternate so that the last one's keys are not in the cache of the CPU. Arguments: the
number of threads, then texts, of which a row's name has to contain one. Prints the median and the shortest time."""
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

# name, dtype, query heads, KV heads, head size, query tokens, keys, causal
ROWS = [
    ("decode-bf16", torch.bfloat16, 32, 8, 128, 1, 8192, False),
    ("decode-f16", torch.float16, 32, 8, 128, 1, 8192, False),
    ("short-bf16", torch.bfloat16, 32, 8, 128, 1, 512, False),
    ("prefill-bf16", torch.bfloat16, 32, 8, 128, 4096, 4096, True),
    ("prefill-f32", torch.float32, 32, 8, 128, 4096, 4096, True),
    ("vision-bf16", torch.bfloat16, 16, 16, 72, 5776, 5776, False),
    ("vision-f32", torch.float32, 16, 16, 72, 5776, 5776, False),
]
BACKENDS = [("flash", SDPBackend.FLASH_ATTENTION), ("unfused", SDPBackend.MATH)]


def measure(dtype, heads, kv_heads, size, tokens, keys, causal, backend):
    decode = tokens == 1
    layers = (8 if keys > 1024 else 64) if decode else 1
    q = torch.randn(1, heads, tokens, size).to(dtype)
    cache = [torch.randn(2, 1, kv_heads, keys, size).to(dtype) for _ in range(layers)]
    repeats, times = 24 if decode else 3, []
    with torch.no_grad(), sdpa_kernel(backend):
        for i in range(-1, repeats):
            k, v = cache[i % layers]
            start = time.perf_counter()
            scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv_heads)
            if i >= 0:
                times.append(time.perf_counter() - start)
    times.sort()
    return times[len(times) // 2], times[0]


def main():
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else torch.get_num_threads())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    for name, dtype, heads, kv_heads, size, tokens, keys, causal in ROWS:
        if len(sys.argv) > 2 and not any(text in name for text in sys.argv[2:]):
            continue
        for label, backend in BACKENDS:
            if label == "unfused" and tokens > 1:
                continue  # its scores take gigabytes
            try:
                middle, best = measure(dtype, heads, kv_heads, size, tokens, keys, causal, backend)
            except RuntimeError as error:
                print(f"{name:20} {label:8} refused: {str(error).splitlines()[0]}", flush=True)
                continue
            pairs = tokens * (tokens + 1) / 2 if causal else tokens * keys
            work, unit = 4 * heads * size * pairs, "GFLOP/s"
            if tokens == 1:
                work, unit = 2 * kv_heads * keys * size * dtype.itemsize, "GB/s"
            print(f"{name:20} {label:8} {middle * 1e3:9.3f} ms {work / middle / 1e9:7.1f} {unit} | best {best * 1e3:.3f} ms",
                  flush=True)


main()
