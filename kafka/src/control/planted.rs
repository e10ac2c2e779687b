//! Plants the control log's mistakes for `scripts/chaos --teeth`: the oracle has to find each of them.

use std::{ops::Deref, time::Duration};

use watermaster_core::group::control::{ControlLog, Event, LogCall};
use watermaster_core::group::state::{BANK, SeatRecord};
use watermaster_settings as settings;

use super::log::{SeatLog, SeatLogError};
use crate::failpoint::{self, Fault, planted};

/// A [`SeatLog`] that makes the planted mistake, if it is one of the control log's.
pub struct PlantedSeatLog {
    log: SeatLog,
    seat: String,
}

impl Deref for PlantedSeatLog {
    type Target = SeatLog;

    fn deref(&self) -> &SeatLog {
        &self.log
    }
}

impl PlantedSeatLog {
    pub fn open(
        kafka: &settings::Kafka, group: &str, topic: &str, id_prefix: &str, timeout: Duration,
    ) -> Result<PlantedSeatLog, SeatLogError> {
        let seat = kafka.instance_id.clone();
        let own = format!("{id_prefix}{}.", std::process::id());
        let prefix = if planted(Fault::UnfencedSeats) { &own } else { id_prefix };
        SeatLog::open(kafka, group, topic, prefix, timeout).map(|log| PlantedSeatLog { log, seat })
    }

    /// Returns whether the event is a state of another member. What the bank gave to others is left out of its states:
    /// they would count as on their way for ever.
    fn is_ignored(&self, event: &mut Event) -> bool {
        let Event::Record { record: SeatRecord::State(state), .. } = event else { return false };
        if !planted(Fault::ForeignStatesIgnored) {
            return false;
        }
        state.out.retain(|one| *one.to == *self.seat);
        *state.seat != *self.seat && &*state.seat != BANK
    }
}

impl ControlLog for PlantedSeatLog {
    type Error = SeatLogError;

    fn poll(&mut self) -> Result<Option<Event>, SeatLogError> {
        while let Some(mut event) = self.log.poll()? {
            if !self.is_ignored(&mut event) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn call(&mut self, call: LogCall) {
        if matches!(call, LogCall::Write { .. }) {
            failpoint::reach("before_state");
        }
        self.log.call(call);
    }
}
