//! Derives the description of the API from its handlers and types.

use std::path::Path;

use serde_json::{Value, json};
use utoipa::OpenApi;

use super::JSON;
use crate::http::actions::{self, acknowledge, incident_api, release, watch};
use crate::http::error::ProblemJson;
use crate::http::live::stream;
use crate::http::{api, history_api, lists, trace};
use crate::model::types::{Certainty, PastEnding, ProblemKind, Source, State};
use crate::query::blockers::BlockerRow;
use crate::query::contention::ContentionRow;
use crate::query::incidents::IncidentRow;
use crate::query::owners::OwnerRow;
use crate::query::problems::ProblemRow;
use crate::query::{Listed, LockRow};
use crate::sources::view::SourceState;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Lockscope dashboard",
        version = "1",
        license(name = ""),
        description = "Redisson-compatible locks in Redis, and their holders. Instants are RFC 3339 in UTC by the dashboard's clock. \
            If the dashboard requires authentication each request carries `Authorization: Bearer <token>`; without one the \
            response is 401. Every error response is in the format of RFC 9457 (`application/problem+json`), except to requests \
            that are not valid HTTP or name an unknown host in `Host`.",
    ),
    paths(
        acknowledge::from_api,
        acknowledge::undo_from_api,
        api::lock,
        api::sources,
        history_api::events,
        history_api::held,
        incident_api::look,
        incident_api::from_api,
        lists::blockers,
        lists::contention,
        lists::incidents,
        lists::locks,
        lists::owners,
        lists::problems,
        release::from_api,
        release::look,
        stream::stream,
        trace::read,
        actions::trace::from_api,
        watch::from_api,
    ),
    components(schemas(ProblemJson<'_>)),
)]
struct Description;

/// Returns the derived description, with the rules that apply to all operations.
fn description() -> Value {
    let mut api = json!(Description::openapi());
    for (method, operation) in operations(&mut api) {
        parameters_are_never_null(operation);
        any_may_be_refused(method, operation);
        errors_are_problems(operation);
    }
    for list in [
        parameters_of::<LockRow>,
        parameters_of::<OwnerRow>,
        parameters_of::<BlockerRow>,
        parameters_of::<IncidentRow>,
        parameters_of::<ProblemRow>,
        parameters_of::<ContentionRow>,
    ] {
        list(&mut api);
    }
    members_are_null_rather_than_absent(&mut api);
    // utoipa cannot derive the rule that exactly one of the two is required.
    api["components"]["schemas"]["AcknowledgeRequest"]["oneOf"] = json!([
        {"required": ["for"], "properties": {"for": {"type": "string"}, "until": {"type": "null"}}},
        {"required": ["until"], "properties": {"until": {"type": "string"}, "for": {"type": "null"}}},
    ]);
    api
}

/// Returns the operations, each with its method.
fn operations(api: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    let paths = api["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut());
    paths.filter_map(Value::as_object_mut).flatten()
}

/// Describes optional parameters as omitted rather than null.
fn parameters_are_never_null(operation: &mut Value) {
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten() {
        let kind = &mut parameter["schema"]["type"];
        if let Some(one) = kind.as_array().and_then(|kinds| kinds.iter().find(|k| *k != "null")) {
            *kind = one.clone();
        }
    }
}

/// Describes the errors that precede every handler, and the time limit.
fn any_may_be_refused(method: &str, operation: &mut Value) {
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    for (status, description) in [
        ("401", "Authentication required: send `Authorization: Bearer <token>`."),
        ("403", "The visitor lacks the right."),
    ] {
        responses.entry(status).or_insert_with(|| json!({"description": description}));
    }
    let late = if method == "get" {
        ("503", "Timed out after 5 s.")
    } else {
        ("504", "Timed out after 5 s: the change may have been made, or may yet be.")
    };
    for (status, sentence) in [("429", "Too many unknown tokens came from the address."), late] {
        let response = responses.entry(status).or_insert_with(|| json!({"description": ""}));
        let own = response["description"].as_str().unwrap_or_default();
        response["description"] = match own {
            "" => sentence.into(),
            own => format!("{own} Or: {sentence}").into(),
        };
    }
}

fn errors_are_problems(operation: &mut Value) {
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    for (_, response) in responses.iter_mut().filter(|(status, _)| status.as_str() >= "400") {
        let problem = json!({"schema": {"$ref": "#/components/schemas/Problem"}});
        response["content"] = json!({"application/problem+json": problem});
    }
}

/// Lists the words by which a list can be sorted and grouped, and removes the parameters that the list does not have.
fn parameters_of<T: Listed>(api: &mut Value) {
    let path = format!("/paths/~1api~1v1~1{}/get/parameters", T::NAME);
    let Some(parameters) = api.pointer_mut(&path).and_then(Value::as_array_mut) else { return };
    let words = |name: &Value| match name.as_str()? {
        "sort" => Some(T::SORTS),
        "by" => Some(T::GROUPINGS),
        "facets" if T::FACETS => Some(&["no", "yes"][..]),
        "facets" => Some(&[""][..]),
        _ => None,
    };
    parameters.retain(|parameter| words(&parameter["name"]) != Some(&[""]));
    for parameter in parameters {
        if let Some(words) = words(&parameter["name"]) {
            parameter["schema"] = json!({"type": "string", "enum": words, "default": words[0]});
        }
    }
}

/// Describes responses as containing all of their members, with null for unknown ones.
fn members_are_null_rather_than_absent(api: &mut Value) {
    if let Some(schemas) = api["components"]["schemas"].as_object_mut() {
        let responses = schemas.iter_mut().filter(|(name, _)| !name.ends_with("Request"));
        responses.for_each(|(_, schema)| require_nullable_members(schema));
    }
    require_nullable_members(&mut api["paths"]);
}

fn require_nullable_members(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(require_nullable_members),
        Value::Object(members) => {
            members.values_mut().for_each(require_nullable_members);
            let Some(properties) = members.get("properties").and_then(Value::as_object) else {
                return;
            };
            let nullable = properties.iter().filter(|(_, schema)| is_nullable(schema));
            let mut required: Vec<Value> = nullable.map(|(name, _)| name.as_str().into()).collect();
            let before = members.remove("required");
            required
                .extend(before.as_ref().and_then(Value::as_array).into_iter().flatten().cloned());
            if !required.is_empty() {
                members.insert("required".to_owned(), required.into());
            }
        }
        _ => {}
    }
}

