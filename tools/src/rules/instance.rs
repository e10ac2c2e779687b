//! The instance whose rules a command asks for or changes.

use std::fmt::Display;

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::Value;
use watermaster_api::{RuleView, RulesView};

use crate::cli::{Exit, Failure};
use crate::endpoint::{Endpoint, EndpointError, Reply, TokenArg, UrlArg, percent_encoded, sentence};

/// The instance, and the service of which the rules are.
#[derive(Debug, Args)]
pub struct InstanceArgs {
    #[command(flatten)]
    instance: UrlArg,
    #[command(flatten)]
    token: TokenArg,
    /// The service; may be omitted if there is only one
    #[arg(long, value_name = "NAME")]
    pub(super) service: Option<String>,
}

/// A command on rules failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RulesError {
    #[error(transparent)]
    Failure(#[from] Failure),
    #[error("{0}")]
    NotFound(String),
    #[error("{message}")]
    Refused { status: u16, message: String },
}

impl RulesError {
    pub(super) fn exit(&self) -> Exit {
        match self {
            RulesError::Failure(failure) => failure.exit,
            RulesError::Refused { status: 412, .. } => Exit::Changed,
            // A proxy answers 502 if the connection broke, perhaps after the request had gone through.
            RulesError::Refused { status: 502 | 504, .. } => Exit::Unknown,
            RulesError::NotFound(_) => Exit::No,
            RulesError::Refused { status: 404 | 500.., .. } => Exit::Unreachable,
            RulesError::Refused { .. } => Exit::Config,
        }
    }
}

/// A running instance, and the service that is meant.
pub(super) struct RulesInstance {
    pub(super) endpoint: Endpoint,
    pub(super) url: String,
    pub(super) service: String,
}

impl RulesInstance {
    pub(super) fn new(args: &InstanceArgs) -> Result<RulesInstance, RulesError> {
        let endpoint = args.token.read().and_then(|token| args.instance.endpoint(token.as_deref()))?;
        let mut target = RulesInstance { endpoint, url: args.instance.url.clone(), service: String::new() };
        target.service = match &args.service {
            Some(name) => name.clone(),
            None => target.only_service()?,
        };
        Ok(target)
    }

    fn only_service(&self) -> Result<String, RulesError> {
        let config = self.asked(self.endpoint.get("/v1/config"))?;
        let services = config["config"]["service"].as_array().cloned().unwrap_or_default();
        let names: Vec<&str> = services.iter().filter_map(|service| service["name"].as_str()).collect();
        match &names[..] {
            [only] => Ok((*only).to_owned()),
            names => {
                let names = names.join(", ");
                let problem = format!("--service is needed: the instance has {names}");
                Err(Failure::usage(problem).into())
            }
        }
    }

    /// Returns the JSON of an answer that is no refusal.
    pub(super) fn asked(&self, reply: Result<Reply, EndpointError>) -> Result<Value, RulesError> {
        let (status, text) = reply.map_err(|error| self.failed(error.exit(), error))?;
        let answer = serde_json::from_str::<Value>(&text);
        if status < 300 {
            // A rule that is deleted leaves nothing to say.
            let is_empty = text.trim().is_empty();
            return if is_empty { Ok(Value::Null) } else { answer.map_err(|why| self.stranger(why)) };
        }
        let answer = answer.unwrap_or_default();
        let mut message =
            sentence(&answer).map_or_else(|| format!("the answer has the status {status}"), str::to_owned);
        for error in answer["errors"].as_array().into_iter().flatten() {
            let [key, problem, allowed] = ["key", "problem", "allowed"].map(|part| error[part].as_str().unwrap_or(""));
            message += &format!("\n{key} {problem}\n    allowed: {allowed}");
        }
        // A proxy without its instance answers 404, too.
        match answer["error"].as_str() {
            Some("not_found") => Err(RulesError::NotFound(message)),
            _ if status == 404 && answer["services"].is_array() => {
                let known = answer["services"].as_array().into_iter().flatten().filter_map(Value::as_str);
                let known = known.collect::<Vec<_>>().join(", ");
                Err(Failure::usage(format_args!("--service: {message}; the instance has {known}")).into())
            }
            _ => Err(RulesError::Refused { status, message }),
        }
    }

    fn failed(&self, exit: Exit, problem: impl Display) -> RulesError {
        Failure::new(exit, format_args!("{}: {problem}", self.url)).into()
    }

    /// Tells that something else answers at the address, such as a proxy with its login page.
    fn stranger(&self, why: impl Display) -> RulesError {
        let problem = format!("no answer of a watermaster of this version: {why}");
        self.failed(Exit::Unreachable, problem)
    }

    /// Returns a path below that of the service.
    pub(super) fn path(&self, rest: &str) -> String {
        format!("/v1/services/{}/{rest}", percent_encoded(&self.service))
    }

    /// Reads a view of the service.
    pub(super) fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, RulesError> {
        let answer = self.asked(self.endpoint.get(&self.path(path)))?;
        serde_json::from_value(answer).map_err(|why| self.stranger(why))
    }

