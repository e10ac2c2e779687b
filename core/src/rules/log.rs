//! The log of the changes of rules, one partition of a compacted topic.
//!
//! The order of the log decides which of two changes wins, by numbers that the changes carry themselves. So
//! compare-and-set needs no leader, and compaction can't change what the log decided. A change is *in force* from its
//! offset on if its `n` is larger than that of the change before and its offset is not behind its `until`; otherwise it
//! is *void*, for every reader alike. A change that deletes is a *grave*. It stays in force for a *window* of offsets,
//! so that a late change of the deleted rule is void.
//!
//! [`RulesLog`] is one reader of the log, and writes to it. Its owner:
//!
//! 1. hands over records and positions in the order of the log, by `handle_record` and `handle_position`;
//! 2. calls `poll_action` after each call until it returns `None`, and does what it says;
//! 3. calls `handle_timeout` each time that it reads on, and `clean` once a second.
//!
//! No record may come twice from one `Send`: the producer has to be idempotent. Sums that differ at equal positions
//! tell that this premise was broken.

pub mod record;
mod replay;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::{sync::Arc, time::Duration};

use crate::units::Time;
use record::{ChangeId, MAX_N, RuleChange, RuleRecord, RuleVersion, UnreadableRule, VERSION};
pub use replay::{InForce, RuleTotals};
use replay::{RuleReplay, mixed};

/// The offsets for which a grave stays in force, and a change can come in force after the offset that its author knew.
pub const WINDOW: u64 = 16_384;
/// The most changes of one instance that are on their way. So many do not make each other too old.
pub const MAX_CHANGES: usize = 256;
/// The most rules in the log.
pub const MAX_RULES: usize = 100_000;
/// The most bytes of all rules in JSON.
pub const MAX_RULES_BYTES: usize = 64 << 20;
/// The most tombstones that an instance may write in a second.
pub const MAX_TOMBSTONES_PER_SECOND: usize = 1_000;
/// The most attempts at one change.
const MAX_ATTEMPTS: u32 = 5;
/// The time after which the outcome of a change counts as unknown.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time after which a new reader begins again. Tombstones stay for a day, so it meets all that are due to it.
const READING_TIMEOUT: Duration = Duration::from_secs(3_600);

/// The number of a change that was asked for.
pub type WriteTicket = u64;

/// The versions that a change may replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    /// Any version, or none.
    Any,
    Absent,
    /// Any version.
    Present,
    /// This version.
    Version(RuleVersion),
}

impl Precondition {
    fn holds(self, in_force: Option<RuleVersion>) -> bool {
        match self {
            Precondition::Any => true,
            Precondition::Absent => in_force.is_none(),
            Precondition::Present => in_force.is_some(),
            Precondition::Version(stated) => in_force == Some(stated),
        }
    }
}

/// A change that is asked for.
#[derive(Debug, Clone)]
pub struct WriteRequest {
    pub name: Arc<str>,
    pub precondition: Precondition,
    /// The rule in JSON; nothing to delete it.
    pub rule: Option<Box<str>>,
    /// The author.
    pub by: Box<str>,
    /// The time, in milliseconds since 1970.
    pub at: u64,
}

/// A refusal of a change. It has no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteRefusal {
    /// The reader does not know the end of the log now. It will again.
    #[error("the rules are being read")]
    Reading,
    #[error("the log of the rules has lost records")]
    Lost,
    /// The change does not replace the version in force.
    #[error("{}", match in_force {
        Some(version) => format!("version {version} is in force"),
        None => "no rule has this name".to_owned(),
    })]
    Changed { in_force: Option<RuleVersion> },
    #[error("no rule has this name")]
    Missing,
    #[error("{MAX_CHANGES} changes of this instance are on their way, the most that are allowed")]
    Busy,
    #[error(
        "at most {MAX_RULES} rules with {MAX_RULES_BYTES} bytes are allowed; there are {} with {}",
        .0.rules, .0.bytes
    )]
    TooMany(RuleTotals),
    /// The name, the rule or the version can't be written.
    #[error(transparent)]
    Unwritable(#[from] UnreadableRule),
}

