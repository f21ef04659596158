# SPDX-License-Identifier: Apache-2.0
"""transformers on libattn.

    import libattn.hf
    libattn.hf.register()
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="libattn")
    model.generate(**inputs, past_key_values=libattn.hf.PagedCache(model, batch_size=4, max_len=4096), max_new_tokens=64)

Encoders, vision towers and prompts without a cache need no more than the attn_implementation. Engine serves requests that
come and go (continuous batching). BLOOM and MPT, whose attention transformers does not let one choose: patch(model).
Whatever has no counterpart raises libattn.UnsupportedError with the reasons; nothing
falls back to another implementation.
"""

from __future__ import annotations

import logging
from typing import Any, Optional

from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

from ..context import Context
from . import call
from .cache import PagedCache, latent
from .engine import Engine, Request
from .patch import KEPT, PATCHED, kept_mask, patch
from .plain import Plain

__all__ = ["NAMES", "PATCHED", "Engine", "PagedCache", "Request", "default_context", "patch", "register"]

# Vision towers hand over cu_seqlens in one call to names with "flash" in them, and split their rows for others.
NAMES = ("libattn", "libattn_flash")
_plain: Optional[Plain] = None
_logger = logging.getLogger("libattn")
_LOG = {"error": _logger.error, "warn": _logger.warning, "info": _logger.info, "debug": _logger.debug}


def register(context: Optional[Context] = None, backend: Optional[str] = None) -> None:
    """Makes attn_implementation="libattn" known. context: None: a new one, as the configuration says, whose messages go to
    the logger "libattn"; backend: by name, it or none. Again: what is loaded after it uses the new context."""
    global _plain
    _plain = Plain(context or Context(log=lambda level, text: _LOG[level]("%s", text)), backend)
    for name in NAMES:
        AttentionInterface.register(name, attention)
        AttentionMaskInterface.register(name, flash_attention_mask)
    AttentionInterface.register(KEPT, attention)
    AttentionMaskInterface.register(KEPT, kept_mask)


def default_context() -> Context:
    """The context of register(), which is called if it was not."""
    return _registered().context


def _registered() -> Plain:
    if _plain is None:
        register()
    assert _plain is not None
    return _plain


def attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, dropout: float = 0.0, **arguments: Any
) -> tuple[Any, None]:
    """The attention function of transformers: query [B, H, T, D], key and value [B, Hkv, S, D], attention_mask None or
    [B, S] -> ([B, T, H, Dv], None)."""
    compressed = getattr(latent, "layer", None)
    latent.layer = None  # for this call alone: if it fails, the next one, without pages, must not take its rows
    call.refuse_unserved(module, attention_mask, {**arguments, "dropout": dropout})
    arguments = call.with_rel_bias(module, arguments)
    pages = getattr(key, "libattn_pages", None)
    if pages is not None:
        return pages.cache.attend(pages, module, query, key, value, attention_mask, scaling, arguments), None
    if compressed is not None and compressed.unwritten is not None and hasattr(module, "kv_b_proj"):
        return compressed.cache.attend_latent(compressed, module, query, attention_mask, scaling, arguments), None
    return _registered().attend(module, query, key, value, attention_mask, scaling, arguments), None
