//! How fast counts grew between two answers.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

use super::fetch::{Client, Service};

/// A client and how fast its counts grow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub client: Client,
    /// `None`: nothing to compare with.
    pub per_second: Option<Rates>,
}

/// Records per second. While decisions are not enforced, those that would be delayed or rejected.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rates {
    pub admitted: f64,
    pub delayed: f64,
    pub rejected: f64,
}

/// What is compared: records since the instance started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub admitted: u64,
    pub delayed: u64,
    pub rejected: u64,
}

impl Counts {
    /// What was done for a client or, where nothing is enforced, would have been.
    pub fn of(client: &Client, enforce: bool) -> Counts {
        let (delayed, rejected) = match enforce {
            true => (client.delayed, &client.rejected),
            false => (client.shadow.delayed, &client.shadow.rejected),
        };
        Counts { admitted: client.admitted, delayed, rejected: rejected.values().sum() }
    }
}

impl Rates {
    /// `None` if no time has passed, or counting began anew: the instance started again, or had forgotten the client.
    pub fn between(before: Counts, now: Counts, elapsed: Duration) -> Option<Rates> {
        let seconds = elapsed.as_secs_f64();
        let rate = |before: u64, now: u64| now.checked_sub(before).map(|grown| grown as f64 / seconds);
        let rates = Rates {
            admitted: rate(before.admitted, now.admitted)?,
            delayed: rate(before.delayed, now.delayed)?,
            rejected: rate(before.rejected, now.rejected)?,
        };
        (seconds > 0.0).then_some(rates)
    }
}

/// The services, each client with its rates since another answer, which came so long before.
pub fn since(before: Option<(&[Service], Duration)>, now: Vec<Service>) -> Vec<Service<Row>> {
    let of = |service: Service| {
        let before = before.and_then(|(services, elapsed)| {
            let before = services.iter().find(|before| before.name == service.name)?;
            // Another mode counts other things, and a cycle that went back was counted by another process.
            (before.cycle <= service.cycle && before.enforce == service.enforce).then_some((before, elapsed))
        });
        let counted: Option<(HashMap<&str, Counts>, Duration)> = before.map(|(before, elapsed)| {
            let counts = |client| Counts::of(client, before.enforce);
            (before.clients.iter().map(|client| (client.name.as_str(), counts(client))).collect(), elapsed)
        });
        let enforce = service.enforce;
        service.map_clients(|client| {
            let per_second = counted.as_ref().and_then(|(counts, elapsed)| {
                // Who was not there before had counted nothing.
                let before = counts.get(client.name.as_str()).copied().unwrap_or_default();
                Rates::between(before, Counts::of(&client, enforce), *elapsed)
            });
            Row { client, per_second }
        })
    };
    now.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fetch::tests::service;
    use super::*;

    fn counts() -> impl Strategy<Value = Counts> {
        let count = 0..1_u64 << 40;
        (count.clone(), count.clone(), count).prop_map(|(admitted, delayed, rejected)| Counts {
            admitted,
            delayed,
            rejected,
        })
    }

    fn plus(a: Counts, b: Counts) -> Counts {
        Counts { admitted: a.admitted + b.admitted, delayed: a.delayed + b.delayed, rejected: a.rejected + b.rejected }
    }

    fn close(rate: f64, elapsed: Duration, grown: u64) -> bool {
        (rate * elapsed.as_secs_f64() - grown as f64).abs() <= 1e-9 * (grown as f64 + 1.0)
    }

    proptest! {
        #[test]
        fn a_rate_times_the_time_is_what_was_counted(before in counts(), grown in counts(), ms in 1..100_000_u64) {
            let elapsed = Duration::from_millis(ms);
            let rates = Rates::between(before, plus(before, grown), elapsed).unwrap();
            prop_assert!(close(rates.admitted, elapsed, grown.admitted));
            prop_assert!(close(rates.delayed, elapsed, grown.delayed));
            prop_assert!(close(rates.rejected, elapsed, grown.rejected));
        }

        #[test]
        fn counts_that_went_back_have_no_rate(before in counts(), now in counts(), ms in 0..100_000_u64) {
            let grew = before.admitted <= now.admitted && before.delayed <= now.delayed && before.rejected <= now.rejected;
            let rates = Rates::between(before, now, Duration::from_millis(ms));
            prop_assert_eq!(rates.is_some(), grew && ms > 0);
        }
    }

    #[test]
    fn a_client_that_is_new_began_at_0() {
        let (mut before, now) = (service(), service());
        before.clients.remove(1);
        let now = since(Some((&[before], Duration::from_secs(2))), vec![now]);
        let rates = |row: &Row| row.per_second.unwrap();
        assert_eq!(rates(&now[0].clients[0]).admitted, 0.0);
        assert_eq!(rates(&now[0].clients[1]).admitted, now[0].clients[1].client.admitted as f64 / 2.0);
    }

    #[test]
    fn after_a_restart_there_is_nothing_to_compare_with() {
        let (mut before, now) = (service(), service());
        before.cycle = now.cycle + 1;
        let now = since(Some((&[before], Duration::from_secs(1))), vec![now]);
        assert!(now[0].clients.iter().all(|row| row.per_second.is_none()));
    }

    #[test]
    fn passthrough_tells_what_would_be_delayed_and_rejected() {
        let mut before = service();
        before.enforce = false;
        let mut now = before.clone();
        now.clients[0].admitted += 10;
        now.clients[0].delayed += 100;
        now.clients[0].shadow.delayed += 4;
        *now.clients[0].shadow.rejected.entry("expired".to_owned()).or_default() += 2;
        let now = since(Some((&[before], Duration::from_secs(2))), vec![now]);
        let expected = Rates { admitted: 5.0, delayed: 2.0, rejected: 1.0 };
        assert_eq!(now[0].clients[0].per_second, Some(expected));
    }
}
