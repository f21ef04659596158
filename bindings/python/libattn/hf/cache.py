# SPDX-License-Identifier: Apache-2.0
"""A cache of transformers whose keys and values live in pages of libattn."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from ..context import Context
from ..group import Group
from ..layer import Layer
from . import call


latent = threading.local()  # .layer: the PagedLayer that took compressed rows last; its attention call is next


@dataclass
class Step:
    """One forward of the model: what its batch is for libattn."""

    query_lens: list[int]
    seq_lens: list[int]
    block_table: Any  # int32 [requests, pages]
    index: Any = None  # rows of kept tokens where some are padding
    built: set[int] = field(default_factory=set)  # groups that have their metadata


class PagedLayer(CacheLayerMixin):
    """One layer: transformers sees its length; attention writes and reads the pages."""

    is_sliding = False

    def __init__(self, cache: Pages, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cache, self.index, self.length = cache, index, 0
        self.layer: Optional[Layer] = None
        self.unwritten: Any = None  # (keys, values) that attention has not taken yet
        self.is_initialized = True

    def lazy_initialization(self, *_: Any) -> None:
        pass

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """The new rows alone: attention finds the layer by them and writes them to their pages."""
        if self.unwritten is not None:
            raise call.unsupported(
                "past_key_values",
                f"layer {self.index}: the model changes keys after its cache took them, so that libattn's attention did "
                "not see them; PagedCache does not serve this model",
            )
        self.length += key_states.shape[2]
        self.unwritten = key_states, value_states
        key_states.libattn_pages = latent.layer = self
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + int(query_length), 0

    def get_seq_length(self, *_: Any) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.cache.max_len

    def reset(self) -> None:
        self.length, self.unwritten, self.cache.step = 0, None, None

    def crop(self, max_length: int) -> None:
        """Forgets tokens from the end (assisted generation); below 0: that many."""
        self.length = min(self.length, max_length if max_length >= 0 else max(0, self.length + max_length))
        self.cache.step = None

    def reorder_cache(self, beam_idx: Any) -> None:
        raise call.unsupported("num_beams", "PagedCache does not serve beam search; use num_beams=1")

    batch_repeat_interleave = batch_select_indices = reorder_cache


class Pages(Cache):
    """Pages for the decoder layers of a model. What a step is, a subclass says (begin)."""

    def __init__(
        self, model: Any, max_num_seqs: int, max_num_batched_tokens: int, max_len: int, num_blocks: int, block_size: int,
        context: Optional[Context], backend: Optional[str], kv_cache_dtype: Optional[str],
    ) -> None:
        from . import default_context

        config = model.config.get_text_config(decoder=True)
        decoders = getattr(model.config, "num_decoder_layers", None) or config.num_hidden_layers  # T5 has two numbers
        super().__init__(layers=[PagedLayer(self, i) for i in range(decoders)])
        self.context, self.backend, self.max_len, self.block_size = context or default_context(), backend, max_len, block_size
        self.num_blocks, self.name = num_blocks, f"transformers{next(call.serial)}"
        self.limits = {
            "block_size": block_size, "max_num_seqs": max_num_seqs, "max_model_len": max_len,
            "max_num_batched_tokens": max_num_batched_tokens, "kv_cache_dtype": kv_cache_dtype,
        }
        self.step: Optional[Step] = None
        self._groups: dict[Any, Group] = {}

    @property
    def groups(self) -> list[Group]:
        """Groups that were opened, one for each kind of layer."""
        return list(self._groups.values())

    def close(self) -> None:
        """Frees the pages."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()

    def begin(self, paged: PagedLayer, query: Any, mask: Any) -> Step:
        raise NotImplementedError

    def _open(self, paged: PagedLayer, problem: dict[str, Any], query: Any, arguments: dict[str, Any]) -> Layer:
        problem = {"mask": "causal", **problem, **self.limits}
        sort = call.key_of(problem)
        group = self._groups.get(sort)
        if group is None:
            group = self._groups[sort] = self.context.open_group(problem, query.device, self.backend)
        layer = group.create_layer(f"{self.name}.layers.{paged.index}.attn", **call.layer_tensors(arguments))
        return layer.bind(group.new_cache(self.num_blocks, framework="torch"))

    def attend(
        self, paged: PagedLayer, module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any, arguments: dict[str, Any]
    ) -> Any:
        """[B, H, T, D] -> [B, T, H, Dv], over all keys of the layer."""
        if paged.layer is None:
            problem = {"role": "decoder", **call.members(module, query, key, value, scaling, arguments)}
            if call.chunk_size(module):
                problem["chunk_size"] = call.chunk_size(module)
            paged.layer = self._open(paged, problem, query, arguments)
        return self._run(paged, module, query, call.rows(key), call.rows(value), mask, arguments)

    def attend_latent(
        self, paged: PagedLayer, module: Any, query: Any, mask: Any, scaling: Any, arguments: dict[str, Any]
    ) -> Any:
        """Multi-head latent attention: query [B, N, T, P + R]; keys are the compressed rows [B, 1, T, L] and [B, 1, T, R]
        that the cache was given; the module's kv_b_proj is folded into attention."""
        kv_c, k_pe = paged.unwritten
        if paged.layer is None:
            problem = call.members(module, query, kv_c[..., :1], kv_c[..., :1], scaling, arguments)
            problem.pop("head_size_v")
            problem.update(
                role="mla", num_kv_heads=1, head_size=kv_c.shape[3] + k_pe.shape[3], kv_lora_rank=kv_c.shape[3],
                qk_rope_head_dim=k_pe.shape[3], qk_nope_head_dim=query.shape[3] - k_pe.shape[3],
                v_head_dim=module.v_head_dim,
            )
            paged.layer = self._open(paged, problem, query, arguments)
            paged.layer.prepare_weights(module.kv_b_proj.weight.detach())
        return self._run(
            paged, module, query, call.rows(kv_c).squeeze(1), call.rows(k_pe).squeeze(1), mask, arguments
        )

    def _run(
        self, paged: PagedLayer, module: Any, query: Any, key: Any, value: Any, mask: Any, arguments: dict[str, Any]
    ) -> Any:
        if not call.is_causal(module, arguments):
            raise call.unsupported("is_causal", "PagedCache serves causal self-attention")
        batch, _, tokens, _ = query.shape
        step = self.begin(paged, query, mask)
        assert paged.layer is not None
        layer, group = paged.layer, paged.layer.group
        if id(group) not in step.built:
            group.build_metadata(
                group.new_batch(query_lens=step.query_lens, seq_lens=step.seq_lens, block_table=step.block_table)
            )
            step.built.add(id(group))
        q, k, v = call.rows(query), key, value
        if step.index is not None:
            q, k, v = q[step.index], k[step.index], v[step.index]
        if paged.unwritten is not None:  # else a layer that shares the pages of an earlier one
            layer.update_kv_cache(k, v)
            paged.unwritten = None
        return call.scatter(layer.forward(q, k, v), step.index, batch, tokens)


