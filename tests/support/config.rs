//! A Watermaster configuration file, written from its parts.

use std::fmt::Write as _;

/// The last lines of [`Config::kafka`]: the shortest session that brokers allow, after which the partitions of a killed
/// instance are assigned anew.
pub const SHORT_SESSION: &str = "\n[kafka.properties]\n\"session.timeout.ms\" = \"6000\"";

/// One configuration file.
#[derive(Debug, Clone)]
pub struct Config {
    pub bootstrap: String,
    pub group: String,
    pub instance: &'static str,
    pub commit_interval: &'static str,
    /// Written down, since many tests send records before a service starts for the first time.
    pub start_from: Option<&'static str>,
    /// More lines of `[kafka]`.
    pub kafka: String,
    /// The admin address; port 0 selects a free port.
    pub listen: String,
    /// More lines of `[admin]`.
    pub admin: String,
    pub services: Vec<Service>,
    /// Variables of the program's environment.
    pub environment: Vec<(&'static str, String)>,
}

/// One `[[service]]`.
#[derive(Debug, Clone)]
pub struct Service {
    pub name: String,
    pub target: String,
    pub dead_letter: String,
    pub capacity: u64,
    pub cycle: &'static str,
    /// Each source topic with its client.
    pub sources: Vec<(String, String)>,
    /// More lines of `[[service]]`.
    pub keys: String,
    /// More tables of the service, such as `[service.shape]`.
    pub tables: String,
}

impl Config {
    pub fn new(bootstrap: &str, group: &str, services: Vec<Service>) -> Config {
        Config {
            bootstrap: bootstrap.to_owned(),
            group: group.to_owned(),
            instance: "only",
            commit_interval: "50ms",
            start_from: Some("earliest"),
            kafka: "delivery = \"at_least_once\"".to_owned(),
            listen: "127.0.0.1:0".to_owned(),
            admin: String::new(),
            services,
            environment: vec![],
        }
    }

    /// Returns the file's text.
    pub fn to_toml(&self) -> String {
        let start_from = self.start_from.map(|start| format!("start_from = {start:?}\n")).unwrap_or_default();
        let mut text = format!(
            "[kafka]\nbootstrap_servers = {:?}\ngroup_id = {:?}\ninstance_id = {:?}\ncommit_interval = {:?}\n{}{}\n\
             [admin]\nlisten = {:?}\n{}\n[log]\nformat = \"text\"\n",
            self.bootstrap,
            self.group,
            self.instance,
            self.commit_interval,
            start_from,
            self.kafka,
            self.listen,
            self.admin
        );
        for service in &self.services {
            service.write(&mut text);
        }
        text
    }
}

impl Service {
    fn write(&self, text: &mut String) {
        // A short silence: the part of an instance that was killed is idle for as long.
        write!(
            text,
            "\n[[service]]\nname = {:?}\ntarget = {:?}\ndead_letter = {:?}\ncapacity = {}\ncycle = {:?}\n\
             group_silence = \"3s\"\n{}\n{}\n",
            self.name, self.target, self.dead_letter, self.capacity, self.cycle, self.keys, self.tables
        )
        .expect("writing to a String does not fail");
        for (topic, client) in &self.sources {
            writeln!(text, "[[service.source]]\ntopic = {topic:?}\nclient = {client:?}")
                .expect("writing to a String does not fail");
        }
    }
}
