use proptest::prelude::*;

use super::reader::TraceSource;
use super::*;

/// Writes a trace of two partitions.
fn written(records: &[(u64, Option<&str>, u32, u32, bool)]) -> Vec<u8> {
    let partition = |number| TracedPartition { topic: "in".to_owned(), number, ..TracedPartition::default() };
    let contents = Contents { partitions: vec![partition(0), partition(1)], ..Contents::default() };
    let mut writer = TraceWriter::new(Vec::new(), contents).unwrap();
    for &(at_ms, client, partition, bytes, retried) in records {
        let client = client.map_or(ANONYMOUS, |client| writer.client(client));
        writer.push(TraceRecord { at_ms, client, partition, bytes, retried }).unwrap();
    }
    writer.finish().unwrap().0
}

fn read(bytes: &[u8]) -> Result<(Contents, Vec<TraceRecord>), TraceError> {
    let mut reader = TraceSource::Memory(bytes.into()).open()?;
    let (mut all, mut block) = (Vec::new(), Vec::new());
    while reader.next_block(&mut block)? {
        all.append(&mut block);
    }
    Ok((reader.contents().clone(), all))
}

type Row = (u64, Option<usize>, u32, u32, bool);
const NAMES: [&str; 4] = ["home-loan", "car,loan", "prêt", "x"];

/// Rows with any distance in time, clients, and sizes of all lengths.
fn rows() -> impl Strategy<Value = Vec<Row>> {
    let step = prop_oneof![4 => 0..3_u64, 1 => 0..1_u64 << 40];
    let size = prop_oneof![3 => 0..1_000_u32, 1 => any::<u32>()];
    let row = (step, prop::option::of(0..NAMES.len()), 0..2_u32, size, prop::bool::weighted(0.1));
    prop::collection::vec(row, 0..300)
}

fn timed(rows: &[Row]) -> Vec<(u64, Option<&'static str>, u32, u32, bool)> {
    let mut now = 1_700_000_000_000;
    let timed = rows.iter().map(|&(step, client, partition, bytes, retried)| {
        now += step;
        (now, client.map(|client| NAMES[client]), partition, bytes, retried)
    });
    timed.collect()
}

/// The part of the file that a byte belongs to; `None` for the last bytes, without which the file is no trace.
fn part_of(at: usize, size: usize, contents: &Contents) -> Option<TracePart> {
    if at < MAGIC.len() {
        return Some(TracePart::Header);
    }
    let mut end = MAGIC.len();
    for (index, block) in contents.blocks.iter().enumerate() {
        end += block.bytes as usize;
        if at < end {
            return Some(TracePart::Block(index + 1));
        }
    }
    (at < size - MAGIC.len()).then_some(TracePart::Footer)
}

