//! The groups of clients of one `[[service]]`.

use watermaster_core::policy::{ClientPattern, GroupPolicy};

use super::service::{MAX_COMPARED_CLIENTS, limit_of_table};
use super::values;
use crate::model::{ClientFrom, Source, SourcePattern};
use crate::read_struct;
use crate::reader::{Section, similar};

/// Reads the groups of clients. An id that two of them list would be in the one whose name sorts first.
pub fn groups(section: &Section<'_>) -> Option<Vec<GroupPolicy>> {
    let tables = section.named_tables("group");
    let mut listed: Vec<(String, &str)> = Vec::new();
    let mut groups = Vec::new();
    for (name, table) in &tables {
        let clients = table.list("clients", values::client);
        for id in clients.iter().flatten().flatten() {
            if let Some((_, other)) = listed.iter().find(|(known, _)| known == id) {
                table.refuse("clients", format!("lists {id:?}, as the group {other:?} does"), "each id in one group");
            }
            listed.push((id.clone(), name));
        }
        groups.push(one_group(section, name, table, clients));
    }
    groups.into_iter().collect()
}

fn one_group(
    service: &Section<'_>, name: &str, section: &Section<'_>, clients: Option<Option<Vec<String>>>,
) -> Option<GroupPolicy> {
    let name = values::client(name).ok().filter(|name| !name.contains('/'));
    if name.is_none() {
        service.refuse("group", "has a group with an unusable name", "a name of 1 to 128 bytes without /");
    }
    if clients == Some(None) && !service.is_set("group_from") {
        let allowed = "a list of clients, or group_from in the service";
        section.warn("clients", "is missing, and no record names its group: nothing is in this group", allowed);
    }
    read_struct!(GroupPolicy {
        weight: section.optional_value("weight").map(Option::unwrap_or_default),
        name: name,
        limits: limit_of_table(section).map(|limit| limit.into_iter().collect()),
        hold: Some(false),
        clients: clients.map(|ids| ids.unwrap_or_default().iter().map(|id| ClientPattern::new(id)).collect()),
    })
}

/// Reports tables that no record can reach, mostly for a typing error: that of a client in a group without a table, and
/// that of a group that is the client of no source although each record names its group by its source.
pub fn warn_of_unreachable(section: &Section<'_>, from: &[ClientFrom], sources: &[Source], patterns: &[SourcePattern]) {
    let (groups, clients) = (section.named_tables("group"), section.named_tables("client"));
    if from.is_empty() || clients.len() + sources.len() > MAX_COMPARED_CLIENTS {
        return;
    }
    let rules = section.tables("rule");
    let by_rules: Vec<String> =
        rules.iter().filter_map(|rule| rule.list("groups", values::client).flatten()).flatten().collect();
    let names = || groups.iter().map(|(name, _)| *name).chain(by_rules.iter().map(String::as_str));
    for (name, table) in &clients {
        if let Some((group, id)) = name.split_once('/').filter(|(group, _)| names().all(|known| known != *group)) {
            let better = match similar(group, names()) {
                Some(near) => format!("[service.client.{:?}]", format!("{near}/{id}")),
                None => format!("a table [service.group.{group:?}], too"),
            };
            table
                .warn_of_itself(format!("is of the group {group:?}, which no table has: no record reaches it"), better);
        }
    }
    // A pattern gives each topic that it will match a client of its own.
    if from.iter().any(|place| *place != ClientFrom::Topic)
        || patterns.iter().any(|pattern| pattern.source.client.is_none())
    {
        return;
    }
    let of_sources = sources.iter().chain(patterns.iter().map(|pattern| &pattern.source));
    let of_sources: Vec<&str> = of_sources.filter_map(|source| source.client.as_deref()).collect();
    for (name, table) in groups.iter().filter(|(name, _)| !of_sources.contains(name)) {
        let better = match similar(name, of_sources.iter().copied()) {
            Some(near) => format!("[service.group.{near:?}]"),
            None => "the client of a source: its topic, or its `client`".to_owned(),
        };
        table.warn_of_itself("is the group of no source: nothing is in it", better);
    }
}
