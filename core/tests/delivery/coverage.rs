//! Counts that prove that faults took effect.

macro_rules! counters {
    ($($name:ident $least:literal $least_at_least_once:literal $text:literal;)*) => {
        /// Counts of events over all seeds.
        #[derive(Debug, Default, Clone)]
        pub struct Coverage {
            $(pub $name: u64,)*
        }

        impl Coverage {
            /// Adds the counts of another run.
            pub fn add(&mut self, other: &Coverage) {
                $(self.$name += other.$name;)*
            }

            /// Returns the text, the count, and the count that 20 000 seeds have to reach in that delivery.
            pub fn rows(&self, exactly_once: bool) -> Vec<(&'static str, u64, u64)> {
                vec![$(($text, self.$name, if exactly_once { $least } else { $least_at_least_once }),)*]
            }
        }
    };
}

counters! {
    records 1_000_000 800_000 "records";
    rejected 200_000 200_000 "records in the dead-letter topic";
    commits 400_000 500_000 "commits";
    aborts 70_000 0 "transactions aborted";
    crashes_in_call 3_000 2_000 "crashes in a call, before it was applied";
    crashes_after_call 2_000 1_000 "crashes in a call, after it was applied";
    crashes_between 10_000 10_000 "crashes between two calls";
    crashes_with_map 2_000 2_000 "crashes with delayed records and a committed map";
    restarts_same_id 15_000 10_000 "restarts with the same id";
    restarts_new_id 5_000 6_000 "restarts with a new id";
    ghosts 3_000 5_000 "instances replaced by another with the same id while they hung";
    pauses_short 10_000 10_000 "pauses shorter than session and transaction";
    pauses_long 10_000 10_000 "pauses longer than session or transaction";
    joins 3_000 4_000 "instances that joined";
    drains 4_000 4_000 "drains";
    drains_given_up 200 100 "drains that gave up a round";
    retriable 80_000 0 "retriable errors";
    abortable 2_000 0 "abortable errors";
    fatal 3_000 3_000 "fatal errors";
    unknown_applied 800 8_000 "unknown outcomes of commits that were applied";
    unknown_not_applied 800 0 "unknown outcomes of commits that were not applied";
    late_ends 5_000 0 "EndTxns that arrived late, after another answer";
    late_ends_fenced 5_000 0 "of these: fenced";
    torn 0 0 "of these: ended a transaction that they were not sent for (must be 0)";
    late_offsets 2_000 0 "TxnOffsetCommits that arrived late";
    late_offsets_taken 0 0 "of these: joined another transaction (must be 0)";
    timed_out_open 3_000 0 "transactions that timed out at the coordinator";
    fenced_by_timeout 400 0 "producers fenced by such a timeout";
    fenced_by_other 4_000 0 "producers fenced by another producer";
    hijacks 3_000 0 "hijacked transactional ids";
    coordinator_down 6_000 9_000 "coordinators unavailable for a while";
    cuts 6_000 4_000 "instances cut off for a while";
    rebalances 50_000 60_000 "group generations";
    expelled 10_000 10_000 "members expelled";
    expelled_in_round 3_000 1_000 "of these: in a round";
    lost_revokes 5_000 6_000 "partitions lost before they were revoked";
    revoked_in_round 3_000 4_000 "revocations while a round was late";
    refused_by_group 20_000 70_000 "offsets refused for an old generation or an unknown member";
    moved 3_000 3_000 "rounds that waited for the group";
    waited_for_pending 1_500 0 "reads of committed offsets that waited for a pending transaction";
    resyncs 40_000 0 "resyncs";
    resyncs_dropped 1_500 0 "resyncs that dropped outputs";
    deferred 300 20_000 "records deferred while a round was late";
    divided 2_000 0 "late rounds that were divided";
    undeliverable 15_000 20_000 "poison records found";
    stubbed 10_000 30_000 "stubs tried in place of records or keys that the dead-letter topic refuses";
    discarded 3_000 4_000 "poison records that both topics refuse, discarded";
    neighbours 10_000 10_000 "records refused with a poison record in their batch";
    slow_offsets 1_000 0 "offsets that took longer than a call";
    known_batches 1_000 10_000 "batches sent again and recognised as duplicates";
    batches_unknown 3_000 5_000 "batches with an unknown outcome";
    queue_full 40_000 40_000 "full send queues";
    paused_turns 400_000 700_000 "turns with a paused partition";
    taints 10_000 0 "producers replaced because a connection broke";
    stopped_undeliverable 3_000 5_000 "instances that stopped at a poison record";
    stopped_fenced_twice 800 0 "instances that were fenced twice within a minute and stopped";
    stopped_failures 15 0 "instances that stopped after too many producers failed";
    small_maps 2_000 2_000 "seeds with a small map budget";
    repeated 0 30_000 "records delivered twice";
    sent_again 0 7_000 "groups with outputs of unknown fate that were sent again";
    commits_retried 0 20_000 "commits that were repeated";
    waits_for_group 0 70_000 "commits that waited for the group";
    replaced_fatal 0 3_000 "producers replaced because they failed";
    opened_early 50_000 0 "transactions that began before their rounds";
    opened_revoked 100 0 "of these: aborted because the group had moved on";
    views 1_000_000 3_000_000 "comparisons of a tracker with the commit and the round";
}
