use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::Headers as _;
use rdkafka::{ClientConfig, topic_partition_list::Offset};

use super::*;
use crate::embedded::Embedded;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Makes a list of one partition with these bytes as metadata.
fn list(metadata: &[u8]) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    let mut element = list.add_partition("loans", 0);
    element.set_offset(Offset::Offset(7)).unwrap();
    element.set_metadata("x".repeat(metadata.len()));
    // SAFETY: the list has one element, with metadata as long as these bytes.
    unsafe {
        let element = (*list.ptr()).elems;
        let target = (*element).metadata.cast::<u8>();
        ptr::copy_nonoverlapping(metadata.as_ptr(), target, metadata.len());
    }
    list
}

#[test]
fn foreign_metadata_is_read_byte_for_byte() {
    let broker = Embedded::start(1).unwrap();
    broker.create_topic("loans", 1).unwrap();
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", broker.bootstrap_servers())
        .set("group.id", "others")
        .create()
        .unwrap();
    for metadata in [&b"\xff\xfe\x80\0x"[..], b"plain"] {
        consumer.commit(&list(metadata), CommitMode::Sync).unwrap();
        let mut asked = TopicPartitionList::new();
        asked.add_partition("loans", 0);
        let answer = consumer.committed_offsets(asked, TIMEOUT).unwrap();
        let [entry] = &entries(&answer)[..] else { panic!("the answer must have one entry") };
        assert_eq!((entry.topic.as_str(), entry.partition, entry.offset), ("loans", 0, 7));
        assert_eq!((entry.error, entry.metadata.as_slice()), (Code::NoError, metadata));
    }
}

fn borrowed(list: &HeaderList) -> &BorrowedHeaders {
    // SAFETY: rdkafka makes a `&BorrowedHeaders` of a list's address in the same way; the list lives while it is
    // borrowed.
    unsafe { list.0.cast::<BorrowedHeaders>().as_ref() }
}

#[test]
fn names_and_values_of_headers_may_be_any_bytes() {
    let headers: [RawHeader<'_>; 10] = [
        (b"a", Some(b"1")),
        (b"a", None),
        (b"", Some(b"")),
        (b"", None),
        (b"a\0b", Some(b"1")),
        (b"a\0b", None),
        (b"\0", Some(b"")),
        (b"\0\0", None),
        (b"a\0", Some(b"\0")),
        (b"\xff\xfe", Some(b"v")),
    ];
    let mut list = HeaderList::with_capacity(1);
    headers.into_iter().for_each(|(name, value)| list.add(name, value));
    let list = borrowed(&list);
    assert!((0..).map_while(|index| header_at(list, index)).eq(headers));
    assert_eq!(list.count(), headers.len());
}

#[test]
fn an_error_without_a_flag_is_fatal_and_an_abort_outweighs_a_retry() {
    use ErrorClass::{Abortable, Fatal, Retriable};
    let classes = [(0, Fatal), (1, Retriable), (2, Abortable), (3, Abortable), (4, Fatal), (7, Fatal)];
    for (flags, class) in classes {
        assert_eq!(error_class(flags & 4 != 0, flags & 2 != 0, flags & 1 != 0), class, "{flags}");
    }
}

#[test]
fn a_consumer_that_never_joined_has_no_group_metadata() {
    let consumer: BaseConsumer = ClientConfig::new().set("group.id", "empty").create().unwrap();
    assert!(GroupMetadata::of(consumer.client()).is_none());
}

#[test]
fn an_empty_list_has_no_entries() {
    assert!(entries(&TopicPartitionList::new()).is_empty());
}
