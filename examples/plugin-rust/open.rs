// SPDX-License-Identifier: Apache-2.0
//! What is asked before the first batch: does it serve this problem, and what do its cache pages look like.
use crate::abi::*;
use crate::rules::Layer;
use crate::sdk::*;
use std::mem::zeroed;

pub const FEATURES: u64 = SDK_SLIDING_WINDOW
    | SDK_SOFT_CAP
    | SDK_NON_CAUSAL
    | SDK_DIFF_KV
    | SDK_LSE
    | SDK_BATCH_INVARIANT
    | SDK_BLOCK_STRIDE;

pub struct Instance {
    pub problem: attn_problem_t,
    pub layer: Layer,
    pub max_seqs: i64,
    pub max_tokens: i64,
    pub max_len: i64,
}

pub unsafe fn instance<'a>(handle: *mut attn_instance_t) -> &'a Instance {
    &*(handle as *const Instance)
}

/// The feature bits that the problem asks for or implies.
pub fn features_of(p: &attn_problem_t) -> u64 {
    let bit = |is_on: bool, feature: u64| if is_on { feature } else { 0 };
    p.features
        | bit(p.sliding_window != 0, SDK_SLIDING_WINDOW)
        | bit(p.logits_soft_cap != 0.0, SDK_SOFT_CAP)
        | bit(p.rswa_window != 0, SDK_RSWA)
        | bit(p.head_size_v != 0 && p.head_size_v != p.head_size, SDK_DIFF_KV)
        | bit(p.mask == ATTN_MASK_PER_REQUEST, SDK_PER_REQUEST_CAUSAL)
        | bit(p.mask == ATTN_MASK_FULL, SDK_NON_CAUSAL)
        | bit(p.query_dtype != 0 && p.query_dtype != p.dtype, SDK_QUANT_QUERY)
        | bit(p.dcp_world_size > 1, SDK_DCP)
}

pub fn or(value: u32, if_zero: u32) -> u32 {
    if value != 0 {
        value
    } else {
        if_zero
    }
}

pub unsafe extern "C" fn open(
    problem: *const attn_problem_t,
    device: *const attn_device_t,
    _options: *const attn_option_value_t,
    _num_options: u32,
    _host: *const attn_host_t,
    out: *mut *mut attn_instance_t,
    error: *mut attn_error_t,
) -> i32 {
    guarded(error, |e| {
        let mut p = e.intake(problem, "problem", false)?;
        let d = e.intake(device, "device", true)?;
        let unknown = features_of(&p) & !FEATURES;
        if unknown != 0 {
            refuse!(
                e,
                ATTN_E_UNSUPPORTED,
                "features",
                "features has bits {:#x} that are not served",
                unknown
            );
        }
        if p.role != ATTN_ROLE_DECODER {
            refuse!(e, ATTN_E_UNSUPPORTED, "role", "role {} is not served; use decoder", p.role);
        }
        if p.mask != ATTN_MASK_CAUSAL && p.mask != ATTN_MASK_FULL {
            refuse!(e, ATTN_E_INVALID, "mask", "mask is {}; use causal or full", p.mask);
        }
        if p.dtype != ATTN_DTYPE_FLOAT32 && p.dtype != ATTN_DTYPE_BFLOAT16 {
            refuse!(
                e,
                ATTN_E_UNSUPPORTED,
                "dtype",
                "dtype {} is not served; use float32 or bfloat16",
                p.dtype
            );
        }
        let same = if p.dtype == ATTN_DTYPE_FLOAT32 { ATTN_KV_FLOAT32 } else { ATTN_KV_BFLOAT16 };
        if p.kv_cache_dtype > ATTN_KV_AUTO && p.kv_cache_dtype != same {
            refuse!(
                e,
                ATTN_E_UNSUPPORTED,
                "kv_cache_dtype",
                "kv_cache_dtype {} is not served; use auto",
                p.kv_cache_dtype
            );
        }
        if p.out_dtype != 0 && p.out_dtype != p.dtype {
            refuse!(e, ATTN_E_UNSUPPORTED, "out_dtype", "out_dtype must be 0 or the dtype");
        }
        if d.type_ != kDLCPU as i32 {
            refuse!(e, ATTN_E_DEVICE, "device", "device type {} is not served; use the CPU", d.type_);
        }
        p.num_kv_heads = or(p.num_kv_heads, p.num_heads);
        p.head_size_v = or(p.head_size_v, p.head_size);
        if p.num_heads == 0 || p.num_heads % p.num_kv_heads != 0 {
            refuse!(
                e,
                ATTN_E_INVALID,
                "num_heads",
                "num_heads {} must be a multiple of num_kv_heads {}",
                p.num_heads,
                p.num_kv_heads
            );
        }
        if p.head_size == 0 {
            refuse!(e, ATTN_E_INVALID, "head_size", "head_size is 0; give the size of a head");
        }
        // The standard library would print a panic. Nothing here should; if it does, the caller gets an
        // error.
        static QUIET: std::sync::Once = std::sync::Once::new();
        QUIET.call_once(|| std::panic::set_hook(Box::new(|_| ())));
        let self_ = Instance {
            layer: Layer {
                num_heads: p.num_heads.into(),
                num_kv_heads: p.num_kv_heads.into(),
                head_size: p.head_size.into(),
                head_size_v: p.head_size_v.into(),
                block_size: or(p.block_size, 16).into(),
                window: p.sliding_window.into(),
                scale: p.scale,
                soft_cap: p.logits_soft_cap,
                is_causal: p.mask == ATTN_MASK_CAUSAL,
            },
            max_seqs: or(p.max_num_seqs, 256).into(),
            max_tokens: or(p.max_num_batched_tokens, 8192).into(),
            max_len: if p.max_model_len != 0 { p.max_model_len } else { 131072 },
            problem: p,
        };
        // Box::new would end the process where there is no memory.
        let room = std::alloc::alloc(std::alloc::Layout::new::<Instance>()) as *mut Instance;
        if room.is_null() {
            refuse!(e, ATTN_E_NO_MEMORY, "", "no memory for an instance");
        }
        room.write(self_);
        *out = room as *mut attn_instance_t;
        Ok(())
    })
}

