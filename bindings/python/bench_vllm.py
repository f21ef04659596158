# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of a whole model in vLLM: its own backend against libattn, prefill and decode apart.

    python bench_vllm.py [--prompt 128 --prompt 3000] [--requests 4] [--rounds 3] [--model FOLDER]
    python bench_vllm.py --device cuda [--own-backend FLASH_ATTN] [--graphs FULL_DECODE_ONLY] [--decode 128]

Both engines are alive, each in its own process, and run in turn; the best of the rounds counts. Prefill ends
with the first token of the last request, where decode begins. The ratio by CPU time means something on a busy
machine too.
Without --model it is a random Llama of bfloat16: hidden size 1024, 6 layers, 16 query and 4 KV heads of 64; on a
GPU 16 layers of Llama 3 8B's size (32 query and 8 KV heads of 128), whose weights vLLM makes up.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

VOCABULARY = 512
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 8192,
}
LARGE = {  # of a GPU
    "vocab_size": VOCABULARY,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
}


def make_model(folder: Path, device: str) -> Path:
    import torch
    import transformers

    if device == "cuda":  # no weights: vLLM makes them up
        config = transformers.LlamaConfig(**LARGE, architectures=["LlamaForCausalLM"], dtype="bfloat16")
        config.save_pretrained(folder)
        return folder
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def on_gpu(args: Any) -> dict[str, Any]:
    """vllm.LLM's arguments there: two engines share the device, and decode steps may be recorded."""
    memory = {"gpu_memory_utilization": 0.2, "kv_cache_memory_bytes": 4 << 30, "max_num_batched_tokens": 8192}
    sizes = sorted({1, 2, 4, args.requests})
    graphs = {"mode": 0, "cudagraph_mode": args.graphs, "cudagraph_capture_sizes": sizes}
    if args.graphs != "NONE":
        memory |= {"enforce_eager": False, "compilation_config": graphs}
    return memory | ({"load_format": "dummy"} if args.is_made_up else {})


def serve(args: Any, backend: str | None) -> None:
    """A child: reads (prompt, decode, seed) a line, answers with seconds by the clock and of the CPUs."""
    from vllm import LLM, SamplingParams

    given: dict[str, Any] = {"enforce_eager": True, "max_num_batched_tokens": 4096}
    given |= on_gpu(args) if args.device == "cuda" else {}
    requests = args.requests
    engine = LLM(
        model=args.model,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=8192,
        max_num_seqs=requests,
        enable_prefix_caching=False,
        disable_log_stats=True,
        attention_backend=backend,
        **given,
    )

    def spent(since: tuple[float, float]) -> list[float]:
        return [time.perf_counter() - since[0], time.process_time() - since[1]]

    def measure(prompts: list[Any], tokens: int) -> tuple[list[float], list[float], int, list[Any]]:
        """Seconds until each request has its first token, and after that; the tokens made after it; all."""
        params = SamplingParams(temperature=0, max_tokens=tokens, detokenize=False, ignore_eos=True)
        core, made, prefill, before = engine.llm_engine, {}, [0.0, 0.0], 0
        start = time.perf_counter(), time.process_time()
        for i, prompt in enumerate(prompts):
            core.add_request(str(i), prompt, params)
        while core.has_unfinished_requests():
            made |= {o.request_id: list(o.outputs[0].token_ids) for o in core.step()}
            if not before and len(made) == len(prompts):
                prefill, before = spent(start), sum(map(len, made.values()))
                start = time.perf_counter(), time.process_time()
        later = sum(map(len, made.values())) - before
        return prefill, spent(start), later, [made[i] for i in sorted(made)]

    print("READY", flush=True)
    for line in sys.stdin:
        length, decode, seed = json.loads(line)
        r = random.Random(seed)
        prompts = [
            {"prompt_token_ids": [r.randrange(3, VOCABULARY) for _ in range(length)]} for _ in range(requests)
        ]
        print("RESULT " + json.dumps(measure(prompts, decode + 1)), flush=True)


def answer(child: subprocess.Popen[str], word: str) -> str:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(word):
            return line[len(word) :]
    raise SystemExit(f"an engine ended with status {child.wait()}; run with --verbose to see why")


def child_environment(device: str) -> dict[str, str]:
    """What vLLM gives its workers on a CPU: torch's own OpenMP for everybody."""
    import importlib.util

    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", **os.environ}
    env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if device != "cpu":
        return env
    env.setdefault("OMP_WAIT_POLICY", "passive")  # or CPU time counts waiting
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin:
        site = Path(torch.origin).parent.parent
        found = glob.glob(str(site / "torch.libs" / "libgomp*")) + glob.glob(str(site / "torch/lib/libgomp*"))
        if found and "LD_PRELOAD" not in env:
            env["LD_PRELOAD"] = found[0]
    return env


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prompt", type=int, action="append", help="prompt length; may be repeated")
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--decode", type=int, default=32, help="decode steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="what vLLM runs on")
    parser.add_argument("--own-backend", help="vLLM's own; without it, its default")
    parser.add_argument(
        "--graphs", default="NONE", help="on a GPU vLLM's cudagraph_mode, as FULL_DECODE_ONLY"
    )
    parser.add_argument("--verbose", action="store_true", help="shows what the engines log")
    parser.add_argument("--serve", choices=("own", "libattn"), help=argparse.SUPPRESS)
    parser.add_argument("--is-made-up", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args, "CUSTOM" if args.serve == "libattn" else args.own_backend)
        return
    with tempfile.TemporaryDirectory() as scratch:
        model = args.model or str(make_model(Path(scratch), args.device))
        more = ["--device", args.device, "--graphs", args.graphs]
        more += ["--own-backend", args.own_backend] if args.own_backend else []
        more += [] if args.model else ["--is-made-up"]
        children = {
            name: subprocess.Popen(
                [
                    sys.executable,
                    __file__,
                    "--serve",
                    name,
                    "--model",
                    model,
                    "--requests",
                    str(args.requests),
                    *more,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if args.verbose else subprocess.DEVNULL,
                text=True,
                env=child_environment(args.device),
            )
            for name in ("own", "libattn")
        }
        try:
            for child in children.values():
                answer(child, "READY")
            compare(children, args)
        finally:
            for child in children.values():
                child.kill()
                child.wait()


def compare(children: dict[str, Any], args: Any) -> None:
    print("| prompt | part | vLLM's own | libattn | ratio | by CPU time | equal tokens |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for length in args.prompt or [128, 3000]:
        # of prefill and decode: by the clock and by CPU time
        rate = {name: [[0.0, 0.0], [0.0, 0.0]] for name in children}
        equal = total = 0
        for seed in range(args.rounds + 1):
            tokens = []
            for name, child in children.items():
                child.stdin.write(json.dumps([length, args.decode, seed]) + "\n")
                child.stdin.flush()
                prefill, decode, later, made = json.loads(answer(child, "RESULT"))
                tokens.append([t for request in made for t in request])
                for best, n, spent in zip(rate[name], (length * args.requests, later), (prefill, decode)):
                    if seed:  # the first is a warm-up
                        best[:] = [max(r, n / s) for r, s in zip(best, spent)]
            equal += sum(a == b for a, b in zip(*tokens))
            total += len(tokens[0])
        for i, part in enumerate(("prefill", "decode")):
            own, ours = (rate[name][i] for name in ("own", "libattn"))
            print(
                f"| {length} | {part} | {own[0]:.0f} | {ours[0]:.0f} | {ours[0] / own[0]:.2f} "
                f"| {ours[1] / own[1]:.2f} | {equal} of {total} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
