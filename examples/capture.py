#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Captures what the attention layers of a Hugging Face model see, for `attn run`.

For each chosen attention layer: query and key (after projection, norms and rotary embedding), value, and the model's
own attention output before the output projection, as one safetensors file. examples/data/README.md describes the file.

    pip install torch transformers
    python capture.py --model DIR_OR_NAME --text sentences.txt --layers 0,5 --output model.safetensors

It works by taking the place of the function that the model computes its attention with: the registry of attention
functions in transformers 4.48 and later, and torch's scaled_dot_product_attention below and for models that do not use
the registry. So it needs to know nothing about the model. The layer's name is the module that called.
"""
import argparse
import inspect
import json
import re
import struct
import sys

import torch
import torch.nn.functional as F
import transformers

ATTENTION_CLASS = re.compile(r"attention|attn", re.IGNORECASE)
DTYPE_WORDS = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
SAFETENSORS_WORDS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


class Recorder:
    """Collects the calls of one forward pass, each with the name of the attention module that made it."""

    def __init__(self, model):
        self.calls = []
        self.stack = []
        self.lengths = None
        for name, module in model.named_modules():
            if ATTENTION_CLASS.search(type(module).__name__):
                module.register_forward_pre_hook(self._enter(name), with_kwargs=True)
                module.register_forward_hook(self._leave, with_kwargs=True)

    def _enter(self, name):
        def hook(module, args, kwargs):
            self.stack.append((name, module))

        return hook

    def _leave(self, module, args, kwargs, output):
        self.stack.pop()

    def add(self, query, key, value, output, scale, causal, window=0, soft_cap=0.0, sinks=None):
        """All as [B, heads, tokens, head size]."""
        name, _ = self.stack[-1] if self.stack else ("attention.%d" % len(self.calls), None)
        self.calls.append(dict(name=name, query=query, key=key, value=value, output=output, scale=scale,
                               causal=causal, window=window, soft_cap=soft_cap, sinks=sinks))


def patch_sdpa(recorder):
    """Wraps torch's function; returns what undoes it."""
    original = F.scaled_dot_product_attention

    def wrapped(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **kwargs):
        output = original(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
                          **kwargs)
        recorder.add(query, key, value, output, scale or query.shape[-1] ** -0.5,
                     is_causal or mask_is_causal(attn_mask, query.shape[2], key.shape[2]))
        return output

    F.scaled_dot_product_attention = wrapped
    torch.nn.functional.scaled_dot_product_attention = wrapped
    return lambda: setattr(F, "scaled_dot_product_attention", original)


def register_interface(recorder):
    """The registry of transformers 4.48 and later: the model's own eager function computes, we look on."""
    from transformers import AttentionInterface

    def capture(module, query, key, value, attention_mask, **kwargs):
        eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward")
        wanted = inspect.signature(eager).parameters
        takes_all = any(p.kind == p.VAR_KEYWORD for p in wanted.values())
        passed = {k: v for k, v in kwargs.items() if takes_all or k in wanted}
        if attention_mask is None:  # eager functions know the mask alone, never an is_causal flag
            causal = kwargs.get("is_causal")
            causal = getattr(module, "is_causal", False) if causal is None else causal
            if causal and query.shape[2] > 1:
                full = torch.full((query.shape[2], key.shape[2]), torch.finfo(query.dtype).min)
                attention_mask = torch.triu(full, key.shape[2] - query.shape[2] + 1)[None, None].to(query)
        output, weights = eager(module, query, key, value, attention_mask, **passed)
        recorder.add(query, key, value, output.transpose(1, 2), kwargs.get("scaling") or query.shape[-1] ** -0.5,
                     mask_is_causal(attention_mask, query.shape[2], key.shape[2]),
                     kwargs.get("sliding_window") or 0, kwargs.get("softcap") or 0.0, kwargs.get("s_aux"))
        return output, weights

    AttentionInterface.register("attn_capture", capture)
    try:  # masks in the form that the eager functions want
        from transformers.masking_utils import AttentionMaskInterface, eager_mask
        AttentionMaskInterface.register("attn_capture", eager_mask)
    except ImportError:
        pass
    return "attn_capture"


def mask_is_causal(mask, num_queries, num_keys):
    """Whether the first row hides the last key: lengths are known apart, so only the triangle is asked for."""
    if mask is None or num_queries == 1:
        return False
    row = mask[0, 0, 0]
    hidden = ~row if row.dtype == torch.bool else row < -1e4
    return bool(hidden[num_keys - num_queries + 1])


def problem_text(call, role, dtype):
    """The problem in libattn's own words; `attn run` parses this."""
    heads, head_size = call["query"].shape[1], call["query"].shape[3]
    words = ["role=" + role, "mask=" + ("causal" if call["causal"] else "full"), "dtype=" + DTYPE_WORDS[dtype],
             "num_heads=%d" % heads, "num_kv_heads=%d" % call["key"].shape[1], "head_size=%d" % head_size]
    if call["value"].shape[3] != head_size:
        words.append("head_size_v=%d" % call["value"].shape[3])
    if call["window"]:
        words.append("sliding_window=%d" % call["window"])
    words.append("scale=%.17g" % call["scale"])
    if call["soft_cap"]:
        words.append("logits_soft_cap=%.17g" % call["soft_cap"])
    if call["sinks"] is not None:
        words.append("features=sink")
    return " ".join(words)


