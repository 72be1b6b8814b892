//! Who comes in, and whether a request that changes something was meant by them.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Form;
use axum::extract::rejection::FormRejection;
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::problem::Problem;
use crate::access::proofs::Proof;
use crate::access::rights::Right;
use crate::access::{Access, By, Refusal, Visitor};
use crate::clock::SteadyMillis;
use crate::views::{Chrome, VisitorView};

/// What anybody may see: the way in, and what it is made of.
fn is_open(path: &str) -> bool {
    path == "/login" || path == "/favicon.ico" || path.starts_with("/static/")
}

/// Seconds since the epoch.
pub(super) fn now_secs() -> u64 {
    SteadyMillis::now().0 / 1000
}

/// Middleware for `axum::middleware::from_fn_with_state`: lets nobody through who may not look, and tells handlers
/// who it is (as [`Who`]).
pub async fn check_visitor(
    State(access): State<Arc<Access>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let open = is_open(request.uri().path());
    match access.visitor(request.headers(), peer.ip(), now_secs()) {
        Ok(visitor) if open || visitor.may(Right::Look) => {
            let ambient = visitor.by != By::Bearer;
            let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
            if changes && ambient && !is_same_origin(request.headers()) {
                return Problem::new(
                    StatusCode::FORBIDDEN,
                    "another site's page sent this: use the form on this dashboard's own page, or a Bearer token",
                )
                .into_response();
            }
            let proof = access.proof(&visitor, request.headers());
            request.extensions_mut().insert(Who { visitor: Some(visitor), proof });
            next.run(request).await
        }
        Err(Refusal::Unknown) if open => {
            let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
            if changes && !is_same_origin(request.headers()) {
                let why = "another site's page sent this: log in on this dashboard's own page";
                return Problem::new(StatusCode::FORBIDDEN, why).into_response();
            }
            next.run(request).await
        }
        Ok(_) => denied(&request, "you may not look here"),
        Err(Refusal::Denied(why)) => denied(&request, &why),
        Err(Refusal::Unknown) => unknown(&access, &request),
    }
}

fn denied(request: &Request, why: &str) -> Response {
    tracing::info!(path = request.uri().path(), why, "a visitor was refused");
    Problem::new(StatusCode::FORBIDDEN, why).into_response()
}

/// A browser that wants a page is led to the login; everybody else is told what is needed.
fn unknown(access: &Access, request: &Request) -> Response {
    let headers = request.headers();
    let wants_page = headers
        .get(header::ACCEPT)
        .is_some_and(|value| value.to_str().is_ok_and(|value| value.contains("text/html")));
    if access.tokens.is_none() {
        let why = "say who you are: come through the proxy that knows you";
        return Problem::new(StatusCode::UNAUTHORIZED, why).into_response();
    }
    if wants_page && *request.method() == Method::GET {
        let back = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let back = utf8_percent_encode(back, NON_ALPHANUMERIC);
        return Redirect::to(&format!("/login?next={back}")).into_response();
    }
    let why = "say who you are: send `Authorization: Bearer <token>`, or log in at /login";
    let challenge = [(header::WWW_AUTHENTICATE, "Bearer realm=\"lockscope\"")];
    (challenge, Problem::new(StatusCode::UNAUTHORIZED, why)).into_response()
}

/// Whether our own page sent it, or no browser did: every browser says of a request that changes something where it
/// comes from, by one header or the other.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(site) = text("sec-fetch-site") {
        return matches!(site, "same-origin" | "none");
    }
    let Some(origin) = text(header::ORIGIN.as_str()) else { return true };
    let host = text(header::HOST.as_str()).unwrap_or_default();
    origin.split_once("://").is_some_and(|(_, origin)| origin.eq_ignore_ascii_case(host))
}

/// Whether it says that it brings JSON. A page of another site cannot say so without asking us first.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

/// The visitor of a request, for handlers.
#[derive(Debug, Clone, Default)]
pub struct Who {
    visitor: Option<Visitor>,
    /// What their forms have to send back; none where nothing is needed.
    proof: Option<Proof>,
}

impl Who {
    /// Lets only those go on who may do this.
    ///
    /// # Errors
    /// When they may not.
    pub fn needs(&self, right: Right) -> Result<(), Problem> {
        if self.visitor.as_ref().is_some_and(|visitor| visitor.may(right)) {
            return Ok(());
        }
        let why = format!("you may not do this: it needs the right `{}`", right.as_str());
        Err(Problem::new(StatusCode::FORBIDDEN, why))
    }

    /// Their name, to tell one visitor from another.
    #[must_use]
    pub fn named(&self) -> Option<Arc<str>> {
        self.visitor.as_ref()?.name.clone()
    }

    /// Their name, for logs.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.visitor.as_ref()?.name.as_deref()
    }

    /// By what they are known; none where they are not.
    #[must_use]
    pub fn by(&self) -> Option<By> {
        self.visitor.as_ref().map(|visitor| visitor.by)
    }

    /// Makes a page theirs: it names them, and its forms are.
    pub fn sign(&self, chrome: &mut Chrome) {
        let can_leave = self.by() == Some(By::Cookie);
        chrome.visitor = self.name().map(|name| VisitorView { name: name.to_owned(), can_leave });
        chrome.proof = self.proof.as_ref().map(|proof| proof.as_str().to_owned());
    }
}

impl<S: Sync> FromRequestParts<S> for Who {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

/// What a form of one of our own pages sent: with it comes the word that only whoever was given the page knows.
#[derive(Debug)]
pub struct Sent<T>(pub T);

#[derive(Deserialize)]
struct Proven<T> {
    #[serde(default)]
    proof: String,
    #[serde(flatten)]
    form: T,
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Sent<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let who = request.extensions().get::<Who>().cloned().unwrap_or_default();
        let Form(Proven { proof, form }) = Form::from_request(request, state)
            .await
            .map_err(|error: FormRejection| Problem::new(error.status(), error.body_text()))?;
        let known = match (who.by(), who.proof) {
            (Some(By::Bearer), _) => true,
            (_, known) => known.is_some_and(|known| known.is(&proof)),
        };
        if known {
            return Ok(Self(form));
        }
        let why = "this form is not from a page that was made for you, or from one that is too old: load the page anew, \
                   and send it from there";
        Err(Problem::new(StatusCode::FORBIDDEN, why))
    }
}

/// A call of the API that changes something and needs no body: one that no form of another site can send.
#[derive(Debug)]
pub struct Called;

impl<S: Sync> FromRequestParts<S> for Called {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let by = parts.extensions.get::<Who>().and_then(Who::by);
        if by == Some(By::Bearer) || is_json(&parts.headers) {
            return Ok(Self);
        }
        let why = "send it with `Content-Type: application/json`, as no form of another site can, or with a Bearer token";
        Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why))
    }
}

/// A form without a field of its own.
#[derive(Debug, Deserialize)]
pub struct Nothing {}
