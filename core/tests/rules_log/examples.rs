//! Examples of single rules of the protocol: bounds, timeouts, attempts, cleaning, lost records.

use std::time::Duration;

use watermaster_core::rules::log::record::{self, ChangeId, MAX_N, MAX_RULE_BYTES, RuleChange, RuleVersion};
use watermaster_core::rules::log::record::{RuleRecord, UnreadableRule};
use watermaster_core::rules::log::{
    BeginCause, LogAction, MAX_CHANGES, MAX_RULES, Precondition, RulesLog, WINDOW, WriteOutcome, WriteRefusal,
    WriteRequest, WriteTicket,
};
use watermaster_core::units::Time;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const RULE: &str = r#"{"clients":["*"],"weight":2}"#;

type Record = (String, Option<Vec<u8>>);

/// A log, and its only reader.
struct Desk {
    log: RulesLog,
    now: Time,
    end: u64,
}

fn change(n: u64, until: u64, rule: Option<&str>) -> RuleChange {
    let (deleted, rule) = (rule.is_none(), rule.map(Into::into));
    RuleChange { v: record::VERSION, n, until, deleted, by: "jo".into(), at: 7, rule }
}

fn record(name: &str, id: u64, change: &RuleChange) -> Record {
    (record::key(name, ChangeId(id)), Some(record::encode(change).expect("a value")))
}

fn request(name: &str, precondition: Precondition, rule: Option<&str>) -> WriteRequest {
    WriteRequest { name: name.into(), precondition, rule: rule.map(Into::into), by: "jo".into(), at: 7 }
}

impl Desk {
    /// A reader that knows an empty log.
    fn new() -> Desk {
        Desk::with_window(WINDOW)
    }

    fn with_window(window: u64) -> Desk {
        let mut desk = Desk { log: RulesLog::new(window, 1), now: Time::ZERO, end: 0 };
        assert_eq!(desk.actions(), [LogAction::Begin(BeginCause::New)]);
        desk.log.handle_begin(desk.now, 0);
        assert_eq!(desk.actions(), [LogAction::AskEnd]);
        desk.log.handle_end(desk.now, 0);
        assert_eq!(desk.actions(), [LogAction::Known]);
        desk
    }

    fn actions(&mut self) -> Vec<LogAction> {
        std::iter::from_fn(|| self.log.poll_action()).collect()
    }

    /// Appends a record, which the reader reads at once.
    fn append(&mut self, (key, value): Record) -> Vec<LogAction> {
        self.end += 1;
        self.log.handle_record(self.now, self.end - 1, key.as_bytes(), value.as_deref());
        self.actions()
    }

    fn pass(&mut self, offsets: u64) {
        (0..offsets).for_each(|_| drop(self.append(("noise".to_owned(), None))));
    }

    /// Asks for a change, and returns the record that is sent.
    fn write(&mut self, request: WriteRequest) -> Result<(WriteTicket, Record), WriteRefusal> {
        let ticket = self.log.write(self.now, request)?;
        let actions = self.actions();
        let [LogAction::Send { key, value, ticket: of }] = actions.as_slice() else { panic!("{actions:?}") };
        assert_eq!(*of, Some(ticket));
        Ok((ticket, (key.clone(), value.clone())))
    }

    /// Writes a change that comes in force.
    fn put(&mut self, name: &str, rule: Option<&str>) -> RuleVersion {
        let (ticket, record) = self.write(request(name, Precondition::Any, rule)).expect("the change is taken");
        match self.append(record).as_slice() {
            [LogAction::Changed(of), LogAction::Done(done, WriteOutcome::InForce(version))] => {
                assert_eq!((&**of, *done), (name, ticket));
                *version
            }
            actions => panic!("{actions:?}"),
        }
    }

    /// Returns the keys of the tombstones that this instance writes now.
    fn cleaned(&mut self, is_first: bool, most: usize) -> Vec<String> {
        self.log.clean(self.now, is_first, most);
        let actions = self.actions().into_iter();
        let key = |action| match action {
            LogAction::Send { key, value: None, ticket: None } => key,
            action => panic!("{action:?}"),
        };
        actions.map(key).collect()
    }