/// The outcome of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The change was read back in force.
    InForce(RuleVersion),
    /// The change has no effect.
    Refused(WriteRefusal),
    /// The record was not sent. The change has no effect.
    NotSent,
    /// The record was not read back in time. It may have come in force, and it may still do so.
    Unknown,
}

/// A reason to read the log from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeginCause {
    New,
    /// An offset was not the next one: compaction has removed records that this reader had to see.
    Gap,
    /// Reading took so long that tombstones may be gone.
    Slow,
    /// A tombstone removed a change that is in force. No program writes one.
    Removed,
    /// Lost records were accepted.
    LossAccepted,
    /// The owner reads with another client.
    Reconnected,
}

/// Something that the owner has to do, or to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogAction {
    /// Ask for the end of the log, call `handle_begin` with it, and read from the first record on.
    Begin(BeginCause),
    /// Ask for the end of the log now, and call `handle_end`.
    AskEnd,
    /// Send a record, once: a change, or a tombstone, which has neither a value nor a ticket.
    Send { key: String, value: Option<Vec<u8>>, ticket: Option<WriteTicket> },
    /// A change that was asked for has an outcome.
    Done(WriteTicket, WriteOutcome),
    /// A change came in force.
    Changed(Arc<str>),
    /// The reader knows the rules now. All may have changed.
    Known,
    /// The record at this offset is skipped.
    Unreadable { offset: u64, reason: UnreadableRule },
    /// Records are gone. The rules stay in force.
    Lost,
}

/// A change on its way.
#[derive(Debug, Clone)]
struct Pending {
    ticket: WriteTicket,
    request: WriteRequest,
    attempts: u32,
    deadline: Time,
}

/// A reader that does not know the rules yet.
#[derive(Debug, Clone)]
struct Collected {
    began: Time,
    /// The end of the log when the reader began. Below it, gaps are compaction.
    first: u64,
    /// The owner was asked for the end of the log when the reader had passed `first`.
    is_end_asked: bool,
    /// The end that the owner told. The records that compaction removed while the reader was below `first` were removed
    /// because of records below this offset, so the reader decides here and not at `first`.
    start: Option<u64>,
    /// The last record of each key, with its offset. A key whose last record is a tombstone is left out.
    last: HashMap<(Arc<str>, ChangeId), (u64, RuleChange)>,
}

#[derive(Debug, Clone)]
enum LogPhase {
    /// `Begin` was not answered yet.
    Waiting,
    Collecting(Collected),
    Live,
    Lost,
}

/// A reader and writer of the rules log.
#[derive(Debug, Clone)]
pub struct RulesLog {
    window: u64,
    /// The last random number of which an id was made.
    ids: u64,
    tickets: WriteTicket,
    phase: LogPhase,
    /// All records below this offset were read.
    position: u64,
    /// The rules stay in force while they are read again.
    replay: RuleReplay,
    /// The offset up to which the rules were known when the reader last ceased to follow the log.
    known: Option<u64>,
    pending: BTreeMap<ChangeId, Pending>,
    actions: VecDeque<LogAction>,
}

impl RulesLog {
    /// A reader that knows nothing yet. `seed` is a random number; the window is [`WINDOW`] for all readers of a log.
    pub fn new(window: u64, seed: u64) -> RulesLog {
        RulesLog {
            window,
            ids: seed,
            tickets: 0,
            phase: LogPhase::Waiting,
            position: 0,
            replay: RuleReplay::new(window),
            known: None,
            pending: BTreeMap::new(),
            actions: [LogAction::Begin(BeginCause::New)].into(),
        }
    }

    /// The offset up to which the rules are known; `None` before they are for the first time.
    pub fn known(&self) -> Option<u64> {
        if self.is_live() { Some(self.position) } else { self.known }
    }

    /// Returns whether the reader follows the log, so that changes can be written.
    pub fn is_live(&self) -> bool {
        matches!(self.phase, LogPhase::Live)
    }

    pub fn is_lost(&self) -> bool {
        matches!(self.phase, LogPhase::Lost)
    }

