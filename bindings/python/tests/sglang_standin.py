# SPDX-License-Identifier: Apache-2.0
"""What libattn's backend uses of SGLang 0.5.23, with the same names and signatures and nothing else: the
modules that it imports, a layer, pools. For machines on which SGLang does not install."""

from __future__ import annotations

import enum
import sys
import types
from dataclasses import dataclass
from typing import Any, Optional

import torch


class AttentionType(enum.Enum):
    DECODER = "decoder"
    DECODER_BIDIRECTIONAL = "decoder_bidirectional"
    ENCODER_ONLY = "encoder_only"


class ForwardMode(enum.IntEnum):
    EXTEND, DECODE, MIXED, IDLE, TARGET_VERIFY = range(1, 6)

    def is_decode(self) -> bool:
        return self == ForwardMode.DECODE

    def is_idle(self) -> bool:
        return self == ForwardMode.IDLE

    def is_mixed(self) -> bool:
        return self == ForwardMode.MIXED

    def is_target_verify(self) -> bool:
        return self == ForwardMode.TARGET_VERIFY


@dataclass
class KVWriteLoc:
    loc: torch.Tensor
    swa_loc: Optional[torch.Tensor] = None
    full_loc: Optional[torch.Tensor] = None
    physical: bool = False

    @classmethod
    def for_batch(cls, forward_batch: Any, *, swa_loc: Any = None, full_loc: Any = None) -> KVWriteLoc:
        return cls(
            forward_batch.out_cache_loc, swa_loc, full_loc, physical=forward_batch.out_cache_loc_is_physical
        )


