//! The members of version 0.2, the *former version*, as far as this one must know them: whether one may still admit.
//! Everything about the former version goes with version 0.4.
//!
//! They shared the capacity by *posts* in another control topic. A post names a lease, which begins before the post
//! is sent. Its author admits nothing after the lease, unless it has read back a later post of its own. A *bound* that
//! names the last post of a member says that the member has stopped.
//!
//! Members of two versions can't share a capacity. So an instance of this one waits until no former member is live, and
//! ends the former group by two records of one key, whose format stops each member of the former version that reads it:
//!
//! - `ending`: a former member that has not read it yet reads none of its own later posts back, so that its lease is
//!   not renewed any more. A former program that starts later stops before its first post.
//! - `ended`: by the posts before `ending`, no member was live any more. An instance that reads it need not wait: of
//!   members that were killed, the last posts stay in the log for ever.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;

use crate::units::{Time, lengthened};

/// The format of posts and bounds, the first byte of each.
const FORMAT: u8 = 1;
/// The key of the records by which the group ends: that of a post, since the former version looks at a value's format
/// only behind the key of a post or a bound. No member has it, as an incarnation is random.
const END_KEY: &str = "p/v2/0000000000000000";
const ENDING: &[u8] = &[2];
const ENDED: &[u8] = &[2, 1];

/// A record that the former version did not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the record is not one of the former version")]
pub struct UnknownRecord;

/// The members of the former version, by the records of their control topic in the order of the log.
#[derive(Debug, Default)]
pub struct FormerGroup {
    /// By the part of a Kafka key that posts and bounds about one member have in common: `<instance>/<incarnation>`.
    members: BTreeMap<String, FormerMember>,
    stage: EndStage,
}

#[derive(Debug, Default)]
struct FormerMember {
    /// The last post, and the time at which it was read.
    post: Option<(FormerPost, Time)>,
    bound: Option<FormerBound>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum EndStage {
    #[default]
    Running,
    Ending,
    Ended,
}

/// The beginning of a post. What follows is for its readers of the former version.
#[derive(Debug, Deserialize)]
struct FormerPost {
    _key: (String, u64),
    /// Capacity, cycle, mode and digest.
    _terms: (u64, u64, u32, u64),
    seq: u64,
    /// `seen`, `have`, `want` and `pace`.
    _numbers: [u64; 4],
    lease: Duration,
    left: bool,
}

/// The beginning of a bound.
#[derive(Debug, Deserialize)]
struct FormerBound {
    _target: (String, u64),
    /// The numbers of the posts of which one was the member's last.
    seqs: Vec<u64>,
}

impl FormerMember {
    fn is_live(&self, now: Time) -> bool {
        let is_bound = |seq| self.bound.as_ref().is_some_and(|bound| bound.seqs.contains(&seq));
        let may_admit = |post: &FormerPost| !post.left && !is_bound(post.seq);
        self.post.as_ref().is_some_and(|(post, read)| may_admit(post) && now < *read + lengthened(post.lease))
    }
}

impl FormerGroup {
    /// Takes a record, read at this time.
    ///
    /// # Errors
    /// Neither version writes such a record.
    pub fn handle_record(&mut self, now: Time, key: &[u8], value: Option<&[u8]>) -> Result<(), UnknownRecord> {
        if key == END_KEY.as_bytes() {
            let stage = match value {
                Some(ENDING) => EndStage::Ending,
                Some(ENDED) => EndStage::Ended,
                _ => return Err(UnknownRecord),
            };
            // Of two instances that end the group, the slower one may write `ending` behind `ended`.
            self.stage = self.stage.max(stage);
            return Ok(());
        }
        let key = std::str::from_utf8(key).ok().and_then(|key| key.split_once('/'));
        let (kind, member) = key.ok_or(UnknownRecord)?;
        let member = self.members.entry(member.to_owned()).or_default();
        // A tombstone has no value.
        match kind {
            "p" => member.post = value.map(decode).transpose()?.map(|post| (post, now)),
            "b" => member.bound = value.map(decode).transpose()?,
            _ => return Err(UnknownRecord),
        }
        Ok(())
    }

    /// Returns the instance ids of the members that may still admit records.
    pub fn live(&self, now: Time) -> Vec<String> {
        let live = self.members.iter().filter(|(_, member)| self.stage != EndStage::Ended && member.is_live(now));
        let id = |key: &String| key.rsplit_once('/').map_or(key.as_str(), |(id, _)| id).to_owned();
        let mut ids: Vec<String> = live.map(|(key, _)| id(key)).collect();
        ids.dedup();
        ids
    }

