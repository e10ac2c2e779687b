//! A scenario fitted to a service: the topic of each client, where its records carry its id, and its rates per second.

use std::time::Duration;

use super::scenario::{ClientLoad, Scenario};
use super::schedule::{Profile, RecordShape};
use watermaster_settings::config::{ConfigError, ConfigErrors, KeyPath};
use watermaster_settings::{ClientFrom, Service, Source};

/// The records to send.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    pub name: String,
    pub description: String,
    pub seed: u64,
    /// From the start to the last phase's end.
    pub length: Duration,
    /// Source topics of the service.
    pub topics: Vec<String>,
    pub clients: Vec<PlannedClient>,
}

/// A client of the plan.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedClient {
    pub load: ClientLoad,
    /// Index into [`Plan::topics`].
    pub topic: usize,
    /// The part of its records that carries its id.
    pub named_by: ClientFrom,
    /// The text of that part: the id, or a text in which a pattern finds the id.
    pub text: String,
    pub profile: Profile,
}

impl Plan {
    /// Fits a scenario to a service. The errors name every client that no source of the service admits.
    pub fn new(scenario: &Scenario, service: &Service) -> Result<Plan, ConfigErrors> {
        let per_second = service.policy.capacity as f64 / service.policy.cycle.as_secs_f64();
        let (mut clients, mut errors) = (Vec::new(), Vec::new());
        for (index, load) in scenario.clients.iter().enumerate() {
            match source_of(load, service) {
                Ok((topic, (named_by, text))) => {
                    let profile = Profile::new(&load.phases, per_second);
                    clients.push(PlannedClient { load: load.clone(), topic, named_by, text, profile });
                }
                Err((key, problem, allowed)) => {
                    let service = Some(service.name.clone());
                    let key = KeyPath::default().child("client").element(index).child(key);
                    errors.push(ConfigError { key, service, problem, allowed, origin: load.origin.clone() });
                }
            }
        }
        if !errors.is_empty() {
            return Err(ConfigErrors::new("scenario", errors));
        }
        Ok(Plan {
            name: scenario.name.clone(),
            description: scenario.description.clone(),
            seed: scenario.seed,
            length: scenario.length(),
            topics: service.sources.iter().map(|source| source.topic.clone()).collect(),
            clients,
        })
    }
}

impl PlannedClient {
    pub fn key(&self, shape: RecordShape) -> Option<Vec<u8>> {
        match self.named_by {
            ClientFrom::Key | ClientFrom::KeyPart(_) => Some(self.text.clone().into_bytes()),
            _ => (self.load.keys > 0).then(|| format!("{}-{}", self.load.id, shape.key).into_bytes()),
        }
    }

    /// Returns the value of a record: JSON of the given size, truncated where the client id does not depend on it.
    pub fn value(&self, shape: RecordShape, number: usize) -> Vec<u8> {
        let size = shape.value_bytes as usize;
        let named = if let ClientFrom::Json(path) = &self.named_by { json(path, &self.load.id) } else { String::new() };
        let mut value = format!("{{{named}\"loadNumber\":{number},\"loadFiller\":\"").into_bytes();
        value.resize(value.len().max(size.saturating_sub(END.len())), b'x');
        value.extend(END);
        if named.is_empty() {
            value.truncate(size);
        }
        value
    }

    /// Returns the header that names the client, if a header does.
    pub fn header(&self) -> Option<(&str, &str)> {
        match &self.named_by {
            ClientFrom::Header(name) | ClientFrom::HeaderPart(name, _) => Some((name, &self.text)),
            _ => None,
        }
    }
}

/// The end of each value.
const END: &[u8] = b"\"}";

/// Returns the member of an object, with a comma after it, in which the JSON pointer finds the client.
fn json(path: &[String], client: &str) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let object = path.iter().rev().fold(quoted(client), |inner, name| format!("{{{}:{inner}}}", quoted(name)));
    format!("{},", &object[1..object.len() - 1])
}

