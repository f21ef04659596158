# SPDX-License-Identifier: Apache-2.0
"""SGLang on libattn: the entry point of `sglang.srt.plugins`.

    python -m sglang.launch_server --model-path MODEL --attention-backend libattn --page-size 16

Which of libattn's backends serves a layer is libattn's configuration ($ATTN_CONFIG); what none serves is
refused with its reasons. Nothing of SGLang is imported before register() runs.
"""

from __future__ import annotations

from typing import Any

__all__ = ["NAME", "register"]

NAME = "libattn"


def register() -> None:
    """Tells SGLang about the backend; called by SGLang in each of its processes. May be called again."""
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    if NAME not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([NAME])
    register_attention_backend(NAME)(_create)


def _create(runner: Any) -> Any:
    from .radix_backend import RadixBackend

    return RadixBackend(runner)
