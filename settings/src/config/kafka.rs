//! The sections `kafka`, with the schema registry, and `admin`.

use std::path::{Path, PathBuf};
use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use humantime::format_duration;
use serde_json::json;

use super::schema::{BROKER_SIDE_PROPERTIES, REFUSED_PROPERTIES};
use super::{PropertyRefused, PropertyRules, values};
use crate::model::{Admin, AdminToken, ClientFrom, GroupProtocol, Kafka, RegistryLogin, Role, SchemaRegistry};
use crate::reader::{Section, ValueError, because, similar};
use crate::secrets::{Password, Secrets, without_line_end};
use crate::{properties, read_struct, tls::TlsIdentity, token::Token, token::TokenFile};

/// The most that `min_commit_interval` is by default.
const MIN_COMMIT_INTERVAL: Duration = Duration::from_millis(20);

/// Reads `[kafka]`.
pub fn kafka(section: &Section<'_>, rules: PropertyRules) -> Option<Kafka> {
    let host = gethostname::gethostname();
    let group_protocol = section.get("group_protocol");
    let mut properties = properties(section, group_protocol, rules);
    let mut secrets = secrets(section, group_protocol, rules);
    let property_files = read_property_files(&mut properties, &mut secrets);
    read_struct!(Kafka {
        [section => delivery, commit_interval, start_from, on_foreign_offset, on_data_loss]
        group_protocol: group_protocol,
        min_commit_interval: min_commit_interval(section, commit_interval),
        bootstrap_servers: section.text("bootstrap_servers", values::servers),
        group_id: section.text("group_id", values::group_id),
        instance_id: section.derived_text("instance_id", Some(host.to_string_lossy()), values::instance_id),
        properties: Some(properties),
        secrets: Some(Secrets::new(secrets)),
        property_files: Some(property_files),
        schema_registry: schema_registry(&section.table("schema_registry")),
    })
}

/// Moves certificates and keys from the files that properties name into the secrets. Returns all files that properties
/// name.
fn read_property_files(
    properties: &mut BTreeMap<String, String>, secrets: &mut BTreeMap<String, String>,
) -> BTreeMap<String, PathBuf> {
    let files = properties.iter().filter(|(name, _)| properties::names_file(name));
    let files: BTreeMap<_, _> = files.map(|(name, path)| (name.clone(), PathBuf::from(path))).collect();
    for (location, pem) in properties::PEM_FILES {
        let is_free = !properties.contains_key(pem) && !secrets.contains_key(pem);
        let Some(text) = files.get(location).filter(|_| is_free).and_then(|path| pem_text(path)) else { continue };
        properties.remove(location);
        secrets.insert(pem.to_owned(), text);
    }
    files
}

/// Returns the text of a file in PEM. librdkafka reads the others itself, and tells what is wrong with them: folders of
/// certificates, and files with lists of revoked ones, which it takes only by their path.
fn pem_text(path: &Path) -> Option<String> {
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    // A comment between certificates may be of any encoding.
    let text = String::from_utf8_lossy(&std::fs::read(path).ok().filter(|_| is_file)?).into_owned();
    let is_plain = !["\0", "BEGIN X509 CRL", "BEGIN TRUSTED CERTIFICATE"].iter().any(|other| text.contains(other));
    Some(text).filter(|text| is_plain && text.contains("-----BEGIN "))
}

fn min_commit_interval(section: &Section<'_>, longest: Option<Duration>) -> Option<Duration> {
    let default = longest.map(|longest| format_duration(longest.min(MIN_COMMIT_INTERVAL)));
    let shortest = section.derived("min_commit_interval", default)?;
    let Some(longest) = longest.filter(|longest| shortest > *longest) else { return Some(shortest) };
    let (shortest, longest) = (format_duration(shortest), format_duration(longest));
    let problem = format!("is \"{shortest}\", above commit_interval ({longest})");
    section.refuse("min_commit_interval", problem, format!("{longest} or less"));
    None
}

/// Reads librdkafka's properties.
fn properties(
    section: &Section<'_>, protocol: Option<GroupProtocol>, rules: PropertyRules,
) -> BTreeMap<String, String> {
    let written = section.table("properties");
    let mut properties = BTreeMap::new();
    for (name, text) in written.free_scalars() {
        check_owner(&written, name, protocol);
        check_property(&written, name, text, rules);
        written.show(name, Some(json!(properties::shown(name, text))), written.origin(name));
        properties.insert(name.to_owned(), text.to_owned());
    }
    warn_of_unused(&written, &properties);
    properties
}

