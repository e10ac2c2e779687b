//! Patterns for the ids of clients and groups.

use std::fmt;

use serde::Serialize;

/// The ids of clients: `*` stands for any characters, `\*` for a star.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClientPattern {
    /// The literal parts, with any characters between them.
    parts: Vec<String>,
}

impl fmt::Display for ClientPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let literal: Vec<String> = self.parts.iter().map(|part| part.replace('*', "\\*")).collect();
        f.write_str(&literal.join("*"))
    }
}

impl ClientPattern {
    /// Reads a pattern. Any text is one.
    pub fn new(text: &str) -> ClientPattern {
        let (mut parts, mut characters) = (vec![String::new()], text.chars().peekable());
        while let Some(character) = characters.next() {
            match character {
                '*' => parts.push(String::new()),
                '\\' if characters.next_if_eq(&'*').is_some() => parts.last_mut().expect("one part").push('*'),
                other => parts.last_mut().expect("one part").push(other),
            }
        }
        ClientPattern { parts }
    }

    /// The pattern that stands for one id, in which no character is special.
    pub fn of_id(id: &str) -> ClientPattern {
        ClientPattern { parts: vec![id.to_owned()] }
    }

    pub fn matches(&self, client: &str) -> bool {
        let [first, middle @ .., last] = &self.parts[..] else { return self.parts[0] == client };
        let Some(rest) = client.strip_prefix(first.as_str()).and_then(|rest| rest.strip_suffix(last.as_str())) else {
            return false;
        };
        let found = middle.iter().try_fold(rest, |rest, part| rest.split_once(part.as_str()).map(|(_, rest)| rest));
        found.is_some()
    }

    /// The id that the pattern stands for; `None` if it stands for several.
    pub fn id(&self) -> Option<&str> {
        if let [id] = &self.parts[..] { Some(id) } else { None }
    }

    /// The number of characters that stand for themselves.
    pub fn literal_characters(&self) -> usize {
        self.parts.iter().map(|part| part.chars().count()).sum()
    }
}