pub unsafe extern "C" fn close(handle: *mut attn_instance_t) {
    if !handle.is_null() {
        drop(Box::from_raw(handle as *mut Instance));
    }
}

/// FNV-1a over the numbers that fix the bytes of a page.
pub fn fingerprint(key: &[i64]) -> u64 {
    let bytes = key.iter().flat_map(|k| k.to_le_bytes());
    bytes.fold(0xcbf29ce484222325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100000001b3))
}

/// Dense pages: axes block, head, token, content (K then V), in memory as the layout says (semantics 3.4,
/// 3.9).
pub unsafe extern "C" fn kv_cache_shape(
    handle: *mut attn_instance_t,
    num_blocks: i64,
    shape: *mut attn_kv_cache_shape_t,
    error: *mut attn_error_t,
) -> i32 {
    guarded(error, |e| {
        let (p, l) = (&instance(handle).problem, &instance(handle).layer);
        let num_blocks = if num_blocks != 0 { num_blocks } else { p.num_blocks };
        let is_f32 = p.dtype == ATTN_DTYPE_FLOAT32;
        let size = if is_f32 { 4 } else { 2 };
        let hnd = p.kv_layout == ATTN_LAYOUT_HND;
        let mut s: attn_kv_cache_shape_t = zeroed();
        s.ndim = 4;
        s.shape[..4].copy_from_slice(&[
            num_blocks,
            l.num_kv_heads,
            l.block_size,
            l.head_size + l.head_size_v,
        ]);
        s.axes[..4].copy_from_slice(&[ATTN_AXIS_BLOCK, ATTN_AXIS_HEAD, ATTN_AXIS_TOKEN, ATTN_AXIS_CONTENT]);
        s.stride_order[..4].copy_from_slice(if hnd { &[0, 1, 2, 3] } else { &[0, 2, 1, 3] });
        s.stride_order_layers[..5].copy_from_slice(if hnd { &[1, 2, 0, 3, 4] } else { &[1, 0, 3, 2, 4] });
        let mut stride = size;
        for j in (0..4).rev() {
            let axis = s.stride_order[j] as usize;
            s.byte_strides[axis] = stride;
            stride *= s.shape[axis];
        }
        s.page_bytes = l.num_kv_heads * l.block_size * s.shape[3] * size;
        s.total_bytes = s.page_bytes * num_blocks;
        s.dtype = DLDataType {
            code: (if is_f32 { kDLFloat } else { kDLBfloat }) as u8,
            bits: (8 * size) as u8,
            lanes: 1,
        };
        s.kv_layout = if hnd { ATTN_LAYOUT_HND } else { ATTN_LAYOUT_NHD };
        s.alignment = 16;
        s.block_size = l.block_size as u32;
        s.num_kv_heads = l.num_kv_heads as u32;
        s.v_offset = l.head_size * size;
        s.k_scale_offset = -1;
        s.v_scale_offset = -1;
        s.layout_id = 0x7275; // our own, so these pages are shared with nobody else's
        s.fingerprint = fingerprint(&[
            size,
            l.num_kv_heads,
            l.block_size,
            l.head_size,
            l.head_size_v,
            s.kv_layout.into(),
        ]);
        e.give(shape, &s, "shape")
    })
}
