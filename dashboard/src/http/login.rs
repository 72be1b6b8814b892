//! The way in and out for people.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Form;
use axum::extract::rejection::FormRejection;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use serde::Deserialize;

use super::guard::{Nothing, Sent, Who, now_secs};
use super::problem::Problem;
use crate::access::tokens::LOGIN_SECS;
use crate::access::{Access, By};
use crate::views::{LoginPage, login_page};

/// Where to go on.
#[derive(Debug, Default, Deserialize)]
pub struct NextParams {
    #[serde(default)]
    next: String,
}

/// What the form sends.
#[derive(Debug, Deserialize)]
pub struct LoginForm {
    #[serde(default)]
    token: String,
    #[serde(default)]
    next: String,
}

/// A path on this server and nothing else: no other site, however a browser may read it.
fn local(next: &str) -> &str {
    let plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    let ours = next.starts_with('/') && !next.starts_with("//") && !next.starts_with("/login");
    if plain && ours { next } else { "/" }
}

/// `GET /login`
pub async fn page(
    State(access): State<Arc<Access>>,
    who: Who,
    Query(params): Query<NextParams>,
) -> Response {
    if access.tokens.is_none() || who.by().is_some_and(|by| by != By::Nothing) {
        return Redirect::to(local(&params.next)).into_response();
    }
    shown(StatusCode::OK, &params.next, None)
}

/// `POST /login`
pub async fn enter(
    State(access): State<Arc<Access>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    form: Result<Form<LoginForm>, FormRejection>,
) -> Response {
    let form = match form {
        Ok(Form(form)) => form,
        Err(error) => return shown(error.status(), "/", Some(&error.body_text())),
    };
    let token = access.tokens.as_ref().and_then(|tokens| tokens.find(form.token.trim()));
    let Some(token) = token else {
        tracing::warn!(peer = %peer.ip(), "a login with an unknown token was refused");
        let why = "This token is not known here. It is the first part of a line in the file of --auth-token-file.";
        return shown(StatusCode::UNAUTHORIZED, &form.next, Some(why));
    };
    let visitor = token.visitor(By::Cookie);
    tracing::info!(peer = %peer.ip(), name = visitor.name.as_deref(), "logged in");
    let cookie = access.set_cookie(&token.cookie(now_secs() + LOGIN_SECS), LOGIN_SECS);
    gone_on(&cookie, local(&form.next))
}

/// `POST /logout`
pub async fn leave(
    State(access): State<Arc<Access>>,
    who: Who,
    form: Result<Sent<Nothing>, Problem>,
) -> Response {
    if let Err(problem) = form {
        return problem.into_response();
    }
    tracing::info!(name = who.name(), "logged out");
    gone_on(&access.set_cookie("", 0), "/")
}

fn gone_on(cookie: &str, to: &str) -> Response {
    let mut headers = HeaderMap::new();
    match HeaderValue::from_str(cookie) {
        Ok(cookie) => headers.insert(header::SET_COOKIE, cookie),
        Err(_) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    (headers, Redirect::to(to)).into_response()
}

fn shown(status: StatusCode, next: &str, error: Option<&str>) -> Response {
    let page = LoginPage { next: local(next).to_owned(), error: error.map(str::to_owned) };
    match login_page(&page) {
        Ok(html) => (status, Html(html)).into_response(),
        Err(error) => {
            tracing::error!(%error, "the login page could not be made");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::local;

    #[test]
    fn a_login_leads_nowhere_else() {
        for next in ["/", "/lock?name=a%26b", "/?filter=a"] {
            assert_eq!(local(next), next);
        }
        for next in [
            "",
            "//evil.example",
            "/\\evil.example",
            "https://evil.example",
            "/\t/evil",
            "evil",
            "/login?next=/login",
        ] {
            assert_eq!(local(next), "/", "{next}");
        }
    }
}
