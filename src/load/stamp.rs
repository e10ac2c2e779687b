//! What a record of ours says of itself, in a header that comes out with it on the other side.

/// The header's name.
pub const HEADER: &str = "watermaster-load";

/// Which record this is: `RUN/NUMBER/INTENDED/ATTEMPT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp<'a> {
    /// The run that sent it; no `/` in it.
    pub run: &'a str,
    /// Counts what the run has sent, from 0.
    pub number: usize,
    /// When it should have been sent for the first time, in microseconds since 1970.
    pub intended_us: u64,
    /// From 1; more when it was rejected before.
    pub attempt: u32,
}

impl<'a> Stamp<'a> {
    /// The header's value.
    pub fn to_text(self) -> String {
        let Stamp { run, number, intended_us, attempt } = self;
        format!("{run}/{number}/{intended_us}/{attempt}")
    }

    /// Reads a header's value; `None`: nobody of ours wrote it.
    pub fn read(value: &'a [u8]) -> Option<Stamp<'a>> {
        let mut parts = std::str::from_utf8(value).ok()?.split('/');
        let run = parts.next()?;
        let stamp = Stamp {
            run,
            number: parts.next()?.parse().ok()?,
            intended_us: parts.next()?.parse().ok()?,
            attempt: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(stamp)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_written_is_read(run in "[0-9a-f]{1,16}", number: usize, intended_us: u64, attempt: u32) {
            let stamp = Stamp { run: &run, number, intended_us, attempt };
            let text = stamp.to_text();
            prop_assert_eq!(Stamp::read(text.as_bytes()), Some(stamp));
        }

        #[test]
        fn what_others_wrote_is_not_ours(value in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(stamp) = Stamp::read(&value) {
                prop_assert_eq!(value.iter().filter(|byte| **byte == b'/').count(), 3);
                prop_assert!(stamp.to_text().len() <= value.len() + 3);
            }
        }
    }

    #[test]
    fn too_much_or_too_little_is_not_ours() {
        assert!([&b"a/1/2"[..], b"a/1/2/3/4", b"a/x/2/3", b"", b"\xff/1/2/3"].iter().all(|v| Stamp::read(v).is_none()));
    }
}
