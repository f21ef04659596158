// SPDX-License-Identifier: Apache-2.0
//! The border in Rust: error texts, structs in and out by size, tensors, panics. What attn_plugin_util.h is
//! to C, as far as this plugin needs it. Nothing here allocates.
use crate::sdk::*;
use std::fmt::{self, Write};
use std::mem;
use std::ptr;

pub type Outcome<T> = Result<T, i32>; // Err is one of ATTN_E_*, and the error has been written

/// The caller's error struct, which may be NULL or older than ours.
#[derive(Clone, Copy)]
pub struct Report(pub *mut attn_error_t);

/// refuse!(report, code, parameter, format, arguments..): writes the error and returns from the function with
/// it.
macro_rules! refuse {
    ($report:expr, $code:expr, $param:expr, $($text:tt)+) => {
        return $report.fail($code, $param, format_args!($($text)+))
    };
}
pub(crate) use refuse;

/// A C string of fixed room; what does not fit is cut.
struct Line {
    at: *mut u8,
    room: usize,
}

impl Line {
    unsafe fn write(at: *mut u8, size: usize, text: fmt::Arguments) {
        let mut line = Line { at, room: size - 1 };
        let _ = line.write_fmt(text);
        *line.at = 0;
    }
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let n = s.len().min(self.room);
        unsafe {
            ptr::copy_nonoverlapping(s.as_ptr(), self.at, n);
            self.at = self.at.add(n);
        }
        self.room -= n;
        Ok(())
    }
}

impl Report {
    /// Writes the error and returns it, so that a check is one expression.
    pub fn fail<T>(&self, code: i32, param: &str, text: fmt::Arguments) -> Outcome<T> {
        const TEXT: usize = 8 + 64; // where text begins: struct_size, code, param
        unsafe {
            if !self.0.is_null() && (*self.0).struct_size as usize >= TEXT + 2 {
                let e = &mut *self.0;
                let room = (e.struct_size as usize - TEXT).min(mem::size_of_val(&e.text));
                e.code = code;
                Line::write(e.param.as_mut_ptr() as *mut u8, e.param.len(), format_args!("{}", param));
                Line::write(e.text.as_mut_ptr() as *mut u8, room, text);
            }
        }
        Err(code)
    }

    /// Copies the known members of a caller's struct; missing ones are zero. T begins with struct_size. What
    /// the caller uses beyond our T is an error unless `is_offer` says that it asks for nothing.
    pub unsafe fn intake<T>(&self, src: *const T, name: &str, is_offer: bool) -> Outcome<T> {
        let known = mem::size_of::<T>();
        if src.is_null() {
            refuse!(self, ATTN_E_INVALID, name, "{} is NULL; pass a filled struct", name);
        }
        let size = *(src as *const u32) as usize;
        if !(4..=65536).contains(&size) {
            refuse!(
                self,
                ATTN_E_INVALID,
                name,
                "{}.struct_size is {}; set it to the size of the struct",
                name,
                size
            );
        }
        let bytes = src as *const u8;
        if !is_offer {
            if let Some(i) = (known..size).find(|&i| *bytes.add(i) != 0) {
                refuse!(
                    self,
                    ATTN_E_TOO_NEW,
                    name,
                    "{} uses byte {}; this build knows {}: update the plugin",
                    name,
                    i,
                    known
                );
            }
        }
        let mut dst: T = mem::zeroed();
        ptr::copy_nonoverlapping(bytes, &mut dst as *mut T as *mut u8, size.min(known));
        *(&mut dst as *mut T as *mut u32) = known as u32;
        Ok(dst)
    }

    /// The way out: the members that both know, with the caller's struct_size kept.
    pub unsafe fn give<T>(&self, dst: *mut T, src: &T, name: &str) -> Outcome<()> {
        if dst.is_null() || *(dst as *const u32) < 4 {
            refuse!(
                self,
                ATTN_E_INVALID,
                name,
                "{} is NULL or has no struct_size; pass a struct to fill",
                name
            );
        }
        let size = (*(dst as *const u32) as usize).min(mem::size_of::<T>());
        let (to, from) = (dst as *mut u8, src as *const T as *const u8);
        ptr::copy_nonoverlapping(from.add(4), to.add(4), size - 4);
        Ok(())
    }

