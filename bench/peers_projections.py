#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The two projections of absorbed latent attention by cuBLAS (torch.bmm), beside the columns "absorb" and "values" of
mla_decode_bench: bfloat16, latent 512, nope and value 128, weights as kv_b_proj lies in memory, a batch entry a head.
Replays of a graph that repeats one of them 20 times, median of nine."""
import torch

REPEATS = 20


def time_us(call):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(REPEATS):
            call()
    for _ in range(20):
        graph.replay()
    times = []
    for _ in range(9):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000 / REPEATS)
    return sorted(times)[4]


def main():
    options = {"device": "cuda", "dtype": torch.bfloat16}
    torch.manual_seed(0)
    print(torch.__version__, torch.cuda.get_device_name())
    for heads in (16, 64, 128):
        for tokens in (1, 64, 128):
            kv_b = torch.randn(heads, 256, 512, **options) * 0.04
            nope = torch.randn(tokens, heads, 192, **options)[..., :128].transpose(0, 1)
            latent = torch.randn(tokens, heads, 512, **options).transpose(0, 1)
            absorbed = torch.empty(heads, tokens, 512, **options)
            values = torch.empty(heads, tokens, 128, **options)
            w_uk, w_uv = kv_b[:, :128], kv_b[:, 128:].transpose(1, 2)
            absorb_us = time_us(lambda: torch.bmm(nope, w_uk, out=absorbed))
            values_us = time_us(lambda: torch.bmm(latent, w_uv, out=values))
            print(f"heads {heads} tokens {tokens}: absorb {absorb_us:.1f} us, values {values_us:.1f} us")


if __name__ == "__main__":
    main()
