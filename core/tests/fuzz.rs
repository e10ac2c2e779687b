//! Damaged and forged offset maps: reading one never panics, and never makes an uncompleted record count as completed.
//!
//! The suite runs for a few seconds; `scripts/fuzz` runs for as long as its arguments say.

mod sim;
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use std::{collections::BTreeSet, fmt::Write as _};

use support::forge::{self, Alphabet};
use support::random::Random;
use watermaster_core::offset_map::{
    AdmissionSlice, DecodeError, MAX_SPAN, MapBudget, OffsetMap, Unreadable, decode, encode,
};
use watermaster_core::offset_runs::OffsetRuns;
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::throttle::{Arrival, Sender, Throttle};
use watermaster_core::tracker::{Seen, Tracker};
use watermaster_core::units::{MAX_CAPACITY, Time};

/// Number of inputs in the suite.
const SMOKE: u64 = 400_000;
/// The largest budgets: no map is larger than a Kafka string.
const WIDEST: [MapBudget; 2] = [MapBudget::Chars(usize::MAX), MapBudget::Bytes(usize::MAX)];

/// Metadata and offset of a commit, with the map that they were made of.
struct Input {
    offset: i64,
    metadata: Vec<u8>,
    /// Set if the checksum was made valid.
    sealed: bool,
    written_at: i64,
    written: String,
    says: OffsetMap,
}

/// Counts of the results of reading.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    read: u64,
    foreign: u64,
    copied: u64,
    unreadable: u64,
    /// Unreadable although the checksum is valid.
    malformed: u64,
    /// Given to a service that takes over partitions.
    taken_over: u64,
    /// Damage that the 32-bit checksum does not detect: once in 2³² inputs.
    collisions: u64,
}

#[test]
fn damaged_and_forged_maps_do_no_harm() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seed = number("WATERMASTER_FUZZ_SEED").unwrap_or(1);
    let from = number("WATERMASTER_FUZZ_FROM").unwrap_or(0);
    let time = number("WATERMASTER_FUZZ_SECONDS").map(Duration::from_secs);
    println!("seed {seed}, from input {from}");
    let (began, mut counts, mut index, mut printed) = (Instant::now(), Counts::default(), from, Duration::ZERO);
    while time.map_or(index < from + SMOKE, |time| began.elapsed() < time) {
        (index..index + 1000).for_each(|index| try_one(seed, index, &mut counts));
        index += 1000;
        if began.elapsed() >= printed + Duration::from_secs(60) {
            printed = began.elapsed();
            println!("{:>4} s: {} inputs, {counts:?}", printed.as_secs(), index - from);
        }
    }
    println!("{} inputs in {:.1} s: {counts:?}", index - from, began.elapsed().as_secs_f32());
    assert!(counts.collisions <= 1 + ((index - from) >> 31), "too much damage passes the checksum: {counts:?}");
    let kinds = [counts.read, counts.foreign, counts.unreadable, counts.malformed];
    assert!(kinds.iter().all(|count| *count > 1000), "{counts:?}");
}

/// Tries the `index`-th input of a seed; the input depends only on these two.
fn try_one(seed: u64, index: u64, counts: &mut Counts) {
    let mut random = Random::stream(seed, index);
    let input = any_input(&mut random);
    if catch_unwind(AssertUnwindSafe(|| check(&input, &mut random, counts))).is_err() {
        panic!("input {index} of seed {seed} (scripts/fuzz --seed {seed} --from {index}):\n{}", shown(&input));
    }
}

fn shown(input: &Input) -> String {
    let mut text = format!("offset {}, {} bytes: ", input.offset, input.metadata.len());
    let _ = match std::str::from_utf8(&input.metadata) {
        Ok(metadata) => write!(text, "\"{}\"", metadata.escape_default()),
        Err(_) => write!(text, "b\"{}\"", input.metadata.escape_ascii()),
    };
    let _ = write!(text, "\nread as {:?}", decode(input.offset, &input.metadata));
    let _ = write!(text, "\nmade of \"{}\" at {}: {:?}", input.written.escape_default(), input.written_at, input.says);
    text
}

// ## Inputs

