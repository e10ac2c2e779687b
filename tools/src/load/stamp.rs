//! The header that marks a record of a run and comes out with it on the other side.

/// Name of the header.
pub const HEADER: &str = "watermaster-load";

/// Value of the header: `RUN/NUMBER/INTENDED/ATTEMPT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp<'a> {
    /// The run that sent the record; contains no `/`.
    pub run: &'a str,
    /// Counts the records of the run, from 0.
    pub number: usize,
    /// The time at which the first attempt should be sent, in microseconds since 1970.
    pub intended_us: u64,
    /// Counts from 1.
    pub attempt: u32,
}

impl<'a> Stamp<'a> {
    /// Returns the value of the header.
    pub fn to_text(self) -> String {
        let Stamp { run, number, intended_us, attempt } = self;
        format!("{run}/{number}/{intended_us}/{attempt}")
    }

    /// Reads the value of a header; `None` if it is no stamp.
    pub fn read(value: &'a [u8]) -> Option<Stamp<'a>> {
        let parts: Vec<&str> = std::str::from_utf8(value).ok()?.split('/').collect();
        let [run, number, intended, attempt] = parts[..] else { return None };
        Some(Stamp {
            run,
            number: number.parse().ok()?,
            intended_us: intended.parse().ok()?,
            attempt: attempt.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_stamp_is_read_as_written(run in "[0-9a-f]{1,16}", number: usize, intended_us: u64, attempt: u32) {
            let stamp = Stamp { run: &run, number, intended_us, attempt };
            let text = stamp.to_text();
            prop_assert_eq!(Stamp::read(text.as_bytes()), Some(stamp));
        }

        #[test]
        fn any_value_is_read_without_a_panic(value in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(stamp) = Stamp::read(&value) {
                prop_assert!(stamp.to_text().len() <= value.len() + 3);
            }
        }
    }

    #[test]
    fn too_many_or_too_few_parts_are_no_stamp() {
        assert!([&b"a/1/2"[..], b"a/1/2/3/4", b"a/x/2/3", b"", b"\xff/1/2/3"].iter().all(|v| Stamp::read(v).is_none()));
    }
}