    /// The number of rules, their bytes, and the sum over their versions.
    pub fn totals(&self) -> RuleTotals {
        self.replay.totals()
    }

    /// Returns the rule with this name.
    pub fn get(&self, name: &str) -> Option<&InForce> {
        self.decides(name).filter(|decides| !decides.change.deleted)
    }

    /// Returns the change that decides under a name: the rule's, or the one that deleted it, until that has ended.
    pub fn decides(&self, name: &str) -> Option<&InForce> {
        self.replay.at(name, self.known()?)
    }

    /// Returns the rules that can have effect, in the order of names: all, unless they exceed the bounds, which no
    /// instance writes. Then it is the oldest versions, which are the same ones for every reader.
    pub fn rules_within_bounds(&self) -> Vec<(&Arc<str>, &InForce)> {
        let mut rules: Vec<_> = self.replay.living().collect();
        if exceeds_bounds(self.totals()) {
            rules.sort_unstable_by_key(|(_, rule)| rule.offset());
            let mut left = Some(MAX_RULES_BYTES);
            let mut fits = |rule: &InForce| {
                left = left.and_then(|left| left.checked_sub(rule.bytes()));
                left.is_some()
            };
            let fitting = rules.iter().take(MAX_RULES).take_while(|(_, rule)| fits(rule)).count();
            rules.truncate(fitting);
            rules.sort_unstable_by_key(|(name, _)| *name);
        }
        rules
    }

    /// The answer to [`LogAction::Begin`]: the end of the log. From here on records come from the first one on.
    pub fn handle_begin(&mut self, now: Time, end: u64) {
        if !matches!(self.phase, LogPhase::Waiting) {
            return;
        }
        if self.known.is_some_and(|known| end < known) {
            return self.handle_loss();
        }
        self.position = 0;
        let (is_end_asked, start, last) = (false, None, HashMap::new());
        self.phase = LogPhase::Collecting(Collected { began: now, first: end, is_end_asked, start, last });
        self.move_on(now);
    }

    /// A record of the log. An offset below the position has no effect.
    pub fn handle_record(&mut self, now: Time, offset: u64, key: &[u8], value: Option<&[u8]>) {
        if !self.arrives(now, offset) || offset < self.position {
            return;
        }
        self.position = offset + 1;
        match record::decode(key, value) {
            Ok(record) => self.apply(now, offset, record),
            Err(reason) => self.actions.push_back(LogAction::Unreadable { offset, reason }),
        }
        self.move_on(now);
    }

    /// All records below this offset were handed over.
    pub fn handle_position(&mut self, now: Time, position: u64) {
        if self.arrives(now, position) {
            self.position = self.position.max(position);
            self.move_on(now);
        }
    }

    /// The end of the log. It is the answer to [`LogAction::AskEnd`], and may also come at any other time.
    pub fn handle_end(&mut self, now: Time, end: u64) {
        match &mut self.phase {
            LogPhase::Collecting(_) | LogPhase::Live if end < self.position => self.handle_loss(),
            LogPhase::Collecting(collected) if collected.is_end_asked => {
                collected.start = collected.start.or(Some(end));
                self.move_on(now);
            }
            _ => {}
        }
    }

    /// The log has lost records: it ends below the position, or the position is out of its range.
    pub fn handle_loss(&mut self) {
        if self.is_lost() {
            return;
        }
        self.follow_no_more(LogPhase::Lost);
        self.actions.push_back(LogAction::Lost);
    }

    /// Reads the log again, with another client of the owner. A log that lost records stays so.
    pub fn read_again(&mut self) {
        if !self.is_lost() {
            self.begin_again(BeginCause::Reconnected);
        }
    }

    /// Goes on with the records that a log has which lost others.
    pub fn accept_loss(&mut self) {
        if self.is_lost() {
            self.known = self.known.map(|_| 0);
            self.begin_again(BeginCause::LossAccepted);
        }
    }

    /// The record of a change was not sent, and never will be.
    pub fn handle_unsent(&mut self, ticket: WriteTicket) {
        self.end_changes(|pending| pending.ticket == ticket, WriteOutcome::NotSent);
    }