fn any_input(random: &mut Random) -> Input {
    let (offset, tracker, admitted) = any_state(random);
    let budget = random.one_of(&WIDEST);
    let slice_ms = random.one_of(&[1, 50, 1000]);
    let written = encode(budget, &tracker, slice_ms, &admitted, None).unwrap_or_default();
    let says = decode(offset, written.as_bytes()).unwrap_or_default();
    let mut input =
        Input { offset, metadata: written.clone().into_bytes(), sealed: false, written_at: offset, written, says };
    match random.below(9) {
        0 => input.metadata = any_bytes(random),
        1 => input.offset = random.one_of(&[offset ^ 1, offset.saturating_add(256), 0, i64::MAX, -1]),
        2..5 => (0..=random.below(4)).for_each(|_| damage(random, &mut input.metadata)),
        _ => forge(random, &mut input),
    }
    input
}

/// Builds a partition in any state, with its recent admissions.
fn any_state(random: &mut Random) -> (i64, Tracker, Vec<AdmissionSlice>) {
    let base = match random.below(4) {
        0 => random.below(3) as i64,
        1 => i64::MAX - random.magnitude(26) as i64,
        _ => random.magnitude(62) as i64,
    };
    let pairs = if random.once_in(50) { random.magnitude(12) } else { random.magnitude(5) };
    let longest = random.one_of(&[1, 3, 10, 18]);
    let mut runs = OffsetRuns::new();
    let mut end = base;
    for _ in 0..pairs {
        let start = end.saturating_add(1 + random.magnitude(longest) as i64);
        end = start.saturating_add(1 + random.magnitude(longest) as i64);
        if end.abs_diff(base) > MAX_SPAN {
            break;
        }
        runs.push(start..end);
    }
    let slices = if random.once_in(2) { 0 } else { random.magnitude(9) };
    let newest = random.magnitude(62) as i64;
    let slice = |_| AdmissionSlice { end_ms: newest - random.magnitude(15) as i64, admitted: random.magnitude(62) };
    let admitted = (0..slices).map(slice).collect();
    (base, Tracker::restore(base, &runs), admitted)
}

fn any_bytes(random: &mut Random) -> Vec<u8> {
    let prefixes: [&[u8]; 8] = [b"", b"w", b"wm", b"wm1", b"wm1c", b"wm1b", b"wm0b", b"wm1\xe3\x90\x80"];
    let mut bytes = random.one_of(&prefixes).to_vec();
    let narrow = random.once_in(2);
    for _ in 0..random.magnitude(10) {
        let byte = random.word() as u8;
        bytes.push(if narrow { byte & 63 | 64 } else { byte });
    }
    bytes
}

/// Makes one change to the text.
fn damage(random: &mut Random, text: &mut Vec<u8>) {
    let at = random.index(text.len() + 1);
    let to = (at + random.magnitude(8) as usize).min(text.len());
    match random.below(8) {
        0 | 1 if at < text.len() => text[at] ^= 1 << random.below(8),
        2 => text.truncate(at),
        3 => _ = text.drain(at..to),
        4 => {
            let piece = text[at..to].to_vec();
            let here = random.index(text.len() + 1);
            text.splice(here..here, piece);
        }
        5 => {
            let character = random.one_of(&['A', '_', '㐀', '一', '龥', '\u{E000}', '\u{F43F}', '\u{F440}', '𝄞', '\0']);
            text.splice(at..at, character.to_string().bytes());
        }
        6 => {
            let piece = any_bytes(random);
            text.splice(at..to, piece);
        }
        _ => text[at..to].reverse(),
    }
}

/// Replaces the contents or the text, under a valid checksum.
fn forge(random: &mut Random, input: &mut Input) {
    let (mut alphabet, mut bits) = forge::unseal(&input.written).unwrap_or((Alphabet::Narrow, Vec::new()));
    if random.once_in(4) {
        alphabet = random.one_of(&[Alphabet::Wide, Alphabet::Narrow]);
    }
    if random.once_in(4) {
        bits = header(random);
    }
    (0..random.below(5)).for_each(|_| damage_bits(random, &mut bits));
    let mut map = forge::map(alphabet, input.offset, &bits);
    if random.once_in(8) {
        let body_start = map.char_indices().nth(4 + alphabet.check_symbols()).map_or(map.len(), |(at, _)| at);
        let mut body = map.split_off(body_start).into_bytes();
        damage(random, &mut body);
        let version = random.one_of(&['1', '1', '1', '0', '2', 'x']);
        map = forge::seal(version, alphabet, input.offset, &String::from_utf8_lossy(&body));
    }
    input.metadata = map.into_bytes();
    input.sealed = true;
}

