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
use crate::access::proofs::Stranger;
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
    #[serde(default)]
    proof: String,
}

/// A path on this server and nothing else: no other site, however a browser may read it.
fn local(next: &str) -> &str {
    let plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    let ours = next.starts_with('/') && !next.starts_with("//") && !next.starts_with("/login");
    if plain && ours { next } else { "/" }
}

pub async fn page(
    State(access): State<Arc<Access>>,
    who: Who,
    headers: HeaderMap,
    Query(params): Query<NextParams>,
) -> Response {
    if access.tokens.is_none() || who.by().is_some_and(|by| by != By::Nothing) {
        return Redirect::to(local(&params.next)).into_response();
    }
    LoginPaper::of(&access, &headers).shown(StatusCode::OK, &params.next, None)
}

pub async fn enter(
    State(access): State<Arc<Access>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    form: Result<Form<LoginForm>, FormRejection>,
) -> Response {
    let shown = LoginPaper::of(&access, &headers);
    let form = match form {
        Ok(Form(form)) => form,
        Err(error) => return shown.shown(error.status(), "/", Some(&error.body_text())),
    };
    // Looked at before the token, so that no other site learns whether it has a good one.
    if !access.stranger(&headers).is_some_and(|stranger| stranger.proof().is(&form.proof)) {
        let why = "This form was not made for this browser, or the browser keeps no cookies. Try again from here.";
        return shown.shown(StatusCode::FORBIDDEN, &form.next, Some(why));
    }
    let token = access.tokens.as_ref().and_then(|tokens| tokens.find(form.token.trim()));
    let Some(token) = token else {
        tracing::warn!(peer = %peer.ip(), "a login with an unknown token was refused");
        let why = "This token is not known here. It is the first part of a line in the file of --auth-token-file.";
        return shown.shown(StatusCode::UNAUTHORIZED, &form.next, Some(why));
    };
    let visitor = token.visitor(By::Cookie);
    tracing::info!(peer = %peer.ip(), name = visitor.name.as_deref(), "logged in");
    let cookie = access.set_cookie(&token.cookie(now_secs() + LOGIN_SECS), LOGIN_SECS);
    gone_on(&cookie, local(&form.next))
}

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

/// The form, made for one browser.
struct LoginPaper {
    /// None where nothing random is to be had: then nobody can log in.
    stranger: Option<Stranger>,
    /// Has the browser keep what it is known by; none where it does already.
    keep: Option<String>,
}

impl LoginPaper {
    fn of(access: &Access, headers: &HeaderMap) -> Self {
        let known = access.stranger(headers);
        let keep = match &known {
            Some(_) => None,
            None => Stranger::new(),
        };
        let set = keep.as_ref().map(|stranger| access.set_stranger(stranger));
        Self { stranger: known.or(keep), keep: set }
    }

    fn shown(self, status: StatusCode, next: &str, error: Option<&str>) -> Response {
        let page = LoginPage {
            next: local(next).to_owned(),
            error: error.map(str::to_owned),
            proof: self.stranger.map(|stranger| stranger.proof().as_str().to_owned()),
        };
        let html = match login_page(&page) {
            Ok(html) => html,
            Err(error) => {
                tracing::error!(%error, "the login page could not be made");
                return StatusCode::INTERNAL_SERVER_ERROR.into_response();
            }
        };
        let mut headers = HeaderMap::new();
        if let Some(keep) = self.keep.and_then(|keep| HeaderValue::from_str(&keep).ok()) {
            headers.insert(header::SET_COOKIE, keep);
        }
        (status, headers, Html(html)).into_response()
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
