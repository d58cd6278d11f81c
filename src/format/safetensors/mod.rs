//! safetensors: the tensors of a model in one file or in shards that an index names.
//!
//! Files are mapped, never read whole. Every length, offset, shape and type is checked against the file's size when it is opened,
//! and each error names the file and the tensor. This crate parses the header itself because of these errors.
//!
//! - [`error`]: what can be wrong with a file
//! - [`header`]: parses the table of tensors of one file
//! - `index`: finds the files of a model
//! - `unique_map`: JSON objects in which no key may appear twice
//! - [`write`](mod@write): writes tensors to files

pub mod error;
pub mod header;
mod index;
mod unique_map;
pub mod write;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cuelight_shaders::weight::SharedBytes;

pub use error::{SafetensorsError, SafetensorsFault};
pub use header::{Dtype, Tensor};
use index::Files;
pub use index::shard_names;

use crate::mapped_file::MappedFile;

/// The open files of a model and their tensors.
pub struct Safetensors {
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
    shards: Vec<(PathBuf, Arc<MappedFile>)>,
    index: Option<Arc<MappedFile>>,
}

impl Safetensors {
    /// Opens `model.safetensors`, or the shards that `model.safetensors.index.json` names, in a directory.
    ///
    /// # Errors
    /// [`SafetensorsError`] naming the file and what is wrong with it.
    pub fn open(folder: &Path) -> Result<Self, SafetensorsError> {
        Self::read(Files::open(folder)?)
    }

    /// Opens one file.
    ///
    /// # Errors
    /// [`SafetensorsError`] naming the file and what is wrong with it.
    pub fn open_file(path: &Path) -> Result<Self, SafetensorsError> {
        Self::read(Files::single(path.to_owned())?)
    }

    fn read(Files { shards, index, stated }: Files) -> Result<Self, SafetensorsError> {
        let mut all = Safetensors { tensors: Vec::new(), by_name: HashMap::new(), shards, index };
        for shard in 0..all.shards.len() {
            let (path, mapped) = &all.shards[shard];
            let tensors = header::parse((**mapped).as_ref(), shard).map_err(|fault| fault.in_file(path))?;
            all.add(tensors)?;
        }
        let is_there = |(name, shard): &&(String, usize)| all.tensor(name).is_some_and(|tensor| tensor.shard == *shard);
        match stated.iter().find(|stated| !is_there(stated)) {
            Some((name, shard)) => {
                Err(SafetensorsFault::NotInShard { tensor: name.clone() }.in_file(&all.shards[*shard].0))
            }
            None => Ok(all),
        }
    }

    fn add(&mut self, tensors: Vec<Tensor>) -> Result<(), SafetensorsError> {
        for tensor in tensors {
            if let Some(other) = self.by_name.insert(tensor.name.clone(), self.tensors.len()) {
                let other = self.shards[self.tensors[other].shard].0.clone();
                let fault = SafetensorsFault::DuplicateTensor { tensor: tensor.name, other };
                return Err(fault.in_file(&self.shards[tensor.shard].0));
            }
            self.tensors.push(tensor);
        }
        Ok(())
    }

    /// All tensors, file after file.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor with this name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// A tensor's bytes, mapped from its file.
    #[must_use]
    pub fn bytes(&self, tensor: &Tensor) -> Option<SharedBytes> {
        let (_, mapped) = self.shards.get(tensor.shard)?;
        SharedBytes::new(Arc::<MappedFile>::clone(mapped), tensor.range.clone())
    }

    /// The path of a tensor's file.
    #[must_use]
    pub fn path(&self, tensor: &Tensor) -> &Path {
        &self.shards[tensor.shard].0
    }

    /// The mappings of all files.
    pub(crate) fn mapped(&self) -> impl Iterator<Item = &MappedFile> {
        self.shards.iter().map(|(_, mapped)| &**mapped).chain(self.index.as_deref())
    }
}

#[cfg(test)]
mod tests;
