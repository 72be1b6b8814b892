//! Who comes in, and whether a request that changes something was meant by them.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::problem::Problem;
use crate::access::rights::Right;
use crate::access::{Access, By, Refusal, Visitor};
use crate::model::actor::wall;

/// What anybody may see: the way in, and what it is made of.
fn is_open(path: &str) -> bool {
    path == "/login" || path == "/favicon.ico" || path.starts_with("/static/")
}

/// Seconds since the epoch.
pub(super) fn now_secs() -> u64 {
    wall().0 / 1000
}

/// Middleware for `axum::middleware::from_fn_with_state`: lets nobody through who may not look, and tells handlers
/// who it is (as [`Visitor`] among the request's extensions).
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
            request.extensions_mut().insert(visitor);
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

/// The visitor of a request, for handlers.
#[derive(Debug, Clone)]
pub struct Who(pub Option<Visitor>);

impl Who {
    /// Lets only those go on who may do this.
    ///
    /// # Errors
    /// When they may not.
    pub fn needs(&self, right: Right) -> Result<(), Problem> {
        if self.0.as_ref().is_some_and(|visitor| visitor.may(right)) {
            return Ok(());
        }
        let why = format!("you may not do this: it needs the right `{}`", right.as_str());
        Err(Problem::new(StatusCode::FORBIDDEN, why))
    }

    /// Their name, to tell one visitor from another.
    #[must_use]
    pub fn named(&self) -> Option<Arc<str>> {
        self.0.as_ref()?.name.clone()
    }

    /// Their name, for logs.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.0.as_ref()?.name.as_deref()
    }
}

impl<S: Sync> FromRequestParts<S> for Who {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self(parts.extensions.get::<Visitor>().cloned()))
    }
}
