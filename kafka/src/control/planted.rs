//! Plants the control log's mistakes for `scripts/chaos --teeth`: the oracle has to find each of them.

use std::{ops::Deref, time::Duration};

use watermaster_core::group::record::{Key, Record, Tombstone};
use watermaster_settings as settings;

use super::log::{ControlLog, ControlLogError};
use crate::failpoint::{Fault, planted};

/// A [`ControlLog`] that makes the planted mistake, if it is one of the control log's.
pub struct PlantedControlLog {
    log: ControlLog,
    instance: String,
}

impl Deref for PlantedControlLog {
    type Target = ControlLog;

    fn deref(&self) -> &ControlLog {
        &self.log
    }
}

impl PlantedControlLog {
    pub fn open(
        kafka: &settings::Kafka, group: &str, topic: &str, timeout: Duration,
    ) -> Result<PlantedControlLog, ControlLogError> {
        let instance = kafka.instance_id.clone();
        ControlLog::open(kafka, group, topic, timeout).map(|log| PlantedControlLog { log, instance })
    }

    pub fn poll(&self, timeout: Duration) -> Result<Option<(u64, Record)>, ControlLogError> {
        let read = self.log.poll(timeout)?;
        // A tombstone of a member that never was keeps the offset, so that no gap gives the mistake away.
        let subject = || Key { instance: "none".into(), incarnation: 0 };
        let ignored = || Record::Tombstone(Tombstone { subject: subject(), of_post: true });
        Ok(read.map(|(offset, record)| (offset, if self.is_ignored(&record) { ignored() } else { record })))
    }

    fn is_ignored(&self, record: &Record) -> bool {
        match record {
            Record::Post(post) => planted(Fault::ForeignPostsIgnored) && *post.key.instance != *self.instance,
            Record::Bound(_) | Record::Tombstone(_) => false,
        }
    }
}
