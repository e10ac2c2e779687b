//! Properties of the account: it adds up after any events.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::super::plan::tests::plan;
use super::*;

const TWO: &str = "[[client]]\nid = \"a\"\nretry = { backoff = \"1s\", attempts = 3 }\n[[client.phase]]\n\
                   kind = \"burst\"\nrecords = 1\n[[client]]\nid = \"b\"\n[[client.phase]]\nkind = \"burst\"\n\
                   records = 1\n";

const SECOND: Duration = Duration::from_secs(1);

/// Returns the sending of a record.
pub fn sent(client: usize, number: u32, at: Duration) -> Event {
    let shape = RecordShape { value_bytes: 1, key: 0 };
    Event::Sent { attempt: SendAttempt { client, shape, number, intended: at, due: at }, at }
}

/// Returns the arrival of an output: of an admitted record, or of one that was rejected for this reason.
pub fn arrived(number: usize, reason: Option<&str>, at: ArrivalTime) -> Event {
    let outcome = reason.map_or(Outcome::Admitted, |reason| Outcome::Rejected(reason.to_owned()));
    Event::Arrived { number, outcome, at }
}

fn at(ms: u64) -> ArrivalTime {
    let time = Duration::from_millis(ms);
    ArrivalTime { appended: Some(time), read: time }
}

fn admitted(number: usize, ms: u64) -> Event {
    arrived(number, None, at(ms))
}

fn rejected(number: usize, ms: u64) -> Event {
    arrived(number, Some("queue_full"), at(ms))
}

/// Reading a configuration takes longer than all else that a case does.
static PLAN: LazyLock<Plan> = LazyLock::new(|| plan(TWO));

/// Returns the account after these events, and the last retry.
fn after(events: &[Event]) -> (Account, Option<SendAttempt>) {
    let mut account = Account::new(PLAN.clone());
    let retry = events.iter().map(|event| account.apply(event)).last().flatten();
    (account, retry)
}

#[test]
fn a_rejected_record_is_retried_and_its_delay_counts_from_the_first_attempt() {
    let (mut account, retry) = after(&[sent(0, 1, SECOND), rejected(0, 1_500)]);
    let retry = retry.unwrap();
    assert_eq!((retry.number, retry.due.as_millis()), (2, 2_500));
    account.apply(&Event::Sent { attempt: retry, at: retry.due });
    assert_eq!(account.apply(&admitted(1, 3_000)), None);
    let counts = &account.clients[0];
    assert_eq!((counts.sent, counts.retries, counts.admitted, counts.rejected["queue_full"]), (2, 1, 1, 1));
    assert!((counts.delays.quantile(0.5) - 2.0).abs() < 0.01);
}

#[test]
fn attempts_are_limited_and_clients_without_retry_never_retry() {
    assert_eq!(after(&[sent(0, 3, SECOND), rejected(0, 2_000)]).1, None);
    let (account, retry) = after(&[sent(1, 1, SECOND), rejected(0, 2_000)]);
    assert_eq!((account.open(), retry), (0, None));
}

#[test]
fn duplicates_are_counted_and_admitted_ones_count_in_the_window() {
    let (account, _) = after(&[sent(1, 1, SECOND), admitted(0, 1_100), rejected(0, 1_200), admitted(0, 1_300)]);
    let counts = &account.clients[1];
    assert_eq!((counts.admitted, counts.duplicated, account.admitted_at.len()), (1, 2, 2));
}

#[test]
fn differing_clocks_are_detected() {
    let (account, _) = after(&[sent(1, 1, SECOND), sent(1, 1, SECOND), admitted(0, 999), admitted(1, 900)]);
    assert_eq!((account.before_due, account.clients[1].delays.quantile(1.0)), (1, 0.0));
}

fn event() -> impl Strategy<Value = Event> {
    let number = 0..12_usize;
    let place = RecordPosition { partition: 0, offset: 5 };
    prop_oneof![
        4 => (0..2_usize, 1..4_u32).prop_map(|(client, attempt)| sent(client, attempt, SECOND)),
        2 => number.clone().prop_map(move |number| Event::Delivered { number, place }),
        1 => number.clone().prop_map(|number| Event::Undelivered { number, reason: "gone".to_owned() }),
        3 => (number.clone(), 0..5_000_u64).prop_map(|(number, ms)| admitted(number, ms)),
        3 => (number, 0..5_000_u64).prop_map(|(number, ms)| rejected(number, ms)),
        1 => (0..5_000_u64).prop_map(|ms| Event::Foreign { at: at(ms) }),
        1 => Just(Event::Played),
    ]
}

proptest! {
    #[test]
    fn the_records_sent_are_the_sum_of_their_outcomes(
        events in prop::collection::vec(event(), 0..60),
        lost: Vec<usize>,
    ) {
        let (mut account, _) = after(&events);
        lost.into_iter().for_each(|number| account.lose(number % 12));
        let total = account.total();
        for counts in account.clients.iter().chain([&total]) {
            let others = counts.waiting + counts.lost + counts.not_acknowledged;
            prop_assert_eq!(counts.sent, counts.admitted + counts.rejected_total() + others);
            prop_assert_eq!(counts.delays.count(), counts.admitted);
        }
        prop_assert!(account.waiting().count() as u64 <= total.waiting);
    }
}

proptest! {
    #[test]
    fn quantiles_are_those_of_the_sorted_delays(
        mut micros in prop::collection::vec(0..90_000_000_000_u64, 1..300),
        quantile in 0.0..=1.0_f64,
    ) {
        let mut delays = Delays::default();
        micros.iter().for_each(|delay| delays.record(Duration::from_micros(*delay)));
        micros.sort_unstable();
        let rank = ((quantile * micros.len() as f64).ceil() as usize).clamp(1, micros.len());
        let exact = micros[rank - 1] as f64 / 1e6;
        let found = delays.quantile(quantile);
        prop_assert!((found - exact).abs() <= exact * 1e-3 + 1e-6, "{found} for {exact}");
    }

    #[test]
    fn wider_buckets_have_the_same_sums(events in prop::collection::vec((0..600_000_u64, 0..3_usize), 0..200)) {
        let mut series = Series::new(["a", "b", "c"].into_iter());
        for (at, client) in &events {
            let at = Duration::from_millis(*at);
            let bucket = series.bucket(at);
            prop_assert!(at < series.width * (bucket as u32 + 1) && at >= series.width * bucket as u32);
            series.clients[*client].admitted[bucket] += 1;
            series.delays[bucket].record(at);
        }
        prop_assert!(series.delays.len() <= MAX_BUCKETS as usize);
        prop_assert!(series.clients.iter().all(|client| client.rejected.len() == series.delays.len()));
        let admitted = series.clients.iter().flat_map(|client| &client.admitted).sum::<u64>();
        prop_assert_eq!(admitted, events.len() as u64);
        prop_assert_eq!(series.delays.iter().map(Delays::count).sum::<u64>(), events.len() as u64);
    }
}

#[test]
fn without_delays_quantiles_are_0() {
    assert_eq!((Delays::default().quantile(0.5), Delays::default().count()), (0.0, 0));
}

#[test]
fn the_width_of_buckets_follows_the_length_of_the_run() {
    let width = |seconds| {
        let mut series = Series::new(std::iter::empty());
        series.bucket(Duration::from_secs(seconds));
        series.width.as_millis()
    };
    assert_eq!([5, 29, 30, 60, 600].map(width), [250, 250, 500, 1_000, 8_000]);
    assert!(width(u64::MAX / 1_000_000) > 0);
}
