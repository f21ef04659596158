# SPDX-License-Identifier: Apache-2.0
"""SGLang's layers as libattn's problems, and the process's context."""

from __future__ import annotations

import functools
import logging
import os
from dataclasses import dataclass
from typing import Any, Optional

import torch

import libattn

logger = logging.getLogger(__name__)
_LOG = {"error": logger.error, "warn": logger.warning, "info": logger.info, "debug": logger.debug}
_CACHE_DTYPES = {torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2"}


@functools.lru_cache(maxsize=1)
def _context_of(pid: int) -> libattn.Context:
    return libattn.Context(log=lambda level, text: _LOG[level]("libattn: %s", text))


def context() -> libattn.Context:
    """This process's context; its configuration is the system's and $ATTN_CONFIG."""
    return _context_of(os.getpid())


@dataclass(frozen=True)
class Limits:
    """What the engine may ask for at most, and how its caches are made."""

    dtype: torch.dtype
    cache_dtype: torch.dtype
    page_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    is_captured: bool = False


def kind_of(layer: Any, uses_mla: bool) -> str:
    """How a layer of SGLang attends: "paged"; "latent", over the compressed rows of MLA; "prompt", over the
    keys of the call alone."""
    if layer.is_cross_attention:
        raise NotImplementedError(
            f"libattn's backend for SGLang serves no cross attention (layer {layer.layer_id})"
        )
    if layer.attn_type.value == "encoder_only":
        return "prompt"
    if not uses_mla:
        return "paged"
    return "latent" if layer.tp_k_head_num == 1 and layer.qk_head_dim > layer.v_head_dim >= 256 else "prompt"


def problem_of(layer: Any, kind: str, limits: Limits, has_sinks: bool) -> libattn.Problem:
    """The problem of one layer. SGLang's windows count the keys before a token, libattn's the token too."""
    window = layer.sliding_window_size if layer.sliding_window_size is not None else -1
    mask = "causal" if layer.attn_type.value == "decoder" else "full"
    if window >= 0 and mask == "full":
        raise NotImplementedError(
            f"libattn's backend for SGLang serves no window without a causal mask (layer {layer.layer_id})"
        )
    features = ["capture"] if limits.is_captured and kind != "prompt" else []
    if has_sinks:
        features.append("sink")
    if layer.logit_cap and layer.logit_capping_method != "tanh":
        raise NotImplementedError(
            f"libattn caps scores by tanh; layer {layer.layer_id} wants {layer.logit_capping_method}"
        )
    if layer.xai_temperature_len > 0:
        raise NotImplementedError(f"libattn has no temperature by length (layer {layer.layer_id})")
    given: dict[str, Any] = {
        "role": "decoder",
        "num_kv_heads": layer.tp_k_head_num,
        "head_size": layer.qk_head_dim,
        "head_size_v": layer.v_head_dim,
        "kv_cache_dtype": cache_dtype_of(limits),
        "block_size": limits.page_size,
    }
    if kind == "paged":
        features.append("separate_kv")
    elif kind == "latent":
        features.append("latent")
        given["role"], given["kv_lora_rank"] = "mla", layer.v_head_dim
        given["qk_rope_head_dim"] = layer.qk_head_dim - layer.v_head_dim
        del given["head_size_v"]
    else:
        given["role"] = "encoder_only"
        del given["kv_cache_dtype"], given["block_size"]
    return libattn.Problem(
        mask=mask,
        dtype=limits.dtype,
        num_heads=layer.tp_q_head_num,
        scale=float(layer.scaling),
        sliding_window=window + 1 if window >= 0 else None,
        logits_soft_cap=float(layer.logit_cap) or None,
        features=features,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
        **given,
    )


def cache_dtype_of(limits: Limits) -> Optional[str]:
    if limits.cache_dtype == limits.dtype:
        return "auto"
    if limits.cache_dtype not in _CACHE_DTYPES:
        raise NotImplementedError(
            f"libattn's backend for SGLang knows caches of the model's dtype ({limits.dtype}) and of fp8, "
            f"not of {limits.cache_dtype}"
        )
    return _CACHE_DTYPES[limits.cache_dtype]


def open_group(problem: libattn.Problem, device: torch.device) -> libattn.Group:
    """Opens it; what nobody serves is NotImplementedError with the reasons."""
    try:
        group = context().open_group(problem, device=device)
    except libattn.UnsupportedError as error:
        assert error.selection is not None
        said = [
            f"{c.backend}: {'; '.join(r.text for r in c.reasons)}"
            for c in error.selection.candidates
            if c.reasons
        ]
        raise NotImplementedError(
            f"libattn serves no such layer: {problem}: "
            f"{' | '.join(said) or 'no backend is in the priority list'}"
        ) from None
    logger.info("libattn: %s serves %s", group.served_by, problem)
    return group
