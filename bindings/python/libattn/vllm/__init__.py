# SPDX-License-Identifier: Apache-2.0
"""vLLM on libattn: the entry point of `vllm.general_plugins`.

    vllm serve MODEL --attention-backend CUSTOM        # libattn computes the attention
    LIBATTN_VLLM=override vllm serve MODEL             # it takes the place of vLLM's default backends
    LIBATTN_VLLM=off vllm serve MODEL                  # nothing is registered

Which of libattn's backends serves a layer is libattn's configuration ($ATTN_CONFIG); what none serves is
refused with its reasons. Nothing of vLLM is imported before register() runs.
"""

from __future__ import annotations

import os

__all__ = ["register"]

MODES = ("", "override", "off")


def register() -> None:
    """Tells vLLM about the backends; called by vLLM in each of its processes. May be called again."""
    mode = os.environ.get("LIBATTN_VLLM", "")
    if mode not in MODES:
        raise ValueError(f"LIBATTN_VLLM is '{mode}'; expected 'override', 'off', or nothing")
    if mode == "off":
        return
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, f"{__name__}.choice.CUSTOM")
    # vLLM's CPU platform takes these whatever the flag says: it is read where they are resolved
    for name in ("CPU_ATTN", "CPU_MLA", "AMX_MLA"):
        register_backend(AttentionBackendEnum[name], f"{__name__}.choice.{name}")
    if mode == "override":
        register_backend(AttentionBackendEnum.FLASH_ATTN, f"{__name__}.backend.FlashAttn")
