//! Every metric, in one table. The page and `docs/metrics.md` are made from it; dashboards and rules are tested
//! against it.

use strum::{IntoStaticStr, VariantNames};
use watermaster_core::delays::{BOUNDS, CLIENT_BOUNDS};
use watermaster_core::delivery::{ErrorClass, Phase, ReplaceCause};
use watermaster_core::group::driver::OpenedSeat;
use watermaster_core::pace::{ChangeCause, PaceState};
use watermaster_core::policy::Mode;
use watermaster_core::reason::Reason;
use watermaster_core::throttle;
use watermaster_schemas::cache;

use super::{LabelFigures, Publisher, ServiceMetrics, rules::put_numbers, text::Samples};
use crate::clock;
use crate::rules::RULE_STATES;
use crate::snapshot::{PAUSE_REASONS, RESYNCED, RoundOutcome};

mod samples;

use samples::{age, past_changes, put_delays, put_groups, put_pace};

/// The kind of a metric, named as in a `# TYPE` line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum MetricKind {
    /// Never decreases while the process lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Cumulative buckets, a sum and a count.
    Histogram,
}

/// The unit of a metric's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Whole records; capacity is counted in them too.
    Records,
    Seconds,
    Bytes,
    /// From 0 to 1.
    Ratio,
    /// Either 0 or 1.
    Bool,
    /// A number of the things that the name tells.
    Count,
}

/// The function that writes the samples of a metric, by the first labels that its samples share.
#[derive(Debug, Clone, Copy)]
pub(super) enum SampleSource {
    /// No shared label.
    Instance(fn(&Publisher, &mut Samples<'_>)),
    /// The label `service`.
    Service(fn(&ServiceMetrics, &mut Samples<'_>)),
    /// The labels `service` and `client`.
    Client(fn(&LabelFigures<'_>, &mut Samples<'_>)),
    /// Gauges of the operating system's process, which another crate collects and the exporter writes.
    Process,
}

/// One row: a metric family.
#[derive(Debug)]
pub struct Metric {
    /// The full name, prefix and suffix included.
    pub name: &'static str,
    pub kind: MetricKind,
    pub unit: Unit,
    /// The names of the labels, in the order in which they are written.
    pub labels: &'static [&'static str],
    /// The labels of which all values are known, with these, in the same order.
    pub values: &'static [(&'static str, &'static [&'static str])],
    /// One sentence for people; no backslash, no line break.
    pub help: &'static str,
    /// The reason for which no dashboard shows the metric; `None` for those that one shows.
    pub uncharted: Option<&'static str>,
    pub(super) source: SampleSource,
}

