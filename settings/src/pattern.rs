//! Patterns: those that find the client id in a part of a key or of a header, and those of topics.

use std::str::FromStr;

use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::hir::{Hir, HirKind};

use crate::reader::{ValueError, because};

/// The longest text that a pattern searches, in bytes. A search takes time in proportion to it, in the engine's thread,
/// and the sender chooses the length.
pub const MAX_SEARCHED_BYTES: usize = 16_384;
/// The most memory of a compiled pattern, in bytes. A search takes time in proportion to it as well.
const MAX_COMPILED_BYTES: usize = 1 << 16;
const MAX_NESTING: u32 = 32;
/// The group that holds the id in a pattern of several groups, or of a topic.
const GROUP_NAME: &str = "client";
/// Topics that begin so are Kafka's own.
pub(crate) const INTERNAL: &str = "__";

/// A regular expression with one group that holds the client id.
#[derive(Debug, Clone)]
pub struct Pattern {
    regex: Regex,
    group: usize,
}

impl FromStr for Pattern {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Pattern, ValueError> {
        if !text.starts_with('^') {
            return Err(because("a pattern begins with ^"));
        }
        // The errors of `regex` are texts of several lines. Its parser tells the place.
        let mut parser = regex_syntax::ParserBuilder::new().utf8(false).nest_limit(MAX_NESTING).build();
        parser.parse(text).map_err(|error| syntax_error(text, &error))?;
        let regex = RegexBuilder::new(text).size_limit(MAX_COMPILED_BYTES).nest_limit(MAX_NESTING).build();
        let regex = regex.map_err(|_| {
            because(format_args!("the pattern is too large: compiled it takes more than {MAX_COMPILED_BYTES} bytes"))
        })?;
        let named = regex.capture_names().position(|name| name == Some(GROUP_NAME));
        let group = match (named, regex.captures_len() - 1) {
            (Some(group), _) => group,
            (None, 1) => 1,
            (None, 0) => return Err(because("the pattern has no group ( ) that holds the id")),
            (None, groups) => {
                return Err(because(format_args!(
                    "the pattern has {groups} groups, and none has the name {GROUP_NAME}: others begin with (?:"
                )));
            }
        };
        Ok(Pattern { regex, group })
    }
}

fn syntax_error(text: &str, error: &regex_syntax::Error) -> ValueError {
    let (at, problem) = match error {
        regex_syntax::Error::Parse(error) => (error.span().start.offset, error.kind().to_string()),
        regex_syntax::Error::Translate(error) => (error.span().start.offset, error.kind().to_string()),
        other => (0, other.to_string()),
    };
    let character = text.get(..at).map_or(0, |before| before.chars().count()) + 1;
    because(format_args!("character {character} of the pattern: {problem}"))
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

/// A regular expression that has to match the whole name of a topic.
#[derive(Debug, Clone)]
pub struct TopicPattern {
    text: String,
    whole: regex::Regex,
}

impl PartialEq for TopicPattern {
    fn eq(&self, other: &TopicPattern) -> bool {
        self.text == other.text
    }
}

impl TopicPattern {
    /// Parses a regular expression of the crate `regex`.
    pub fn new(text: &str) -> Result<TopicPattern, regex::Error> {
        // By itself first: the group around it must not balance its parentheses.
        regex::Regex::new(text)?;
        Ok(TopicPattern { text: text.to_owned(), whole: regex::Regex::new(&format!("^(?:{text})$"))? })
    }

    /// Returns the text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the client that the pattern captures in the name of a topic, or else the whole name; `None` if the topic
    /// does not match.
    pub(crate) fn client_of<'t>(&self, topic: &'t str) -> Option<&'t str> {
        let captures = self.whole.captures(topic)?;
        let captured = captures.name(GROUP_NAME).map(|client| client.as_str()).filter(|client| !client.is_empty());
        Some(captured.unwrap_or(topic))
    }

    /// Returns the topic that is most like the letters of the pattern, by the pairs of letters that they share.
    pub(crate) fn nearest<'t>(&self, topics: &'t [String]) -> Option<&'t str> {
        let mut letters = Vec::new();
        if let Ok(pattern) = regex_syntax::parse(&self.text) {
            add_letters(&pattern, &mut letters);
        }
        let letters = String::from_utf8_lossy(&letters).to_lowercase();
        let free = topics.iter().filter(|topic| !topic.starts_with(INTERNAL));
        let likeness = |topic: &'t String| (strsim::sorensen_dice(&letters, &topic.to_lowercase()), topic.as_str());
        free.map(likeness).max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, topic)| topic)
    }

    /// Returns whether a named group captures the client.
    pub fn captures_client(&self) -> bool {
        self.whole.capture_names().flatten().any(|name| name == GROUP_NAME)
    }

    /// Returns whether there are groups, and none of them captures the client.
    pub fn captures_something_else(&self) -> bool {
        // The first capture is the whole name.
        self.whole.captures_len() > 1 && !self.captures_client()
    }
}

/// Collects the bytes that a pattern asks for by name, in order.
fn add_letters(pattern: &Hir, letters: &mut Vec<u8>) {
    match pattern.kind() {
        HirKind::Literal(literal) => letters.extend(&literal.0),
        HirKind::Capture(capture) => add_letters(&capture.sub, letters),
        HirKind::Repetition(repetition) => add_letters(&repetition.sub, letters),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().for_each(|part| add_letters(part, letters))
        }
        HirKind::Empty | HirKind::Class(_) | HirKind::Look(_) => {}
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
