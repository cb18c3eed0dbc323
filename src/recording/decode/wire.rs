//! The wire form of Protocol Buffers, as far as a step in its plain form needs it.
//!
//! A message is a row of fields: `key: varint = number << 3 | type | value`. Of the types there are 0 (a varint), 1 (eight bytes) and 2 (a length
//! and as many bytes). Whatever else may stand there is no error here: the answer is `None`, and the general decoder says what it is.

/// The value of a field.
pub(in crate::recording) enum Value<'a> {
    Varint(u64),
    Double(f64),
    Bytes(&'a [u8]),
}

/// Hands each field of a message to `take`, its number first. `None` as soon as something is not of the plain form, or `take` does not know it.
#[inline]
pub(in crate::recording) fn fields<'a>(
    mut bytes: &'a [u8],
    mut take: impl FnMut(u64, Value<'a>) -> Option<()>,
) -> Option<()> {
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut bytes)?),
            1 => Value::Double(double(&mut bytes)?),
            2 => Value::Bytes(length_delimited(&mut bytes)?),
            _ => return None,
        };
        take(key >> 3, value)?;
    }
    Some(())
}

/// The varints that stand one behind the other in `bytes`, each as `of` has it.
#[inline]
pub(in crate::recording) fn packed<T>(mut bytes: &[u8], of: impl Fn(u64) -> Option<T>) -> Option<Vec<T>> {
    // Each has one byte without the bit that says that more follow.
    let count = bytes.iter().filter(|&&byte| byte < 0x80).count();
    let mut values = Vec::with_capacity(count);
    while !bytes.is_empty() {
        values.push(of(varint(&mut bytes)?)?);
    }
    Some(values)
}

/// The numbers of `N` bytes each that stand one behind the other in `bytes`.
#[inline]
pub(in crate::recording) fn chunks<const N: usize, T>(bytes: &[u8], of: impl Fn([u8; N]) -> T) -> Option<Vec<T>> {
    let (chunks, rest) = bytes.as_chunks::<N>();
    rest.is_empty().then(|| chunks.iter().map(|chunk| of(*chunk)).collect())
}

/// A number of 32 bits that was written zigzag: 0, -1, 1, -2, ...
#[inline]
pub(in crate::recording) fn zigzag(value: u64) -> Option<i32> {
    let value = u32::try_from(value).ok()?;
    Some((value >> 1) as i32 ^ -((value & 1) as i32))
}

/// Seven bits a byte, the lowest first. Numbers of more than 63 bits are left to the general decoder.
#[inline]
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for place in 0..9 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Appends a number, seven bits a byte, the lowest first.
pub(in crate::recording) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
fn double(bytes: &mut &[u8]) -> Option<f64> {
    let (&value, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(f64::from_le_bytes(value))
}

#[inline]
fn length_delimited<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(varint(bytes)?).ok()?;
    let (value, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(value)
}
