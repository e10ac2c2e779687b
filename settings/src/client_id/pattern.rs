//! A pattern that finds the client id in a part of a key or of a header.

use std::str::FromStr;

use regex::bytes::{Regex, RegexBuilder};

/// The longest text that a pattern searches, in bytes. A search takes time in proportion to it, in the engine's thread,
/// and the sender chooses the length.
pub const MAX_SEARCHED_BYTES: usize = 16_384;
/// The most memory of a compiled pattern, in bytes. A search takes time in proportion to it as well.
const MAX_COMPILED_BYTES: usize = 1 << 16;
const MAX_NESTING: u32 = 32;
/// The group that holds the id in a pattern of several groups.
const GROUP_NAME: &str = "client";

/// A regular expression with one group that holds the client id.
#[derive(Debug, Clone)]
pub struct Pattern {
    regex: Regex,
    group: usize,
}

/// The reason why a text is not a pattern.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("a pattern begins with ^")]
    NoStart,
    #[error("character {character} of the pattern: {problem}")]
    Syntax { character: usize, problem: String },
    #[error("the pattern is too large: compiled it takes more than {MAX_COMPILED_BYTES} bytes")]
    TooLarge,
    #[error("the pattern has no group ( ) that holds the id")]
    NoGroup,
    #[error("the pattern has {0} groups, and none has the name {GROUP_NAME}: others begin with (?:")]
    SeveralGroups(usize),
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Pattern, PatternError> {
        if !text.starts_with('^') {
            return Err(PatternError::NoStart);
        }
        // The errors of `regex` are texts of several lines. Its parser tells the place.
        let mut parser = regex_syntax::ParserBuilder::new().utf8(false).nest_limit(MAX_NESTING).build();
        parser.parse(text).map_err(|error| syntax_error(text, &error))?;
        let regex = RegexBuilder::new(text).size_limit(MAX_COMPILED_BYTES).nest_limit(MAX_NESTING).build();
        let regex = regex.map_err(|_| PatternError::TooLarge)?;
        let named = regex.capture_names().position(|name| name == Some(GROUP_NAME));
        let group = match (named, regex.captures_len() - 1) {
            (Some(group), _) => group,
            (None, 1) => 1,
            (None, 0) => return Err(PatternError::NoGroup),
            (None, groups) => return Err(PatternError::SeveralGroups(groups)),
        };
        Ok(Pattern { regex, group })
    }
}

fn syntax_error(text: &str, error: &regex_syntax::Error) -> PatternError {
    let (at, problem) = match error {
        regex_syntax::Error::Parse(error) => (error.span().start.offset, error.kind().to_string()),
        regex_syntax::Error::Translate(error) => (error.span().start.offset, error.kind().to_string()),
        other => (0, other.to_string()),
    };
    let character = text.get(..at).map_or(0, |before| before.chars().count()) + 1;
    PatternError::Syntax { character, problem }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Pattern {}

impl Pattern {
    /// Returns the text of the pattern.
    pub fn as_str(&self) -> &str {
        self.regex.as_str()
    }

    /// Returns the bytes in the group; `None` if the pattern does not match, or matches without the group.
    pub fn find<'t>(&self, text: &'t [u8]) -> Option<&'t [u8]> {
        Some(self.regex.captures(text)?.get(self.group)?.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found<'t>(pattern: &str, text: &'t [u8]) -> Option<&'t [u8]> {
        pattern.parse::<Pattern>().unwrap().find(text)
    }

    #[test]
    fn a_pattern_finds_its_group() {
        type Case = (&'static str, &'static [u8], Option<&'static [u8]>);
        let cases: &[Case] = &[
            ("^([^:]+):", b"acme:17", Some(b"acme")),
            ("^([^:]+):", b"acme", None),
            ("^([^:]*):", b":17", Some(b"")),
            ("^([^:]+):", b"acme:\xff\xfe", Some(b"acme")),
            ("^([^:]+):", b"\xff:17", None),
            ("^(?-u:([^:]+)):", b"\xff:17", Some(b"\xff")),
            ("^(?:eu|us)-([a-z]+)", b"eu-acme-1", Some(b"acme")),
            ("^(eu|us)-(?P<client>[a-z]+)", b"us-acme-1", Some(b"acme")),
            ("^(?i)tenant/([a-z]+)$", b"Tenant/Acme", Some(b"Acme")),
            ("^x|(y)", b"x", None),
            ("^(.*)$", b"", Some(b"")),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(found(pattern, text), *expected, "{pattern}");
        }
    }

    #[test]
    fn errors_tell_the_place() {
        let error = |text: &str| text.parse::<Pattern>().unwrap_err().to_string();
        assert_eq!(error("^é([a-z"), "character 4 of the pattern: unclosed character class");
        assert_eq!(error("^(a))"), "character 5 of the pattern: unopened group");
        assert_eq!(error("^(\\p{None})"), "character 3 of the pattern: Unicode property not found");
        assert_eq!(error("(a)"), "a pattern begins with ^");
        assert_eq!(error(""), "a pattern begins with ^");
        assert_eq!(error("^a"), "the pattern has no group ( ) that holds the id");
        assert!(error("^(a)(b)").starts_with("the pattern has 2 groups, and none has the name client"));
        assert!(error("^(\\w{1000})").starts_with("the pattern is too large"));
        assert!(error(&format!("^{}{}", "(".repeat(100), ")".repeat(100))).contains("nest"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_pattern_or_an_error(text in "\\PC{0,20}", noise in "[\\^()\\[\\]{}?:P<>a-c*+|,0-9\\\\-]{0,20}", bytes: Vec<u8>) {
            for text in [format!("^{text}"), format!("^({noise})"), noise] {
                match text.parse::<Pattern>() {
                    Ok(pattern) => _ = pattern.find(&bytes),
                    Err(error) => prop_assert!(!error.to_string().contains('\n')),
                }
            }
        }
    }
}
