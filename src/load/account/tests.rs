//! Books that add up, whatever happens.

use proptest::prelude::*;

use super::super::plan::tests::plan;
use super::*;

const TWO: &str = "[[client]]\nid = \"a\"\nretry = { backoff = \"1s\", attempts = 3 }\n[[client.phase]]\n\
                   kind = \"burst\"\nrecords = 1\n[[client]]\nid = \"b\"\n[[client.phase]]\nkind = \"burst\"\nrecords = 1\n";

fn sent(client: usize, attempt: u32) -> Sent {
    let second = Duration::from_secs(1);
    let shape = Shape { value_bytes: 1, key: 0 };
    Sent { client, shape, attempt, intended: second, due: second, at: second }
}

fn at(ms: u64) -> At {
    let time = Duration::from_millis(ms);
    At { appended: Some(time), arrived: time }
}

fn admitted(number: usize, ms: u64) -> Event {
    Event::Arrived { number, outcome: Outcome::Admitted, at: at(ms) }
}

fn rejected(number: usize, ms: u64) -> Event {
    Event::Arrived { number, outcome: Outcome::Rejected("queue_full".to_owned()), at: at(ms) }
}

#[test]
fn a_rejected_record_is_sent_again_and_its_delay_counts_from_the_first_attempt() {
    let mut account = Account::new(plan(TWO));
    assert_eq!(account.apply(Event::Sent(sent(0, 1))), None);
    let again = account.apply(rejected(0, 1_500)).unwrap();
    assert_eq!((again.attempt, again.due.as_millis()), (2, 2_500));
    account.apply(Event::Sent(Sent { at: again.due, due: again.due, ..sent(0, 2) }));
    assert_eq!(account.apply(admitted(1, 3_000)), None);
    let counts = &account.clients()[0];
    assert_eq!((counts.sent, counts.retries, counts.admitted, counts.rejected["queue_full"]), (2, 1, 1, 1));
    assert!((counts.delays.quantile(0.5) - 2.0).abs() < 0.01);
}

#[test]
fn attempts_end_and_others_never_try_again() {
    let mut account = Account::new(plan(TWO));
    account.apply(Event::Sent(sent(0, 3)));
    account.apply(Event::Sent(sent(1, 1)));
    assert_eq!((account.apply(rejected(0, 2_000)), account.apply(rejected(1, 2_000))), (None, None));
    assert_eq!(account.open(), 0);
}

#[test]
fn doubles_are_counted_and_admitted_ones_count_in_the_window() {
    let mut account = Account::new(plan(TWO));
    account.apply(Event::Sent(sent(1, 1)));
    [admitted(0, 1_100), rejected(0, 1_200), admitted(0, 1_300)].into_iter().for_each(|event| {
        account.apply(event);
    });
    let counts = &account.clients()[1];
    assert_eq!((counts.admitted, counts.duplicated, account.admitted_at().len()), (1, 2, 2));
}

#[test]
fn clocks_that_differ_are_noticed() {
    let mut account = Account::new(plan(TWO));
    account.apply(Event::Sent(sent(1, 1)));
    account.apply(Event::Sent(sent(1, 1)));
    account.apply(admitted(0, 999));
    account.apply(admitted(1, 900));
    assert_eq!((account.before_sent(), account.clients()[1].delays.quantile(1.0)), (1, 0.0));
}

fn event() -> impl Strategy<Value = Event> {
    let number = 0..12_usize;
    let place = RecordPosition { partition: 0, offset: 5 };
    prop_oneof![
        4 => (0..2_usize, 1..4_u32).prop_map(|(client, attempt)| Event::Sent(sent(client, attempt))),
        2 => number.clone().prop_map(move |number| Event::Delivered { number, place }),
        1 => number.clone().prop_map(|number| Event::Undelivered { number, why: "gone".to_owned() }),
        3 => (number.clone(), 0..5_000_u64).prop_map(|(number, ms)| admitted(number, ms)),
        3 => (number, 0..5_000_u64).prop_map(|(number, ms)| rejected(number, ms)),
        1 => (0..5_000_u64).prop_map(|ms| Event::Foreign { at: at(ms) }),
        1 => Just(Event::Played),
    ]
}

proptest! {
    #[test]
    fn what_was_sent_is_the_sum_of_what_became_of_it(events in prop::collection::vec(event(), 0..60), lost: Vec<usize>) {
        let mut account = Account::new(plan(TWO));
        events.into_iter().for_each(|event| _ = account.apply(event));
        lost.into_iter().for_each(|number| account.lose(number % 12));
        let total = account.total();
        for counts in account.clients().iter().chain([&total]) {
            let fates = counts.waiting + counts.lost + counts.not_acknowledged;
            prop_assert_eq!(counts.sent, counts.admitted + counts.rejected_total() + fates);
            prop_assert_eq!(counts.delays.count(), counts.admitted);
        }
        prop_assert_eq!(account.open(), total.waiting);
        prop_assert!(account.waiting().count() as u64 <= total.waiting);
    }
}
