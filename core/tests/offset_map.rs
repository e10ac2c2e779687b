//! The text of an offset map: round trips, size bounds, and hostile metadata.

mod support;

use proptest::prelude::*;
use support::forge::{self, Alphabet, bits_of};
use watermaster_core::offset_map::{
    AdmissionSlice, DecodeError, MAX_SLICES, MAX_SPAN, MapBudget, OffsetMap, TopicTag, Unreadable, decode, encode,
    overhead_bits,
};
use watermaster_core::{offset_runs::OffsetRuns, tracker::Tracker};

const SLICE_MS: u32 = 50;
/// The most characters or bytes that a tag adds to a map.
const MOST_OF_A_TAG: usize = 35;

/// Generates runs of pending and completed offsets from a base, in lengths of every magnitude.
fn sets() -> impl Strategy<Value = Tracker> {
    let length = || {
        prop_oneof![
            4 => Just(1u64),
            4 => 1..8u64,
            3 => 1..300u64,
            1 => 1..200_000u64,
        ]
    };
    let many = prop_oneof![60 => 0..12usize, 10 => 0..80usize, 1 => 0..2000usize];
    let lengths = many.prop_flat_map(move |pairs| prop::collection::vec((length(), length()), pairs));
    let base = prop_oneof![Just(0i64), 0..1000i64, 0..1i64 << 60];
    (base, lengths).prop_map(|(base, lengths)| restored(base, &lengths))
}

fn restored(base: i64, lengths: &[(u64, u64)]) -> Tracker {
    let mut runs = OffsetRuns::new();
    let mut end = base;
    for (waiting, completed) in lengths {
        let start = end + *waiting as i64;
        end = start + *completed as i64;
        if end.abs_diff(base) > MAX_SPAN {
            break;
        }
        runs.push(start..end);
    }
    Tracker::restore(base, &runs)
}

/// Generates admission slices of [`SLICE_MS`] on a grid, ascending.
fn admissions() -> impl Strategy<Value = Vec<AdmissionSlice>> {
    let count = prop_oneof![3 => Just(0u64), 3 => 1..10u64, 1 => 0..1u64 << 40];
    let newest = 1_700_000_000_000..1_800_000_000_000i64;
    let slices = prop_oneof![20 => 0..12usize, 1 => 0..=MAX_SLICES];
    let counts = slices.prop_flat_map(move |slices| prop::collection::vec(count.clone(), slices));
    (newest, counts).prop_map(|(newest, counts)| {
        let slice = |(age, admitted)| AdmissionSlice { end_ms: newest - age as i64 * i64::from(SLICE_MS), admitted };
        let mut slices: Vec<AdmissionSlice> = counts.into_iter().enumerate().map(slice).collect();
        slices.retain(|slice| slice.admitted > 0);
        slices.reverse();
        slices
    })
}

fn budgets() -> impl Strategy<Value = MapBudget> {
    prop_oneof![(0..9000usize).prop_map(MapBudget::Chars), (0..9000usize).prop_map(MapBudget::Bytes)]
}

/// Returns the number of slices from the oldest to the newest, both included, and their sum.
fn extent(slices: &[AdmissionSlice]) -> (usize, u64) {
    let (Some(oldest), Some(newest)) = (slices.first(), slices.last()) else {
        return (0, 0);
    };
    let steps = (newest.end_ms - oldest.end_ms) / i64::from(SLICE_MS);
    (steps as usize + 1, slices.iter().map(|slice| slice.admitted).sum())
}

fn size(budget: MapBudget, text: &str) -> usize {
    match budget {
        MapBudget::Chars(_) => text.encode_utf16().count(),
        MapBudget::Bytes(_) => text.len(),
    }
}

fn room(budget: MapBudget) -> usize {
    match budget {
        MapBudget::Chars(room) | MapBudget::Bytes(room) => room,
    }
}

fn needed_bits(tracker: &Tracker, slices: &[AdmissionSlice]) -> u64 {
    encode(MapBudget::Bytes(0), tracker, SLICE_MS, slices, None).expect_err("no map fits in 0 bytes").needed_bits
}