    /// A checked tensor of the given element type and sizes (-1: any), dense in its last dimension.
    pub unsafe fn tensor<const N: usize>(
        &self,
        t: *const DLTensor,
        name: &str,
        dtype: u32,
        sizes: [i64; N],
    ) -> Outcome<Tensor<N>> {
        if t.is_null() {
            refuse!(self, ATTN_E_INVALID, name, "{} is not given; it is required here", name);
        }
        let t = &*t;
        if t.ndim as usize != N {
            refuse!(self, ATTN_E_INVALID, name, "{} has {} dimensions; expected {}", name, t.ndim, N);
        }
        if t.shape.is_null() || t.strides.is_null() {
            refuse!(self, ATTN_E_INVALID, name, "{} has no shape or no strides; give both", name);
        }
        let (code, bits) = element(dtype);
        if (t.dtype.code, t.dtype.bits, t.dtype.lanes) != (code, bits, 1) {
            refuse!(
                self,
                ATTN_E_INVALID,
                name,
                "{} has element type {}:{}; expected {}:{} (DLPack code:bits)",
                name,
                t.dtype.code,
                t.dtype.bits,
                code,
                bits
            );
        }
        let mut out = Tensor { base: t.data as *mut u8, shape: [0; N], stride: [0; N] };
        for i in 0..N {
            out.shape[i] = *t.shape.add(i);
            out.stride[i] = (*t.strides.add(i)).wrapping_mul(i64::from(bits / 8));
            if out.shape[i] < 0 || (sizes[i] >= 0 && out.shape[i] != sizes[i]) {
                refuse!(
                    self,
                    ATTN_E_INVALID,
                    name,
                    "{} has size {} in dimension {}; expected {}",
                    name,
                    out.shape[i],
                    i,
                    sizes[i]
                );
            }
        }
        if !out.shape.contains(&0) {
            if t.data.is_null() {
                refuse!(self, ATTN_E_INVALID, name, "{} has no data", name);
            }
            if out.shape[N - 1] > 1 && out.stride[N - 1] != i64::from(bits / 8) {
                refuse!(
                    self,
                    ATTN_E_INVALID,
                    name,
                    "{} is not dense in its last dimension; its stride must be 1",
                    name
                );
            }
            out.base = out.base.add(t.byte_offset as usize);
        }
        Ok(out)
    }
}

/// Where a tensor lies; strides in bytes.
pub struct Tensor<const N: usize> {
    pub base: *mut u8,
    pub shape: [i64; N],
    pub stride: [i64; N],
}

impl<const N: usize> Tensor<N> {
    /// The address of an element, given by its first indices; the others are 0.
    pub unsafe fn at<T, const M: usize>(&self, index: [i64; M]) -> *mut T {
        let offset: i64 = index.iter().zip(&self.stride).map(|(i, stride)| i * stride).sum();
        self.base.offset(offset as isize) as *mut T
    }
}

/// DLPack code and bits of the element types that this plugin touches.
fn element(dtype: u32) -> (u8, u8) {
    match dtype {
        ATTN_DTYPE_FLOAT32 => (kDLFloat as u8, 32),
        ATTN_DTYPE_BFLOAT16 => (kDLBfloat as u8, 16),
        ATTN_DTYPE_INT32 => (kDLInt as u8, 32),
        _ => (kDLInt as u8, 64),
    }
}

/// Runs an operation. A panic may not leave the plugin: it becomes ATTN_E_INTERNAL.
pub fn guarded(error: *mut attn_error_t, op: impl FnOnce(Report) -> Outcome<()>) -> i32 {
    let report = Report(error);
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| op(report))) {
        Ok(Ok(())) => ATTN_OK as i32,
        Ok(Err(code)) => code,
        Err(_) => report
            .fail::<()>(ATTN_E_INTERNAL, "", format_args!("the plugin has a bug: it panicked"))
            .unwrap_err(),
    }
}
