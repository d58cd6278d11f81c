//! A manifest: the layers of a model, each a blob that its SHA-256 names.
//!
//! Source: the OCI image manifest, and the media types of Ollama (`server/manifest.go`, `server/images.go`).

use serde::Deserialize;

use super::name::OllamaName;
use crate::hub::error::HubError;

/// What the media type of each of Ollama's layers begins with.
const MEDIA_TYPE: &str = "application/vnd.ollama.image.";
/// Most bytes of a layer that is a text.
const MOST_TEXT_BYTES: u64 = 4 << 20;

/// The layers of a model that are downloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The weights, a GGUF file.
    pub model: Blob,
    /// Other layers, with their kinds.
    others: Vec<(Kind, Blob)>,
    /// The media types of layers that are not downloaded.
    skipped: Vec<String>,
}

/// The data of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// Its SHA-256, 64 hexadecimal digits in lower case.
    pub sha256: String,
    /// Its size.
    pub bytes: u64,
}

/// What a layer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Parameters, as a JSON object.
    Parameters,
    /// The system prompt.
    System,
    /// A template in Go's language.
    Template,
    /// The projector file, a GGUF file.
    Projector,
    /// A text for people or for Ollama: the licence, example messages, the configuration.
    Other,
}

#[derive(Deserialize)]
struct Described {
    config: Option<Layer>,
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct Layer {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
    size: u64,
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// [`HubError::BadManifest`] when it is damaged, [`HubError::Unusable`] when the model is none that Cuelight runs.
    pub fn parse(name: &OllamaName, json: &[u8]) -> Result<Self, HubError> {
        let bad = |reason: String| HubError::BadManifest { model: name.to_string(), reason };
        let described: Described = serde_json::from_slice(json).map_err(|error| bad(error.to_string()))?;
        let mut manifest = Builder { name, models: Vec::new(), others: Vec::new(), skipped: Vec::new() };
        for layer in &described.layers {
            manifest.add(layer)?;
        }
        if let Some(config) = described.config {
            manifest.add_text(Kind::Other, &config)?;
        }
        manifest.build()
    }

    /// The layer of a kind.
    #[must_use]
    pub fn layer(&self, kind: Kind) -> Option<&Blob> {
        self.others.iter().find(|(other, _)| *other == kind).map(|(_, blob)| blob)
    }

    /// The layers without which the model does not run: all but the projector file, which earlier versions did not download.
    pub fn needed(&self) -> impl Iterator<Item = &Blob> {
        let needed = self.others.iter().filter(|(kind, _)| *kind != Kind::Projector);
        needed.map(|(_, blob)| blob).chain([&self.model])
    }

    /// All layers that are downloaded, the texts first.
    pub fn blobs(&self) -> impl Iterator<Item = &Blob> {
        self.others.iter().map(|(_, blob)| blob).chain([&self.model])
    }

    /// What is not downloaded, as a part of a sentence.
    #[must_use]
    pub fn left_out(&self) -> Option<String> {
        let named = self.skipped.iter().map(|kind| match kind.strip_prefix(MEDIA_TYPE) {
            Some("projector") => "another projector".to_owned(),
            _ => format!("a layer of the unknown type {kind}"),
        });
        let named: Vec<String> = named.collect();
        (!named.is_empty()).then(|| named.join(", "))
    }
}

/// Collects the layers of a manifest.
struct Builder<'a> {
    name: &'a OllamaName,
    models: Vec<Blob>,
    others: Vec<(Kind, Blob)>,
    skipped: Vec<String>,
}

