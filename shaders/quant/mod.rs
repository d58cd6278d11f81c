//! soon
use std::fmt;
/// soon
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
}
#[allow(missing_docs)]
impl Format {
    pub fn from_ggml(_id: u32) -> Option<Format> {
        None
    }
    pub fn name(self) -> &'static str {
        "F32"
    }
    pub fn block_len(self) -> usize {
        1
    }
    pub fn block_bytes(self) -> usize {
        4
    }
    pub fn row_bytes(self, columns: usize) -> Option<usize> {
        Some(columns * 4)
    }
    pub fn dequantize(self, _bytes: &[u8], _out: &mut [f32]) {}
}
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
