# SPDX-License-Identifier: Apache-2.0
"""Greedy tokens of vLLM on libattn beside those of vLLM's own backend, for small models of random weights.

    python tests/vllm_tokens.py [--models llama,gemma2] [--dtype float32] [--kv-cache-dtype fp8]
    python tests/vllm_tokens.py --device cuda [--own-backend TRITON_ATTN] [--graphs FULL_DECODE_ONLY]

Needs vllm and transformers; without them it says so and passes. Prompts are of several lengths, two with a
common prefix; prefills are cut in chunks. Where tokens differ, the logprobs of the first difference are
compared: they may part only at a near tie. Both engines run in this process. --engine takes what else is
handed to vllm.LLM, as JSON. Outputs that the attention quantises, llama_fp8 being a model for them:

    --models llama_fp8 --dtype bfloat16 --engine '{"enforce_eager": false, "compilation_config": {"mode": 3,
      "cudagraph_mode": "NONE", "splitting_ops": [], "custom_ops": ["+quant_fp8"],
      "pass_config": {"fuse_attn_quant": true, "eliminate_noops": true}}}'
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import vllm_models

TIE = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02}  # logprobs closer than this are a tie


def environment() -> None:
    """What vLLM reads at its import."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # apply_model sends a function
    os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")  # or vLLM's Triton kernels round float32 to TF32


def prompts(seed: int) -> list[list[int]]:
    r = random.Random(seed)
    some = [[r.randrange(3, vllm_models.VOCABULARY) for _ in range(n)] for n in (1, 17, 64, 150, 233)]
    common = some[3]  # longer than a cache block
    return [*some, common + some[1], common + some[2]]


def how(args: Any) -> dict[str, Any]:
    """What else vllm.LLM is told."""
    more: dict[str, Any] = {"enforce_eager": args.graphs == "NONE"}
    if args.device == "cuda":  # others may use the device, so no memory is measured
        more |= {"gpu_memory_utilization": 0.03, "kv_cache_memory_bytes": 256 << 20}
    if args.graphs != "NONE":
        pieces = "PIECEWISE" in args.graphs  # graphs of pieces are cut by torch.compile
        sizes = {"cudagraph_capture_sizes": [1, 2, 4]}
        more["compilation_config"] = {"mode": 3 if pieces else 0, "cudagraph_mode": args.graphs, **sizes}
    return more | json.loads(args.engine)


def attention_of(engine: Any) -> str:
    """The classes that compute the attention of a vllm.LLM's model, libattn's with what their outputs are."""
    impls: set[str] = set()

    def look(m: Any) -> None:
        for x in (x.impl for x in m.modules() if hasattr(x, "impl")):
            writes = getattr(x, "output", None)  # libattn's say what the model's calls quantise
            name = f"{type(x).__module__}.{type(x).__name__}"
            impls.add(f"{name} of {writes.dtype}" if writes is not None else name)

    engine.apply_model(look)
    return ", ".join(sorted(impls))


def run(model: Path, backend: str | None, args: Any) -> tuple[list[Any], str]:
    """(outputs, the class that computed the attention)."""
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    engine = LLM(
        model=str(model),
        skip_tokenizer_init=True,
        dtype=args.dtype,
        kv_cache_dtype=args.kv_cache_dtype,
        max_model_len=512,
        max_num_seqs=4,
        max_num_batched_tokens=args.max_num_batched_tokens,
        attention_backend=backend,
        seed=0,
        disable_log_stats=True,
        **how(args),
    )
    impls = attention_of(engine)
    params = SamplingParams(
        temperature=0, max_tokens=args.tokens, logprobs=5, detokenize=False, ignore_eos=True
    )
    given = [{"prompt_token_ids": p} for p in prompts(args.seed)]
    outputs = engine.generate(given, params, use_tqdm=False)
    again = engine.generate(given[3:], params, use_tqdm=False)  # out of the prefix cache
    del engine
    cleanup_dist_env_and_memory()
    gc.collect()
    return [o.outputs[0] for o in (*outputs, *again)], impls


def own_backend(name: str, args: Any) -> str | None:
    if args.own_backend or args.device == "cpu":
        return args.own_backend
    return "TRITON_MLA" if name == "deepseek" else "TRITON_ATTN"