class AttentionBackend:
    def init_forward_metadata(self, forward_batch: Any) -> None:
        self.init_forward_metadata_out_graph(forward_batch)
        self.init_forward_metadata_in_graph(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None: ...

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None: ...

    def forward(
        self,
        q: Any,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> Any:
        mode = forward_batch.forward_mode
        if mode.is_idle():
            return q.new_empty(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)
        how = self.forward_decode if mode.is_decode() else self.forward_extend  # type: ignore[attr-defined]
        return how(q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **kwargs)


class RadixAttention(torch.nn.Module):
    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        scaling: float,
        num_kv_heads: int,
        layer_id: int,
        logit_cap: float = 0.0,
        v_head_dim: int = -1,
        sliding_window_size: int = -1,
        is_cross_attention: bool = False,
        attn_type: AttentionType = AttentionType.DECODER,
    ) -> None:
        super().__init__()
        self.tp_q_head_num, self.tp_k_head_num, self.tp_v_head_num = num_heads, num_kv_heads, num_kv_heads
        self.head_dim = self.qk_head_dim = head_dim
        self.v_head_dim = v_head_dim if v_head_dim != -1 else head_dim
        self.scaling, self.layer_id, self.logit_cap = scaling, layer_id, logit_cap
        self.sliding_window_size = sliding_window_size or -1
        self.is_cross_attention, self.attn_type = is_cross_attention, attn_type
        self.k_scale = self.v_scale = self.k_scale_float = self.v_scale_float = None
        self.logit_capping_method, self.xai_temperature_len = "tanh", -1


class MHATokenToKVPool:
    def __init__(
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        head_num: int,
        head_dim: int,
        layer_num: int,
        device: str,
        enable_memory_saver: bool,
        v_head_dim: Optional[int] = None,
    ) -> None:
        self.size, self.page_size, self.dtype, self.start_layer = size, page_size, dtype, 0
        self.use_hnd, self.kv_cache_layout = False, None
        self.store_dtype = torch.uint8 if dtype.itemsize == 1 else dtype
        rows = size + page_size
        self.k_buffer = [
            torch.zeros(rows, head_num, head_dim, dtype=self.store_dtype, device=device)
            for _ in range(layer_num)
        ]
        self.v_buffer = [
            torch.zeros(rows, head_num, v_head_dim or head_dim, dtype=self.store_dtype, device=device)
            for _ in range(layer_num)
        ]

    def get_kv_buffer(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.k_buffer[layer_id].view(self.dtype), self.v_buffer[layer_id].view(self.dtype)

    def set_kv_buffer(
        self,
        layer: Any,
        loc_info: Any,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
        k_scale: Any = None,
        v_scale: Any = None,
    ) -> None:
        if cache_k.dtype != self.dtype:
            cache_k = (cache_k if k_scale is None else cache_k / k_scale).to(self.dtype)
            cache_v = (cache_v if v_scale is None else cache_v / v_scale).to(self.dtype)
        self.k_buffer[layer.layer_id][loc_info.loc] = cache_k.view(self.store_dtype)
        self.v_buffer[layer.layer_id][loc_info.loc] = cache_v.view(self.store_dtype)


class MLATokenToKVPool:
    def __init__(
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        kv_lora_rank: int,
        qk_rope_head_dim: int,
        layer_num: int,
        device: str,
        enable_memory_saver: bool,
    ) -> None:
        self.size, self.page_size, self.dtype, self.start_layer = size, page_size, dtype, 0
        self.kv_lora_rank = kv_lora_rank
        self.kv_buffer = [
            torch.zeros(size + page_size, 1, kv_lora_rank + qk_rope_head_dim, dtype=dtype, device=device)
            for _ in range(layer_num)
        ]

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.kv_buffer[layer_id]

    def set_kv_buffer(self, layer: Any, loc_info: Any, cache_k: torch.Tensor, cache_v: torch.Tensor) -> None:
        self.kv_buffer[layer.layer_id][loc_info.loc] = cache_k

    def set_mla_kv_buffer(
        self, layer: Any, loc_info: Any, cache_k_nope: torch.Tensor, cache_k_rope: torch.Tensor
    ) -> None:
        self.kv_buffer[layer.layer_id][loc_info.loc] = torch.cat(
            [x.view(x.shape[0], 1, -1) for x in (cache_k_nope, cache_k_rope)], dim=-1
        )


class SWAKVPool:
    """A pool for layers with the whole context, and a smaller one for layers with a window."""

    def __init__(
        self,
        size: int,
        size_swa: int,
        page_size: int,
        dtype: torch.dtype,
        head_num: int,
        head_dim: int,
        swa_attention_layer_ids: list[int],
        full_attention_layer_ids: list[int],
        device: str,
    ) -> None:
        self.page_size, self.dtype, self.swa_layer_nums = page_size, dtype, len(swa_attention_layer_ids)

        def pool(rows: int, layers: list[int]) -> MHATokenToKVPool:
            return MHATokenToKVPool(rows, page_size, dtype, head_num, head_dim, len(layers), device, False)

        self.pools = {
            False: pool(size, full_attention_layer_ids),
            True: pool(size_swa, swa_attention_layer_ids),
        }
        self.layers_mapping = {n: (i, False) for i, n in enumerate(full_attention_layer_ids)}
        self.layers_mapping.update({n: (i, True) for i, n in enumerate(swa_attention_layer_ids)})
        self.full_to_swa_index_mapping: Any = None

    def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.full_to_swa_index_mapping[kv_indices]
        return found

    def get_kv_buffer(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        number, is_swa = self.layers_mapping[layer_id]
        return self.pools[is_swa].get_kv_buffer(number)

    def set_kv_buffer(
        self,
        layer: Any,
        loc_info: Any,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
        k_scale: Any = 1.0,
        v_scale: Any = 1.0,
    ) -> None:
        number, is_swa = self.layers_mapping[layer.layer_id]
        where = KVWriteLoc(loc_info.swa_loc if is_swa else loc_info.loc)
        self.pools[is_swa].set_kv_buffer(types.SimpleNamespace(layer_id=number), where, cache_k, cache_v)


ATTENTION_BACKENDS: dict[str, Any] = {}


def register_attention_backend(name: str) -> Any:
    def decorator(fn: Any) -> Any:
        ATTENTION_BACKENDS[name] = fn
        return fn

    return decorator


def install() -> None:
    """Puts the modules that libattn.sglang imports into sys.modules."""
    choices: list[str] = ["triton"]
    srt = "sglang.srt"
    for name, members in {
        "sglang": {},
        srt: {},
        f"{srt}.arg_groups": {},
        f"{srt}.arg_groups.choices": {
            "ATTENTION_BACKEND_CHOICES": choices,
            "add_attention_backend_choices": choices.extend,
        },
        f"{srt}.layers": {},
        f"{srt}.layers.attention": {},
        f"{srt}.layers.attention.attention_registry": {
            "ATTENTION_BACKENDS": ATTENTION_BACKENDS,
            "register_attention_backend": register_attention_backend,
        },
        f"{srt}.layers.attention.base_attn_backend": {"AttentionBackend": AttentionBackend},
        f"{srt}.layers.radix_attention": {"RadixAttention": RadixAttention, "AttentionType": AttentionType},
        f"{srt}.mem_cache": {},
        f"{srt}.mem_cache.memory_pool": {
            "KVWriteLoc": KVWriteLoc,
            "MHATokenToKVPool": MHATokenToKVPool,
            "MLATokenToKVPool": MLATokenToKVPool,
        },
        f"{srt}.mem_cache.swa_memory_pool": {"SWAKVPool": SWAKVPool},
        f"{srt}.model_executor": {},
        f"{srt}.model_executor.forward_batch_info": {"ForwardMode": ForwardMode},
    }.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        sys.modules[name] = module
