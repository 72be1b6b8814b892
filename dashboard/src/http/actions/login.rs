//! `/login` and `/logout`.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Form;
use axum::extract::rejection::FormRejection;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use serde::Deserialize;

use crate::access::csrf::LoginNonce;
use crate::access::logins::LOGIN_SECS;
use crate::access::{Access, AuthMethod, Refusal};
use crate::http::error::ApiError;
use crate::http::guard::{CurrentVisitor, EmptyForm, VerifiedForm, now_secs};
use crate::http::params::{Params, understood};
use crate::views::{LoginPage, login_page};

#[derive(Debug, Default, Deserialize)]
pub struct NextParams {
    #[serde(default)]
    next: String,
    /// True if a form of that page was sent without a login.
    #[serde(default)]
    unsent: bool,
}

#[derive(Debug, Deserialize)]
pub struct LoginForm {
    #[serde(default)]
    token: String,
    #[serde(default)]
    next: String,
    #[serde(default)]
    csrf: String,
}

/// Returns the path to open after the login, or `/` if a browser might read it as another site.
fn local(next: &str) -> &str {
    let plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    let ours = next.starts_with('/') && !next.starts_with("//") && !next.starts_with("/login");
    if plain && ours { next } else { "/" }
}

/// Shows the login form, or redirects a visitor who needs none.
pub async fn page(
    State(access): State<Arc<Access>>,
    visitor: CurrentVisitor,
    headers: HeaderMap,
    params: Params<NextParams>,
) -> Response {
    let answer = LoginAnswer::new(&access, &headers);
    let NextParams { next, unsent } = match understood(params) {
        Ok(params) => params,
        Err(error) => return answer.page(StatusCode::BAD_REQUEST, "/", Some(&error.detail)),
    };
    if access.tokens.is_none() || visitor.auth().is_some_and(|auth| auth != AuthMethod::NotRequired)
    {
        return Redirect::to(local(&next)).into_response();
    }
    let why = "Nothing was done: your login is over. Log in, and send the form again.";
    answer.page(StatusCode::OK, &next, unsent.then_some(why))
}

/// Logs in by a token.
pub async fn enter(
    State(access): State<Arc<Access>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    form: Result<Form<LoginForm>, FormRejection>,
) -> Response {
    let answer = LoginAnswer::new(&access, &headers);
    let form = match form {
        Ok(Form(form)) => form,
        Err(error) => return answer.page(error.status(), "/", Some(&error.body_text())),
    };
    // Checked before the token, so that no other site learns whether its token is valid.
    if !access.login_nonce(&headers).is_some_and(|nonce| nonce.token().matches(&form.csrf)) {
        let why = "Invalid form token, or the browser stores no cookies. Try again from here.";
        return answer.page(StatusCode::FORBIDDEN, &form.next, Some(why));
    }
    let now_secs = now_secs();
    let token = match access.token_of_form(form.token.trim(), peer.ip(), now_secs) {
        Ok(token) => token,
        Err(Refusal::Limited) => {
            let why = "Too many unknown tokens from this address. Try again in a minute.";
            return answer.page(StatusCode::TOO_MANY_REQUESTS, &form.next, Some(why));
        }
        Err(_) => {
            let why =
                "Unknown token. It is the first part of a line in the file of --auth-token-file.";
            return answer.page(StatusCode::UNAUTHORIZED, &form.next, Some(why));
        }
    };
    let Some(cookie) = access.logins.begin(&token, now_secs) else {
        tracing::error!("the system has no randomness for a login");
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    // A browser that logs in again ends its previous login.
    access.log_out(&headers);
    tracing::info!(peer = %peer.ip(), name = token.visitor().name.as_deref(), "logged in");
    redirect_with_cookie(&access.set_cookie(&cookie, LOGIN_SECS), local(&form.next))
}

/// Logs out.
pub async fn leave(
    State(access): State<Arc<Access>>,
    visitor: CurrentVisitor,
    headers: HeaderMap,
    form: Result<VerifiedForm<EmptyForm>, ApiError>,
) -> Response {
    if let Err(problem) = form {
        return problem.into_response();
    }
    access.log_out(&headers);
    tracing::info!(name = visitor.name(), "logged out");
    redirect_with_cookie(&access.set_cookie("", 0), "/")
}

fn redirect_with_cookie(cookie: &str, to: &str) -> Response {
    let mut headers = HeaderMap::new();
    match HeaderValue::from_str(cookie) {
        Ok(cookie) => headers.insert(header::SET_COOKIE, cookie),
        Err(_) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    (headers, Redirect::to(to)).into_response()
}

/// The login form for one browser.
struct LoginAnswer {
    /// The nonce, or `None` if the system has no randomness. Then nobody can log in.
    nonce: Option<LoginNonce>,
    /// The header that sets the nonce's cookie, unless the browser has one.
    set_cookie: Option<String>,
}

impl LoginAnswer {
    fn new(access: &Access, headers: &HeaderMap) -> Self {
        match access.login_nonce(headers) {
            Some(known) => Self { nonce: Some(known), set_cookie: None },
            None => {
                let nonce = LoginNonce::generate();
                let set_cookie = nonce.as_ref().map(|nonce| access.set_login_nonce(nonce));
                Self { nonce, set_cookie }
            }
        }
    }

    fn page(self, status: StatusCode, next: &str, error: Option<&str>) -> Response {
        let page = LoginPage {
            next: local(next).to_owned(),
            error: error.map(str::to_owned),
            csrf: self.nonce.map(|nonce| nonce.token().as_str().to_owned()),
        };
        let html = match login_page(&page) {
            Ok(html) => html,
            Err(error) => {
                tracing::error!(%error, "rendering the login page failed");
                return StatusCode::INTERNAL_SERVER_ERROR.into_response();
            }
        };
        let mut headers = HeaderMap::new();
        if let Some(cookie) = self.set_cookie.and_then(|set| HeaderValue::from_str(&set).ok()) {
            headers.insert(header::SET_COOKIE, cookie);
        }
        (status, headers, Html(html)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::local;

    #[test]
    fn a_login_redirects_to_this_server_only() {
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
