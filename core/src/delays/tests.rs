use super::*;

#[test]
fn quantiles_count_undelayed_records_and_are_close() {
    let mut delays = DelayHistogram::default();
    assert_eq!(delays.quantile(0.99), 0.0);
    for _ in 0..98 {
        delays.record(Duration::ZERO);
    }
    delays.record(Duration::from_millis(700));
    delays.record(Duration::from_secs(5));
    assert_eq!(delays.quantile(0.98), 0.0);
    let p99 = delays.quantile(0.99);
    assert!((0.7..0.77).contains(&p99), "{p99}");
}

#[test]
fn buckets_include_their_upper_bound() {
    let mut histogram = Histogram::default();
    histogram.record(Duration::from_millis(1));
    histogram.record(Duration::from_micros(1_001));
    histogram.record(Duration::from_secs(100_000));
    assert_eq!((histogram.counts[0], histogram.counts[1], histogram.counts[BOUNDS.len()]), (1, 1, 1));
}
