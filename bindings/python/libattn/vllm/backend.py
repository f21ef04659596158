# SPDX-License-Identifier: Apache-2.0
"""The classes that vLLM asks what is served. Every answer is that of libattn's selection."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, MultipleOf
from vllm.v1.kv_cache_interface import KVCacheLayout

from .builder import Builder
from .impl import Impl
from .problems import cache_bytes_of, device_now, why_not


class Custom(AttentionBackend):
    """--attention-backend CUSTOM."""

    forward_includes_kv_cache_update = False
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[Impl]:
        return Impl

    @staticmethod
    def get_builder_cls() -> type[Builder]:
        return Builder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(16)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """All, as calls go by strides; on CPUs heads first, so that the keys of a head are one run."""
        heads_first = device_now().is_cpu
        return tuple(sorted(KVCacheLayout, key=lambda k: k.name != ("LBHNC" if heads_first else "LBNHC")))

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        if spec.state_content_bytes is not None or not spec.kv_quant_mode.is_per_token_head:
            return spec
        return replace(spec, state_content_bytes=cache_bytes_of(spec))

    @classmethod
    def supports_dtype(cls, dtype: torch.dtype) -> bool:
        return why_not(dtype=dtype) is None

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return why_not(head_size=head_size) is None

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype: str | None) -> bool:
        return why_not(kv_cache_dtype=kv_cache_dtype) is None

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return why_not(attn_type=attn_type) is None

    @classmethod
    def supports_sink(cls) -> bool:
        return why_not(features=("sink",)) is None

    @classmethod
    def supports_alibi_sqrt(cls) -> bool:
        return why_not(features=("alibi_sqrt",)) is None

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return why_not(sliding_window=128) is None

    @classmethod
    def supports_mm_prefix(cls) -> bool:
        return why_not(features=("mm_prefix",)) is None

    @classmethod
    def supports_non_causal(cls) -> bool:
        return why_not(use_non_causal=True) is None

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return why_not(features=("batch_invariant",)) is None

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False  # batches are planned on the host

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: Any,
        *_: Any,
        **__: Any,
    ) -> str | None:
        """The reasons of every backend of libattn, in vLLM's own message."""
        if use_mla or use_sparse:
            return None  # said by vLLM: is_mla, is_sparse
        asked = (("sink", has_sink), ("mm_prefix", use_mm_prefix))
        why = why_not(
            head_size=head_size,
            dtype=dtype,
            kv_cache_dtype=kv_cache_dtype,
            block_size=block_size,
            features=tuple(name for name, wanted in asked if wanted),
        )
        return None if why is None else f"libattn: {why}"


class CpuAttn(Custom):
    """In the place of CPU_ATTN."""

    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN"


class FlashAttn(Custom):
    """In the place of FLASH_ATTN."""

    @staticmethod
    def get_name() -> str:
        return "FLASH_ATTN"


__all__ = ["CpuAttn", "Custom", "FlashAttn"]
