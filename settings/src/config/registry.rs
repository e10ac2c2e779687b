//! The section `kafka.schema_registry`, and the places of `client_from` that need it.

use std::path::PathBuf;

use super::values::{self, TextError};
use crate::model::{ClientFrom, RegistryLogin, SchemaRegistry};
use crate::reader::Section;
use crate::secrets::Password;

/// True if this build can ask a registry.
const IS_BUILT: bool = cfg!(feature = "schema-registry");

/// Reads `[kafka.schema_registry]`. The outer `None` says that a key is wrong.
pub fn schema_registry(section: &Section<'_>) -> Option<Option<SchemaRegistry>> {
    let url = section.optional("url", values::registry_url);
    let login = login(section);
    let ca_file = section.optional("ca_file", readable);
    let Some(url) = url? else {
        if ["username", "password", "password_file", "ca_file"].iter().any(|key| section.is_set(key)) {
            section.refuse("url", "is missing", "http://HOST:PORT or https://HOST, with or without a path");
        }
        return Some(None);
    };
    Some(Some(SchemaRegistry { url, login: login?, ca_file: ca_file? }))
}

fn login(section: &Section<'_>) -> Option<Option<RegistryLogin>> {
    let username = section.optional("username", values::registry_user)?;
    let text = section.optional("password", |text| Ok::<_, TextError>(Password::Text(text.to_owned())))?;
    let file = section.optional("password_file", |path| readable(path).map(Password::File))?;
    match (username, text, file) {
        (None, None, None) => return Some(None),
        (Some(username), Some(password), None) | (Some(username), None, Some(password)) => {
            return Some(Some(RegistryLogin { username, password }));
        }
        (None, ..) => section.refuse("username", "is missing beside a password", "a text without a colon"),
        (Some(_), None, None) => section.refuse("password", "is missing beside username", "password or password_file"),
        (Some(_), Some(_), Some(_)) => section.refuse("password_file", "stands beside password", "one of the two"),
    }
    None
}

fn readable(path: &str) -> Result<PathBuf, TextError> {
    std::fs::read_to_string(path).map(|_| PathBuf::from(path)).map_err(TextError::File)
}

/// Refuses places that need a registry if there is none, or this build can't ask it.
pub fn check_places(section: &Section<'_>, places: &[ClientFrom], kafka: &Section<'_>) {
    let registry = kafka.table("schema_registry");
    if let Some(refused) = refusal(places, registry.is_set("url"), IS_BUILT) {
        section.refuse("client_from", refused.0, refused.1);
    }
}

/// Returns the problem with the first such place, and what is allowed.
fn refusal(places: &[ClientFrom], has_registry: bool, is_built: bool) -> Option<(String, &'static str)> {
    let place = places.iter().find_map(|place| match place {
        ClientFrom::Schema(format, path) => Some(format!("has \"{format}:/{}\"", path.join("/"))),
        _ => None,
    })?;
    match (is_built, has_registry) {
        (false, _) => Some((
            format!("{place}, and this build can't ask a schema registry"),
            "places without a schema, or a build of Watermaster with the feature schema-registry",
        )),
        (true, false) => {
            Some((format!("{place}, and there is no kafka.schema_registry.url"), "the URL of a schema registry there"))
        }
        (true, true) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SchemaFormat;

    #[test]
    fn a_place_with_a_schema_needs_a_registry_and_a_build_that_asks_it() {
        let avro = [ClientFrom::Key, ClientFrom::Schema(SchemaFormat::Avro, vec!["a".to_owned(), "b".to_owned()])];
        let said =
            |places: &[ClientFrom], has_registry, is_built| refusal(places, has_registry, is_built).map(|it| it.0);
        assert_eq!(said(&avro, true, true), None);
        assert_eq!(said(&[ClientFrom::Key], false, false), None);
        let no_url = "has \"avro:/a/b\", and there is no kafka.schema_registry.url";
        assert_eq!(said(&avro, false, true).as_deref(), Some(no_url));
        for has_registry in [false, true] {
            let problem = said(&avro, has_registry, false).unwrap();
            assert_eq!(problem, "has \"avro:/a/b\", and this build can't ask a schema registry");
        }
    }
}
