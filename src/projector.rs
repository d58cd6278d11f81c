//! The encoders of a projector file (mmproj): of images, of audio, or of both.

use std::sync::Arc;

use crate::audio::{self, AudioEncoder, AudioPlan, AudioPreparation, PreparedAudio};
use crate::cancel::LoadCancel;
use crate::engine::EngineError;
use crate::load::LoadError;
use crate::mapped_file::ModelFiles;
use crate::media::{MediaKind, MediaPart, MediaSpec};
use crate::memory::MemoryId;
use crate::tower::plan::TowerPlan;
use crate::tower::{TowerOptions, file};
use crate::vision::{self, ImagePreparation, PreparedImage, VisionEncoder, VisionPlan};

/// A media item as its encoder takes it.
#[derive(Debug, Clone, PartialEq)]
pub enum PreparedMedia {
    /// An image.
    Image(PreparedImage),
    /// Audio.
    Audio(PreparedAudio),
}

impl PreparedMedia {
    /// What it is.
    #[must_use]
    pub fn kind(&self) -> MediaKind {
        match self {
            PreparedMedia::Image(_) => MediaKind::Image,
            PreparedMedia::Audio(_) => MediaKind::Audio,
        }
    }

    /// What takes the place of the placeholder.
    #[must_use]
    pub fn parts(&self) -> &[MediaPart] {
        match self {
            PreparedMedia::Image(image) => &image.parts,
            PreparedMedia::Audio(audio) => &audio.parts,
        }
    }

    /// What is computed at once: an image, or a window of audio. Their rows follow one another.
    #[must_use]
    pub fn into_pieces(self) -> Vec<PreparedMedia> {
        match self {
            PreparedMedia::Image(_) => vec![self],
            PreparedMedia::Audio(audio) => {
                let piece = |window| PreparedAudio { parts: Vec::new(), windows: vec![window] };
                audio.windows.into_iter().map(|window| PreparedMedia::Audio(piece(window))).collect()
            }
        }
    }

    /// The number of embedding rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.parts().iter().map(MediaPart::rows).sum()
    }
}

/// What prepares the media of a model, for each kind that it takes. Cheap to clone.
#[derive(Clone, Default)]
pub struct MediaPreparation {
    /// Prepares images.
    pub images: Option<Arc<dyn ImagePreparation>>,
    /// Prepares audio.
    pub audio: Option<Arc<dyn AudioPreparation>>,
}

impl MediaPreparation {
    /// How the model takes media of a kind; `None` if it takes none.
    #[must_use]
    pub fn spec(&self, kind: MediaKind) -> Option<&MediaSpec> {
        match kind {
            MediaKind::Image => self.images.as_ref().map(|images| images.spec()),
            MediaKind::Audio => self.audio.as_ref().map(|audio| audio.spec()),
        }
    }

    /// The kinds that the model takes, with how it takes them.
    pub fn specs(&self) -> impl Iterator<Item = (MediaKind, &MediaSpec)> {
        MediaKind::ALL.into_iter().filter_map(|kind| Some((kind, self.spec(kind)?)))
    }
}

/// The encoders of a file on their device.
pub trait MediaEncoder: Send + 'static {
    /// The embedding rows of a media item, [rows, width]. Blocks. `cancel` is checked before each part of it.
    ///
    /// # Errors
    /// [`EngineError`] when the device is lost, the files have changed, the item does not belong to these encoders, or it was
    /// cancelled.
    fn encode(&mut self, media: &PreparedMedia, cancel: &LoadCancel) -> Result<Vec<f32>, EngineError>;
}

/// The encoders of a file whose headers are read.
pub struct ProjectorPlan {
    images: Option<VisionPlan>,
    audio: Option<AudioPlan>,
    left_out: Option<LoadError>,
}

