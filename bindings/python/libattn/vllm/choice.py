# SPDX-License-Identifier: Apache-2.0
"""What stands in vLLM's registry, decided when vLLM asks for it. CUSTOM: a dense or a latent backend, as the model
is. The backends of a platform that ignores --attention-backend: vLLM's own class, or libattn's if the flag says
CUSTOM or LIBATTN_VLLM says override."""

from __future__ import annotations

import os
from typing import Any

from vllm.config import get_current_vllm_config_or_none
from vllm.platforms import current_platform
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.backends.registry import AttentionBackendEnum

# imported when they are asked for
_OURS = {
    "CPU_ATTN": f"{__package__}.backend.CpuAttn",
    "CPU_MLA": f"{__package__}.latent.CpuLatent",
    "AMX_MLA": None,
}


def is_asked_for() -> bool:
    """Whether this engine's layers are to be libattn's."""
    if os.environ.get("LIBATTN_VLLM") == "override":
        return True
    config = get_current_vllm_config_or_none()
    return config is not None and config.attention_config.backend is AttentionBackendEnum.CUSTOM


def _custom() -> str:
    config = get_current_vllm_config_or_none()
    model = None if config is None else config.model_config
    is_latent = model is not None and model.use_mla and not current_platform.is_cpu()
    return f"{__package__}.{'latent.CudaLatent' if is_latent else 'backend.Custom'}"


def __getattr__(name: str) -> Any:
    if name == "CUSTOM":
        return resolve_obj_by_qualname(_custom())
    if name not in _OURS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not is_asked_for():
        return resolve_obj_by_qualname(AttentionBackendEnum[name].value)
    if _OURS[name] is None:
        raise NotImplementedError(
            f"libattn does not take the place of {name}, which packs its weights in its own way; say "
            "LIBATTN_VLLM=override and --attention-backend CPU_MLA, or LIBATTN_VLLM=off"
        )
    return resolve_obj_by_qualname(_OURS[name])
