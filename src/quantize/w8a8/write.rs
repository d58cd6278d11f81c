//! Writes the new directory tensor by tensor. It gets its name only when it is complete.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use cuelight_shaders::quant::Format;
use cuelight_shaders::weight::SharedBytes;

use super::companions::{self, CONFIG};
use super::config::{quantization_config, with_key};
use super::error::W8a8Error;
use super::factors::{Factors, NormWeight, divided_bias, wanted};
use super::folder::{PartialFolder, check_place};
use super::maxima::InputMaxima;
use super::plan::W8a8Plan;
use super::rows::Rows;
use super::smoothing::{Member, SmoothedGroup};
use crate::cancel::LoadCancel;
use crate::checkpoint;
use crate::format::hugging_face::Origin;
use crate::format::safetensors::Dtype;
use crate::format::safetensors::write::{NewFiles, NewTensor};
use crate::quantize::write::WriteProgress;

/// The type of codes.
const CODES: &str = "I8";

/// What is added to the name of a matrix's module for its scales.
const SCALES: &str = "weight_scale";

impl W8a8Plan<'_> {
    /// Checks that the new directory can be written to `out`: neither it nor the model is inside the other, and `out` is missing or
    /// was written by an earlier quantization.
    ///
    /// # Errors
    /// [`W8a8Error`] naming the place.
    pub fn check_place(&self, out: &Path) -> Result<(), W8a8Error> {
        check_place(&self.folder, out)
    }

    /// Writes the new directory to `out`. Until it is complete its name ends in `.partial`; after an error it is removed. `maxima`
    /// are those of the model, for smoothing. Returns the bytes of weights.
    ///
    /// # Errors
    /// [`W8a8Error`] when the place is not usable, a value is not finite, or the directory cannot be written.
    pub fn write(
        &self,
        out: &Path,
        maxima: &InputMaxima,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(WriteProgress),
    ) -> Result<u64, W8a8Error> {
        self.check_place(out)?;
        let partial = PartialFolder::create(out)?;
        match self.fill(partial.path(), maxima, cancel, progress) {
            Ok(bytes) => partial.publish(out).map(|()| bytes),
            Err(error) => {
                partial.discard();
                Err(error)
            }
        }
    }

    fn fill(
        &self,
        folder: &Path,
        maxima: &InputMaxima,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(WriteProgress),
    ) -> Result<u64, W8a8Error> {
        companions::copy(&self.folder, folder)
            .map_err(|source| W8a8Error::Write { path: folder.to_owned(), source })?;
        self.write_config(folder)?;
        let mut writer = Writer::new(self, maxima);
        let (tensors, parts) = self.new_tensors();
        let files = NewFiles::new(tensors, self.options.most_file_bytes);
        let (total_bytes, mut done_bytes) = (self.bytes().0, 0);
        files.write(folder, &mut |index| {
            cancel.check().map_err(|_| W8a8Error::Cancelled)?;
            let (origin, is_scales) = parts[index];
            if is_scales {
                return writer.scales(origin);
            }
            let bytes = writer.values(origin)?;
            done_bytes += self.tensors[origin].from_bytes;
            progress(WriteProgress { done_bytes, total_bytes });
            Ok(bytes)
        })?;
        self.origins.files().check()?;
        // A directory that does not open is never given its name.
        checkpoint::open(folder)?;
        Ok(files.bytes())
    }

    fn write_config(&self, folder: &Path) -> Result<(), W8a8Error> {
        let (from, to) = (self.folder.join(CONFIG), folder.join(CONFIG));
        let text = fs::read_to_string(&from).map_err(|source| W8a8Error::Read { path: from.clone(), source })?;
        let config = with_key(&text, "quantization_config", &quantization_config(&self.tensors));
        let config = config.ok_or(W8a8Error::NotAnObject { path: from })?;
        let written = fs::File::create(&to).and_then(|mut file| {
            file.write_all(config.as_bytes())?;
            file.sync_all()
        });
        written.map_err(|source| W8a8Error::Write { path: to, source })
    }

    /// The new tensors, and for each the tensor that it is made of and whether it holds the scales.
    fn new_tensors(&self) -> (Vec<NewTensor>, Vec<(usize, bool)>) {
        let (mut tensors, mut parts) = (Vec::new(), Vec::new());
        for (index, origin) in self.origins.tensors().iter().enumerate() {
            let stored = &origin.tensor;
            let codes = Dtype::named(CODES).filter(|_| self.tensors[index].is_quantized);
            let dtype = codes.unwrap_or(stored.dtype);
            tensors.push(NewTensor { name: stored.name.clone(), dtype, shape: stored.shape.clone() });
            parts.push((index, false));
            if let Some(module) = stored.name.strip_suffix("weight").filter(|_| codes.is_some()) {
                let shape = vec![stored.shape[0], 1];
                tensors.push(NewTensor { name: format!("{module}{SCALES}"), dtype: stored.dtype, shape });
                parts.push((index, true));
            }
        }
        (tensors, parts)
    }
}

