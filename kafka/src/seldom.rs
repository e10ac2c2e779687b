//! What may happen with each record or each attempt is logged now and then, not each time.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The same thing is told again after this long at the earliest. Metrics count every time.
pub const AGAIN: Duration = Duration::from_secs(10);

/// Remembers what was told when, by the name of the kind of thing.
#[derive(Debug, Default)]
pub struct Seldom(HashMap<Cow<'static, str>, Told>);

#[derive(Debug)]
struct Told {
    at: Instant,
    left_out: u64,
}

impl Seldom {
    /// Says it, if it was not said lately. `say` is given how often it was left out since then, if it was: a field of that
    /// name belongs on the line.
    pub fn tell(&mut self, what: impl Into<Cow<'static, str>>, now: Instant, say: impl FnOnce(Option<u64>)) {
        let what = what.into();
        match self.0.get_mut(&what) {
            Some(told) if now.saturating_duration_since(told.at) < AGAIN => told.left_out += 1,
            before => {
                let left_out = before.map_or(0, |told| told.left_out);
                self.0.insert(what, Told { at: now, left_out: 0 });
                say((left_out > 0).then_some(left_out));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_repeats_is_told_seldom_and_none_is_forgotten(steps in prop::collection::vec((0..3_usize, 0..4_000_u64), 0..200)) {
            const KINDS: [&str; 3] = ["a", "b", "c"];
            let (mut seldom, mut now) = (Seldom::default(), Instant::now());
            let (mut told, mut waiting) = ([None::<Instant>; 3], [0_u64; 3]);
            for (kind, later) in steps {
                now += Duration::from_millis(later);
                let mut said = None;
                seldom.tell(KINDS[kind], now, |left_out| said = Some(left_out));
                let due = told[kind].is_none_or(|at| now - at >= AGAIN);
                prop_assert_eq!(said, due.then_some((waiting[kind] > 0).then_some(waiting[kind])));
                if due {
                    (told[kind], waiting[kind]) = (Some(now), 0);
                } else {
                    waiting[kind] += 1;
                }
            }
        }
    }
}