    fn version(&self, name: &str) -> Option<RuleVersion> {
        self.log.get(name).map(|rule| rule.version)
    }
}

fn sent(actions: &[LogAction]) -> Record {
    match actions {
        [LogAction::Send { key, value, .. }] => (key.clone(), value.clone()),
        actions => panic!("{actions:?}"),
    }
}

fn read(record: &Record) -> RuleChange {
    let read = record::decode(record.0.as_bytes(), record.1.as_deref()).expect("a record");
    read.change.expect("a change")
}

// ## Records

#[test]
fn the_form_of_a_change_does_not_change() {
    let (key, value) = record("night-stop", 0xAB, &change(3, 90, Some(RULE)));
    assert_eq!(key, "r/night-stop/00000000000000ab");
    let expected = r#"{"v":1,"n":3,"until":90,"deleted":false,"by":"jo","at":7,"rule":{"clients":["*"],"weight":2}}"#;
    assert_eq!(String::from_utf8_lossy(&value.expect("a value")), expected);
    let (_, value) = record("night-stop", 0xAB, &change(4, 90, None));
    let expected = r#"{"v":1,"n":4,"until":90,"deleted":true,"by":"jo","at":7}"#;
    assert_eq!(String::from_utf8_lossy(&value.expect("a value")), expected);
}

#[test]
fn records_come_back_from_their_keys_and_values() {
    let by = "quote \" and Ä".into();
    for change in [change(MAX_N, u64::MAX, Some(RULE)), RuleChange { by, ..change(1, 0, None) }] {
        let (key, value) = record("a", 9, &change);
        let value = value.expect("a value");
        let read = record::decode(key.as_bytes(), Some(&value));
        assert_eq!(read, Ok(RuleRecord { name: "a", id: ChangeId(9), change: Some(change) }));
        for length in 0..value.len() {
            assert!(record::decode(key.as_bytes(), Some(&value[..length])).is_err(), "{length} bytes");
        }
    }
    let tombstone = record::decode(b"r/a/0000000000000009", None);
    assert_eq!(tombstone, Ok(RuleRecord { name: "a", id: ChangeId(9), change: None }));
}

/// Instances of different versions must agree on what is in force.
#[test]
fn a_form_of_later_versions_takes_part() {
    let value = br#"{"v":2,"n":1,"until":5,"rule":[true],"more":{"deep":[1]}}"#;
    let read = record::decode(b"r/a/0000000000000009", Some(value)).map(|record| record.change);
    let by = "".into();
    let expected = RuleChange { v: 2, by, at: 0, ..change(1, 5, Some("[true]")) };
    assert_eq!(read, Ok(Some(expected)));
}