fn is_nullable(schema: &Value) -> bool {
    let has_null = |schema: &Value| match &schema["type"] {
        Value::Array(kinds) => kinds.iter().any(|kind| kind == "null"),
        kind => kind == "null",
    };
    let alternatives = schema["oneOf"].as_array().into_iter().flatten();
    has_null(schema) || alternatives.into_iter().any(has_null)
}

/// Returns the text of the description as it is stored.
fn stored_text() -> String {
    // OpenAPI's format registry uses the name `uint32`, and utoipa uses `u-int32`.
    format!("{:#}\n", description()).replace("\"u-int", "\"uint")
}

#[test]
fn the_stored_description_is_that_of_the_handlers_and_types() {
    let text = stored_text();
    if std::env::var_os("LOCKSCOPE_RECORD").is_some() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/openapi.json");
        std::fs::write(file, text).unwrap();
        return;
    }
    assert!(text == JSON, "docs/reference/openapi.json is outdated: run `make openapi`");
}

#[test]
fn every_operation_has_the_errors_of_the_login_and_the_time_limit() {
    let mut api = description();
    for (method, operation) in operations(&mut api) {
        let late = if method == "get" { "503" } else { "504" };
        for status in ["401", "403", "429", late] {
            assert!(operation["responses"][status].is_object(), "{method} {operation}: {status}");
        }
    }
}

#[test]
fn enums_have_the_words_that_are_used() {
    let api = description();
    let words = |pointer: &str| -> Vec<String> {
        let words = api.pointer(&format!("/components/schemas/{pointer}/enum"));
        let words = words.and_then(Value::as_array).unwrap_or_else(|| panic!("{pointer}"));
        let words = words.iter().filter_map(Value::as_str).map(str::to_owned);
        let mut words: Vec<String> = words.collect();
        words.sort_unstable();
        words
    };
    let sorted = |mut words: Vec<&'static str>| {
        words.sort_unstable();
        words
    };
    let certainties = [Certainty::Certain, Certainty::Suspected].map(Certainty::as_str);
    let states = [State::Held, State::Free, State::Unknown].map(State::as_str);
    for (pointer, expected) in [
        ("ProblemKind", ProblemKind::ALL.map(ProblemKind::as_str).to_vec()),
        ("Certainty", certainties.to_vec()),
        ("LockState", states.to_vec()),
        ("SourceWord", Source::ALL.map(Source::as_str).to_vec()),
        ("SourceState", SourceState::ALL.map(SourceState::as_str).to_vec()),
        ("PastHold/properties/ended", PastEnding::words().collect()),
    ] {
        assert_eq!(words(pointer), sorted(expected), "{pointer}");
    }
}

#[test]
fn every_reference_has_its_schema() {
    let api = description();
    let text = api.to_string();
    let references = text.split("\"#/components/schemas/").skip(1);
    let names: Vec<&str> = references.filter_map(|rest| rest.split('"').next()).collect();
    assert!(names.len() > 100, "{names:?}");
    for name in names {
        assert!(api["components"]["schemas"].get(name).is_some(), "{name}");
    }
}
