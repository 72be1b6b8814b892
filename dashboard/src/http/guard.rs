//! Authentication of requests, and protection against requests that other sites forge.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Form;
use axum::body::Body;
use axum::extract::rejection::FormRejection;
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use futures_util::StreamExt as _;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::{ApiError, rendered};
use crate::access::csrf::CsrfToken;
use crate::access::rights::Right;
use crate::access::{Access, AuthMethod, Refusal, Stay, Visitor};
use crate::clock::SteadyMillis;
use crate::model::types::LockId;
use crate::views::{Chrome, VisitorView, denied_page};

/// The time limit until a response begins. Streams may last longer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The maximum number of characters of a path in the log.
const LOGGED_PATH: usize = 200;

/// Returns true for paths that need no authentication: the login, and what every page loads.
fn is_open(path: &str) -> bool {
    path == "/login" || is_asset(path)
}

fn is_asset(path: &str) -> bool {
    path == "/favicon.ico" || path.starts_with("/static/")
}

/// Returns the seconds since 1970.
pub(super) fn now_secs() -> u64 {
    SteadyMillis::now().0 / 1000
}

/// Middleware for `axum::middleware::from_fn_with_state`. It rejects visitors without [`Right::Look`] and passes the
/// others to handlers as [`CurrentVisitor`].
pub async fn check_visitor(
    State(access): State<Arc<Access>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let open = is_open(request.uri().path());
    // From here on, handlers see the client's address instead of the proxy's.
    let client = access.client(request.headers(), peer.ip());
    if client != peer.ip() {
        request.extensions_mut().insert(ConnectInfo(SocketAddr::new(client, 0)));
    }
    let is_cross_site = !is_read(&request) && !is_same_origin(&access, request.headers());
    match access.visitor(request.headers(), peer.ip(), now_secs()) {
        Ok(visitor) if open || visitor.may(Right::Look) => {
            let sent_by_browser = visitor.auth != AuthMethod::Bearer;
            if is_cross_site && sent_by_browser {
                return ApiError::new(
                    StatusCode::FORBIDDEN,
                    "another site sent this request: use the form on this dashboard's own page, or a Bearer token",
                )
                .into_response();
            }
            let csrf = access.csrf_token(&visitor, request.headers());
            let stay = visitor.stay.clone();
            let proxy = access.proxy.as_ref().filter(|_| visitor.auth == AuthMethod::Proxy);
            let proxy_logout = proxy.and_then(|proxy| proxy.logout.clone());
            let current = CurrentVisitor { visitor: Some(visitor), csrf, proxy_logout };
            request.extensions_mut().insert(current);
            ending_with(stay, next.run(request).await)
        }
        Err(Refusal::Unknown | Refusal::Limited) if open => {
            if is_cross_site {
                let why = "another site sent this request: log in on this dashboard's own page";
                return ApiError::new(StatusCode::FORBIDDEN, why).into_response();
            }
            next.run(request).await
        }
        // The page that names the reason is styled, too.
        Err(Refusal::Denied(_)) if is_asset(request.uri().path()) && is_read(&request) => {
            next.run(request).await
        }
        Ok(visitor) => {
            let why = "access denied: you lack the `look` right";
            denied(&access, &request, (client, visitor.name.as_deref()), why)
        }
        Err(Refusal::Denied(why)) => denied(&access, &request, (client, None), &why),
        Err(Refusal::Unknown) => unknown(&access, &request),
        Err(Refusal::Limited) => {
            let why = "too many unknown tokens from this address: try again in a minute";
            let limited = ApiError::new(StatusCode::TOO_MANY_REQUESTS, why);
            page_or_json(is_for_browser(&request), limited)
        }
    }
}

/// Ends a response, such as a stream of events, when its visitor's stay ends.
fn ending_with(stay: Stay, response: Response) -> Response {
    let is_stream = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if !is_stream {
        return response;
    }
    let over = async move {
        match stay.until_secs {
            Some(until_secs) => {
                let left = Duration::from_secs(until_secs.saturating_sub(now_secs()));
                drop(tokio::time::timeout(left, stay.ended.cancelled()).await);
            }
            None => stay.ended.cancelled().await,
        }
    };
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(over))))
}

