# SPDX-License-Identifier: Apache-2.0
"""Models of transformers whose attention does not go through its AttentionInterface: BLOOM and MPT."""

from __future__ import annotations

from types import MethodType
from typing import Any, Callable

import torch
from transformers.masking_utils import flash_attention_mask

from . import call

KEPT = "libattn_kept"  # the name whose masks are always tensors


def kept_mask(batch_size: int, q_length: int, kv_length: int, *rest: Any, **arguments: Any) -> Any:
    """The kept tokens [B, S]; all of them where no mask is given (MPT converts its mask without a look)."""
    given = arguments.get("attention_mask")
    mask = flash_attention_mask(batch_size, q_length, kv_length, *rest, **arguments)
    if mask is not None:
        return mask
    device = arguments.get("device") if given is None else given.device
    return torch.ones(batch_size, kv_length, dtype=torch.bool, device=device)


def _attend(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, dropout: float, **arguments: Any) -> Any:
    from . import attention

    output, _ = attention(
        module, query, key, value, mask, scaling=scaling, dropout=dropout, alibi_slopes=module.libattn_slopes, **arguments
    )
    return output.reshape(*output.shape[:2], -1)


def _bloom(
    self: Any, hidden_states: Any, residual: Any, alibi: Any, attention_mask: Any, layer_past: Any = None,
    use_cache: bool = False, output_attentions: bool = False, **_: Any,
) -> tuple[Any, None]:
    query, key, value = self._reshape(self.query_key_value(hidden_states))
    if layer_past is not None:
        key, value = layer_past.update(key, value, self.layer_idx)
    output = self.dense(
        _attend(self, query, key, value, attention_mask, self.inv_norm_factor, self.attention_dropout.p,
                output_attentions=output_attentions)
    )
    return residual + torch.nn.functional.dropout(output, p=self.hidden_dropout, training=self.training), None


def _mpt(
    self: Any, hidden_states: Any, position_bias: Any, past_key_values: Any = None, attention_mask: Any = None, **_: Any
) -> tuple[Any, None]:
    qkv = self.Wqkv(hidden_states)
    if self.clip_qkv:
        qkv = qkv.clamp(min=-self.clip_qkv, max=self.clip_qkv)
    query, key, value = (x.unflatten(2, (self.n_heads, self.head_dim)).transpose(1, 2) for x in qkv.chunk(3, dim=2))
    if past_key_values is not None:
        key, value = past_key_values.update(key, value, self.layer_idx)
    return self.out_proj(_attend(self, query, key, value, attention_mask, self.softmax_scale, self.attn_dropout_p)), None


def _bloom_slopes(model: Any) -> Any:
    """From the model's own ALiBi: the difference of two neighbours."""
    alibi = model.build_alibi_tensor(torch.ones(1, 2), model.num_heads, dtype=torch.float32)
    return alibi[:, 0, 1] - alibi[:, 0, 0]


def _mpt_slopes(model: Any) -> Any:
    alibi = model.build_mpt_alibi_tensor(model.num_heads, 2)
    return alibi[:, 0, 1] - alibi[:, 0, 0]


# model_type: the classes of the stack and of its attention, slopes, and the attention's forward
PATCHED: dict[str, tuple[str, str, Callable[[Any], Any], Callable[..., Any]]] = {
    "bloom": ("BloomModel", "BloomAttention", _bloom_slopes, _bloom),
    "mpt": ("MptModel", "MptAttention", _mpt_slopes, _mpt),
}


def patch(model: Any) -> Any:
    """Makes libattn compute the attention of a BLOOM or MPT model, which is changed and returned; after it, generate() takes
    a PagedCache and Engine the model as of other families. Again: nothing changes. UnsupportedError for other models."""
    if model.config.model_type not in PATCHED:
        raise call.unsupported(
            "model",
            f"model_type is {model.config.model_type!r}; expected one of {sorted(PATCHED)}. Others take "
            "attn_implementation='libattn'",
        )
    if getattr(model.config, "slow_but_exact", False) and getattr(model.config, "pretraining_tp", 1) > 1:
        raise call.unsupported("slow_but_exact", "the projection in slices of BLOOM's training is not served; set it to False")
    from . import default_context

    default_context()
    stack_name, attention_name, slopes_of, forward = PATCHED[model.config.model_type]
    stack = next(m for m in model.modules() if type(m).__name__ == stack_name)
    device = next(model.parameters()).device
    slopes = slopes_of(stack).to(device=device, dtype=torch.float32).contiguous()
    for module in stack.modules():
        if type(module).__name__ == attention_name:
            module.libattn_slopes = slopes
            module.forward = MethodType(forward, module)
    stack.config._attn_implementation = KEPT
    return model
