//! A Prometheus of the test's own, with our configuration and rules, that scrapes every second.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use yaml_serde::Value as Yaml;

use crate::support::own_broker::free_port;
use crate::support::process::Process;
use crate::support::repository::{read, root};
use crate::support::wait::wait_until;

/// Between two scrapes, and between two evaluations of the rules.
pub const SCRAPE: Duration = Duration::from_secs(1);

pub struct Prometheus {
    // Ended before its directory goes.
    process: Process,
    url: String,
    dir: TempDir,
    agent: ureq::Agent,
}

impl Prometheus {
    /// Starts it; it goes on to scrape these addresses as the job `watermaster`, whether or not somebody listens there yet.
    pub fn start(addresses: &[String]) -> Prometheus {
        let dir = tempfile::Builder::new().prefix("watermaster-prometheus-").tempdir().expect("a temporary directory");
        let own = format!("127.0.0.1:{}", free_port());
        lay_out(&dir, &own, addresses);
        let log = File::create(dir.path().join("log")).expect("the log can be written");
        let mut command = Command::new("prometheus");
        command.current_dir(dir.path()).args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"]);
        command.args([&format!("--web.listen-address={own}"), "--log.level=warn"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let agent =
            ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(Duration::from_secs(20)));
        let process = Process::start(&mut command);
        let mut prometheus =
            Prometheus { process, url: format!("http://{own}"), dir, agent: agent.build().new_agent() };
        wait_until("Prometheus to be ready", Duration::from_secs(30), || {
            let ended = prometheus.process.try_wait();
            assert!(ended.is_none(), "Prometheus ended with {ended:?}: {}", prometheus.log());
            prometheus
                .agent
                .get(format!("{}/-/ready", prometheus.url))
                .call()
                .is_ok_and(|answer| answer.status() == 200)
        });
        prometheus
    }

    /// The `data` of an answer of the API, or its error.
    pub fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value, String> {
        let request = self.agent.get(format!("{}/api/v1/{path}", self.url)).query_pairs(parameters.iter().copied());
        let mut answer = request.call().map_err(|why| why.to_string())?;
        let body = answer.body_mut().with_config().limit(100 << 20).read_to_string().map_err(|why| why.to_string())?;
        let mut body: Value = serde_json::from_str(&body).map_err(|why| format!("{why}: {body}"))?;
        if body["status"] == "success" { Ok(body["data"].take()) } else { Err(body["error"].to_string()) }
    }

    /// What it complained of.
    pub fn log(&self) -> String {
        read(&self.dir.path().join("log"))
    }
}

/// The repository's `prometheus/`, with what a test must have different: who is scraped, and how often.
fn lay_out(dir: &TempDir, own: &str, addresses: &[String]) {
    let mut config: Yaml = yaml_serde::from_str(&read(&root("prometheus/prometheus.yml"))).expect("it is YAML");
    let seconds = || Yaml::from(format!("{}s", SCRAPE.as_secs()));
    config["global"]["scrape_interval"] = seconds();
    config["global"]["evaluation_interval"] = seconds();
    for job in config["scrape_configs"].as_sequence_mut().expect("there are scrape_configs") {
        match job["job_name"].as_str() {
            Some("watermaster") => {
                job["scrape_interval"] = seconds();
                // The compose file's; there are no such names here.
                let fields = job.as_mapping_mut().expect("a job has fields");
                fields.remove("dns_sd_configs").expect("the compose file finds its replicas by name");
            }
            Some("prometheus") => job["static_configs"][0]["targets"][0] = Yaml::from(own),
            other => panic!("no job called {other:?} is known here"),
        }
    }
    let path = |name: &str| dir.path().join(name);
    fs::write(path("prometheus.yml"), yaml_serde::to_string(&config).expect("it is YAML")).expect("it can be written");
    std::os::unix::fs::symlink(root("prometheus/rules"), path("rules")).expect("the rules can be linked");
    fs::create_dir(path("targets")).expect("a folder");
    let targets: String = addresses.iter().map(|address| format!("    - {address}\n")).collect();
    fs::write(path("targets/local.yml"), format!("- targets:\n{targets}")).expect("it can be written");
}
