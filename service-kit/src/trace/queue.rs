//! The settings of the queue of spans.

use std::ops::RangeInclusive;

/// The default number of spans that may be queued.
const ROOM: u64 = 2048;
/// The maximum number of spans that may be queued. The queue takes its memory at once, a few hundred bytes for each.
const MAX_ROOM: u64 = 100_000;
/// The longest interval between two batches, in milliseconds.
const MAX_DELAY: u64 = 3_600_000;

/// Returns the number of spans that may be queued. The other variables of the queue are read by the library, which takes an
/// interval of zero literally and waits in a loop.
///
/// # Errors
///
/// A sentence with the invalid variable and the expected values.
pub(super) fn room_from_env(env: impl Fn(&str) -> Option<String>) -> Result<usize, String> {
    let number = |name: &str, accepted: RangeInclusive<u64>| {
        let Some(value) = env(name).filter(|value| !value.is_empty()) else { return Ok(None) };
        let number = value.parse().ok().filter(|number| accepted.contains(number));
        number.map(Some).ok_or_else(|| {
            let (least, most) = accepted.into_inner();
            format!("{name}: `{value}`; expected a number from {least} to {most}")
        })
    };
    let room = number("OTEL_BSP_MAX_QUEUE_SIZE", 1..=MAX_ROOM)?.unwrap_or(ROOM);
    number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1..=MAX_ROOM)?;
    number("OTEL_BSP_SCHEDULE_DELAY", 1..=MAX_DELAY)?;
    usize::try_from(room).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(name: &str, value: &str) -> Result<usize, String> {
        room_from_env(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn values_that_would_exhaust_memory_or_never_wait_are_mistakes() {
        let size = "OTEL_BSP_MAX_QUEUE_SIZE";
        assert_eq!(room("OTHER", ""), Ok(2048));
        assert_eq!(room(size, ""), Ok(2048));
        assert_eq!(room(size, "100000"), Ok(100_000));
        for (name, value) in [
            (size, "0"),
            (size, "999999999"),
            (size, "many"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "0"),
            ("OTEL_BSP_SCHEDULE_DELAY", "0"),
            ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
        ] {
            let mistake = room(name, value).unwrap_err();
            assert!(mistake.starts_with(&format!("{name}: `{value}`; expected")), "{mistake}");
        }
    }
}
