//! The bearer token of `/v1`.

use std::fmt;

use subtle::ConstantTimeEq;

/// A secret that is compared in constant time and never printed.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// The token as its file holds it, white space around it removed; `None` if nothing is left.
    pub fn new(text: &str) -> Option<Token> {
        let text = text.trim();
        (!text.is_empty()).then(|| Token(text.to_owned()))
    }

    /// Whether an `Authorization` header's value carries this token. Only its length can be learnt from the time.
    pub fn matches(&self, authorization: &[u8]) -> bool {
        let Some((scheme, offered)) = authorization.split_at_checked("Bearer ".len()) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(offered.ct_eq(self.0.as_bytes()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_as_bearer_matches() {
        let token = Token::new(" s3cret\n").unwrap();
        for right in ["Bearer s3cret", "bearer s3cret"] {
            assert!(token.matches(right.as_bytes()), "{right}");
        }
        for wrong in ["", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crets", "Basic s3cret", "s3cret"] {
            assert!(!token.matches(wrong.as_bytes()), "{wrong}");
        }
        assert!(!format!("{token:?}").contains("s3cret"));
    }

    #[test]
    fn an_empty_file_is_no_token() {
        assert!(Token::new(" \n").is_none());
    }
}