/// Builds a header with any values, followed by bits.
fn header(random: &mut Random) -> Vec<bool> {
    let number = |random: &mut Random, bits: u64| {
        let value = random.magnitude(bits);
        let width = 64 - value.leading_zeros();
        [(u64::from(width), 6), (value, width as usize)]
    };
    let slices = if random.once_in(2) { 0 } else { random.below(512) };
    let mut values = vec![(slices, 9)];
    if slices > 0 {
        values.extend(number(random, 63));
        values.extend(number(random, 63));
        values.push((random.below(64), 6));
        values.extend((0..slices).map(|_| (random.magnitude(20) & !1, 20)));
    }
    values.push((random.below(4), 2));
    values.extend(number(random, 30));
    let (low, high) = (random.below(32), random.below(32));
    values.extend([(low, 5), (high, 5)]);
    let fill = random.one_of(&[0, u64::MAX, 0xAAAA_AAAA_AAAA_AAAA, 1]);
    values.extend((0..random.magnitude(8)).map(|_| (if fill == 1 { random.word() } else { fill }, 64)));
    forge::bits_of(&values)
}

fn damage_bits(random: &mut Random, bits: &mut Vec<bool>) {
    let at = random.index(bits.len() + 1);
    let to = (at + random.magnitude(9) as usize).min(bits.len());
    match random.below(6) {
        0 | 1 if at < bits.len() => bits[at] = !bits[at],
        2 => bits.truncate(at),
        3 => _ = bits.drain(at..to),
        4 => {
            let piece: Vec<bool> = (0..random.magnitude(9)).map(|_| random.once_in(2)).collect();
            bits.splice(at..to, piece);
        }
        _ => {
            let ones = random.once_in(2);
            bits[at..to].fill(ones);
        }
    }
}

// ## Checks

fn check(input: &Input, random: &mut Random, counts: &mut Counts) {
    let untouched = input.offset == input.written_at && input.metadata == input.written.as_bytes();
    let map = match decode(input.offset, &input.metadata) {
        Ok(map) => map,
        Err(refused) => {
            assert!(!untouched || input.written.is_empty(), "a map that was just encoded is refused");
            assert!(!refused.to_string().is_empty());
            return match refused {
                DecodeError::Foreign { .. } => counts.foreign += 1,
                DecodeError::Copied { .. } => counts.copied += 1,
                DecodeError::HandedOver(_) => {}
                DecodeError::Unreadable(Unreadable::Malformed) => counts.malformed += 1,
                DecodeError::Unreadable(_) => counts.unreadable += 1,
            };
        }
    };
    counts.read += 1;
    if untouched {
        assert_eq!(map, input.says);
    } else if !input.sealed {
        counts.collisions += 1;
    }
    check_form(input, &map);
    let mut tracker = Tracker::restore(input.offset, &map.completed);
    if input.offset >= 0 {
        assert!(tracker.runs().eq(map.completed.iter()), "the tracker differs from its map");
        check_again(input.offset, &tracker, &map);
        check_reading(&mut tracker, &map.completed, random);
    }
    if random.once_in(8) {
        counts.taken_over += 1;
        check_takeover(input.offset, &map, random);
    }
}

/// Lets a service take over partitions with the map: it does not panic, and admissions that were never made block it
/// for one cycle at most.
fn check_takeover(offset: i64, map: &OffsetMap, random: &mut Random) {
    let cycle = Duration::from_millis(random.one_of(&[100, 1_000, 60_000]));
    let mut policy = sim::policy(random.one_of(&[1, 20, MAX_CAPACITY]), cycle);
    policy.mode = random.one_of(&[Mode::Shape, Mode::Reject]);
    policy.enforce = !random.once_in(4);
    let mut now = random.one_of(&[Time::ZERO, sim::START]);
    let mut throttle = Throttle::new(policy.clone(), now);
    throttle
        .handle_wall_clock(now, random.one_of(&[0, i64::MIN, i64::MAX, (sim::START.as_nanos() / 1_000_000) as i64]));
    let high = random.one_of(&[offset, i64::MAX, 0]);
    for partition in 0..3 {
        throttle.handle_assigned(now, partition, offset, map, high);
    }
    let changed = Policy {
        capacity: random.one_of(&[1, 7, MAX_CAPACITY]),
        cycle: cycle * random.one_of(&[1, 2]),
        ..policy.clone()
    };
    let mut next = offset.max(0);
    let mut read = |throttle: &mut Throttle, now: Time, count: i64| {
        for _ in 0..count {
            if next < i64::MAX - 1 {
                let sender = random.one_of(&[Sender::Client("a"), Sender::Client("b"), Sender::Anonymous]);
                throttle
                    .handle_record(now, &Arrival { partition: 0, offset: next, bytes: 100, sender, written_ms: None });
                next = next.saturating_add(1 + random.below(3) as i64);
            }
        }
        throttle.handle_timeout(now);
        while throttle.poll_action(now).is_some() {}
    };
    read(&mut throttle, now, 20);
    let _ = throttle.commit_without(now, 0, &[]);
    throttle.handle_revoked(1);
    let longest = changed.cycle;
    throttle.handle_policy(now, changed);
    throttle.handle_assigned(now, 1, offset, map, high);
    read(&mut throttle, now, 5);
    now = now + longest * 2 + cycle;
    throttle.handle_timeout(now);
    let (held, _) = throttle.window_admitted(now);
    assert_eq!(held, 0, "admissions from the map count for longer than a cycle");
    read(&mut throttle, now, 5);
    let _ = throttle.commit_without(now, 2, &[]);
    (0..3).for_each(|partition| drop(throttle.handle_revoked(partition)));
    assert_eq!(throttle.backlog(), (0, 0));
}

