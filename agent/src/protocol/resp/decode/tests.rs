use super::*;
use proptest::prelude::*;

/// Returns all requests of `input`, passed to the decoder in pieces that end at `cuts`, and the error at the end.
fn decode_all(input: &[u8], cuts: &[usize]) -> (Vec<Vec<Vec<u8>>>, Option<Malformed>) {
    let mut decoder = Decoder::default();
    let (mut pending, mut requests) = (Vec::new(), Vec::new());
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (input.len() + 1)).collect();
    ends.push(input.len());
    ends.sort_unstable();
    let mut from = 0;
    for end in ends {
        pending.extend_from_slice(&input[from..end]);
        from = end;
        loop {
            match decoder.decode(&pending) {
                Ok(None) => break,
                Ok(Some(Request { args, consumed })) => {
                    requests.push(args.iter().map(<[u8]>::to_vec).collect());
                    pending.drain(..consumed);
                }
                Err(error) => return (requests, Some(error)),
            }
        }
    }
    (requests, None)
}

fn one(input: &[u8]) -> Result<Vec<String>, Malformed> {
    match decode_all(input, &[]) {
        (_, Some(error)) => Err(error),
        (mut requests, None) => Ok(requests
            .pop()
            .unwrap_or_default()
            .iter()
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect()),
    }
}

fn array(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

#[test]
fn arrays_and_lines_are_decoded() {
    assert_eq!(one(b"*2\r\n$4\r\nPING\r\n$2\r\nhi\r\n").unwrap(), ["PING", "hi"]);
    assert_eq!(one(b"*1\r\n$0\r\n\r\n").unwrap(), [""]);
    assert_eq!(one(b"PING  hi \r\n").unwrap(), ["PING", "hi"]);
    assert_eq!(one(b"PING\n").unwrap(), ["PING"]);
    assert_eq!(one(b"\r\n").unwrap(), [""; 0]);
    assert_eq!(one(b"*0\r\n").unwrap(), [""; 0]);
}

#[test]
fn quotes_are_parsed_as_in_redis() {
    assert_eq!(one(b"a \"b c\" 'd e'\n").unwrap(), ["a", "b c", "d e"]);
    assert_eq!(one(b"\"\\x41\\n\\q\\\"\"\n").unwrap(), ["A\nq\""]);
    assert_eq!(one(b"'\\n\\''\n").unwrap(), ["\\n'"]);
    assert_eq!(one(b"pre\"fix\"\n").unwrap(), ["prefix"]);
    assert_eq!(one(b"a \"\" b\n").unwrap(), ["a", "", "b"]);
    assert_eq!(one(b"\"\\xzz\"\n").unwrap(), ["xzz"]);
    for bad in [&b"\"a\n"[..], b"'a\n", b"\"a\"b\n", b"'a'b\n", b"\"a\\\n"] {
        assert_eq!(one(bad).unwrap_err(), Malformed::Quotes);
    }
}

#[test]
fn malformed_requests_are_distinguished_from_incomplete_ones() {
    let cases: [(&[u8], Malformed); 18] = [
        (b"*-1\r\n", Malformed::ArrayLength),
        (b"*-", Malformed::ArrayLength),
        (b"*1025\r\n", Malformed::ArrayLength),
        (b"*99999999999999999999999\r\n", Malformed::ArrayLength),
        (b"*000000000000000000000000000000000000", Malformed::ArrayLength),
        (b"*\r\n", Malformed::ArrayLength),
        (b"*1\n", Malformed::ArrayLength),
        (b"*x\r\n", Malformed::ArrayLength),
        (b"*1\r\nPING\r\n", Malformed::NotABulk(b'P')),
        (b"*1\r\n:1\r\n", Malformed::NotABulk(b':')),
        (b"*1\r\n$-1\r\n", Malformed::BulkLength),
        (b"*1\r\n$1073741824\r\n", Malformed::BulkLength),
        (b"*1\r\n$65537\r\n", Malformed::BulkLength),
        (b"*1\r\n$+1\r\n", Malformed::BulkLength),
        (b"*1\r\n$4\r\nPINGER\r\n", Malformed::BulkEnd(4)),
        (b"\x16\x03\x01", Malformed::Garbage(0x16)),
        (b"\x00\r\n", Malformed::Garbage(0)),
        (b"\xff\r\n", Malformed::Garbage(0xff)),
    ];
    for (input, error) in cases {
        assert_eq!(decode_all(input, &[]).1, Some(error), "{}", input.escape_ascii());
    }
    for unfinished in [&b"*1"[..], b"*1\r", b"*1\r\n$", b"*1\r\n$4\r\nPING\r", b"PING", b"*"] {
        assert_eq!(decode_all(unfinished, &[]), (vec![], None), "{}", unfinished.escape_ascii());
    }
}

#[test]
fn oversized_requests_are_rejected() {
    assert_eq!(one(&vec![b'a'; MAX_INLINE + 1]).unwrap_err(), Malformed::InlineTooBig);
    let mut line = vec![b'a'; MAX_INLINE + 1];
    line.push(b'\n');
    assert_eq!(one(&line).unwrap_err(), Malformed::InlineTooBig);
    assert_eq!(one(&[&b"a ".repeat(1025), &b"\n"[..]].concat()), Err(Malformed::InlineTooMany));
    let most = array(&[vec![b'x'; MAX_BULK], vec![b'x'; 1000]]);
    assert_eq!(one(&most).unwrap().len(), 2);
    let big = array(&[vec![b'x'; MAX_BULK], vec![b'x'; MAX_BULK]]);
    assert_eq!(one(&big).unwrap_err(), Malformed::TooBig);
}

#[test]
fn a_declared_length_allocates_no_memory() {
    let mut decoder = Decoder::default();
    assert!(decoder.decode(b"*1024\r\n$65536\r\n").unwrap().is_none());
    assert_eq!(decoder.spans.capacity(), 0);
}

#[test]
fn memory_of_a_large_request_is_freed() {
    let mut decoder = Decoder::default();
    let big = array(&vec![b"x".to_vec(); 500]);
    assert!(decoder.decode(&big).unwrap().is_some());
    decoder.shrink();
    assert_eq!(decoder.spans.capacity(), 0);
}

proptest! {
    #[test]
    fn any_words_survive_any_split(
        requests in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..6), 0..5),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
    ) {
        let input: Vec<u8> = requests.iter().flat_map(|words| array(words)).collect();
        prop_assert_eq!(decode_all(&input, &cuts), (requests, None));
    }

    #[test]
    fn splits_do_not_change_the_result(
        input in prop::collection::vec(
            prop::sample::select(b"*$\r\n123 -\"'\\xabP\x00\xff".as_slice()), 0..60),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
    ) {
        let (whole, error) = decode_all(&input, &[]);
        let (cut, cut_error) = decode_all(&input, &cuts);
        prop_assert_eq!(whole, cut);
        prop_assert_eq!(error.is_some(), cut_error.is_some());
    }

    #[test]
    fn any_bytes_are_handled(input: Vec<u8>) {
        decode_all(&input, &[]);
    }
}
