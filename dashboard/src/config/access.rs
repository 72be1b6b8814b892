//! The settings of authentication, access rules and TLS.

use std::path::PathBuf;
use std::sync::Arc;

use axum::http::HeaderName;
use ipnet::IpNet;
use serde::Deserialize;
use service_kit::http::ServerTls;
use service_kit::settings::Raw;

use super::Flags;
use super::parsers::origin_of;
use crate::access::Access;
use crate::access::agent_keys::AgentKeys;
use crate::access::attempts::Attempts;
use crate::access::csrf::CsrfKey;
use crate::access::logins::Logins;
use crate::access::proxy::{Principal, Proxy, Rule};
use crate::access::rejections::Rejections;
use crate::access::rights::Rights;
use crate::access::token_file::TokenFile;

/// A row of `[[access]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessTable {
    user: Option<String>,
    group: Option<String>,
    rights: Vec<String>,
}

pub(super) struct Built {
    pub(super) access: Access,
    pub(super) tls: Option<(PathBuf, PathBuf)>,
}

pub(super) fn build(raw: &Raw<Flags>, mistakes: &mut Vec<String>) -> Built {
    let flags = &raw.values;
    let tls = tls(raw, mistakes);
    let secrets = [
        ("tls_key", &flags.tls_key),
        ("redis_password_file", &flags.redis_password_file),
        ("sentinel_password_file", &flags.sentinel_password_file),
    ];
    for (field, path) in secrets {
        mistakes.extend(raw.check_permissions(field, path).err());
    }
    let tokens = tokens(raw, mistakes);
    let proxy = proxy(raw, mistakes);
    let behind_proxy = proxy.is_some();
    let public_origin = flags.public_url.as_deref().and_then(origin_of);
    let public_tls = public_origin.as_deref().is_some_and(|origin| origin.starts_with("https:"));
    let access = Access {
        tokens,
        proxy,
        logins: Logins::default(),
        attempts: Attempts::default(),
        rejections: Rejections::default(),
        unknown_tokens: Rejections::default(),
        secure_cookies: tls.is_some() || public_tls,
        public_origin,
        csrf_key: CsrfKey::default(),
        proxies_only: false,
    };
    let open = !flags.listen.ip().is_loopback() && !flags.insecure;
    let address = flags.listen;
    if open && !access.is_needed() {
        mistakes.push(raw.mistake(
            "listen",
            format!(
                "{address} is reachable from other hosts: configure authentication with --auth-token-file, or with \
                 --trusted-user-header and --trusted-proxy; or listen on 127.0.0.1; or add --insecure"
            ),
        ));
    }
    if open && tls.is_none() && !behind_proxy {
        mistakes.push(raw.mistake(
            "listen",
            format!(
                "{address} is reachable from other hosts and tokens would be sent unencrypted: add --tls-cert and \
                 --tls-key, or --trusted-proxy with a proxy that uses TLS; or add --insecure"
            ),
        ));
    }
    if flags.allow_release && !access.is_needed() && !(flags.insecure && address.ip().is_loopback())
    {
        mistakes.push(raw.mistake(
            "allow_release",
            "everyone who reaches the dashboard could release every lock, and no record would name them: set \
             --auth-token-file, or --trusted-user-header and --trusted-proxy; or use `lockctl unlock --force`; on \
             loopback --insecure accepts this",
        ));
    }
    let proxies_only = open && tls.is_none();
    Built { access: Access { proxies_only, ..access }, tls }
}

/// Returns the files of the certificate and its key.
fn tls(raw: &Raw<Flags>, mistakes: &mut Vec<String>) -> Option<(PathBuf, PathBuf)> {
    match (&raw.values.tls_cert, &raw.values.tls_key) {
        (Some(certificate), Some(key)) => {
            if let Err(error) = ServerTls::check(certificate, key) {
                mistakes.push(raw.mistake("tls_cert", error));
            }
            Some((certificate.clone(), key.clone()))
        }
        (None, None) => None,
        (Some(_), None) => {
            mistakes.push(raw.mistake("tls_cert", "it needs --tls-key too"));
            None
        }
        (None, Some(_)) => {
            mistakes.push(raw.mistake("tls_key", "it needs --tls-cert too"));
            None
        }
    }
}

