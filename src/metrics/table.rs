//! Every metric, in one table: the publisher, `docs/metrics.md`, dashboards and alert rules are tested against it.

use watermaster_core::delays::BOUNDS;

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Never decreases while the process lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Cumulative buckets, a sum and a count.
    Histogram,
}

impl Kind {
    /// The word in a `# TYPE` line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// What a metric's value counts or measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Whole records; capacity is counted in them too.
    Records,
    Seconds,
    Bytes,
    /// 0 to 1.
    Ratio,
    /// 0 or 1.
    Bool,
    /// How many things that the name tells.
    Count,
}

impl Unit {
    /// The word for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Unit::Records => "records",
            Unit::Seconds => "seconds",
            Unit::Bytes => "bytes",
            Unit::Ratio => "ratio (0 to 1)",
            Unit::Bool => "0 or 1",
            Unit::Count => "count",
        }
    }
}

/// One row: a metric family.
#[derive(Debug, PartialEq)]
pub struct Metric {
    /// The full name, prefix and suffix included.
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    /// Label names, in the order they are written.
    pub labels: &'static [&'static str],
    /// One sentence for people; no backslash, no line break.
    pub help: &'static str,
    /// Upper bounds of a histogram's buckets, rising; empty for the others.
    pub buckets: &'static [f64],
}

/// All histograms are of times, over the buckets in which the core counts them.
const fn buckets(kind: Kind) -> &'static [f64] {
    if matches!(kind, Kind::Histogram) { &BOUNDS } else { &[] }
}

