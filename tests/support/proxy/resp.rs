//! The parts of Redis's protocol (RESP2 and RESP3) that the proxy needs: frames, and the strings in them.

#[derive(Debug)]
pub struct NotResp;

fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some((&bytes[..end], &bytes[end + 2..]))
}

/// A length or a count; `None` for -1, by which RESP2 writes a null.
fn number(digits: &[u8]) -> Result<Option<usize>, NotResp> {
    let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse::<i64>().ok()).ok_or(NotResp)?;
    Ok(usize::try_from(number).ok())
}

/// The length of the first frame; `None` if the frame is not complete. An inline command is a frame too.
pub fn frame_length(bytes: &[u8]) -> Result<Option<usize>, NotResp> {
    let (mut rest, mut values) = (bytes, 1_usize);
    while values > 0 {
        let Some(&kind) = rest.first() else { return Ok(None) };
        let inline = rest.len() == bytes.len() && kind.is_ascii_alphabetic();
        if !inline && !b"+-:_#,($=!*~>%|".contains(&kind) {
            return Err(NotResp);
        }
        let Some((head, tail)) = line(rest) else { return Ok(None) };
        rest = tail;
        values -= 1;
        match kind {
            b'$' | b'=' | b'!' => {
                if let Some(length) = number(&head[1..])? {
                    let Some(tail) = rest.get(length.saturating_add(2)..) else { return Ok(None) };
                    rest = tail;
                }
            }
            b'*' | b'~' | b'>' => values = values.saturating_add(number(&head[1..])?.unwrap_or(0)),
            b'%' => values = values.saturating_add(number(&head[1..])?.unwrap_or(0).saturating_mul(2)),
            // Attributes are pairs that precede their value, so twice as many values and one more follow.
            b'|' => values = values.saturating_add(number(&head[1..])?.unwrap_or(0).saturating_mul(2) + 1),
            _ => {}
        }
    }
    Ok(Some(bytes.len() - rest.len()))
}

/// The strings in a frame: a command's arguments, or a message's parts.
pub fn strings(frame: &[u8]) -> Vec<Vec<u8>> {
    if frame.first().is_some_and(u8::is_ascii_alphabetic) {
        return frame
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
            .map(<[u8]>::to_vec)
            .collect();
    }
    let (mut rest, mut found) = (frame, Vec::new());
    while let Some((head, tail)) = line(rest) {
        rest = tail;
        if let (Some(b'$'), Ok(Some(length))) = (head.first(), number(&head[1..])) {
            found.push(rest[..length].to_vec());
            rest = &rest[length + 2..];
        }
    }
    found
}

pub fn packed(args: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Whether the frame is a published message: a push in RESP3, or an array for a subscriber in RESP2. Either
/// may also confirm a subscription, so the first string decides.
pub fn is_message(frame: &[u8], subscriber: bool) -> bool {
    let push = frame.first() == Some(&b'>');
    let may_be = push || (subscriber && frame.first() == Some(&b'*'));
    if !may_be {
        return false;
    }
    let strings = strings(frame);
    let Some(kind) = strings.first() else { return push };
    if push {
        !kind.ends_with(b"subscribe")
    } else {
        matches!(&kind[..], b"message" | b"pmessage" | b"smessage")
    }
}
