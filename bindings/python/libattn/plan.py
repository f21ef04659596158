# SPDX-License-Identifier: Apache-2.0
"""Batch planning and KV-cache accounting on the host: the functions of <attn/attn_plan.h> over Python's
integers.

Integer arguments are lists, array.array, numpy arrays or CPU tensors; results are array.array, which
numpy.asarray and torch.frombuffer take without a copy. Rules: doc/semantics.md 1.2 to 1.4, 3.10, 6.4 to 6.9.
"""

from __future__ import annotations

import array
import ctypes
from dataclasses import dataclass
from typing import Any, Optional, Sequence

from . import _abi
from ._load import call, library
from .errors import invalid
from .memory import HostInts, IntsLike, host_ints, host_table
from .problem import Problem, ProblemLike

__all__ = [
    "Split",
    "Split3",
    "KVSpec",
    "split",
    "split3",
    "reorder",
    "reorder_threshold",
    "slot_mapping",
    "cross_slots",
    "expand_blocks",
    "common_prefix",
    "use_cascade",
    "mla_workspace",
    "kv_spec",
    "layer_index",
    "resolve_kv_cache_dtype",
    "mm_seqlen_bucket",
    "mm_batch_bucket",
]


def _ints(source: Any, param: str, itemsize: int = 4) -> HostInts:
    return source if isinstance(source, HostInts) else host_ints(source, param, itemsize)


def _table(source: Any, param: str = "block_table") -> HostInts:
    return source if isinstance(source, HostInts) else host_table(source, param)


def _zeros(code: str, n: int) -> array.array[int]:
    return array.array(code, bytes(array.array(code).itemsize * n))


def _at(numbers: array.array[int]) -> int:
    return numbers.buffer_info()[0]


@dataclass(frozen=True)
class Split:
    """Where the decode part of a batch ends."""

    num_decodes: int
    num_prefills: int
    num_decode_tokens: int
    num_prefill_tokens: int


@dataclass(frozen=True)
class Split3:
    num_decodes: int
    num_extends: int
    num_prefills: int
    num_decode_tokens: int
    num_extend_tokens: int
    num_prefill_tokens: int


def _fields(struct: Any) -> dict[str, int]:
    return {name: getattr(struct, name) for name, *_ in struct._fields_}


def split(
    query_start_loc: IntsLike,
    threshold: int = 1,
    *,
    require_uniform: bool = False,
    is_prefilling: Optional[IntsLike] = None,
) -> Split:
    """Splits a batch whose decodes come first at its first prefill; requests of at most threshold query
    tokens are decodes, but never those with is_prefilling."""
    starts = _ints(query_start_loc, "query_start_loc")
    flags = _abi.ATTN_SPLIT_REQUIRE_UNIFORM if require_uniform else 0
    prefilling = None
    if is_prefilling is not None:
        flags |= _abi.ATTN_SPLIT_SHORT_EXTEND_IS_PREFILL
        prefilling = _ints(is_prefilling, "is_prefilling", 1)
        _same(prefilling, len(starts) - 1, "is_prefilling")
    out = _abi.attn_split_t()
    call(
        "attn_plan_split",
        starts.address,
        len(starts) - 1,
        prefilling and prefilling.address,
        threshold,
        flags,
        ctypes.addressof(out),
    )
    return Split(**_fields(out))


def split3(query_start_loc: IntsLike, seq_lens: IntsLike, threshold: int = 1) -> Split3:
    """Decodes, extends (longer, with context) and prefills (longer, without)."""
    starts, lengths = _ints(query_start_loc, "query_start_loc"), _ints(seq_lens, "seq_lens")
    _same(lengths, len(starts) - 1, "seq_lens")
    out = _abi.attn_split3_t()
    call("attn_plan_split3", starts.address, lengths.address, len(lengths), threshold, ctypes.addressof(out))
    return Split3(**_fields(out))


def _same(numbers: HostInts, n: int, param: str) -> None:
    if len(numbers) != n:
        raise invalid(param, f"{param} has {len(numbers)} entries; expected {n}")


def reorder(
    context_lens: IntsLike, query_lens: IntsLike, threshold: int, is_prefilling: Optional[IntsLike] = None
) -> tuple[array.array[int], bool]:
    """(the request that belongs at each place, whether any moves): decode, short extend, long extend,
    prefill."""
    context, query = _ints(context_lens, "context_lens"), _ints(query_lens, "query_lens")
    _same(query, len(context), "query_lens")
    prefilling = _ints([0] * len(context) if is_prefilling is None else is_prefilling, "is_prefilling", 1)
    _same(prefilling, len(context), "is_prefilling")
    order, moved = _zeros("i", len(context)), ctypes.c_int32()
    call(
        "attn_plan_reorder",
        context.address,
        query.address,
        prefilling.address,
        len(context),
        threshold,
        _at(order),
        ctypes.addressof(moved),
    )
    return order, bool(moved.value)


