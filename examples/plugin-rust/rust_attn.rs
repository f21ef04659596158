// SPDX-License-Identifier: Apache-2.0
//! A complete attention backend for libattn in Rust: paged decoder attention on the CPU, float32 and
//! bfloat16, causal or not, sliding window, soft cap, LSE. Written to be read, not to be fast. This file has
//! the tables that a plugin exports; open.rs and calls.rs have the operations in the order of their calls,
//! rules.rs the numbers, abi.rs the border.
mod abi;
mod calls;
mod open;
mod rules;
#[allow(dead_code, non_camel_case_types, non_upper_case_globals)]
mod sdk; // written by bindgen from the installed header

use calls::*;
use open::*;
use sdk::*;
use std::mem::size_of;
use std::os::raw::c_char;
use std::ptr;

/// Constant tables full of pointers, which are only read.
#[repr(transparent)]
pub struct Table<T>(T);
unsafe impl<T> Sync for Table<T> {}

/// # Safety
/// s ends with \0.
const fn text(s: &'static str) -> *const c_char {
    s.as_ptr() as *const c_char
}

const NO_CAPABILITIES: attn_capabilities_t =
    unsafe { std::mem::transmute([0u8; size_of::<attn_capabilities_t>()]) };
static CAPABILITIES: Table<attn_capabilities_t> = Table(attn_capabilities_t {
    struct_size: size_of::<attn_capabilities_t>() as u32,
    graph_support: ATTN_GRAPH_NEVER,
    roles: 1 << ATTN_ROLE_DECODER,
    dtypes: 1 << ATTN_DTYPE_FLOAT32 | 1 << ATTN_DTYPE_BFLOAT16,
    kv_cache_dtypes: 1 << ATTN_KV_AUTO,
    features: FEATURES,
    device_types: 1 << kDLCPU,
    query_len_support: ATTN_QUERY_LEN_VARLEN,
    ..NO_CAPABILITIES
});

static OPS: attn_backend_ops_t = attn_backend_ops_t {
    struct_size: size_of::<attn_backend_ops_t>() as u32,
    reserved0: 0,
    supports_combination: None,
    open: Some(open),
    close: Some(close),
    kv_cache_shape: Some(kv_cache_shape),
    space_needed: Some(space_needed),
    build_metadata: Some(build_metadata),
    update_block_table: None,
    update_kv_cache: Some(update_kv_cache),
    forward: Some(forward),
    prepare_weights: None,
    get_extension: None,
};

static BACKEND: Table<attn_backend_t> = Table(attn_backend_t {
    struct_size: size_of::<attn_backend_t>() as u32,
    flags: 0,
    name: text("RUST_ATTN\0"),
    doc: text("Example of a third party: Rust on the CPU.\0"),
    capabilities: &CAPABILITIES.0,
    ops: &OPS,
    reserved: [0; 4],
});

static BACKENDS: Table<[*const attn_backend_t; 1]> = Table([&BACKEND.0]);

#[no_mangle]
#[allow(non_upper_case_globals)]
pub static attn_plugin_v1: Table<attn_plugin_t> = Table(attn_plugin_t {
    magic: SDK_MAGIC,
    struct_size: size_of::<attn_plugin_t>() as u32,
    abi_major: ATTN_ABI_MAJOR,
    abi_minor: ATTN_ABI_MINOR,
    flags: 0,
    name: text("rust_attn\0"),
    version: text("1.0\0"),
    vendor: text("Example Kernels\0"),
    license: text("Apache-2.0\0"),
    build_id: text("\0"),
    num_backends: 1,
    num_options: 0,
    backends: BACKENDS.0.as_ptr(),
    options: ptr::null(),
    reserved: [0; 4],
});