class PagedCache(Pages):
    """past_key_values of generate(): a batch of at most batch_size prompts, max_len tokens each with what is generated.

    Padding is taken out by the attention mask. context: a libattn.Context (None: that of register()); backend: by name;
    kv_cache_dtype: "fp8_e4m3", "int8_per_token_head" and so on (None: the model's type).
    Beam search raises UnsupportedError.
    """

    def __init__(
        self, model: Any, batch_size: int, max_len: int, *, block_size: int = 16, context: Optional[Context] = None,
        backend: Optional[str] = None, kv_cache_dtype: Optional[str] = None, max_num_batched_tokens: int = 0,
    ) -> None:
        pages = -(-max_len // block_size)
        super().__init__(
            model, batch_size, max_num_batched_tokens or batch_size * max_len, max_len, batch_size * pages, block_size,
            context, backend, kv_cache_dtype,
        )
        self._table = torch.arange(batch_size * pages, dtype=torch.int32).view(batch_size, pages)
        self._at: Any = None

    def begin(self, paged: PagedLayer, query: Any, mask: Any) -> Step:
        batch, _, tokens, _ = query.shape
        if batch > len(self._table):
            raise call.unsupported("batch_size", f"{batch} sequences in a PagedCache made for {len(self._table)}")
        if paged.length > self.max_len:
            raise call.unsupported("max_len", f"{paged.length} tokens in a PagedCache made for {self.max_len}")
        at = (paged.length, tokens)
        if self.step is None or self._at != at:  # the first layer of a step
            new, total, index = [tokens] * batch, [paged.length] * batch, None
            if mask is not None:
                kept = mask.bool()
                new, total = kept[:, -tokens:].sum(1).tolist(), kept.sum(1).tolist()
                if sum(new) != batch * tokens:
                    index = kept[:, -tokens:].reshape(-1).nonzero().squeeze(1)
            self._at, self.step = at, Step(new, total, self._table[:batch], index)
        return self.step
