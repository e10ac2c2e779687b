//! Questions of the admin API, each with the answer of the brokers.

use std::{os::raw::c_int, ptr, slice, time::Duration};

use rdkafka::client::{Client, ClientContext};
use rdkafka::{bindings as sys, error::RDKafkaErrorCode as Code, topic_partition_list::TopicPartitionList};

use super::{Entry, ReplyQueue, c_text, millis, raw_entries, text};

/// The answer to a question of the admin API. It owns all that it refers to.
struct Answer(*mut sys::rd_kafka_event_t);

impl Drop for Answer {
    fn drop(&mut self) {
        // SAFETY: an answer owns its event, which is destroyed only here.
        unsafe { sys::rd_kafka_event_destroy(self.0) };
    }
}

/// Asks a question of the admin API, and waits for the answer.
///
/// # Safety
/// `ask` starts `operation` with the options, and has the answer go to the queue; it keeps neither.
unsafe fn answer_to<C: ClientContext>(
    client: &Client<C>, operation: sys::rd_kafka_admin_op_t, timeout: Duration,
    ask: impl FnOnce(*mut sys::rd_kafka_AdminOptions_t, *mut sys::rd_kafka_queue_t),
) -> Result<Answer, Code> {
    let answers = ReplyQueue::new(client);
    // SAFETY: client and queue live during the calls. librdkafka copies the options, which are destroyed here. The
    // event is owned by the answer.
    unsafe {
        let options = sys::rd_kafka_AdminOptions_new(client.native_ptr(), operation);
        sys::rd_kafka_AdminOptions_set_request_timeout(options, millis(timeout), ptr::null_mut(), 0);
        ask(options, answers.0);
        sys::rd_kafka_AdminOptions_destroy(options);
        let event = sys::rd_kafka_queue_poll(answers.0, millis(timeout));
        if event.is_null() {
            return Err(Code::OperationTimedOut);
        }
        let answer = Answer(event);
        match sys::rd_kafka_event_error(event).into() {
            Code::NoError => Ok(answer),
            error => Err(error),
        }
    }
}

/// Returns the items of a result, each a pointer to one of the answer's parts; none where there is no result.
///
/// # Safety
/// `result` is null or the argument of `list`, which returns as many pointers as it counts. They live for `'a`.
unsafe fn items<'a, R, T>(
    result: *const R, list: unsafe extern "C" fn(*const R, *mut usize) -> *mut *const T,
) -> &'a [*const T] {
    let mut count = 0;
    // SAFETY: by the contract of this function.
    unsafe {
        match if result.is_null() { ptr::null_mut() } else { list(result, &mut count) } {
            items if count == 0 || items.is_null() => &[],
            items => slice::from_raw_parts(items, count),
        }
    }
}

/// A topic and its id, or the error with which the brokers refuse the topic.
pub(in super::super) type TopicId = (String, Result<String, Code>);

/// Returns topics with the ids that they got when they were made, in base64; empty where the brokers are older than
/// Kafka 2.8 and tell none. (rdkafka's AdminClient describes no topics.) The question goes to `broker`; without one it
/// would go to the controller, which an embedded cluster does not have.
pub(in super::super) fn topic_ids<C: ClientContext>(
    client: &Client<C>, broker: i32, topics: &[&str], timeout: Duration,
) -> Result<Vec<TopicId>, Code> {
    /// The id of brokers that tell none: 16 zeros.
    const NO_ID: &str = "AAAAAAAAAAAAAAAAAAAAAA";
    let (native, names) = (client.native_ptr(), topics.iter().map(|topic| c_text(topic)).collect::<Vec<_>>());
    let mut pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
    let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
    // SAFETY: client and names live during the calls; librdkafka copies the names. All that the answer refers to is
    // read before it is dropped: `count` descriptions, each with a name, and perhaps with an id.
    unsafe {
        let answer = answer_to(client, operation, timeout, |options, answers| {
            let collection = sys::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
            sys::rd_kafka_AdminOptions_set_broker(options, broker, ptr::null_mut(), 0);
            sys::rd_kafka_DescribeTopics(native, collection, options, answers);
            sys::rd_kafka_TopicCollection_destroy(collection);
        })?;
        let result = sys::rd_kafka_event_DescribeTopics_result(answer.0);
        let id_of = |topic| match sys::rd_kafka_error_code(sys::rd_kafka_TopicDescription_error(topic)).into() {
            Code::NoError => {
                let id = sys::rd_kafka_Uuid_base64str(sys::rd_kafka_TopicDescription_topic_id(topic));
                let id = text(id).unwrap_or_default();
                Ok(if id == NO_ID { String::new() } else { id.into_owned() })
            }
            error => Err(error),
        };
        let name_of = |topic| text(sys::rd_kafka_TopicDescription_name(topic)).unwrap_or_default().into_owned();
        // librdkafka leaves null for a topic that an answer does not name.
        let topics = items(result, sys::rd_kafka_DescribeTopics_result_topics);
        let told = topics.iter().filter(|topic| !topic.is_null());
        Ok(told.map(|topic| (name_of(*topic), id_of(*topic))).collect())
    }
}

