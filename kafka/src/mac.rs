//! Message authentication codes, and bytes as text.

use openssl::{error::ErrorStack, hash::MessageDigest, pkey::PKey, sign::Signer};

/// Returns the HMAC-SHA256 of a text.
pub(crate) fn hmac(key: &[u8], text: &[u8]) -> Result<Vec<u8>, ErrorStack> {
    Signer::new(MessageDigest::sha256(), &*PKey::hmac(key)?)?.sign_oneshot_to_vec(text)
}

/// Returns two hexadecimal digits for each byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |four: u8| char::from(b"0123456789abcdef"[usize::from(four)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
