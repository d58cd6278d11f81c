//! `GET /openapi.json`: the API as an OpenAPI 3.1 document.
//!
//! [`operations`] lists the routes, [`bodies`] the fields of requests. A test compares the routes with the router's.

mod bodies;
mod operations;

use std::sync::OnceLock;

use axum::http::header;
use axum::response::{IntoResponse, Response as HttpResponse};
use utoipa::openapi::content::{Content, ContentBuilder};
use utoipa::openapi::path::{Operation, OperationBuilder, ParameterBuilder, ParameterIn, PathsBuilder};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ArrayBuilder, Schema, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, InfoBuilder, ObjectBuilder, OpenApi, OpenApiBuilder, PathItem, Ref, RefOr, Required, Response,
    ResponseBuilder,
};

use self::bodies::{BODIES, Body, Field, Kind};
use self::operations::{Answer, OPERATIONS, Route};

/// The name of the security scheme.
const KEY: &str = "api_key";

/// Answers with the document. It is built once.
pub(super) async fn document() -> HttpResponse {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    // The document contains only texts, which are always valid JSON.
    let text = DOCUMENT.get_or_init(|| build().to_json().unwrap_or_default());
    ([(header::CONTENT_TYPE, "application/json")], text.as_str()).into_response()
}

fn build() -> OpenApi {
    let mut paths = PathsBuilder::new().build();
    for route in OPERATIONS {
        let item = PathItem::new(route.method.clone(), operation(route));
        match paths.paths.get_mut(route.path) {
            Some(path) => path.merge_operations(item),
            None => drop(paths.paths.insert(route.path.to_owned(), item)),
        }
    }
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("One of the keys of --api-key. A server without keys needs none."))
        .build();
    let mut components = ComponentsBuilder::new().security_scheme(KEY, SecurityScheme::Http(bearer));
    for body in BODIES {
        components = components.schema(body.name, object(body));
    }
    let info = InfoBuilder::new()
        .title("Cuelight")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("An LLM inference server with the protocols of OpenAI, Anthropic, Ollama and llama.cpp."));
    OpenApiBuilder::new().info(info.build()).paths(paths).components(Some(components.build())).build()
}

fn operation(route: &Route) -> Operation {
    let mut operation = OperationBuilder::new()
        .operation_id(Some(route.id()))
        .tag(route.tag)
        .summary(Some(route.summary))
        .response("200", success(route.answer));
    if route.needs_key {
        operation = operation
            .security(SecurityRequirement::new::<&str, [&str; 0], &str>(KEY, []))
            .response("401", ResponseBuilder::new().description("The API key is missing or wrong.").build());
    }
    if let Some(body) = route.body {
        let content = Content::new(Some(Ref::from_schema_name(body)));
        let request = RequestBodyBuilder::new().content(route.content, content).required(Some(Required::True));
        operation = operation
            .request_body(Some(request.build()))
            .response("400", ResponseBuilder::new().description("A field is wrong; the error names it.").build());
    }
    for name in route.path_parameters() {
        let text = ObjectBuilder::new().schema_type(Type::String);
        let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path).required(Required::True);
        operation = operation.parameter(parameter.schema(Some(text)));
    }
    operation.build()
}

/// The response of a request that succeeds.
fn success(answer: Answer) -> Response {
    let any = || ContentBuilder::new().schema(Some(ObjectBuilder::new())).build();
    let text = || ContentBuilder::new().schema(Some(ObjectBuilder::new().schema_type(Type::String))).build();
    let response = match answer {
        Answer::Json => ResponseBuilder::new().description("The answer.").content("application/json", any()),
        Answer::JsonOrEvents => ResponseBuilder::new()
            .description("The answer; with `stream`, events while it is generated.")
            .content("application/json", any())
            .content("text/event-stream", text()),
        Answer::JsonOrLines => ResponseBuilder::new()
            .description("Lines of JSON while the answer is generated; without `stream`, one object.")
            .content("application/x-ndjson", text())
            .content("application/json", any()),
        Answer::Text => ResponseBuilder::new().description("A text.").content("text/plain", text()),
    };
    response.build()
}

/// The schema of a request.
fn object(body: &Body) -> RefOr<Schema> {
    let mut object = ObjectBuilder::new();
    for field in body.fields() {
        object = object.property(field.name, schema(field));
        if body.required.contains(&field.name) {
            object = object.required(field.name);
        }
    }
    object.into()
}

fn schema(field: &Field) -> RefOr<Schema> {
    let typed = |kind: SchemaType| ObjectBuilder::new().schema_type(kind).description(Some(field.meaning)).into();
    match field.kind {
        Kind::Text => typed(Type::String.into()),
        Kind::Integer => typed(Type::Integer.into()),
        Kind::Number => typed(Type::Number.into()),
        Kind::Boolean => typed(Type::Boolean.into()),
        Kind::Object => typed(Type::Object.into()),
        Kind::Any => typed(SchemaType::AnyValue),
        Kind::List => {
            let item = ObjectBuilder::new().schema_type(SchemaType::AnyValue);
            ArrayBuilder::new().items(item).description(Some(field.meaning)).into()
        }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_is_described_once() {
        let mut seen = BTreeSet::new();
        for route in OPERATIONS {
            assert!(seen.insert(route.id()), "{} is twice in the list", route.id());
            assert!(route.body.is_none_or(|name| BODIES.iter().any(|body| body.name == name)), "{}", route.path);
            assert!(route.summary.ends_with('.'), "{}", route.summary);
        }
    }

    #[test]
    fn required_fields_exist_and_no_field_is_twice_in_a_body() {
        for body in BODIES {
            let names: Vec<&str> = body.fields().map(|field| field.name).collect();
            assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len(), "{}", body.name);
            assert!(body.required.iter().all(|name| names.contains(name)), "{}", body.name);
        }
    }

    #[test]
    fn the_document_has_types_descriptions_keys_and_parameters() {
        let document: serde_json::Value = serde_json::from_str(&build().to_json().unwrap()).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let chat = &document["paths"]["/v1/chat/completions"]["post"];
        assert_eq!(chat["security"][0]["api_key"], serde_json::json!([]));
        let schema = chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].as_str().unwrap();
        let schema = document.pointer(schema.trim_start_matches('#')).unwrap();
        assert_eq!(schema["required"], serde_json::json!(["messages"]));
        assert_eq!(schema["properties"]["temperature"]["type"], "number");
        assert!(schema["properties"]["temperature"]["description"].as_str().unwrap().len() > 5);
        let stored = &document["paths"]["/v1/responses/{id}"];
        assert!(stored["get"].is_object() && stored["delete"].is_object());
        assert_eq!(stored["get"]["parameters"][0]["name"], "id");
        assert!(document["paths"]["/health"]["get"]["security"].is_null());
    }
}