macro_rules! metrics {
    ($($id:ident $name:literal $kind:ident $unit:ident [$($label:literal)*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $id: Metric = Metric {
                name: $name,
                kind: Kind::$kind,
                unit: Unit::$unit,
                labels: &[$($label),*],
                help: $help,
                buckets: buckets(Kind::$kind),
            };
        )*
        /// Every metric, in the order of the documentation.
        pub static TABLE: &[&Metric] = &[$(&$id),*];
    };
}

metrics! {
    // ## Decisions
    RECORDS "watermaster_records_total" Counter Records ["service" "client" "decision"]
        "Records decided, by what was really done (admitted, rejected); their sum is what was decided.";
    DELAYED "watermaster_delayed_total" Counter Records ["service" "client"]
        "Records that waited in a backlog, however they left it.";
    REJECTED "watermaster_rejected_total" Counter Records ["service" "client" "reason"]
        "Records sent to the dead-letter topic, by reason.";
    SHADOW_RECORDS "watermaster_shadow_records_total" Counter Records ["service" "client" "decision"]
        "Records by what would have been decided, while enforce = false.";
    SHADOW_REJECTED "watermaster_shadow_rejected_total" Counter Records ["service" "client" "reason"]
        "Records that would have been rejected, by reason, while enforce = false.";
    SHADOW_DELAYED "watermaster_shadow_delayed_total" Counter Records ["service" "client"]
        "Records that would have waited in a backlog, while enforce = false.";

    // ## Shares
    CAPACITY "watermaster_capacity_units" Gauge Records ["service"]
        "Records that the service can take in one cycle.";
    CYCLE "watermaster_cycle_seconds" Gauge Seconds ["service"]
        "The length of a cycle.";
    WANTS "watermaster_wants_units" Gauge Records ["service" "client"]
        "Records that waited when a cycle began and first-time arrivals in it: this cycle's so far or the last one's, the larger.";
    GRANTED "watermaster_granted_units" Gauge Records ["service" "client"]
        "Records that the client may send in this cycle.";
    DEFAULT_SHARE "watermaster_default_share_units" Gauge Records ["service" "client"]
        "The client's share of the capacity by weight alone.";
    CLIENT_LIMIT "watermaster_client_limit_units" Gauge Records ["service" "client"]
        "The most records that the client's own limit lets go in one cycle (burst + rate); +Inf without one.";
    WINDOW_ADMITTED "watermaster_window_admitted_units" Gauge Records ["service"]
        "Records admitted in the last window of one cycle; never above capacity_units while enforced.";
    WINDOW_ADMITTED_MAX "watermaster_window_admitted_max_units" Gauge Records ["service"]
        "The most records admitted in any window of one cycle since start.";
    CLIENTS "watermaster_clients" Gauge Count ["service"]
        "Clients known now.";
    ALLOCATIONS "watermaster_allocations_total" Counter Count ["service" "cause"]
        "Runs of the allocator, by cause.";
    ENFORCED "watermaster_enforced" Gauge Bool ["service"]
        "1 when decisions are enforced, 0 in passthrough.";
    MODE "watermaster_mode" Gauge Bool ["service" "mode"]
        "1 for the mode that is configured, 0 for the other.";

    // ## Waiting
    BACKLOG_RECORDS "watermaster_backlog_records" Gauge Records ["service" "client"]
        "Records that wait now; none while enforce = false.";
    SHADOW_BACKLOG "watermaster_shadow_backlog_records" Gauge Records ["service" "client"]
        "Records that would wait now, while enforce = false.";
    BACKLOG_BYTES "watermaster_backlog_bytes" Gauge Bytes ["service"]
        "Memory cost of all waiting records: keys, values, headers, 64 bytes a header and 200 bytes a record.";
    BACKLOG_LIMIT_RECORDS "watermaster_backlog_limit_records" Gauge Records ["service"]
        "The most records that one client may have waiting.";
    BACKLOG_LIMIT_BYTES "watermaster_backlog_limit_bytes" Gauge Bytes ["service"]
        "The most memory that waiting records of all clients together may cost (queue_bytes).";
    OLDEST_HELD_AGE "watermaster_oldest_held_age_seconds" Gauge Seconds ["service"]
        "How long the oldest waiting record has waited; 0 when none waits.";
    DELAY "watermaster_delay_seconds" Histogram Seconds ["service"]
        "Time that admitted records spent in a backlog.";
    END_TO_END "watermaster_end_to_end_seconds" Histogram Seconds ["service"]
        "From a record's timestamp to the commit that completed it.";

    // ## Kafka
    CONSUMER_LAG "watermaster_consumer_lag_records" Gauge Records ["service" "topic" "partition"]
        "High watermark (or stable offset, if lower) minus committable offset, for each assigned partition.";
    UNREAD "watermaster_unread_records" Gauge Records ["service" "topic" "partition"]
        "The part of the lag that was not read yet, for each assigned partition; the rest is held, or was completed ahead of what is.";
    HELD "watermaster_held_records" Gauge Records ["service" "topic" "partition"]
        "The part of the lag that waits in backlogs, for each assigned partition.";
    PAUSED_PARTITIONS "watermaster_paused_partitions" Gauge Count ["service" "reason"]
        "Partitions that are not being fetched now, by reason.";
    ROUNDS "watermaster_rounds_total" Counter Count ["service" "outcome"]
        "Rounds (one commit each), by outcome.";
    ROUND "watermaster_round_seconds" Histogram Seconds ["service"]
        "How long a round takes, from its first send to the acknowledged commit.";
    ROUND_PHASE "watermaster_round_phase_seconds" Histogram Seconds ["service" "phase"]
        "How long each phase of a round took under exactly_once, all attempts together.";
    TRANSACTION_ERRORS "watermaster_transaction_errors_total" Counter Count ["service" "phase" "class"]
        "Calls of transactions that failed, by phase and by what the error asks for.";
    RESYNCS "watermaster_resyncs_total" Counter Count ["service"]
        "Comparisons of an interrupted round with what is committed.";
    RESYNCED "watermaster_resynced_records_total" Counter Records ["service" "found"]
        "Records of interrupted rounds, by whether they were found committed.";
    MAP_CHARACTERS "watermaster_map_characters" Gauge Count ["service"]
        "The length of the longest offset map of the assigned partitions.";
    MAP_SPAN "watermaster_map_span_records" Gauge Records ["service"]
        "How many offsets the widest offset map covers.";
    MAP_USED "watermaster_map_used_ratio" Gauge Ratio ["service"]
        "The fullest offset map, as a part of its room in the commit metadata.";
    PRODUCER_RECREATIONS "watermaster_producer_recreations_total" Counter Count ["service" "cause"]
        "Producers that had to be replaced, by cause.";
    CONSUMER_RECREATIONS "watermaster_consumer_recreations_total" Counter Count ["service"]
        "Consumers that had to be replaced: in no group although brokers answered.";
    LOST_RECORDS "watermaster_lost_records_total" Counter Records ["service"]
        "Source records that were deleted before they were read (on_data_loss = continue).";
    STUBS "watermaster_stubs_total" Counter Records ["service"]
        "Stubs sent to the dead-letter topic in place of records that it refuses or that have too many headers.";
    REBALANCES "watermaster_rebalances_total" Counter Count ["service"]
        "Changes of the assignment.";
    SOURCE_RETENTION "watermaster_source_retention_seconds" Gauge Seconds ["service" "topic"]
        "How long a source topic keeps records; 0 while the broker has not told, +Inf for no limit.";

    // ## State
    READY "watermaster_ready" Gauge Bool ["service"]
        "1 when joined and able to produce, 0 otherwise and while draining.";
    SERVICE_UP "watermaster_service_up" Gauge Bool ["service"]
        "0 once a fatal error stopped the service.";
    TARGET_REFUSING "watermaster_target_refusing" Gauge Bool ["service"]
        "1 while the target or the dead-letter topic refuses writes.";
    BUILD_INFO "watermaster_build_info" Gauge Bool ["version" "librdkafka"]
        "Always 1; the labels tell what runs.";
    CONFIG_RELOADED "watermaster_config_last_reload_successful" Gauge Bool []
        "1 if the last attempt to take over the configuration (the start, SIGHUP or POST /v1/reload) succeeded.";
    CONFIG_RELOADED_AT "watermaster_config_last_reload_success_timestamp_seconds" Gauge Seconds []
        "When the configuration in force was taken over, since the Unix epoch.";

    // ## Process
    PROCESS_CPU "process_cpu_seconds_total" Counter Seconds []
        "User and system CPU time spent, in whole seconds.";
    PROCESS_OPEN_FDS "process_open_fds" Gauge Count []
        "Open file descriptors.";
    PROCESS_MAX_FDS "process_max_fds" Gauge Count []
        "The most file descriptors that may be open.";
    PROCESS_VIRTUAL_MEMORY "process_virtual_memory_bytes" Gauge Bytes []
        "Virtual memory size.";
    PROCESS_VIRTUAL_MEMORY_MAX "process_virtual_memory_max_bytes" Gauge Bytes []
        "The most virtual memory that may be had.";
    PROCESS_RESIDENT_MEMORY "process_resident_memory_bytes" Gauge Bytes []
        "Resident memory size.";
    PROCESS_START_TIME "process_start_time_seconds" Gauge Seconds []
        "When the process started, in seconds since 1970.";
    PROCESS_THREADS "process_threads" Gauge Count []
        "Threads of the process.";
}

impl Metric {
    /// The name without the program's prefix, as the documentation groups it.
    pub fn short_name(&self) -> &'static str {
        self.name.strip_prefix("watermaster_").unwrap_or(self.name)
    }
}

#[cfg(test)]
mod tests {
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
            assert_eq!(metric.kind == Kind::Counter, name.ends_with("_total"), "{name}");
            for taken in ["_sum", "_count", "_bucket"] {
                assert!(!name.ends_with(taken), "{name}");
            }
            let bare = name.trim_end_matches("_total");
            let suffixed = |suffix: &str| bare.ends_with(suffix);
            match metric.unit {
                Unit::Seconds => assert!(suffixed("_seconds"), "{name}"),
                Unit::Bytes => assert!(suffixed("_bytes"), "{name}"),
                Unit::Ratio => assert!(suffixed("_ratio"), "{name}"),
                Unit::Records if metric.kind == Kind::Gauge => {
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
            assert_eq!(metric.kind == Kind::Histogram, !metric.buckets.is_empty(), "{}", metric.name);
            assert!(metric.buckets.is_sorted_by(|a, b| a < b), "{}", metric.name);
        }
    }

    #[test]
    fn help_is_one_plain_sentence() {
        for metric in TABLE {
            assert!(metric.help.ends_with('.'), "{}", metric.name);
            assert!(!metric.help.contains(['\\', '\n']), "{}", metric.name);
        }
    }
}