/// Reports properties of TLS and of logins that have no effect with this `security.protocol`.
fn warn_of_unused(section: &Section<'_>, properties: &BTreeMap<String, String>) {
    let protocol = properties.get("security.protocol").map_or("plaintext".to_owned(), |text| text.to_lowercase());
    for (prefix, needed, allowed) in
        [("sasl.", "sasl_", "SASL_SSL or SASL_PLAINTEXT"), ("ssl.", "ssl", "SSL or SASL_SSL")]
    {
        let first = properties.keys().find(|name| name.starts_with(prefix));
        if let Some(name) = first.filter(|_| !protocol.contains(needed)) {
            let problem = format!("has no effect: security.protocol is {}", protocol.to_uppercase());
            section.warn(name, problem, format!("security.protocol = {allowed}, or no property {prefix}*"));
        }
    }
}

/// Reads the properties that have their values in files.
fn secrets(section: &Section<'_>, protocol: Option<GroupProtocol>, rules: PropertyRules) -> BTreeMap<String, String> {
    let (written, files) = (section.table("properties"), section.table("properties_file"));
    let mut secrets = BTreeMap::new();
    for (name, path) in files.free_scalars() {
        check_owner(&files, name, protocol);
        match std::fs::read_to_string(path) {
            Err(error) => {
                let allowed = "the path of a file of UTF-8 text that can be read";
                files.refuse(name, format!("is {path:?}: {error}"), allowed);
            }
            Ok(_) if written.free_scalars().iter().any(|(other, _)| *other == name) => {
                files.refuse(name, "is in kafka.properties too", "one of the two");
            }
            Ok(text) => {
                let text = without_line_end(&text);
                check_property(&files, name, text, rules);
                secrets.insert(name.to_owned(), text.to_owned());
            }
        }
        files.show(name, Some(json!(path)), files.origin(name));
    }
    secrets
}

/// Refuses a property that the protocol or the brokers own.
fn check_owner(section: &Section<'_>, name: &str, protocol: Option<GroupProtocol>) {
    let named = |(property, _): &&(&str, &str)| *property == name;
    if let (Some((_, at_the_broker)), Some(GroupProtocol::Consumer)) =
        (BROKER_SIDE_PROPERTIES.iter().find(named), protocol)
    {
        section.refuse(
            name,
            "can't be set with kafka.group_protocol = \"consumer\": the brokers have it then",
            format!("{at_the_broker} in the brokers' configuration, or kafka.group_protocol = \"classic\""),
        );
    } else if let Some((_, why)) = REFUSED_PROPERTIES.iter().find(named) {
        let allowed = "any of librdkafka's properties but those that the protocol owns: leave it out";
        section.refuse(name, format!("can't be set: {why}"), allowed);
    }
}

/// Refuses a property that librdkafka refuses.
fn check_property(section: &Section<'_>, name: &str, value: &str, rules: PropertyRules) {
    match (rules.check)(name, value) {
        Ok(()) => {}
        Err(error @ PropertyRefused::Unsupported { .. }) => {
            let allowed = if name.starts_with("sasl.oauthbearer.") {
                "PLAIN, SCRAM or mTLS, or a build of Watermaster with the feature oidc"
            } else {
                "none: leave it out, or use a build of librdkafka that supports it"
            };
            section.refuse(name, format!("can't be used: {error}"), allowed);
        }
        Err(error) => {
            let allowed = match name {
                "security.protocol" => "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL".to_owned(),
                _ => format!("a property of librdkafka {} and a value that it takes", (rules.version)()),
            };
            let is_unknown = error.to_string().contains("No such configuration property");
            let similar = similar(name, properties::names()).filter(|_| is_unknown);
            let hint = similar.map(|similar| format!(" (did you mean {similar}?)")).unwrap_or_default();
            let allowed = format!("{allowed}{hint}");
            section.refuse(name, format!("is refused by librdkafka: {error}"), allowed);
        }
    }
}

