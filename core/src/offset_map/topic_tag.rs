//! The tag of the topic that a map is about.

/// A number that tells a topic from one that was made anew under its name, and from its mirror in another cluster. It
/// misses one such change in 157.
///
/// The widths of a map's three numbers carry it, as readers take every width that holds a value. So programs that know
/// of no tags read the map, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicTag {
    cluster: u32,
    topic: u32,
}

/// The bits that a number is written wider than its value, besides one: the slice width has up to 32 bits, the newest
/// end of a slice 42 until the year 2109, a count 25. None may be wider than 63.
const DIGITS: [u32; 3] = [31, 21, 38];
/// The number of clusters, and of topics in each of them, that are told apart: 157² < 31 × 21 × 38.
const KINDS: u32 = 157;

impl TopicTag {
    /// The tag of a topic by the ids that the brokers gave to it and to their cluster.
    pub fn of(cluster_id: &str, topic_id: &str) -> TopicTag {
        let kind = |id: &str| crc32fast::hash(id.as_bytes()) % KINDS;
        TopicTag { cluster: kind(cluster_id), topic: kind(topic_id) }
    }

    pub fn is_in_cluster_of(self, other: TopicTag) -> bool {
        self.cluster == other.cluster
    }

    /// The widths of the three numbers beyond those of their values.
    pub(super) fn widths(self) -> [u32; 3] {
        let mut rest = self.cluster * KINDS + self.topic;
        DIGITS.map(|base| {
            let digit = rest % base;
            rest /= base;
            digit + 1
        })
    }

    /// The tag that was written with these widths, if there is one.
    pub(super) fn read(widths: [u32; 3]) -> Option<TopicTag> {
        let (mut place, mut number) = (1, 0);
        for (width, base) in widths.into_iter().zip(DIGITS) {
            number += width.checked_sub(1).filter(|digit| *digit < base)? * place;
            place *= base;
        }
        let tag = TopicTag { cluster: number / KINDS, topic: number % KINDS };
        (tag.cluster < KINDS).then_some(tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_is_read_as_it_was_written() {
        for number in 0..KINDS * KINDS {
            let tag = TopicTag { cluster: number / KINDS, topic: number % KINDS };
            assert_eq!(TopicTag::read(tag.widths()), Some(tag));
        }
    }

    #[test]
    fn numbers_of_other_widths_are_no_tag() {
        assert_eq!(TopicTag::read([0; 3]), None);
        assert_eq!(TopicTag::read([1, 0, 1]), None);
        assert_eq!(TopicTag::read([32, 1, 1]), None);
        // A number beyond all tags.
        assert_eq!(TopicTag::read(DIGITS), None);
    }
}