/// Reads the headers of the encoders of a file. If one of two cannot be computed, the file is used without it.
///
/// # Errors
/// [`LoadError`] when the file has no encoder that can be computed on this device.
pub fn plan(options: &TowerOptions) -> Result<ProjectorPlan, LoadError> {
    let file = file::open(&options.path, options.copy.as_deref())?;
    let has = |kind| file::has(&*file, kind);
    let images = || vision::plan::plan_of_file(&*file, options);
    let audio = || audio::plan::plan_of_file(&*file, options);
    if !has(MediaKind::Audio)? {
        return Ok(ProjectorPlan { images: Some(images()?), audio: None, left_out: None });
    }
    if !has(MediaKind::Image)? {
        return Ok(ProjectorPlan { images: None, audio: Some(audio()?), left_out: None });
    }
    match (images(), audio()) {
        (Ok(images), Ok(audio)) => Ok(ProjectorPlan { images: Some(images), audio: Some(audio), left_out: None }),
        (Ok(images), Err(error)) => Ok(ProjectorPlan { images: Some(images), audio: None, left_out: Some(error) }),
        (Err(error), Ok(audio)) => Ok(ProjectorPlan { images: None, audio: Some(audio), left_out: Some(error) }),
        (Err(error), Err(_)) => Err(error),
    }
}

impl ProjectorPlan {
    /// Turns media into what the encoders take.
    #[must_use]
    pub fn preparation(&self) -> MediaPreparation {
        MediaPreparation {
            images: self.images.as_ref().map(VisionPlan::preparation),
            audio: self.audio.as_ref().map(AudioPlan::preparation),
        }
    }

    /// Why one of two encoders is not used.
    #[must_use]
    pub fn left_out(&self) -> Option<&LoadError> {
        self.left_out.as_ref()
    }

    fn towers(&self) -> impl Iterator<Item = &TowerPlan> {
        self.images.iter().map(VisionPlan::tower).chain(self.audio.iter().map(AudioPlan::tower))
    }

    /// One of its encoders: both are on the same device, from the same files.
    fn tower(&self) -> &TowerPlan {
        self.towers().next().expect("a plan has an encoder")
    }

    /// The memory that they use.
    #[must_use]
    pub fn memory(&self) -> MemoryId {
        self.tower().memory()
    }

    /// Bytes of their weights and of their working memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.towers().map(TowerPlan::bytes).sum()
    }

    /// The files, which must not change while they are used.
    #[must_use]
    pub fn files(&self) -> ModelFiles {
        self.tower().files()
    }

    /// Each encoder for people, after its kind: "images: SigLIP, 27 layers, 896 x 896".
    #[must_use]
    pub fn describe(&self) -> String {
        let of = |kind: MediaKind, description: String| format!("{}: {description}", kind.several());
        let images = self.images.iter().map(|images| of(MediaKind::Image, images.describe()));
        let audio = self.audio.iter().map(|audio| of(MediaKind::Audio, audio.describe()));
        images.chain(audio).collect::<Vec<_>>().join("; ")
    }

    /// Loads the weights and reserves the working memory.
    ///
    /// # Errors
    /// [`LoadError`] when the device fails, the file has changed, or the load was cancelled.
    pub fn load(self, cancel: &LoadCancel) -> Result<Box<dyn MediaEncoder>, LoadError> {
        let images = self.images.map(|images| images.load(cancel)).transpose()?;
        let audio = self.audio.map(|audio| audio.load(cancel)).transpose()?;
        Ok(Box::new(Encoders { images, audio }))
    }
}

/// The encoders of a file.
struct Encoders {
    images: Option<VisionEncoder>,
    audio: Option<AudioEncoder>,
}

impl MediaEncoder for Encoders {
    fn encode(&mut self, media: &PreparedMedia, cancel: &LoadCancel) -> Result<Vec<f32>, EngineError> {
        match (media, &mut self.images, &mut self.audio) {
            (PreparedMedia::Image(image), Some(images), _) => images.encode(image, cancel),
            (PreparedMedia::Audio(audio), _, Some(encoder)) => encoder.encode(audio, cancel),
            (media, ..) => {
                let reason = format!("the file has no encoder of {}", media.kind().several());
                Err(crate::tower::steps::invalid(reason))
            }
        }
    }
}