    /// Ends what takes too long.
    pub fn handle_timeout(&mut self, now: Time) {
        self.end_changes(|pending| pending.deadline <= now, WriteOutcome::Unknown);
        self.begin_again_if_slow(now);
    }

    /// The next thing for the owner to do or to know.
    pub fn poll_action(&mut self) -> Option<LogAction> {
        self.actions.pop_front()
    }

    /// Asks for a change. [`LogAction::Done`] tells its outcome.
    ///
    /// # Errors
    /// The change is refused at once.
    pub fn write(&mut self, now: Time, request: WriteRequest) -> Result<WriteTicket, WriteRefusal> {
        match self.phase {
            LogPhase::Live if self.pending.len() >= MAX_CHANGES => return Err(WriteRefusal::Busy),
            LogPhase::Live => {}
            LogPhase::Lost => return Err(WriteRefusal::Lost),
            LogPhase::Waiting | LogPhase::Collecting(_) => return Err(WriteRefusal::Reading),
        }
        if !record::is_name(&request.name) {
            return Err(UnreadableRule::Key.into());
        }
        let ticket = self.tickets + 1;
        self.attempt(Pending { ticket, request, attempts: 0, deadline: now + WRITE_TIMEOUT })?;
        self.tickets = ticket;
        Ok(ticket)
    }

    /// Writes up to `most` of the tombstones that this instance ought to write now. `is_first` says that its id sorts
    /// first among those of the live instances: it cleans what others left.
    pub fn clean(&mut self, now: Time, is_first: bool, most: usize) {
        if self.is_live() {
            let due = self.replay.due(now, self.position, is_first, most);
            let tombstone =
                |(name, id): (Arc<str>, _)| LogAction::Send { key: record::key(&name, id), value: None, ticket: None };
            self.actions.extend(due.into_iter().map(tombstone));
        }
    }

    /// Returns whether the reader misses nothing between its position and an offset at which it arrives. If it does, it
    /// begins again.
    fn arrives(&mut self, now: Time, offset: u64) -> bool {
        let complete_from = match &self.phase {
            LogPhase::Waiting | LogPhase::Lost => return false,
            LogPhase::Collecting(collected) => collected.first,
            LogPhase::Live => 0,
        };
        if self.begin_again_if_slow(now) {
            return false;
        }
        let has_gap = offset > self.position.max(complete_from);
        if has_gap {
            self.begin_again(BeginCause::Gap);
        }
        !has_gap
    }

    fn apply(&mut self, now: Time, offset: u64, record: RuleRecord<'_>) {
        let name: Arc<str> = record.name.into();
        let id = record.id;
        match (&mut self.phase, record.change) {
            (LogPhase::Collecting(collected), Some(change)) => {
                drop(collected.last.insert((name, id), (offset, change)));
            }
            (LogPhase::Collecting(collected), None) => drop(collected.last.remove(&(name, id))),
            (_, Some(change)) => self.apply_change(now, offset, name, id, change),
            (_, None) => {
                if !self.replay.bury(offset, &name, id) {
                    // The rules are those below this record.
                    self.position = offset;
                    self.begin_again(BeginCause::Removed);
                }
            }
        }
    }

    fn apply_change(&mut self, now: Time, offset: u64, name: Arc<str>, id: ChangeId, change: RuleChange) {
        let version = RuleVersion { n: change.n, id };
        let pending = self.pending.remove(&id);
        let was_beyond = exceeds_bounds(self.totals());
        let wins = self.replay.apply(now, offset, &name, id, change, pending.is_some());
        if wins {
            // Beyond the bounds a change decides which of the other rules have effect.
            let are_others = was_beyond || exceeds_bounds(self.totals());
            self.actions.push_back(if are_others { LogAction::Known } else { LogAction::Changed(name) });
        }
        let Some(pending) = pending else { return };
        let ticket = pending.ticket;
        let outcome = if wins {
            WriteOutcome::InForce(version)
        } else {
            // The change came too late, or lost against one that its precondition allows: it is tried again.
            let Err(refusal) = self.attempt(pending) else { return };
            WriteOutcome::Refused(refusal)
        };
        self.actions.push_back(LogAction::Done(ticket, outcome));
    }