proptest! {
    #[test]
    fn a_trace_is_read_as_it_was_written(rows in rows()) {
        let rows = timed(&rows);
        let (contents, records) = read(&written(&rows)).unwrap();
        let found: Vec<_> = records
            .iter()
            .map(|r| (r.at_ms, contents.name(r.client), r.partition, r.bytes, r.retried))
            .collect();
        prop_assert_eq!(found, rows.clone());
        prop_assert_eq!(contents.records(), rows.len() as u64);
        prop_assert_eq!(contents.retried, rows.iter().filter(|row| row.4).count() as u64);
        prop_assert_eq!(contents.last_ms, rows.last().map_or(0, |row| row.0));
    }

    #[test]
    fn any_damaged_byte_is_reported_with_its_part(
        rows in rows(), at in any::<prop::sample::Index>(), flip in 1..=255_u8,
    ) {
        let mut bytes = written(&timed(&rows));
        let (contents, _) = read(&bytes).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        match (read(&bytes).unwrap_err(), part_of(at, bytes.len(), &contents)) {
            (TraceError::Damaged(found), Some(expected)) => prop_assert_eq!(found, expected),
            (TraceError::NoTrace, None) => {}
            (error, expected) => prop_assert!(false, "{error:?} for a byte of {expected:?}"),
        }
    }

    #[test]
    fn a_trace_that_was_cut_off_is_refused(rows in rows(), at in any::<prop::sample::Index>()) {
        let bytes = written(&timed(&rows));
        prop_assert!(read(&bytes[..at.index(bytes.len())]).is_err());
    }

    #[test]
    fn arbitrary_bytes_are_refused_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300), count in 0..200_usize,
    ) {
        let contents = Contents { clients: vec![String::new()], ..Contents::default() };
        let _ = block::decode(&bytes, count, &contents, &mut Vec::new());
        prop_assert!(read(&bytes).is_err());
        // The same between a header and a trailer that are sound but for the numbers in it.
        let whole = [&MAGIC[..], &bytes, MAGIC].concat();
        prop_assert!(read(&whole).is_err());
        let _ = csv::parse(&String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn blocks_are_bounded_and_small() {
    let rows: Vec<Row> = (0..150_000).map(|n| (n % 2, Some(n as usize % 4), 0, 300 + n as u32 % 500, false)).collect();
    let bytes = written(&timed(&rows));
    let (contents, records) = read(&bytes).unwrap();
    let counts: Vec<u32> = contents.blocks.iter().map(|block| block.records).collect();
    assert_eq!((counts, records.len()), (vec![65_536, 65_536, 18_928], 150_000));
    assert!(bytes.len() < 150_000 * 51 / 10, "{} bytes", bytes.len());
}

#[test]
fn a_later_version_is_named() {
    let bytes = [b"WMTRACE2", &[0; 30][..], b"WMTRACE2"].concat();
    assert!(matches!(read(&bytes), Err(TraceError::Version('2'))));
}

#[test]
fn hashed_ids_keep_no_id_in_clear() {
    let begun = Contents { hashed_ids: true, partitions: vec![TracedPartition::default()], ..Contents::default() };
    let mut writer = TraceWriter::new(Vec::new(), begun).unwrap();
    let (one, other) = (writer.client("home-loan"), writer.client("car-loan"));
    assert_eq!((one, other, writer.client("home-loan")), (FIRST_CLIENT, FIRST_CLIENT + 1, FIRST_CLIENT));
    writer.push(TraceRecord { client: one, ..TraceRecord::default() }).unwrap();
    let (bytes, contents) = writer.finish().unwrap();
    assert_eq!(contents.name(one), Some(named("home-loan", true).as_str()));
    assert!(!bytes.windows(4).any(|window| window == b"loan"));
}

#[test]
fn lines_become_a_trace_in_order_of_time() {
    let text = "ms,client,partition,bytes\n30,a,in-0,5\n10,\"b, c\",in-1,7\n\n20,,in-0,9\n";
    let (contents, records) = read(&csv::parse(text).unwrap()).unwrap();
    let found: Vec<_> = records
        .iter()
        .map(|r| (r.at_ms, contents.name(r.client), contents.partitions[r.partition as usize].topic.as_str(), r.bytes))
        .collect();
    assert_eq!(found, [(10, Some("\"b, c\""), "in-1", 7), (20, None, "in-0", 9), (30, Some("a"), "in-0", 5)]);
    for (text, line) in [("1,a,0,5\n1,a,0\n", 2), ("x,a,0,5", 1), ("1,a,0,-5", 1), ("hello", 1)] {
        assert!(matches!(csv::parse(text), Err(TraceError::Csv { line: at, .. }) if at == line), "{text:?}");
    }
}

#[test]
fn a_file_is_a_trace_or_text() {
    let folder = tempfile::tempdir().unwrap();
    let find = |bytes: &[u8]| {
        let path = folder.path().join("trace");
        std::fs::write(&path, bytes).unwrap();
        TraceSource::find(&path)
    };
    let trace = written(&timed(&[(1, Some(0), 1, 2, false)]));
    assert!(matches!(find(&trace), Ok(TraceSource::File(_))));
    let mut damaged = trace.clone();
    damaged[0] = b'w';
    let error = find(&damaged).unwrap().open().err().unwrap();
    assert_eq!(error.to_string(), "the header is damaged");
    assert_eq!(find(b"1,a,0,5\n").unwrap().open().unwrap().contents().records(), 1);
    assert!(matches!(find(&[0xff; 40]), Err(TraceError::NoTrace)));
    assert_eq!(find(b"").unwrap().open().unwrap().contents().records(), 0);
}
