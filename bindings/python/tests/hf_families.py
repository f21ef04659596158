# SPDX-License-Identifier: Apache-2.0
"""Families of transformers on libattn: random small models, tokens of generate() beside eager's, and the error of logits
beside eager's own, both against eager in float64.

    python3 hf_families.py [--device cuda] [FAMILY ...]    with libattn, torch and transformers importable; ends with 1 if one
                                                           differs
"""

import contextlib
import sys

import torch
import transformers as t
from transformers.utils import logging as _words
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

import libattn
import libattn.hf

SMALL = dict(vocab_size=320, hidden_size=128, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512)
PLAIN = dict(vocab_size=320, hidden_size=128, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4,
             max_position_embeddings=512)
MOE = dict(num_experts_per_tok=2)
DEVICE = "cpu"


def causal(config, **members):
    return lambda: (t.AutoModelForCausalLM, getattr(t, config)(**{**SMALL, **members}))


def encoder(config, model="AutoModel", **members):
    return lambda: (getattr(t, model), getattr(t, config)(**{**PLAIN, **members}))


DECODERS = {
    "Llama": causal("LlamaConfig"),
    "Mistral, window": causal("MistralConfig", sliding_window=9),
    "Qwen2": causal("Qwen2Config"),
    "Qwen3": causal("Qwen3Config", head_dim=32),
    "Qwen3-MoE": causal("Qwen3MoeConfig", head_dim=32, num_experts=4, moe_intermediate_size=64, **MOE),
    "Gemma": causal("GemmaConfig", head_dim=32),
    "Gemma-2": causal("Gemma2Config", head_dim=32, sliding_window=9, query_pre_attn_scalar=24),
    "Gemma-3": causal("Gemma3TextConfig", head_dim=32, sliding_window=9, sliding_window_pattern=2),
    "GPT-OSS": causal("GptOssConfig", head_dim=32, sliding_window=9, num_local_experts=4, **MOE),
    "Phi-3": causal("Phi3Config", pad_token_id=0),
    "Phi": causal("PhiConfig"),
    "Granite": causal("GraniteConfig", attention_multiplier=0.2),
    "Cohere": causal("CohereConfig"),
    "Cohere-2": causal("Cohere2Config", sliding_window=9, sliding_window_pattern=2),
    "OLMo-2": causal("Olmo2Config"),
    "OLMo-3": causal("Olmo3Config", sliding_window=9),
    "SmolLM-3": causal("SmolLM3Config", pad_token_id=0),
    "StableLM": causal("StableLmConfig"),
    "StarCoder-2": causal("Starcoder2Config", sliding_window=None),
    "GLM": causal("GlmConfig", head_dim=32, pad_token_id=0),
    "GLM-4": causal("Glm4Config", head_dim=32, pad_token_id=0),
    "EXAONE-4": causal("Exaone4Config", sliding_window=9, sliding_window_pattern=2),
    "Mixtral": causal("MixtralConfig", num_local_experts=4, **MOE),
    "Llama-4, chunks": causal("Llama4TextConfig", head_dim=32, attention_chunk_size=16, num_local_experts=2,
                              intermediate_size_mlp=192, pad_token_id=0, num_experts_per_tok=1),
    "DeepSeek-V3": causal("DeepseekV3Config", num_key_value_heads=4, q_lora_rank=48, kv_lora_rank=64, qk_rope_head_dim=16,
                          qk_nope_head_dim=32, v_head_dim=32, n_routed_experts=4, n_group=1, topk_group=1,
                          first_k_dense_replace=1, moe_intermediate_size=64, **MOE),
    "GPT-2": lambda: (t.AutoModelForCausalLM, t.GPT2Config(vocab_size=320, n_embd=128, n_layer=3, n_head=4, n_positions=512)),
    "GPT-NeoX": causal("GPTNeoXConfig"),
    "OPT": lambda: (t.AutoModelForCausalLM, t.OPTConfig(vocab_size=320, hidden_size=128, ffn_dim=192, num_hidden_layers=3,
                                                        num_attention_heads=4, max_position_embeddings=512,
                                                        word_embed_proj_dim=128)),
    "BLOOM": lambda: (t.AutoModelForCausalLM, t.BloomConfig(vocab_size=320, hidden_size=128, n_layer=3, n_head=4)),
    "MPT": lambda: (t.AutoModelForCausalLM, t.MptConfig(vocab_size=320, d_model=128, n_layers=3, n_heads=4, max_seq_len=512)),
}
def t5(config, **members):
    return lambda: (t.AutoModelForSeq2SeqLM, getattr(t, config)(**{**dict(
        vocab_size=320, d_model=128, d_kv=32, d_ff=192, num_layers=2, num_decoder_layers=3, num_heads=4,
        relative_attention_num_buckets=16, relative_attention_max_distance=20, decoder_start_token_id=0, pad_token_id=0,
        tie_word_embeddings=True), **members}))


