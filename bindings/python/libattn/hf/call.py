# SPDX-License-Identifier: Apache-2.0
"""What one call of an attention function of transformers says, in the words of a problem."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from .. import _abi
from ..errors import UnsupportedError, make

serial = itertools.count()  # layer names are unique in a context


def unsupported(param: str, text: str) -> UnsupportedError:
    failure = make(_abi.ATTN_E_UNSUPPORTED, param, text)
    assert isinstance(failure, UnsupportedError)
    return failure


def is_causal(module: torch.nn.Module, arguments: dict[str, Any]) -> bool:
    """The call's own word, else the module's."""
    said = arguments.get("is_causal")
    return bool(getattr(module, "is_causal", True) if said is None else said)


def chunk_size(module: torch.nn.Module) -> int:
    """Tokens of a chunk where the layer attends within chunks (Llama 4), else 0."""
    config, index = getattr(module, "config", None), getattr(module, "layer_idx", None)
    types = getattr(config, "layer_types", None)
    if types and index is not None and index < len(types) and types[index] == "chunked_attention":
        return int(config.attention_chunk_size)  # type: ignore[union-attr]
    return 0


def refuse_unserved(module: torch.nn.Module, mask: Any, arguments: dict[str, Any]) -> None:
    """Raises for whatever would change the result and has no counterpart in libattn."""
    if mask is not None and mask.dim() != 2:
        raise unsupported(
            "attention_mask",
            f"attention_mask has {mask.dim()} dimensions; expected None or [batch, keys] of kept tokens, which "
            "libattn.hf.register() makes transformers give",
        )
    if arguments.get("dropout") and module.training:
        raise unsupported("dropout", f"dropout is {arguments['dropout']}; libattn serves inference: model.eval()")
    if arguments.get("output_attentions"):
        raise unsupported("output_attentions", "weights are never stored; use 'eager' to see them")


def members(
    module: torch.nn.Module, query: Any, key: Any, value: Any, scaling: Any, arguments: dict[str, Any]
) -> dict[str, Any]:
    """The members of a problem that a call tells; query, key and value are [B, H, T, D]."""
    problem: dict[str, Any] = {
        "dtype": query.dtype,
        "num_heads": query.shape[1],
        "num_kv_heads": key.shape[1],
        "head_size": query.shape[3],
        "scale": float(query.shape[3] ** -0.5 if scaling is None else scaling),
    }
    if value.shape[3] != query.shape[3]:
        problem["head_size_v"] = value.shape[3]
    if arguments.get("sliding_window"):
        problem["sliding_window"] = int(arguments["sliding_window"])
    if arguments.get("softcap"):
        problem["logits_soft_cap"] = float(arguments["softcap"])
    given = (("sink", "s_aux"), ("alibi", "alibi_slopes"), ("rel_bias", "rel_bias"))
    features = [name for name, argument in given if arguments.get(argument) is not None]
    if features:
        problem["features"] = features
    return problem


def layer_tensors(arguments: dict[str, Any]) -> dict[str, Any]:
    """Tensors of a layer, in float32 as libattn takes them."""
    tensors = {
        "sinks": arguments.get("s_aux"), "alibi_slopes": arguments.get("alibi_slopes"), "rel_bias": arguments.get("rel_bias"),
    }
    return {name: t.detach().float().contiguous() for name, t in tensors.items() if t is not None}


def key_of(problem: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(value)) for name, value in problem.items()))


def with_rel_bias(module: torch.nn.Module, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with the table of distances (semantics 2.15) in the place of position_bias, which is that table painted
    over queries and keys. Its layer made it (T5's first, each of UMT5's) and later ones get the same tensor, which remembers
    the table."""
    arguments = dict(arguments)
    painted = arguments.pop("position_bias", None)
    if painted is None:
        return arguments
    if not hasattr(painted, "libattn_table"):
        painted.libattn_table = _table_of(module, painted)
    if painted.libattn_table is not None:
        arguments["rel_bias"] = painted.libattn_table
    return arguments


def _table_of(module: Any, painted: Any) -> Any:
    """float32 [H, 2 m + 1], or None where nothing is added (cross attention)."""
    most = getattr(module, "relative_attention_max_distance", None)
    if getattr(module, "has_relative_attention_bias", False) and most and hasattr(module, "compute_bias"):
        weight = module.relative_attention_bias.weight
        kept = getattr(module, "libattn_table", None)
        if kept is None or kept[0] != (weight.data_ptr(), weight._version):
            # one query in the middle of 2 m + 1 keys
            table = module.compute_bias(1, 2 * most + 1, device=weight.device, past_seen_tokens=most)
            kept = (weight.data_ptr(), weight._version), table[0, :, 0].detach().float().contiguous()
            module.libattn_table = kept
        return kept[1]
    if painted.any():
        raise unsupported(
            "position_bias",
            f"{type(module).__name__} adds a bias that is not T5's by distance, which libattn.hf does not know; use 'eager'",
        )
    return None


def rows(x: Any) -> Any:
    """[B, H, T, D] as [B * T, H, D], a view where it can be."""
    x = x.transpose(1, 2)
    return x[0] if x.shape[0] == 1 else x.reshape(-1, *x.shape[2:])


def scatter(output: Any, index: Any, batch: int, tokens: int) -> Any:
    """Rows of kept tokens back to [B, T, H, D]; padding is 0."""
    if index is not None:
        full = output.new_zeros(batch * tokens, *output.shape[1:])
        full[index] = output
        output = full
    return output.view(batch, tokens, *output.shape[1:])


def rounded(n: int, least: int) -> int:
    """The power of two above n, so that few sizes of groups are opened."""
    return max(least, 1 << max(int(n) - 1, 0).bit_length())
