//! Records that their clients send again after a rejection.

use std::{collections::BTreeMap, time::Duration};

use watermaster_core::units::Time;

use super::tally::SimulatedAttempt;
use crate::load::scenario::RetryPolicy;

/// The longest wait between two attempts, unless the first wait is longer; also the default of a scenario.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
const MAX_ATTEMPTS: u32 = 100;

/// The treatment of records that were sent again after a rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retries {
    /// As recorded; those of a scenario follow its rules.
    Keep,
    /// Left out.
    Drop,
    /// Recorded ones are left out. A record that is rejected here comes back.
    Model(RetryPolicy),
}

/// Parses a treatment of retries.
pub fn retries(text: &str) -> Result<Retries, &'static str> {
    let model = || {
        let (backoff, attempts) = text.strip_prefix("model:")?.split_once(',')?;
        let backoff = humantime::parse_duration(backoff.trim()).ok()?;
        let attempts = attempts.trim().parse().ok().filter(|attempts| (2..=MAX_ATTEMPTS).contains(attempts))?;
        let allowed = !backoff.is_zero() && backoff <= Duration::from_secs(24 * 3600);
        allowed.then(|| Retries::Model(RetryPolicy { backoff, max_backoff: backoff.max(MAX_BACKOFF), attempts }))
    };
    let parsed = match text {
        "keep" => Some(Retries::Keep),
        "drop" => Some(Retries::Drop),
        _ => model(),
    };
    parsed.ok_or("allowed: keep, drop or model:BACKOFF,ATTEMPTS such as model:500ms,5; 2 to 100 attempts")
}

/// Records on their way back.
#[derive(Debug, Default)]
pub struct Returning {
    /// By time, and among equal times in the order of their rejections.
    attempts: BTreeMap<(Time, u64), SimulatedAttempt>,
    rejections: u64,
}

impl Returning {
    /// Adds the next attempt after one that was rejected at `now`; false if the client gives up.
    pub fn add(&mut self, policy: Option<RetryPolicy>, attempt: &SimulatedAttempt, now: Time) -> bool {
        let Some(wait) = policy.and_then(|policy| policy.wait_after(attempt.number)) else { return false };
        let next = SimulatedAttempt { number: attempt.number + 1, arrived: now + wait, ..*attempt };
        self.attempts.insert((next.arrived, self.rejections), next);
        self.rejections += 1;
        true
    }

    /// Returns the time of the next attempt.
    pub fn due(&self) -> Option<Time> {
        self.attempts.first_key_value().map(|((due, _), _)| *due)
    }

    /// Takes the next attempt if it is due at `end` or earlier.
    #[inline]
    pub fn pop(&mut self, end: Time) -> Option<SimulatedAttempt> {
        let next = self.attempts.first_entry().filter(|next| next.key().0 <= end)?;
        Some(next.remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_kept_dropped_or_modelled() {
        assert_eq!(retries("keep"), Ok(Retries::Keep));
        assert_eq!(retries("drop"), Ok(Retries::Drop));
        let Ok(Retries::Model(policy)) = retries("model:2s, 4") else { panic!("it is a model") };
        assert_eq!(
            [1, 2, 3, 4].map(|number| policy.wait_after(number).map(|wait| wait.as_secs())),
            [Some(2), Some(4), Some(8), None]
        );
        for wrong in ["", "model", "model:2s", "model:0s,3", "model:2s,1", "model:2s,101", "model:2,3", "model:2days,3"]
        {
            assert!(retries(wrong).is_err(), "{wrong}");
        }
    }
}