ENCODERS = {
    "BERT": encoder("BertConfig"),
    "RoBERTa": encoder("RobertaConfig", max_position_embeddings=520),
    "ELECTRA": encoder("ElectraConfig"),
    "ModernBERT, windows": encoder("ModernBertConfig", local_attention=16, pad_token_id=0),
}
SEQ2SEQ = {
    "BART": lambda: (t.AutoModelForSeq2SeqLM, t.BartConfig(
        vocab_size=320, d_model=128, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=192, decoder_ffn_dim=192, max_position_embeddings=512, forced_eos_token_id=None)),
    "T5": t5("T5Config"),
    "mT5, gated": t5("MT5Config", feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "UMT5": t5("UMT5Config"),
}


def build(make, dtype, implementation):
    torch.manual_seed(7)
    auto, config = make()
    experts = {"experts_implementation": "eager"} if hasattr(config, "num_experts_per_tok") else {}
    is_patched = implementation == "libattn" and config.model_type in libattn.hf.PATCHED
    model = auto.from_config(config, attn_implementation="eager" if is_patched else implementation, **experts).eval()
    wider = 1.5 if "t5" in config.model_type else 3  # T5 does not scale its scores
    for p in model.parameters():  # than the initial weights, so that tokens vary and sinks count
        if p.dim() > 1:
            p.data.mul_(wider)
    model = model.to(DEVICE, dtype)
    return libattn.hf.patch(model) if is_patched else model


def prompts(vocabulary=320, lengths=(37, 12, 25)):
    g = torch.Generator().manual_seed(3)
    ids, mask = torch.zeros(len(lengths), max(lengths), dtype=torch.long), torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for i, n in enumerate(lengths):  # padded on the left, as generate() wants it
        ids[i, -n:] = torch.randint(5, vocabulary, (n,), generator=g)
        mask[i, -n:] = 1
    return ids.to(DEVICE), mask.to(DEVICE)


@torch.no_grad()
def tokens(make, new=24):
    """(tokens equal, of) in float32, and the engine's requests that are equal too."""
    ids, mask = prompts()
    out = {}
    for name in ("eager", "libattn"):
        model = build(make, torch.float32, name)
        cache = {}
        if name == "libattn":
            pages = libattn.hf.PagedCache(model, len(ids), ids.shape[1] + new)
            cache["past_key_values"] = EncoderDecoderCache(pages, DynamicCache()) if model.config.is_encoder_decoder else pages
        elif model.config.is_encoder_decoder:  # its own would have as many layers as the encoder
            cache["past_key_values"] = EncoderDecoderCache(DynamicCache(), DynamicCache())
        out[name] = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=new, eos_token_id=None, use_cache=True,
                                   pad_token_id=0, **cache)[:, -new:]
    equal = int((out["eager"] == out["libattn"]).sum())
    alone = None
    if not model.config.is_encoder_decoder:
        engine = libattn.hf.Engine(model, num_blocks=10, max_num_batched_tokens=16, max_num_seqs=3, max_len=128)
        lists = [row[m.bool()].tolist() for row, m in zip(ids, mask)]
        got = engine.generate(lists, max_new_tokens=new)
        alone = sum(a == b for a, b in zip(got, out["eager"].tolist())), engine.preempted
    return equal, out["eager"].numel(), alone


