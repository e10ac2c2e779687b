//! The controller beside recorded inputs and outputs of the simulated one (`record.py`).

use std::time::Duration;

use watermaster_core::pace::{Control, Offsets, Pace, PaceParams};
use watermaster_core::units::{Ratio, Time};

const RUNS: &str = include_str!("oracle.txt");
const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// An input without a signal.
const NO_SIGNAL: i64 = 9;
/// The polls from one recorded output to the next.
const POLLS_EACH: usize = 5;
const CYCLE: Duration = Duration::from_secs(10);

/// One recorded run.
struct Run<'a> {
    name: &'a str,
    control: Control,
    partitions: usize,
    params: PaceParams,
    poll: Duration,
    polls: usize,
    numbers: Box<dyn Iterator<Item = i64> + 'a>,
}

fn runs() -> impl Iterator<Item = Run<'static>> {
    let lines: Vec<&str> = RUNS.lines().collect();
    lines.chunks(2).map(|lines| run(lines[0], lines[1])).collect::<Vec<_>>().into_iter()
}

fn run(head: &'static str, data: &'static str) -> Run<'static> {
    let words: Vec<&str> = head.split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    let control = words[1].parse().unwrap();
    let params = PaceParams {
        control,
        capacity: number(3),
        floor: number(4),
        ceiling: number(5),
        cycle: CYCLE,
        max_behind: Duration::from_secs(2),
        interval: Duration::from_secs(5),
        signal_timeout: Duration::from_secs(300),
    };
    Run {
        name: words[0],
        control,
        partitions: number(2) as usize,
        params,
        poll: Duration::from_millis(number(6)),
        polls: number(7) as usize,
        numbers: Box::new(numbers(data)),
    }
}

/// Decodes base64 VLQ: five bits a digit, the lowest first, and the sign in the lowest bit.
fn numbers(data: &'static str) -> impl Iterator<Item = i64> {
    let mut digits = data.chars().map(|digit| DIGITS.find(digit).unwrap() as i64);
    std::iter::from_fn(move || {
        let (mut number, mut shift) = (0, 0);
        loop {
            let digit = digits.next()?;
            number |= (digit & 31) << shift;
            shift += 5;
            if digit & 32 == 0 {
                return Some(if number & 1 == 0 { number >> 1 } else { -(number >> 1) });
            }
        }
    })
}

/// Returns whether numbers in thousandths are equal but for rounding: a step of 10 % rounds by a thousandth, and a
/// hundred steps follow one another.
fn are_close(ours: u64, theirs: i64) -> bool {
    let theirs = theirs.unsigned_abs();
    ours.abs_diff(theirs) <= theirs / 2_000 + 3
}

/// Replays a run. Returns the number of outputs that were compared.
fn replay(run: Run<'_>) -> usize {
    let mut numbers = run.numbers;
    let mut next = || numbers.next().unwrap_or_else(|| panic!("{} ends early", run.name));
    let mut now = Time::ZERO + Duration::from_secs(1_000);
    let mut pace = Pace::new(run.params, now);
    let mut offsets: Vec<Offsets> =
        (0..run.partitions as i32).map(|partition| Offsets { partition, end: 0, committed: 0 }).collect();
    let (mut admitted, mut estimate, mut limit, mut compared) = (0, 0, 0, 0);
    for poll in 1..=run.polls {
        let waited = next();
        let before: i64 = offsets.iter().map(|one| one.end).sum();
        if waited != NO_SIGNAL {
            let first = next();
            offsets[0].end += first;
            offsets[1..].iter_mut().for_each(|one| one.end += first + next());
            let commits = next();
            let committed = offsets.iter_mut().enumerate().filter(|(at, _)| commits >> at & 1 == 1);
            committed.for_each(|(_, one)| one.committed += next());
        }
        admitted += next() + offsets.iter().map(|one| one.end).sum::<i64>() - before;
        match waited {
            NO_SIGNAL => pace.handle_no_signal(now),
            eighths => {
                let waited = Ratio::from_millionths(eighths as u32 * 125_000).unwrap();
                pace.handle_offsets(now, &offsets, admitted as u64, waited);
            }
        }
        if poll % POLLS_EACH == 0 {
            (estimate, limit) = (estimate + next(), limit + next());
            let (ours, at) = (pace.milli(), now.as_nanos() / 1_000_000 - 1_000_000);
            assert!(are_close(ours.0, estimate), "{} at {at} ms: {} for {estimate}", run.name, ours.0);
            if run.control == Control::Apply {
                assert!(are_close(ours.1, limit), "{} at {at} ms: limit {} for {limit}", run.name, ours.1);
            }
            compared += 1;
        }
        now = now + run.poll;
    }
    compared
}

#[test]
fn the_controller_equals_the_oracle() {
    let compared: usize = runs().map(replay).sum();
    assert!(compared > 5_000, "only {compared} outputs were compared");
}
