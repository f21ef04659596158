# SPDX-License-Identifier: Apache-2.0
"""libattn: the attention layer of LLM engines.

    import libattn
    ctx = libattn.Context()
    group = ctx.open_group(role="decoder", mask="causal", dtype="float32", num_heads=8, num_kv_heads=2,
                           head_size=64, scale=64 ** -0.5)
    layer = group.create_layer("model.layers.0.self_attn.attn").bind(group.new_cache(num_blocks=32))
    batch = group.new_batch(query_lens=[5, 1], seq_lens=[5, 17], block_table=[[1], [2, 3]])
    group.build_metadata(batch)
    layer.update_kv_cache(key, value)
    output = layer.forward(query)

Tensors are those of torch or numpy, anything with __dlpack__, and buffers; nothing is copied.
"""

from . import plan
from ._abi import (
    Axis,
    DType,
    ErrorCode,
    Feature,
    GraphSupport,
    KVDType,
    LayerKind,
    Layout,
    Mask,
    ReasonCode,
    Role,
    SpecKind,
)
from ._load import library_path, version
from .batch import Batch
from .context import Backend, ConfigValue, Context, Plugin
from .errors import DeviceError, Error, InvalidError, NotFoundError, ParseError, StateError, UnsupportedError
from .group import Cache, CacheShape, Group, Space
from .layer import Layer
from .memory import Memory
from .problem import Device, Problem
from .selection import Candidate, Reason, Selection
from .tensors import TensorView

__all__ = [
    "Axis",
    "Backend",
    "Batch",
    "Cache",
    "CacheShape",
    "Candidate",
    "ConfigValue",
    "Context",
    "DType",
    "Device",
    "DeviceError",
    "Error",
    "ErrorCode",
    "Feature",
    "GraphSupport",
    "Group",
    "InvalidError",
    "KVDType",
    "Layer",
    "LayerKind",
    "Layout",
    "Mask",
    "Memory",
    "NotFoundError",
    "ParseError",
    "Plugin",
    "Problem",
    "Reason",
    "ReasonCode",
    "Role",
    "Selection",
    "Space",
    "SpecKind",
    "StateError",
    "TensorView",
    "UnsupportedError",
    "library_path",
    "plan",
    "version",
]
