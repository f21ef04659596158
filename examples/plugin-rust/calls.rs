// SPDX-License-Identifier: Apache-2.0
//! The calls of a step: how much space, plan a batch, write the cache, attend. Nothing here allocates.
use crate::abi::*;
use crate::open::{instance, Instance};
use crate::rules::{attend, query_position, Bf16, Number};
use crate::sdk::*;
use std::mem::{size_of, zeroed};
use std::os::raw::c_void;
use std::ptr;

/// What build_metadata leaves for forward; i32 query_start_loc[num_reqs + 1] and seq_lens[num_reqs] follow
/// it.
#[repr(C)]
struct Plan {
    magic: u64,
    num_reqs: i64,
    num_tokens: i64,
    block_table: *const i32,
    table_stride: i64,
}

const PLAN_MAGIC: u64 = 0x6e61_6c70_7473_7572;

pub fn metadata_bytes(i: &Instance) -> u64 {
    size_of::<Plan>() as u64 + (2 * i.max_seqs as u64 + 1) * 4
}

pub fn workspace_bytes(i: &Instance) -> u64 {
    i.layer.head_size_v as u64 * 8 // one row of the output
}

pub unsafe extern "C" fn space_needed(
    handle: *mut attn_instance_t,
    needed: *mut attn_space_needed_t,
    error: *mut attn_error_t,
) -> i32 {
    guarded(error, |e| {
        let mut n: attn_space_needed_t = zeroed();
        n.alignment = 16;
        n.metadata_bytes = metadata_bytes(instance(handle));
        n.workspace_bytes = workspace_bytes(instance(handle));
        e.give(needed, &n, "needed")
    })
}

pub fn check_buffer(e: Report, name: &str, at: *mut c_void, has: u64, needed: u64) -> Outcome<()> {
    if at.is_null() || has < needed || at as usize % 8 != 0 {
        refuse!(
            e,
            ATTN_E_SPACE,
            name,
            "{} has {} bytes at {:p}; {} are needed, aligned to 16",
            name,
            has,
            at,
            needed
        );
    }
    Ok(())
}

pub unsafe fn take_space(e: Report, i: &Instance, space: *const attn_space_t) -> Outcome<attn_space_t> {
    let s = e.intake(space, "space", false)?;
    check_buffer(e, "metadata", s.metadata, s.metadata_bytes, metadata_bytes(i))?;
    check_buffer(e, "workspace", s.workspace, s.workspace_bytes, workspace_bytes(i))?;
    Ok(s)
}

