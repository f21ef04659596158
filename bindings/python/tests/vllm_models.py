# SPDX-License-Identifier: Apache-2.0
"""Small models of random weights, one of each kind of attention, as folders that vLLM loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY = 512
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "initializer_range": 0.08,  # large enough for tokens that depend on the prompt
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _llama(t: Any) -> Any:
    return t.LlamaForCausalLM(t.LlamaConfig(**_COMMON))


def _qwen3(t: Any) -> Any:
    return t.Qwen3ForCausalLM(t.Qwen3Config(**_COMMON))


def _mistral(t: Any) -> Any:
    return t.MistralForCausalLM(t.MistralConfig(**_COMMON, sliding_window=48))


def _gemma2(t: Any) -> Any:
    extra = {"sliding_window": 48, "attn_logit_softcapping": 20.0, "query_pre_attn_scalar": 64}
    return t.Gemma2ForCausalLM(t.Gemma2Config(**_COMMON, **extra))


def _gemma3(t: Any) -> Any:
    extra = {"sliding_window": 48, "sliding_window_pattern": 2, "query_pre_attn_scalar": 64}
    return t.Gemma3ForCausalLM(t.Gemma3TextConfig(**_COMMON, **extra))


def _gpt_oss_all(t: Any) -> Any:
    """Every token goes to every expert: no rounding sends it to another one."""
    return _gpt_oss(t, 4)


def _gpt_oss(t: Any, experts_per_token: int = 2) -> Any:
    import torch

    extra = {"num_local_experts": 4, "num_experts_per_tok": experts_per_token, "sliding_window": 48}
    model = t.GptOssForCausalLM(t.GptOssConfig(**{**_COMMON, **extra}))
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


def _bloom(t: Any) -> Any:
    config = t.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=256, n_layer=4, n_head=4, initializer_range=0.08, bos_token_id=1
    )
    return t.BloomForCausalLM(config)


def _deepseek(t: Any) -> Any:
    # vLLM's MLA prefill on a GPU serves these sizes alone
    mla = {"kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
    mla.update(v_head_dim=128, num_key_value_heads=4, head_dim=64, first_k_dense_replace=4, n_routed_experts=4)
    return t.DeepseekV2ForCausalLM(t.DeepseekV2Config(**{**_COMMON, **mla}))


def _to_fp8(path: Path) -> None:
    """Products in fp8 with static scales, one for each weight and one for what it is multiplied with, as
    vLLM's quantisation "fp8" reads them."""
    import torch
    from safetensors.torch import load_file, save_file

    (file,) = path.glob("*.safetensors")
    weights = load_file(file)
    for name in [n for n in weights if n.endswith("_proj.weight")]:
        w = weights[name]
        scale = w.abs().max() / 448
        weights[name] = (w / scale).to(torch.float8_e4m3fn)
        weights[name + "_scale"] = scale.float()
        weights[name.replace(".weight", ".input_scale")] = torch.tensor(8 / 448)  # of values up to 8
    save_file(weights, file, metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "static"}
    (path / "config.json").write_text(json.dumps(config))


MODELS: dict[str, Callable[[Any], Any]] = {
    "llama": _llama,
    "llama_fp8": _llama,
    "qwen3": _qwen3,
    "mistral": _mistral,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt_oss": _gpt_oss,
    "gpt_oss_all": _gpt_oss_all,
    "bloom": _bloom,
    "deepseek": _deepseek,
}


def make(name: str, folder: Path) -> Path:
    """The model's folder, made unless it is there."""
    path = folder / name
    if not (path / "config.json").exists():
        import torch
        import transformers

        torch.manual_seed(0)
        MODELS[name](transformers).to(torch.float32).save_pretrained(path)
        if name.endswith("_fp8"):
            _to_fp8(path)
    return path
