# SPDX-License-Identifier: Apache-2.0
"""One attention layer of a vLLM model: the cache write and the attention."""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backend import AttentionImpl, AttentionType

import libattn

from . import outputs
from .problems import why_not


class Impl(AttentionImpl):
    """Made with the model; the builder, which knows the cache, gives it its libattn layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        use_alibi_sqrt: bool = False,
        **unknown: Any,
    ) -> None:
        given = [name for name, value in unknown.items() if value is not None]
        if given:
            names = ", ".join(given)
            raise NotImplementedError(f"libattn's backend for vLLM does not know a layer's {names}")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.use_alibi_sqrt = use_alibi_sqrt
        self.sliding_window = sliding_window if sliding_window and sliding_window > 0 else None
        self.kv_cache_dtype = kv_cache_dtype
        self.logits_soft_cap = logits_soft_cap or None
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        self.has_cache = attn_type not in (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)
        self.layer: libattn.Layer | None = None
        self.output: outputs.Output | None = None  # what calls write, if it is not the model's dtype
        self._scales = outputs.Scales()
        self._dtype = torch.get_default_dtype()  # the model's, while it is made
        self._cache: torch.Tensor | None = None
        # vLLM's CPU platform asks no supports_*: what is not served is refused here, before loading
        config = get_current_vllm_config()
        why = why_not(
            dtype=torch.get_default_dtype(),
            use_non_causal=config.attention_config.use_non_causal,
            **self.description(),
        )
        if why is not None:
            raise NotImplementedError(f"libattn serves no layer of this model's kind: {why}")

    def description(self) -> dict[str, Any]:
        """What problem_of needs of the layer itself."""
        features = (
            ("sink", self.sinks is not None),
            ("alibi", self.alibi_slopes is not None),
            ("alibi_sqrt", self.use_alibi_sqrt),
        )
        return {
            "attn_type": self.attn_type,
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_size": self.head_size,
            "scale": self.scale,
            "sliding_window": self.sliding_window,
            "logits_soft_cap": self.logits_soft_cap,
            "kv_cache_dtype": self.kv_cache_dtype,
            "features": tuple(name for name, wanted in features if wanted),
            "output": self.output,
        }

    def fused_output_quant_supported(self, quant_key: Any) -> bool:
        """Whether calls may be given the scales of this quantisation. vLLM may ask one layer for all."""
        output = outputs.of_key(quant_key)
        if output is None or not self.has_cache:
            return False
        description = {**self.description(), "output": output}
        return why_not(dtype=self._dtype, **description) is None

    def create(self, group: libattn.Group, layer: Any) -> None:
        """The libattn layer, with the weights and scales that have been loaded."""
        if self.layer is not None:
            self.layer.close()
        options: dict[str, Any] = {}
        if self.sinks is not None:
            options["sinks"] = self.sinks.detach().float().contiguous()
        if self.alibi_slopes is not None:
            options["alibi_slopes"] = self.alibi_slopes.to(layer._k_scale.device)
        if group.problem.kv_cache_dtype in ("fp8_e4m3", "fp8_e5m2"):
            options["k_scale"], options["v_scale"] = layer._k_scale_float, layer._v_scale_float
        self.layer = group.create_layer(
            layer.layer_name, kv_sharing_target=self.kv_sharing_target_layer_name, **options
        )
        self._cache = None

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        if self.layer is None or not self.has_cache or kv_cache.numel() == 0:
            return  # an encoder, or a profiling run
        if kv_cache is not self._cache:
            self._bind(kv_cache)
        n = slot_mapping.shape[0]
        if n:
            self.layer.update_kv_cache(key[:n], value[:n], slot_mapping=slot_mapping)

    def _bind(self, kv_cache: torch.Tensor) -> None:
        assert self.layer is not None
        self.layer.bind(kv_cache)
        self._cache = kv_cache

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        wanted = outputs.of_call(output_scale, output_block_scale)
        if attn_metadata is None:  # a profiling run, before the builder is made
            self.output = wanted if self.layer is None else self.output
            return output.fill_(0)
        assert self.layer is not None, "the layer was not in any builder's group"
        if wanted != self.output:
            self.output = wanted
            attn_metadata.builder.reopen(layer)
        own = self.layer
        n = attn_metadata.use(own.group)
        if self.has_cache and kv_cache is not self._cache:
            self._bind(kv_cache)
        if key is not None and value is not None:
            key, value = key[:n], value[:n]
        scales = {} if wanted is None else self._scales(output_scale, output_block_scale)
        own.forward(query[:n], key, value, output=output[:n], **scales)
        return output
