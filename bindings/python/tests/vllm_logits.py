# SPDX-License-Identifier: Apache-2.0
"""Errors of vLLM's logprobs in 16 bits, with libattn's attention and with vLLM's own, beside float32.

    python tests/vllm_logits.py [--models qwen3] [--device cuda] [--own-backend FLASH_ATTN] [--prompts 200]

The model's weights are rounded to the 16-bit type first, so that float32 computes the same model. Every
prompt gives the logprobs of its next token, of the whole vocabulary; printed for each backend are the root of
the mean square, the mean and the maximum of the errors, how often the likeliest token is another than
float32's, and how far apart float32 holds the two then. It fails where libattn's rms error is more than 1.1
times that of vLLM's backend. Needs vllm and transformers; without them it says so and passes.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import vllm_models
import vllm_tokens


def rounded(name: str, folder: Path, dtype: str) -> Path:
    """The model's folder, its weights in float32 but of the 16-bit type's values."""
    import torch
    from safetensors.torch import load_file, save_file

    path = vllm_models.make(name, folder)
    for file in path.glob("*.safetensors"):
        weights = {k: v.to(getattr(torch, dtype)).to(torch.float32) for k, v in load_file(file).items()}
        save_file(weights, file, metadata={"format": "pt"})
    return path


def asked(args: Any) -> list[list[int]]:
    """The prompts of vllm_tokens.py, then others."""
    r = random.Random(args.seed + 1)
    more = [
        [r.randrange(3, vllm_models.VOCABULARY) for _ in range(r.randrange(1, 234))]
        for _ in range(args.prompts)
    ]
    return vllm_tokens.prompts(args.seed) + more


def logprobs(model: Path, backend: str | None, dtype: str, args: Any) -> Any:
    """[prompt, vocabulary], of the token behind each prompt."""
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
        **vllm_tokens.how(args),
    )
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1, detokenize=False, ignore_eos=True)
    outputs = engine.generate([{"prompt_token_ids": p} for p in asked(args)], params, use_tqdm=False)
    rows = [o.outputs[0].logprobs[0] for o in outputs]
    del engine
    cleanup_dist_env_and_memory()
    gc.collect()
    return torch.tensor(
        [[row[t].logprob for t in range(vllm_models.VOCABULARY)] for row in rows], dtype=torch.float64
    )


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
    parser.set_defaults(graphs="NONE", engine="{}")
    args = parser.parse_args()
    if vllm_tokens.is_missing():
        return 0
    vllm_tokens.environment()
    from vllm.platforms import current_platform

    if current_platform.device_type != args.device:
        print(f"1..0 # SKIP vLLM runs on {current_platform.device_type} here, not on {args.device}")
        return 0
    own = args.own_backend or (None if args.device == "cpu" else "FLASH_ATTN")
    exact = None if args.device == "cpu" else "TRITON_ATTN"
    names, failed = args.models.split(","), 0
    print(f"1..{len(names)}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(names, 1):
            model = rounded(name, Path(scratch), args.dtype)
            want = logprobs(model, exact, "float32", args)
            theirs, said = errors(logprobs(model, own, args.dtype, args), want)
            print(f"# {name} {args.dtype}, {own or 'vLLM'}: {said}", flush=True)
            ours, said = errors(logprobs(model, "CUSTOM", args.dtype, args), want)
            print(f"# {name} {args.dtype}, libattn: {said}", flush=True)
            failed += ours > 1.1 * theirs
            verdict = "ok" if ours <= 1.1 * theirs else "not ok"
            print(f"{verdict} {number} - {name} {args.dtype}: rms {ours / theirs:.3f} times", flush=True)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