    /// Sends a change that follows the one in force.
    fn attempt(&mut self, mut pending: Pending) -> Result<(), WriteRefusal> {
        let WriteRequest { name, precondition, rule, by, at } = &pending.request;
        let decides = self.decides(name);
        let living = decides.filter(|decides| !decides.change.deleted);
        let in_force = living.map(|living| living.version);
        if pending.attempts == MAX_ATTEMPTS || !precondition.holds(in_force) {
            return Err(WriteRefusal::Changed { in_force });
        }
        let totals = self.totals();
        match rule {
            None if in_force.is_none() => return Err(WriteRefusal::Missing),
            None => {}
            Some(rule) => {
                let rules = totals.rules + usize::from(in_force.is_none());
                let bytes = totals.bytes + rule.len() - living.map_or(0, InForce::bytes);
                if exceeds_bounds(RuleTotals { rules, bytes, ..totals }) {
                    return Err(WriteRefusal::TooMany(totals));
                }
            }
        }
        let n = decides.map_or(0, |decides| decides.version.n) + 1;
        if n > MAX_N {
            return Err(UnreadableRule::Version { n }.into());
        }
        let grave = decides.filter(|decides| decides.change.deleted);
        // A change that follows a grave must not come in force after the grave has ended: n would begin anew.
        let until = grave.map_or(self.position, |grave| self.position.min(grave.offset())).saturating_add(self.window);
        let (deleted, by, rule) = (rule.is_none(), by.clone(), rule.clone());
        let value = record::encode(&RuleChange { v: VERSION, n, until, deleted, by, at: *at, rule })?;
        self.ids = self.ids.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let id = ChangeId(mixed(self.ids));
        let (key, ticket) = (record::key(name, id), Some(pending.ticket));
        self.actions.push_back(LogAction::Send { key, value: Some(value), ticket });
        pending.attempts += 1;
        self.pending.insert(id, pending);
        Ok(())
    }

    /// Goes on if the position has passed the end that the reader waits for.
    fn move_on(&mut self, now: Time) {
        let LogPhase::Collecting(collected) = &mut self.phase else { return };
        if collected.start.is_some_and(|start| self.position >= start) {
            let mut changes: Vec<_> = std::mem::take(&mut collected.last).into_iter().collect();
            changes.sort_unstable_by_key(|(_, (offset, _))| *offset);
            self.replay = RuleReplay::new(self.window);
            for ((name, id), (offset, change)) in changes {
                self.replay.apply(now, offset, &name, id, change, false);
            }
            self.phase = LogPhase::Live;
            self.actions.push_back(LogAction::Known);
        } else if self.position >= collected.first && !std::mem::replace(&mut collected.is_end_asked, true) {
            self.actions.push_back(LogAction::AskEnd);
        }
    }

    fn begin_again_if_slow(&mut self, now: Time) -> bool {
        let is_slow = matches!(&self.phase, LogPhase::Collecting(one) if now.since(one.began) >= READING_TIMEOUT);
        if is_slow {
            self.begin_again(BeginCause::Slow);
        }
        is_slow
    }

    fn begin_again(&mut self, cause: BeginCause) {
        self.follow_no_more(LogPhase::Waiting);
        self.actions.push_back(LogAction::Begin(cause));
    }

    /// Rules stay in force. Changes on their way have an unknown outcome: the records that tell it may be gone.
    fn follow_no_more(&mut self, phase: LogPhase) {
        self.known = self.known();
        self.end_changes(|_| true, WriteOutcome::Unknown);
        self.phase = phase;
    }

    fn end_changes(&mut self, ends: impl Fn(&Pending) -> bool, outcome: WriteOutcome) {
        let actions = &mut self.actions;
        self.pending.retain(|_, pending| {
            let ends = ends(pending);
            if ends {
                actions.push_back(LogAction::Done(pending.ticket, outcome.clone()));
            }
            !ends
        });
    }
}

fn exceeds_bounds(totals: RuleTotals) -> bool {
    totals.rules > MAX_RULES || totals.bytes > MAX_RULES_BYTES
}
