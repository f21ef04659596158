# SPDX-License-Identifier: Apache-2.0
"""Continuous batching over a decoder of transformers: requests come and go, prompts are cut into chunks, pages are shared
out and taken back."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, Iterable, Optional

import torch

from ..context import Context
from ..errors import invalid
from .cache import PagedLayer, Pages, Step


@dataclass
class Request:
    """A prompt and what was generated for it."""

    prompt: list[int]
    max_new_tokens: int = 16
    eos: Optional[int] = None
    output: list[int] = field(default_factory=list)
    done: bool = False
    computed: int = 0  # tokens whose keys are in pages
    pages: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output


class FlatPages(Pages):
    """Pages of an Engine: the model sees one row of tokens, the step says whose they are."""

    def begin(self, paged: PagedLayer, query: Any, mask: Any) -> Step:
        if self.step is None or query.shape[0] != 1 or query.shape[2] != sum(self.step.query_lens):
            raise invalid("query", "the pages of an Engine serve its own steps only")
        return self.step


class Engine:
    """Greedy generation for requests of any lengths.

    num_blocks pages of block_size tokens serve all of them; where they run out, the request that came last gives its own
    back and is computed again later. Prompts are cut so that a step has at most max_num_batched_tokens.
    """

    def __init__(
        self, model: Any, *, num_blocks: int = 1024, block_size: int = 16, max_num_seqs: int = 16,
        max_num_batched_tokens: int = 512, max_len: int = 4096, context: Optional[Context] = None,
        backend: Optional[str] = None, kv_cache_dtype: Optional[str] = None,
    ) -> None:
        self.model, self.block_size, self.max_len = model, block_size, max_len
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.num_blocks = num_blocks
        self._has_positions = "position_ids" in inspect.signature(model.forward).parameters  # not BLOOM, MPT
        self.pages = FlatPages(
            model, max_num_seqs, max_num_batched_tokens, max_len, num_blocks, block_size, context, backend, kv_cache_dtype
        )
        self.free = list(range(num_blocks - 1, -1, -1))
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.preempted = 0

    def add(self, request: Request) -> Request:
        longest = len(request.prompt) + request.max_new_tokens
        if not request.prompt or longest > min(self.max_len, self.num_blocks * self.block_size):
            raise invalid(
                "prompt",
                f"{len(request.prompt)} tokens and {request.max_new_tokens} new ones; expected 1 to "
                f"{min(self.max_len, self.num_blocks * self.block_size)} together",
            )
        self.waiting.append(request)
        return request

    def generate(self, prompts: Iterable[list[int]], max_new_tokens: int = 16, eos: Optional[int] = None) -> list[list[int]]:
        """The new tokens of each prompt."""
        requests = [self.add(Request(list(p), max_new_tokens, eos)) for p in prompts]
        while self.waiting or self.running:
            self.step()
        return [r.output for r in requests]

    def step(self) -> list[Request]:
        """One forward of the model; returns the requests that got a token."""
        work = self._schedule()
        if not work:
            return []
        starts: list[int] = [0]
        flat: list[int] = []
        positions: list[int] = []
        for request, n in work:
            flat += request.tokens[request.computed : request.computed + n]
            positions += range(request.computed, request.computed + n)
            starts.append(starts[-1] + n)
        width = max(len(r.pages) for r, _ in work)
        self.pages.step = Step(
            [n for _, n in work],
            [r.computed + n for r, n in work],
            [r.pages + [0] * (width - len(r.pages)) for r, _ in work],
        )
        paged: Any
        for paged in self.pages.layers:
            paged.length = 0  # positions are given; the lengths are the step's
        device = next(self.model.parameters()).device
        with torch.inference_mode():
            placed = {"position_ids": torch.tensor([positions], device=device)} if self._has_positions else {}
            states = self.model(
                input_ids=torch.tensor([flat], device=device), **placed,
                past_key_values=self.pages, use_cache=True,
                logits_to_keep=torch.tensor([s - 1 for s in starts[1:]], device=device),
            )
            chosen = states.logits[0].argmax(-1).tolist()
        got = []
        for (request, n), token in zip(work, chosen):
            request.computed += n
            if request.computed == len(request.tokens):
                request.output.append(token)
                got.append(request)
                request.done = len(request.output) >= request.max_new_tokens or token == request.eos
                if request.done:
                    self._release(request)
                    self.running.remove(request)
        return got

    def _schedule(self) -> list[tuple[Request, int]]:
        """Requests that decode first, then prompts in chunks; new requests while there is room."""
        left = self.max_num_batched_tokens
        work: list[tuple[Request, int]] = []
        queue = sorted(self.running, key=lambda r: len(r.tokens) - r.computed > 1)
        for request in queue:
            n = min(len(request.tokens) - request.computed, left)
            if n > 0 and request in self.running and self._grow(request, n, [r for r, _ in work]):
                work.append((request, n))
                left -= n
        while self.waiting and left > 0 and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            n = min(len(request.tokens), left)
            if self._missing(request, n) > len(self.free):
                break
            self._grow(request, n, [])
            self.running.append(self.waiting.pop(0))
            work.append((request, n))
            left -= n
        return work

    def _missing(self, request: Request, n: int) -> int:
        return -(-(request.computed + n) // self.block_size) - len(request.pages)

    def _grow(self, request: Request, n: int, busy: list[Request]) -> bool:
        """Pages for n more tokens; the last request that is not in this step makes room."""
        while (missing := self._missing(request, n)) > len(self.free):
            victims = [r for r in self.running if r not in busy]
            victim = victims[-1]
            self._release(victim)
            self.running.remove(victim)
            self.waiting.insert(0, victim)
            self.preempted += 1
            if victim is request:
                return False
        request.pages += [self.free.pop() for _ in range(max(missing, 0))]
        return True

    def _release(self, request: Request) -> None:
        self.free += reversed(request.pages)
        request.pages, request.computed = [], 0
