#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How the scripts of peers measure: burst is the median of about 12 ms after 120 ms of rest, sustained the median of 260
ms after 200 ms of the same load; graph replays. Arguments: only rows whose name contains one of these texts."""
import sys
import time

import torch


texts = sys.argv[1:]


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
    if texts and not any(text in name for text in texts):
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