#[test]
fn keys_and_versions_have_bounds() {
    let longest = "x".repeat(64);
    for name in ["a", "a.b_c-9", &longest] {
        assert!(record::decode(record::key(name, ChangeId(1)).as_bytes(), None).is_ok(), "{name}");
    }
    let long = "x".repeat(65);
    let wrong = ["", "A", "a/b", "ä", "a b", &long].map(|name| record::key(name, ChangeId(1)));
    let ids = ["1", "000000000000000G", "+00000000000000a", "000000000000000A", "00000000000000001"];
    let ids = ids.map(|id| format!("r/a/{id}"));
    for key in wrong.iter().chain(&ids).map(String::as_str).chain(["s/kyc/1", "r/a", "", "r/"]) {
        assert_eq!(record::decode(key.as_bytes(), None), Err(UnreadableRule::Key), "{key}");
    }
    for n in [0, MAX_N + 1] {
        let value = format!(r#"{{"v":1,"n":{n},"until":5}}"#);
        let read = record::decode(b"r/a/0000000000000009", Some(value.as_bytes()));
        assert_eq!(read, Err(UnreadableRule::Version { n }));
    }
}

#[test]
fn a_rule_of_64_kib_is_the_largest() {
    let rule = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    let (largest, larger) = (rule(MAX_RULE_BYTES), rule(MAX_RULE_BYTES + 1));
    let mut desk = Desk::new();
    desk.put("a", Some(&largest));
    let too_large = UnreadableRule::Size { bytes: MAX_RULE_BYTES + 1 };
    let refused = desk.write(request("a", Precondition::Any, Some(&larger)));
    assert_eq!(refused, Err(WriteRefusal::Unwritable(too_large.clone())));
    let forged = format!(r#"{{"v":1,"n":2,"until":99,"rule":{larger}}}"#).into_bytes();
    let actions = desk.append(("r/a/0000000000000009".to_owned(), Some(forged)));
    assert_eq!(actions, [LogAction::Unreadable { offset: 1, reason: too_large }]);
}

#[test]
fn a_record_that_cannot_be_read_is_told_and_does_not_stop_the_reader() {
    let mut desk = Desk::new();
    let value = Some(b"{\"v\":1}".to_vec());
    match desk.append(("r/a/0000000000000009".to_owned(), value)).as_slice() {
        [LogAction::Unreadable { offset: 0, reason: UnreadableRule::Envelope { reason } }] => {
            assert!(reason.contains("missing field `n`"), "{reason}");
        }
        actions => panic!("{actions:?}"),
    }
    let reason = UnreadableRule::Key;
    assert_eq!(desk.append(("q".to_owned(), None)), [LogAction::Unreadable { offset: 1, reason }]);
    desk.put("a", Some(RULE));
}

#[test]
fn a_version_is_its_text() {
    let version = RuleVersion { n: 12, id: ChangeId(0xBEEF) };
    assert_eq!(version.to_string(), "12-000000000000beef");
    assert_eq!(RuleVersion::parse("12-000000000000beef"), Some(version));
    for text in ["", "12", "12-", "012-000000000000beef", "12-000000000000BEEF", "-1-000000000000beef", "12-beef"] {
        assert_eq!(RuleVersion::parse(text), None, "{text}");
    }
}

// ## Changes

#[test]
fn versions_count_from_one_and_go_on_over_a_grave() {
    let mut desk = Desk::with_window(4);
    assert_eq!(desk.put("a", Some(RULE)).n, 1);
    assert_eq!(desk.log.get("a").expect("a rule").change.rule.as_deref(), Some(RULE));
    assert_eq!(desk.put("a", None).n, 2);
    assert_eq!((desk.version("a"), desk.log.decides("a").map(|grave| grave.version.n)), (None, Some(2)));
    assert_eq!(desk.put("a", Some(RULE)).n, 3);
    assert_eq!(desk.put("a", None).n, 4);
    desk.pass(5);
    assert!(desk.log.decides("a").is_none());
    assert_eq!(desk.put("a", Some(RULE)).n, 1);
}

#[test]
fn a_change_that_follows_a_grave_ends_with_it() {
    let mut desk = Desk::with_window(4);
    desk.put("a", Some(RULE));
    desk.put("a", None);
    desk.pass(2);
    let (_, record) = desk.write(request("a", Precondition::Any, Some(RULE))).expect("it is taken");
    assert_eq!((read(&record).n, read(&record).until), (3, 5));
    let (_, record) = desk.write(request("b", Precondition::Any, Some(RULE))).expect("it is taken");
    assert_eq!((read(&record).n, read(&record).until), (1, 8));
}

#[test]
fn a_precondition_that_does_not_hold_is_refused_with_the_version_in_force() {
    let mut desk = Desk::new();
    let stated = RuleVersion { n: 1, id: ChangeId(5) };
    let refused = |desk: &mut Desk, precondition, rule| desk.write(request("a", precondition, rule)).unwrap_err();
    for precondition in [Precondition::Present, Precondition::Version(stated)] {
        assert_eq!(refused(&mut desk, precondition, Some(RULE)), WriteRefusal::Changed { in_force: None });
    }
    assert_eq!(refused(&mut desk, Precondition::Any, None), WriteRefusal::Missing);
    let in_force = Some(desk.put("a", Some(RULE)));
    for precondition in [Precondition::Absent, Precondition::Version(stated)] {
        assert_eq!(refused(&mut desk, precondition, None), WriteRefusal::Changed { in_force });
    }
}

#[test]
fn of_two_changes_of_one_version_the_second_is_refused() {
    let mut desk = Desk::new();
    let stated = Precondition::Version(desk.put("a", Some(RULE)));
    let (_, one) = desk.write(request("a", stated, Some("1"))).expect("it is taken");
    let (ticket, other) = desk.write(request("a", stated, Some("2"))).expect("it is taken");
    desk.append(one);
    let in_force = desk.version("a");
    let refusal = WriteRefusal::Changed { in_force };
    assert_eq!(desk.append(other), [LogAction::Done(ticket, WriteOutcome::Refused(refusal))]);
}

#[test]
fn a_change_that_was_only_too_old_is_tried_again_with_a_new_id() {
    let mut desk = Desk::with_window(4);
    let stated = desk.put("a", Some(RULE));
    let (ticket, old) = desk.write(request("a", Precondition::Version(stated), Some("1"))).expect("it is taken");
    desk.pass(5);
    let again = sent(&desk.append(old.clone()));
    assert_ne!(old.0, again.0);
    assert_eq!((read(&old).until, read(&again).until), (5, 11));
    let actions = desk.append(again);
    assert!(
        matches!(actions.last(), Some(LogAction::Done(of, WriteOutcome::InForce(_))) if *of == ticket),
        "{actions:?}"
    );
}

#[test]
fn a_change_is_tried_five_times() {
    let mut desk = Desk::with_window(4);
    let (ticket, mut record) = desk.write(request("a", Precondition::Any, Some(RULE))).expect("it is taken");
    for _ in 1..5 {
        desk.pass(5);
        record = sent(&desk.append(record));
    }
    desk.pass(5);
    let outcome = WriteOutcome::Refused(WriteRefusal::Changed { in_force: None });
    assert_eq!(desk.append(record), [LogAction::Done(ticket, outcome)]);
}

#[test]
fn a_change_that_is_not_read_back_in_five_seconds_has_an_unknown_outcome() {
    let mut desk = Desk::new();
    let (ticket, record) = desk.write(request("a", Precondition::Any, Some(RULE))).expect("it is taken");
    desk.log.handle_timeout(Time::ZERO + 4 * SECOND);
    assert_eq!(desk.actions(), []);
    desk.log.handle_timeout(Time::ZERO + 5 * SECOND);
    assert_eq!(desk.actions(), [LogAction::Done(ticket, WriteOutcome::Unknown)]);
    // The record may arrive at any later time.
    assert_eq!(desk.append(record), [LogAction::Changed("a".into())]);
}

#[test]
fn a_change_that_is_not_sent_has_no_effect() {
    let mut desk = Desk::new();
    let (ticket, _) = desk.write(request("a", Precondition::Any, Some(RULE))).expect("it is taken");
    desk.log.handle_unsent(ticket);
    assert_eq!(desk.actions(), [LogAction::Done(ticket, WriteOutcome::NotSent)]);
    desk.log.handle_timeout(Time::ZERO + 5 * SECOND);
    assert_eq!(desk.actions(), []);
}

#[test]
fn at_most_256_changes_are_on_their_way() {
    let mut desk = Desk::new();
    let write = |desk: &mut Desk| desk.write(request("a", Precondition::Any, Some(RULE)));
    let records: Vec<Record> = (0..MAX_CHANGES).map(|_| write(&mut desk).expect("it is taken").1).collect();
    assert_eq!(write(&mut desk), Err(WriteRefusal::Busy));
    desk.append(records[0].clone());
    assert!(write(&mut desk).is_ok());
}

#[test]
fn a_forged_last_version_can_not_be_followed() {
    let mut desk = Desk::new();
    desk.append(record("a", 1, &change(MAX_N, u64::MAX, Some(RULE))));
    let refusal = WriteRefusal::Unwritable(UnreadableRule::Version { n: MAX_N + 1 });
    assert_eq!(desk.write(request("a", Precondition::Any, None)), Err(refusal));
}

#[test]
fn names_and_rules_that_no_reader_takes_are_not_written() {
    let mut desk = Desk::new();
    let refusal = desk.write(request("A", Precondition::Any, Some(RULE)));
    assert_eq!(refusal, Err(WriteRefusal::Unwritable(UnreadableRule::Key)));
    let refusal = desk.write(request("a", Precondition::Any, Some("{")));
    assert!(matches!(refusal, Err(WriteRefusal::Unwritable(UnreadableRule::Envelope { .. }))), "{refusal:?}");
}

#[test]
fn rules_above_the_bound_are_refused_and_have_no_effect() {
    let mut desk = Desk::new();
    for number in 0..MAX_RULES as u64 {
        desk.append(record(&format!("x{number}"), number, &change(1, u64::MAX, Some("1"))));
    }
    let totals = desk.log.totals();
    assert_eq!((totals.rules, totals.bytes), (MAX_RULES, MAX_RULES));
    assert_eq!(desk.write(request("a", Precondition::Any, Some("1"))), Err(WriteRefusal::TooMany(totals)));
    let (_, replaced) = desk.write(request("x7", Precondition::Any, Some("2"))).expect("it replaces one");
    let names = |desk: &Desk| desk.log.rules_within_bounds().iter().map(|(name, _)| name.to_string()).collect();
    let all: Vec<String> = names(&desk);
    assert_eq!(all.len(), MAX_RULES);
    // Another program forges a rule. It is in force, and the youngest version has no effect.
    // The bug: a running instance was told of that one name, and gave the rule effect until its restart.
    let forged = desk.append(record("a", 1 << 40, &change(1, u64::MAX, Some("1"))));
    assert_eq!((desk.log.totals().rules, names(&desk), forged), (MAX_RULES + 1, all, vec![LogAction::Known]));
    desk.append(replaced);
    let names: Vec<String> = names(&desk);
    assert!(names.len() == MAX_RULES && names[0] == "a" && !names.contains(&"x7".to_owned()));
    // Within the bounds again, the rule that was left out has effect.
    let deleted = desk.append(record("x9", 1 << 41, &change(2, u64::MAX, None)));
    assert_eq!((desk.log.rules_within_bounds().len(), deleted), (MAX_RULES, vec![LogAction::Known]));
    let next = desk.append(record("x8", 1 << 42, &change(2, u64::MAX, None)));
    assert_eq!(next, [LogAction::Changed("x8".into())]);
}

#[test]
fn bytes_above_the_bound_have_no_effect() {
    let mut desk = Desk::new();
    let rule = format!("\"{}\"", "x".repeat(MAX_RULE_BYTES - 2));
    for number in 0..1_024 {
        desk.append(record(&format!("x{number:04}"), number, &change(1, u64::MAX, Some(&rule))));
    }
    assert_eq!(desk.log.rules_within_bounds().len(), 1_024);
    let refusal = desk.write(request("a", Precondition::Any, Some("1")));
    assert_eq!(refusal, Err(WriteRefusal::TooMany(desk.log.totals())));
    desk.append(record("a", 1 << 40, &change(1, u64::MAX, Some("1"))));
    let rules = desk.log.rules_within_bounds();
    assert_eq!((rules.len(), &**rules[0].0), (1_024, "x0000"));
}

#[test]
fn the_sum_of_a_log_does_not_change() {
    let mut desk = Desk::new();
    desk.append(record("a", 1, &change(1, 99, Some("1"))));
    let one = desk.log.totals().sum;
    desk.append(record("b", 2, &change(1, 99, Some("1"))));
    let both = desk.log.totals().sum;
    desk.append(record("b", 3, &change(2, 99, None)));
    assert_eq!(desk.log.totals().sum, one);
    // Two digests by FNV-1a and splitmix64, of another program.
    assert_eq!([one, both], [10982040812062025967, 4924846855605282419]);
}

// ## Cleaning

#[test]
fn the_author_cleans_at_once_and_the_first_instance_after_a_minute() {
    let mut desk = Desk::new();
    let (one, other) = (record("a", 1, &change(1, 99, Some("1"))), record("a", 2, &change(1, 99, Some("2"))));
    desk.append(one);
    desk.append(other);
    desk.put("a", Some("3"));
    // What its own change has superseded, but not what another one left.
    assert_eq!(desk.cleaned(true, 9), [record::key("a", ChangeId(1))]);
    desk.now = desk.now + MINUTE;
    assert_eq!(desk.cleaned(false, 9), [record::key("a", ChangeId(1))], "the tombstone did not come");
    assert_eq!(desk.cleaned(true, 9), [record::key("a", ChangeId(2))]);
    assert_eq!(desk.cleaned(true, 9), Vec::<String>::new());
    for id in [1, 2] {
        assert_eq!(desk.append((record::key("a", ChangeId(id)), None)), []);
    }
    desk.now = desk.now + 2 * MINUTE;
    assert_eq!(desk.cleaned(true, 9), Vec::<String>::new());
}

#[test]
fn no_more_tombstones_are_written_than_the_owner_allows() {
    let mut desk = Desk::new();
    for _ in 0..5 {
        desk.put("a", Some(RULE));
    }
    assert_eq!([3, 3, 3].map(|most| desk.cleaned(false, most).len()), [3, 1, 0]);
}

#[test]
fn a_grave_goes_last() {
    let mut desk = Desk::with_window(4);
    let first = desk.put("a", Some(RULE));
    let (_, late) = desk.write(request("a", Precondition::Any, Some("1"))).expect("it is taken");
    let grave = desk.put("a", None);
    desk.append(late.clone());
    desk.actions();
    assert_eq!(desk.cleaned(false, 9), [record::key("a", first.id), late.0.clone()]);
    desk.pass(4);
    assert_eq!(desk.cleaned(false, 9), Vec::<String>::new(), "contemporaries have no tombstones yet");
    desk.append((record::key("a", first.id), None));
    assert_eq!(desk.cleaned(false, 9), Vec::<String>::new());
    desk.append((late.0, None));
    assert_eq!(desk.cleaned(false, 9), [record::key("a", grave.id)]);
    desk.append((record::key("a", grave.id), None));
    assert_eq!(desk.log.rules_within_bounds().len(), 0);
}

// ## Reading

#[test]
fn a_tombstone_of_a_change_in_force_makes_the_reader_begin_again() {
    let mut desk = Desk::new();
    let id = desk.put("a", Some(RULE)).id;
    let (ticket, _) = desk.write(request("b", Precondition::Any, Some(RULE))).expect("it is taken");
    let actions = desk.append((record::key("a", id), None));
    let unknown = LogAction::Done(ticket, WriteOutcome::Unknown);
    assert_eq!(actions, [unknown, LogAction::Begin(BeginCause::Removed)]);
    assert!(desk.version("a").is_some() && desk.log.known() == Some(1), "rules stay in force meanwhile");
    assert_eq!(desk.write(request("a", Precondition::Any, Some(RULE))), Err(WriteRefusal::Reading));
    desk.log.handle_begin(desk.now, 2);
    desk.log.handle_record(desk.now, 1, record::key("a", id).as_bytes(), None);
    desk.log.handle_end(desk.now, 2);
    assert_eq!((desk.actions(), desk.version("a")), (vec![LogAction::AskEnd, LogAction::Known], None));
}

/// A producer that is not idempotent may double records. Reading must not become an endless loop by that.
#[test]
fn a_second_copy_of_the_change_in_force_is_not_cleaned() {
    let mut desk = Desk::new();
    let record = record("a", 1, &change(1, 99, Some("1")));
    assert_eq!(desk.append(record.clone()), [LogAction::Changed("a".into())]);
    assert_eq!(desk.append(record), []);
    desk.now = desk.now + MINUTE;
    assert_eq!(desk.cleaned(true, 9), Vec::<String>::new());
}

#[test]
fn a_record_that_was_read_before_has_no_effect() {
    let mut desk = Desk::new();
    let old = record("a", 1, &change(1, 99, Some("1")));
    desk.append(old.clone());
    let version = desk.put("a", Some(RULE));
    desk.log.handle_record(desk.now, 0, old.0.as_bytes(), None);
    assert_eq!((desk.actions(), desk.version("a"), desk.log.known()), (vec![], Some(version), Some(2)));
}

/// Compaction has removed a record because of a later one that a new reader may not reach before it decides.
#[test]
fn a_new_reader_that_meets_a_gap_behind_the_end_that_it_saw_first_begins_again() {
    let mut desk = Desk::new();
    desk.log.handle_position(desk.now, 1);
    desk.log.handle_begin(desk.now, 3);
    desk.actions();
    let noise = |desk: &mut Desk, offset| {
        desk.log.handle_record(desk.now, offset, b"noise", None);
        desk.actions().into_iter().filter(|action| !matches!(action, LogAction::Unreadable { .. })).collect::<Vec<_>>()
    };
    assert_eq!(noise(&mut desk, 1), []);
    assert_eq!(noise(&mut desk, 3), [LogAction::AskEnd]);
    desk.log.handle_end(desk.now, 6);
    assert_eq!(noise(&mut desk, 5), [LogAction::Begin(BeginCause::Gap)]);
}

#[test]
fn a_reader_that_is_slow_begins_again() {
    let mut desk = Desk::new();
    desk.log.handle_position(desk.now, 1);
    assert_eq!(desk.actions(), [LogAction::Begin(BeginCause::Gap)]);
    desk.log.handle_begin(desk.now, 10);
    let deadline = Time::ZERO + 60 * MINUTE;
    desk.log.handle_timeout(deadline - SECOND);
    assert_eq!(desk.actions(), []);
    let mut other = desk.log.clone();
    desk.log.handle_timeout(deadline);
    assert_eq!(desk.actions(), [LogAction::Begin(BeginCause::Slow)]);
    other.handle_position(deadline, 10);
    assert_eq!(other.poll_action(), Some(LogAction::Begin(BeginCause::Slow)));
}

#[test]
fn rules_stay_in_force_when_the_log_loses_records() {
    let mut desk = Desk::new();
    let version = desk.put("a", Some(RULE));
    desk.log.handle_end(desk.now, 1);
    assert_eq!(desk.actions(), []);
    desk.log.handle_end(desk.now, 0);
    assert_eq!(desk.actions(), [LogAction::Lost]);
    desk.log.handle_loss();
    assert_eq!((desk.actions(), desk.log.is_lost()), (Vec::new(), true));
    assert_eq!((desk.version("a"), desk.log.known()), (Some(version), Some(1)));
    assert_eq!(desk.write(request("a", Precondition::Any, None)), Err(WriteRefusal::Lost));
    desk.log.accept_loss();
    assert_eq!(desk.actions(), [LogAction::Begin(BeginCause::LossAccepted)]);
    assert_eq!(desk.version("a"), Some(version), "until the log is read");
    desk.log.handle_begin(desk.now, 0);
    desk.log.handle_end(desk.now, 0);
    assert_eq!(desk.actions(), [LogAction::AskEnd, LogAction::Known]);
    assert_eq!((desk.version("a"), desk.log.totals().sum), (None, 0));
}

/// A renewed certificate takes another client, not another log. The bug: the rules were gone until they were read again,
/// and the log took new changes although the operator had not accepted the loss of records.
#[test]
fn rules_stay_while_another_client_reads_them() {
    let mut desk = Desk::new();
    let version = desk.put("a", Some(RULE));
    let (ticket, _) = desk.write(request("a", Precondition::Any, None)).expect("a change on its way");
    desk.log.read_again();
    let unknown = LogAction::Done(ticket, WriteOutcome::Unknown);
    assert_eq!(desk.actions(), [unknown, LogAction::Begin(BeginCause::Reconnected)]);
    assert_eq!((desk.version("a"), desk.log.rules_within_bounds().len()), (Some(version), 1));
    desk.log.handle_loss();
    desk.log.read_again();
    assert_eq!((desk.actions(), desk.log.is_lost()), (vec![LogAction::Lost], true));
}

/// The topic was deleted and made anew while a reader read it again.
#[test]
fn a_log_that_ends_before_what_was_known_is_lost() {
    let mut desk = Desk::new();
    desk.put("a", Some(RULE));
    desk.log.handle_position(desk.now, 5);
    desk.actions();
    desk.log.handle_begin(desk.now, 0);
    assert_eq!(desk.actions(), [LogAction::Lost]);
}
