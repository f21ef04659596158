# SPDX-License-Identifier: Apache-2.0
"""Errors of vLLM's logprobs in 16 bits, with libattn's attention and with vLLM's own, beside float32.

    python tests/vllm_logits.py [--models qwen3] [--device cuda] [--own-backend FLASH_ATTN] [--prompts 200]

The model's weights are rounded to the 16-bit type first, so that float32 computes the same model; for a
model in fp8 (llama_fp8, with the --engine of vllm_tokens.py) float32 multiplies with the values of its fp8
weights, and rounds nothing that goes into a product. Every prompt gives the logprobs of its next token, of the whole vocabulary; printed for each backend are the root of
the mean square, the mean and the maximum of the errors, how often the likeliest token is another than
float32's, and how far apart float32 holds the two then. It fails where libattn's rms error is more than 1.1
times that of vLLM's backend. Needs vllm and transformers; without them it says so and passes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import vllm_models
import vllm_tokens


def rounded(path: Path, folder: Path, dtype: str) -> Path:
    """A copy of the model at path whose weights are in float32, of the 16-bit type's or their fp8 values."""
    import torch
    from safetensors.torch import load_file, save_file

    exact = Path(shutil.copytree(path, folder / "exact" / path.name))
    config = json.loads((exact / "config.json").read_text())
    config.pop("quantization_config", None)
    (exact / "config.json").write_text(json.dumps(config))
    for file in exact.glob("*.safetensors"):
        given = load_file(file)
        weights = {
            k: v.to(torch.float32) * given[k + "_scale"]
            if v.dtype == torch.float8_e4m3fn
            else v.to(getattr(torch, dtype)).to(torch.float32)
            for k, v in given.items()
            if not k.endswith("_scale")
        }
        save_file(weights, file, metadata={"format": "pt"})
    return exact


def asked(args: Any) -> list[list[int]]:
    """The prompts of vllm_tokens.py, then others."""
    r = random.Random(args.seed + 1)
    more = [
        [r.randrange(3, vllm_models.VOCABULARY) for _ in range(r.randrange(1, 234))]
        for _ in range(args.prompts)
    ]
    return vllm_tokens.prompts(args.seed) + more


def logprobs(
    model: Path, backend: str | None, dtype: str, args: Any, more: dict[str, Any]
) -> tuple[Any, str]:
    """([prompt, vocabulary] of the token behind each prompt, the classes that computed the attention)."""
    import gc

    import torch
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    engine = LLM(
        model=str(model),
        skip_tokenizer_init=True,
        dtype=dtype,
        max_model_len=512,
        max_num_seqs=4,
        max_num_batched_tokens=128,
        max_logprobs=-1,
        enable_prefix_caching=False,
        attention_backend=backend,
        seed=0,
        disable_log_stats=True,
        **more,
    )
    impls = vllm_tokens.attention_of(engine)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1, detokenize=False, ignore_eos=True)
    outputs = engine.generate([{"prompt_token_ids": p} for p in asked(args)], params, use_tqdm=False)
    rows = [o.outputs[0].logprobs[0] for o in outputs]
    del engine
    cleanup_dist_env_and_memory()
    gc.collect()
    table = [[row[t].logprob for t in range(vllm_models.VOCABULARY)] for row in rows]
    return torch.tensor(table, dtype=torch.float64), impls


def errors(got: Any, want: Any) -> tuple[float, str]:
    """(rms error, the line about it)."""
    off = got - want
    rms = math.sqrt(float(off.square().mean()))
    a, b = got.argmax(-1), want.argmax(-1)
    gaps = [float(want[i, b[i]] - want[i, a[i]]) for i in range(len(a)) if a[i] != b[i]]
    return rms, (
        f"rms {rms:.3g}, mean {float(off.mean()):.2g}, at most {float(off.abs().max()):.3g}; "
        f"{len(gaps)} of {len(a)} first tokens are others"
        + (f", which float32 holds at most {max(gaps):.3g} apart" if gaps else "")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default="qwen3")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="what vLLM must run on")
    parser.add_argument("--own-backend", help="vLLM's own; its default on a CPU, else FLASH_ATTN")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", default="{}", help="more of vllm.LLM's arguments, as JSON")
    parser.set_defaults(graphs="NONE")
    args = parser.parse_args()
    if vllm_tokens.is_missing():
        return 0
    vllm_tokens.environment()
    from vllm.platforms import current_platform

    if current_platform.device_type != args.device:
        print(f"1..0 # SKIP vLLM runs on {current_platform.device_type} here, not on {args.device}")
        return 0
    own = args.own_backend or (None if args.device == "cpu" else "FLASH_ATTN")
    exact_backend = None if args.device == "cpu" else "TRITON_ATTN"
    names, failed = args.models.split(","), 0
    with_options = vllm_tokens.how(args)
    args.engine = "{}"
    plain = vllm_tokens.how(args)
    print(f"1..{len(names)}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(names, 1):
            model = vllm_models.make(name, Path(scratch))
            exact = rounded(model, Path(scratch), args.dtype)
            want, _ = logprobs(exact, exact_backend, "float32", args, plain)
            rms = []
            for backend in (own, "CUSTOM"):
                got, impls = logprobs(model, backend, args.dtype, args, with_options)
                error, said = errors(got, want)
                rms.append(error)
                print(f"# {name} {args.dtype}, {impls}: {said}", flush=True)
            failed += rms[1] > 1.1 * rms[0]
            verdict = "ok" if rms[1] <= 1.1 * rms[0] else "not ok"
            print(f"{verdict} {number} - {name} {args.dtype}: rms {rms[1] / rms[0]:.3f} times", flush=True)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
