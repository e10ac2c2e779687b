//! The sections `kafka`, `admin` and `log`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use watermaster_core::offset_map::MapBudget;

use super::schema::{BROKER_SIDE_PROPERTIES, REFUSED_PROPERTIES};
use super::section::Section;
use super::values;
use crate::kafka;
use crate::settings::{Admin, Delivery, GroupProtocol, Kafka, LogFormat, OnDataLoss, OnForeignOffset, StartFrom};
use crate::token::TokenFile;

/// What the section `kafka` says, each `None` where it is wrong. The first three go into each service too.
pub struct KafkaPart {
    pub group_id: Option<String>,
    pub commit_interval: Option<Duration>,
    pub map_budget: Option<MapBudget>,
    pub kafka: Option<Kafka>,
}

/// Reads `[kafka]`.
pub fn kafka(section: &Section<'_>) -> KafkaPart {
    let host = gethostname::gethostname().to_string_lossy().into_owned();
    let bootstrap_servers = section.value("bootstrap_servers", |text, _| values::servers(text));
    let group_id = section.value("group_id", |text, _| values::name(text, 100, "._-"));
    let instance_id = section.derived("instance_id", Some(&host), |text, _| instance_id(text));
    let delivery = section
        .choice("delivery", &[("at_least_once", Delivery::AtLeastOnce), ("exactly_once", Delivery::ExactlyOnce)]);
    let group_protocol =
        section.choice("group_protocol", &[("classic", GroupProtocol::Classic), ("consumer", GroupProtocol::Consumer)]);
    let commit_interval = section.duration("commit_interval");
    let start_from = section.choice("start_from", &[("earliest", StartFrom::Earliest), ("latest", StartFrom::Latest)]);
    let on_foreign_offset =
        section.choice("on_foreign_offset", &[("stop", OnForeignOffset::Stop), ("replay", OnForeignOffset::Replay)]);
    let on_data_loss =
        section.choice("on_data_loss", &[("stop", OnDataLoss::Stop), ("continue", OnDataLoss::Continue)]);
    let map_budget = section.value("map_budget", |text, _| values::map_budget(text));
    let properties = properties(section, group_protocol);
    let kafka = (|| {
        Some(Kafka {
            bootstrap_servers: bootstrap_servers?,
            group_id: group_id.clone()?,
            instance_id: instance_id?,
            delivery: delivery?,
            group_protocol: group_protocol?,
            commit_interval: commit_interval?,
            start_from: start_from?,
            on_foreign_offset: on_foreign_offset?,
            on_data_loss: on_data_loss?,
            properties: properties?,
        })
    })();
    KafkaPart { group_id, commit_interval, map_budget, kafka }
}

fn instance_id(text: &str) -> Result<String, values::Why> {
    if text == "leader" {
        return Err("the leader of a group goes by that name".to_owned());
    }
    values::name(text, 128, "._-")
}

/// librdkafka's properties: those written here and those from files.
fn properties(section: &Section<'_>, protocol: Option<GroupProtocol>) -> Option<BTreeMap<String, String>> {
    let written = section.table("properties");
    let files = section.table("properties_file");
    let mut properties = BTreeMap::new();
    let mut right = true;
    for (name, text) in written.free_scalars() {
        right &= is_ours_to_give(&written, name, protocol) && is_accepted(&written, name, &text);
        written.show(name, Some(json!(kafka::shown_property(name, &text))), written.origin(name));
        properties.insert(name.to_owned(), text);
    }
    for (name, path) in files.free_scalars() {
        right &= is_ours_to_give(&files, name, protocol);
        match from_file(&files, name, &path) {
            Some(_) if properties.contains_key(name) => {
                files.refuse(name, "is in kafka.properties too", "one of the two");
                right = false;
            }
            Some(text) => {
                right &= is_accepted(&files, name, &text);
                properties.insert(name.to_owned(), text);
            }
            None => right = false,
        }
        files.show(name, Some(json!(path)), files.origin(name));
    }
    right.then_some(properties)
}

fn is_ours_to_give(section: &Section<'_>, name: &str, protocol: Option<GroupProtocol>) -> bool {
    let broker_side = BROKER_SIDE_PROPERTIES.iter().find(|(property, _)| *property == name);
    if let (Some((_, at_the_broker)), Some(GroupProtocol::Consumer)) = (broker_side, protocol) {
        section.refuse(
            name,
            "can't be set with kafka.group_protocol = \"consumer\": the brokers have it then",
            format!("{at_the_broker} in the brokers' configuration, or kafka.group_protocol = \"classic\""),
        );
        return false;
    }
    let Some((_, why)) = REFUSED_PROPERTIES.iter().find(|(refused, _)| *refused == name) else {
        return true;
    };
    let allowed = "any of librdkafka's properties but those that the protocol owns: leave it out";
    section.refuse(name, format!("can't be set: {why}"), allowed);
    false
}

/// Asks librdkafka, which knows its properties best.
fn is_accepted(section: &Section<'_>, name: &str, value: &str) -> bool {
    let Err(why) = kafka::accepts_property(name, value) else {
        return true;
    };
    let allowed = format!("a property of librdkafka {} and a value that it takes", kafka::client_version());
    section.refuse(name, format!("is refused by librdkafka: {why}"), allowed);
    false
}

fn from_file(section: &Section<'_>, name: &str, path: &str) -> Option<String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Some(
            text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line)).to_owned(),
        ),
        Err(error) => {
            section.refuse(name, format!("is {path:?}: {error}"), "the path of a file of UTF-8 text that can be read");
            None
        }
    }
}

/// Reads `[admin]`.
pub fn admin(section: &Section<'_>) -> Option<Admin> {
    let listen = section.value("listen", |text, _| values::listen(text));
    let token_file = section.optional("token_file", |text, _| token_file(section, text));
    let metrics_clients = section.count("metrics_clients");
    if let (Some(listen), Some(None)) = (listen, &token_file)
        && !is_loopback(listen)
    {
        section.refuse(
            "listen",
            format!("is \"{listen}\", beyond loopback, and there is no admin.token_file"),
            "a loopback address such as \"127.0.0.1:9464\", or any address together with admin.token_file",
        );
        return None;
    }
    let metrics_clients = usize::try_from(metrics_clients?).ok()?;
    Some(Admin { listen: listen?, token_file: token_file?, metrics_clients })
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn token_file(section: &Section<'_>, path: &str) -> Result<PathBuf, values::Why> {
    let file = TokenFile::read(Path::new(path)).map_err(|why| why.to_string())?;
    if let Some(mode) = file.loose_mode {
        section.warn(
            "token_file",
            format!("is {path:?}, which more users than its owner may write or all may read (mode {mode:04o})"),
            format!("chmod 600 {path}, or 640 with a group of its own"),
        );
    }
    Ok(PathBuf::from(path))
}

/// Reads `[log]`.
pub fn log(section: &Section<'_>) -> Option<LogFormat> {
    section.choice("format", &[("auto", LogFormat::Auto), ("text", LogFormat::Text), ("json", LogFormat::Json)])
}
