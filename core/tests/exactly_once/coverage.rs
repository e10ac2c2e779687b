//! Counts that prove that faults took effect.

macro_rules! counters {
    ($($name:ident $least:literal $text:literal;)*) => {
        /// How often things happened, over all seeds.
        #[derive(Debug, Default, Clone)]
        pub struct Coverage {
            $(pub $name: u64,)*
        }

        impl Coverage {
            /// Adds what another run counted.
            pub fn add(&mut self, other: &Coverage) {
                $(self.$name += other.$name;)*
            }

            /// What was counted, how often, and the least that 20 000 seeds have to reach.
            pub fn rows(&self) -> Vec<(&'static str, u64, u64)> {
                vec![$(($text, self.$name, $least),)*]
            }
        }
    };
}

counters! {
    records 1_000_000 "records";
    rejected 50_000 "records in the dead-letter topic";
    commits 500_000 "transactions committed";
    aborts 50_000 "transactions aborted";
    crashes_in_call 5_000 "crashes in a call, before it was applied";
    crashes_after_call 2_000 "crashes in a call, after it was applied";
    crashes_between 5_000 "crashes between two calls";
    crashes_with_map 1_000 "crashes with delayed records and a committed map";
    restarts_same_id 5_000 "restarts with the same id";
    restarts_new_id 2_000 "restarts with a new id";
    ghosts 500 "instances replaced while they hung, by one with the same id";
    pauses_short 2_000 "pauses shorter than session and transaction";
    pauses_long 2_000 "pauses longer than session or transaction";
    joins 2_000 "instances that joined";
    drains 2_000 "drains";
    drains_given_up 50 "drains that gave up a round";
    retriable 10_000 "retriable errors";
    abortable 5_000 "abortable errors";
    fatal 5_000 "fatal errors";
    unknown_applied 500 "unknown outcomes that were applied";
    unknown_not_applied 500 "unknown outcomes that were not applied";
    late_ends 500 "EndTxns that arrived late, after another answer";
    late_ends_fenced 300 "of these: for an epoch that was over";
    torn 0 "of these: ended another transaction than they were sent for (must not be)";
    late_offsets 200 "TxnOffsetCommits that arrived late";
    late_offsets_taken 0 "of these: joined another transaction (must not be)";
    timed_out_open 500 "transactions that the coordinator ended for their age";
    fenced_by_timeout 100 "producers that found themselves fenced by that";
    fenced_by_other 300 "producers that found themselves fenced by another";
    hijacks 1_000 "hijacked transactional ids";
    coordinator_down 2_000 "coordinators unavailable for a while";
    cuts 1_000 "instances cut off for a while";
    rebalances 50_000 "generations";
    expelled 2_000 "members expelled";
    expelled_in_round 300 "of these: in a round";
    lost_revokes 1_000 "partitions lost before they were given back";
    revoked_in_round 300 "revocations while a round was late";
    refused_by_group 200 "offsets refused for a generation or a member that is over";
    moved 200 "rounds that waited for the group";
    waited_for_pending 1_000 "committed offsets that were waited for";
    resyncs 10_000 "resyncs";
    resyncs_dropped 300 "resyncs that dropped something";
    put_aside 500 "records that came while a round was late";
    undeliverable 2_000 "poison records found";
    discarded 300 "poison records that both topics refuse, let go";
    neighbours 2_000 "records refused with a neighbour";
    batches_unknown 1_000 "batches whose outcome is unknown";
    queue_full 1_000 "full send queues";
    paused_turns 10_000 "turns with a partition that the core paused";
    taints 2_000 "producers replaced because a connection broke";
    stopped_undeliverable 1_000 "instances that stopped at a poison record";
    stopped_fenced_twice 100 "instances that were fenced twice within a minute and stopped";
    stopped_failures 20 "instances that stopped after too many producers failed";
    small_maps 500 "seeds with a small map budget";
    views 1_000_000 "comparisons of a tracker with what is committed and in the round";
}
