#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call from Python costs beyond the C call: microseconds of processor time, the best of some runs.

    python3 bench_overhead.py [--framework torch|numpy|bytes] [--repeat N] [--max MICROSECONDS]

The same prepared structs are handed to the same C function from a C program compiled here, so that both sides
do the same work; the difference is the binding. --max: fail if a call of the hot path costs more than this.
"""

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time

import libattn
from libattn import _load

LOOP = r"""
#define _GNU_SOURCE
#include <stdint.h>
#include <time.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec * 1e6 +
t.tv_nsec * 1e-3; } double loop5(int (*f)(void *, void *, void *, void *, void *), void *a, void *b, void *c,
void *d, void *e, int n) {
    double start = now();
    for (int i = 0; i < n; i++) if (f(a, b, c, d, e)) return -1;
    return (now() - start) / n;
}
double loop4(int (*f)(void *, void *, void *, void *), void *a, void *b, void *c, void *d, int n) {
    double start = now();
    for (int i = 0; i < n; i++) if (f(a, b, c, d)) return -1;
    return (now() - start) / n;
}
"""


def c_loops():
    with tempfile.TemporaryDirectory() as folder:
        source, made = os.path.join(folder, "loop.c"), os.path.join(folder, "loop.so")
        with open(source, "w", encoding="utf-8") as file:
            file.write(LOOP)
        subprocess.run(
            [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", made, source], check=True
        )
        loops = ctypes.CDLL(made)
    for name, count in (("loop5", 6), ("loop4", 5)):
        function = getattr(loops, name)
        function.restype, function.argtypes = ctypes.c_double, [ctypes.c_void_p] * count + [ctypes.c_int]
    return loops


def tensors(framework, *shapes):
    if framework == "torch":
        import torch

        return [torch.randn(*shape) for shape in shapes]
    if framework == "numpy":
        import numpy

        return [numpy.random.default_rng(1).standard_normal(shape).astype("float32") for shape in shapes]
    made = []
    for shape in shapes:
        n = 1
        for size in shape:
            n *= size
        made.append(memoryview(bytearray(4 * n)).cast("f", list(shape)))
    return made


def python_loop(function, n):
    start = time.thread_time()
    for _ in range(n):
        function()
    return (time.thread_time() - start) * 1e6 / n


def main():
    parser = argparse.ArgumentParser(description="What a call from Python costs beyond the C call.")
    parser.add_argument("--framework", choices=("torch", "numpy", "bytes"), default="torch")
    parser.add_argument("--repeat", type=int, default=41)
    parser.add_argument("--max", type=float, default=0.0)
    options = parser.parse_args()
    loops = c_loops()
    with libattn.Context("[option cpu]\nnum_threads = 1\n") as context:
        group = context.open_group(
            role="decoder",
            mask="causal",
            dtype="float32",
            num_heads=1,
            num_kv_heads=1,
            head_size=32,
            scale=0.1,
            block_size=16,
        )
        layer = group.create_layer("model.layers.0.attn").bind(group.new_cache(4))
        q, k, v, out = tensors(options.framework, (1, 1, 32), (1, 1, 32), (1, 1, 32), (1, 1, 32))
        arguments = dict(query_start_loc=[0, 1], seq_lens=[1], block_table=[[1]])
        batch = group.new_batch(**arguments)
        space = group.build_metadata(batch)
        layer.update_kv_cache(k, v)
        layer.forward(q, k, v, output=out)
        error, library = group._calls.error.at, _load.library

        def at(name):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value

        h, n = layer.handle, 2000
        rows = [
            (
                "build_metadata(batch)",
                lambda: group.build_metadata(batch),
                lambda: loops.loop5(
                    at("attn_group_build_metadata"),
                    group.handle,
                    batch.address,
                    space.address,
                    None,
                    error,
                    n,
                ),
            ),
            (
                "forward(q, k, v, output=out)",
                lambda: layer.forward(q, k, v, output=out),
                lambda: loops.loop5(
                    at("attn_layer_forward"), h, layer._struct.forward_args, space.address, None, error, n
                ),
            ),
            (
                "update_kv_cache(k, v)",
                lambda: layer.update_kv_cache(k, v),
                lambda: loops.loop4(
                    at("attn_layer_update_kv_cache"), h, layer._struct.update_args, None, error, n
                ),
            ),
            ("new_batch(..), once a step", lambda: group.new_batch(**arguments), lambda: 0.0),
        ]
        how = "compiled" if _load.fast else "ctypes"
        python = sys.version.split()[0]
        print(f"libattn {libattn.version()}, Python {python}, {options.framework}, {how} hot path")
        print(f"microseconds of processor time, best of {options.repeat}")
        print(f"  {'call':<32}{'Python':>9}{'C':>9}{'binding':>9}")
        is_slow = False
        for name, in_python, in_c in rows:
            pairs = [(python_loop(in_python, n), in_c()) for _ in range(options.repeat)]
            whole, inner = (min(column) for column in zip(*pairs, strict=True))
            cost = whole - inner
            print(f"  {name:<32}{whole:9.2f}{inner:9.2f}{cost:9.2f}")
            is_slow |= bool(options.max) and inner > 0 and cost > options.max
    return int(is_slow)


if __name__ == "__main__":
    sys.exit(main())