def compare(own: list[Any], ours: list[Any], tie: float) -> tuple[int, int, float, list[str]]:
    """(equal requests, equal tokens before a difference, largest difference of logprobs there, failures)."""
    equal = same = 0
    worst, failures = 0.0, []
    for i, (a, b) in enumerate(zip(own, ours)):
        x, y = list(a.token_ids), list(b.token_ids)
        at = next((k for k, (p, q) in enumerate(zip(x, y)) if p != q), len(x))
        equal += at == len(x)
        same += at
        for k in range(at):
            worst = max(worst, abs(a.logprobs[k][x[k]].logprob - b.logprobs[k][x[k]].logprob))
        if at == len(x):
            continue
        here, there = a.logprobs[at], b.logprobs[at]
        if y[at] not in here or x[at] not in there:
            failures.append(
                f"request {i} token {at}: {x[at]} against {y[at]}, not even in the other's first five"
            )
            continue
        gap = max(here[x[at]].logprob - here[y[at]].logprob, there[y[at]].logprob - there[x[at]].logprob)
        if gap > tie:
            failures.append(f"request {i} token {at}: {x[at]} against {y[at]}, {gap:.4f} apart: no tie")
    if worst > tie:
        failures.append(f"logprobs of equal tokens differ by {worst:.5f}; expected at most {tie}")
    return equal, same, worst, failures


def is_missing() -> bool:
    """Says as TAP which package a test of vLLM lacks, if it lacks one."""
    missing = [name for name in ("vllm", "torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"1..0 # SKIP {', '.join(missing)} is not installed")
    return bool(missing)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    plain = ",".join(name for name in vllm_models.MODELS if not name.endswith("_fp8"))
    parser.add_argument("--models", default=plain)
    parser.add_argument("--dtype", default="float32", choices=TIE)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="what vLLM must run on")
    parser.add_argument(
        "--own-backend", help="vLLM's own; its default on a CPU, else TRITON_ATTN, TRITON_MLA"
    )
    parser.add_argument("--graphs", default="NONE", help="vLLM's cudagraph_mode, as FULL_DECODE_ONLY")
    parser.add_argument("--engine", default="{}", help="more of vllm.LLM's arguments, as JSON")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--own-kv-cache-dtype", help="vLLM's own run with another cache (default: the same)")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--tie", type=float, help="logprobs closer than this are a tie")
    parser.add_argument("--max-num-batched-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keeps the models here")
    args = parser.parse_args()
    if is_missing():
        return 0
    environment()
    from vllm.platforms import current_platform

    if current_platform.device_type != args.device:
        print(f"1..0 # SKIP vLLM runs on {current_platform.device_type} here, not on {args.device}")
        return 0
    names = args.models.split(",")
    print(f"1..{len(names)}", flush=True)
    failed, tie = 0, args.tie or TIE[args.dtype]
    ours_dtype, own_dtype = args.kv_cache_dtype, args.own_kv_cache_dtype or args.kv_cache_dtype
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(names, 1):
            model = vllm_models.make(name, args.folder or Path(scratch))
            start = time.time()
            try:
                args.kv_cache_dtype = own_dtype
                own, own_class = run(model, own_backend(name, args), args)
                args.kv_cache_dtype = ours_dtype
                ours, our_class = run(model, "CUSTOM", args)
            except Exception as error:  # noqa: BLE001 - the other models still run
                traceback.print_exc()
                failed += 1
                print(f"not ok {number} - {name} {args.dtype}: {type(error).__name__}: {error}", flush=True)
                continue
            equal, same, worst, failures = compare(own, ours, tie)
            if "libattn" not in our_class or "libattn" in own_class:
                failures.append(f"the attention was computed by {own_class} and {our_class}")
            failed += bool(failures)
            verdict = "not ok" if failures else "ok"
            print(
                f"{verdict} {number} - {name} {args.dtype}: {equal} of {len(own)} requests "
                f"and {same} of {len(own) * args.tokens} tokens equal, logprobs within {worst:.2g} "
                f"({own_class} and {our_class}, {time.time() - start:.0f} s)",
                flush=True,
            )
            for text in failures:
                print(f"# {text}", flush=True)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