pub unsafe extern "C" fn build_metadata(
    handle: *mut attn_instance_t,
    batch: *const attn_batch_t,
    space: *const attn_space_t,
    _stream: *mut c_void,
    error: *mut attn_error_t,
) -> i32 {
    guarded(error, |e| {
        let i = instance(handle);
        let b = e.intake(batch, "batch", false)?;
        let s = take_space(e, i, space)?;
        let (num_reqs, num_tokens) = (i64::from(b.num_reqs), i64::from(b.num_actual_tokens));
        if !(0..=i.max_seqs).contains(&num_reqs) {
            refuse!(
                e,
                ATTN_E_INVALID,
                "num_reqs",
                "num_reqs is {}; the problem declared 0 to {}",
                num_reqs,
                i.max_seqs
            );
        }
        if !(0..=i.max_tokens).contains(&num_tokens) {
            refuse!(
                e,
                ATTN_E_INVALID,
                "num_actual_tokens",
                "num_actual_tokens is {}; the problem declared 0 to {}",
                num_tokens,
                i.max_tokens
            );
        }
        if b.common_prefix_len != 0 {
            refuse!(e, ATTN_E_UNSUPPORTED, "common_prefix_len", "cascade is not served; give 0");
        }
        for (array, name) in
            [(b.query_start_loc_host, "query_start_loc_host"), (b.seq_lens_host, "seq_lens_host")]
        {
            if array.is_null() {
                refuse!(e, ATTN_E_INVALID, name, "{} is NULL; it is required", name);
            }
        }
        let table = e.tensor(b.block_table, "block_table", ATTN_DTYPE_INT32, [num_reqs, -1])?;
        let starts = std::slice::from_raw_parts(b.query_start_loc_host, num_reqs as usize + 1);
        let lens = std::slice::from_raw_parts(b.seq_lens_host, num_reqs as usize);
        if starts[0] != 0
            || i64::from(starts[lens.len()]) != num_tokens
            || starts.windows(2).any(|w| w[1] < w[0])
        {
            refuse!(
                e,
                ATTN_E_INVALID,
                "query_start_loc",
                "query_start_loc must rise from 0 to {}",
                num_tokens
            );
        }
        let most = i.max_len.min(table.shape[1].saturating_mul(i.layer.block_size));
        for (r, &len) in lens.iter().enumerate() {
            if len < starts[r + 1] - starts[r] || i64::from(len) > most {
                refuse!(
                    e,
                    ATTN_E_INVALID,
                    "seq_lens",
                    "seq_lens[{}] is {}; it must hold the request's {} queries and be at most {}",
                    r,
                    len,
                    starts[r + 1] - starts[r],
                    most
                );
            }
        }
        let plan = s.metadata as *mut Plan;
        let block_table = table.base as *const i32;
        plan.write(Plan {
            magic: PLAN_MAGIC,
            num_reqs,
            num_tokens,
            block_table,
            table_stride: table.stride[0] / 4,
        });
        let to = plan.add(1) as *mut i32;
        ptr::copy_nonoverlapping(starts.as_ptr(), to, starts.len());
        ptr::copy_nonoverlapping(lens.as_ptr(), to.add(starts.len()), lens.len());
        Ok(())
    })
}

pub unsafe fn take_cache(e: Report, i: &Instance, cache: *const DLTensor) -> Outcome<Tensor<4>> {
    let l = &i.layer;
    e.tensor(
        cache,
        "kv_cache",
        i.problem.dtype,
        [-1, l.num_kv_heads, l.block_size, l.head_size + l.head_size_v],
    )
}

pub unsafe extern "C" fn update_kv_cache(
    handle: *mut attn_instance_t,
    args: *const attn_kv_update_t,
    _stream: *mut c_void,
    error: *mut attn_error_t,
) -> i32 {
    guarded(error, |e| {
        let (i, l) = (instance(handle), &instance(handle).layer);
        let a = e.intake(args, "args", false)?;
        let key = e.tensor(a.key, "key", i.problem.dtype, [-1, l.num_kv_heads, l.head_size])?;
        let value = e.tensor(a.value, "value", i.problem.dtype, [-1, l.num_kv_heads, l.head_size_v])?;
        let slots = e.tensor(a.slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, [-1])?;
        let cache = take_cache(e, i, a.kv_cache)?;
        let (n, end) = (slots.shape[0], cache.shape[0] * l.block_size);
        if n > key.shape[0] || n > value.shape[0] {
            refuse!(e, ATTN_E_INVALID, "slot_mapping", "slot_mapping has {} rows, key and value fewer", n);
        }
        for t in 0..n {
            let slot = *slots.at::<i64, 1>([t]);
            if slot >= end {
                refuse!(
                    e,
                    ATTN_E_INVALID,
                    "slot_mapping",
                    "slot_mapping[{}] is {}; the cache ends at {}",
                    t,
                    slot,
                    end
                );
            }
        }
        let size = if i.problem.dtype == ATTN_DTYPE_FLOAT32 { 4 } else { 2 };
        for t in 0..n {
            let slot = *slots.at::<i64, 1>([t]);
            if slot < 0 {
                continue; // padding
            }
            for h in 0..l.num_kv_heads {
                let row = cache.at::<u8, 3>([slot / l.block_size, h, slot % l.block_size]);
                let (k_bytes, v_bytes) = ((l.head_size * size) as usize, (l.head_size_v * size) as usize);
                ptr::copy_nonoverlapping(key.at::<u8, 2>([t, h]), row, k_bytes);
                ptr::copy_nonoverlapping(value.at::<u8, 2>([t, h]), row.add(k_bytes), v_bytes);
            }
        }
        Ok(())
    })
}

