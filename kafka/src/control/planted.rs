//! Plants the control log's mistakes for `scripts/chaos --teeth`: the oracle has to find each of them.

use std::{ops::Deref, time::Duration};

use watermaster_core::group::control::{ControlLog, Event, OpeningNumber};
use watermaster_core::group::state::{BANK, SeatLoads, SeatRecord, State};
use watermaster_settings as settings;

use super::log::{SeatLog, SeatLogError};
use crate::failpoint::{Fault, planted};

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

    fn is_ignored(&self, event: &Event) -> bool {
        let Event::Record { record: SeatRecord::State(state), .. } = event else { return false };
        planted(Fault::ForeignStatesIgnored) && *state.seat != *self.seat && &*state.seat != BANK
    }
}

impl ControlLog for PlantedSeatLog {
    type Error = SeatLogError;

    fn poll(&mut self) -> Result<Option<Event>, SeatLogError> {
        loop {
            match self.log.poll()? {
                Some(event) if self.is_ignored(&event) => {}
                event => return Ok(event),
            }
        }
    }

    fn open(&mut self, seat: &str, attempt: OpeningNumber) {
        self.log.open(seat, attempt);
    }

    fn write(&mut self, attempt: OpeningNumber, state: &State, loads: Option<&SeatLoads>) {
        let slices = if planted(Fault::WindowNotTold) { Vec::new() } else { state.slices.clone() };
        self.log.write(attempt, &State { slices, ..state.clone() }, loads);
    }

    fn remove(&mut self, attempt: OpeningNumber, seat: &str) {
        self.log.remove(attempt, seat);
    }

    fn close(&mut self, attempt: OpeningNumber) {
        self.log.close(attempt);
    }
}
