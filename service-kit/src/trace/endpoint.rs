//! The receiver of spans, configured by the standard `OTEL_*` variables.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use opentelemetry_http::HttpClient;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig};
use percent_encoding::percent_decode_str;

use super::sampling::Sampling;
use crate::redis;

/// The standard's default limit for sending a batch.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the name and the value of the variable for traces, or else of the one for all signals. Empty variables count
/// as absent.
fn otlp(env: &impl Fn(&str) -> Option<String>, name: &str) -> Option<(String, String)> {
    [format!("OTEL_EXPORTER_OTLP_TRACES_{name}"), format!("OTEL_EXPORTER_OTLP_{name}")]
        .into_iter()
        .find_map(|variable| {
            let value = env(&variable).filter(|value| !value.is_empty())?;
            Some((variable, value))
        })
}

/// Checks headers, which the exporter reads itself and would silently omit if they are invalid.
///
/// # Errors
///
/// A sentence with the variable and the invalid entry's place, but not its value, which may be a secret.
fn check_headers(variable: &str, headers: &str) -> Result<(), String> {
    for (index, entry) in headers.split_terminator(',').enumerate() {
        let valid = entry.split_once('=').is_some_and(|(name, value)| {
            let value = percent_decode_str(value.trim()).decode_utf8();
            HeaderName::from_bytes(name.trim().as_bytes()).is_ok()
                && value
                    .is_ok_and(|value| !value.is_empty() && HeaderValue::from_str(&value).is_ok())
        });
        if !valid {
            return Err(format!(
                "{variable}: entry {} of {} is not a header; expected name=value, separated by commas, values percent-encoded",
                index + 1,
                headers.split_terminator(',').count()
            ));
        }
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Grpc,
    Http,
}

/// The configured receiver.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    url: String,
    protocol: Protocol,
    timeout: Duration,
    /// The PEM file of the authorities that signed the receiver's certificate; `None` for those of the system.
    authorities: Option<PathBuf>,
    sampling: Sampling,
}

impl Endpoint {
    /// Reads the variables. Returns `None` if they disable traces or name no endpoint.
    ///
    /// # Errors
    ///
    /// A sentence with the variable, its invalid value, and the expected one.
    pub(super) fn from_env(env: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let says = |name: &str, value: &str| {
            env(name).is_some_and(|given| given.eq_ignore_ascii_case(value))
        };
        if says("OTEL_SDK_DISABLED", "true") || says("OTEL_TRACES_EXPORTER", "none") {
            return Ok(None);
        }
        let Some((variable, url)) = otlp(&env, "ENDPOINT") else { return Ok(None) };
        let known = url::Url::parse(&url)
            .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        if !known {
            let shown = crate::settings::mask_credentials(&url);
            return Err(format!(
                "{variable}: `{shown}` is not a URL such as http://collector:4318"
            ));
        }
        let protocol = match otlp(&env, "PROTOCOL") {
            None => Protocol::Http,
            Some((_, value)) if value == "http/protobuf" => Protocol::Http,
            Some((_, value)) if value == "grpc" => Protocol::Grpc,
            Some((variable, value)) => {
                return Err(format!("{variable}: `{value}`; expected grpc or http/protobuf"));
            }
        };
        let timeout = match otlp(&env, "TIMEOUT") {
            None => TIMEOUT,
            Some((variable, value)) => {
                let millis = value.parse().ok().filter(|millis| *millis > 0);
                let wrong = || format!("{variable}: `{value}`; expected milliseconds");
                Duration::from_millis(millis.ok_or_else(wrong)?)
            }
        };
        if let Some((variable, headers)) = otlp(&env, "HEADERS") {
            check_headers(&variable, &headers)?;
        }
        let sampling = Sampling::from_env(&env)?;
        let authorities = otlp(&env, "CERTIFICATE").map(|(_, path)| PathBuf::from(path));
        Ok(Some(Self { url, protocol, timeout, authorities, sampling }))
    }

    /// Returns the limit for sending a batch, connecting included.
    pub(super) fn patience(&self) -> Duration {
        self.timeout + self.timeout / 2
    }

    pub(super) fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// Returns the URL and the protocol for a log line.
    pub(super) fn shown(&self) -> (String, &'static str) {
        let protocol = match self.protocol {
            Protocol::Grpc => "grpc",
            Protocol::Http => "http/protobuf",
        };
        (crate::settings::mask_url_passwords(&self.url), protocol)
    }

