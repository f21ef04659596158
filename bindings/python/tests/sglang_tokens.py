# SPDX-License-Identifier: Apache-2.0
"""Greedy tokens of SGLang's own engine, with libattn's attention beside SGLang's torch_native, on a GPU its
triton, for small models of random weights.

    python tests/sglang_tokens.py [--models llama,qwen3] [--dtype float32]
    python tests/sglang_tokens.py --device cuda [--own-backend fa3] [--graphs]

Needs sglang, transformers and libattn installed with its entry point; without them it says so and passes.
On a CPU without AMX SGLang computes everything else with torch and only imports sgl_kernel, whose package
is for GPUs: if it is missing, an empty module stands in. Prompts are cut in chunks, and share prefixes. One
process for each engine. Where tokens differ, the logprobs of the first difference are compared: they may part
only at a near tie. --graphs: decode steps are captured, by both.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import vllm_models
from vllm_tokens import TIE, compare

NEW = 24


def prompts(seed: int) -> list[list[int]]:
    r = random.Random(seed)
    some = [[r.randrange(3, vllm_models.VOCABULARY) for _ in range(n)] for n in (1, 17, 64, 150, 233)]
    return [*some, some[3] + some[1], some[3] + some[2]]


def serve(model: str, backend: str, args: Any) -> None:
    """One engine: its requests together, then the longest again, out of the prefix cache."""
    import sglang

    engine = sglang.Engine(
        model_path=model,
        skip_tokenizer_init=True,
        device=args.device,
        dtype=args.dtype,
        attention_backend=backend,
        sampling_backend="pytorch",
        grammar_backend="none",
        page_size=16,
        context_length=512,
        max_total_tokens=4096,
        max_running_requests=4,
        chunked_prefill_size=128,
        disable_cuda_graph=not args.graphs,
        disable_prefill_cuda_graph=not args.prompt_graphs,
        mem_fraction_static=0.3,
        log_level="info",
    )
    asked = prompts(5)
    sampling = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
    wanted = {"sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 5}
    got = engine.generate(input_ids=asked, **wanted)
    got += engine.generate(input_ids=asked[-1:], **wanted)
    tops = [x["meta_info"]["output_top_logprobs"] for x in got]
    first = [[[pair[:2] for pair in step] for step in request] for request in tops]
    print("TOKENS " + json.dumps([[x["output_ids"], t] for x, t in zip(got, first, strict=True)]), flush=True)
    engine.shutdown()


def as_outputs(requests: list[Any]) -> list[Any]:
    """In the form of vLLM's: token_ids, and for each token the logprobs of the likeliest by their ids."""
    return [
        SimpleNamespace(
            token_ids=ids,
            logprobs=[{t: SimpleNamespace(logprob=value) for value, t in step} for step in steps],
        )
        for ids, steps in requests
    ]


def tokens(model: Path, backend: str, args: Any, scratch: Path) -> tuple[list[Any], str]:
    """Of one engine, in a process of its own; and what it said."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    if args.device == "cpu":
        environment["SGLANG_USE_CPU_ENGINE"] = "1"
    else:
        environment.setdefault("TRITON_F32_DEFAULT", "ieee")  # or its Triton kernels round float32 to TF32
    paths = [str(scratch / "more"), *sys.path[1:], os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    command = [sys.executable, __file__, "--serve", str(model), backend]
    command += ["--dtype", args.dtype, "--device", args.device, *(["--graphs"] if args.graphs else [])]
    command += ["--prompt-graphs"] if args.prompt_graphs else []
    log = (args.logs or scratch) / f"{model.name}-{backend}.log"
    with log.open("w") as out:
        subprocess.run(command, env=environment, stdout=out, stderr=subprocess.STDOUT, timeout=600)
    said = log.read_text(errors="replace")
    lines = [line for line in said.splitlines() if line.startswith("TOKENS ")]
    return (json.loads(lines[0][7:]) if lines else []), said


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="llama,qwen3")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--own-backend", help="SGLang's own; torch_native, or triton on a GPU")
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--prompt-graphs", action="store_true", help="prompts are captured too")
    parser.add_argument("--logs", type=Path, help="keeps here what the engines say")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(*args.serve, args)
        return 0
    missing = [n for n in ("sglang", "torch", "transformers") if importlib.util.find_spec(n) is None]
    if missing:
        print(f"1..0 # SKIP {', '.join(missing)} is not installed")
        return 0
    failed, models = 0, args.models.split(",")
    theirs = args.own_backend or ("torch_native" if args.device == "cpu" else "triton")
    print(f"1..{len(models)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (scratch / "more").mkdir()
        if args.device == "cpu" and importlib.util.find_spec("sgl_kernel") is None:
            (scratch / "more" / "sgl_kernel").mkdir()
            (scratch / "more" / "sgl_kernel" / "__init__.py").touch()
        for number, name in enumerate(models, 1):
            model = vllm_models.make(name, scratch)
            own, log = tokens(model, theirs, args, scratch)
            ours, said = tokens(model, "libattn", args, scratch)
            every = NEW * (len(prompts(5)) + 1)
            _, same, worst, failures = compare(as_outputs(own), as_outputs(ours), TIE[args.dtype])
            serves = re.search(r"libattn: ([A-Z_]+) serves", said)
            good = len(own) == len(ours) == len(prompts(5)) + 1 and serves is not None and not failures
            failed += not good
            print(
                f"{'ok' if good else 'not ok'} {number} - {name} {args.dtype}: {same} of {every} tokens "
                f"equal, logprobs within {worst:.2g} ({theirs} and {serves[1] if serves else 'nobody'})"
            )
            for text in failures:
                print(f"# {text}")
            for text in () if good else (log, said):
                lines = [
                    line for line in text.splitlines() if "warn" not in line.lower() and "shards:" not in line
                ]
                print("\n".join(f"#   {line[:300]}" for line in lines[-25:]))
            sys.stdout.flush()
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
