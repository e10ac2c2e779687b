//! The text that travels in a commit's metadata: recent admissions, and the offsets completed beyond the committed one.
//!
//! `docs/design/offset-map.md` specifies the format. The owner of a partition keeps it small enough *before* it sends a
//! record: while `tracker.bits_bound_after(offset) + overhead_bits(..) <= budget.payload_bits()`, [`encode`] refuses
//! nothing.

mod bits;
mod recent_admissions;
mod set;
mod text;
mod topic_tag;

use crc32fast::Hasher;
use thiserror::Error;

pub use crate::offset_runs::MAX_SPAN;
use crate::{offset_runs::OffsetRuns, tracker::Tracker};
use bits::{BitWriter, Malformed};
pub use recent_admissions::overhead_bits;
use text::Alphabet;
pub use topic_tag::TopicTag;

/// The most slices of time in a map; older admissions count in the oldest slice.
pub const MAX_SLICES: usize = 256;

/// The start of every map; the version and the alphabet's mark follow.
const MAGIC: &[u8] = b"wm";
/// Begins a map of a partition that was handed over.
const HANDED_OVER: &[u8] = b"wh";
const VERSION: char = '1';
/// Magic, version and mark.
const PREFIX_CHARS: usize = 4;
/// The longest string that Kafka's protocol carries.
const MAX_STRING_BYTES: usize = 32_767;

/// Room for one partition's map in the commit metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapBudget {
    /// The broker counts UTF-16 units (Apache Kafka): 15 bits fit in each.
    Chars(usize),
    /// The broker counts bytes: 6 bits fit in each.
    Bytes(usize),
}

impl Default for MapBudget {
    /// Apache Kafka's default for `offset.metadata.max.bytes`, which counts characters.
    fn default() -> MapBudget {
        MapBudget::Chars(4096)
    }
}

impl MapBudget {
    /// The bits that fit beside the prefix and the checksum: no more than Kafka's protocol carries in one string (32
    /// 767 bytes).
    pub fn payload_bits(&self) -> u64 {
        let alphabet = Alphabet::of(*self);
        let room = match *self {
            MapBudget::Chars(chars) => chars.min(MAX_STRING_BYTES / 3),
            MapBudget::Bytes(bytes) => bytes.min(MAX_STRING_BYTES),
        };
        let symbols = room.saturating_sub(PREFIX_CHARS + alphabet.checksum_symbols());
        symbols as u64 * u64::from(alphabet.symbol_bits)
    }
}

/// The admissions from a partition in a slice of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdmissionSlice {
    /// The end of the slice (exclusive) by wall clock, in milliseconds since the epoch.
    pub end_ms: i64,
    pub admitted: u64,
}

/// The contents of a commit's metadata.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OffsetMap {
    /// Offsets completed beyond the committed one, which itself never is.
    pub completed: OffsetRuns,
    /// Recent admissions, ascending, without empty slices.
    pub admitted: Vec<AdmissionSlice>,
    /// The topic that the map is about, if its writer knew it.
    pub tag: Option<TopicTag>,
}

/// A map does not fit. Asking [`Tracker::bits_bound_after`] before completing a record avoids this error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the offset map takes {needed_bits} bits, of which {budget_bits} fit in the commit metadata")]
pub struct TooLarge {
    pub needed_bits: u64,
    /// The size of its budget, [`MapBudget::payload_bits`].
    pub budget_bits: u64,
}

/// Metadata without usable information on completed offsets.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Metadata of another program, which committed this offset: its length, 0 if there was none, and its beginning,
    /// made printable.
    #[error("{}", describe_foreign(.start, *.bytes))]
    Foreign { bytes: usize, start: String },
    /// A map of ours beside another offset than its own, as MirrorMaker 2 leaves it: it copies the metadata of a commit
    /// to another cluster, where the record has another offset. Recent admissions do not depend on the offset.
    #[error("the offset map was written for another offset: a copy by a mirror of the cluster, such as MirrorMaker 2")]
    Copied { admitted: Vec<AdmissionSlice> },
    /// The partition was [handed over](hand_over), with this map.
    #[error("the partition was handed over to the service's own consumers")]
    HandedOver(OffsetMap),
    #[error("the commit metadata is an offset map of ours that cannot be read: {0}")]
    Unreadable(Unreadable),
}

/// The reason for which a map cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unreadable {
    #[error("it has version {found}, this program reads version {VERSION}")]
    Version { found: char },
    /// The checksum differs, and the contents are malformed.
    #[error("it is damaged")]
    Check,
    /// The checksum holds, what it covers makes no sense.
    #[error("its checksum holds but its contents are malformed")]
    Malformed,
}

/// The metadata to commit with `tracker.base()`: never empty.
///
/// `slice_ms` is the width of the slices of `admitted`, which may come in any order. Their ends are written in steps of
/// this width back from the newest; an end between two steps counts at the later. If that does not fit, the topic's tag
/// is left out, and then all admissions count in the newest slice. So a set still fits that was checked before a
/// restart with a larger capacity.
pub fn encode(
    budget: MapBudget, tracker: &Tracker, slice_ms: u32, admitted: &[AdmissionSlice], tag: Option<TopicTag>,
) -> Result<String, TooLarge> {
    let budget_bits = budget.payload_bits();
    let mut bits = write_bits(tracker, slice_ms, admitted, tag);
    if bits.bits > budget_bits && tag.is_some() {
        bits = write_bits(tracker, slice_ms, admitted, None);
    }
    if bits.bits > budget_bits {
        bits = write_bits(tracker, slice_ms, recent_admissions::in_one(admitted).as_slice(), None);
    }
    let needed_bits = bits.bits;
    if needed_bits > budget_bits {
        return Err(TooLarge { needed_bits, budget_bits });
    }
    let alphabet = Alphabet::of(budget);
    let body = alphabet.write(bits);
    let check = check_text(alphabet, tracker.base(), &body);
    Ok(format!("wm{VERSION}{mark}{check}{body}", mark = alphabet.mark))
}