/// Reads `[kafka.schema_registry]`. The outer `None` says that a key is wrong.
fn schema_registry(section: &Section<'_>) -> Option<Option<SchemaRegistry>> {
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

/// Reads `[admin]`.
pub fn admin(section: &Section<'_>) -> Option<Admin> {
    let listen = section.text("listen", |text| text.parse::<SocketAddr>().map_err(|_| ValueError::NotAllowed));
    let tokens = tokens(section);
    if let (Some(listen), Some([])) = (listen, tokens.as_deref())
        && !listen.ip().to_canonical().is_loopback()
    {
        section.refuse(
            "listen",
            format!("is \"{listen}\", beyond loopback, and there is neither admin.token_file nor [[admin.token]]"),
            "a loopback address such as \"127.0.0.1:9464\", or any address together with a token",
        );
    }
    read_struct!(Admin {
        [section => metrics_clients, metrics_token, console]
        listen, tokens,
        tls: tls(section),
        open_on_loopback: Some(false),
    })
}

/// The name of the token in `admin.token_file`.
const FIRST_TOKEN: &str = "token";

/// Reads the tokens: that of `token_file`, which may do everything, then the named ones.
fn tokens(section: &Section<'_>) -> Option<Vec<AdminToken>> {
    let first = section.optional("token_file", |path| header_token(section, "token_file", path));
    let tables = section.tables("token");
    let named = tables.iter().map(|table| {
        read_struct!(AdminToken {
            [table => role]
            services: table.list("services", values::service_name).map(Option::unwrap_or_default),
            name: table.text("name", values::service_name),
            token: table.text("file", |path| header_token(table, "file", path)),
        })
    });
    let named: Vec<_> = named.collect();
    let first = first?.map(|token| AdminToken {
        name: FIRST_TOKEN.to_owned(),
        role: Role::Operate,
        services: Vec::new(),
        token,
    });
    let mut tokens: Vec<_> = first.into_iter().collect();
    for (table, named) in tables.iter().zip(named) {
        let named = named?;
        if tokens.iter().any(|other| other.name == named.name) {
            let problem = format!("is {:?}, as that of another token", named.name);
            let allowed = format!("a name of its own; the token of admin.token_file has the name {FIRST_TOKEN:?}");
            table.refuse("name", problem, allowed);
        } else if let Some(other) = tokens.iter().find(|other| other.token == named.token) {
            table.refuse("file", format!("holds the token {:?}", other.name), "a token of its own");
        }
        tokens.push(named);
    }
    Some(tokens)
}

/// Reads the certificate and its key. The outer `None` says that one of them is wrong.
fn tls(section: &Section<'_>) -> Option<Option<TlsIdentity>> {
    let path = |text: &str| Ok::<_, ValueError>(PathBuf::from(text));
    let (certificate, key) = (section.optional("tls_cert", path)?, section.optional("tls_key", path)?);
    let (certificate, key) = match (certificate, key) {
        (None, None) => return Some(None),
        (Some(certificate), Some(key)) => (certificate, key),
        (certificate, _) => {
            let (missing, other) =
                if certificate.is_none() { ("tls_cert", "tls_key") } else { ("tls_key", "tls_cert") };
            section.refuse(missing, format!("is missing beside {other}"), "both of them, or none");
            return None;
        }
    };
    match TlsIdentity::read(&certificate, &key) {
        Ok(identity) => {
            if let Some(expired) = &identity.expired {
                section.warn("tls_cert", format!("is {certificate:?}, which expired on {expired}"), "a renewed one");
            }
            Some(Some(identity))
        }
        Err(error) => {
            let allowed = "a certificate and its key, each in PEM, in files that can be read";
            section.refuse("tls_cert", format!("does not work with tls_key: {error}"), allowed);
            None
        }
    }
}

/// Reads a token that requests carry in a header. A longer text in base64 has several lines.
fn header_token(section: &Section<'_>, key: &str, path: &str) -> Result<Token, ValueError> {
    let token = token(section, key, path)?;
    if !token.fits_header() {
        let problem = format!("is {path:?}, which holds several lines or control characters: no request carries them");
        section.warn(key, problem, "a token in one line, such as that of openssl rand -hex 32");
    }
    Ok(token)
}

/// Reads the secret in the file at `path`, the value of a key of this section.
pub(super) fn token(section: &Section<'_>, key: &str, path: &str) -> Result<Token, ValueError> {
    let file = TokenFile::read(Path::new(path)).map_err(because)?;
    if let Some(mode) = file.loose_mode {
        section.warn(
            key,
            format!("is {path:?}, which more users than its owner may write or all may read (mode {mode:04o})"),
            format!("chmod 600 {path}, or 640 with a group of its own"),
        );
    }
    Ok(file.token)
}