def reorder_threshold(
    base: int,
    *,
    spec_as_decode: bool = False,
    num_spec_tokens: int = 0,
    parallel_drafting: bool = False,
    dcp_world_size: int = 1,
    dcp_varlen: bool = False,
) -> int:
    """The threshold to use; 0: no reordering."""
    return int(
        library.attn_plan_reorder_threshold(
            base, spec_as_decode, num_spec_tokens, parallel_drafting, dcp_world_size, dcp_varlen
        )
    )


def slot_mapping(
    query_start_loc: IntsLike,
    seq_lens: IntsLike,
    block_table: Any,
    *,
    block_size: int,
    num_tokens: Optional[int] = None,
    num_blocks: int = 0,
    manager_block: int = 0,
) -> array.array[int]:
    """Cache slot of each new token, int64; entries from T to num_tokens are -1."""
    starts, lengths = _ints(query_start_loc, "query_start_loc"), _ints(seq_lens, "seq_lens")
    table = _table(block_table)
    _same(lengths, len(starts) - 1, "seq_lens")
    if len(table) < len(lengths):
        raise invalid(
            "block_table",
            f"block_table has {len(table)} rows; expected one for each of {len(lengths)} requests",
        )
    if num_tokens is None:
        num_tokens = ctypes.c_int32.from_address(starts.address + 4 * len(lengths)).value
    slots = _zeros("q", max(num_tokens, 0))
    params = _abi.attn_slot_params_t(
        block_size=block_size, num_blocks=num_blocks, manager_block=manager_block
    )
    call(
        "attn_plan_slot_mapping",
        ctypes.addressof(params),
        starts.address,
        lengths.address,
        len(lengths),
        table.address,
        table.shape[1] if len(table.shape) == 2 else 0,
        num_tokens,
        _at(slots),
    )
    return slots


def cross_slots(
    encoder_seq_lens: IntsLike, num_computed: IntsLike, block_table: Any, *, block_size: int
) -> array.array[int]:
    """Slots of encoder tokens for cross attention, of the requests without computed tokens."""
    lengths, computed, table = (
        _ints(encoder_seq_lens, "encoder_seq_lens"),
        _ints(num_computed, "num_computed"),
        _table(block_table),
    )
    _same(computed, len(lengths), "num_computed")
    if len(table) < len(lengths):
        raise invalid("block_table", f"block_table has {len(table)} rows; expected {len(lengths)}")
    numbers: Any = (ctypes.c_int32 * len(lengths)).from_address(lengths.address) if len(lengths) else []
    slots, count = _zeros("q", sum(max(n, 0) for n in numbers)), ctypes.c_int64()
    call(
        "attn_plan_cross_slots",
        lengths.address,
        computed.address,
        len(lengths),
        table.address,
        table.shape[1] if len(table.shape) == 2 else 0,
        block_size,
        _at(slots),
        len(slots),
        ctypes.addressof(count),
    )
    return slots[: count.value]