/// Rejects a visitor from this address, with this name if it is known.
fn denied(
    access: &Access,
    request: &Request,
    (from, name): (IpAddr, Option<&str>),
    why: &str,
) -> Response {
    if let Some(withheld) = access.rejections.count(now_secs()) {
        let path: String = request.uri().path().chars().take(LOGGED_PATH).collect();
        tracing::info!(%from, name, path, why, withheld, "visitor rejected");
    }
    page_or_json(is_for_browser(request), ApiError::new(StatusCode::FORBIDDEN, why))
}

/// Middleware that answers within [`ANSWER_WITHIN`]. A change that takes longer continues if its handler has handed it to
/// another task.
pub async fn answer_in_time(request: Request, next: Next) -> Response {
    let (for_browser, is_read) = (is_for_browser(&request), is_read(&request));
    let answer = tokio::time::timeout(ANSWER_WITHIN, next.run(request)).await;
    answer.unwrap_or_else(|_| {
        let late = if is_read {
            let why = "timed out after 5 s: try again later";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why)
        } else {
            let why = "timed out after 5 s: the change may have been made, or may yet be";
            ApiError::new(StatusCode::GATEWAY_TIMEOUT, why)
        };
        page_or_json(for_browser, late)
    })
}

fn is_for_browser(request: &Request) -> bool {
    !request.uri().path().starts_with("/api/") && accepts_html(request.headers())
}

/// Returns the reason as a page for browsers, or as JSON for other programs.
fn page_or_json(for_browser: bool, problem: ApiError) -> Response {
    if !for_browser {
        return problem.into_response();
    }
    let is_busy = !matches!(problem.status, StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED);
    rendered(problem.status, denied_page(is_busy, &problem.detail))
}

fn is_read(request: &Request) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
}

/// Redirects browsers to the login, which says so if a form remains unsent. Other clients receive the reason.
fn unknown(access: &Access, request: &Request) -> Response {
    if access.tokens.is_none() {
        let why = "authentication required: connect through the configured proxy";
        let unknown = ApiError::new(StatusCode::UNAUTHORIZED, why);
        return page_or_json(is_for_browser(request), unknown);
    }
    let encoded = |path: &str| utf8_percent_encode(path, NON_ALPHANUMERIC).to_string();
    if accepts_html(request.headers()) && *request.method() == Method::GET {
        let back = request.uri().path_and_query().map_or("/", |path| path.as_str());
        return Redirect::to(&format!("/login?next={}", encoded(back))).into_response();
    }
    if is_for_browser(request) && !is_read(request) {
        // The page of the form, which the browser does not name if it belongs to another site.
        let form = request.headers().get(header::REFERER).and_then(|form| form.to_str().ok());
        let form = form.and_then(|form| form.parse::<Uri>().ok());
        let back = form.as_ref().and_then(Uri::path_and_query).map_or("/", |path| path.as_str());
        return Redirect::to(&format!("/login?unsent=true&next={}", encoded(back))).into_response();
    }
    let why = "authentication required: send `Authorization: Bearer <token>`, or log in at /login";
    let challenge = [(header::WWW_AUTHENTICATE, "Bearer realm=\"lockscope\"")];
    (challenge, ApiError::new(StatusCode::UNAUTHORIZED, why)).into_response()
}

/// Returns true if a browser that shows a page sent the request.
pub(super) fn accepts_html(headers: &HeaderMap) -> bool {
    let html = |value: &HeaderValue| value.to_str().is_ok_and(|value| value.contains("text/html"));
    headers.get(header::ACCEPT).is_some_and(html)
}

/// Returns true if one of our own pages sent the request, or no browser did. With a request that changes something,
/// every browser sends one of the two headers. A proxy may replace the host that the browser asked for, so the public
/// address is our origin, too.
fn is_same_origin(access: &Access, headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(site) = text("sec-fetch-site") {
        return matches!(site, "same-origin" | "none");
    }
    let Some(origin) = text(header::ORIGIN.as_str()) else { return true };
    let host = text(header::HOST.as_str()).unwrap_or_default();
    origin.split_once("://").is_some_and(|(_, origin)| origin.eq_ignore_ascii_case(host))
        || access.public_origin.as_deref().is_some_and(|public| public == origin)
}

