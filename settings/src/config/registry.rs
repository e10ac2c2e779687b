//! The section `kafka.schema_registry`, and the places of `client_from` and `group_from` that need it.

use std::path::PathBuf;

use super::values;
use crate::model::{ClientFrom, RegistryLogin, SchemaRegistry};
use crate::reader::{Section, ValueError, because};
use crate::secrets::Password;

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
    let text = section.optional("password", |text| Ok::<_, ValueError>(Password::Text(text.to_owned())))?;
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

fn readable(path: &str) -> Result<PathBuf, ValueError> {
    std::fs::read_to_string(path).map(|_| PathBuf::from(path)).map_err(because)
}

/// Refuses places that need a registry if there is none.
pub fn check_places(section: &Section<'_>, key: &str, places: &[ClientFrom], kafka: &Section<'_>) {
    let place = places.iter().find_map(|place| match place {
        ClientFrom::Schema(format, path) => Some(format!("\"{format}:/{}\"", path.join("/"))),
        _ => None,
    });
    if let Some(place) = place.filter(|_| !kafka.table("schema_registry").is_set("url")) {
        let problem = format!("has {place}, and there is no kafka.schema_registry.url");
        section.refuse(key, problem, "the URL of a schema registry there");
    }
}
