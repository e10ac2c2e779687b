//! The source topics of a service, and librdkafka's lists of their partitions.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use watermaster_settings::Source;

use crate::ffi;

/// The source of a record or partition: an index into [`Topics`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceIndex(pub u16);

impl SourceIndex {
    /// Converts it to `usize`.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A source and one of its partitions.
pub type SourcePartition = (SourceIndex, i32);

/// Returns the partitions of topics that have so many each.
pub(super) fn all_partitions(counts: impl IntoIterator<Item = i32>) -> Vec<SourcePartition> {
    let of_topic = |(source, count)| (0..count).map(move |partition| (SourceIndex(source), partition));
    (0u16..).zip(counts).flat_map(of_topic).collect()
}

/// The source topics of a service, by [`SourceIndex`].
///
/// Sources come and go while the process runs, but a topic keeps its index: records and partitions name their topic by
/// it. So names are only ever added, and are read without a lock.
#[derive(Debug)]
pub struct Topics {
    names: Names,
    /// The topics that are read now, each with whether it has to exist.
    subscribed: Mutex<Vec<(SourceIndex, bool)>>,
}

/// A list of names that grows by further lists.
#[derive(Debug)]
struct Names {
    here: Vec<String>,
    /// The indexes of `here`, in the order of the names: each record looks its topic up.
    sorted: Vec<usize>,
    more: OnceLock<Box<Names>>,
}

impl Names {
    fn new(here: Vec<String>) -> Names {
        let mut sorted: Vec<usize> = (0..here.len()).collect();
        sorted.sort_by_key(|&index| &here[index]);
        Names { here, sorted, more: OnceLock::new() }
    }

    fn get(&self, index: usize) -> &str {
        match self.here.get(index) {
            Some(name) => name,
            None => self.more.get().expect("an index of this list").get(index - self.here.len()),
        }
    }

    fn position(&self, topic: &str) -> Option<usize> {
        match self.sorted.binary_search_by(|&index| (*self.here[index]).cmp(topic)) {
            Ok(place) => Some(self.sorted[place]),
            Err(_) => Some(self.here.len() + self.more.get()?.position(topic)?),
        }
    }

    fn extend(&self, names: Vec<String>) {
        let more = Box::new(Names::new(names));
        if let Err(more) = self.more.set(more) {
            self.more.get().expect("set before").extend(more.here);
        }
    }
}

impl Topics {
    /// Takes the names of topics that are read from the start on; the first one gets the index 0.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Topics {
        let here: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let all = (0..=u16::MAX).take(here.len()).map(|index| (SourceIndex(index), true)).collect();
        Topics { names: Names::new(here), subscribed: Mutex::new(all) }
    }

    /// Returns the topics of these sources.
    pub fn of(sources: &[Source]) -> Arc<Topics> {
        let topics = Topics::new([]);
        topics.subscribe(sources);
        Arc::new(topics)
    }

    /// Takes the sources that are to be read from now on. New topics get the next indexes, in order.
    pub fn subscribe(&self, sources: &[Source]) {
        let new = sources.iter().map(|source| &source.topic).filter(|topic| self.names.position(topic).is_none());
        let new: Vec<String> = new.cloned().collect();
        if !new.is_empty() {
            self.names.extend(new);
        }
        let subscribed = sources.iter().filter_map(|source| Some((self.find(&source.topic)?, !source.by_pattern)));
        *self.subscribed.lock() = subscribed.collect();
    }

    pub fn name(&self, source: SourceIndex) -> &str {
        self.names.get(source.index())
    }

    /// Returns the names of the topics that are read now.
    pub fn names(&self) -> Vec<&str> {
        self.subscribed.lock().iter().map(|(source, _)| self.name(*source)).collect()
    }

    /// Returns the names of the topics that are read now and have to exist.
    pub(crate) fn required_names(&self) -> Vec<&str> {
        self.subscribed.lock().iter().filter(|(_, required)| *required).map(|(source, _)| self.name(*source)).collect()
    }

    pub fn find(&self, topic: &str) -> Option<SourceIndex> {
        u16::try_from(self.names.position(topic)?).ok().map(SourceIndex)
    }

    /// Returns a new list of these partitions, each with its offset.
    pub(crate) fn list_at(
        &self, partitions: impl IntoIterator<Item = (SourcePartition, Offset)>,
    ) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for ((source, partition), offset) in partitions {
            let mut element = list.add_partition(self.name(source), partition);
            element.set_offset(offset).expect("an offset is never negative");
        }
        list
    }

    /// Returns a new list of these partitions without offsets.
    pub(crate) fn list<'a>(&self, partitions: impl IntoIterator<Item = &'a SourcePartition>) -> TopicPartitionList {
        self.list_at(partitions.into_iter().map(|partition| (*partition, Offset::Invalid)))
    }

    /// Returns the partitions of a list that belong to a source.
    pub(crate) fn partitions(&self, list: &TopicPartitionList) -> Vec<SourcePartition> {
        ffi::entries(list).into_iter().filter_map(|entry| Some((self.find(&entry.topic)?, entry.partition))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_keeps_its_index_while_sources_come_and_go() {
        let topics = Topics::new(["loans", "cards"]);
        let first = topics.name(SourceIndex(0));
        for names in [["cards", "leases"], ["rents", "loans"]] {
            let source = |topic: &str| Source { by_pattern: topic == "leases", ..Source::new(topic) };
            topics.subscribe(&names.map(source));
            assert_eq!(topics.names(), names);
            let required: Vec<&str> = names.into_iter().filter(|name| *name != "leases").collect();
            assert_eq!(topics.required_names(), required);
        }
        let all = ["loans", "cards", "leases", "rents"];
        assert_eq!(all.map(|name| topics.find(name)), [0, 1, 2, 3].map(|index| Some(SourceIndex(index))));
        assert_eq!([0, 1, 2, 3].map(|index| topics.name(SourceIndex(index))), all);
        assert_eq!((first, topics.find("other")), ("loans", None));
    }
}
