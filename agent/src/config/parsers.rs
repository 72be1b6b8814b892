//! Parsers of single settings.

use std::time::Duration;

use redisson::Lease;
use redisson::script::Publish;
use service_kit::settings::HumanDuration;

use crate::core;

/// The shortest lease: a third of it must leave time for a round trip and a second attempt.
const MIN_LEASE: Duration = Duration::from_millis(500);

pub(super) fn node_timeout(text: &str) -> Result<HumanDuration, String> {
    within(text, Duration::from_millis(1), Duration::from_secs(2), "expected 1ms to 2s")
}

pub(super) fn lock_delay(text: &str) -> Result<HumanDuration, String> {
    within(text, Duration::ZERO, Duration::from_secs(3600), "expected 0s to 1h")
}

pub(super) fn frozen(text: &str) -> Result<core::Frozen, String> {
    match text {
        "keep" => Ok(core::Frozen::Keep),
        "lapse" => Ok(core::Frozen::Lapse),
        _ => Err("expected keep or lapse".to_owned()),
    }
}

pub(super) fn cluster_messages(text: &str) -> Result<Publish, String> {
    match text {
        "both" => Ok(Publish::Both),
        "publish" => Ok(Publish::Plain),
        "spublish" => Ok(Publish::Sharded),
        _ => Err("expected both, publish or spublish".to_owned()),
    }
}

pub(super) fn deployment(text: &str) -> Result<String, String> {
    let fits = (1..=64).contains(&text.len()) && !text.contains(char::is_control);
    fits.then(|| text.to_owned()).ok_or_else(|| "expected a name of at most 64 bytes".to_owned())
}

pub(super) fn host_name(text: &str) -> Result<String, String> {
    let fits = (1..=253).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| text.to_owned())
        .ok_or_else(|| "expected a name of at most 253 visible ASCII characters".to_owned())
}

pub(super) fn octal(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "expected permissions in octal digits, such as 0660".to_owned())
}

pub(super) fn drain_timeout(text: &str) -> Result<HumanDuration, String> {
    within(text, Duration::ZERO, Lease::MAX, "expected 0s to a year")
}

pub(super) fn lease(text: &str) -> Result<HumanDuration, String> {
    within(text, MIN_LEASE, Lease::MAX, "expected 500ms to a year")
}

pub(super) fn poll(text: &str) -> Result<HumanDuration, String> {
    within(text, Duration::from_millis(10), Duration::from_secs(3600), "expected 10ms to 1h")
}

fn within(
    text: &str,
    least: Duration,
    most: Duration,
    expected: &str,
) -> Result<HumanDuration, String> {
    let duration: HumanDuration = text.parse()?;
    if (least..=most).contains(&duration.0) { Ok(duration) } else { Err(expected.to_owned()) }
}
