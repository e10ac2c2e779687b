use super::*;

#[test]
fn buckets_include_their_upper_bound() {
    let mut histogram = Histogram::default();
    histogram.record(Duration::from_millis(1));
    histogram.record(Duration::from_micros(1_001));
    histogram.record(Duration::from_secs(100_000));
    assert_eq!((histogram.counts[0], histogram.counts[1], histogram.counts[BOUNDS.len()]), (1, 1, 1));
}

fn client_delays(millis: &[u64]) -> ClientDelays {
    let mut delays = ClientDelays::default();
    millis.iter().for_each(|&millis| delays.record(Duration::from_millis(millis)));
    delays
}

#[test]
fn delays_of_clients_add_up() {
    let mut sum = client_delays(&[100, 101]);
    sum.merge(&client_delays(&[4_200, 901_000]));
    assert_eq!(sum, client_delays(&[901_000, 4_200, 101, 100]));
    assert_eq!((sum.counts[0], sum.counts[1], sum.counts[4], sum.counts[11]), (1, 1, 1, 1));
    assert_eq!((sum.sum, sum.longest), (905_401_000, 901_000_000));
}

#[test]
fn a_quantile_lies_in_its_bucket_and_is_never_above_the_longest_delay() {
    assert_eq!(ClientDelays::default().quantile(0.5), None);
    // Of ten delays of 2.5 to 5 s, half are taken to be below the middle of the bucket.
    assert_eq!(client_delays(&[5_000; 10]).quantile(0.5), Some(3.75));
    assert_eq!(client_delays(&[4_200; 10]).quantile(0.99), Some(4.2));
    let mixed = client_delays(&[&[200; 98][..], &[2_000_000; 2]].concat());
    assert_eq!(mixed.quantile(1.0), Some(2_000.0));
    let median = mixed.quantile(0.5).unwrap();
    assert!((0.1..=0.5).contains(&median), "{median}");
}