/// Returns the offsets with their metadata that any group has committed; with `stable` none while a transaction with
/// one is pending. (rdkafka asks only for the offsets of a client's own group.)
pub(in super::super) fn committed_of<C: ClientContext>(
    client: &Client<C>, group: &str, partitions: &TopicPartitionList, stable: bool, timeout: Duration,
) -> Result<Vec<Entry>, Code> {
    let (native, name) = (client.native_ptr(), c_text(group));
    let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTCONSUMERGROUPOFFSETS;
    // SAFETY: client, name and list live during the calls; librdkafka copies the question. The entries are copied
    // before the answer that owns them is dropped.
    unsafe {
        let answer = answer_to(client, operation, timeout, |options, answers| {
            let question = sys::rd_kafka_ListConsumerGroupOffsets_new(name.as_ptr(), partitions.ptr());
            let refused = sys::rd_kafka_AdminOptions_set_require_stable_offsets(options, c_int::from(stable));
            sys::rd_kafka_error_destroy(refused);
            sys::rd_kafka_ListConsumerGroupOffsets(native, [question].as_mut_ptr(), 1, options, answers);
            sys::rd_kafka_ListConsumerGroupOffsets_destroy(question);
        })?;
        let result = sys::rd_kafka_event_ListConsumerGroupOffsets_result(answer.0);
        let Some(&group) = items(result, sys::rd_kafka_ListConsumerGroupOffsets_result_groups).first() else {
            return Ok(Vec::new());
        };
        match sys::rd_kafka_error_code(sys::rd_kafka_group_result_error(group)).into() {
            Code::NoError => Ok(raw_entries(sys::rd_kafka_group_result_partitions(group))),
            error => Err(error),
        }
    }
}

/// Returns the members of a group of either protocol, each as its client's id and host. (The safe `fetch_group_list`
/// shows none of the protocol "consumer".)
pub(in super::super) fn members_of<C: ClientContext>(
    client: &Client<C>, group: &str, timeout: Duration,
) -> Result<Vec<String>, Code> {
    let (native, name) = (client.native_ptr(), c_text(group));
    let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECONSUMERGROUPS;
    // SAFETY: client and name live during the calls; librdkafka copies the names. All that the answer refers to is read
    // before it is dropped.
    unsafe {
        let answer = answer_to(client, operation, timeout, |options, answers| {
            sys::rd_kafka_DescribeConsumerGroups(native, [name.as_ptr()].as_mut_ptr(), 1, options, answers);
        })?;
        let result = sys::rd_kafka_event_DescribeConsumerGroups_result(answer.0);
        let Some(&group) = items(result, sys::rd_kafka_DescribeConsumerGroups_result_groups).first() else {
            return Ok(Vec::new());
        };
        match sys::rd_kafka_error_code(sys::rd_kafka_ConsumerGroupDescription_error(group)).into() {
            Code::NoError => {}
            Code::GroupIdNotFound => return Ok(Vec::new()),
            error => return Err(error),
        }
        let known = |pointer| text(pointer).unwrap_or("?".into());
        let member = |index| {
            let member = sys::rd_kafka_ConsumerGroupDescription_member(group, index);
            let client_id = known(sys::rd_kafka_MemberDescription_client_id(member));
            format!("{client_id} at {}", known(sys::rd_kafka_MemberDescription_host(member)).trim_start_matches('/'))
        };
        Ok((0..sys::rd_kafka_ConsumerGroupDescription_member_count(group)).map(member).collect())
    }
}