    /// Returns key and value of the next record to append while no member is live; `None` once the group has ended.
    pub fn next_end(&self) -> Option<(&'static str, &'static [u8])> {
        match self.stage {
            EndStage::Running => Some((END_KEY, ENDING)),
            EndStage::Ending => Some((END_KEY, ENDED)),
            EndStage::Ended => None,
        }
    }
}

/// Reads the beginning of a post or of a bound.
fn decode<'v, T: Deserialize<'v>>(value: &'v [u8]) -> Result<T, UnknownRecord> {
    let (_, record) = value.split_first().filter(|(format, _)| **format == FORMAT).ok_or(UnknownRecord)?;
    postcard::take_from_bytes(record).map(|(record, _)| record).map_err(|_| UnknownRecord)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "kyc/1/00000000000000a0";
    /// A post with the number 3 and a lease of 10 s, as the former version's own test has it.
    const POST: &str = "01056b79632f31a0019003904e010703808080808020649601b5010a00000101036361722823";
    /// A bound of the former version on the posts 3 and 5, by which the member's window holds 12 records.
    const BOUND: &str = "01056b79632f31a0010203050c0180cab5ee01";
    const SECOND: Duration = Duration::from_secs(1);

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits")).collect()
    }

    fn at(seconds: u32) -> Time {
        Time::ZERO + SECOND * seconds
    }

    fn read(group: &mut FormerGroup, seconds: u32, kind: &str, value: Option<&[u8]>) {
        group.handle_record(at(seconds), format!("{kind}/{KEY}").as_bytes(), value).expect("a record");
    }

    #[test]
    fn a_member_is_live_until_its_lease_is_over() {
        let mut group = FormerGroup::default();
        read(&mut group, 0, "p", Some(&bytes(POST)));
        read(&mut group, 7, "p", Some(&bytes(POST)));
        assert_eq!(group.live(at(17)), ["kyc/1"], "clocks may differ by a thousandth");
        assert_eq!(group.live(at(17) + SECOND / 99), [""; 0]);
    }

    #[test]
    fn a_member_that_left_is_not_live() {
        let mut group = FormerGroup::default();
        let left = POST.replacen("0a000001", "0a000101", 1);
        read(&mut group, 0, "p", Some(&bytes(&left)));
        assert_eq!(group.live(at(0)), [""; 0]);
    }

    /// A bound on another post is void: the member had posted meanwhile.
    #[test]
    fn a_bound_on_the_last_post_ends_a_member() {
        let mut group = FormerGroup::default();
        read(&mut group, 0, "b", Some(&bytes(BOUND)));
        for (seq, live) in [("03", 0), ("04", 1), ("05", 0)] {
            let post = POST.replacen("0703808", &format!("07{seq}808"), 1);
            read(&mut group, 0, "p", Some(&bytes(&post)));
            assert_eq!(group.live(at(1)).len(), live, "post {seq}");
        }
    }

    #[test]
    fn tombstones_remove_a_member() {
        let mut group = FormerGroup::default();
        read(&mut group, 0, "p", Some(&bytes(POST)));
        read(&mut group, 0, "p", None);
        read(&mut group, 0, "b", None);
        assert_eq!(group.live(at(0)), [""; 0]);
    }

    #[test]
    fn a_group_ends_by_two_records_that_stop_former_members() {
        let mut group = FormerGroup::default();
        read(&mut group, 0, "p", Some(&bytes(POST)));
        let mut ends = Vec::new();
        while let Some((key, value)) = group.next_end() {
            assert_eq!(group.live(at(1)), ["kyc/1"], "a newcomer does not know when the post was written");
            group.handle_record(at(1), key.as_bytes(), Some(value)).expect("an end");
            ends.push((key, value));
        }
        assert_eq!(group.live(at(1)), [""; 0]);
        // The former version splits the key at its first and its last slash, reads the incarnation as 16 hexadecimal
        // digits, and stops at the first byte of a value if it is not 1.
        assert!(ends.iter().all(|(key, value)| *key == "p/v2/0000000000000000" && value[0] == 2), "{ends:?}");
        let mut newcomer = FormerGroup::default();
        read(&mut newcomer, 9, "p", Some(&bytes(POST)));
        ends.iter().for_each(|(key, value)| {
            newcomer.handle_record(at(9), key.as_bytes(), Some(value)).expect("an end");
        });
        newcomer.handle_record(at(9), END_KEY.as_bytes(), Some(ENDING)).expect("the end of a slower instance");
        assert_eq!((newcomer.live(at(9)), newcomer.next_end()), (vec![], None));
    }

    #[test]
    fn records_of_neither_version_are_refused() {
        let mut group = FormerGroup::default();
        let post = bytes(POST);
        let bound = bytes(BOUND);
        let records: [(&str, &[u8]); 6] = [
            ("s/kyc", &post),
            ("p", &post),
            ("p/kyc/1", &post[..20]),
            ("b/kyc/1", &bound[..10]),
            ("p/kyc/1", &[]),
            ("p/kyc/1", ENDING),
        ];
        for (key, value) in records {
            assert_eq!(group.handle_record(at(0), key.as_bytes(), Some(value)), Err(UnknownRecord), "{key}");
        }
        assert_eq!(group.handle_record(at(0), END_KEY.as_bytes(), None), Err(UnknownRecord));
    }
}
