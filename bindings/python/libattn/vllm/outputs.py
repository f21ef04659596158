# SPDX-License-Identifier: Apache-2.0
"""Outputs that the attention quantises: vLLM's fusion pass takes the quantisation behind a layer out of the
compiled model and hands its scales to the layer's calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch
from vllm.model_executor.layers.quantization.utils.quant_utils import kFp8StaticTensorSym, kNvfp4Dynamic


@dataclass(frozen=True)
class Output:
    """What a layer's calls write, in libattn's words."""

    dtype: str
    feature: str


FP8 = Output("fp8_e4m3", "out_fp8_static")
NVFP4 = Output("uint8", "out_nvfp4")


def of_key(key: Any) -> Optional[Output]:
    """vLLM's description of a quantisation; None: not one of libattn's that vLLM fuses."""
    if key == kFp8StaticTensorSym and key.dtype is torch.float8_e4m3fn:
        return FP8
    return NVFP4 if key == kNvfp4Dynamic else None


def of_call(scale: Any, block_scale: Any) -> Optional[Output]:
    """What a call with these scales writes; None: the model's own dtype."""
    if scale is None and block_scale is None:
        return None
    if scale is None:
        raise NotImplementedError("libattn's backend for vLLM writes no output with block scales alone")
    return FP8 if block_scale is None else NVFP4


class Scales:
    """A layer's scales as libattn takes them."""

    def __init__(self) -> None:
        self._given: Any = None
        self._inverse: Any = None

    def __call__(self, scale: torch.Tensor, block_scale: Optional[torch.Tensor]) -> dict[str, torch.Tensor]:
        if block_scale is None:
            return {"output_scale": scale.reshape(1)}
        if scale is not self._given:  # a weight: the same from call to call. libattn's is the reciprocal
            self._given, self._inverse = scale, scale.reshape(1).reciprocal()
        # rows padded to 128 and groups to 4, in tiles of 512 bytes
        rows, groups = block_scale.shape
        tiles = block_scale.view(torch.float8_e4m3fn).view(rows // 128, groups // 4, 32, 4, 4)
        return {"output_scale": self._inverse, "output_block_scale": tiles}