def expand_blocks(manager_blocks: IntsLike, manager_block: int, block_size: int) -> array.array[int]:
    """Kernel blocks of manager blocks: b becomes b*f .. b*f+f-1 with f = manager_block / block_size."""
    blocks = _ints(manager_blocks, "manager_blocks")
    out = _zeros("i", len(blocks) * max(manager_block // max(block_size, 1), 1))
    call("attn_plan_expand_blocks", blocks.address, len(blocks), manager_block, block_size, _at(out))
    return out


def common_prefix(block_table: Any, seq_lens: IntsLike, block_size: int) -> int:
    """Leading tokens whose blocks all requests share."""
    table, lengths = _table(block_table), _ints(seq_lens, "seq_lens")
    return int(
        library.attn_plan_common_prefix(
            table.address,
            table.shape[1] if len(table.shape) == 2 else 0,
            lengths.address,
            len(lengths),
            block_size,
        )
    )


def use_cascade(
    query_lens: IntsLike,
    *,
    common_prefix_len: int,
    num_heads: int,
    num_kv_heads: int,
    num_sms: int,
    has_alibi: bool = False,
    has_sliding_window: bool = False,
    has_local_attention: bool = False,
    dcp_world_size: int = 1,
) -> bool:
    """Whether cascade attention pays."""
    lengths = _ints(query_lens, "query_lens")
    params = _abi.attn_cascade_params_t(
        common_prefix_len=common_prefix_len,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        has_alibi=has_alibi,
        has_sliding_window=has_sliding_window,
        has_local_attention=has_local_attention,
        dcp_world_size=dcp_world_size,
        num_sms=num_sms,
    )
    return bool(library.attn_plan_use_cascade(ctypes.addressof(params), lengths.address, len(lengths)))


def mla_workspace(
    *, block_size: int, max_num_seqs: int, max_model_len: int, topk: int = 0, cp_world: int = 1
) -> tuple[int, int]:
    """(context tokens of one chunk of the whole batch, latent rows to allocate for them)."""
    params = _abi.attn_mla_workspace_t(
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        topk=topk,
        cp_world=cp_world,
    )
    tokens, rows = ctypes.c_int64(), ctypes.c_int64()
    call(
        "attn_plan_mla_workspace", ctypes.addressof(params), ctypes.addressof(tokens), ctypes.addressof(rows)
    )
    return tokens.value, rows.value


class KVSpec:
    """What one layer keeps per block; members of attn_kv_spec_t by name."""

    def __init__(self, struct: _abi.attn_kv_spec_t) -> None:
        self._struct = struct

    def __getattr__(self, name: str) -> int:
        if name.startswith("_"):
            raise AttributeError(name)
        return int(getattr(self._struct, name))

    @property
    def kind_name(self) -> str:
        """ "full_attention" and the like."""
        return (library.attn_kv_spec_kind_name(self._struct.kind) or b"").decode()

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of one layer, padding and alignment applied."""
        n = ctypes.c_int64()
        call("attn_kv_spec_page_bytes", ctypes.addressof(self._struct), ctypes.addressof(n))
        return n.value

    def max_blocks(
        self,
        max_model_len: int,
        *,
        inflight_tokens: int = 0,
        max_encoder_tokens: int = 0,
        dcp_world_size: int = 1,
    ) -> int:
        """Most blocks that one request can hold."""
        n = ctypes.c_int64()
        call(
            "attn_kv_spec_max_blocks",
            ctypes.addressof(self._struct),
            max_model_len,
            inflight_tokens,
            max_encoder_tokens,
            dcp_world_size,
            ctypes.addressof(n),
        )
        return n.value

    def __repr__(self) -> str:
        return f"<KVSpec {self.kind_name}, {self._struct.block_size} tokens a block>"


def kv_spec(problem: ProblemLike, block_size: int = 16) -> KVSpec:
    """The spec of a layer; block_size counts where the problem gives none."""
    struct, described = _abi.attn_kv_spec_t(), Problem.of(problem)
    call("attn_kv_spec_of", described.address, block_size, ctypes.addressof(struct))
    return KVSpec(struct)


def layer_index(name: str) -> int:
    """The single integer component of a dotted layer name."""
    index = ctypes.c_int32()
    call("attn_layer_index", name.encode(), ctypes.addressof(index))
    return index.value


def resolve_kv_cache_dtype(
    name: str, kv_cache_dtype: str, *, has_sliding_window: bool = False, skip: Sequence[str] = ()
) -> str:
    """The cache dtype of one layer: as given, or "auto" if a rule of `skip` names it."""
    try:
        wanted = _abi.KVDType[kv_cache_dtype.upper()]
    except KeyError:
        raise invalid(
            "kv_cache_dtype",
            f"kv_cache_dtype is '{kv_cache_dtype}'; expected one of "
            f"{', '.join(k.name.lower() for k in _abi.KVDType)}",
        ) from None
    rules = (ctypes.c_char_p * max(len(skip), 1))(*(rule.encode() for rule in skip))
    resolved = ctypes.c_uint32()
    call(
        "attn_layer_resolve_kv_cache_dtype",
        name.encode(),
        wanted,
        has_sliding_window,
        ctypes.addressof(rules),
        len(skip),
        ctypes.addressof(resolved),
    )
    return _abi.KVDType(resolved.value).name.lower()


def mm_seqlen_bucket(max_seqlen: int) -> int:
    """The bucket of a length, for multimodal encoders under graph capture."""
    return int(library.attn_mm_seqlen_bucket(max_seqlen))


def mm_batch_bucket(num_seqs: int) -> int:
    """The bucket of a number of sequences."""
    return int(library.attn_mm_batch_bucket(num_seqs))
