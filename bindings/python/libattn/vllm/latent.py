# SPDX-License-Identifier: Apache-2.0
"""MLA models: libattn attends over the latent cache; vLLM projects queries and outputs, and attends to prompts
in its own dense form. On CPUs in the place of CPU_MLA, else what CUSTOM is for such a model."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.logger import init_logger
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonImpl,
    MLACommonMetadataBuilder,
)
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend, CPUMLAImpl

import libattn

from .graphs import Graphs, is_recorded
from .problems import device_now, lengths_of, open_group, problem_of, why_not

logger = init_logger(f"vllm.{__name__}")  # below the logger that vLLM sets up


def description(num_heads: int, kv_lora_rank: int, rope: int, scale: float) -> dict[str, Any]:
    """problem_of's arguments for absorbed queries and latent outputs."""
    return {
        "role": "mla",
        "num_heads": num_heads,
        "num_kv_heads": 1,
        "head_size": kv_lora_rank + rope,
        "kv_lora_rank": kv_lora_rank,
        "qk_rope_head_dim": rope,
        "scale": scale,
        "features": ("latent",),
    }


class _Latent:
    """What libattn computes, beside one of vLLM's classes."""

    num_heads: int
    scale: float
    kv_lora_rank: int
    qk_rope_head_dim: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.layer: libattn.Layer | None = None
        why = why_not(dtype=torch.get_default_dtype(), **self.description())
        if why is not None:
            raise NotImplementedError(f"libattn serves no layer of this model's kind: {why}")

    def description(self) -> dict[str, Any]:
        return description(self.num_heads, self.kv_lora_rank, self.qk_rope_head_dim, self.scale)

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: Any,
        layer: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        own = self.layer
        assert own is not None, "the layer was not in any builder's group"
        if isinstance(q, tuple):
            q = torch.cat(q, dim=-1)
        batch = attn_metadata.libattn_batch
        if own.group.batch is not batch:
            own.group.build_metadata(batch)
        output = q.new_empty((q.shape[0], self.num_heads, self.kv_lora_rank))
        own.forward(q, output=output, kv_cache=kv_c_and_k_pe_cache)
        return output, None

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
        *_: Any,  # skip_scale, since 0.33
    ) -> None:
        if self.layer is None or kv_cache.numel() == 0:
            return
        slots = slot_mapping.flatten()
        n = slots.shape[0]
        rope = k_pe.reshape(k_pe.shape[0], -1)
        self.layer.update_kv_cache(kv_c_normed[:n], rope[:n], slot_mapping=slots, kv_cache=kv_cache)


class CpuLatentImpl(_Latent, CPUMLAImpl): ...


class CudaLatentImpl(_Latent, MLACommonImpl[Any]):
    can_return_lse_for_decode = False


class LatentBuilder(MLACommonMetadataBuilder[Any]):
    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        """Decode steps of one token a request, as of the builder of dense layers."""
        if device_now().is_cpu:
            return AttentionCGSupport.NEVER
        given = description(128, kv_cache_spec.head_size - 64, 64, 0.1)
        given["features"] += ("capture",)
        why = why_not(dtype=vllm_config.model_config.dtype, block_size=kv_cache_spec.block_size, **given)
        if why is not None:
            logger.info_once("libattn: attention stays out of CUDA graphs: %s", why)
            return AttentionCGSupport.NEVER
        return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = vllm_config.compilation_config.static_forward_context
        scheduler = vllm_config.scheduler_config
        impl = layers[layer_names[0]].impl
        self.graphs, self.is_recorded = Graphs(), device.type != "cpu" and is_recorded(vllm_config)
        given = impl.description()
        if self.is_recorded:
            given["features"] += ("capture",)
        problem = problem_of(
            dtype=vllm_config.model_config.dtype,
            block_size=kv_cache_spec.block_size,
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            max_model_len=vllm_config.model_config.max_model_len,
            **given,
        )
        self.group = open_group(problem, device)
        for name in layer_names:
            if layers[name].impl.layer is not None:
                layers[name].impl.layer.close()
            layers[name].impl.layer = self.group.create_layer(name)
        logger.info_once("libattn: %s serves %s", self.group.served_by, problem)

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> Any:
        if self.is_recorded:
            self.graphs.begin(common_attn_metadata)
        return super().build_for_cudagraph_capture(common_attn_metadata)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        c = common_attn_metadata
        metadata = super().build(common_prefix_len, c, fast_build)
        n = metadata.num_decodes
        metadata.libattn_batch = None
        if n:
            in_graph = self.graphs.has(c)
            metadata.libattn_batch = self.group.new_batch(
                block_table=c.block_table_tensor[:n],
                slot_mapping=c.slot_mapping,
                capture=in_graph,
                **lengths_of(c, n, self.device),
            )
            if in_graph:
                self.graphs.build(self.group, metadata.libattn_batch)
        return metadata


class CpuLatent(CPUMLABackend):
    """In the place of CPU_MLA."""

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return why_not(dtype=torch.bfloat16, **description(8, head_size - 64, 64, 0.1)) is None

    @staticmethod
    def get_impl_cls() -> type[CpuLatentImpl]:
        return CpuLatentImpl

    @staticmethod
    def get_builder_cls() -> type[LatentBuilder]:
        return LatentBuilder


class CudaLatent(MLACommonBackend):
    """--attention-backend CUSTOM for an MLA model on a GPU."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [64]  # what FLASHMLA takes; TRITON_MLA takes it too

    @classmethod
    def supports_dtype(cls, dtype: torch.dtype) -> bool:
        return why_not(dtype=dtype, block_size=64, **description(128, 512, 64, 0.1)) is None

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        given = description(128, head_size - 64, 64, 0.1)
        return why_not(dtype=torch.bfloat16, block_size=64, **given) is None

    @staticmethod
    def get_impl_cls() -> type[CudaLatentImpl]:
        return CudaLatentImpl

    @staticmethod
    def get_builder_cls() -> type[LatentBuilder]:
        return LatentBuilder
