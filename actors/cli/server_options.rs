//! The options of the HTTP API that the configuration sets, for a server and for the requests of a file.

use crate::api::{ApiKey, ConnectionOptions, ServerOptions};
use crate::config::{ByteSize, Config};
use crate::serving::media_host::{InvalidMediaHost, MediaHost};
use crate::serving::media_limits::MediaLimits;

use super::CliError;
use super::api_keys::api_keys;
use super::server_memory::{request_memory, response_store};

/// The options that the configuration sets.
///
/// # Errors
/// [`CliError`] when the file of keys cannot be read, or a media host is invalid.
pub fn server_options(config: &Config) -> Result<ServerOptions, CliError> {
    Ok(ServerOptions {
        api_keys: api_keys(config)?.into_iter().map(ApiKey::from).collect(),
        cors_origins: config.cors_origin.iter().map(|origin| origin.0.clone()).collect(),
        allowed_hosts: std::iter::once(config.host.clone()).chain(config.allowed_host.iter().cloned()).collect(),
        max_body_bytes: usize::try_from(config.max_body_size.0).unwrap_or(usize::MAX),
        request_memory_bytes: usize::try_from(request_memory(config)).unwrap_or(usize::MAX),
        response_store_bytes: usize::try_from(response_store(config)).unwrap_or(usize::MAX),
        body_timeout: config.body_timeout,
        connections: ConnectionOptions {
            header_timeout: config.header_timeout,
            idle_timeout: config.idle_timeout,
            stall_timeout: config.client_stall_timeout,
            ..ConnectionOptions::default()
        },
        client_identity: config.client_identity,
        highest_priority: config.highest_priority,
        tenant_isolation: config.tenant_isolation,
        allow_lora_loading: config.allow_lora_loading,
        request_timeout: config.request_timeout,
        media: media_limits(config)?,
        drain_timeout: config.drain_timeout,
        chat_page: !config.no_chat_page,
        ..ServerOptions::default()
    })
}

/// Limits of the media of a request.
fn media_limits(config: &Config) -> Result<MediaLimits, CliError> {
    let bytes = |size: ByteSize| usize::try_from(size.0).unwrap_or(usize::MAX);
    let hosts = config.media_host.iter().map(|host| host.parse()).collect::<Result<Vec<MediaHost>, InvalidMediaHost>>();
    Ok(MediaLimits {
        images: config.max_images.get(),
        image_bytes: bytes(config.max_image_size),
        image_pixels: config.max_image_pixels.get() as u64,
        audio: config.max_audio.get(),
        audio_bytes: bytes(config.max_audio_size),
        audio_seconds: config.max_audio_seconds.get(),
        hosts: hosts.map_err(|error| CliError::Usage(format!("--media-host: {error}")))?.into(),
    })
}