/// Checks that the runs are in order, beyond the offset and within bounds, and that there are no more runs and slices
/// than the text can hold.
fn check_form(input: &Input, map: &OffsetMap) {
    let mut end = input.offset;
    for run in map.completed.iter() {
        assert!(run.start > end || input.offset < 0, "{run:?} comes after {end}");
        assert!(run.start < run.end, "{run:?} is empty");
        end = run.end;
    }
    assert!(end.abs_diff(input.offset) <= MAX_SPAN || map.completed.is_empty());
    let bits = input.metadata.len() * 8;
    assert!(map.completed.iter().count() <= bits && map.admitted.len() <= bits.min(512));
    assert!(map.admitted.iter().all(|slice| slice.admitted > 0), "an empty slice");
}

/// Checks that a map reads the same after it is encoded again.
fn check_again(offset: i64, tracker: &Tracker, map: &OffsetMap) {
    let total = |slices: &[AdmissionSlice]| slices.iter().map(|slice| u128::from(slice.admitted)).sum::<u128>();
    for budget in WIDEST {
        match encode(budget, tracker, 50, &map.admitted, map.tag) {
            Ok(text) => {
                let again = decode(offset, text.as_bytes()).expect("the map was just encoded");
                assert_eq!(again.completed, map.completed, "encoded again");
                assert_eq!(total(&again.admitted), total(&map.admitted).min(1 << 62), "encoded again");
            }
            // The encoder chooses by bounds and may need more bits than a forged map, which may use the shortest form.
            Err(refused) => assert!(refused.needed_bits > refused.budget_bits),
        }
    }
}

/// Reads a log through the tracker: only records completed in the map or by the tracker since count as completed.
fn check_reading(tracker: &mut Tracker, recorded: &OffsetRuns, random: &mut Random) {
    let mut waiting = BTreeSet::new();
    let mut next = tracker.base();
    let edges: Vec<i64> = recorded.iter().take(64).flat_map(|run| [run.start - 1, run.start, run.end]).collect();
    for _ in 0..24 {
        let hop = if random.once_in(4) { random.magnitude(20) } else { random.below(3) };
        let edge = if edges.is_empty() || random.once_in(2) { 0 } else { random.one_of(&edges) };
        let offset = if edge >= next { edge } else { next.saturating_add(hop as i64) };
        if offset >= i64::MAX - 1 {
            break;
        }
        next = offset + 1;
        let seen = tracker.observe(offset);
        assert_eq!(seen == Seen::Completed, recorded.contains(offset), "{offset} was {seen:?}");
        if seen == Seen::New {
            waiting.insert(offset);
        }
        if random.once_in(2)
            && let Some(done) = waiting.iter().nth(random.index(waiting.len())).copied()
            && tracker.bits_bound_after(done) < u64::MAX
        {
            tracker.complete(done);
            waiting.remove(&done);
        }
        let first = waiting.first().copied().unwrap_or(i64::MAX);
        assert!(tracker.base() <= first, "{first} is delayed, but {} would be committed", tracker.base());
        assert!(
            (next..tracker.base()).take(64).all(|unread| recorded.contains(unread)),
            "an unread offset would be committed"
        );
        assert!(!waiting.iter().any(|offset| tracker.is_completed(*offset)), "a delayed record counts as completed");
    }
    // No hole and no record stays behind once all records are completed, the oldest first.
    waiting.into_iter().for_each(|offset| tracker.complete(offset));
    assert!(tracker.base() >= tracker.next(), "{} is committable of {} read", tracker.base(), tracker.next());
}
