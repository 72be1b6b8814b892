//! The page on which people log in.

use askama::Template;

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
