//! TFRecord framing: `length: u64 LE | masked CRC32C of length: u32 LE | payload | masked CRC32C of payload: u32 LE`.
//!
//! The checksum of the length is what lets a reader find the next frame after damage: twelve bytes that pass it are a header.

/// Bytes before a payload.
pub(super) const HEADER: usize = 12;
/// Bytes behind a payload.
pub(super) const TRAILER: usize = 4;
/// The longest payload that a reader accepts. A step of a thousand sites takes 200 KB; a longer length is damage, not data.
pub(super) const MAX_PAYLOAD: u64 = 256 << 20;

/// The checksum as TFRecord stores it: rotated and offset, so that a checksum of data that holds checksums stays strong.
pub(super) fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Appends the frame of a payload.
pub(super) fn append(out: &mut Vec<u8>, payload: &[u8]) {
    let length = (payload.len() as u64).to_le_bytes();
    out.reserve(HEADER + payload.len() + TRAILER);
    out.extend(length);
    out.extend(masked_crc(&length).to_le_bytes());
    out.extend(payload);
    out.extend(masked_crc(payload).to_le_bytes());
}

/// The length of the payload that these bytes announce, or `None` when they are no header.
pub(super) fn payload_length(header: [u8; HEADER]) -> Option<usize> {
    let [l0, l1, l2, l3, l4, l5, l6, l7, crc @ ..] = header;
    let length = [l0, l1, l2, l3, l4, l5, l6, l7];
    let n = u64::from_le_bytes(length);
    let right = n <= MAX_PAYLOAD && masked_crc(&length) == u32::from_le_bytes(crc);
    right.then_some(n as usize)
}

/// A frame whose header was right.
#[derive(Debug, PartialEq)]
pub(super) enum Body<'a> {
    /// More bytes must come.
    Partial,
    /// The checksum does not match the payload.
    Damaged,
    /// The payload.
    Whole(&'a [u8]),
}

/// The body of the frame at the start of `bytes`, whose header announced `length` bytes of payload.
pub(super) fn body(bytes: &[u8], length: usize) -> Body<'_> {
    let Some((payload, rest)) = bytes.get(HEADER..).and_then(|b| b.split_at_checked(length)) else {
        return Body::Partial;
    };
    match rest.first_chunk() {
        None => Body::Partial,
        Some(crc) if masked_crc(payload) == u32::from_le_bytes(*crc) => Body::Whole(payload),
        Some(_) => Body::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_tfrecord_uses() {
        // CRC32C of 32 zero bytes is 0x8a9136aa (RFC 3720, B.4); 0x0fd7fffa was computed by a second implementation.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(masked_crc(&[0; 32]), 0x0fd7_fffa);
        // The header of a TensorFlow event file's first frame (24 bytes of payload), as TensorFlow writes it.
        assert_eq!(payload_length([0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22]), Some(24));
    }

    #[test]
    fn a_frame_gives_back_its_payload() {
        let mut frame = Vec::new();
        append(&mut frame, b"payload");
        let length = payload_length(*frame.first_chunk().expect("a header")).expect("a right header");
        assert_eq!(length, 7);
        assert_eq!(body(&frame, length), Body::Whole(b"payload"));
        assert_eq!(body(&frame[..frame.len() - 1], length), Body::Partial);
        frame[HEADER] ^= 1;
        assert_eq!(body(&frame, length), Body::Damaged);
    }

    #[test]
    fn a_run_of_zeros_is_no_header() {
        assert_eq!(payload_length([0; HEADER]), None);
    }
}
