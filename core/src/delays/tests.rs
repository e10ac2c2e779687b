use super::*;

#[test]
fn buckets_include_their_upper_bound() {
    let mut histogram = Histogram::default();
    histogram.record(Duration::from_millis(1));
    histogram.record(Duration::from_micros(1_001));
    histogram.record(Duration::from_secs(100_000));
    assert_eq!((histogram.counts[0], histogram.counts[1], histogram.counts[BOUNDS.len()]), (1, 1, 1));
}