pub unsafe extern "C" fn forward(
    handle: *mut attn_instance_t,
    args: *const attn_forward_t,
    space: *const attn_space_t,
    _stream: *mut c_void,
    error: *mut attn_error_t,
) -> i32 {
    guarded(error, |e| {
        let a = e.intake(args, "args", false)?;
        if instance(handle).problem.dtype == ATTN_DTYPE_FLOAT32 {
            forward_of::<f32>(e, instance(handle), &a, space)
        } else {
            forward_of::<Bf16>(e, instance(handle), &a, space)
        }
    })
}

pub unsafe fn forward_of<T: Number>(
    e: Report,
    i: &Instance,
    a: &attn_forward_t,
    space: *const attn_space_t,
) -> Outcome<()> {
    let (l, dtype) = (&i.layer, i.problem.dtype);
    let query = e.tensor(a.query, "query", dtype, [-1, l.num_heads, l.head_size])?;
    let output = e.tensor(a.output, "output", dtype, [-1, l.num_heads, l.head_size_v])?;
    if space.is_null() {
        // the profiling run: there is no batch
        for t in 0..output.shape[0] {
            for h in 0..l.num_heads {
                let row = output.at::<u8, 2>([t, h]);
                ptr::write_bytes(row, 0, l.head_size_v as usize * size_of::<T>());
            }
        }
        return Ok(());
    }
    let s = take_space(e, i, space)?;
    let cache = take_cache(e, i, a.kv_cache)?;
    let lse = match a.lse.is_null() {
        true => None,
        false => Some(e.tensor(a.lse, "lse", ATTN_DTYPE_FLOAT32, [l.num_heads, -1])?),
    };
    let plan = &*(s.metadata as *const Plan);
    if plan.magic != PLAN_MAGIC {
        refuse!(e, ATTN_E_STATE, "metadata", "metadata is not built; call build_metadata first");
    }
    let room = query.shape[0].min(output.shape[0]).min(lse.as_ref().map_or(i64::MAX, |x| x.shape[1]));
    if plan.num_tokens > room || (plan.num_tokens > 0 && cache.shape[0] == 0) {
        refuse!(
            e,
            ATTN_E_INVALID,
            "query",
            "query, output and lse must hold the {} tokens of the batch, kv_cache a block",
            plan.num_tokens
        );
    }
    let starts = (plan as *const Plan).add(1) as *const i32;
    let lens = starts.add(plan.num_reqs as usize + 1);
    let acc = std::slice::from_raw_parts_mut(s.workspace as *mut f64, l.head_size_v as usize);
    for r in 0..plan.num_reqs {
        let blocks = plan.block_table.offset((r * plan.table_stride) as isize);
        let (first, end) = (i64::from(*starts.offset(r as isize)), i64::from(*starts.offset(r as isize + 1)));
        let seq_len = i64::from(*lens.offset(r as isize));
        for t in first..end {
            let keys = l.visible(query_position(t - first, end - first, seq_len), seq_len);
            for h in 0..l.num_heads {
                let row_of = |k: i64| {
                    let block = i64::from(*blocks.offset((k / l.block_size) as isize));
                    // the core has checked the ids that it sees; a wrong one may not lead elsewhere
                    let block = block.clamp(0, cache.shape[0] - 1);
                    cache.at::<T, 3>([block, l.kv_head(h), k % l.block_size]) as *const T
                };
                let sum = attend(l, query.at::<T, 2>([t, h]), keys, row_of, acc);
                let row = output.at::<T, 2>([t, h]);
                for (j, x) in acc.iter().enumerate() {
                    row.add(j).write_unaligned(T::nearest(*x));
                }
                if let Some(lse) = &lse {
                    lse.at::<f32, 2>([h, t]).write_unaligned(sum as f32);
                }
            }
        }
    }
    Ok(())
}
