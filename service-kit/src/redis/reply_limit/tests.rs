use std::future::poll_fn;

use super::*;

/// Follows the bytes in steps of that length.
fn observe(meter: &mut Meter, bytes: &[u8], step: usize) -> Result<usize, String> {
    bytes.chunks(step).map(|part| meter.observe(part)).sum()
}

#[test]
fn the_memory_of_a_reply_is_the_same_however_it_is_cut() {
    let replies: [(&str, usize); 8] = [
        ("+OK\r\n", ELEMENT + 4),
        (":-7\r\n", ELEMENT + 4),
        ("-ERR a \r or \n within\r\n", ELEMENT + 21),
        ("$3\r\na\r\n\r\n", ELEMENT + 3 + 3),
        ("$-1\r\n", ELEMENT + 4),
        ("*-1\r\n", ELEMENT + 4),
        ("*0\r\n", ELEMENT + 3),
        ("*2\r\n*1\r\n$0\r\n\r\n:1\r\n", 4 * ELEMENT + 3 + 3 + 3 + 3),
    ];
    let all: String = replies.iter().map(|(reply, _)| *reply).collect();
    for step in 1..=all.len() {
        let mut meter = Meter::new(MIB);
        for (reply, memory) in replies {
            assert_eq!(observe(&mut meter, reply.as_bytes(), step), Ok(memory), "{reply:?}");
            assert!(matches!(meter.state, State::Start) && meter.open.is_empty(), "{reply:?}");
        }
        let memory = replies.iter().map(|(_, memory)| memory).sum();
        assert_eq!(observe(&mut Meter::new(MIB), all.as_bytes(), step), Ok(memory));
    }
}

#[test]
fn each_reply_may_reach_the_limit() {
    let large = format!("${}\r\n{}\r\n", MIB - 200, "x".repeat(MIB - 200));
    let many = format!("*16000\r\n{}", ":1\r\n".repeat(5_000));
    let mut meter = Meter::new(MIB);
    for _ in 0..3 {
        observe(&mut meter, large.as_bytes(), 7_000).unwrap();
    }
    assert!(observe(&mut meter, many.as_bytes(), 7_000).is_ok());
}

#[test]
fn a_reply_beyond_the_limit_is_refused_when_it_is_announced() {
    for (bytes, what) in [
        ("$2000000000\r\n", "a text of 2000000000 bytes"),
        ("*2000000000\r\n", "an array of 2000000000 elements"),
        ("*9223372036854775807\r\n", "an array of 9223372036854775807 elements"),
        ("*2\r\n$1000000\r\n", ""),
        ("*2\r\n*10000\r\n*10000\r\n", "an array of 10000 elements"),
    ] {
        let refused = Meter::new(MIB).observe(bytes.as_bytes());
        if what.is_empty() {
            assert!(refused.is_ok(), "{bytes:?}");
        } else {
            let expected = format!("the server sent {what}, beyond the limit of 1 MiB for a reply");
            assert_eq!(refused, Err(expected));
        }
    }
}

#[test]
fn many_small_elements_and_endless_lines_are_refused() {
    let mut meter = Meter::new(MIB);
    meter.observe(b"*10\r\n").unwrap();
    let text = format!("$200000\r\n{}\r\n", "x".repeat(200_000));
    let taken = (0..10).take_while(|_| meter.observe(text.as_bytes()).is_ok()).count();
    assert_eq!(taken, 5);

    let mut meter = Meter::new(MIB);
    meter.observe(b"+").unwrap();
    let taken = (0..1_000).take_while(|_| meter.observe(&[b'x'; 1024]).is_ok()).count();
    assert_eq!(taken, MAX_LINE / 1024);
}

#[test]
fn deep_arrays_and_bytes_that_are_not_a_reply_are_refused() {
    assert!(Meter::new(MIB).observe("*1\r\n".repeat(MAX_DEPTH).as_bytes()).is_ok());
    let deep = "*1\r\n".repeat(MAX_DEPTH + 1);
    for (bytes, reason) in [
        (deep.as_str(), "the server nested arrays deeper than 16 levels"),
        ("HTTP/1.1 400", "byte 0x48 does not begin a reply of Redis"),
        ("%1\r\n", "byte 0x25 does not begin a reply of Redis"),
        ("$-2\r\n", "the server sent \"-2\" for a length"),
        ("*x\r\n", "the server sent \"x\" for a length"),
    ] {
        assert_eq!(Meter::new(MIB).observe(bytes.as_bytes()), Err(reason.to_owned()));
    }
}

/// Reads until `bytes` have arrived or nothing more is ready, and returns the number of bytes.
async fn read(stream: &mut LimitedStream, bytes: usize) -> usize {
    let mut total = 0;
    let mut space = vec![0; MIB];
    while total < bytes {
        let read = poll_fn(|cx| {
            let mut buffer = ReadBuf::new(&mut space);
            match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Ready(result) => Poll::Ready(result.map(|()| buffer.filled().len())),
                Poll::Pending => Poll::Ready(Ok(0)),
            }
        })
        .await
        .unwrap();
        if read == 0 {
            break;
        }
        total += read;
    }
    total
}

#[tokio::test(start_paused = true)]
async fn replies_beyond_the_rate_are_read_later() {
    let reply = format!("${}\r\n{}\r\n", 4 * MIB, "x".repeat(4 * MIB));
    let (near, mut far) = tokio::io::duplex(MIB);
    tokio::spawn(async move {
        loop {
            tokio::io::AsyncWriteExt::write_all(&mut far, reply.as_bytes()).await.unwrap();
        }
    });
    let mut stream = LimitedStream::new(Box::new(near), 32 * MIB);
    let mut total = 0;
    for second in 1..5 {
        for _ in 0..1_000 {
            total += read(&mut stream, 1000 * MIB).await;
            tokio::task::yield_now().await;
        }
        let read = total.div_ceil(RATE);
        assert!(read == second || read == second + 1, "{total} bytes in second {second}");
        tokio::time::advance(Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn a_refused_stream_stays_refused_and_has_the_reason() {
    let (near, mut far) = tokio::io::duplex(MIB);
    tokio::io::AsyncWriteExt::write_all(&mut far, b"$2000000000\r\n+OK\r\n").await.unwrap();
    let mut stream = LimitedStream::new(Box::new(near), MIB);
    let refusal = stream.refusal();
    assert_eq!(refusal.reason(), None);
    for _ in 0..2 {
        let error = tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 16]).await.unwrap_err();
        assert!(error.to_string().contains("the limit of 1 MiB"), "{error}");
    }
    assert!(refusal.reason().is_some());
}
