//! The reasons for rejections. One table: headers, metrics and documents come from it.

use std::{sync::Arc, time::Duration};

use strum::{EnumMessage, IntoStaticStr, VariantArray, VariantNames};

/// The reason for which a record went to the dead-letter topic.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, EnumMessage, IntoStaticStr, VariantArray, VariantNames,
)]
#[strum(serialize_all = "snake_case", const_into_str)]
#[repr(u8)]
pub enum Reason {
    /// No client id, or one that can't be read.
    #[strum(message = "The record was not processed: it names no client; give it a valid client id and send it again")]
    Anonymous,
    /// The source does not allow this client.
    #[strum(
        message = "The record was not processed: the source topic does not allow its client; correct the client id \
        and send it again, or ask the operators to allow the client"
    )]
    UnknownClient,
    /// The registry is full.
    #[strum(message = "The record was not processed: too many clients are active; send it again later, or ask the \
        operators for a larger max_clients")]
    TooManyClients,
    /// The client's own absolute limit.
    #[strum(message = "The record was not processed: its client has used up its own limit; send it again after \
        throttle-retry-after-ms, or ask the operators to redrive it")]
    ClientLimit,
    /// A rule holds the client or its group (reject mode).
    #[strum(
        message = "The record was not processed: the operators hold its client; ask them when that ends, and send \
        it again or have it redriven then"
    )]
    Held,
    /// The client used its grant (reject mode).
    #[strum(message = "The record was not processed: its client has sent all that it is granted; send it again after \
        throttle-retry-after-ms, or ask the operators to redrive it")]
    OverAllocation,
    /// The client used its default share, and nothing is left to borrow (reject mode).
    #[strum(
        message = "The record was not processed: its client has sent its share, and other clients use the rest of \
        the capacity; send it again after throttle-retry-after-ms, or ask the operators to redrive it"
    )]
    CapacityInUse,
    /// A backlog bound was reached.
    #[strum(message = "The record was not processed: too many records were delayed; send it again later and more \
        slowly, or ask the operators to redrive it")]
    QueueFull,
    /// The record waited for longer than `max_delay`.
    #[strum(message = "The record was not processed: it was delayed for too long; if it is still of use, send it \
        again, or ask the operators to redrive it")]
    Expired,
    /// The target refuses it for good.
    #[strum(message = "The record was not processed: the service's topic can't take it; correct it before you send \
        it again")]
    Undeliverable,
}

impl Reason {
    /// Every reason, in the order of the enum.
    pub const ALL: &[Reason] = <Reason as VariantArray>::VARIANTS;
    /// The names of all reasons, in the same order.
    pub const NAMES: &[&str] = <Reason as VariantNames>::VARIANTS;

    /// A sentence for the people of the product: "The record was not processed: ", the cause, "; ", and a remedy.
    pub fn message(self) -> &'static str {
        self.get_message().expect("each reason has a message")
    }
}

/// A decision to reject a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejection {
    pub reason: Reason,
    /// The time after which the record might be admitted; zero where that has no meaning.
    pub retry_after: Duration,
    /// The index of the client, if it is a known one.
    pub client: Option<u32>,
}

/// The grounds of a rejection, for the headers of its dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Grounds {
    /// The quota that the client has used up, if the reason is one.
    pub quota: Option<Quota>,
    /// The name of the rule with the limit, hold or longest delay that was the reason.
    pub rule: Option<Arc<str>>,
}

/// A number of records that may go in a time, and the use of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    pub limit: u64,
    /// The records that count against the limit, without the rejected one.
    pub used: u64,
    pub time: Duration,
}

/// A count for each reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReasonCounts([u64; Reason::NAMES.len()]);

impl ReasonCounts {
    pub fn add(&mut self, reason: Reason) {
        self.0[reason as usize] += 1;
    }

    pub fn remove(&mut self, reason: Reason) {
        self.0[reason as usize] = self.0[reason as usize].saturating_sub(1);
    }

    pub fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub fn merge(&mut self, other: &ReasonCounts) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL.iter().copied().map(|reason| (reason, self.get(reason)))
    }
}
