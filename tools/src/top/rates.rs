//! Rates: how fast counts grew between two answers.

use std::{collections::HashMap, time::Duration};

use serde::Serialize;

use super::fetch::{ClientStatus, ServiceStatus};

/// Records per second. In shadow mode, `delayed` and `rejected` are those that would have been.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rates {
    pub admitted: f64,
    pub delayed: f64,
    pub rejected: f64,
}

impl Rates {
    /// Compares counts of admitted, delayed and rejected records. Returns `None` if no time has passed, or a count went
    /// back: the instance restarted, or had forgotten the client.
    fn between(before: [u64; 3], now: [u64; 3], elapsed: Duration) -> Option<Rates> {
        let seconds = elapsed.as_secs_f64();
        let rate = |at: usize| now[at].checked_sub(before[at]).map(|growth| growth as f64 / seconds);
        let rates = Rates { admitted: rate(0)?, delayed: rate(1)?, rejected: rate(2)? };
        (seconds > 0.0).then_some(rates)
    }
}

/// Adds rates to the clients of `now`, compared with an earlier answer.
pub fn add(now: &mut [ServiceStatus], before: &[ServiceStatus], elapsed: Duration) {
    for service in now {
        let Some(before) = before.iter().find(|before| before.name == service.name) else { continue };
        // The counts of another mode can't be compared, nor those of another process: its cycles start anew.
        if before.cycle > service.cycle || before.enforce != service.enforce {
            continue;
        }
        let counts = |service: &ServiceStatus, client: &ClientStatus| {
            let decisions = service.decisions(client);
            [client.admitted, decisions.delayed, decisions.rejected_total()]
        };
        let earlier: HashMap<&str, [u64; 3]> =
            before.clients.iter().map(|client| (client.name.as_str(), counts(before, client))).collect();
        let rates = |client: &ClientStatus| {
            // The counts of a new client start at 0.
            let earlier = earlier.get(client.name.as_str()).copied().unwrap_or_default();
            Rates::between(earlier, counts(service, client), elapsed)
        };
        let rates: Vec<_> = service.clients.iter().map(rates).collect();
        service.clients.iter_mut().zip(rates).for_each(|(client, rates)| client.per_second = rates);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fetch::tests::service;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    proptest! {
        #[test]
        fn a_rate_times_the_time_is_the_growth(
            before in prop::array::uniform3(0..1_u64 << 40),
            growth in prop::array::uniform3(0..1_u64 << 40),
            ms in 1..100_000_u64,
        ) {
            let elapsed = Duration::from_millis(ms);
            let now = std::array::from_fn(|at| before[at] + growth[at]);
            let Rates { admitted, delayed, rejected } = Rates::between(before, now, elapsed).unwrap();
            for (rate, growth) in [admitted, delayed, rejected].into_iter().zip(growth) {
                prop_assert!((rate * elapsed.as_secs_f64() - growth as f64).abs() <= 1e-9 * (growth as f64 + 1.0));
            }
        }

        #[test]
        fn decreased_counts_have_no_rate(
            before in prop::array::uniform3(0..9_u64),
            now in prop::array::uniform3(0..9_u64),
            ms in 0..9_u64,
        ) {
            let grew = before.iter().zip(now).all(|(before, now)| *before <= now);
            prop_assert_eq!(Rates::between(before, now, Duration::from_millis(ms)).is_some(), grew && ms > 0);
        }
    }

    #[test]
    fn a_new_client_starts_at_0() {
        let (mut before, mut now) = (service(), [service()]);
        before.clients.remove(1);
        add(&mut now, &[before], 2 * SECOND);
        let rates: Vec<_> = now[0].clients.iter().map(|client| client.per_second.unwrap().admitted).collect();
        assert_eq!(rates, [0.0, 1_133.0, 0.0, 0.0]);
    }

    #[test]
    fn after_a_restart_there_are_no_rates() {
        let (mut before, mut now) = (service(), [service()]);
        before.cycle = now[0].cycle + 1;
        add(&mut now, &[before], SECOND);
        assert!(now[0].clients.iter().all(|client| client.per_second.is_none()));
    }

    #[test]
    fn shadow_mode_counts_records_that_would_be_delayed_or_rejected() {
        let mut before = service();
        before.enforce = false;
        let mut now = [before.clone()];
        let client = &mut now[0].clients[0];
        client.admitted += 10;
        client.enforced.delayed += 100;
        client.shadow.delayed += 4;
        *client.shadow.rejected.entry("expired".to_owned()).or_default() += 2;
        add(&mut now, &[before], 2 * SECOND);
        let expected = Rates { admitted: 5.0, delayed: 2.0, rejected: 1.0 };
        assert_eq!(now[0].clients[0].per_second, Some(expected));
    }
}
