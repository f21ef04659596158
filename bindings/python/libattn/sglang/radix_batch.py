# SPDX-License-Identifier: Apache-2.0
"""From SGLang's batches to libattn's: page tables out of req_to_token, lengths of the host."""

from __future__ import annotations

from typing import Any, Optional

import torch

import libattn


class Tables:
    """The page tables of one batch: of the whole cache, and of the window's own pool where there is one."""

    def __init__(self, full: torch.Tensor, window: Optional[torch.Tensor]) -> None:
        self.full, self.window = full, window

    @classmethod
    def room(cls, rows: int, columns: int, device: torch.device, has_window_pool: bool) -> Tables:
        def zeros() -> torch.Tensor:
            return torch.zeros(rows, columns, dtype=torch.int32, device=device)

        return cls(zeros(), zeros() if has_window_pool else None)

    def fill(
        self, req_to_token: torch.Tensor, requests: torch.Tensor, longest: int, page_size: int, pool: Any
    ) -> None:
        """Writes the pages of these requests. req_to_token has a slot for each token; the first token of a
        page names it. Pages that the window has left behind are no pages any more: 0 stands for them."""
        slots = req_to_token[requests.long(), :longest:page_size]
        rows, columns = slots.shape
        self.full[:rows, :columns].copy_(slots // page_size)
        if self.window is not None:
            in_window = pool.translate_loc_from_full_to_swa(slots.long())
            self.window[:rows, :columns].copy_((in_window // page_size).clamp_(min=0))


class Step:
    """One forward of the model: the batch of each libattn group, made when its first layer asks."""

    def __init__(
        self,
        forward_batch: Any,
        tables: Optional[Tables],
        *,
        is_captured: bool = False,
        lens: Optional[torch.Tensor] = None,
        starts: Optional[torch.Tensor] = None,
    ) -> None:
        b = forward_batch
        self.num_reqs: int = b.batch_size
        self.tables, self.is_captured = tables, is_captured
        self.lens_device, self.starts_device = lens, starts
        if b.seq_lens_cpu is None:
            raise NotImplementedError("libattn plans batches on the host: SGLang gave no seq_lens_cpu")
        self.lens = b.seq_lens_cpu[: self.num_reqs].to(torch.int32).contiguous()
        if b.forward_mode.is_decode():
            self.query_lens = [1] * self.num_reqs
        else:
            self.query_lens = [int(n) for n in b.extend_seq_lens_cpu[: self.num_reqs]]
        self.num_tokens = sum(self.query_lens)
        self.slots = b.out_cache_loc
        self.window_slots: Optional[torch.Tensor] = None
        self._batches: dict[Any, libattn.Batch] = {}

    @property
    def has_prefix(self) -> bool:
        lens: list[int] = self.lens.tolist()
        return lens != self.query_lens

    def batch(self, group: libattn.Group, in_window_pool: bool) -> libattn.Batch:
        key = (group, in_window_pool)
        found = self._batches.get(key)
        if found is None:
            found = self._batches[key] = self._make(group, in_window_pool)
        return found

    def _make(self, group: libattn.Group, in_window_pool: bool) -> libattn.Batch:
        given: dict[str, Any] = {}
        if group.problem.role == "encoder_only":
            return group.new_batch(query_lens=self.query_lens)
        assert self.tables is not None, "a batch without pages reached a layer with a cache"
        table = self.tables.window if in_window_pool else self.tables.full
        slots = self.window_slots if in_window_pool else self.slots
        assert table is not None
        given["block_table"] = table[: self.num_reqs]
        given["slot_mapping"] = slots.to(torch.int64) if slots is not None else None
        if self.starts_device is not None and self.lens_device is not None:
            given["query_start_loc_device"] = self.starts_device[: self.num_reqs + 1]
            given["seq_lens_device"] = self.lens_device[: self.num_reqs]
        return group.new_batch(
            query_lens=self.query_lens, seq_lens=self.lens, capture=self.is_captured, **given
        )