/// No source of the service admits the client: key, problem, allowed values.
type NotAdmitted = (&'static str, String, String);

/// Finds the source that a client sends to, and where its records carry its id there.
fn source_of(load: &ClientLoad, service: &Service) -> Result<(usize, (ClientFrom, String)), NotAdmitted> {
    if service.sources.is_empty() {
        let problem = format!("is {:?}, and no topic of the cluster matches {}", load.id, service.sources_text());
        return Err(("id", problem, "a scenario for a service with a source".to_owned()));
    }
    // A group is told by its topic only.
    let (group, id) = match load.id.split_once('/') {
        Some((group, id)) if service.group_from.first() == Some(&ClientFrom::Topic) => (Some(group), id),
        _ => (None, load.id.as_str()),
    };
    let is_of_group = |source: &Source| group.is_none_or(|group| source.client.as_deref() == Some(group));
    let sources = || service.sources.iter().enumerate().filter(|(_, source)| is_of_group(source));
    let ways = || service.sources.iter().map(|source| source.topic.as_str()).collect::<Vec<_>>().join(" or ");
    let cannot = |source: &Source| {
        let problem = format!("{:?} can't tell there that the client is {:?}", source.topic, load.id);
        ("topic", problem, "a source for this client, or a client_from with header, json or key".to_owned())
    };
    if let Some(topic) = &load.topic {
        let found = sources().find(|(_, source)| source.topic == *topic);
        let (index, source) = found.ok_or_else(|| ("topic", format!("is {topic:?}, no source of it"), ways()))?;
        return named_by(&service.client_from, source, id).map(|way| (index, way)).ok_or_else(|| cannot(source));
    }
    // A source of the client's own is preferred, then one that names the client, then any that admits it.
    let rank = |source: &Source| match &source.allowed_clients {
        _ if source.client.as_deref() == Some(id) => Some(0),
        Some(allowed) => allowed.iter().any(|one| one == id).then_some(1),
        None => Some(2),
    };
    let usable = sources()
        .filter_map(|(index, source)| Some((rank(source)?, index, named_by(&service.client_from, source, id)?)));
    usable.min_by_key(|(rank, ..)| *rank).map(|(_, index, way)| (index, way)).ok_or_else(|| {
        let problem = format!("is {:?}, which no source admits", load.id);
        let mut known: Vec<_> = sources().filter_map(|(_, source)| source.allowed_clients.clone()).flatten().collect();
        known.extend(sources().filter_map(|(_, source)| source.client.clone()));
        known.sort();
        known.dedup();
        ("id", problem, format!("one of {}; or name a topic, to see it rejected", known.join(", ")))
    })
}

/// Returns the first rule of `client_from` that applies to this source, with the text for it, if it can yield `client`.
fn named_by(ways: &[ClientFrom], source: &Source, client: &str) -> Option<(ClientFrom, String)> {
    // A value of this tool names no schema, so places that need one pass on.
    let applies = |way: &&ClientFrom| match way {
        ClientFrom::Schema(..) => false,
        ClientFrom::Topic => source.client.is_some(),
        _ => true,
    };
    let way = ways.iter().find(applies)?;
    let text = match way {
        ClientFrom::Topic if source.client.as_deref() != Some(client) => None,
        ClientFrom::KeyPart(pattern) | ClientFrom::HeaderPart(_, pattern) => {
            let mut texts = ENDS.iter().map(|end| format!("{client}{end}"));
            texts.find(|text| pattern.find(text.as_bytes()) == Some(client.as_bytes()))
        }
        _ => Some(client.to_owned()),
    };
    Some((way.clone(), text?))
}

/// The text behind a client id that is tried where a pattern finds the id.
const ENDS: [&str; 8] = ["", ":0", "-0", "/0", ".0", "_0", "|0", "#0"];

#[cfg(test)]
pub mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use watermaster_settings::client_id::{Fields, HeaderLookup, Identity, NoSchemas, identify};

    /// Builds a service that takes 100 records per second.
    pub fn service(client_from: &str, sources: &str) -> Service {
        let text = format!(
            "[[service]]\nname = \"kyc\"\ntarget = \"out\"\ndead_letter = \"dead\"\ncapacity = 1000\ncycle = \"10s\"\n\
             client_from = {client_from}\n{sources}"
        );
        crate::cli::settings(&text).services.remove(0)
    }

    /// Builds the plan of a scenario for a service with one open source.
    pub fn plan(scenario: &str) -> Plan {
        let scenario = Scenario::parse(scenario, Path::new("s.toml")).unwrap();
        Plan::new(&scenario, &service("[\"header:client-id\"]", OPEN)).unwrap()
    }

    const OPEN: &str = "[[service.source]]\ntopic = \"in\"\n";
    const TWO: &str = "[[service.source]]\ntopic = \"first\"\nclient = \"a\"\nallowed_clients = [\"a\"]\n\
                       [[service.source]]\ntopic = \"second\"\nclient = \"b\"\n";

    fn load(id: &str, topic: Option<&str>) -> Scenario {
        let topic = topic.map(|topic| format!("topic = {topic:?}\n")).unwrap_or_default();
        let phase = "[[client.phase]]\nkind = \"steady\"\nrate = \"50%\"\nfor = \"10s\"\n";
        Scenario::parse(&format!("[[client]]\nid = {id:?}\n{topic}{phase}"), Path::new("s.toml")).unwrap()
    }

    fn entrance_of(
        client_from: &str, sources: &str, id: &str, topic: Option<&str>,
    ) -> Result<(String, ClientFrom), String> {
        let plan = Plan::new(&load(id, topic), &service(client_from, sources)).map_err(|errors| errors.to_string())?;
        let client = &plan.clients[0];
        Ok((plan.topics[client.topic].clone(), client.named_by.clone()))
    }

    #[test]
    fn a_client_finds_its_source() {
        let header = || ClientFrom::Header("id".to_owned());
        let first = |way| Ok(("first".to_owned(), way));
        let second = |way| Ok(("second".to_owned(), way));
        assert_eq!(entrance_of("[\"header:id\"]", TWO, "a", None), first(header()));
        assert_eq!(entrance_of("[\"header:id\"]", TWO, "b", None), second(header()));
        assert_eq!(entrance_of("[\"header:id\"]", TWO, "c", None), second(header()));
        assert_eq!(entrance_of("[\"header:id\"]", TWO, "c", Some("first")), first(header()));
        assert_eq!(entrance_of("[\"topic\", \"header:id\"]", TWO, "b", None), second(ClientFrom::Topic));
        assert_eq!(entrance_of("[\"key\", \"topic\"]", TWO, "b", None), second(ClientFrom::Key));
    }

    #[test]
    fn a_client_without_a_source_is_an_error() {
        let told = |from, id, topic| entrance_of(from, TWO, id, topic).unwrap_err();
        let error = told("[\"topic\"]", "c", None);
        assert!(error.contains("client[0].id (service kyc)") && error.contains("one of a, b"), "{error}");
        assert!(error.contains("s.toml:1"), "{error}");
        assert!(told("[\"topic\"]", "c", Some("second")).contains("can't tell there"));
        assert!(told("[\"topic\"]", "a", Some("third")).contains("allowed: first or second"));
        assert!(told("[\"key:^x-(.)\"]", "a", Some("first")).contains("can't tell there"));
    }

    #[test]
    fn percents_are_of_the_capacity_per_second() {
        let plan = Plan::new(&load("a", None), &service("[\"key\"]", OPEN)).unwrap();
        assert_eq!(plan.clients[0].profile.total, 500.0);
    }

    struct Sent<'a>(Option<(&'a str, &'a str)>, Option<Vec<u8>>, Vec<u8>);

    impl Fields for Sent<'_> {
        fn header(&self, name: &str) -> HeaderLookup<'_> {
            let value = self.0.filter(|(found, _)| *found == name).map(|(_, value)| value.as_bytes());
            value.map_or(HeaderLookup::Absent, |value| HeaderLookup::Once(Some(value)))
        }

        fn key(&self) -> Option<&[u8]> {
            self.1.as_deref()
        }

        fn value(&self) -> Option<&[u8]> {
            Some(&self.2)
        }
    }

    proptest! {
        #[test]
        fn the_throttler_finds_the_client(
            id in "[a-zA-Z0-9 \"\\\\é]{1,20}",
            way in prop::sample::select(vec![
                "header:x", "header:x:^(.*)/", "json:/a~1b/c", "json:/client", "key", "key:^([^:]+):", "topic",
            ]),
            value_bytes in 0..400_u32,
        ) {
            let client = serde_json::Value::from(id.as_str());
            let sources = format!("[[service.source]]\ntopic = \"in\"\nclient = {client}\n");
            let service = service(&format!("[{way:?}]"), &sources);
            let mut scenario = load("a", None);
            scenario.clients[0].id.clone_from(&id);
            let plan = Plan::new(&scenario, &service).unwrap();
            let client = &plan.clients[0];
            let shape = RecordShape { value_bytes, key: 3 };
            let value = client.value(shape, 17);
            if !way.starts_with("json") {
                prop_assert_eq!(value.len(), value_bytes as usize);
            }
            let sent = Sent(client.header(), client.key(shape), value);
            let found = identify(&service.client_from, &sent, &service.sources[0], &NoSchemas);
            prop_assert!(matches!(&found, Identity::Client(name) if *name == id), "{found:?}");
        }
    }
}