def undo_repeat(call, num_kv_heads):
    """Some models repeat K and V for each query head of a group; keep one of each if they are equal indeed."""
    heads = call["key"].shape[1]
    if not num_kv_heads or heads == num_kv_heads or heads % num_kv_heads:
        return
    group = heads // num_kv_heads
    for what in ("key", "value"):
        one = call[what][:, ::group]
        if torch.equal(one.repeat_interleave(group, 1), call[what]):
            call[what] = one


def pack(tensor, lengths, dtype):
    """[B, H, S, D] with right padding -> [T, H, D] without."""
    rows = [tensor[b, :, :n].transpose(0, 1) for b, n in enumerate(lengths)]
    return torch.cat(rows).contiguous().to(dtype)


def save(path, tensors, metadata):
    """The safetensors format, written by hand: 8 bytes of header length, JSON, data."""
    header, data, at = {"__metadata__": metadata}, [], 0
    for name, tensor in tensors.items():
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": SAFETENSORS_WORDS[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def load_model(name, as_decoder):
    config = transformers.AutoConfig.from_pretrained(name)
    if as_decoder:
        config.is_decoder = True
    for implementation in ("sdpa", "eager"):
        try:
            return transformers.AutoModel.from_pretrained(name, config=config, torch_dtype=torch.float32,
                                                          attn_implementation=implementation).eval()
        except ValueError as error:
            failure = error
    raise failure


def role_of(call, is_encoder_decoder):
    """libattn's role of a layer, from its mask and, in models of two halves, from its name."""
    if not is_encoder_decoder:
        return "decoder" if call["causal"] else "encoder_only"
    if re.search(r"encoder_attn|cross|EncDec", call["name"]):
        return "encoder_decoder"
    return "encoder" if call["name"].startswith("encoder") else "decoder"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="a Hugging Face model: folder or name")
    parser.add_argument("--text", required=True, help="one request a line")
    parser.add_argument("--layers", default="0", help="numbers of the attention calls to keep, or 'all'")
    parser.add_argument("--output", required=True, help="the safetensors file to write")
    parser.add_argument("--dtype", default="f32", choices=["f32", "f16", "bf16"], help="of the file; the model runs in f32")
    parser.add_argument("--role", help="libattn's role; by default as the mask and the layer's name say")
    parser.add_argument("--as-decoder", action="store_true", help="set is_decoder: a BERT-like model runs causally")
    args = parser.parse_args()
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[args.dtype]

    with open(args.text, encoding="utf-8") as f:
        lines = [line.strip() for line in f if line.strip()]
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    inputs = tokenizer(lines, return_tensors="pt", padding=True)
    lengths = inputs["attention_mask"].sum(1).tolist()
    model = load_model(args.model, args.as_decoder)
    if model.config.is_encoder_decoder:  # the decoder reads the same text
        inputs["decoder_input_ids"] = inputs["input_ids"]
        inputs["decoder_attention_mask"] = inputs["attention_mask"]
    takes = inspect.signature(model.forward).parameters
    inputs = {name: value for name, value in inputs.items() if name in takes}
    recorder = Recorder(model)
    undo = lambda: None
    try:
        model.set_attn_implementation(register_interface(recorder))
    except (ImportError, AttributeError, ValueError):
        undo = patch_sdpa(recorder)
    with torch.no_grad():
        model(**inputs)
    if not recorder.calls:  # the model does not use the registry
        undo = patch_sdpa(recorder)
        with torch.no_grad():
            model(**inputs)
    undo()
    if not recorder.calls:
        sys.exit("capture.py: %s computes attention in neither way that can be captured here" % args.model)

    wanted = range(len(recorder.calls)) if args.layers == "all" else [int(n) for n in args.layers.split(",")]
    cu_seqlens = [0]
    for n in lengths:
        cu_seqlens.append(cu_seqlens[-1] + n)
    metadata = {"format": "attn-activations", "model": args.model.rstrip("/").split("/")[-1],
                "cu_seqlens": ",".join(map(str, cu_seqlens)), "layers": ",".join(map(str, wanted)),
                "torch": torch.__version__, "transformers": transformers.__version__}
    tensors = {}
    for n in wanted:
        call = recorder.calls[n]
        undo_repeat(call, getattr(model.config, "num_key_value_heads", None))
        role = args.role or role_of(call, model.config.is_encoder_decoder)
        prefix = "layers.%d." % n
        metadata[prefix + "name"] = call["name"]
        metadata[prefix + "problem"] = problem_text(call, role, dtype)
        for what in ("query", "key", "value", "output"):
            tensors[prefix + what] = pack(call[what], lengths, dtype)
        if call["sinks"] is not None:
            tensors[prefix + "sinks"] = call["sinks"].reshape(-1).float()
    save(args.output, tensors, metadata)
    print("%s: %d layers, %d requests, %d tokens" % (args.output, len(wanted), len(lengths), cu_seqlens[-1]))


if __name__ == "__main__":
    main()
