# SPDX-License-Identifier: Apache-2.0
"""What libattn's backend uses of vLLM 0.32, with the same names and signatures and nothing else: the
modules that it imports. For machines on which vLLM does not install. vllm_layers.py compares the signatures
with vLLM's."""

from __future__ import annotations

import enum
import logging
import sys
import types
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Iterator, Optional, TypeVar

import torch

M = TypeVar("M")
now: Any = None  # the configuration in force


class AttentionType(str, enum.Enum):
    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_ONLY = "encoder_only"
    ENCODER_DECODER = "encoder_decoder"


@dataclass(frozen=True)
class MultipleOf:
    base: int


class AttentionCGSupport(enum.Enum):
    ALWAYS, UNIFORM_BATCH, UNIFORM_SINGLE_TOKEN_DECODE, NEVER = 3, 2, 1, 0


class KVCacheLayout(enum.Enum):
    LBHNC = (0, 1, 2, 3, 4)
    LBNHC = (0, 1, 3, 2, 4)


class KVQuantMode(enum.IntEnum):
    NONE, FP8_PER_TENSOR = 0, 1

    @property
    def is_per_token_head(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype
    head_size_v: Optional[int] = None
    kv_quant_mode: KVQuantMode = KVQuantMode.NONE
    state_content_bytes: Optional[int] = None


class FullAttentionSpec(AttentionSpec): ...


class ChunkedLocalAttentionSpec(AttentionSpec): ...


class CrossAttentionSpec(AttentionSpec): ...


class EncoderOnlyAttentionSpec(AttentionSpec): ...


@dataclass
class CommonAttentionMetadata:
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: Any = True
    mm_req_doc_ranges: Any = None
    seq_lens_cpu_upper_bound: Optional[torch.Tensor] = None


@dataclass(frozen=True)
class QuantKey:
    """Of a scale's description, what tells the two that libattn knows from others."""

    dtype: torch.dtype
    scale: str
    scale2: Optional[str] = None
    symmetric: bool = True


kFp8StaticTensorSym = QuantKey(torch.float8_e4m3fn, "static")
kFp8DynamicTokenSym = QuantKey(torch.float8_e4m3fn, "dynamic")
kNvfp4Dynamic = QuantKey(torch.uint8, "groups of 16", "static")


class AttentionBackend: ...


class AttentionImpl(Generic[M]): ...


class AttentionMetadataBuilder(Generic[M]):
    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        self.kv_cache_spec, self.layer_names = kv_cache_spec, layer_names
        self.vllm_config, self.device = vllm_config, device

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        raise NotImplementedError

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> M:
        raise NotImplementedError

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> M:
        return self.build(common_prefix_len=0, common_attn_metadata=common_attn_metadata)


class MLACommonMetadataBuilder(AttentionMetadataBuilder[M]):
    """Of its metadata, what libattn reads: how many of the first requests are decode steps."""

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> Any:
        starts = common_attn_metadata.query_start_loc_cpu
        lens = (starts[1:] - starts[:-1]).tolist()
        decodes = next((i for i, n in enumerate(lens) if n > 1), len(lens))
        return types.SimpleNamespace(num_decodes=decodes, num_decode_tokens=sum(lens[:decodes]))


class CPUMLABackend(AttentionBackend): ...


class MLACommonBackend(AttentionBackend): ...


class CPUMLAImpl:
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: Optional[list[float]],
        sliding_window: Optional[int],
        kv_cache_dtype: str,
        logits_soft_cap: Optional[float],
        attn_type: str,
        kv_sharing_target_layer_name: Optional[str],
        **mla_args: Any,
    ) -> None:
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads, self.kv_cache_dtype = num_kv_heads, kv_cache_dtype
        for name, value in mla_args.items():
            setattr(self, name, value)

    def forward_mqa(self, q: Any, kv_c_and_k_pe_cache: Any, attn_metadata: Any, layer: Any) -> Any:
        raise NotImplementedError

    def do_kv_cache_update(
        self, kv_c_normed: Any, k_pe: Any, kv_cache: Any, slot_mapping: Any, kv_cache_dtype: str, k_scale: Any
    ) -> None:
        raise NotImplementedError


class MLACommonImpl(CPUMLAImpl, Generic[M]):
    """Only what libattn's class takes over of it."""


@contextmanager
def set_current_vllm_config(config: Any) -> Iterator[None]:
    global now
    before, now = now, config
    try:
        yield
    finally:
        now = before


class Logger(logging.Logger):
    def info_once(self, message: str, *args: Any) -> None:
        self.info(message, *args)


class CUDAGraphMode(enum.Enum):
    NONE, PIECEWISE, FULL_DECODE_ONLY = 0, 1, (2, 0)

    def has_full_cudagraphs(self) -> bool:
        return self is CUDAGraphMode.FULL_DECODE_ONLY


class Capability:
    def to_int(self) -> int:
        major, minor = torch.cuda.get_device_capability()
        return major * 10 + minor


def install(device: str) -> None:
    """Puts the modules where Python looks for vLLM's; device is the platform's."""
    here = sys.modules[__name__]

    def module(name: str, **contents: Any) -> Any:
        made = types.ModuleType(name)
        made.__path__ = []
        vars(made).update(contents)
        sys.modules[name] = made
        if "." in name:
            setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], made)
        return made

    def names(*wanted: str) -> dict[str, Any]:
        return {name: getattr(here, name) for name in wanted}

    platform = types.SimpleNamespace(device_type=device, get_device_capability=Capability)
    module("vllm")
    module("vllm.envs", VLLM_BATCH_INVARIANT=False)
    module("vllm.logger", init_logger=Logger)
    module("vllm.platforms", current_platform=platform)
    module(
        "vllm.config",
        get_current_vllm_config=lambda: now,
        set_current_vllm_config=set_current_vllm_config,
        CUDAGraphMode=CUDAGraphMode,
    )
    for name in ("v1", "v1.attention", "v1.attention.backends", "v1.attention.backends.mla"):
        module(f"vllm.{name}")
    module(
        "vllm.v1.attention.backend",
        **names("AttentionBackend", "AttentionCGSupport", "AttentionImpl", "AttentionMetadataBuilder"),
        **names("AttentionType", "CommonAttentionMetadata", "MultipleOf"),
    )
    module("vllm.v1.attention.backends.mla.cpu_mla", **names("CPUMLABackend", "CPUMLAImpl"))
    module(
        "vllm.v1.kv_cache_interface",
        **names("ChunkedLocalAttentionSpec", "CrossAttentionSpec", "EncoderOnlyAttentionSpec"),
        **names("FullAttentionSpec", "KVCacheLayout", "KVQuantMode"),
    )
    for name in ("", ".layers", ".layers.attention", ".layers.quantization", ".layers.quantization.utils"):
        module(f"vllm.model_executor{name}")
    module(
        "vllm.model_executor.layers.quantization.utils.quant_utils",
        **names("kFp8StaticTensorSym", "kNvfp4Dynamic"),
    )
    module(
        "vllm.model_executor.layers.attention.mla_attention",
        **names("MLACommonBackend", "MLACommonImpl", "MLACommonMetadataBuilder"),
    )
