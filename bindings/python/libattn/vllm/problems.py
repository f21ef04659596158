# SPDX-License-Identifier: Apache-2.0
"""vLLM's layers as libattn's problems, and the process's context."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionType

import libattn

from . import outputs

logger = init_logger(f"vllm.{__name__}")  # below the logger that vLLM sets up

_ROLES = {
    AttentionType.DECODER: "decoder",
    AttentionType.ENCODER: "encoder",
    AttentionType.ENCODER_ONLY: "encoder_only",
    AttentionType.ENCODER_DECODER: "encoder_decoder",
}
_CACHE_DTYPES = {"fp8": "fp8_e4m3"}  # vLLM's names that are not libattn's
_LOG = {"error": logger.error, "warn": logger.warning, "info": logger.info, "debug": logger.debug}


@functools.lru_cache(maxsize=1)
def _context_of(pid: int) -> libattn.Context:
    return libattn.Context(log=lambda level, text: _LOG[level]("libattn: %s", text))


def context() -> libattn.Context:
    """This process's context; its configuration is the system's and $ATTN_CONFIG."""
    return _context_of(os.getpid())


def cache_dtype_of(kv_cache_dtype: str | None) -> str:
    """libattn's name of vLLM's cache dtype; ValueError if it has none."""
    name = _CACHE_DTYPES.get(kv_cache_dtype or "auto", kv_cache_dtype or "auto")
    if name.upper() not in libattn.KVDType.__members__:
        known = ", ".join(k.lower() for k in libattn.KVDType.__members__)
        raise ValueError(f"libattn knows no cache dtype '{name}'; it knows {known}")
    return name


def device_now() -> libattn.Device:
    """The device that vLLM runs on, without touching it: classes are asked before workers exist."""
    if current_platform.device_type == "cpu":
        return libattn.Device("cpu")
    capability = current_platform.get_device_capability()
    if capability is None:
        return libattn.Device("cpu")
    return libattn.Device(f"sm_{capability.to_int()}")


def problem_of(
    *,
    attn_type: str = AttentionType.DECODER,
    role: str | None = None,
    dtype: torch.dtype,
    kv_cache_dtype: str | None = None,
    use_non_causal: bool = False,
    features: tuple[str, ...] = (),
    output: outputs.Output | None = None,
    **members: Any,
) -> libattn.Problem:
    """The problem of a layer; members are attn_problem_t's."""
    role = role or _ROLES[AttentionType(attn_type)]
    mask = "full" if role.startswith("encoder") else "per_request" if use_non_causal else "causal"
    if role in ("encoder", "encoder_only"):
        kv_cache_dtype = None  # they have no cache
    if output is not None:
        members["out_dtype"], features = output.dtype, (*features, output.feature)
    return libattn.Problem(
        role=role,
        mask=mask,
        dtype=dtype,
        kv_cache_dtype=cache_dtype_of(kv_cache_dtype),
        features=list(features),
        **members,
    )


def refusal(selection: libattn.Selection) -> str:
    """Why nobody serves a problem: each backend with its reasons."""
    said = [f"{c.backend}: {'; '.join(r.text for r in c.reasons)}" for c in selection.candidates if c.reasons]
    return " | ".join(said) or "no backend is in the priority list"


def open_group(problem: libattn.Problem, device: torch.device) -> libattn.Group:
    """Opens it; what nobody serves is NotImplementedError with the reasons."""
    try:
        return context().open_group(problem, device=device)
    except libattn.UnsupportedError as error:
        assert error.selection is not None
        raise NotImplementedError(
            f"libattn serves no such layer: {problem}: {refusal(error.selection)}"
        ) from None


@functools.lru_cache(maxsize=4096)
def _refusal_of(problem: str, pid: int) -> str | None:
    selection = context().select(problem, device_now())
    return None if selection else refusal(selection)


def why_not(**description: Any) -> str | None:
    """None if libattn serves a layer on this machine, else the reasons. description: problem_of's arguments;
    what is not given is a plain decoder's."""
    given = {"dtype": torch.bfloat16, "num_heads": 8, "num_kv_heads": 8, "head_size": 64, **description}
    given.setdefault("scale", given["head_size"] ** -0.5)
    try:
        problem = problem_of(**given)
    except ValueError as error:
        return str(error)
    return _refusal_of(str(problem), os.getpid())


def cache_bytes_of(spec: Any) -> int:
    """Bytes of one token of one head in a cache, with its scales, as libattn lays it out."""
    mode = spec.kv_quant_mode.name.lower()
    problem = problem_of(
        dtype=torch.bfloat16,
        kv_cache_dtype=mode,
        num_heads=1,
        num_kv_heads=1,
        head_size=spec.head_size,
        head_size_v=spec.head_size_v,
        scale=1.0,
    )
    return libattn.plan.kv_spec(problem, 16).page_bytes // 16


def lengths_of(c: Any, n: int, device: torch.device) -> dict[str, Any]:
    """new_batch's lengths of the first n requests of vLLM's common metadata c."""
    given: dict[str, Any] = {"query_start_loc": c.query_start_loc_cpu[: n + 1]}
    lens = c.seq_lens if device.type == "cpu" else c.seq_lens_cpu_upper_bound
    if lens is None:
        raise NotImplementedError("libattn plans batches on the host: vLLM gave no seq_lens_cpu_upper_bound")
    given["seq_lens"] = lens[:n]
    if device.type != "cpu":
        given["query_start_loc_device"], given["seq_lens_device"] = c.query_start_loc[: n + 1], c.seq_lens[:n]
    return given