/// Makes the bytes of new tensors.
struct Writer<'a> {
    plan: &'a W8a8Plan<'a>,
    maxima: &'a InputMaxima,
    /// The factors of each group, computed when its first tensor is written.
    factors: Vec<OnceCell<Factors>>,
    /// The scales of matrices whose codes are made and whose scales are not written.
    scales: HashMap<usize, Vec<u8>>,
}

impl<'a> Writer<'a> {
    fn new(plan: &'a W8a8Plan<'a>, maxima: &'a InputMaxima) -> Self {
        let factors = plan.groups.iter().map(|_| OnceCell::new()).collect();
        Writer { plan, maxima, factors, scales: HashMap::new() }
    }

    /// The scales of a matrix.
    fn scales(&mut self, index: usize) -> Result<SharedBytes, W8a8Error> {
        if !self.scales.contains_key(&index) {
            self.values(index)?;
        }
        Ok(self.scales.remove(&index).unwrap_or_default().into())
    }

    /// The bytes of a tensor, or its codes. Their scales are kept until they are written.
    fn values(&mut self, index: usize) -> Result<SharedBytes, W8a8Error> {
        let (bytes, member) = (self.stored(index), self.plan.members.get(&index).copied());
        let made = match member {
            Some((group, Member::Norm)) => self.factors(group)?.norm.clone(),
            Some((group, Member::Bias)) => {
                divided_bias(self.format(index), bytes.as_slice(), &self.factors(group)?.columns)
            }
            None if !self.plan.tensors[index].is_quantized => return Ok(bytes),
            _ => {
                let factors = member.map(|(group, _)| self.factors(group)).transpose()?;
                let (made, scales) = self.matrix(index, &self.rows(index, &bytes, factors))?;
                self.scales.extend(scales.map(|scales| (index, scales)));
                made
            }
        };
        bytes.release();
        Ok(made.into())
    }

    /// The codes of a matrix and their scales, or its values with its factors.
    fn matrix(&self, index: usize, rows: &Rows<'_>) -> Result<(Vec<u8>, Option<Vec<u8>>), W8a8Error> {
        if !self.plan.tensors[index].is_quantized {
            return Ok((rows.scaled(), None));
        }
        let quantized = rows.quantized(self.plan.options.clip).map_err(|source| {
            let (path, tensor) = (self.plan.folder.clone(), self.plan.tensors[index].name.clone());
            W8a8Error::Tensor { path, tensor, source }
        })?;
        Ok((quantized.codes, Some(quantized.scales)))
    }

    /// The factors of a group. They depend on all of its matrices.
    fn factors(&self, group: usize) -> Result<&Factors, W8a8Error> {
        let cell = &self.factors[group];
        match cell.get() {
            Some(factors) => Ok(factors),
            None => {
                let factors = self.computed(&self.plan.groups[group])?;
                Ok(cell.get_or_init(|| factors))
            }
        }
    }

    fn computed(&self, group: &SmoothedGroup) -> Result<Factors, W8a8Error> {
        let norm = self.stored(group.norm);
        let width = self.origin(group.norm).tensor.shape[0];
        let inputs = self.inputs(group, width)?;
        let mut weights = vec![0.0_f32; width];
        for matrix in &group.matrices {
            let bytes = self.stored(*matrix);
            let maxima = self.rows(*matrix, &bytes, None).column_maxima();
            weights.iter_mut().zip(maxima).for_each(|(most, value)| *most = most.max(value));
            bytes.release();
        }
        let wanted = wanted(&inputs, &weights, self.plan.options.smoothing.unwrap_or_default());
        let weight = NormWeight { format: self.format(group.norm), bytes: norm.as_slice(), lacks_one: group.lacks_one };
        Ok(weight.divided(&wanted))
    }

    /// The largest inputs of a group: of all of its matrices, because experts see some of the rows.
    fn inputs(&self, group: &SmoothedGroup, width: usize) -> Result<Vec<f32>, W8a8Error> {
        let mut inputs = vec![0.0_f32; width];
        for tensor in &group.tensors {
            let Some(maxima) = self.maxima.of(tensor) else { continue };
            if maxima.len() != width {
                let (tensor, found) = (tensor.clone(), maxima.len());
                return Err(W8a8Error::InputSize { tensor, found, expected: width });
            }
            inputs.iter_mut().zip(maxima).for_each(|(most, value)| *most = most.max(*value));
        }
        Ok(inputs)
    }

    fn origin(&self, index: usize) -> &'a Origin {
        &self.plan.origins.tensors()[index]
    }

    fn stored(&self, index: usize) -> SharedBytes {
        // The tensor is one of the files'.
        self.plan.origins.bytes(&self.origin(index).tensor).unwrap_or_else(|| Vec::new().into())
    }

    /// The format of a tensor that is quantized or smoothed, which is one of those.
    fn format(&self, index: usize) -> Format {
        self.origin(index).format().unwrap_or(Format::F32)
    }

    fn rows<'b>(&self, index: usize, bytes: &'b SharedBytes, factors: Option<&'b Factors>) -> Rows<'b> {
        Rows {
            format: self.format(index),
            columns: self.origin(index).tensor.shape.last().copied().unwrap_or(0),
            bytes: bytes.as_slice(),
            factors: factors.map(|factors| &factors.columns[..]),
            threads: self.plan.options.threads,
        }
    }
}