/// Returns true if the body is declared as JSON. Pages of other sites cannot do that without a preflight request.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

/// The visitor of a request, for handlers.
#[derive(Debug, Clone, Default)]
pub struct CurrentVisitor {
    visitor: Option<Visitor>,
    /// The token that the visitor's forms must contain.
    csrf: Option<CsrfToken>,
    /// The address at which the visitor's proxy logs them out.
    proxy_logout: Option<Arc<str>>,
}

impl CurrentVisitor {
    /// Checks a right.
    ///
    /// # Errors
    /// If the visitor lacks it.
    pub fn needs(&self, right: Right) -> Result<(), ApiError> {
        if self.visitor.as_ref().is_some_and(|visitor| visitor.may(right)) {
            return Ok(());
        }
        let why = format!("access denied: this needs the `{}` right", right.as_str());
        Err(ApiError::new(StatusCode::FORBIDDEN, why))
    }

    /// Checks a right for one lock.
    ///
    /// # Errors
    /// If the visitor lacks it.
    pub fn needs_for(&self, right: Right, id: &LockId) -> Result<(), ApiError> {
        if self.visitor.as_ref().is_some_and(|visitor| visitor.may_for(right, &id.name)) {
            return Ok(());
        }
        let why = format!("access denied: this needs the `{}` right for this lock", right.as_str());
        Err(ApiError::new(StatusCode::FORBIDDEN, why))
    }

    /// Returns the visitor's name for comparison.
    #[must_use]
    pub fn shared_name(&self) -> Option<Arc<str>> {
        self.visitor.as_ref()?.name.clone()
    }

    /// Returns the visitor's name for logs.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.visitor.as_ref()?.name.as_deref()
    }

    /// Returns the method of authentication, or `None` before a login.
    #[must_use]
    pub fn auth(&self) -> Option<AuthMethod> {
        self.visitor.as_ref().map(|visitor| visitor.auth)
    }

    /// Adds the visitor's name and CSRF token to a page.
    pub fn sign(&self, chrome: &mut Chrome) {
        let can_leave = self.auth() == Some(AuthMethod::Cookie);
        chrome.visitor = self.name().map(|name| VisitorView {
            name: name.to_owned(),
            can_leave,
            proxy_logout: self.proxy_logout.clone(),
        });
        chrome.csrf = self.csrf.as_ref().map(|token| token.as_str().to_owned());
    }
}

impl<S: Sync> FromRequestParts<S> for CurrentVisitor {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

/// The content of a form with a valid CSRF token.
#[derive(Debug)]
pub struct VerifiedForm<T>(pub T);

#[derive(Deserialize)]
struct SignedForm<T> {
    #[serde(default)]
    csrf: String,
    #[serde(flatten)]
    form: T,
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for VerifiedForm<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let visitor = request.extensions().get::<CurrentVisitor>().cloned().unwrap_or_default();
        let Form(SignedForm { csrf, form }) = Form::from_request(request, state)
            .await
            .map_err(|error: FormRejection| ApiError::new(error.status(), error.body_text()))?;
        let valid = match (visitor.auth(), visitor.csrf) {
            (Some(AuthMethod::Bearer), _) => true,
            (_, expected) => expected.is_some_and(|expected| expected.matches(&csrf)),
        };
        if valid {
            return Ok(Self(form));
        }
        let why = "invalid or expired form token: reload the page and try again";
        Err(ApiError::new(StatusCode::FORBIDDEN, why))
    }
}

/// A request to the API that no form of another site can send.
#[derive(Debug)]
pub struct VerifiedCall;

impl<S: Sync> FromRequestParts<S> for VerifiedCall {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let auth = parts.extensions.get::<CurrentVisitor>().and_then(CurrentVisitor::auth);
        if auth == Some(AuthMethod::Bearer) || is_json(&parts.headers) {
            return Ok(Self);
        }
        let why =
            "unsupported content type: send `Content-Type: application/json`, or a Bearer token";
        Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why))
    }
}

/// A form without fields.
#[derive(Debug, Deserialize)]
pub struct EmptyForm {}
