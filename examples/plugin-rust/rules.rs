// SPDX-License-Identifier: Apache-2.0
//! Attention as plain rules: which keys a query sees, what a score is, how numbers are stored, one row of
//! softmax. Knows nothing of the plugin ABI.

/// How a number is stored. Rows may be unaligned.
pub trait Number: Copy {
    fn value(self) -> f64;
    fn nearest(x: f64) -> Self;
}

impl Number for f32 {
    fn value(self) -> f64 {
        f64::from(self)
    }
    fn nearest(x: f64) -> f32 {
        x as f32
    }
}

/// bfloat16: the upper half of a float32, rounded to nearest even.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl Number for Bf16 {
    fn value(self) -> f64 {
        f64::from(f32::from_bits(u32::from(self.0) << 16))
    }
    fn nearest(x: f64) -> Bf16 {
        let bits = (x as f32).to_bits();
        if x.is_nan() {
            return Bf16((bits >> 16) as u16 | 0x40);
        }
        Bf16((bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16)
    }
}

/// One layer.
pub struct Layer {
    pub num_heads: i64,
    pub num_kv_heads: i64,
    pub head_size: i64,
    pub head_size_v: i64,
    pub block_size: i64,
    pub window: i64, // tokens, the query's own included; 0: none
    pub scale: f64,
    pub soft_cap: f64, // 0: off
    pub is_causal: bool,
}

impl Layer {
    /// The KV head that serves query head h.
    pub fn kv_head(&self, h: i64) -> i64 {
        h / (self.num_heads / self.num_kv_heads)
    }

    /// The keys first..end that the query at position q sees (semantics 2.2, 2.3); first >= end: none. Keys
    /// outside may be NaN and are not visited.
    pub fn visible(&self, q: i64, seq_len: i64) -> (i64, i64) {
        let mut end = seq_len;
        let mut first = 0;
        if self.is_causal {
            end = end.min(q + 1);
        }
        if self.window != 0 {
            first = (q - self.window + 1).max(0);
            end = end.min(q + self.window);
        }
        (first, end)
    }

    pub fn score(&self, dot: f64) -> f64 {
        let s = self.scale * dot;
        if self.soft_cap > 0.0 {
            self.soft_cap * (s / self.soft_cap).tanh()
        } else {
            s
        }
    }
}

/// Position of row i of a request: its queries are the last tokens of the sequence.
pub fn query_position(i: i64, query_len: i64, seq_len: i64) -> i64 {
    seq_len - query_len + i
}

/// One row of one head: softmax over the keys in one pass (Milakov and Gimelshein 2018). `row_of(k)` is key
/// k, its value follows it. The result is in acc; returns the natural log-sum-exp.
///
/// # Safety
/// query has head_size numbers, every row head_size + acc.len().
pub unsafe fn attend<T: Number>(
    layer: &Layer,
    query: *const T,
    keys: (i64, i64),
    row_of: impl Fn(i64) -> *const T,
    acc: &mut [f64],
) -> f64 {
    let (mut max, mut sum) = (f64::NEG_INFINITY, 0.0);
    acc.fill(0.0);
    for k in keys.0..keys.1 {
        let row = row_of(k);
        let mut dot = 0.0;
        for i in 0..layer.head_size as usize {
            dot += query.add(i).read_unaligned().value() * row.add(i).read_unaligned().value();
        }
        let s = layer.score(dot);
        if s == f64::NEG_INFINITY {
            continue; // hides its key; of infinities there is no difference
        }
        let new_max = if s > max { s } else { max };
        let (keep, p) = ((max - new_max).exp(), (s - new_max).exp());
        let value = row.add(layer.head_size as usize);
        for (i, a) in acc.iter_mut().enumerate() {
            *a = *a * keep + p * value.add(i).read_unaligned().value();
        }
        sum = sum * keep + p;
        max = new_max;
    }
    if sum == 0.0 {
        return f64::NEG_INFINITY; // no visible key: the output stays 0
    }
    for a in acc.iter_mut() {
        *a /= sum;
    }
    max + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(is_causal: bool, window: i64) -> Layer {
        Layer {
            num_heads: 8,
            num_kv_heads: 2,
            head_size: 1,
            head_size_v: 1,
            block_size: 16,
            window,
            scale: 0.5,
            soft_cap: 0.0,
            is_causal,
        }
    }

    #[test]
    fn masks() {
        assert_eq!((layer(true, 0).kv_head(3), layer(true, 0).kv_head(4)), (0, 1));
        assert_eq!(query_position(0, 3, 10), 7);
        assert_eq!(layer(true, 0).visible(5, 10), (0, 6));
        assert_eq!(layer(true, 2).visible(5, 10), (4, 6)); // the token itself and one before it
        assert_eq!(layer(false, 2).visible(5, 10), (4, 7));
        assert_eq!(layer(false, 0).visible(5, 10), (0, 10));
        assert_eq!(layer(true, 3).visible(-2, 10), (0, -1));
    }

    #[test]
    fn numbers() {
        assert_eq!(Bf16::nearest(1.00390625), Bf16(0x3f80)); // ties to even
        assert_eq!(Bf16::nearest(1.01171875), Bf16(0x3f82));
        assert_eq!(Bf16::nearest(1e39), Bf16(0x7f80));
        assert!(Bf16::nearest(f64::NAN).value().is_nan());
    }

    #[test]
    fn a_row() {
        let rows = [[2f32, 10.0], [4.0, 20.0]];
        let mut acc = [9.0];
        let row_of = |k: i64| rows[k as usize].as_ptr();
        let lse = unsafe { attend(&layer(true, 0), &1f32, (0, 2), row_of, &mut acc) };
        let e = 1f64.exp(); // scores 1 and 2
        assert!((acc[0] - (10.0 + 20.0 * e) / (1.0 + e)).abs() < 1e-12);
        assert!((lse - (e + e * e).ln()).abs() < 1e-12);
        let lse = unsafe { attend(&layer(true, 0), &1f32, (1, 1), row_of, &mut acc) };
        assert_eq!((acc[0], lse), (0.0, f64::NEG_INFINITY));
    }
}
