//! The format of lines.

use super::*;
use crate::monitor::line::{Line, Source};
use proptest::prelude::*;

type Parts = (u32, Option<Vec<u8>>, Vec<Vec<u8>>);

fn parts(line: &[u8]) -> Option<Parts> {
    let line = Line::parse(line)?;
    line.micros()?;
    let source = match line.source {
        Source::Lua => None,
        Source::Client(client) => Some(client.to_vec()),
    };
    let args = line.args.map(|arg| {
        let mut bytes = Vec::new();
        arg?.append_to(&mut bytes).then_some(bytes)
    });
    Some((line.db, source, args.collect::<Option<_>>()?))
}

#[test]
fn every_kind_of_line_is_parsed() {
    let of = |line: &str| {
        let (db, source, args) = parts(line.as_bytes()).unwrap_or_else(|| panic!("{line}"));
        let source = source.map(|source| String::from_utf8(source).unwrap());
        (db, source, args.join(&b'|'))
    };
    let tcp = Some("127.0.0.1:52958".to_owned());
    assert_eq!(
        of(r#"1795217439.812432 [0 127.0.0.1:52958] "SET" "k" "v""#),
        (0, tcp.clone(), b"SET|k|v".to_vec())
    );
    assert_eq!(of(r#"1795217443.084343 [5 lua] "select" "5""#), (5, None, b"select|5".to_vec()));
    assert_eq!(
        of(r#"1795217447.460641 [0 [::1]:33670] "SET" "v6" """#),
        (0, Some("[::1]:33670".to_owned()), b"SET|v6|".to_vec())
    );
    assert_eq!(
        of(r#"1795217456.691658 [0 unix:odd ]dir/r "x".sock] "SET" "u] " "1""#),
        (0, Some(r#"unix:odd ]dir/r "x".sock"#.to_owned()), b"SET|u] |1".to_vec())
    );
    assert_eq!(
        of(r#"1795217456.691658 [0 unix:a] "GET" "b] "SET" "u" "1""#),
        (0, Some(r#"unix:a] "GET" "b"#.to_owned()), b"SET|u|1".to_vec())
    );
    assert_eq!(
        of(
            r#"1.5 [0 127.0.0.1:52958] "SET" "q\" b\\ n\n r\r t\t a\a b\b z\x00 \x7f \x80\xff \xc3\xa9""#
        ),
        (
            0,
            tcp.clone(),
            b"SET|q\" b\\ n\n r\r t\t a\x07 b\x08 z\x00 \x7f \x80\xff \xc3\xa9".to_vec()
        )
    );
    assert_eq!(
        of(r#"1.5 [0 127.0.0.1:52958] "SET" "a\" \"b] [0 lua] \"del\" \"x" "1""#),
        (0, tcp, b"SET|a\" \"b] [0 lua] \"del\" \"x|1".to_vec())
    );
}

#[test]
fn the_timestamp_is_parsed() {
    let line = Line::parse(br#"1795217439.012432 [0 lua] "GET""#).unwrap();
    assert_eq!(line.micros(), Some(1_795_217_439_012_432));
}

#[test]
fn malformed_lines_are_rejected() {
    for line in [
        "",
        "OK",
        "1.5",
        "1.5 [0 lua]",
        "1.5 [x lua] \"GET\"",
        "1.5 [0 127.0.0.1:1] GET",
        "1.5 [0 127.0.0.1:1 \"GET\"",
        "1.5 [99999999999 lua] \"GET\"",
        "x.5 [0 lua] \"GET\"",
        "1.5 [0 lua] \"GET",
        "1.5 [0 lua] \"GET\" ",
        "1.5 [0 lua] \"GET\"\"k\"",
        "1.5 [0 lua] \"GET\\",
        "1.5 [0 lua] \"\\q\"",
        "1.5 [0 lua] \"\\x4\"",
        "1.5 [0 lua] \"\\xgg\"",
        "1.5 [0 unix:] \"GET\" \"",
    ] {
        assert_eq!(parts(line.as_bytes()), None, "{line}");
    }
}

proptest! {
    #[test]
    fn printed_arguments_parse_back(args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6)) {
        let refs: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        for source in ["7 127.0.0.1:1", "7 [::1]:2", "7 lua", "7 unix:/run/a b] \"c\" d.sock"] {
            let (db, _, read) = parts(&printed(source, &refs)).unwrap();
            prop_assert_eq!((db, &read), (7, &args));
        }
    }
}
