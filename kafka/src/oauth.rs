//! Tokens for the mechanism OAUTHBEARER that this program makes. With `sasl.oauthbearer.method = "oidc"` librdkafka
//! fetches them itself.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{collections::BTreeMap, error::Error, thread};

use parking_lot::Mutex;
use rdkafka::client::{Client, ClientContext, OAuthToken};
use rdkafka::config::ClientConfig;
use watermaster_settings::config::ClientRefused;

use crate::{ffi, msk, msk::MSK};

/// The property that chooses a source of tokens.
const CONFIG: &str = "sasl.oauthbearer.config";

/// A source of tokens.
struct TokenSource {
    /// The text that begins `sasl.oauthbearer.config` if tokens are to come from this source.
    begins: &'static str,
    /// Makes a token, as the rest of `sasl.oauthbearer.config` says.
    token: fn(&str) -> Result<OAuthToken, Box<dyn Error>>,
    /// The purpose of the source and the properties that choose it, for errors.
    allowed: &'static str,
    /// The error for people if there is no token, or if the brokers do not accept it.
    advice: &'static str,
}

/// All sources.
const SOURCES: &[TokenSource] = &[TokenSource {
    begins: MSK,
    token: |region| Ok(msk::token(region)?),
    allowed: "for Amazon MSK, sasl.oauthbearer.config = \"aws-msk-iam region=REGION\"",
    advice: "there is no token, or it is not accepted: check the AWS credentials, the region in \
            sasl.oauthbearer.config, and the policy of the role",
}];

/// Returns the source that `sasl.oauthbearer.config` chooses, and the rest of that text.
fn source(config: &str) -> Option<(&'static TokenSource, &str)> {
    SOURCES.iter().find_map(|source| Some((source, config.strip_prefix(source.begins)?)))
}

/// Makes a token as `sasl.oauthbearer.config` says.
fn made(config: &str) -> Result<OAuthToken, Box<dyn Error>> {
    let (source, rest) = source(config).ok_or("sasl.oauthbearer.config names no source of tokens")?;
    (source.token)(rest.trim())
}

/// A new token is fetched as soon as a client asks for one this long before the last one ends.
const RENEW_BEFORE: Duration = Duration::from_secs(300);
/// The life that a client is told of a token that is being renewed. librdkafka asks again after 80 % of it.
const TOLD_LIFE: Duration = Duration::from_millis(12_500);

/// The token that `sasl.oauthbearer.config` asks for, for all clients of the process. Its source may take seconds, for
/// which the thread that polls a client must not wait.
struct SharedToken {
    config: String,
    make: fn(&str) -> Result<OAuthToken, Box<dyn Error>>,
    state: Mutex<TokenState>,
}

#[derive(Default)]
struct TokenState {
    /// The last token: its text, its principal, and its end since 1970.
    last: Option<(String, String, Duration)>,
    /// The reason why there is no newer one.
    problem: String,
    is_fetching: bool,
}

impl TokenState {
    /// Returns the last token, and the rest of its life.
    fn token(&self, now: Duration) -> Option<(OAuthToken, Duration)> {
        let (token, principal_name, end) = self.last.clone()?;
        let left = end.checked_sub(now).filter(|left| !left.is_zero())?;
        let end = if left < RENEW_BEFORE { end.min(now + TOLD_LIFE) } else { end };
        Some((OAuthToken { token, principal_name, lifetime_ms: end.as_millis() as i64 }, left))
    }
}

impl SharedToken {
    /// Returns the token of a text in `sasl.oauthbearer.config`.
    fn of(config: &str) -> Arc<SharedToken> {
        static ALL: Mutex<Vec<Arc<SharedToken>>> = Mutex::new(Vec::new());
        let mut all = ALL.lock();
        let known = all.iter().find(|shared| shared.config == config).cloned();
        known.unwrap_or_else(|| {
            all.push(Arc::new(SharedToken::new(config, made)));
            Arc::clone(&all[all.len() - 1])
        })
    }

    fn new(config: &str, make: fn(&str) -> Result<OAuthToken, Box<dyn Error>>) -> SharedToken {
        SharedToken { config: config.to_owned(), make, state: Mutex::default() }
    }

    /// Returns the token without waiting for a new one, which a thread fetches if it is time.
    fn get(self: &Arc<SharedToken>, now: Duration) -> Result<OAuthToken, Box<dyn Error>> {
        let mut state = self.state.lock();
        let token = state.token(now);
        if !state.is_fetching && token.as_ref().is_none_or(|(_, left)| *left < RENEW_BEFORE) {
            let shared = Arc::clone(self);
            thread::Builder::new().name("kafka-token".to_owned()).spawn(move || shared.fetch())?;
            state.is_fetching = true;
        }
        token.map(|(token, _)| token).ok_or_else(|| state.problem.clone().into())
    }