impl Builder<'_> {
    fn add(&mut self, layer: &Layer) -> Result<(), HubError> {
        match layer.media_type.strip_prefix(MEDIA_TYPE) {
            Some("model") => self.models.push(self.blob(layer)?),
            Some("params") => self.add_text(Kind::Parameters, layer)?,
            Some("system") => self.add_text(Kind::System, layer)?,
            Some("template") => self.add_text(Kind::Template, layer)?,
            Some("projector") if !self.others.iter().any(|(kind, _)| *kind == Kind::Projector) => {
                self.others.push((Kind::Projector, self.blob(layer)?));
            }
            Some("license" | "messages") => self.add_text(Kind::Other, layer)?,
            Some("adapter") => return Err(self.unusable("has an adapter in a layer of its own")),
            Some("tensor") => {
                return Err(self.unusable("has its weights as single tensors for MLX, not as a GGUF file"));
            }
            _ => self.skipped.push(layer.media_type.chars().take(100).collect()),
        }
        Ok(())
    }

    fn add_text(&mut self, kind: Kind, layer: &Layer) -> Result<(), HubError> {
        if layer.size > MOST_TEXT_BYTES {
            return Err(self.bad(format!("a text has {} bytes, more than {MOST_TEXT_BYTES}", layer.size)));
        }
        self.others.push((kind, self.blob(layer)?));
        Ok(())
    }

    fn blob(&self, layer: &Layer) -> Result<Blob, HubError> {
        let sha256 = layer.digest.strip_prefix("sha256:").unwrap_or_default();
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        // The digest becomes the name of a file.
        if sha256.len() != 64 || !sha256.bytes().all(is_digit) {
            let shown: String = layer.digest.chars().take(80).collect();
            return Err(self.bad(format!("{shown:?} is no SHA-256 digest")));
        }
        Ok(Blob { sha256: sha256.to_owned(), bytes: layer.size })
    }

    fn build(self) -> Result<Manifest, HubError> {
        match &self.models[..] {
            [model] => Ok(Manifest { model: model.clone(), others: self.others, skipped: self.skipped }),
            [] => Err(self.unusable("has no weights")),
            _ => Err(self.unusable("has its weights in several files")),
        }
    }

    fn bad(&self, reason: String) -> HubError {
        HubError::BadManifest { model: self.name.to_string(), reason }
    }

    fn unusable(&self, reason: &'static str) -> HubError {
        HubError::Unusable { model: self.name.to_string(), reason }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn layer(kind: &str, digit: &str) -> Value {
        let digest = format!("sha256:{}", digit.repeat(64));
        json!({ "mediaType": format!("{MEDIA_TYPE}{kind}"), "digest": digest, "size": 7 })
    }

    fn parse(layers: &[Value]) -> Result<Manifest, String> {
        let name = OllamaName::parse("ollama://m:1").unwrap();
        let manifest = json!({ "schemaVersion": 2, "layers": layers }).to_string();
        Manifest::parse(&name, manifest.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn layers_are_told_apart_by_their_types() {
        let manifest = parse(&[layer("model", "a"), layer("params", "b"), layer("projector", "c"), layer("x", "d")]);
        let manifest = manifest.unwrap();
        assert_eq!(manifest.model, Blob { sha256: "a".repeat(64), bytes: 7 });
        assert_eq!(manifest.layer(Kind::Parameters).unwrap().sha256, "b".repeat(64));
        assert_eq!(manifest.layer(Kind::System), None);
        assert_eq!((manifest.blobs().count(), manifest.needed().count()), (3, 2));
        assert_eq!(manifest.layer(Kind::Projector).unwrap().sha256, "c".repeat(64));
        let left_out = manifest.left_out().unwrap();
        assert!(left_out.contains("vnd.ollama.image.x"), "{left_out}");
    }

    #[test]
    fn models_that_do_not_run_are_refused_by_what_they_have() {
        for (layers, reason) in [
            (vec![layer("tensor", "a")], "single tensors for MLX"),
            (vec![layer("model", "a"), layer("adapter", "b")], "has an adapter"),
            (vec![layer("params", "a")], "has no weights"),
            (vec![layer("model", "a"), layer("model", "b")], "several files"),
            (
                vec![json!({ "mediaType": format!("{MEDIA_TYPE}model"), "digest": "sha256:../../x", "size": 1 })],
                "digest",
            ),
            (
                vec![json!({ "mediaType": format!("{MEDIA_TYPE}system"), "digest": "sha256:", "size": 1_u64 << 40 })],
                "bytes",
            ),
            (vec![json!({ "mediaType": 1 })], "manifest"),
        ] {
            let error = parse(&layers).unwrap_err();
            assert!(error.contains(reason) && error.contains("ollama://m:1"), "{error}");
        }
    }
}
