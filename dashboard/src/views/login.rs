//! The pages for people who may not see anything yet.

use askama::Template;

use super::page::sentence;
use super::{LoginPage, assets};

#[derive(Template)]
#[template(path = "login.html")]
struct LoginTemplate<'a> {
    page: &'a LoginPage,
    assets: &'static assets::Addresses,
}

/// Renders the form that asks for a token.
///
/// # Errors
/// If the template fails, which is a bug.
pub fn login_page(page: &LoginPage) -> Result<String, askama::Error> {
    LoginTemplate { page, assets: &assets::ADDRESSES }.render()
}

#[derive(Template)]
#[template(path = "denied.html")]
struct DeniedTemplate<'a> {
    heading: &'a str,
    message: String,
    is_busy: bool,
    assets: &'static assets::Addresses,
}

/// Renders the page for a visitor who is not let in, or not answered if `is_busy`, for this reason. Unlike other pages it
/// shows nothing of the locks.
///
/// # Errors
/// If the template fails, which is a bug.
pub fn denied_page(is_busy: bool, reason: &str) -> Result<String, askama::Error> {
    let heading = if is_busy { "Server busy" } else { "No access" };
    DeniedTemplate { heading, message: sentence(reason), is_busy, assets: &assets::ADDRESSES }
        .render()
}