fn tokens(raw: &Raw<Flags>, mistakes: &mut Vec<String>) -> Option<TokenFile> {
    let path = raw.values.auth_token_file.as_ref()?;
    raw.warn_if_readable("auth_token_file", path);
    let opened = TokenFile::open(path.clone());
    let report = |errors: Vec<String>| {
        mistakes.extend(errors.into_iter().map(|error| raw.mistake("auth_token_file", error)));
    };
    opened.map_err(report).ok()
}

pub(super) fn agent_keys(raw: &Raw<Flags>, mistakes: &mut Vec<String>) -> Option<AgentKeys> {
    let path = raw.values.agent_keys_file.as_ref()?;
    let opened = AgentKeys::open(path.clone());
    let report = |errors: Vec<String>| {
        mistakes.extend(errors.into_iter().map(|error| raw.mistake("agent_keys_file", error)));
    };
    opened.map_err(report).ok()
}

fn proxy(raw: &Raw<Flags>, mistakes: &mut Vec<String>) -> Option<Proxy> {
    let flags = &raw.values;
    let mut header = |field: &'static str, name: &Option<String>| {
        let name = name.as_ref()?;
        match name.parse::<HeaderName>() {
            Ok(name) => Some(name),
            Err(_) => {
                mistakes.push(raw.mistake(field, format!("`{name}` cannot be a header's name")));
                None
            }
        }
    };
    let user = header("trusted_user_header", &flags.trusted_user_header);
    let groups = header("trusted_groups_header", &flags.trusted_groups_header);
    let address = header("trusted_address_header", &flags.trusted_address_header);
    let mut networks = Vec::new();
    for text in &flags.trusted_proxy {
        // A single address is a network with one address.
        match text.parse::<IpNet>().or_else(|_| text.parse().map(|ip: std::net::IpAddr| ip.into()))
        {
            Ok(network) if network.prefix_len() == 0 => mistakes.push(raw.mistake(
                "trusted_proxy",
                format!("`{text}` is every address, so anyone could claim to be any user: name the proxies alone"),
            )),
            Ok(network) => networks.push(network),
            Err(_) => mistakes.push(raw.mistake(
                "trusted_proxy",
                format!("`{text}` is not an address: expected, for example, 10.0.0.7 or 10.0.0.0/24"),
            )),
        }
    }
    for (field, name) in [
        ("trusted_user_header", &flags.trusted_user_header),
        ("trusted_address_header", &flags.trusted_address_header),
    ] {
        if name.is_some() && flags.trusted_proxy.is_empty() {
            let why = "anyone could send it: name the proxies that may with --trusted-proxy";
            mistakes.push(raw.mistake(field, why));
        }
    }
    if flags.trusted_groups_header.is_some() && flags.trusted_user_header.is_none() {
        mistakes.push(raw.mistake("trusted_groups_header", "it needs --trusted-user-header too"));
    }
    let rules = rules(raw, mistakes);
    if !rules.is_empty() && flags.trusted_user_header.is_none() {
        mistakes.push(
            "[[access]]: the rows are for users of a proxy: --trusted-user-header is missing"
                .to_owned(),
        );
    }
    if flags.proxy_logout_url.is_some() && flags.trusted_user_header.is_none() {
        mistakes.push(raw.mistake("proxy_logout_url", "it needs --trusted-user-header too"));
    }
    let logout = flags.proxy_logout_url.as_deref().map(Arc::from);
    (!networks.is_empty()).then_some(Proxy { networks, user, groups, address, rules, logout })
}

fn rules(raw: &Raw<Flags>, mistakes: &mut Vec<String>) -> Vec<Rule> {
    let rows = match raw.tables::<AccessTable>("access") {
        Ok(rows) => rows,
        Err(errors) => {
            mistakes.extend(errors);
            return Vec::new();
        }
    };
    let mut rules = Vec::new();
    for row in rows {
        let principal = match (row.user, row.group) {
            (Some(user), None) => Principal::User(user),
            (None, Some(group)) if raw.values.trusted_groups_header.is_some() => {
                Principal::Group(group)
            }
            (None, Some(group)) => {
                mistakes.push(format!(
                    "[[access]] group `{group}`: no proxy reports groups: --trusted-groups-header is missing"
                ));
                continue;
            }
            _ => {
                mistakes.push("[[access]]: expected either `user` or `group`".to_owned());
                continue;
            }
        };
        match Rights::parse(row.rights.iter().map(String::as_str)) {
            Ok(rights) => rules.push(Rule { principal, rights }),
            Err(error) => mistakes.push(format!("[[access]]: {error}")),
        }
    }
    rules
}
