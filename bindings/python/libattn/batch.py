# SPDX-License-Identifier: Apache-2.0
"""One step's batch."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Optional, Sequence

from . import _abi, plan
from ._load import module_if_loaded
from .errors import invalid
from .memory import HostInts, IntsLike, host_ints, host_table, torch_device
from .problem import Device
from .tensors import DLPACK_TYPES, TensorView, contiguous_strides

if TYPE_CHECKING:
    from .group import Group

__all__ = ["Batch"]


class Batch:
    """The requests of one step, common to all layers of a group; made by Group.new_batch, which says what
    each argument is. Keeps everything it points to; contiguous int32 CPU arrays are not copied, so leave them
    alone until the step's last forward has run."""

    def __init__(
        self,
        group: Group,
        *,
        query_lens: Optional[Sequence[int]] = None,
        query_start_loc: Optional[IntsLike] = None,
        seq_lens: Optional[IntsLike] = None,
        block_table: Any = None,
        slot_mapping: Any = None,
        query_start_loc_device: Any = None,
        seq_lens_device: Any = None,
        encoder_seq_lens: Optional[IntsLike] = None,
        causal: Optional[Sequence[bool]] = None,
        mm_prefix_ranges: Any = None,
        rswa_prefix_lens: Optional[IntsLike] = None,
        key_start_loc: Optional[IntsLike] = None,
        common_prefix_len: int = 0,
        max_query_len: int = 0,
        max_seq_len: int = 0,
        capture: bool = False,
    ) -> None:
        self._keep: list[Any] = []
        self._device = group.device
        starts = self._starts(query_lens, query_start_loc)
        if seq_lens is None:
            ends = (ctypes.c_int32 * len(starts)).from_address(starts.address)
            seq_lens = [ends[i + 1] - ends[i] for i in range(len(starts) - 1)]
        lengths = host_ints(seq_lens, "seq_lens")
        if len(starts) != len(lengths) + 1:
            raise invalid(
                "seq_lens",
                f"seq_lens has {len(lengths)} entries and query_start_loc {len(starts)}; expected one less",
            )
        self.query_start_loc, self.seq_lens = starts, lengths
        self.num_reqs = len(lengths)
        self.num_tokens = ctypes.c_int32.from_address(starts.address + 4 * self.num_reqs).value
        s = self._struct = _abi.attn_batch_t(
            num_reqs=self.num_reqs,
            num_actual_tokens=self.num_tokens,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            common_prefix_len=common_prefix_len,
            flags=_abi.ATTN_BATCH_CAPTURE if capture else 0,
            query_start_loc_host=starts.address,
            seq_lens_host=lengths.address,
        )
        self.address = ctypes.addressof(s)
        s.query_start_loc = self._on_device(query_start_loc_device, starts, "query_start_loc_device")
        s.seq_lens = self._on_device(seq_lens_device, lengths, "seq_lens_device")
        if block_table is not None:
            table = self._table(block_table)
            if slot_mapping is None and table is not None and encoder_seq_lens is None:
                slot_mapping = plan.slot_mapping(starts, lengths, table, block_size=group.block_size)
        self.slots_address: Optional[int] = None
        if slot_mapping is not None:
            if not hasattr(slot_mapping, "shape"):
                slot_mapping = host_ints(slot_mapping, "slot_mapping", 8)
                s.slot_mapping = self._on_device(None, slot_mapping, "slot_mapping", "int64")
            else:
                s.slot_mapping = self._view(slot_mapping, "slot_mapping")
            self.slots_address = s.slot_mapping
        if encoder_seq_lens is not None:
            numbers = host_ints(encoder_seq_lens, "encoder_seq_lens")
            s.encoder_seq_lens_host = numbers.address
            s.encoder_seq_lens = self._on_device(None, numbers, "encoder_seq_lens")
        if causal is not None:
            as_bytes = host_ints([int(bool(c)) for c in causal], "causal", 1)
            s.causal_host = as_bytes.address
            self._keep.append(as_bytes)
            s.causal = self._on_device(None, host_ints([int(bool(c)) for c in causal], "causal"), "causal")
        if mm_prefix_ranges is not None:
            self._ranges(mm_prefix_ranges)
        if rswa_prefix_lens is not None:
            numbers = host_ints(rswa_prefix_lens, "rswa_prefix_lens")
            s.rswa_prefix_lens_host = numbers.address
            s.rswa_prefix_lens = self._on_device(None, numbers, "rswa_prefix_lens")

        if key_start_loc is not None:
            numbers = host_ints(key_start_loc, "key_start_loc")
            if len(numbers) != self.num_reqs + 1:
                raise invalid(
                    "key_start_loc",
                    f"key_start_loc has {len(numbers)} entries for {self.num_reqs} requests; expected one more",
                )
            s.key_start_loc_host = numbers.address
            self._keep.append(numbers)

    @staticmethod
    def _starts(query_lens: Optional[Sequence[int]], query_start_loc: Optional[IntsLike]) -> HostInts:
        if (query_lens is None) == (query_start_loc is None):
            raise invalid("query_start_loc", "give query_lens or query_start_loc, one of them")
        if query_start_loc is not None:
            starts = host_ints(query_start_loc, "query_start_loc")
            if len(starts) == 0:
                raise invalid(
                    "query_start_loc",
                    "query_start_loc is empty; expected [0, ..], one entry more than requests",
                )
            return starts
        sums = [0]
        for length in query_lens or []:
            sums.append(sums[-1] + int(length))
        return host_ints(sums, "query_lens")

    def _view(self, tensor: Any, name: str) -> int:
        view = tensor if isinstance(tensor, TensorView) else TensorView(tensor, name)
        self._keep.append(view)
        return view.address

    def _on_device(self, given: Any, host: HostInts, name: str, dtype: str = "int32") -> int:
        """The address of a DLTensor on the group's device with these numbers: the caller's, or one made
        here."""
        if given is not None:
            return self._view(given, name)
        if not self._device.is_cpu:
            self._keep.append(host.owner)  # the host reads its own list too
            return self._view(host_tensor(host, dtype, self._device), name)
        view = TensorView(name=name)
        strides = contiguous_strides(host.shape)
        view.point(host.address, (1, 0), DLPACK_TYPES[dtype], host.shape, strides, host.owner)
        self._keep.append(view)
        return view.address

    def _table(self, table: Any) -> Optional[HostInts]:
        """Sets the block table; its numbers if the host has them."""
        view = None
        if hasattr(table, "shape") and not isinstance(table, (list, tuple)):
            view = TensorView(table, "block_table")
            t = view.struct
            if not self._device.is_cpu and t.device_type == self._device.type:
                self._keep.append(view)
                self._struct.block_table = view.address
                return None
            if t.device_type not in (1, 3):
                raise invalid(
                    "block_table",
                    f"block_table is on device type {t.device_type}; expected the CPU or {self._device!r}",
                )
            if self._device.is_cpu and view.dtype == "int32" and len(view.shape) == 2 and _is_dense(view):
                self._keep.append(view)
                self._struct.block_table = view.address
                return HostInts(t.data, view.shape, view)
        host = host_table(table, "block_table")
        self._struct.block_table = self._on_device(None, host, "block_table")
        return host

    def _ranges(self, ranges: Any) -> None:
        rows = [
            [bound for pair in row for bound in pair]
            for row in (ranges.tolist() if hasattr(ranges, "tolist") else ranges)
        ]
        width = max([len(row) for row in rows] + [2])
        flat = host_table([row + [0] * (width - len(row)) for row in rows], "mm_prefix_ranges")
        host = HostInts(flat.address, (len(rows), width // 2, 2), flat.owner)
        self._struct.mm_prefix_ranges = self._on_device(None, host, "mm_prefix_ranges")
        self._struct.mm_prefix_ranges_host, self._struct.num_mm_ranges = host.address, width // 2

    def __repr__(self) -> str:
        return f"<Batch of {self.num_reqs} requests, {self.num_tokens} tokens>"


def _is_dense(view: TensorView) -> bool:
    t = view.struct
    strides = (ctypes.c_int64 * 2).from_address(t.strides)
    return strides[1] == 1 and strides[0] == view.shape[1]


def host_tensor(host: HostInts, dtype: str, device: Device) -> Any:
    """A tensor with these numbers on a device other than the CPU."""
    torch = module_if_loaded("torch")
    if torch is None:
        raise invalid(
            "device",
            "numbers of a batch are copied to the device through torch; import torch, or give all of "
            "query_start_loc_device, seq_lens_device, block_table and slot_mapping on the device",
        )
    n = 1
    for size in host.shape:
        n *= size
    if n == 0:
        return torch.empty(host.shape, dtype=getattr(torch, dtype), device=torch_device(device))
    raw = (ctypes.c_char * (n * (8 if dtype == "int64" else 4))).from_address(host.address)
    return torch.frombuffer(raw, dtype=getattr(torch, dtype)).view(host.shape).to(torch_device(device))