fn write_bits(tracker: &Tracker, slice_ms: u32, admitted: &[AdmissionSlice], tag: Option<TopicTag>) -> BitWriter {
    let mut bits = BitWriter::default();
    let widths = tag.map(TopicTag::widths);
    recent_admissions::write(&mut bits, slice_ms, admitted, widths.map(|[width, newest, _]| [width, newest]));
    set::write(&mut bits, tracker.base(), tracker.shape(), tracker.runs(), widths.map_or(0, |[.., count]| count));
    bits
}

/// The checksum, over the offset as well, so that a map beside an offset that is not its own does not pass.
fn check_text(alphabet: &Alphabet, base: i64, body: &str) -> String {
    let mut hasher = Hasher::new();
    hasher.update(&base.to_be_bytes());
    hasher.update(&[VERSION as u8, alphabet.mark as u8]);
    hasher.update(body.as_bytes());
    let mut check = BitWriter::default();
    check.push(u64::from(hasher.finalize()), u32::BITS);
    alphabet.write(check)
}

/// Marks the metadata of a commit, which keeps its length: other consumers take the partition over, and this program
/// must not go on by itself. `None` if the metadata is no map of ours, or is marked.
pub fn hand_over(metadata: &[u8]) -> Option<String> {
    let rest = metadata.strip_prefix(MAGIC)?;
    String::from_utf8([HANDED_OVER, rest].concat()).ok()
}

/// Reads the metadata of a commit of `offset`. Takes memory in proportion to its length, even if its contents claim
/// more.
pub fn decode(offset: i64, metadata: &[u8]) -> Result<OffsetMap, DecodeError> {
    if let Some(rest) = metadata.strip_prefix(HANDED_OVER)
        && let Ok(map) = decode(offset, &[MAGIC, rest].concat())
    {
        return Err(DecodeError::HandedOver(map));
    }
    match metadata.strip_prefix(MAGIC) {
        Some([version @ b'0'..=b'9', rest @ ..]) => {
            let (map, matches) = read_text(offset, char::from(*version), rest).map_err(DecodeError::Unreadable)?;
            if matches { Ok(map) } else { Err(DecodeError::Copied { admitted: map.admitted }) }
        }
        _ => {
            let start = metadata[..metadata.len().min(16)].escape_ascii().to_string();
            Err(DecodeError::Foreign { bytes: metadata.len(), start })
        }
    }
}

/// Returns the map, and whether its checksum matches. If it does not, the contents are at least well-formed: truncated
/// or extended text and characters that stand for no symbol are damage, not a copy.
fn read_text(base: i64, version: char, rest: &[u8]) -> Result<(OffsetMap, bool), Unreadable> {
    if version != VERSION {
        return Err(Unreadable::Version { found: version });
    }
    let (mark, text) = rest.split_first().ok_or(Unreadable::Check)?;
    let alphabet = Alphabet::marked(*mark).ok_or(Unreadable::Check)?;
    let text = std::str::from_utf8(text).map_err(|_| Unreadable::Check)?;
    let (body_start, _) = text.char_indices().nth(alphabet.checksum_symbols()).ok_or(Unreadable::Check)?;
    let (check, body) = text.split_at(body_start);
    let matches = check == check_text(alphabet, base, body);
    if !matches && !has_form_of_check(alphabet, check) {
        return Err(Unreadable::Check);
    }
    let malformed = if matches { Unreadable::Malformed } else { Unreadable::Check };
    let body = alphabet.read(body).ok_or(malformed)?;
    read_body(base, alphabet, &body).map(|map| (map, matches)).map_err(|Malformed| malformed)
}

/// Returns true if a text holds 32 bits and zeros.
fn has_form_of_check(alphabet: &Alphabet, text: &str) -> bool {
    let Some(bits) = alphabet.read(text) else { return false };
    let mut reader = bits.reader();
    reader.take(u32::BITS).is_ok() && reader.take(reader.left() as u32) == Ok(0)
}

fn read_body(base: i64, alphabet: &Alphabet, body: &BitWriter) -> Result<OffsetMap, Malformed> {
    let mut reader = body.reader();
    let (admitted, [width, newest]) = recent_admissions::read(&mut reader)?;
    let (completed, count) = set::read(&mut reader, base)?;
    let padding = reader.left();
    if padding >= u64::from(alphabet.symbol_bits) || reader.take(padding as u32)? != 0 {
        return Err(Malformed);
    }
    Ok(OffsetMap { completed, admitted, tag: TopicTag::read([width, newest, count]) })
}

fn describe_foreign(start: &str, bytes: usize) -> String {
    if bytes == 0 {
        "the offset was committed without metadata, so not by this program (a reset, or another member of the group)"
            .into()
    } else {
        format!("the commit metadata is another program's: {bytes} bytes that begin with \"{start}\"")
    }
}
