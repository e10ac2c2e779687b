//! Sizes of offset maps compared with the entropy. `docs/design/offset-map.md` holds the table.

mod support;

use support::random::Random;
use watermaster_core::offset_map::{MapBudget, encode};
use watermaster_core::{offset_runs::OffsetRuns, tracker::Tracker};

const OFFSETS: u64 = 200_000;
/// Mean length of a burst of delayed records.
const BURST: f64 = 50.0;

/// A Markov chain of two states: the probability of a delayed record after a delayed one, and after a completed one.
struct Mix {
    name: &'static str,
    after_waiting: f64,
    after_completed: f64,
}

impl Mix {
    fn random(name: &'static str, held: f64) -> Mix {
        Mix { name, after_waiting: held, after_completed: held }
    }

    fn bursts(name: &'static str, held: f64) -> Mix {
        let leaves = 1.0 / BURST;
        Mix { name, after_waiting: 1.0 - leaves, after_completed: leaves * held / (1.0 - held) }
    }

    /// Returns the entropy: the minimum number of bits per offset.
    fn entropy(&self) -> f64 {
        let binary = |p: f64| -p * p.log2() - (1.0 - p) * (1.0 - p).log2();
        let held = self.after_completed / (1.0 - self.after_waiting + self.after_completed);
        held * binary(self.after_waiting) + (1.0 - held) * binary(self.after_completed)
    }

    fn tracker(&self) -> Tracker {
        let mut random = Random(7);
        let mut runs = OffsetRuns::new();
        let mut waits = true;
        for offset in 1..OFFSETS as i64 {
            waits = random.unit() < if waits { self.after_waiting } else { self.after_completed };
            if !waits {
                runs.push(offset..offset + 1);
            }
        }
        Tracker::restore(0, &runs)
    }
}

fn mixes() -> [Mix; 7] {
    [
        Mix::random("1 % held, at random", 0.01),
        Mix::random("10 % held, at random", 0.10),
        Mix::random("50 % held, at random", 0.50),
        Mix::random("90 % held, at random", 0.90),
        Mix::bursts("1 % held, in bursts of 50", 0.01),
        Mix::bursts("10 % held, in bursts of 50", 0.10),
        Mix::bursts("50 % held, in bursts of 50", 0.50),
    ]
}

/// Checks the sizes of a mix and returns its line of the table.
fn row(mix: &Mix) -> String {
    let tracker = mix.tracker();
    let written = encode(MapBudget::Bytes(0), &tracker, 1, &[], None).expect_err("no map fits in 0 bytes").needed_bits;
    let per_offset = |bits: u64| bits as f64 / OFFSETS as f64;
    let (entropy, size, bound) = (mix.entropy(), per_offset(written), per_offset(tracker.bits_bound()));
    assert!(size <= 1.15 * entropy + per_offset(200), "{}: {size} bits, entropy {entropy}", mix.name);
    assert!(bound <= 1.25 * entropy + per_offset(200), "{}: bound {bound} bits, entropy {entropy}", mix.name);
    let reach = MapBudget::default().payload_bits() as f64 / bound / 1000.0;
    format!("| {} | {entropy:.4} | {size:.4} | {:.2} | {bound:.4} | {reach:.0} |", mix.name, size / entropy)
}

#[test]
fn sizes_are_near_the_entropy_and_as_documented() {
    let table: Vec<String> = mixes().iter().map(row).collect();
    let table = table.join("\n");
    println!("{table}");
    let document = include_str!("../../docs/design/offset-map.md");
    assert!(document.contains(&table), "docs/design/offset-map.md differs from:\n{table}");
}