const fn one(texts: &[&'static str]) -> Option<&'static str> {
    if let [text] = texts { Some(*text) } else { None }
}

impl Metric {
    /// Returns the upper bounds of a histogram's buckets, rising; none for other kinds. All histograms are of times,
    /// over the buckets in which the core counts them.
    pub fn buckets(&self) -> &'static [f64] {
        match (self.kind, self.source) {
            (MetricKind::Histogram, SampleSource::Client(_)) => &CLIENT_BOUNDS,
            (MetricKind::Histogram, _) => &BOUNDS,
            _ => &[],
        }
    }
}

const DECISIONS: &[&str] = &["admitted", "rejected"];

macro_rules! metrics {
    ($($name:literal $kind:ident $unit:ident [$($label:literal $(($values:expr))?)*] $help:literal
        $source:ident $($write:expr)? $(, uncharted $why:literal)?;)*) => {
        /// Every metric, in the order of the documentation.
        pub static TABLE: &[Metric] = &[$(
            Metric {
                name: $name,
                kind: MetricKind::$kind,
                unit: Unit::$unit,
                labels: &[$($label),*],
                values: &[$($(($label, $values),)?)*],
                help: $help,
                uncharted: one(&[$($why)?]),
                source: SampleSource::$source$(($write))?,
            }
        ),*];
    };
}

metrics! {
    // ## Decisions
    "watermaster_records_total" Counter Records ["service" "client" "decision" (DECISIONS)]
        "Records decided, by what was done with them (admitted, rejected)."
        Client |c, out| out.put_each(c.counters.done().admitted_and_rejected());
    "watermaster_delayed_total" Counter Records ["service" "client"]
        "Records that entered a backlog, however they left it."
        Client |c, out| out.put(c.counters.done().delayed());
    "watermaster_rejected_total" Counter Records ["service" "client" "reason" (Reason::NAMES)]
        "Records sent to the dead-letter topic, by reason."
        Client |c, out| out.put_each(c.counters.done().rejected_by_reason());
    "watermaster_shadow_records_total" Counter Records ["service" "client" "decision" (DECISIONS)]
        "Shadow mode: records by the decision that enforcement would have taken."
        Client |c, out| out.put_each(c.counters.shadow().admitted_and_rejected());
    "watermaster_shadow_rejected_total" Counter Records ["service" "client" "reason" (Reason::NAMES)]
        "Shadow mode: records that enforcement would have rejected, by reason."
        Client |c, out| out.put_each(c.counters.shadow().rejected_by_reason());
    "watermaster_shadow_delayed_total" Counter Records ["service" "client"]
        "Shadow mode: records that enforcement would have delayed."
        Client |c, out| out.put(c.counters.shadow().delayed());
    "watermaster_shadow_client_delay_seconds" Histogram Seconds ["service" "client"]
        "Shadow mode: delays of one commit interval or more that enforcement would have given to admitted records."
        Client |c, out| put_delays(c.counters.shadow(), out);

    // ## Shares
    "watermaster_capacity_units" Gauge Records ["service"]
        "Records that the service can take in one cycle."
        Service |s, out| out.put(s.newest.figures.capacity);
    "watermaster_cycle_seconds" Gauge Seconds ["service"]
        "The length of a cycle."
        Service |s, out| out.put(s.newest.figures.cycle_seconds);
    "watermaster_wants_units" Gauge Records ["service" "client"]
        "Backlog when a cycle began plus first-time arrivals in it: the larger of this cycle so far and the last one."
        Client |c, out| out.put(c.levels.wants);
    "watermaster_granted_units" Gauge Records ["service" "client"]
        "Records that the client may send in this cycle."
        Client |c, out| out.put(c.levels.granted);
    "watermaster_default_share_units" Gauge Records ["service" "client"]
        "The client's share of the capacity by weight alone."
        Client |c, out| out.put(c.levels.default_share);
    "watermaster_client_group_granted_units" Gauge Records ["service" "group"]
        "Records that the clients of the group may send in this cycle together; missing without groups."
        Service |s, out| put_groups(s, out, |group| group.granted as f64);
    "watermaster_client_group_default_share_units" Gauge Records ["service" "group"]
        "The group's share of the capacity by weight alone; missing without groups."
        Service |s, out| put_groups(s, out, |group| group.default_share);
    "watermaster_client_used_ratio" Gauge Ratio ["service" "client"]
        "The part of the capacity that the client's admissions in the last full cycle took; at most 1."
        Client |c, out| out.put(c.levels.used_ratio(c.capacity));
    "watermaster_client_limit_units" Gauge Records ["service" "client"]
        "The most records that the client's own limit allows in a cycle (burst + rate); +Inf without one, 0 while held."
        Client |c, out| out.put(c.levels.limit.map_or("+Inf".to_owned(), |limit| limit.most.to_string()));
    "watermaster_window_admitted_units" Gauge Records ["service"]
        "Records admitted in the last window of one cycle; never above capacity_units while enforced."
        Service |s, out| out.put(s.newest.figures.window_admitted);
    "watermaster_window_admitted_max_units" Gauge Records ["service"]
        "The most records admitted in any window of one cycle since start."
        Service |s, out| out.put(s.newest.figures.window_admitted_max);
    "watermaster_clients" Gauge Count ["service"]
        "Clients known now."
        Service |s, out| out.put(s.newest.clients.known());
    "watermaster_max_clients" Gauge Count ["service"]
        "The most clients that are known at a time: max_clients, and those that rules list."
        Service |s, out| out.put(s.newest.limits.clients);
    "watermaster_new_clients_total" Counter Count ["service"]
        "Client ids that were not known when their first record came, those that had been forgotten included."
        Service |s, out| out.put(s.newest.throttle.new_clients);
    "watermaster_allocations_total" Counter Count ["service" "cause" (throttle::Cause::VARIANTS)]
        "Runs of the allocator, by cause."
        Service |s, out| out.put_each(s.newest.throttle.allocations);
    "watermaster_enforced" Gauge Bool ["service"]
        "1 when decisions are enforced, 0 in shadow mode."
        Service |s, out| out.put(u8::from(s.newest.figures.enforce));
    "watermaster_mode" Gauge Bool ["service" "mode" (Mode::VARIANTS)]
        "1 for the configured mode, 0 for the other."
        Service |s, out| out.put_one_of(&s.newest.figures.mode);

    // ## Waiting
    "watermaster_backlog_records" Gauge Records ["service" "client"]
        "Delayed records now, with those that wait in paused partitions of this client alone; 0 in shadow mode."
        Client |c, out| out.put(c.levels.backlog);
    "watermaster_shadow_backlog_records" Gauge Records ["service" "client"]
        "Shadow mode: records that would be in the backlog now."
        Client |c, out| out.put(c.levels.shadow_backlog);
    "watermaster_backlog_bytes" Gauge Bytes ["service"]
        "Memory cost of all delayed records: keys, values, headers, 64 bytes a header and 200 bytes a record."
        Service |s, out| out.put(s.newest.throttle.backlog_bytes);
    "watermaster_backlog_limit_records" Gauge Records ["service"]
        "The most delayed records of one client (queue_capacity)."
        Service |s, out| out.put(s.newest.limits.backlog_records);
    "watermaster_backlog_limit_bytes" Gauge Bytes ["service"]
        "The most memory for the delayed records of all clients together (queue_bytes)."
        Service |s, out| out.put(s.newest.limits.backlog_bytes);
    "watermaster_oldest_held_age_seconds" Gauge Seconds ["service"]
        "The time that the oldest delayed record has waited for, in a paused partition, too; 0 without delayed records."
        Service |s, out| out.put(s.newest.throttle.oldest_held_seconds);
    "watermaster_delay_seconds" Histogram Seconds ["service"]
        "Time that admitted records waited: in a backlog, in a paused partition, and unread before a takeover."
        Service |s, out| out.put_histogram(&[], &s.newest.throttle.totals.delays);
    "watermaster_client_delay_seconds" Histogram Seconds ["service" "client"]
        "Time that admitted records waited, as in delay_seconds, if it was one commit interval or more."
        Client |c, out| put_delays(c.counters.done(), out);
    "watermaster_client_oldest_seconds" Gauge Seconds ["service" "client"]
        "The time that the client's oldest delayed record has waited for; 0 without one and in shadow mode."
        Client |c, out| out.put(c.levels.oldest_seconds);
    "watermaster_end_to_end_seconds" Histogram Seconds ["service"]
        "Time from a record's timestamp to the commit that completed it."
        Service |s, out| out.put_histogram(&[], &s.newest.engine.delivery.end_to_end);

    // ## Kafka
    "watermaster_consumer_lag_records" Gauge Records ["service" "topic" "partition"]
        "High watermark (or stable offset, if lower) minus committable offset, for each assigned partition."
        Service |s, out| s.newest.partitions.iter().for_each(|p| out.put_partition(p, p.lag));
    "watermaster_unread_records" Gauge Records ["service" "topic" "partition"]
        "Records of the partition that were not fetched yet. Lag = unread + delayed + completed out of order."
        Service |s, out| s.newest.partitions.iter().for_each(|p| out.put_partition(p, p.unread));
    "watermaster_held_records" Gauge Records ["service" "topic" "partition"]
        "Delayed records of the partition, which are part of its lag."
        Service |s, out| s.newest.partitions.iter().for_each(|p| out.put_partition(p, p.held));
    "watermaster_paused_partitions" Gauge Count ["service" "reason" (PAUSE_REASONS)]
        "Partitions that are not fetched now, by reason."
        Service |s, out| out.put_each(s.newest.sources.paused);
    "watermaster_rounds_total" Counter Count ["service" "outcome" (RoundOutcome::VARIANTS)]
        "Rounds (one commit each), by outcome."
        Service |s, out| out.put_each(s.newest.engine.delivery.rounds);
    "watermaster_round_seconds" Histogram Seconds ["service"]
        "Time from a round's first send to its acknowledged commit."
        Service |s, out| out.put_histogram(&[], &s.newest.engine.delivery.round);
    "watermaster_round_phase_seconds" Histogram Seconds ["service" "phase" (Phase::VARIANTS)]
        "Time that a round spent in each phase under exactly_once, all attempts together."
        Service |s, out| Phase::VARIANTS.iter().zip(&s.newest.engine.delivery.round_phases)
            .for_each(|(phase, times)| out.put_histogram(&[phase], times));
    "watermaster_transaction_errors_total" Counter Count
        ["service" "phase" (Phase::VARIANTS) "class" (ErrorClass::VARIANTS)]
        "Failed transaction calls, by phase and by the answer that the error needs."
        Service |s, out| out.put_each_pair(&s.newest.engine.delivery.transaction_errors);
    "watermaster_resyncs_total" Counter Count ["service"]
        "Comparisons of an interrupted round with the committed offsets."
        Service |s, out| out.put(s.newest.engine.delivery.resyncs);
    "watermaster_resynced_records_total" Counter Records ["service" "found" (RESYNCED)]
        "Records of interrupted rounds, by whether they were found committed."
        Service |s, out| out.put_each(s.newest.engine.delivery.resynced);
    "watermaster_map_characters" Gauge Count ["service"]
        "The length of the longest offset map of the assigned partitions."
        Service |s, out| out.put(s.newest.sources.map_characters);
    "watermaster_map_span_records" Gauge Records ["service"]
        "The number of offsets that the widest offset map covers."
        Service |s, out| out.put(s.newest.sources.map_span);
    "watermaster_map_used_ratio" Gauge Ratio ["service"]
        "The part of its room in the commit metadata that the fullest offset map uses."
        Service |s, out| out.put(s.newest.sources.map_used_ratio);
    "watermaster_producer_recreations_total" Counter Count ["service" "cause" (ReplaceCause::VARIANTS)]
        "Replaced producers, by cause."
        Service |s, out| out.put_each(s.newest.engine.delivery.producer_recreations);
    "watermaster_consumer_recreations_total" Counter Count ["service"]
        "Consumers replaced: in no group although brokers answered, other secrets, or a source that was made anew."
        Service |s, out| out.put(s.newest.engine.consumer_recreations);
    "watermaster_lost_records_total" Counter Records ["service"]
        "Source records that were deleted before they were read (on_data_loss = continue)."
        Service |s, out| out.put(s.newest.engine.lost_records);
    "watermaster_stubs_total" Counter Records ["service"]
        "Stubs sent to the dead-letter topic in place of records that it refuses or that have too many headers."
        Service |s, out| out.put(s.newest.engine.delivery.stubs);
    "watermaster_rebalances_total" Counter Count ["service"]
        "Changes of the assignment."
        Service |s, out| out.put(s.newest.engine.rebalances);
    "watermaster_schema_requests_total" Counter Count ["service" "outcome" (cache::Outcome::VARIANTS)]
        "Requests to the schema registry, by outcome; all 0 without avro or protobuf in client_from."
        Service |s, out| out.put_each(s.newest.engine.schema_requests), uncharted
        "all 0 without a schema registry; *Platform › Paused partitions* shows the partitions that wait for one, and \
         the log says why";
    "watermaster_source_retention_seconds" Gauge Seconds ["service" "topic"]
        "The retention time of a source topic; 0 if it has no limit or the broker did not tell it."
        Service |s, out| s.newest.sources.retention.iter()
            .for_each(|(topic, time)| out.put_with(&[topic], time.as_secs_f64()));
    "watermaster_source_partitions" Gauge Count ["service" "topic"]
        "Partitions that a source topic has, assigned here or not; 0 until a broker told it."
        Service |s, out| s.newest.sources.retention.iter()
            .for_each(|(topic, _)| out.put_with(&[topic], s.observed.partitions.get(topic).copied().unwrap_or(0)));
    "watermaster_target_lag_records" Gauge Records ["service" "consumer_group"]
        "Lag of the target's own consumer group, over the partitions in which it committed; missing while unknown."
        Service |s, out| s.observed.target_lag.iter().for_each(|(group, lag)| out.put_with(&[group], lag));
    "watermaster_max_open_records" Gauge Records ["service"]
        "The most admitted records that the target's own consumer group may leave open (max_open); missing without it."
        Service |s, out| s.open[0].into_iter().for_each(|max| out.put(max)), uncharted
        "the bound is configured, and most services have none; an alert fires if it can't be kept";
    "watermaster_open_records" Gauge Records ["service"]
        "Offsets that this group has not committed, those of marks of transactions among them; missing while unknown."
        Service |s, out| s.open[1].into_iter().for_each(|open| out.put(open)), uncharted
        "most services have no bound; where one has, *Service › Lag of the service* shows the same records";
    "watermaster_dead_letter_unread_offsets" Gauge Count ["service"]
        "Open offsets of the dead-letter topics: not redriven or parked by any job, nor closed; missing while unknown."
        Service |s, out| s.observed.unread.iter().for_each(|unread| out.put(unread.offsets));
    "watermaster_dead_letter_oldest_seconds" Gauge Seconds ["service"]
        "Age of the oldest of these dead letters, by its record's time; 0 if there is none, missing while unknown."
        Service |s, out| s.observed.unread.iter().for_each(|unread| out.put(age(unread.oldest_ms)));

    // ## Pace: only with `[service.pace]`
    "watermaster_capacity_found_units" Gauge Records ["service"]
        "The capacity that the commits of the service's consumer group show, per cycle; missing while unknown."
        Service |s, out| put_pace(s, out, |pace| pace.found.map(|found| found as f64));
    "watermaster_capacity_floor_units" Gauge Records ["service"]
        "The limit is never lower (pace.floor)."
        Service |s, out| put_pace(s, out, |pace| Some(pace.floor as f64));
    "watermaster_capacity_ceiling_units" Gauge Records ["service"]
        "The limit is never higher (pace.ceiling)."
        Service |s, out| put_pace(s, out, |pace| Some(pace.ceiling as f64));
    "watermaster_pace_brake_ratio" Gauge Ratio ["service"]
        "The part of the found capacity that is let through: below 1 while the service is late."
        Service |s, out| put_pace(s, out, |pace| Some(f64::from(pace.brake.millionths()) / 1e6));
    "watermaster_service_late_seconds" Gauge Seconds ["service"]
        "Age of the oldest record that the service has not committed, beyond the usual one (median of the partitions)."
        Service |s, out| put_pace(s, out, |pace| Some(pace.late.as_secs_f64()));
    "watermaster_service_usual_seconds" Gauge Seconds ["service"]
        "The age of the oldest record that a commit of the service usually leaves open (largest of any partition)."
        Service |s, out| put_pace(s, out, |pace| Some(pace.usual.as_secs_f64()));
    "watermaster_service_commit_gap_seconds" Gauge Seconds ["service"]
        "The usual time between two commits of the service (largest of any partition)."
        Service |s, out| put_pace(s, out, |pace| Some(pace.gap.as_secs_f64()));
    "watermaster_service_open_offsets" Gauge Count ["service"]
        "Offsets of the target that the service has not committed, markers of transactions included."
        Service |s, out| put_pace(s, out, |pace| Some(pace.open_offsets as f64));
    "watermaster_service_finished_rate" Gauge Count ["service"]
        "Records per cycle that the service finished lately, without those of other writers; missing while unknown."
        Service |s, out| put_pace(s, out, |pace| pace.rate.map(|rate| rate as f64));
    "watermaster_service_signal_age_seconds" Gauge Seconds ["service"]
        "Time since the offsets of the service's consumer group were read; missing before the first time."
        Service |s, out| put_pace(s, out, |pace| pace.signal_age.map(|age| age.as_secs_f64()));
    "watermaster_stuck_partitions" Gauge Count ["service"]
        "Partitions of the target with open records that saw no commit for a minute."
        Service |s, out| put_pace(s, out, |pace| Some(pace.stuck_partitions as f64));
    "watermaster_capacity_changes_total" Counter Count
        ["service" "direction" (&["up", "down"]) "cause" (ChangeCause::VARIANTS)]
        "Changes of the found capacity."
        Service |s, out| s.pace.iter().for_each(|pace| out.put_each_pair(&pace.changes));
    "watermaster_pace_state" Gauge Bool ["service" "state" (PaceState::VARIANTS)]
        "1 for the state of the search for the capacity, 0 for the others."
        Service |s, out| s.pace.iter().for_each(|pace| out.put_one_of(pace.state.into_str()));

    // ## Group: all 0 with `scope = "instance"`
    "watermaster_group_members" Gauge Count ["service"]
        "Live members of the group that shares the capacity, as this instance sees it."
        Service |s, out| out.put(s.newest.group.figures.members.iter().filter(|member| member.state == "live").count());
    "watermaster_group_configurations" Gauge Count ["service"]
        "Different configurations among the live members of the group and this instance; all should have one."
        Service |s, out| out.put(s.newest.group.figures.configurations);
    "watermaster_group_hold_units" Gauge Records ["service"]
        "The part of the shared capacity that this instance holds."
        Service |s, out| out.put(s.newest.group.figures.hold);
    "watermaster_group_target_units" Gauge Records ["service"]
        "The part of the shared capacity that this instance ought to hold by the demand of all."
        Service |s, out| out.put(s.newest.group.figures.target);
    "watermaster_group_ahead_units" Gauge Records ["service"]
        "The records that this instance may admit before its next state is committed to the control topic."
        Service |s, out| out.put(s.newest.group.figures.ahead);
    "watermaster_group_circulating_units" Gauge Records ["service"]
        "The capacity that the members hold or give to one another now, as this instance sees it."
        Service |s, out| out.put(s.newest.group.figures.circulating);
    "watermaster_group_openings_total" Counter Count ["service" "seat" (OpenedSeat::VARIANTS)]
        "Openings that this instance began: of its own seat, of seats of members that stopped, and of the bank."
        Service |s, out| out.put_each(s.newest.group.counts.openings);
    "watermaster_group_claims_total" Counter Count ["service"]
        "Seats of members that stopped, taken over by this instance with their capacity."
        Service |s, out| out.put(s.newest.group.counts.claims);
    "watermaster_group_exchange_seconds" Histogram Seconds ["service"]
        "Time from the making of a state until this instance read it back from the control topic."
        Service |s, out| out.put_histogram(&[], &s.newest.group.counts.exchanges);
    "watermaster_group_log_behind_seconds" Gauge Seconds ["service"]
        "Time for which this instance has not read its own state back from the control topic; 0 if it has."
        Service |s, out| out.put(s.newest.group.log_behind.as_secs_f64());

    // ## Rules: only with `rules_topic`, but for the number of rules
    "watermaster_rules" Gauge Count ["service" "origin" "state" (&RULE_STATES)]
        "Rules by origin and state, without tables."
        Service |s, out| put_numbers(&s.rules.rules, out);
    "watermaster_rules_changes_total" Counter Count ["service" "verb" "result"]
        "Changes of rules asked of this instance, and unreadable records."
        Service |s, out| put_numbers(&s.rules.changes, out);
    "watermaster_rules_read_offset" Gauge Count ["service"]
        "Rules are read below this offset."
        Service |s, out| s.rules.position.into_iter().for_each(|(offset, _)| out.put(offset)), uncharted
        "only whether instances fall behind counts, and an alert compares them";
    "watermaster_rules_checksum" Gauge Count ["service"]
        "A sum over the rules, equal for instances that read equally far."
        Service |s, out| s.rules.position.into_iter().for_each(|(_, sum)| out.put(sum)), uncharted
        "only whether it differs between instances counts, and an alert compares it";
    "watermaster_rules_behind_seconds" Gauge Seconds ["service"]
        "Time since the brokers told the end of the rules' topic; before they did, since the start."
        Service |s, out| s.rules.behind.into_iter().for_each(|behind| out.put(behind.as_secs_f64()));
    "watermaster_rules_last_change_seconds" Gauge Seconds ["service"]
        "Time of the newest change of a rule, since the Unix epoch."
        Service |s, out| s.rules.last_change.into_iter().for_each(|at| out.put(at.as_secs_f64())), uncharted
        "the annotation *Rule changes* of the boards shows it";

    // ## State
    "watermaster_ready" Gauge Bool ["service"]
        "1 when the service has joined its group and can produce; 0 otherwise, while draining, and while it hangs."
        Service |s, out| out.put(u8::from(s.newest.figures.ready && s.is_alive));
    "watermaster_service_up" Gauge Bool ["service"]
        "0 after a fatal error stopped the service."
        Service |s, out| out.put(u8::from(s.newest.up));
    "watermaster_target_refusing" Gauge Bool ["service"]
        "1 while the target or the dead-letter topic refuses writes."
        Service |s, out| out.put(u8::from(s.newest.target_refusing));
    "watermaster_engine_busy_seconds_total" Counter Seconds ["service"]
        "Processor time of the engine's thread, which works on one processor: it does not count waiting."
        Service |s, out| out.put(s.newest.engine.busy.as_secs_f64());
    "watermaster_build_info" Gauge Bool ["version" "librdkafka"]
        "Always 1; the labels name the versions of the program and of librdkafka."
        Instance |i, out| out.put_with(&[env!("CARGO_PKG_VERSION"), &i.librdkafka], 1);
    "watermaster_config_info" Gauge Bool ["hash"]
        "Always 1; the label is the hash of the configuration in force, which all instances of a group should share."
        Instance |i, out| out.put_with(&[&i.configuration], 1);
    "watermaster_config_last_reload_successful" Gauge Bool []
        "1 if the last configuration read (at start, SIGHUP or POST /v1/reload) was accepted."
        Instance |i, out| out.put(u8::from(i.last_reload.successful));
    "watermaster_config_last_reload_success_timestamp_seconds" Gauge Seconds []
        "The time at which the configuration in force was accepted, since the Unix epoch."
        Instance |i, out| out.put(i.last_reload.success_at.as_secs_f64());
    "watermaster_config_change_timestamp_seconds" Gauge Seconds ["key" "service" "from" "to" "origin" "by"]
        "The time of one of the last ten changes of the configuration, since the Unix epoch; the labels describe it."
        Instance past_changes;

    // ## Process
    "process_cpu_seconds_total" Counter Seconds [] "User and system CPU time spent."
        Instance |_, out| out.put(clock::process_time().as_secs_f64());
    "process_open_fds" Gauge Count [] "Open file descriptors." Process;
    "process_max_fds" Gauge Count [] "The most file descriptors that may be open." Process;
    "process_virtual_memory_bytes" Gauge Bytes [] "Virtual memory size." Process, uncharted
        "address space does not show how much memory is used; a panel shows resident memory";
    "process_virtual_memory_max_bytes" Gauge Bytes [] "The limit of the virtual memory size." Process, uncharted
        "the address-space limit does not end a container; the orchestrator's memory limit does, and its own \
         dashboards show it";
    "process_resident_memory_bytes" Gauge Bytes [] "Resident memory size." Process;
    "process_start_time_seconds" Gauge Seconds [] "The start time of the process, in seconds since 1970." Process;
    "process_threads" Gauge Count [] "Threads of the process." Process;
}

#[cfg(test)]
mod tests;