@torch.no_grad()
def states(model, ids, mask=None):
    """Logits, or the last hidden states, of the rows that are kept."""
    extra = {} if mask is None else {"attention_mask": mask}
    if model.config.is_encoder_decoder:
        # as many as the longest prompt: cross attention must not be taken for self-attention
        extra["decoder_input_ids"] = torch.arange(5, 42, device=DEVICE)[None].expand(len(ids), -1)
    elif mask is not None and isinstance(model, t.GenerationMixin):
        extra["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    found = model(input_ids=ids, **extra)
    x = found.logits if hasattr(found, "logits") else found.last_hidden_state
    return x.flatten(0, 1) if mask is None or model.config.is_encoder_decoder else x[mask.bool()]


class Choices:
    """Which experts float64 chose, given to other runs: a rounding decides between two of equal score, and what follows of
    another expert is no error of attention. Routers choose by torch.topk, a row a token."""

    def __init__(self):
        self.taken, self.differ, self.of, self.margin = [], 0, 0, 0.0

    @contextlib.contextmanager
    def instead_of(self, choose):
        topk, calls = torch.topk, []
        torch.topk = lambda x, k, **how: choose(topk, calls, x, k, how)
        try:
            yield calls
        finally:
            torch.topk = topk

    def recorded(self, run, rows):
        """The results of run for each row; what it chose is kept."""
        def choose(topk, calls, x, k, how):
            found = topk(x, k, **how)
            ends = topk(x, min(k + 1, x.shape[-1])).values
            calls.append((found.indices, ends[:, k - 1] - ends[:, -1]))
            return found

        results, taken = [], []
        for row in rows:
            with self.instead_of(choose) as calls:
                results.append(run(row))
            taken.append(calls)
        self.taken = [tuple(torch.cat(part) for part in zip(*layer)) for layer in zip(*taken)]
        return results

    def replayed(self, run, mask):
        kept = mask.bool().reshape(-1)

        def choose(topk, calls, x, k, how):
            own, (indices, margins) = topk(x, k, **how).indices, self.taken[len(calls)]
            calls.append(None)
            others = (own[kept].sort(-1).values != indices.sort(-1).values).any(-1)
            self.differ, self.of = self.differ + int(others.sum()), self.of + len(others)
            self.margin = max(self.margin, float(margins[others].max()) if others.any() else 0.0)
            own[kept] = indices
            return torch.return_types.topk((x.gather(-1, own), own))

        with self.instead_of(choose):
            return run()


def errors(make, dtype):
    """The largest error of libattn's and of eager's logits over the largest logit. Exact are eager's in float64, each prompt
    alone (with padding, eager's mask in float64 makes NaN of some models). Bidirectional models get their padding on the right.
    Of a model with experts also the errors with float64's choice of them, and how many choices were other ones."""
    ids, mask = prompts()
    if make in ENCODERS.values() or make in SEQ2SEQ.values():
        ids, mask = (torch.stack([row.roll(int(m.sum())) for row, m in zip(x, mask)]) for x in (ids, mask))
    rows = [row[m.bool()][None] for row, m in zip(ids, mask)]
    wide, choices = build(make, dtype, "eager").double(), Choices()
    exact = torch.cat(choices.recorded(lambda row: states(wide, row), rows))

    def error(found):
        return float((found.double() - exact).abs().max() / exact.abs().max())

    both = [build(make, dtype, name) for name in ("libattn", "eager")]
    plain = [error(states(model, ids, mask)) for model in both]
    if not choices.taken:
        return plain, plain
    alike = [error(choices.replayed(lambda model=model: states(model, ids, mask), mask)) for model in both]
    name = str(dtype).removeprefix("torch.")
    print(f"# {name}: with float64's experts {alike[0]:.1e} / {alike[1]:.1e}; {choices.differ} of {choices.of} choices were other "
          f"ones, float64's margin there at most {choices.margin:.1e}", flush=True)
    return plain, alike


def served(what, *arguments):
    """Its result; None if no backend of libattn serves that, as latent attention in float32 on a GPU."""
    try:
        return what(*arguments)
    except libattn.UnsupportedError as error:
        print(f"# {error}"[:300])
        return None


@torch.no_grad()
def after_refusal(make):
    """None, or what is wrong: a model of latent attention without pages, after one whose pages nobody serves."""
    dtype = torch.float32 if DEVICE == "cpu" else torch.bfloat16
    ids, _ = prompts()
    model, eager = (build(make, dtype, name) for name in ("libattn", "eager"))
    refused = build(make, torch.float32, "libattn")
    try:
        refused(ids, past_key_values=libattn.hf.PagedCache(refused, len(ids), 64, kv_cache_dtype="int4_per_token_head"))
        return "a latent cache of int4_per_token_head was not refused"
    except libattn.UnsupportedError:
        pass
    try:
        ours, theirs = states(model, ids), states(eager, ids)
    except libattn.Error as error:
        return f"after a refusal: {error}"[:200]
    off = float((ours - theirs).abs().max() / theirs.abs().max())
    return None if off < (1e-5 if DEVICE == "cpu" else 0.5) else f"after a refusal logits are {off:.1e} off"


def main(wanted):
    global DEVICE
    if wanted[:1] == ["--device"]:
        DEVICE, wanted = wanted[1], wanted[2:]
    _words.set_verbosity_error()
    libattn.hf.register()
    print(f"libattn {libattn.version()}, transformers {t.__version__}, torch {torch.__version__}, {DEVICE}; seed 7")
    print(f"{'family':22} {'tokens':>9} {'engine':>7}   error of logits: ours / eager's, in float32, bfloat16, float16")
    bad = 0
    for family, make in {**DECODERS, **ENCODERS, **SEQ2SEQ}.items():
        if wanted and not any(w.lower() in family.lower() for w in wanted):
            continue
        try:
            same = (0, 0, None) if family in ENCODERS else served(tokens, make) or (0, 0, None)
            wrong = after_refusal(make) if family.startswith("DeepSeek") else None
            if wrong:
                raise RuntimeError(wrong)
            pairs = [served(errors, make, d) for d in (torch.float32, torch.bfloat16, torch.float16)]
        except Exception as failure:  # noqa: BLE001: one family's failure is a row, not the end
            bad += 1
            print(f"{family:22} {type(failure).__name__}: {str(failure)[:200]}", flush=True)
            continue
        ok = same[0] == same[1] and any(pairs) and all(p is None or p[1][0] < max(2 * p[1][1], 4e-6) for p in pairs)
        ok = ok and (same[2] is None or same[2][0] == 3)
        bad += not ok
        print(f"{family:22} {f'{same[0]}/{same[1]}' if same[1] else '-':>9} {f'{same[2][0]}/3' if same[2] else '-':>7}   "
              + "  ".join("not served" if p is None else f"{p[0][0]:.1e} / {p[0][1]:.1e}" for p in pairs) + ("" if ok else "  DIFFERS"), flush=True)
    print(f"{bad} families differ" if bad else "all families agree")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