    /// Creates the exporter; must be called on the runtime that sends. The exporter reads endpoint and headers from the
    /// variables itself, since the path to append depends on the variable.
    ///
    /// # Errors
    ///
    /// The error of the exporter or of the authorities' file.
    pub(super) fn exporter(&self) -> Result<SpanExporter, String> {
        let builder = SpanExporter::builder();
        let made = match self.protocol {
            Protocol::Grpc => {
                let builder = builder.with_tonic().with_timeout(self.timeout);
                let builder = if self.url.starts_with("https") {
                    builder.with_tls_config(self.tonic_tls()?)
                } else {
                    builder
                };
                builder.build()
            }
            Protocol::Http => builder
                .with_http()
                .with_timeout(self.timeout)
                .with_shared_http_client(self.http_client()?)
                .build(),
        };
        made.map_err(|error| error.to_string())
    }

    fn tonic_tls(&self) -> Result<ClientTlsConfig, String> {
        let Some(path) = &self.authorities else {
            return Ok(ClientTlsConfig::new().with_enabled_roots());
        };
        let read = std::fs::read(path).map_err(|error| self.unreadable(&error))?;
        Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read)))
    }

    fn http_client(&self) -> Result<Arc<dyn HttpClient>, String> {
        // Root certificates are loaded only if they are needed: many containers have none.
        if !self.url.starts_with("https") {
            return Ok(Arc::new(HyperClient::with_default_connector(self.timeout, None)));
        }
        let tls = redis::tls::client_config(self.authorities.as_deref())
            .map_err(|error| self.unreadable(&error))?;
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_only()
            .enable_http1()
            .build();
        Ok(Arc::new(HyperClient::new(connector, self.timeout, None)))
    }

    fn unreadable(&self, error: &dyn std::fmt::Display) -> String {
        let path = self.authorities.as_deref().map(|path| path.display().to_string());
        let path = path.unwrap_or_else(|| "the system's certificates".to_owned());
        format!("OTEL_EXPORTER_OTLP_CERTIFICATE: {path}: {error}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Endpoint>, String> {
        Endpoint::from_env(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");

    #[test]
    fn without_an_endpoint_or_when_disabled_there_are_no_traces() {
        for variables in [
            &[][..],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
            &[ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")],
            &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")],
        ] {
            assert_eq!(read(variables), Ok(None), "{variables:?}");
        }
    }

    #[test]
    fn the_variable_for_traces_comes_first() {
        let endpoint = read(&[
            ENDPOINT,
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces/v1/traces"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "300"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ]);
        let endpoint = endpoint.unwrap().unwrap();
        assert_eq!(endpoint.url, "https://traces/v1/traces");
        assert_eq!(endpoint.protocol, Protocol::Grpc);
        assert_eq!(endpoint.timeout, Duration::from_millis(300));
        assert_eq!(endpoint.authorities, None);
        assert_ne!(endpoint.sampling, read(&[ENDPOINT]).unwrap().unwrap().sampling);
        assert_eq!(read(&[ENDPOINT]).unwrap().unwrap().protocol, Protocol::Http);
    }

    #[test]
    fn mistakes_name_the_variable_and_what_is_expected() {
        for (variable, value, word) in [
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4317", "http://"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "10s", "milliseconds"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "25", "0 to 1"),
        ] {
            let sampler = ("OTEL_TRACES_SAMPLER", "traceidratio");
            let error = read(&[(variable, value), ENDPOINT, sampler]).unwrap_err();
            assert!(error.contains(variable) && error.contains(word), "{error}");
        }
    }

    #[test]
    fn headers_that_would_be_omitted_are_rejected_without_their_values() {
        let headers = |value| read(&[ENDPOINT, ("OTEL_EXPORTER_OTLP_HEADERS", value)]);
        for valid in ["authorization=Bearer%20s3cret", "a=1, b = 2,", "token=a=b"] {
            assert!(headers(valid).is_ok(), "{valid}");
        }
        for invalid in
            ["a=1,authorization:s3cret", "a=1,s3cret", "a=1,x y=s3cret", "a=1,b=s3cret%0a"]
        {
            let error = headers(invalid).unwrap_err();
            assert!(error.contains("OTLP_HEADERS: entry 2 of 2"), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn an_unreadable_file_of_authorities_is_named() {
        for protocol in ["grpc", "http/protobuf"] {
            let endpoint = read(&[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4317"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such.pem"),
            ]);
            let error = endpoint.unwrap().unwrap().exporter().unwrap_err();
            assert!(error.contains("OTLP_CERTIFICATE: /no/such.pem"), "{error}");
        }
    }
}
