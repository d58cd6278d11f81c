//! The matrices of an adapter, in the layout that the kernel reads.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::vector::LANES;

/// The change of one projection: `scale B A`.
#[derive(Clone)]
pub struct LowRank {
    rank: usize,
    columns: usize,
    outputs: usize,
    scale: f32,
    /// [rank, columns]. Projections whose weights are parts of one tensor share it.
    a: Arc<[f32]>,
    /// [outputs / 16, rank, 16]: strips of 16 outputs, the last padded with zeros.
    b: Vec<f32>,
}

impl LowRank {
    /// The change `scale B A` of a projection of [outputs, columns]. `a` is [rank, columns], `b` is [outputs, rank].
    /// `None` when the matrices do not fit one another.
    #[must_use]
    pub fn new(a: Arc<[f32]>, b: &[f32], [outputs, columns]: [usize; 2], scale: f32) -> Option<Self> {
        let rank = a.len() / columns.max(1);
        if a.len() != rank * columns || b.len() != outputs * rank {
            return None;
        }
        let mut strips = vec![0.0; LowRank::padded(outputs) * rank];
        for (output, row) in b.chunks_exact(rank.max(1)).enumerate() {
            let strip = &mut strips[output / LANES * rank * LANES..];
            for (column, value) in row.iter().enumerate() {
                strip[column * LANES + output % LANES] = *value;
            }
        }
        Some(LowRank { rank, columns, outputs, scale, a, b: strips })
    }

    /// Outputs up to the end of the last strip.
    fn padded(outputs: usize) -> usize {
        outputs.next_multiple_of(LANES)
    }

    /// Most bytes that the change of a projection of [outputs, columns] takes in memory.
    #[must_use]
    pub fn bytes([outputs, columns]: [usize; 2], rank: usize) -> u64 {
        let values = (columns as u64 + LowRank::padded(outputs) as u64) * rank as u64;
        values * size_of::<f32>() as u64
    }

    /// The rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn scale(&self) -> f32 {
        self.scale
    }

    /// A, [rank, columns].
    pub(super) fn a(&self) -> &[f32] {
        &self.a
    }

    /// B in strips, [outputs / 16, rank, 16].
    pub(super) fn b(&self) -> &[f32] {
        &self.b
    }

    /// Row `index` of A, or the last row.
    pub(super) fn a_row(&self, index: usize) -> &[f32] {
        let start = index.min(self.rank.saturating_sub(1)) * self.columns;
        &self.a[start..start + self.columns]
    }

    /// Strip `index` of B, or the last strip: [rank, 16].
    pub(super) fn b_strip(&self, index: usize) -> &[f32] {
        let len = self.rank * LANES;
        let start = index.min(self.strips().saturating_sub(1)) * len;
        &self.b[start..start + len]
    }

    /// The number of strips of B.
    pub(super) fn strips(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }
}

impl fmt::Debug for LowRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LowRank { rank, columns, outputs, scale, .. } = self;
        write!(f, "{outputs} x {columns}, rank {rank}, scale {scale}")
    }
}

/// An adapter: the changes of some of a model's projections.
///
/// It is shared by the steps that use it. Its memory is free when the last of them has ended.
pub struct Adapter {
    id: u64,
    /// Its name, for reports.
    name: Arc<str>,
    /// The digest of what it contains.
    content: Option<[u8; 32]>,
    /// For each projection of the model its change, if it has one.
    changes: Vec<Option<LowRank>>,
    /// Dropped with the adapter.
    _guard: Option<Box<dyn Any + Send + Sync>>,
}

/// The values of a matrix that are passed on at once.
const VALUES_AT_ONCE: usize = 4096;

impl Adapter {
    /// An adapter with the change of each projection, by its index.
    #[must_use]
    pub fn new(changes: Vec<Option<LowRank>>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Adapter { id: NEXT.fetch_add(1, Ordering::Relaxed), name: "".into(), content: None, changes, _guard: None }
    }

    /// The same adapter with a name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Adapter { name: name.into(), ..self }
    }

    /// Its name; empty for an adapter that was given none.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The same adapter with the digest of [`write_content`](Self::write_content).
    #[must_use]
    pub fn with_content(self, digest: [u8; 32]) -> Self {
        Adapter { content: Some(digest), ..self }
    }

    /// The digest of what it contains, if it was given one. Adapters with the same digest have the same results.
    #[must_use]
    pub fn content(&self) -> Option<[u8; 32]> {
        self.content
    }

    /// Passes on everything that the results of the adapter follow from, in parts, for a digest.
    pub fn write_content(&self, write: &mut dyn FnMut(&[u8])) {
        for (target, change) in self.changes.iter().enumerate() {
            let Some(LowRank { rank, columns, outputs, scale, a, b }) = change else { continue };
            for number in [target, *rank, *columns, *outputs] {
                write(&(number as u64).to_le_bytes());
            }
            write(&scale.to_le_bytes());
            for values in a.chunks(VALUES_AT_ONCE).chain(b.chunks(VALUES_AT_ONCE)) {
                write(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
            }
        }
    }

    /// The same adapter, which drops `guard` when its memory is free.
    #[must_use]
    pub fn guarded_by(self, guard: impl Any + Send + Sync) -> Self {
        Adapter { _guard: Some(Box::new(guard)), ..self }
    }

    /// A number that no other adapter of this process has, or had.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The change of a projection.
    #[must_use]
    pub fn change(&self, target: usize) -> Option<&LowRank> {
        self.changes.get(target)?.as_ref()
    }

    /// The largest rank of a change.
    #[must_use]
    pub fn max_rank(&self) -> usize {
        self.changes.iter().flatten().map(LowRank::rank).max().unwrap_or(0)
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "adapter {} ({} projections)", self.id, self.changes.iter().flatten().count())
    }
}

/// The adapter of a sequence.
#[derive(Debug, Clone)]
pub struct AdapterUse {
    /// The adapter.
    pub adapter: Arc<Adapter>,
    /// A factor on its changes; 1 for the adapter as it was trained.
    pub scale: f32,
}

impl AdapterUse {
    /// What distinguishes the results of the adapter with this factor from those of others.
    #[must_use]
    pub fn key(&self) -> (u64, u32) {
        (self.adapter.id, self.scale.to_bits())
    }
}

impl PartialEq for AdapterUse {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
