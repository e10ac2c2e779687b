//! Reads a trace, block by block.

use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{BLOCK_RECORDS, CHECKSUM_BYTES, Contents, MAGIC, TraceError, TracePart, TraceRecord, block, csv};

/// The bytes behind the footer: its length, its checksum, and the magic bytes.
const TRAILER_BYTES: usize = 4 + CHECKSUM_BYTES + MAGIC.len();

/// A trace that can be opened any number of times.
#[derive(Debug, Clone)]
pub enum TraceSource {
    File(PathBuf),
    /// The bytes of a trace.
    Memory(Arc<[u8]>),
}

impl TraceSource {
    /// Finds out whether the file is a trace or a CSV, which is turned into a trace in memory.
    pub fn find(path: &Path) -> Result<TraceSource, TraceError> {
        let mut file = File::open(path)?;
        let mut start = Vec::new();
        file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut start)?;
        // The end tells, too, if the first bytes are damaged.
        let tail = file.seek(SeekFrom::End(0))?.saturating_sub(MAGIC.len() as u64);
        let mut end = Vec::new();
        file.seek(SeekFrom::Start(tail))?;
        file.read_to_end(&mut end)?;
        if start.starts_with(&MAGIC[..MAGIC.len() - 1]) || end == MAGIC {
            return Ok(TraceSource::File(path.to_owned()));
        }
        file.rewind()?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let text = String::from_utf8(text).map_err(|_| TraceError::NoTrace)?;
        Ok(TraceSource::Memory(csv::parse(&text)?.into()))
    }

    /// Opens the trace at its first record.
    pub fn open(&self) -> Result<TraceReader, TraceError> {
        TraceReader::open(match self {
            TraceSource::File(path) => Box::new(File::open(path)?),
            TraceSource::Memory(bytes) => Box::new(Cursor::new(Arc::clone(bytes))),
        })
    }
}

/// An input that can be read at any place.
trait TraceInput: Read + Seek {}

impl<T: Read + Seek> TraceInput for T {}

/// Reads the blocks of a trace in order.
pub struct TraceReader {
    input: Box<dyn TraceInput>,
    contents: Contents,
    next_block: usize,
    bytes: Vec<u8>,
}

impl TraceReader {
    /// Reads the footer.
    fn open(mut input: Box<dyn TraceInput>) -> Result<TraceReader, TraceError> {
        let size = input.seek(SeekFrom::End(0))?;
        if size < (MAGIC.len() + TRAILER_BYTES) as u64 {
            return Err(TraceError::NoTrace);
        }
        let trailer_at = size - TRAILER_BYTES as u64;
        let mut trailer = [0; TRAILER_BYTES];
        input.seek(SeekFrom::Start(trailer_at))?;
        input.read_exact(&mut trailer)?;
        let ([l0, l1, l2, l3, c0, c1, c2, c3, magic @ ..], mut header) = (trailer, [0; MAGIC.len()]);
        input.rewind()?;
        input.read_exact(&mut header)?;
        check_magic(&header, &magic)?;
        let damaged = || TraceError::Damaged(TracePart::Footer);
        let length = u64::from(u32::from_le_bytes([l0, l1, l2, l3]));
        let footer_at = trailer_at.checked_sub(length).filter(|at| *at >= MAGIC.len() as u64).ok_or_else(damaged)?;
        let mut footer = vec![0; length as usize];
        input.seek(SeekFrom::Start(footer_at))?;
        input.read_exact(&mut footer)?;
        if crc32fast::hash(&footer) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Err(damaged());
        }
        let contents: Contents = serde_json::from_slice(&footer).map_err(|_| damaged())?;
        let blocks = contents.blocks.iter().try_fold(MAGIC.len() as u64, |at, block| at.checked_add(block.bytes));
        if blocks != Some(footer_at) || contents.blocks.iter().any(|block| block.records as usize > BLOCK_RECORDS) {
            return Err(damaged());
        }
        input.seek(SeekFrom::Start(MAGIC.len() as u64))?;
        Ok(TraceReader { input, contents, next_block: 0, bytes: Vec::new() })
    }

    /// Returns the footer.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Reads the next block into `records`; false after the last one.
    pub fn next_block(&mut self, records: &mut Vec<TraceRecord>) -> Result<bool, TraceError> {
        let Some(facts) = self.contents.blocks.get(self.next_block) else {
            records.clear();
            return Ok(false);
        };
        self.next_block += 1;
        let damaged = || TraceError::Damaged(TracePart::Block(self.next_block));
        // At most the size of the file, which `open` compared.
        self.bytes.resize(facts.bytes as usize, 0);
        self.input.read_exact(&mut self.bytes)?;
        let (checksum, columns) = self.bytes.split_first_chunk().ok_or_else(damaged)?;
        if crc32fast::hash(columns) != u32::from_le_bytes(*checksum) {
            return Err(damaged());
        }
        block::decode(columns, facts.records as usize, &self.contents, records).ok_or_else(damaged)?;
        Ok(true)
    }
}

/// Checks the first and the last bytes. One of the two tells that the file is a trace, so the other one is damaged.
fn check_magic(header: &[u8; MAGIC.len()], end: &[u8; MAGIC.len()]) -> Result<(), TraceError> {
    let (name, version) = (&MAGIC[..MAGIC.len() - 1], MAGIC.len() - 1);
    match (header == MAGIC, end == MAGIC) {
        (true, true) => Ok(()),
        (false, true) => Err(TraceError::Damaged(TracePart::Header)),
        (true, false) => Err(TraceError::NoTrace),
        (false, false) if header == end && header.starts_with(name) => {
            Err(TraceError::Version(char::from(header[version])))
        }
        (false, false) => Err(TraceError::NoTrace),
    }
}
