# SPDX-License-Identifier: Apache-2.0
"""Decode steps in CUDA graphs: each graph reads metadata from buffers of its own, which are filled anew
before each replay. Tables, lengths and slots are vLLM's tensors, whose addresses stay."""

from __future__ import annotations

from typing import Any

import libattn


def is_recorded(vllm_config: Any) -> bool:
    """Whether vLLM may record whole forwards, with the attention in them."""
    mode = vllm_config.compilation_config.cudagraph_mode
    return mode is not None and bool(mode.has_full_cudagraphs())


class Graphs:
    """The buffers of graphs, by the number of requests that they were recorded for."""

    def __init__(self) -> None:
        self._sizes: set[int] = set()
        self._spaces: dict[tuple[int, libattn.Group], libattn.Space] = {}

    def begin(self, c: Any) -> None:
        """The batch of a graph that is going to be recorded."""
        if c.max_query_len > 1:
            raise NotImplementedError(
                f"libattn's backend for vLLM records decode steps of one token a request, not of "
                f"{c.max_query_len}; say -cc.cudagraph_mode=PIECEWISE"
            )
        self._sizes.add(c.num_reqs)

    def has(self, c: Any) -> bool:
        """Whether a graph may compute this batch. Computed without it, such a batch gives the same."""
        return c.max_query_len <= 1 and c.num_reqs in self._sizes

    def build(self, group: libattn.Group, batch: libattn.Batch) -> None:
        space = self._spaces.get((batch.num_reqs, group))
        if space is None:
            space = self._spaces[batch.num_reqs, group] = group.new_space()
        elif space.event is not None:
            space.event.synchronize()  # the copy of the last build has left the host's buffer
        group.build_metadata(batch, space=space)
