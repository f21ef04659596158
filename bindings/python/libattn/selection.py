# SPDX-License-Identifier: Apache-2.0
"""The record of one decision: which backend, and every reason against the others, as objects."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Optional

from . import _abi
from ._load import library, text_of

__all__ = ["Reason", "Candidate", "Selection"]


@dataclass(frozen=True)
class Reason:
    """Why a backend does not serve a problem."""

    code: int  # _abi.ReasonCode
    name: str  # "HEAD_SIZE"
    param: str  # member of the problem, or feature name
    have: str  # what was asked for
    want: str  # what would be served
    text: str  # one sentence

    def __str__(self) -> str:
        return self.text

    @classmethod
    def at(cls, address: int) -> Reason:
        """A copy of the attn_reason_t at an address."""
        r = _abi.attn_reason_t.from_address(address)
        return cls(
            r.code,
            text_of(library.attn_reason_name(r.code)),
            text_of(r.param),
            text_of(r.have),
            text_of(r.want),
            text_of(r.text),
        )


@dataclass(frozen=True)
class Candidate:
    """One backend of the priority list, in its place."""

    backend: str
    plugin: str  # "" if no loaded plugin has it
    rank: int
    is_chosen: bool
    is_valid: bool
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class Selection:
    """Who serves a problem on a device and why; str() is a table of it."""

    backend: Optional[str]  # None: nobody
    plugin: str
    rule: str  # "explicit" or "priority"
    source: str  # where the rule came from: "default", "/etc/attn/attn.ini:12", "api"
    warning: str  # "" or e.g. the better backends that only the block size ruled out
    block_size: int
    candidates: tuple[Candidate, ...]

    def __bool__(self) -> bool:
        return self.backend is not None

    def __str__(self) -> str:
        lines = [
            f"{self.backend or 'none'} ({self.rule} from {self.source})"
            + (f"; {self.warning}" if self.warning else "")
        ]
        for c in self.candidates:
            verdict = "chosen" if c.is_chosen else "yes" if c.is_valid else "no"
            lines.append(f"  {c.backend:<18} {verdict:<7} {'; '.join(r.text for r in c.reasons)}".rstrip())
        return "\n".join(lines)

    @classmethod
    def take(cls, address: int) -> Selection:
        """A copy of the attn_selection_t at an address, which is freed."""
        try:
            s = _abi.attn_selection_t.from_address(address)
            backend = _abi.attn_backend_t.from_address(s.backend) if s.backend else None
            candidates, at = [], s.candidates
            for _ in range(s.num_candidates):
                c = _abi.attn_candidate_t.from_address(at)
                size = ctypes.sizeof(_abi.attn_reason_t)
                reasons = tuple(Reason.at(c.reasons + i * size) for i in range(c.num_reasons))
                candidates.append(
                    Candidate(
                        text_of(c.backend),
                        text_of(c.plugin),
                        c.rank,
                        bool(c.is_chosen),
                        bool(c.is_valid),
                        reasons,
                    )
                )
                at += c.struct_size
            return cls(
                text_of(backend.name) if backend else None,
                text_of(s.plugin),
                text_of(s.rule),
                text_of(s.source),
                text_of(s.warning),
                s.block_size,
                tuple(candidates),
            )
        finally:
            library.attn_selection_free(address)
