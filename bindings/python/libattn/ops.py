# SPDX-License-Identifier: Apache-2.0
"""torch custom operators, so that torch.compile and graph capture take a layer as one opaque call.

    import libattn.ops
    output = libattn.ops.attention(layer, query, key, value)

It writes key and value too, if the layer has a cache. Within compiled code the layer is a constant;
build_metadata stays outside, once a step, as do caches and batches.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from .errors import invalid
from .layer import Layer, by_key
from .memory import torch_dtype

__all__ = ["attention", "attention_out", "key_of"]

_library: Any = torch.library.Library("libattn", "DEF")  # type: ignore[no-untyped-call]
_library.define("attention(Tensor query, Tensor? key, Tensor? value, str layer) -> Tensor")
_library.define("attention_out(Tensor query, Tensor? key, Tensor? value, Tensor(a!) output, str layer) -> ()")


def key_of(layer: Layer) -> str:
    """The name by which the operators know a layer; unique in the process."""
    return layer.key


def _layer(key: str) -> Layer:
    layer = by_key.get(key)
    if layer is None:
        raise invalid(
            "layer", f"no layer is known as '{key}': it was closed, or key_of() did not give the name"
        )
    return layer


def attention(
    layer: Layer,
    query: torch.Tensor,
    key: Optional[torch.Tensor] = None,
    value: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Writes key and value into the layer's cache, if it has one, and returns the attention of the query."""
    return torch.ops.libattn.attention(query, key, value, layer.key)  # type: ignore[no-any-return]


def attention_out(
    layer: Layer,
    query: torch.Tensor,
    key: Optional[torch.Tensor],
    value: Optional[torch.Tensor],
    output: torch.Tensor,
) -> None:
    """The same into a given tensor."""
    torch.ops.libattn.attention_out(query, key, value, output, layer.key)


def _run(layer: Layer, query: Any, key: Any, value: Any, output: Any) -> Any:
    if key is not None and value is not None and layer.has_cache:
        layer.update_kv_cache(key, value)
    return layer.forward(query, key, value, output=output)


def _attention(query: Any, key: Any, value: Any, layer: str) -> Any:
    return _run(_layer(layer), query, key, value, None)


def _attention_out(query: Any, key: Any, value: Any, output: Any, layer: str) -> None:
    _run(_layer(layer), query, key, value, output)


def _fake(query: Any, key: Any, value: Any, layer: str) -> Any:
    group = _layer(layer).group
    return query.new_empty((query.shape[0], *group.output_row), dtype=torch_dtype(group.output_dtype))


def _fake_out(query: Any, key: Any, value: Any, output: Any, layer: str) -> None:
    return None


for _device in ("CPU", "CUDA"):
    _library.impl("attention", _attention, _device)
    _library.impl("attention_out", _attention_out, _device)
torch.library.register_fake("libattn::attention", _fake, lib=_library)
torch.library.register_fake("libattn::attention_out", _fake_out, lib=_library)
