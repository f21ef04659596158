# SPDX-License-Identifier: Apache-2.0
"""Attention without a cache of ours: encoders, vision towers, a prompt at once, and cross attention."""

from __future__ import annotations

import weakref
from typing import Any, Optional

import torch

from .. import plan
from ..context import Context
from ..layer import Layer
from . import call


class Plain:
    """Layers for calls that carry all their keys: one for each problem and size class; cross attention: one for each module."""

    def __init__(self, context: Context, backend: Optional[str] = None) -> None:
        self.context, self.backend = context, backend
        self._layers: dict[Any, Layer] = {}
        self._cross: weakref.WeakKeyDictionary[Any, Cross] = weakref.WeakKeyDictionary()

    def layer(self, problem: dict[str, Any], device: Any, requests: int, tokens: int, longest: int) -> Layer:
        sized = dict(
            problem,
            max_num_seqs=call.rounded(requests, 8),
            max_num_batched_tokens=call.rounded(tokens, 512),
            max_model_len=call.rounded(longest, 512),
        )
        key = (call.key_of(sized), device)
        found = self._layers.get(key)
        if found is None:
            group = self.context.open_group(sized, device, self.backend)
            found = self._layers[key] = group.create_layer(f"transformers{next(call.serial)}.layers.0.attn")
        return found

    def attend(
        self, module: torch.nn.Module, query: Any, key: Any, value: Any, mask: Any, scaling: Any, arguments: dict[str, Any]
    ) -> Any:
        """[B, H, T, D] -> [B, T, H, Dv]."""
        batch, _, tokens, _ = query.shape
        causal = call.is_causal(module, arguments)
        problem = call.members(module, query, key, value, scaling, arguments)
        packed = arguments.get("cu_seq_lens_q") is not None
        # a decoder's attention without the causal mask is over the encoder's keys, however many they are
        is_cross = not causal and bool(getattr(module, "is_decoder", False))
        if is_cross or key.shape[2] != tokens or (packed and arguments.get("cu_seq_lens_k") is not arguments["cu_seq_lens_q"]
                                      and not torch.equal(arguments["cu_seq_lens_k"], arguments["cu_seq_lens_q"])):
            if causal or packed:
                raise call.unsupported(
                    "past_key_values",
                    f"{tokens} queries attend causally to {key.shape[2]} keys in a cache of transformers; "
                    "give generate() past_key_values=libattn.hf.PagedCache(model, batch, max_len)",
                )
            return self._attend_cross(module, problem, query, key, value, mask, arguments)
        index = None
        if packed:
            starts = arguments["cu_seq_lens_q"].tolist()
        elif mask is not None:
            kept = mask[:, -tokens:].bool()
            starts = [0, *kept.sum(1).cumsum(0).tolist()]
            index = kept.reshape(-1).nonzero().squeeze(1)
        else:
            starts = list(range(0, batch * tokens + 1, tokens))
        chunk = call.chunk_size(module)
        if chunk:  # without a cache every chunk is a sequence of its own
            ends = list(zip(starts, starts[1:]))
            starts = [0] + [e for a, b in ends for e in (*range(a + chunk, b, chunk), b)]
        problem.update(role="encoder_only", mask="causal" if causal else "full")
        q, k, v = call.rows(query), call.rows(key), call.rows(value)
        if index is not None:
            q, k, v = q[index], k[index], v[index]
        if len(q) == 0:
            return query.new_zeros(batch, tokens, query.shape[1], value.shape[3])
        longest = max(b - a for a, b in zip(starts, starts[1:]))
        layer = self.layer(problem, query.device, len(starts) - 1, len(q), longest)
        layer.group.build_metadata(layer.group.new_batch(query_start_loc=starts))
        output = layer.forward(q, k, v, **call.layer_tensors(arguments))
        return call.scatter(output, index, batch, tokens)

    def _attend_cross(
        self, module: torch.nn.Module, problem: dict[str, Any], query: Any, key: Any, value: Any, mask: Any,
        arguments: dict[str, Any],
    ) -> Any:
        batch, _, tokens, _ = query.shape
        cross = self._cross.get(module)
        if cross is None:
            cross = self._cross[module] = Cross()
        layer = cross.hold(self, problem, query, key, value, mask)
        layer.group.build_metadata(cross.batch(layer, batch, tokens))
        output = layer.forward(call.rows(query), **call.layer_tensors(arguments))
        return output.view(batch, tokens, *output.shape[1:])


class Cross:
    """Keys and values of one module's cross attention in pages, written when transformers gives other ones."""

    def __init__(self) -> None:
        self._layer: Optional[Layer] = None
        self._key: Any = None  # weak: the tensor whose rows the pages hold
        self._sizes: Any = None
        self._lengths: list[int] = []
        self._table: Any = None
        self._slots: Any = None

    def hold(self, plain: Plain, problem: dict[str, Any], query: Any, key: Any, value: Any, mask: Any) -> Layer:
        batch, _, tokens, _ = query.shape
        source = key.shape[2]
        problem = dict(
            problem, role="encoder_decoder", mask="full",
            max_num_seqs=call.rounded(batch, 8),
            max_num_batched_tokens=call.rounded(batch * max(tokens, source), 512),
            max_model_len=call.rounded(max(tokens, source), 512),
        )
        sizes = (call.key_of(problem), query.device, batch)
        same = self._sizes == sizes and self._key is not None and self._key() is key and mask is None
        if same and self._layer is not None:
            return self._layer
        if self._sizes is None or self._sizes != sizes or self._layer is None:
            if self._layer is not None:
                self._layer.group.close()
            group = plain.context.open_group(problem, query.device, plain.backend)
            self._layer = group.create_layer(f"transformers{next(call.serial)}.layers.0.cross_attn")
            pages = -(-call.rounded(max(tokens, source), 512) // group.block_size)
            self._layer.bind(group.new_cache(batch * pages, framework="torch"))
            self._table = torch.arange(batch * pages, dtype=torch.int32).view(batch, pages)
            self._sizes = sizes
        group = self._layer.group
        k, v = call.rows(key), call.rows(value)
        self._lengths = [source] * batch
        if mask is not None:
            kept = mask.bool()
            self._lengths = kept.sum(1).tolist()
            index = kept.reshape(-1).nonzero().squeeze(1)
            k, v = k[index], v[index]
        slots = plan.cross_slots(self._lengths, [0] * batch, self._table, block_size=group.block_size)
        self._slots = torch.tensor(list(slots), dtype=torch.int64, device=query.device)
        group.build_metadata(self.batch(self._layer, batch, tokens))
        self._layer.update_kv_cache(k, v, slot_mapping=self._slots)
        self._key = weakref.ref(key)
        return self._layer

    def batch(self, layer: Layer, batch: int, tokens: int) -> Any:
        return layer.group.new_batch(
            query_lens=[tokens] * batch, seq_lens=[tokens] * batch, block_table=self._table, slot_mapping=self._slots,
            encoder_seq_lens=self._lengths,
        )
