use super::*;

const LETTERS: &str = "kyc.dead-letter";

fn ledger(id: &str) -> Ledger {
    Ledger::empty(format!("{LETTERS}.ledger"), LETTERS.to_owned(), id.to_owned())
}

fn by(transaction: u64) -> Holder {
    Holder { process: "7.1".to_owned(), job: "monday".to_owned(), transaction }
}

/// Returns keys and values of the changes.
fn written(ledger: &mut Ledger) -> Vec<(String, String)> {
    let text = |bytes: Option<Vec<u8>>| String::from_utf8(bytes.unwrap()).unwrap();
    ledger.take_changes(&by(3)).into_iter().map(|record| (text(record.key), text(record.value))).collect()
}

fn read(id: &str, entries: &[(String, String)]) -> Ledger {
    let mut ledger = ledger(id);
    for (key, value) in entries {
        ledger.apply(key.as_bytes(), Some(value.as_bytes())).unwrap();
    }
    ledger
}

/// Later versions have to read these entries.
#[test]
fn the_format_of_the_entries_does_not_change() {
    let mut ledger = ledger("one");
    ledger.fill(2, 4_000..5_000, DoneState::Redriven);
    ledger.mark(2, 4_100, DoneState::Parked);
    ledger.mark(2, 4_101, DoneState::Closed);
    let expected = [
        ("kyc.dead-letter/2/0", r#"{"closed":[],"parked":[],"redriven":[[4000,4096]],"topic_id":"one"}"#),
        (
            "kyc.dead-letter/2/4096",
            r#"{"closed":[[4101,4102]],"parked":[[4100,4101]],"redriven":[[4096,4100],[4102,5000]],"topic_id":"one"}"#,
        ),
        ("holder", r#"{"job":"monday","process":"7.1","transaction":3}"#),
    ];
    let entries = written(&mut ledger);
    assert_eq!(entries, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let again = read("one", &entries);
    assert_eq!((&again.partitions, again.holder()), (&ledger.partitions, Some(&by(3))));
    // A page is written once, and a change that changes nothing writes none.
    ledger.fill(2, 4_000..5_000, DoneState::Closed);
    ledger.mark(2, 4_100, DoneState::Parked);
    assert_eq!(written(&mut ledger).len(), 1);
}

#[test]
fn entries_about_an_earlier_topic_of_the_name_do_not_count() {
    let mut first = ledger("one");
    first.fill(0, 0..10, DoneState::Redriven);
    let entries = written(&mut first);
    let other = read("two", &entries);
    assert_eq!((other.state(0, 5), other.former()), (None, 1));
    // Brokers before Kafka 2.8 tell no id.
    assert_eq!(read("", &entries).state(0, 5), Some(DoneState::Redriven));
    let parked = Ledger { letters: format!("{LETTERS}.parked"), ..ledger("one") };
    let entries = entries.into_iter().fold(parked, |mut parked, (key, value)| {
        parked.apply(key.as_bytes(), Some(value.as_bytes())).unwrap();
        parked
    });
    assert_eq!((entries.state(0, 5), entries.former()), (None, 0));
}

#[test]
fn a_later_entry_replaces_a_page_and_a_tombstone_opens_it() {
    let mut ledger = ledger("one");
    ledger.fill(0, 0..PAGE + 1, DoneState::Redriven);
    let page = |text: &str| text.as_bytes().to_vec();
    ledger
        .apply(b"kyc.dead-letter/0/0", Some(&page(r#"{"topic_id":"one","redriven":[[1,2]],"parked":[],"closed":[]}"#)));
    assert_eq!((0..4).map(|offset| ledger.state(0, offset).is_some()).collect::<Vec<_>>(), [false, true, false, false]);
    assert!(ledger.state(0, PAGE).is_some());
    ledger.apply(b"kyc.dead-letter/0/4096", None).unwrap();
    assert_eq!((ledger.first_open(0, PAGE), ledger.first_open(0, 1)), (PAGE, 2));
}

#[test]
fn an_entry_of_another_format_is_refused() {
    let refused = |key: &str, value: &str| ledger("one").apply(key.as_bytes(), Some(value.as_bytes())).is_none();
    assert!(refused("later-version", "{}"));
    assert!(refused("kyc.dead-letter/0/0", "no JSON"));
    assert!(refused("kyc.dead-letter/0/0", r#"{"topic_id":"one","redriven":[[0,4097]],"parked":[],"closed":[]}"#));
    assert!(refused("kyc.dead-letter/0/0", r#"{"topic_id":"one","redriven":[]}"#));
    assert!(refused("holder", "{}"));
}

#[test]
fn the_position_of_the_job_of_all_dead_letters_counts_as_redriven() {
    let mut ledger = ledger("one");
    let select = r#"{"conditions":[],"since":null,"until":null,"partition":null,"offsets":null}"#;
    let all = format!(r#"{{"end":10,"select":{select},"to":"source"}}"#);
    let some = all.replace("[]", r#"[{"reason":"expired"}]"#);
    let positions: Positions = [(0, (8, all)), (1, (8, some)), (2, (8, "lag-checker".to_owned()))].into();
    ledger.pass(&positions, &[(0, 3..20), (1, 3..20), (2, 3..20)].into());
    assert_eq!(ledger.partitions.iter().map(|(at, runs)| (*at, runs.count(0..20))).collect::<Vec<_>>(), [(0, 5)]);
    assert_eq!((ledger.first_open(0, 2), ledger.first_open(0, 3)), (2, 8));
}