    /// Lists the rules, page by page.
    pub(super) fn rules(&self, query: &str) -> Result<Vec<RuleView>, RulesError> {
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let page: RulesView = self.read(&format!("rules?after={}{query}", percent_encoded(&after)))?;
            all.extend(page.rules);
            match page.next {
                Some(next) => after = next,
                None => return Ok(all),
            }
        }
    }

    /// Changes a rule, or shows what that would change. Without a stated version, that of the rule in force is stated.
    pub(super) fn change(
        &self, name: &str, body: Option<&Value>, if_match: Option<&str>, dry_run: bool, wait: Option<&str>,
    ) -> Result<Value, RulesError> {
        let query = match wait {
            _ if dry_run => "?dry_run=true".to_owned(),
            Some(wait) => format!("?wait={wait}"),
            None => String::new(),
        };
        let path = self.path(&format!("rules/{}{query}", percent_encoded(name)));
        let in_force = match if_match {
            Some(stated) => Some(stated.to_owned()),
            None if dry_run => None,
            None => self.version(name)?,
        };
        let is_missing = in_force.is_none() && body.is_none();
        let condition = match in_force {
            Some(version) => ("if-match", format!("\"{version}\"")),
            None if body.is_some() => ("if-none-match", "*".to_owned()),
            None => ("if-match", "*".to_owned()),
        };
        match self.endpoint.change(&path, body, (condition.0, &condition.1)) {
            Err(error) if !dry_run && error.may_have_arrived() => {
                let advice = "the change may be in force: see `watermaster rules get`, or repeat the command";
                Err(self.failed(Exit::Unknown, format_args!("{error}\n{advice}")))
            }
            reply => match self.asked(reply) {
                Err(RulesError::Refused { status: 412, message }) if is_missing => Err(RulesError::NotFound(message)),
                Ok(answer) if !dry_run && body.is_some() && answer["etag"].is_null() => {
                    Err(self.stranger("it tells no version of the rule"))
                }
                answer => answer,
            },
        }
    }

    /// The version of a rule of run time; `None` without one.
    fn version(&self, name: &str) -> Result<Option<String>, RulesError> {
        match self.asked(self.endpoint.get(&self.path(&format!("rules/{}", percent_encoded(name))))) {
            Ok(rule) if rule["origin"] == "run_time" => Ok(rule["etag"].as_str().map(str::to_owned)),
            Ok(_) | Err(RulesError::NotFound(_) | RulesError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;
    use std::thread;

    use serde_json::json;

    use super::*;

    /// The instance may have written the change before the connection broke: exit code 69 said that it had not.
    #[test]
    fn a_connection_that_breaks_leaves_the_outcome_of_a_change_unknown() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let target = RulesInstance { endpoint: Endpoint::new(&url, None), url, service: "kyc".to_owned() };
        let change = |dry_run| target.change("r", Some(&json!({})), Some("1-0"), dry_run, None).unwrap_err();
        let server = thread::spawn(move || {
            for _ in 0..2 {
                listener.accept().unwrap().0.read_exact(&mut [0]).unwrap();
            }
        });
        let (changed, dry_run) = (change(false), change(true));
        server.join().unwrap();
        assert_eq!(changed.exit() as u8, Exit::Unknown as u8, "{changed}");
        assert_eq!(dry_run.exit() as u8, Exit::Unreachable as u8, "{dry_run}");
        let refused = change(false);
        assert_eq!(refused.exit() as u8, Exit::Unreachable as u8, "{refused}");
    }

    /// A proxy answered with its login page: `rules put` said that the rule was deleted, and ended with 0.
    #[test]
    fn the_page_of_a_proxy_is_no_answer() {
        let (url, service) = ("http://127.0.0.1:1".to_owned(), "kyc".to_owned());
        let target = RulesInstance { endpoint: Endpoint::new(&url, None), url, service };
        let asked = |text: &str| target.asked(Ok((200, text.to_owned())));
        let error = asked("<html>").unwrap_err();
        assert_eq!(error.exit() as u8, Exit::Unreachable as u8, "{error}");
        assert_eq!(asked("").unwrap(), Value::Null, "a rule was deleted");
        assert_eq!(asked("{\"etag\": \"1-0\"}").unwrap()["etag"], "1-0");
    }

    /// Status 502 and 500 had the exit code of a wrong configuration.
    #[test]
    fn a_proxy_without_its_instance_is_no_wrong_configuration() {
        let exit = |status| RulesError::Refused { status, message: String::new() }.exit() as u8;
        let expected = [(400, Exit::Config), (412, Exit::Changed), (404, Exit::Unreachable), (500, Exit::Unreachable)];
        let unknown = [(502, Exit::Unknown), (503, Exit::Unreachable), (504, Exit::Unknown)];
        for (status, code) in expected.into_iter().chain(unknown) {
            assert_eq!(exit(status), code as u8, "{status}");
        }
    }
}
