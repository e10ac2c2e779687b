//! Secrets that files hold: the bearer token of `/v1`, and the key of redriven records.

use std::fs::{self, Metadata};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::{io, path::Path};

use parking_lot::RwLock;
use subtle::ConstantTimeEq;

/// The fewest characters of a token. A shorter token can be guessed.
pub const MIN_CHARS: usize = 16;
/// The most bytes of a token. A longer token fits in no header.
pub const MAX_BYTES: usize = 4096;

/// A secret that is compared in constant time and never printed.
#[derive(Clone)]
pub struct Token(String);

/// A token that a reload replaces. All clones have the same one at any time.
#[derive(Clone, Debug)]
pub struct SharedToken(Arc<RwLock<Token>>);

impl SharedToken {
    pub fn new(token: Token) -> SharedToken {
        SharedToken(Arc::new(RwLock::new(token)))
    }

    /// Returns the token in force.
    pub fn get(&self) -> Token {
        self.0.read().clone()
    }

    /// Replaces the token, for all clones.
    pub fn set(&self, token: Token) {
        *self.0.write() = token;
    }
}

/// Equal configurations have a token in the same place: its value may change while the program runs.
impl PartialEq for SharedToken {
    fn eq(&self, _: &SharedToken) -> bool {
        true
    }
}

/// The reason why a file gives no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    #[error("not a regular file")]
    NoFile,
    #[error("the token has {0} characters, fewer than {MIN_CHARS}")]
    TooShort(usize),
    #[error("the file has {0} bytes, more than {MAX_BYTES} and white space")]
    TooLong(u64),
    #[error("every user of this machine may write the file (mode {0:04o})")]
    WritableByAll(u32),
}

/// A token, and the mode of its file if too many users have access to it.
#[derive(Debug)]
pub struct TokenFile {
    pub token: Token,
    /// The file's mode, if all users may read it or its group may write it.
    pub loose_mode: Option<u32>,
}

impl Token {
    /// Takes the token from the text of its file, without the white space around it.
    ///
    /// # Errors
    /// Fails when the token is too short or too long.
    pub fn new(text: &str) -> Result<Token, TokenError> {
        let token = text.trim();
        match token.chars().count() {
            _ if token.len() > MAX_BYTES => Err(TokenError::TooLong(token.len() as u64)),
            chars if chars < MIN_CHARS => Err(TokenError::TooShort(chars)),
            _ => Ok(Token(token.to_owned())),
        }
    }

    /// Returns the bytes, for a key.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Returns whether the value of a header may hold the token.
    pub fn fits_header(&self) -> bool {
        self.0.bytes().all(|byte| !byte.is_ascii_control() || byte == b'\t')
    }

    /// Returns whether an `Authorization` header's value carries this token. The time taken tells only the length.
    pub fn matches(&self, authorization: &[u8]) -> bool {
        let Some((scheme, offered)) = authorization.split_at_checked("Bearer ".len()) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(offered.ct_eq(self.0.as_bytes()))
    }
}

impl TokenFile {
    /// Reads the token at `path`; symbolic links, as Kubernetes mounts secrets, are followed.
    ///
    /// A file that all users may write is refused. A file that all users may read, or its group may write, is only
    /// reported: files in a clone of a repository have such modes, and so have files that a container mounts from its
    /// host for another user.
    ///
    /// # Errors
    /// Fails when the file can't be read, when its permissions are refused, or when it holds no acceptable token.
    pub fn read(path: &Path) -> Result<TokenFile, TokenError> {
        let metadata = fs::metadata(path)?;
        if !metadata.is_file() {
            return Err(TokenError::NoFile);
        }
        let loose_mode = check_mode(&metadata)?;
        // White space around the token is allowed, but a file that fills the memory is not.
        if metadata.len() > 2 * MAX_BYTES as u64 {
            return Err(TokenError::TooLong(metadata.len()));
        }
        Ok(TokenFile { token: Token::new(&fs::read_to_string(path)?)?, loose_mode })
    }
}

/// Refuses permissions that let every user change the token; returns those that are only doubtful.
fn check_mode(metadata: &Metadata) -> Result<Option<u32>, TokenError> {
    const WRITABLE_BY_ALL: u32 = 0o002;
    const LOOSE: u32 = 0o024;
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & WRITABLE_BY_ALL != 0 {
        return Err(TokenError::WritableByAll(mode));
    }
    Ok((mode & LOOSE != 0).then_some(mode))
}

impl PartialEq for Token {
    fn eq(&self, other: &Token) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "s3cret-s3cret-s3cret";

    #[test]
    fn only_the_whole_token_as_bearer_matches() {
        let token = Token::new(&format!(" {TEXT}\n")).unwrap();
        for right in [format!("Bearer {TEXT}"), format!("bearer {TEXT}")] {
            assert!(token.matches(right.as_bytes()), "{right}");
        }
        let shorter = format!("Bearer {}", &TEXT[1..]);
        let longer = format!("Bearer {TEXT}s");
        let other_scheme = format!("Basic {TEXT}");
        for wrong in ["", "Bearer", "Bearer ", &shorter, &longer, &other_scheme, TEXT] {
            assert!(!token.matches(wrong.as_bytes()), "{wrong}");
        }
        assert!(!format!("{token:?}").contains(TEXT));
    }

    #[test]
    fn a_token_has_a_minimum_and_a_maximum_length() {
        let new = |text: &str| Token::new(text).map(drop).map_err(|why| why.to_string());
        assert_eq!(new(" \n").unwrap_err(), "the token has 0 characters, fewer than 16");
        assert_eq!(new("fifteen-letters").unwrap_err(), "the token has 15 characters, fewer than 16");
        assert_eq!(new("sixteen--letters\n"), Ok(()));
        let fits = ["sixteen--letters\n", "sixteen\t letters"].map(|text| Token::new(text).unwrap());
        assert!(fits.iter().all(Token::fits_header));
        assert!(!Token::new("one-line-of-it\nand-another").unwrap().fits_header(), "two lines");
        assert_eq!(new(&"x".repeat(MAX_BYTES)), Ok(()));
        assert!(new(&"x".repeat(MAX_BYTES + 1)).unwrap_err().contains("4097 bytes"));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_all_users_may_write_is_refused_and_one_that_they_may_read_is_reported() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("token"), folder.path().join("link"));
        std::fs::write(&file, TEXT).unwrap();
        symlink(&file, &link).unwrap();
        for (mode, expected) in [
            (0o600, Ok(None)),
            (0o400, Ok(None)),
            (0o640, Ok(None)),
            (0o440, Ok(None)),
            (0o644, Ok(Some(0o644))),
            (0o660, Ok(Some(0o660))),
            (0o664, Ok(Some(0o664))),
            (0o666, Err("every user of this machine may write the file (mode 0666)".to_owned())),
            (0o602, Err("every user of this machine may write the file (mode 0602)".to_owned())),
        ] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let read = TokenFile::read(&link).map(|file| file.loose_mode).map_err(|why| why.to_string());
            assert_eq!(read, expected, "{mode:o}");
        }
        assert!(matches!(TokenFile::read(folder.path()), Err(TokenError::NoFile)));
    }
}
