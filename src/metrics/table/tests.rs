use std::collections::BTreeSet;

use super::*;

#[test]
fn names_are_unique_also_without_total() {
    let bare: BTreeSet<_> = TABLE.iter().map(|m| m.name.trim_end_matches("_total")).collect();
    assert_eq!(bare.len(), TABLE.len());
}

#[test]
fn names_follow_the_conventions() {
    for metric in TABLE {
        let name = metric.name;
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
        assert!(name.starts_with("watermaster_") || name.starts_with("process_"), "{name}");
        assert_eq!(metric.kind == MetricKind::Counter, name.ends_with("_total"), "{name}");
        for taken in ["_sum", "_count", "_bucket"] {
            assert!(!name.ends_with(taken), "{name}");
        }
        let bare = name.trim_end_matches("_total");
        let suffixed = |suffix: &str| bare.ends_with(suffix);
        match metric.unit {
            Unit::Seconds => assert!(suffixed("_seconds"), "{name}"),
            Unit::Bytes => assert!(suffixed("_bytes"), "{name}"),
            Unit::Ratio => assert!(suffixed("_ratio"), "{name}"),
            Unit::Records if metric.kind == MetricKind::Gauge => {
                assert!(suffixed("_units") || suffixed("_records"), "{name}");
            }
            _ => assert!(!["_seconds", "_bytes", "_ratio"].iter().any(|s| suffixed(s)), "{name}"),
        }
    }
}

#[test]
fn service_is_the_first_label_of_all_but_the_process_wide_ones() {
    for metric in TABLE {
        let process_wide = ["process_", "watermaster_build_info", "watermaster_config_"]
            .iter()
            .any(|start| metric.name.starts_with(start));
        assert_eq!(metric.labels.first() == Some(&"service"), !process_wide, "{}", metric.name);
        let unique: BTreeSet<_> = metric.labels.iter().collect();
        assert_eq!(unique.len(), metric.labels.len(), "{}", metric.name);
    }
}

#[test]
fn only_histograms_have_buckets_and_they_rise() {
    for metric in TABLE {
        assert_eq!(metric.kind == MetricKind::Histogram, !metric.buckets().is_empty(), "{}", metric.name);
        assert!(metric.buckets().is_sorted_by(|a, b| a < b), "{}", metric.name);
    }
}

#[test]
fn help_is_one_plain_sentence() {
    for metric in TABLE {
        assert!(metric.help.ends_with('.'), "{}", metric.name);
        assert!(!metric.help.contains(['\\', '\n']), "{}", metric.name);
    }
}
