//! Encodes replies in RESP2 or RESP3.

use super::{Frame, Protocol};

/// Appends `frame` to `out`.
pub fn encode(frame: &Frame, protocol: Protocol, out: &mut Vec<u8>) {
    match (frame, protocol) {
        (Frame::Simple(text), _) => line(b'+', text.as_bytes(), out),
        (Frame::Error(text), _) => error(text, out),
        (Frame::Int(number), _) => {
            out.push(b':');
            if *number < 0 {
                out.push(b'-');
            }
            decimal(number.unsigned_abs(), out);
            out.extend_from_slice(b"\r\n");
        }
        (Frame::Bulk(bytes), _) => {
            length(b'$', bytes.len(), out);
            out.extend_from_slice(bytes);
            out.extend_from_slice(b"\r\n");
        }
        (Frame::Null, Protocol::Resp2) => out.extend_from_slice(b"*-1\r\n"),
        (Frame::NullValue, Protocol::Resp2) => out.extend_from_slice(b"$-1\r\n"),
        (Frame::Null | Frame::NullValue, Protocol::Resp3) => out.extend_from_slice(b"_\r\n"),
        (Frame::Array(items), _) => {
            length(b'*', items.len(), out);
            items.iter().for_each(|item| encode(item, protocol, out));
        }
        (Frame::Map(pairs), _) => {
            match protocol {
                Protocol::Resp2 => length(b'*', pairs.len() * 2, out),
                Protocol::Resp3 => length(b'%', pairs.len(), out),
            }
            for (key, value) in pairs {
                length(b'$', key.len(), out);
                line_rest(key.as_bytes(), out);
                encode(value, protocol, out);
            }
        }
    }
}

/// Appends a push to `out`; nothing in RESP2, which has no pushes.
pub fn encode_push(items: &[Frame], protocol: Protocol, out: &mut Vec<u8>) {
    if protocol == Protocol::Resp3 {
        length(b'>', items.len(), out);
        items.iter().for_each(|item| encode(item, protocol, out));
    }
}

/// Replaces line breaks, which would end the error and start another reply.
fn error(text: &str, out: &mut Vec<u8>) {
    out.push(b'-');
    out.extend(text.bytes().map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { b }));
    out.extend_from_slice(b"\r\n");
}

fn line(mark: u8, text: &[u8], out: &mut Vec<u8>) {
    out.push(mark);
    line_rest(text, out);
}

fn line_rest(text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

fn length(mark: u8, length: usize, out: &mut Vec<u8>) {
    out.push(mark);
    decimal(u64::try_from(length).unwrap_or(u64::MAX), out);
    out.extend_from_slice(b"\r\n");
}

/// Formats by hand, because `write!` takes a large part of the time of a reply with several numbers.
fn decimal(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b"0123456789"[usize::try_from(number % 10).unwrap_or(0)];
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(frame: &Frame, protocol: Protocol) -> String {
        let mut out = Vec::new();
        encode(frame, protocol, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_frame_is_encoded_in_both_versions() {
        let map = Frame::Map(vec![("a", Frame::Int(-5)), ("b", Frame::NullValue)]);
        let cases = [
            (Frame::Simple("OK"), "+OK\r\n", "+OK\r\n"),
            (Frame::Error("LOST x\r\n+OK".into()), "-LOST x  +OK\r\n", "-LOST x  +OK\r\n"),
            (Frame::Int(0), ":0\r\n", ":0\r\n"),
            (Frame::word("hi"), "$2\r\nhi\r\n", "$2\r\nhi\r\n"),
            (Frame::bytes(""), "$0\r\n\r\n", "$0\r\n\r\n"),
            (Frame::Null, "*-1\r\n", "_\r\n"),
            (Frame::NullValue, "$-1\r\n", "_\r\n"),
            (Frame::Array(vec![Frame::Null]), "*1\r\n*-1\r\n", "*1\r\n_\r\n"),
            (
                map,
                "*4\r\n$1\r\na\r\n:-5\r\n$1\r\nb\r\n$-1\r\n",
                "%2\r\n$1\r\na\r\n:-5\r\n$1\r\nb\r\n_\r\n",
            ),
        ];
        for (frame, resp2, resp3) in cases {
            assert_eq!(written(&frame, Protocol::Resp2), resp2);
            assert_eq!(written(&frame, Protocol::Resp3), resp3);
        }
    }

    #[test]
    fn pushes_exist_in_resp3_only() {
        let items = [Frame::word("lock-safe"), Frame::word("a")];
        let mut out = Vec::new();
        encode_push(&items, Protocol::Resp2, &mut out);
        assert!(out.is_empty());
        encode_push(&items, Protocol::Resp3, &mut out);
        assert_eq!(out, b">2\r\n$9\r\nlock-safe\r\n$1\r\na\r\n");
    }

    proptest! {
        #[test]
        fn numbers_are_formatted_as_decimals(number: i64) {
            prop_assert_eq!(written(&Frame::Int(number), Protocol::Resp2), format!(":{number}\r\n"));
        }
    }
}
