//! The source topics of a service, and librdkafka's lists of their partitions.

use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::{ffi, record::SourceIndex};

/// A source and one of its partitions.
pub type SourcePartition = (SourceIndex, i32);

/// The names of the source topics, by [`SourceIndex`].
#[derive(Debug)]
pub(super) struct Topics(Vec<String>);

impl Topics {
    /// Takes names in the order of the service's sources.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Topics {
        Topics(names.into_iter().map(str::to_owned).collect())
    }

    pub fn name(&self, source: SourceIndex) -> &str {
        &self.0[source.index()]
    }

    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }

    pub fn find(&self, topic: &str) -> Option<SourceIndex> {
        let index = self.0.iter().position(|name| name == topic)?;
        u16::try_from(index).ok().map(SourceIndex)
    }

    /// Returns a new list of these partitions, each with its offset.
    pub fn list_at(&self, partitions: impl IntoIterator<Item = (SourcePartition, Offset)>) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for ((source, partition), offset) in partitions {
            let mut element = list.add_partition(self.name(source), partition);
            element.set_offset(offset).expect("an offset is never negative");
        }
        list
    }

    /// Returns a new list of these partitions without offsets.
    pub fn list<'a>(&self, partitions: impl IntoIterator<Item = &'a SourcePartition>) -> TopicPartitionList {
        self.list_at(partitions.into_iter().map(|partition| (*partition, Offset::Invalid)))
    }

    /// Returns the partitions of a list that belong to a source.
    pub fn partitions(&self, list: &TopicPartitionList) -> Vec<SourcePartition> {
        ffi::entries(list).into_iter().filter_map(|entry| Some((self.find(&entry.topic)?, entry.partition))).collect()
    }
}
