//! The test's own Prometheus, with the repository's configuration and rules.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use yaml_serde::Value as Yaml;

use crate::support::repository::{read, root};
use crate::{support::own_broker::free_port, support::process::Process, support::wait::wait_until};

/// The interval of tests that ask about single seconds.
pub const SCRAPE: Duration = Duration::from_secs(1);

pub struct Prometheus {
    // Declared before `dir`, so that the process ends before its directory is removed.
    process: Process,
    pub url: String,
    dir: TempDir,
    agent: ureq::Agent,
}

impl Prometheus {
    /// Starts Prometheus. It scrapes these addresses as the job `watermaster`, even before an instance listens there.
    /// `interval` replaces the configuration's intervals between scrapes and between evaluations of rules.
    pub fn start(addresses: &[String], interval: Option<Duration>) -> Prometheus {
        let dir = tempfile::Builder::new().prefix("watermaster-prometheus-").tempdir().expect("a temporary directory");
        let own = format!("127.0.0.1:{}", free_port());
        lay_out(&dir, &own, addresses, interval);
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

    /// Calls the API; returns the `data` of the answer, or its error.
    pub fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value, String> {
        let request = self.agent.get(format!("{}/api/v1/{path}", self.url)).query_pairs(parameters.iter().copied());
        let mut answer = request.call().map_err(|why| why.to_string())?;
        let body = answer.body_mut().with_config().limit(100 << 20).read_to_string().map_err(|why| why.to_string())?;
        let mut body: Value = serde_json::from_str(&body).map_err(|why| format!("{why}: {body}"))?;
        if body["status"] == "success" { Ok(body["data"].take()) } else { Err(body["error"].to_string()) }
    }

    /// Returns the log.
    pub fn log(&self) -> String {
        read(&self.dir.path().join("log"))
    }
}

/// Copies the repository's `prometheus/`, with the test's own scrape targets and interval.
fn lay_out(dir: &TempDir, own: &str, addresses: &[String], interval: Option<Duration>) {
    let mut config: Yaml =
        yaml_serde::from_str(&read(&root("prometheus/prometheus.yml"))).expect("prometheus.yml is YAML");
    let seconds = interval.map(|interval| Yaml::from(format!("{}s", interval.as_secs())));
    let shorten = |table: &mut Yaml, key: &str| table[key] = seconds.clone().unwrap_or_else(|| table[key].clone());
    shorten(&mut config["global"], "scrape_interval");
    shorten(&mut config["global"], "evaluation_interval");
    for job in config["scrape_configs"].as_sequence_mut().expect("scrape_configs is a list") {
        match job["job_name"].as_str() {
            Some("watermaster") => {
                shorten(job, "scrape_interval");
                // The service discovery of the compose file: its host names do not exist here.
                let fields = job.as_mapping_mut().expect("a job is a table");
                fields.remove("dns_sd_configs").expect("the job watermaster has dns_sd_configs");
            }
            Some("prometheus") => job["static_configs"][0]["targets"][0] = Yaml::from(own),
            other => panic!("this test does not know the job {other:?}"),
        }
    }
    let path = |name: &str| dir.path().join(name);
    fs::write(path("prometheus.yml"), yaml_serde::to_string(&config).expect("the configuration is valid YAML"))
        .expect("the file can be written");
    std::os::unix::fs::symlink(root("prometheus/rules"), path("rules")).expect("the rules can be linked");
    fs::create_dir(path("targets")).expect("the folder can be created");
    let targets: String = addresses.iter().map(|address| format!("    - {address}\n")).collect();
    let labels = "  labels: { cluster: the-cluster, namespace: the-namespace }\n";
    fs::write(path("targets/local.yml"), format!("- targets:\n{targets}{labels}")).expect("the file can be written");
}
