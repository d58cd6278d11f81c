//! The field `kv_transfer_params`, by which a router lets one server compute a prompt and another generate the answer.
//!
//! The names and their meaning are vLLM's, so routers that know vLLM work: the first server is asked with `do_remote_decode` and
//! returns parameters, with which the second is asked.

use std::net::Ipv6Addr;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::fields::{Fields, missing};
use crate::core::kv_transfer::{KvTransfer, PeerAddress, is_name};
use crate::pipeline::kv_store::SharedBlocks;
use crate::serving::error::{ApiError, clip};

/// The name of the field, in requests and responses.
const FIELD: &str = "kv_transfer_params";

/// Reads the field. `shared`: the blocks that this server shares.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn read(fields: &Fields<'_>, shared: Option<&SharedBlocks>) -> Result<KvTransfer, ApiError> {
    let Some(params) = fields.object(FIELD)? else { return Ok(KvTransfer::default()) };
    let is_decoded_elsewhere = params.bool("do_remote_decode")?.unwrap_or(false);
    let is_computed_elsewhere = params.bool("do_remote_prefill")?.unwrap_or(false);
    let from = is_computed_elsewhere.then(|| address(&params)).transpose()?;
    let shared_at = match (is_decoded_elsewhere, shared) {
        (false, _) => None,
        (true, Some(shared)) => Some(Arc::clone(shared.address())),
        (true, None) => {
            return Err(ApiError::Unsupported {
                param: params.path("do_remote_decode"),
                message: "this server keeps no KV blocks for others; start it with --kv-share".to_owned(),
            });
        }
    };
    Ok(KvTransfer { from: from.map(Arc::new), shared_at })
}

fn address(params: &Fields<'_>) -> Result<PeerAddress, ApiError> {
    let path = params.path("remote_host");
    let host = params.string("remote_host")?.ok_or_else(|| missing(&path, "the host name or address of a server"))?;
    if !is_name(host) && host.parse::<Ipv6Addr>().is_err() {
        let message = format!("`{path}` must be a host name or an IP address, not {}", clip(host));
        return Err(ApiError::invalid(&path, message));
    }
    let path = params.path("remote_port");
    let port = params.integer("remote_port", 1..=i64::from(u16::MAX))?;
    let port = port.and_then(|port| u16::try_from(port).ok()).ok_or_else(|| missing(&path, "the port of a server"))?;
    Ok(PeerAddress { host: host.to_owned(), port })
}

/// Adds to a response how another server finds the blocks of the prompt.
pub(super) fn add_to_whole(transfer: &KvTransfer, response: &mut Value) {
    let Some(address) = &transfer.shared_at else { return };
    response[FIELD] = json!({
        "do_remote_prefill": true,
        "do_remote_decode": false,
        "remote_engine_id": address.to_string(),
        "remote_host": address.host,
        "remote_port": address.port,
    });
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn read_params(params: &Value, shared: Option<&SharedBlocks>) -> Result<KvTransfer, ApiError> {
        read(&Fields::of_body(&json!({ FIELD: params })).unwrap(), shared)
    }

    #[test]
    fn what_one_server_returns_leads_another_to_it() {
        let address = PeerAddress { host: "10.0.0.7".to_owned(), port: 8080 };
        let shared = SharedBlocks::new(address.clone());
        let asked = json!({ "do_remote_decode": true, "do_remote_prefill": false, "remote_host": null });
        let transfer = read_params(&asked, Some(&shared)).unwrap();
        assert_eq!(transfer, KvTransfer { from: None, shared_at: Some(Arc::new(address.clone())) });
        let mut response = json!({});
        add_to_whole(&transfer, &mut response);
        let next = read_params(&response[FIELD], Some(&shared)).unwrap();
        assert_eq!(next, KvTransfer { from: Some(Arc::new(address)), shared_at: None });
    }

    #[test]
    fn nothing_is_returned_where_nothing_is_asked_for() {
        let shared = SharedBlocks::new(PeerAddress { host: "a".to_owned(), port: 1 });
        for (params, shared) in
            [(json!(null), Some(&shared)), (json!({}), None), (json!({ "do_remote_decode": false }), Some(&shared))]
        {
            let transfer = read_params(&params, shared).unwrap();
            assert_eq!(transfer, KvTransfer::default());
            let mut response = json!({});
            add_to_whole(&transfer, &mut response);
            assert_eq!(response, json!({}));
        }
    }

    #[test]
    fn a_server_that_shares_no_blocks_computes_no_prompt_for_others() {
        let refused = read_params(&json!({ "do_remote_decode": true }), None);
        assert!(matches!(refused, Err(ApiError::Unsupported { .. })));
    }

    #[test]
    fn wrong_parameters_are_named() {
        let peer = |host, port| json!({ "do_remote_prefill": true, "remote_host": host, "remote_port": port });
        let cases = [
            (json!("peer"), ""),
            (json!({ "do_remote_decode": 1 }), ".do_remote_decode"),
            (json!({ "do_remote_prefill": true }), ".remote_host"),
            (peer("a/b?", Some(1)), ".remote_host"),
            (peer("", Some(1)), ".remote_host"),
            (peer("a", None), ".remote_port"),
            (peer("a", Some(70_000)), ".remote_port"),
        ];
        for (params, name) in cases {
            match read_params(&params, None) {
                Err(ApiError::InvalidRequest { param, .. }) => assert_eq!(param, Some(format!("{FIELD}{name}"))),
                other => panic!("{params}: {other:?}"),
            }
        }
    }
}
