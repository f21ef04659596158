# SPDX-License-Identifier: Apache-2.0
"""SGLang's attention backend: prompts, prompts behind a cached prefix, and decode steps.

Keys and values are written by SGLang's own pools; libattn reads them in place, as pages of the pool's page
size. Groups are opened when a layer of their kind is first computed, since SGLang makes the backend before it
knows the layers.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Optional

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

import libattn

from .radix_batch import Step, Tables
from .radix_problems import Limits, kind_of, open_group, problem_of

_numbers = itertools.count()


class Graph:
    """What the graphs of one batch size keep: tensors and spaces whose addresses are captured."""

    def __init__(self, num_reqs: int) -> None:
        self.num_reqs = num_reqs
        self.spaces: dict[Any, libattn.Space] = {}


class RadixBackend(AttentionBackend):
    needs_cpu_seq_lens = True

    def __init__(self, runner: Any) -> None:
        super().__init__()
        number = next(_numbers)  # names of layers are unique in a process
        self.prefix = f"runner{number}." if number else ""
        self.device = torch.device(runner.device)
        self.req_to_token_pool, self.pool = runner.req_to_token_pool, runner.token_to_kv_pool
        self.req_to_token: torch.Tensor = runner.req_to_token_pool.req_to_token
        self.uses_mla = bool(runner.use_mla_backend)
        self.has_window_pool = hasattr(self.pool, "translate_loc_from_full_to_swa")
        self.kv_cache_dtype = self.data_type = self.pool.dtype
        self.limits = Limits(
            dtype=runner.dtype,
            cache_dtype=self.pool.dtype,
            page_size=int(self.pool.page_size),
            max_num_seqs=int(self.req_to_token.shape[0]),
            max_num_batched_tokens=max(int(self.req_to_token.shape[0]), 1024),
            max_model_len=int(self.req_to_token.shape[1]),
        )
        self.groups: dict[libattn.Problem, libattn.Group] = {}
        self.layers: dict[tuple[int, str], libattn.Layer] = {}
        self.step: Optional[Step] = None
        self.graphs: dict[int, Graph] = {}
        self.graph: Optional[Graph] = None  # of the step
        self.captured: Optional[tuple[Tables, torch.Tensor, torch.Tensor]] = None
        self.slots: Optional[tuple[torch.Tensor, torch.Tensor]] = None  # graphs': in the cache, in the window's

    def support_triton(self) -> bool:
        return bool(self.device.type == "cuda")

    # ------------------------------------------------------------------ batches

    def _check_mode(self, forward_batch: Any) -> None:
        mode = forward_batch.forward_mode
        if forward_batch.spec_info is not None or mode.is_target_verify():
            raise NotImplementedError(
                "libattn's backend for SGLang serves no speculative decoding; "
                "start without --speculative-algorithm"
            )

    def _grow(self, num_tokens: int, num_reqs: int) -> None:
        """A batch beyond the limits opens the groups anew, with twice the room."""
        limits = self.limits
        if num_tokens <= limits.max_num_batched_tokens and num_reqs <= limits.max_num_seqs:
            return
        if self.graphs:
            raise NotImplementedError(
                f"a batch of {num_reqs} requests and {num_tokens} tokens came after graphs were captured for "
                f"{limits.max_num_seqs} and {limits.max_num_batched_tokens}"
            )
        self._reopen(
            max_num_seqs=max(limits.max_num_seqs, num_reqs),
            max_num_batched_tokens=max(2 * limits.max_num_batched_tokens, num_tokens),
        )

    def _reopen(self, **changed: Any) -> None:
        for layer in self.layers.values():
            layer.close()
        for group in self.groups.values():
            group.close()
        self.layers, self.groups = {}, {}
        self.limits = replace(self.limits, **changed)

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """A step that no graph computes."""
        self._check_mode(forward_batch)
        self.graph = self.step = None
        if forward_batch.forward_mode.is_idle():
            return
        step = Step(forward_batch, None)
        longest = int(step.lens.max()) if step.num_reqs else 0
        columns = max(1, -(-longest // self.limits.page_size))
        step.tables = Tables.room(step.num_reqs, columns, self.device, self.has_window_pool)
        if longest:
            step.tables.fill(
                self.req_to_token, forward_batch.req_pool_indices, longest, self.limits.page_size, self.pool
            )
        self._set_window_slots(step)
        self._grow(step.num_tokens, step.num_reqs)
        self.step = step

    def _set_window_slots(self, step: Step) -> None:
        if self.has_window_pool and step.slots is not None:
            step.window_slots = self.pool.translate_loc_from_full_to_swa(step.slots)

    def _keep_slots(self, step: Step) -> None:
        """Those of a step in a graph, at the addresses that the graph reads. SGLang fills a batch up to a size
        that was captured, with requests of slot 0, and gives the slots of the others only."""
        if step.slots is None or self.slots is None:
            return
        (slots, in_window), n = self.slots, step.num_reqs
        given = min(n, step.slots.shape[0])
        slots[:given].copy_(step.slots[:given])
        slots[given:n].zero_()
        step.slots = slots[:n]
        if self.has_window_pool:
            in_window[:n].copy_(self.pool.translate_loc_from_full_to_swa(step.slots))
            step.window_slots = in_window[:n]

    # ------------------------------------------------------------------- graphs

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Tables and lengths of fixed addresses. Groups are opened anew, for backends that are captured."""
        columns = -(-self.limits.max_model_len // self.limits.page_size)
        tables = Tables.room(max_bs, columns, self.device, self.has_window_pool)
        lens = torch.ones(max_bs, dtype=torch.int32, device=self.device)
        starts = torch.arange(max_bs + 1, dtype=torch.int32, device=self.device)
        self.captured, self.graphs, self.graph, self.step = (tables, lens, starts), {}, None, None
        slots = torch.zeros(2, max_bs, dtype=torch.int64, device=self.device)
        self.slots = slots[0], slots[1]
        self._reopen(
            is_captured=True,
            max_num_seqs=max(self.limits.max_num_seqs, max_bs),
            max_num_batched_tokens=max(self.limits.max_num_batched_tokens, max_num_tokens),
        )

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Before a capture, and before each replay: the same buffers get the step's tables and lengths,
        and the metadata of every group is planned into the spaces that the graph reads."""
        self._check_mode(forward_batch)
        if not forward_batch.forward_mode.is_decode():
            raise NotImplementedError("libattn's backend for SGLang captures decode steps only")
        assert self.captured is not None, "init_cuda_graph_state was not called"
        tables, lens, starts = self.captured
        step = Step(forward_batch, tables, is_captured=True, lens=lens, starts=starts)
        n = step.num_reqs
        lens[:n].copy_(step.lens)
        longest = int(step.lens.max()) if n else 0
        if longest:
            tables.fill(
                self.req_to_token,
                forward_batch.req_pool_indices[:n],
                longest,
                self.limits.page_size,
                self.pool,
            )
        self._keep_slots(step)
        if in_capture:
            self.graph = self.graphs.setdefault(n, Graph(n))
        elif n in self.graphs:
            self.graph = self.graphs[n]
        else:
            raise NotImplementedError(f"no graph was captured for {n} requests")
        self.step = step
        for (group, in_window_pool), space in self.graph.spaces.items():
            group.build_metadata(step.batch(group, in_window_pool), space=space)

    # ------------------------------------------------------------------ forward

    def _layer(self, layer: Any, kind: str, sinks: Optional[torch.Tensor]) -> libattn.Layer:
        key = (layer.layer_id, kind)
        own = self.layers.get(key)
        if own is not None:
            return own
        problem = problem_of(layer, kind, self.limits, sinks is not None)
        group = self.groups.get(problem)
        if group is None:
            group = self.groups[problem] = open_group(problem, self.device)
        options: dict[str, Any] = {}
        if sinks is not None:
            options["sinks"] = sinks.detach().float().contiguous()
        if kind != "prompt" and self.limits.cache_dtype != self.limits.dtype:
            options.update(self._scales(layer))
        own = self.layers[key] = group.create_layer(
            f"{self.prefix}layers.{layer.layer_id}.attn.{kind}", **options
        )
        return own

    def _scales(self, layer: Any) -> dict[str, Any]:
        """Of an fp8 cache: numbers on a CPU, SGLang's tensors elsewhere."""
        if self.device.type == "cpu":
            return {
                name: value
                for name, value in (("k_scale", layer.k_scale_float), ("v_scale", layer.v_scale_float))
                if value is not None
            }
        return {
            name: value.detach().float().reshape(1)
            for name, value in (("k_scale", layer.k_scale), ("v_scale", layer.v_scale))
            if value is not None
        }

    def _save(
        self, k: torch.Tensor, v: torch.Tensor, layer: Any, k_rope: Optional[torch.Tensor], forward_batch: Any
    ) -> None:
        step = self.step
        assert step is not None
        where = KVWriteLoc.for_batch(forward_batch, swa_loc=step.window_slots)
        if k_rope is not None:
            self.pool.set_mla_kv_buffer(layer, where, k, k_rope)
        elif self.uses_mla:
            self.pool.set_kv_buffer(layer, where, k, v)
        else:
            self.pool.set_kv_buffer(layer, where, k, v, layer.k_scale, layer.v_scale)

    def _pages(self, rows: torch.Tensor) -> torch.Tensor:
        """[slots, heads, size] as [pages, heads, page, size]."""
        if rows.ndim != 3:
            raise NotImplementedError(
                f"libattn's backend for SGLang reads pools of rows [slot, head, size], not of {rows.ndim} "
                "dimensions; leave SGLANG_USE_HND_KVCACHE and the layout of the cache alone"
            )
        pages: torch.Tensor = rows.unflatten(0, (-1, self.limits.page_size))  # type: ignore[no-untyped-call]
        return pages.transpose(1, 2)

    def _in_window_pool(self, layer: Any) -> bool:
        return self.has_window_pool and bool(self.pool.layers_mapping[layer.layer_id][1])

    def _use(self, group: libattn.Group, in_window_pool: bool) -> None:
        """Makes the step's batch the group's current one."""
        step = self.step
        assert step is not None, "init_forward_metadata was not called"
        batch = step.batch(group, in_window_pool)
        if group.batch is batch:
            return
        if self.graph is None:
            group.build_metadata(batch)
            return
        key = (group, in_window_pool)
        space = self.graph.spaces.get(key)
        if space is None:
            space = self.graph.spaces[key] = group.new_space()
        group.build_metadata(batch, space=space)

    def forward_extend(
        self,
        q: Any,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)

    def forward_decode(
        self,
        q: Any,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)

    def _forward(
        self,
        q: torch.Tensor,
        k: Optional[torch.Tensor],
        v: Optional[torch.Tensor],
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool,
        q_rope: Optional[torch.Tensor] = None,
        k_rope: Optional[torch.Tensor] = None,
        sinks: Optional[torch.Tensor] = None,
        **unknown: Any,
    ) -> torch.Tensor:
        given = [name for name, value in unknown.items() if value is not None and value is not False]
        if given:
            raise NotImplementedError(
                f"libattn's backend for SGLang does not know {', '.join(given)} of a layer's call"
            )
        step = self.step
        assert step is not None, "init_forward_metadata was not called"
        kind = kind_of(layer, self.uses_mla)
        if save_kv_cache and k is not None and v is not None:
            self._save(k, v, layer, k_rope, forward_batch)
        heads, n = layer.tp_q_head_num, step.num_tokens
        if q_rope is not None:
            q = torch.cat(
                [q.view(-1, heads, layer.v_head_dim), q_rope.view(q_rope.shape[0], heads, -1)], dim=-1
            )
        query = q.reshape(-1, heads, layer.qk_head_dim)
        output = query.new_empty(query.shape[0], heads, layer.v_head_dim)
        own = self._layer(layer, kind, sinks)
        in_window_pool = kind == "paged" and self._in_window_pool(layer)
        self._use(own.group, in_window_pool)
        if kind == "prompt":
            if step.has_prefix or k is None or v is None:
                raise NotImplementedError(
                    f"layer {layer.layer_id} attends to the keys of its call, but requests have a prefix"
                )
            own.forward(query[:n], k[:n], v[:n], output=output[:n])
        elif kind == "latent":
            rows = self.pool.get_key_buffer(layer.layer_id)
            own.forward(
                query[:n],
                output=output[:n],
                kv_cache=rows.unflatten(0, (-1, self.limits.page_size)).squeeze(2),
            )
        else:
            keys, values = self.pool.get_kv_buffer(layer.layer_id)
            own.forward(query[:n], output=output[:n], kv_cache=self._pages(keys), v_cache=self._pages(values))
        output[n:].zero_()
        return output.view(query.shape[0], heads * layer.v_head_dim)
