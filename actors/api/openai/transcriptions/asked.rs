//! What a client asks for.

use super::format::Format;
use super::granularity::Granularity;
use crate::api::caller::Caller;
use crate::api::fields::Fields;
use crate::api::openai::sampling;
use crate::api::server::Server;
use crate::serving::error::ApiError;
use crate::serving::options::GenerationOptions;
use crate::serving::transcription::request::TranscriptionRequest;
use crate::serving::transcription::task::Task;

/// What a client asks for, without its file.
pub(super) struct Asked {
    pub model: Option<String>,
    pub options: GenerationOptions,
    pub format: Format,
    pub granularity: Granularity,
    /// Without audio.
    pub request: TranscriptionRequest,
}

impl Asked {
    /// Reads the fields of a form.
    pub fn read(server: &Server, caller: &Caller, fields: &Fields<'_>, task: Task) -> Result<Self, ApiError> {
        let tenancy = caller.tenancy(fields, &server.options())?;
        let text = |name: &str| -> Result<Option<String>, ApiError> {
            Ok(fields.string(name)?.filter(|text| !text.is_empty()).map(str::to_owned))
        };
        let (language, before) = (text("language")?, text("prompt")?);
        let options = sampling::read(fields, tenancy, fields.count("max_tokens", 1)?, None)?;
        let format = Format::read(fields)?;
        Ok(Asked {
            model: fields.string("model")?.map(str::to_owned),
            granularity: Granularity::read(fields, format == Format::VerboseJson, task, options.stream.is_some())?,
            options,
            format,
            request: TranscriptionRequest { audio: Vec::new(), language, before, task },
        })
    }
}