    /// Returns the token. Waits for a new one if there is none.
    fn wait(self: &Arc<SharedToken>, now: Duration) -> Result<OAuthToken, Box<dyn Error>> {
        if self.state.lock().token(now).is_none() {
            self.fetch();
        }
        self.get(now)
    }

    fn fetch(&self) {
        let fetched = (self.make)(&self.config);
        let mut state = self.state.lock();
        state.is_fetching = false;
        match fetched {
            Ok(OAuthToken { token, principal_name, lifetime_ms }) => {
                let end = Duration::from_millis(u64::try_from(lifetime_ms).unwrap_or(0));
                state.last = Some((token, principal_name, end));
            }
            Err(problem) => {
                // Without a token, the clients report it.
                if state.last.is_some() {
                    tracing::warn!("there is no new token for Kafka: {problem}");
                }
                state.problem = problem.to_string();
            }
        }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns a token as `sasl.oauthbearer.config` says, without waiting for its source.
pub(super) fn token(config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
    SharedToken::of(config.unwrap_or_default()).get(now())
}

/// Returns the problem and what is allowed if nothing makes the tokens that these properties ask for.
pub(super) fn missing_tokens(properties: &BTreeMap<String, String>) -> Option<ClientRefused> {
    let is = |name: &str, value: &str| properties.get(name).is_some_and(|found| found.eq_ignore_ascii_case(value));
    let asks = is("sasl.mechanism", "OAUTHBEARER") || is("sasl.mechanisms", "OAUTHBEARER");
    if !asks || is("sasl.oauthbearer.method", "oidc") || advice(properties).is_some() {
        return None;
    }
    let allowed: Vec<_> = SOURCES.iter().map(|source| source.allowed).collect();
    Some(ClientRefused {
        problem: "nothing makes tokens for sasl.mechanism = OAUTHBEARER".to_owned(),
        allowed: format!("sasl.oauthbearer.method = \"oidc\" or, {}", allowed.join(" or, ")),
    })
}

/// Returns the advice of the source that these properties choose, or `None` if they choose none of this program's.
pub(super) fn advice(properties: &BTreeMap<String, String>) -> Option<&'static str> {
    source(properties.get(CONFIG)?).map(|(source, _)| source.advice)
}

/// Gives a new client its first token, if these properties ask for one that this program makes. The client asks for
/// it in an event, too. But not all clients are polled before they connect, and rdkafka's admin client takes no such
/// events.
pub(super) fn give_first_token<C: ClientContext>(client: &Client<C>, config: &ClientConfig) {
    let Some(config) = config.get(CONFIG).filter(|config| source(config).is_some()) else { return };
    ffi::give_token(client, SharedToken::of(config).wait(now()));
}

/// Lets the context of a client make tokens when librdkafka asks for them.
macro_rules! makes_tokens {
    () => {
        const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

        fn generate_oauth_token(
            &self, config: Option<&str>,
        ) -> Result<rdkafka::client::OAuthToken, Box<dyn std::error::Error>> {
            crate::oauth::token(config)
        }
    };
}
pub(crate) use makes_tokens;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    /// The bug: the thread of an engine waited for slow credentials, whenever its client needed another token.
    #[test]
    fn no_client_waits_for_a_new_token_while_the_last_one_is_good() {
        static GATE: Mutex<()> = Mutex::new(());
        static MADE: AtomicI64 = AtomicI64::new(0);
        let make = |_: &str| {
            let _open = GATE.lock();
            let number = MADE.fetch_add(1, Ordering::Relaxed) + 1;
            let principal_name = String::new();
            Ok(OAuthToken { token: number.to_string(), principal_name, lifetime_ms: number * 900_000 })
        };
        let (shared, at) = (Arc::new(SharedToken::new("", make)), Duration::from_secs);
        let shown = |token: OAuthToken| (token.token, token.lifetime_ms);
        assert_eq!(shown(shared.wait(at(0)).unwrap()), ("1".to_owned(), 900_000));
        let closed = GATE.lock();
        assert_eq!(shown(shared.get(at(600)).unwrap()), ("1".to_owned(), 900_000));
        assert_eq!(shown(shared.get(at(720)).unwrap()), ("1".to_owned(), 732_500));
        drop(closed);
        while shared.state.lock().is_fetching {
            thread::yield_now();
        }
        assert_eq!(shown(shared.get(at(730)).unwrap()), ("2".to_owned(), 1_800_000));
    }
}