fn assert_refused(offset: i64, metadata: &[u8]) {
    let error = decode(offset, metadata).expect_err("the metadata must be refused");
    assert!(!error.to_string().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    /// The tag of the topic changes nothing else in the map, and is left out only if there is no room for it.
    #[test]
    fn a_map_tells_its_topic(
        tracker in sets(), slices in admissions(), budget in budgets(), cluster in "[a-z]{1,3}", topic in "[a-z]{1,3}",
    ) {
        let tag = Some(TopicTag::of(&cluster, &topic));
        let [plain, tagged] = [None, tag].map(|tag| encode(budget, &tracker, SLICE_MS, &slices, tag));
        prop_assert_eq!(plain.is_ok(), tagged.is_ok());
        let (Ok(plain), Ok(tagged)) = (plain, tagged) else { return Ok(()) };
        prop_assert!(size(budget, &tagged) <= room(budget));
        let [read, with_tag] = [&plain, &tagged].map(|text| decode(tracker.base(), text.as_bytes()).unwrap());
        // Slices that were merged did not fit either.
        let has_room = read.admitted == slices && size(budget, &plain) + MOST_OF_A_TAG <= room(budget);
        prop_assert!(with_tag.tag == tag || !has_room && plain == tagged);
        prop_assert_eq!(OffsetMap { tag: None, ..with_tag }, read);
    }

    #[test]
    fn an_encoded_map_decodes_to_itself(tracker in sets(), slices in admissions(), budget in budgets()) {
        let map = OffsetMap { completed: tracker.runs().collect(), admitted: slices.clone(), tag: None };
        let newest = AdmissionSlice {
            end_ms: slices.last().map_or(0, |slice| slice.end_ms),
            admitted: slices.iter().map(|slice| slice.admitted).sum(),
        };
        match encode(budget, &tracker, SLICE_MS, &slices, None) {
            Ok(text) => {
                prop_assert!(size(budget, &text) <= room(budget));
                let read = decode(tracker.base(), text.as_bytes());
                let roomy = encode(MapBudget::Bytes(usize::MAX), &tracker, SLICE_MS, &slices, None);
                if read.as_ref() != Ok(&map) {
                    // Only if the slices do not all fit.
                    prop_assert_eq!(read, Ok(OffsetMap { admitted: vec![newest], ..map }));
                    prop_assert!(roomy.is_err() || roomy.unwrap().len() as u64 * 6 > budget.payload_bits());
                }
            }
            Err(refused) => {
                prop_assert_eq!(refused.budget_bits, budget.payload_bits());
                prop_assert!(refused.needed_bits > refused.budget_bits);
            }
        }
    }

    #[test]
    fn an_encoded_map_stays_within_its_bound(tracker in sets(), slices in admissions(), budget in budgets()) {
        let (count, admitted) = extent(&slices);
        let bound = tracker.bits_bound() + overhead_bits(count, admitted);
        prop_assert!(needed_bits(&tracker, &slices) <= bound);
        if bound <= budget.payload_bits() {
            prop_assert!(encode(budget, &tracker, SLICE_MS, &slices, None).is_ok());
        }
        prop_assert!(bound <= tracker.bits_bound() + overhead_bits(count + 1, admitted + 1));
    }

    #[test]
    fn a_completion_stays_within_its_predicted_bound(tracker in sets(), ahead in 0..100u64, budget in budgets()) {
        let mut tracker = tracker;
        let offset = tracker.base() + ahead.min(tracker.span() + 1) as i64;
        for seen in tracker.base()..=offset {
            tracker.observe(seen);
        }
        let bound = tracker.bits_bound_after(offset);
        tracker.complete(offset);
        prop_assert!(tracker.bits_bound() <= bound);
        if bound + overhead_bits(0, 0) <= budget.payload_bits() {
            prop_assert!(encode(budget, &tracker, SLICE_MS, &[], None).is_ok());
        }
    }

    #[test]
    fn no_slice_expires_too_early(
        slices in prop::collection::vec((0..40_000i64, 0..100u64), 0..20),
        slice_ms in 0..500u32,
    ) {
        let slices: Vec<AdmissionSlice> =
            slices.into_iter().map(|(end_ms, admitted)| AdmissionSlice { end_ms, admitted }).collect();
        let text = encode(MapBudget::default(), &Tracker::new(3), slice_ms, &slices, None).unwrap();
        let read = decode(3, text.as_bytes()).unwrap().admitted;
        prop_assert!(read.windows(2).all(|pair| pair[0].end_ms < pair[1].end_ms));
        let since = |slices: &[AdmissionSlice], from: i64| -> u64 {
            slices.iter().filter(|slice| slice.end_ms >= from).map(|slice| slice.admitted).sum()
        };
        for slice in &slices {
            prop_assert!(since(&read, slice.end_ms) >= since(&slices, slice.end_ms));
        }
        prop_assert_eq!(since(&read, i64::MIN), since(&slices, i64::MIN));
    }

    /// MirrorMaker 2 copies the metadata of a commit to another cluster, beside the offset that the record has there.
    /// The service used to stop for it, in the middle of a disaster.
    #[test]
    fn a_copy_beside_another_offset_is_told_from_damage(
        tracker in sets(), slices in admissions(), wide in any::<bool>(), other in 0..1i64 << 61,
    ) {
        let budget = if wide { MapBudget::Chars(10_000) } else { MapBudget::Bytes(30_000) };
        let text = encode(budget, &tracker, SLICE_MS, &slices, None);
        prop_assume!(text.is_ok() && other != tracker.base());
        let text = text.unwrap();
        let admitted = decode(tracker.base(), text.as_bytes()).unwrap().admitted;
        prop_assert_eq!(decode(other, text.as_bytes()), Err(DecodeError::Copied { admitted }));
        let damaged = Err(DecodeError::Unreadable(Unreadable::Check));
        let mut shorter = text.clone();
        shorter.pop();
        let symbol = if wide { "一" } else { "A" };
        for text in [shorter, format!("{text}{symbol}"), text.replacen("wm1", "wm1?", 1)] {
            prop_assert_eq!(&decode(other, text.as_bytes()), &damaged, "{}", text);
        }
    }

    #[test]
    fn arbitrary_bytes_are_refused(metadata in prop::collection::vec(any::<u8>(), 0..300), prefix in 0..4usize) {
        let prefix: &[u8] = [&b""[..], b"wm", b"wm1c", b"wm1b"][prefix];
        assert_refused(0, &[prefix, &metadata].concat());
    }

    #[test]
    fn arbitrary_contents_are_read_in_bounds(body in prop::collection::vec(0..64u8, 0..200), base in any::<i64>()) {
        let bits: Vec<(u64, usize)> = body.into_iter().map(|symbol| (u64::from(symbol), 6)).collect();
        if let Ok(map) = decode(base, forged(base, &bits).as_bytes()) {
            let mut end = base;
            for run in map.completed.iter() {
                prop_assert!(run.start > base.max(end) || run.start == 0 && base < 0);
                end = run.end;
            }
            prop_assert!(end.abs_diff(base) <= MAX_SPAN);
        }
    }

    #[test]
    fn damage_is_detected(
        tracker in sets(),
        slices in admissions(),
        wide in any::<bool>(),
        at in any::<prop::sample::Index>(),
        bit in 0..8,
    ) {
        let budget = if wide { MapBudget::Chars(10_000) } else { MapBudget::Bytes(30_000) };
        let text = encode(budget, &tracker, SLICE_MS, &slices, None);
        prop_assume!(text.is_ok());
        let mut damaged = text.unwrap().into_bytes();
        let at = at.index(damaged.len());
        damaged[at] ^= 1u8 << bit;
        assert_refused(tracker.base(), &damaged);
    }

    #[test]
    fn a_truncated_or_extended_map_is_refused(
        tracker in sets(),
        wide in any::<bool>(),
        at in any::<prop::sample::Index>(),
        garbage in prop::collection::vec(any::<u8>(), 1..40),
    ) {
        let budget = if wide { MapBudget::Chars(10_000) } else { MapBudget::Bytes(30_000) };
        let text = encode(budget, &tracker, SLICE_MS, &[], None);
        prop_assume!(text.is_ok());
        let text = text.unwrap().into_bytes();
        let kept = &text[..at.index(text.len())];
        assert_refused(tracker.base(), kept);
        assert_refused(tracker.base(), &[&text, &garbage[..]].concat());
        prop_assume!(!text.starts_with(&[kept, &garbage].concat()) || kept.len() + garbage.len() < text.len());
        assert_refused(tracker.base(), &[kept, &garbage].concat());
    }
}

/// Builds metadata of any contents with a valid checksum.
fn forged(base: i64, values: &[(u64, usize)]) -> String {
    forge::map(Alphabet::Narrow, base, &bits_of(values))
}

#[test]
fn a_valid_forged_map_is_read() {
    // no slices; one pair of runs: 2 pending, 3 completed
    let body = bits_of(&[(0, 9), (0, 2), (1, 6), (1, 1), (0, 5), (0, 5), (0b10, 2), (0b110, 3)]);
    for alphabet in [Alphabet::Wide, Alphabet::Narrow] {
        let text = forge::map(alphabet, 40, &body);
        let map = decode(40, text.as_bytes()).unwrap();
        assert_eq!((map.completed.iter().next(), map.completed.iter().count()), (Some(42..45), 1));
        let written =
            encode(MapBudget::Bytes(100), &Tracker::restore(40, &map.completed), SLICE_MS, &[], None).unwrap();
        assert!(alphabet == Alphabet::Wide || written == text, "encoder and specification differ");
    }
}

#[test]
fn values_beyond_the_bounds_are_malformed() {
    let malformed = Err(DecodeError::Unreadable(Unreadable::Malformed));
    let ones = (u64::MAX, 40);
    let claims: [&[(u64, usize)]; 6] = [
        // a run of 41 · 2³¹
        &[(0, 9), (0, 2), (1, 6), (1, 1), (31, 5), (31, 5), ones, (0, 1), (0, 31), (0, 32)],
        // 2⁶² pairs of runs
        &[(0, 9), (0, 2), (63, 6), (1 << 62, 63), (0, 5), (0, 5)],
        // an unknown kind
        &[(0, 9), (3, 2), (1, 6), (1, 1), (0, 5), (0, 5), (0, 2)],
        // a slice of 40 · 2⁶³
        &[(1, 9), (1, 6), (1, 1), (1, 6), (1, 1), (63, 6), ones, (0, 1), (0, 63), (0, 2), (0, 6)],
        // the committed offset itself, completed
        &[(0, 9), (2, 2), (1, 6), (1, 1), (0, 5), (0, 1)],
        // a whole symbol of padding
        &[(0, 9), (0, 2), (0, 6), (0, 5), (0, 5), (0, 12)],
    ];
    for claim in claims {
        assert_eq!(decode(0, forged(0, claim).as_bytes()), malformed, "{claim:?}");
    }
    let beyond_the_last_offset = [(0, 9), (0, 2), (1, 6), (1, 1), (0, 5), (0, 5), (0, 2)];
    assert_eq!(decode(i64::MAX - 1, forged(i64::MAX - 1, &beyond_the_last_offset).as_bytes()), malformed);
}

#[test]
fn metadata_of_other_programs_is_foreign() {
    // Flink, Spark, Connect and Kafka's tools commit no metadata.
    let parallel_consumer = ["TA==", "bAABAA==", "bgAAAAE=", "bwAAAAEB", "ZQAAAAEAAAAB"];
    let kafka_streams = ["AQAAAYvP5WgA", "AgAAAYvP5WgAAAAAAA=="];
    let others =
        ["", "wm", "wmx", "{\"consumed\":1}", "\u{1}\u{2}", "一", "NONE", "\u{FEFF}wm1c", " wm1b", "host-3@1700000000"];
    let raw: [&[u8]; 7] = [&[1], &[2, 0, 0], &[0xEE, 1, 2], &[0xFF, 0xFE, 0], b"w", b"Wm1c", b"\xED\xA0\x80"];
    let texts = parallel_consumer.iter().chain(&kafka_streams).chain(&others).map(|text| text.as_bytes());
    for metadata in texts.chain(raw) {
        match decode(17, metadata) {
            Err(DecodeError::Foreign { bytes, .. }) => assert_eq!(bytes, metadata.len()),
            other => panic!("{metadata:?}: {other:?}"),
        }
    }
    assert_eq!(
        decode(17, b"").unwrap_err().to_string(),
        "the offset was committed without metadata, so not by this program (a reset, or another member of the group)"
    );
    assert_eq!(
        decode(17, b"{\"a\":\xFF}").unwrap_err().to_string(),
        "the commit metadata is another program's: 7 bytes that begin with \"{\\\"a\\\":\\xff}\""
    );
}

#[test]
fn a_truncated_map_or_one_of_another_version_is_unreadable() {
    let tracker = restored(9, &[(1, 2), (3, 4)]);
    for budget in [MapBudget::Chars(100), MapBudget::Bytes(100)] {
        let text = encode(budget, &tracker, SLICE_MS, &[AdmissionSlice { end_ms: 5, admitted: 6 }], None).unwrap();
        let next = text.replacen("wm1", "wm2", 1);
        assert_eq!(
            decode(9, next.as_bytes()).unwrap_err().to_string(),
            "the commit metadata is an offset map of ours that cannot be read: it has version 2, this program reads \
             version 1"
        );
        for cut in 0..text.len() {
            assert_refused(9, &text.as_bytes()[..cut]);
        }
        for more in ["A", "一", " ", "\n", "\0"] {
            assert_refused(9, format!("{text}{more}").as_bytes());
        }
    }
}

#[test]
fn half_a_surrogate_or_broken_utf8_in_a_map_is_unreadable() {
    let tracker = restored(9, &[(1, 2), (3, 4)]);
    let text = encode(MapBudget::default(), &tracker, SLICE_MS, &[], None).unwrap();
    let unreadable = Err(DecodeError::Unreadable(Unreadable::Check));
    for at in (4..text.len()).step_by(3) {
        for foreign in [b"\xED\xA0\x80", b"\xED\xBF\xBF", b"\xFF\xFF\xFF", b"\x80\x80\x80", b"\xE4\xB8\x28"] {
            let mut broken = text.clone().into_bytes();
            broken[at..at + 3].copy_from_slice(foreign);
            assert_eq!(decode(9, &broken), unreadable, "{:?}", broken.escape_ascii().to_string());
        }
    }
}

#[test]
fn forty_thousand_characters_do_no_harm() {
    for (prefix, filler) in [("", "一"), ("wm1c", "一"), ("wm1b", "A"), ("wm1c", "\u{F440}"), ("wm2c", "一")] {
        assert_refused(0, format!("{prefix}{}", filler.repeat(40_000)).as_bytes());
    }
    for alphabet in [Alphabet::Wide, Alphabet::Narrow] {
        for byte in [0x00u8, 0xFF, 0x55, 0xFE, 0x01] {
            // no slices; each kind in turn, with a count of 2²⁰
            for kind in 0..4 {
                let mut values = vec![(0, 9), (kind, 2), (21, 6), (1 << 20, 21)];
                values.resize(40_000 * alphabet.symbol_bits() / 8, (u64::from(byte), 8));
                if let Ok(map) = decode(5, forge::map(alphabet, 5, &bits_of(&values)).as_bytes()) {
                    assert!(map.completed.iter().all(|run| run.start > 5 && run.end <= 5 + MAX_SPAN as i64));
                }
            }
        }
    }
}

/// A pattern for which one kind of encoding is best: pending, then completed, repeated.
const PATTERNS: [(u64, (u64, u64)); 5] = [(0, (500, 700)), (0, (1, 1)), (0, (2, 3)), (1, (1, 40)), (2, (40, 1))];

#[test]
fn a_set_that_exceeds_its_budget_is_refused_never_shortened() {
    for budget in [MapBudget::Chars(4096), MapBudget::Bytes(4096), MapBudget::Chars(64), MapBudget::Bytes(64)] {
        for (kind, (waiting, completed)) in PATTERNS {
            let mut refused = false;
            for pairs in (0..).map(|power| 1 << power).take_while(|pairs| pairs * (waiting + completed) <= MAX_SPAN) {
                let tracker = restored(1 << 40, &vec![(waiting, completed); pairs as usize]);
                assert_eq!(tracker.span(), pairs * (waiting + completed));
                match encode(budget, &tracker, SLICE_MS, &[], None) {
                    Ok(text) => {
                        assert!(!refused, "{pairs} pairs fit, but fewer did not");
                        let bits = forge::unseal(&text).unwrap().1;
                        let written = u64::from(bits[9]) << 1 | u64::from(bits[10]);
                        assert!(pairs < 32 || written == kind, "kind {written} is used for {waiting}, {completed}");
                        assert!(decode(1 << 40, text.as_bytes()).unwrap().completed.iter().eq(tracker.runs()));
                    }
                    Err(_) => refused = true,
                }
            }
            assert!(refused, "{waiting}, {completed} never exceeded {budget:?}");
        }
    }
}

/// The state after a restart with a larger capacity, without room for the admissions beside the set.
#[test]
fn recent_admissions_are_merged_before_the_set_is_refused() {
    let slices: Vec<AdmissionSlice> =
        (0..200).map(|at| AdmissionSlice { end_ms: 1_000_000 + at * 50, admitted: 5000 + at as u64 }).collect();
    let total: u64 = slices.iter().map(|slice| slice.admitted).sum();
    let tracker = restored(0, &vec![(1, 1); 30_500]);
    let budget = MapBudget::Chars(4096);
    let text = encode(budget, &tracker, SLICE_MS, &slices, None).unwrap();
    let map = decode(0, text.as_bytes()).unwrap();
    assert!(map.completed.iter().eq(tracker.runs()));
    assert_eq!(map.admitted, [AdmissionSlice { end_ms: 1_009_950, admitted: total }]);
    // With a smaller set, all slices are kept.
    let text = encode(budget, &restored(0, &vec![(1, 1); 29_000]), SLICE_MS, &slices, None).unwrap();
    assert_eq!(decode(0, text.as_bytes()).unwrap().admitted, slices);
}

#[test]
fn the_largest_span_fits_and_offsets_beyond_it_are_left_out() {
    let all = restored(3, &[(MAX_SPAN - 1, 1)]);
    assert_eq!(all.span(), MAX_SPAN);
    let text = encode(MapBudget::Bytes(64), &all, SLICE_MS, &[], None).unwrap();
    assert!(decode(3, text.as_bytes()).unwrap().completed.iter().eq(all.runs()));
    let beyond: OffsetRuns = std::iter::once(4..4 + MAX_SPAN as i64 + 100).collect();
    let kept = Tracker::restore(3, &beyond);
    assert_eq!(kept.span(), MAX_SPAN, "offsets beyond the span are read again");
    assert!(encode(MapBudget::Bytes(64), &kept, SLICE_MS, &[], None).is_ok());
}

#[test]
fn the_text_of_an_empty_map_is_not_empty() {
    for (budget, length) in [(MapBudget::default(), 9), (MapBudget::Bytes(100), 15)] {
        let text = encode(budget, &Tracker::new(7), SLICE_MS, &[], None).unwrap();
        assert!(text.starts_with("wm1"));
        assert_eq!(size(budget, &text), length);
        assert_eq!(decode(7, text.as_bytes()), Ok(OffsetMap::default()));
    }
}

#[test]
fn a_budget_is_exact() {
    let lengths: Vec<(u64, u64)> = (0..3000).map(|at| (1 + at % 7, 1 + at % 11)).collect();
    let tracker = restored(0, &lengths);
    let needed = needed_bits(&tracker, &[]);
    for of in [MapBudget::Chars, MapBudget::Bytes] {
        let fits = (0..10_000).find(|room| of(*room).payload_bits() >= needed).unwrap();
        let text = encode(of(fits), &tracker, SLICE_MS, &[], None).unwrap();
        assert_eq!(size(of(fits), &text), fits);
        assert!(encode(of(fits - 1), &tracker, SLICE_MS, &[], None).is_err());
    }
}

#[test]
fn a_budget_never_exceeds_a_protocol_string() {
    let most = MapBudget::Chars(usize::MAX).payload_bits();
    assert_eq!(most, (32_767 / 3 - 7) * 15);
    assert_eq!(MapBudget::Bytes(usize::MAX).payload_bits(), (32_767 - 10) * 6);
    assert_eq!(MapBudget::Chars(4096).payload_bits(), 4089 * 15);
    assert_eq!(MapBudget::Chars(3).payload_bits(), 0);
}
