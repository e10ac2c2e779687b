//! Calls that rdkafka's safe interface does not offer. The only `unsafe` of this program; each block names its
//! conditions.

#![allow(unsafe_code)]

mod admin;
mod producer;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, CString, c_char, c_void};
use std::{
    borrow::Cow, error::Error, mem, mem::ManuallyDrop, os::raw::c_int, ptr, ptr::NonNull, slice, time::Duration,
};

use rdkafka::client::{Client, ClientContext, OAuthToken};
use rdkafka::message::{BorrowedHeaders, BorrowedMessage};
use rdkafka::{
    bindings as sys, error::RDKafkaErrorCode as Code, topic_partition_list::TopicPartitionList, types::RDKafkaRespErr,
    util::IntoOpaque as _,
};
use watermaster_core::delivery::{ClientError, ErrorClass, ErrorKind, TransactionError};

pub(super) use admin::{TopicId, committed_of, members_of, topic_ids};
pub(super) use producer::{Deliveries, SentRecord, producer, purge, serve};

/// A partition of a list, as librdkafka returned it.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub topic: String,
    pub partition: i32,
    /// The raw offset: negative values are librdkafka's logical offsets.
    pub offset: i64,
    pub error: Code,
    /// The metadata as the broker keeps it: any bytes, since any tool may have committed them.
    pub metadata: Vec<u8>,
}

/// Copies all partitions of a list. (`TopicPartitionListElem::metadata` panics on bytes that are not UTF-8.)
pub(super) fn entries(list: &TopicPartitionList) -> Vec<Entry> {
    // SAFETY: the pointer of a list is valid for as long as the list is borrowed, and there are no writes meanwhile.
    unsafe { raw_entries(list.ptr()) }
}

/// # Safety
/// `list` points to a list that does not change during the call.
unsafe fn raw_entries(list: *const sys::rd_kafka_topic_partition_list_t) -> Vec<Entry> {
    // SAFETY: by the contract of this function; `elems` holds `cnt` initialised elements, their topics are
    // C strings, and `metadata` is null or holds `metadata_size` bytes.
    unsafe {
        let list = &*list;
        if list.cnt <= 0 || list.elems.is_null() {
            return Vec::new();
        }
        let entry = |element: &sys::rd_kafka_topic_partition_t| Entry {
            topic: CStr::from_ptr(element.topic).to_string_lossy().into_owned(),
            partition: element.partition,
            offset: element.offset,
            error: element.err.into(),
            metadata: bytes(element.metadata, element.metadata_size).unwrap_or_default().to_vec(),
        };
        slice::from_raw_parts(list.elems, list.cnt as usize).iter().map(entry).collect()
    }
}

/// Returns the bytes behind a pointer that may be null.
///
/// # Safety
/// `pointer` is null or points to `size` bytes that stay unchanged for `'a`.
unsafe fn bytes<'a>(pointer: *const c_void, size: usize) -> Option<&'a [u8]> {
    // SAFETY: by the contract of this function; a pointer that is not null is good for an empty slice too.
    (!pointer.is_null()).then(|| unsafe { slice::from_raw_parts(pointer.cast::<u8>(), size) })
}

/// Returns the headers of a message: none, a list, or an error where librdkafka cannot hand them over.
///
/// librdkafka parses them at the first call, and at most 100 000. (`Message::headers` shows headers that it cannot
/// parse as none.)
pub(super) fn headers_of<'a>(message: &'a BorrowedMessage<'_>) -> Result<Option<&'a BorrowedHeaders>, Code> {
    let mut list = ptr::null_mut();
    // SAFETY: the message lives while it is borrowed; on success the list is part of it, and only `&mut` takes it out.
    // rdkafka makes a `&BorrowedHeaders` of a list's address in the same way.
    unsafe {
        match sys::rd_kafka_message_headers(message.ptr(), &mut list) {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(list.cast::<BorrowedHeaders>().as_ref()),
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__NOENT => Ok(None),
            error => Err(error.into()),
        }
    }
}

pub(super) type RawHeader<'a> = (&'a [u8], Option<&'a [u8]>);

/// `rd_kafka_header_t` of librdkafka's `rdkafka_header.h`: one allocation for a header, its name and its value.
///
/// The public interface does not return a name's length, and a name may contain a NUL.
#[repr(C)]
struct HeaderLayout {
    serialized_size: usize,
    value_size: usize,
    name_size: usize,
    value: *mut c_char,
    name: [c_char; 1],
}

const NAME_SIZE_BEFORE_NAME: usize = mem::offset_of!(HeaderLayout, name) - mem::offset_of!(HeaderLayout, name_size);

// The layout was read in this version, to which Cargo.toml pins rdkafka-sys; `check_library` checks the one that runs.
// For another version, compare `HeaderLayout` with its `rdkafka_header.h` first.
const _: () = assert!(sys::RD_KAFKA_VERSION == 0x020c_01ff, "compare HeaderLayout with this librdkafka's header");

/// Returns the header at an index. (`Headers::try_get` panics on a name that is not UTF-8, and cuts a name at a NUL.)
pub(super) fn header_at(headers: &BorrowedHeaders, index: usize) -> Option<RawHeader<'_>> {
    let (mut name, mut value, mut size) = (ptr::null::<c_char>(), ptr::null::<c_void>(), 0_usize);
    let list: *const BorrowedHeaders = headers;
    // SAFETY: a `&BorrowedHeaders` is the address of librdkafka's header list (that is how rdkafka makes it), which
    // lives and stays unchanged while it is borrowed. On success `value` is null or `size` bytes, and `name` is the
    // last field of a `HeaderLayout` (see the assertion above), with `name_size` bytes and a NUL, all inside the list.
    unsafe {
        let error = sys::rd_kafka_header_get_all(list.cast(), index, &mut name, &mut value, &mut size);
        if error != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return None;
        }
        let name_size = *name.byte_sub(NAME_SIZE_BEFORE_NAME).cast::<usize>();
        debug_assert_eq!(*name.add(name_size), 0, "a NUL ends a name");
        debug_assert!(value.is_null() || name.add(name_size + 1).addr() == value.addr(), "a value follows its name");
        Some((slice::from_raw_parts(name.cast::<u8>(), name_size), bytes(value, size)))
    }
}

/// An owned list of headers. (`OwnedHeaders` takes names as `str` and copies them twice, and can't be made of a
/// message's list.)
pub(super) struct HeaderList(NonNull<sys::rd_kafka_headers_t>);

impl HeaderList {
    pub fn with_capacity(count: usize) -> HeaderList {
        // SAFETY: the call only fails where memory ends, and then does not return.
        HeaderList(NonNull::new(unsafe { sys::rd_kafka_headers_new(count) }).expect("a new list"))
    }

    /// Takes a consumed message's headers out of it. librdkafka parses them anew when they are needed again.
    pub fn take(message: &mut BorrowedMessage<'_>) -> Option<HeaderList> {
        let mut list = ptr::null_mut();
        // SAFETY: the message lives while it is borrowed, and through `&mut` there is no other reference into its
        // headers; on success the list is owned.
        unsafe {
            let error = sys::rd_kafka_message_detach_headers(message.ptr(), &mut list);
            if error == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR { NonNull::new(list).map(HeaderList) } else { None }
        }
    }

    /// Adds a header at the end; its name may be any bytes.
    pub fn add(&mut self, name: &[u8], value: Option<&[u8]>) {
        // SAFETY: the list is borrowed exclusively; name and value have the given lengths and are copied, a null
        // value excepted. (A length is never more than `isize::MAX`.) The only error is that a list is read-only, and
        // an owned list never is.
        unsafe {
            let (name_size, value_size) = (name.len() as isize, value.map_or(0, <[u8]>::len) as isize);
            let name = name.as_ptr().cast::<c_char>();
            let value = value.map_or(ptr::null(), |value| value.as_ptr().cast::<c_void>());
            sys::rd_kafka_header_add(self.0.as_ptr(), name, name_size, value, value_size);
        }
    }
}

impl Drop for HeaderList {
    fn drop(&mut self) {
        // SAFETY: the list is owned and destroyed only here; code that hands it over forgets it.
        unsafe { sys::rd_kafka_headers_destroy(self.0.as_ptr()) };
    }
}

/// A topic of a producer, looked up once. To be dropped before its client.
pub(super) struct TopicHandle(*mut sys::rd_kafka_topic_t);

impl TopicHandle {
    /// Looks a topic up; `None` if librdkafka refuses the name.
    pub fn new<C: ClientContext>(client: &Client<C>, name: &str) -> Option<TopicHandle> {
        let name = CString::new(name).ok()?;
        // SAFETY: the client lives while it is borrowed, the name is a C string; null means the client's settings.
        let handle = unsafe { sys::rd_kafka_topic_new(client.native_ptr(), name.as_ptr(), ptr::null_mut()) };
        (!handle.is_null()).then(|| TopicHandle(handle))
    }

    pub fn name(&self) -> String {
        // SAFETY: the handle is valid until drop.
        unsafe { topic_name(self.0) }
    }
}

/// # Safety
/// `topic` points to a topic of a client.
unsafe fn topic_name(topic: *const sys::rd_kafka_topic_t) -> String {
    // SAFETY: by the contract of this function; the name is a C string that never changes.
    unsafe { text(sys::rd_kafka_topic_name(topic)) }.unwrap_or_default().into_owned()
}

impl Drop for TopicHandle {
    fn drop(&mut self) {
        // SAFETY: made by `rd_kafka_topic_new`, never null, destroyed only here, before its client.
        unsafe { sys::rd_kafka_topic_destroy(self.0) };
    }
}

pub(super) struct ProducedRecord<'a> {
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub timestamp_ms: i64,
    pub headers: Option<HeaderList>,
    /// Returned with its report.
    pub tag: usize,
}

/// Hands a record to a producer, which copies key and value. (`BaseProducer::send` copies the topic's name and looks
/// it up each time.)
pub(super) fn produce<C: ClientContext>(
    client: &Client<C>, topic: &TopicHandle, record: ProducedRecord<'_>,
) -> Result<(), Code> {
    let part = |bytes: Option<&[u8]>| match bytes {
        Some(bytes) => (bytes.as_ptr().cast::<c_void>(), bytes.len()),
        None => (ptr::null(), 0),
    };
    let ((key, key_size), (value, value_size)) = (part(record.key), part(record.value));
    let headers = record.headers.map(ManuallyDrop::new);
    let list = headers.as_ref().map_or(ptr::null_mut(), |headers| headers.0.as_ptr());
    // SAFETY: client and topic (of this client, by the type that owns both) live during the call; the arguments have
    // the types that their tags announce, `int` and pointers as C passes them; key and value have the given lengths
    // and are copied. On success librdkafka owns the headers, otherwise they are still owned here.
    let error = unsafe {
        sys::rd_kafka_producev(
            client.native_ptr(),
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_RKT,
            topic.0,
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_MSGFLAGS,
            sys::RD_KAFKA_MSG_F_COPY,
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_VALUE,
            value,
            value_size,
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_KEY,
            key,
            key_size,
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_OPAQUE,
            record.tag.into_ptr(),
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_TIMESTAMP,
            record.timestamp_ms,
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_HEADERS,
            list,
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_END,
        )
    };
    if error == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
        return Ok(());
    }
    drop(headers.map(ManuallyDrop::into_inner));
    Err(error.into())
}

/// Returns the high watermark that came with the last fetch, without asking a broker; `None` before the first.
pub(super) fn cached_high<C: ClientContext>(client: &Client<C>, topic: &str, partition: i32) -> Option<i64> {
    let topic = CString::new(topic).ok()?;
    let (mut low, mut high) = (-1, -1);
    // SAFETY: the client lives while it is borrowed, the topic is a C string, and both offsets are written before
    // return.
    let error = unsafe {
        sys::rd_kafka_get_watermark_offsets(client.native_ptr(), topic.as_ptr(), partition, &mut low, &mut high)
    };
    (error == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR && high >= 0).then_some(high)
}

/// Returns a consumer's position in the one partition of `list`: the offset after the last record or marker that was
/// polled; `None` before the first. (`Consumer::position` first asks librdkafka's main thread for the assignment.)
pub(super) fn position<C: ClientContext>(client: &Client<C>, list: &mut TopicPartitionList) -> Option<u64> {
    // SAFETY: client and list live while they are borrowed, the list exclusively; the call writes offset and error of
    // each element, and always succeeds.
    unsafe { sys::rd_kafka_position(client.native_ptr(), list.ptr()) };
    entries(list).first().and_then(|entry| u64::try_from(entry.offset).ok())
}

/// A consumer's membership in its group, always with a generation and a member id: without them a broker accepts
/// commits unfenced.
pub(super) struct GroupMetadata(*mut sys::rd_kafka_consumer_group_metadata_t);

impl GroupMetadata {
    /// Returns the current membership of this consumer, if it is a member.
    pub fn of<C: ClientContext>(client: &Client<C>) -> Option<GroupMetadata> {
        let metadata = GroupMetadata::raw(client)?;
        // SAFETY: the member id is null or a C string inside of the metadata.
        let member = unsafe { text(sys::rd_kafka_consumer_group_metadata_member_id(metadata.0)) };
        // A consumer that is joining by KIP-848 has epoch 0; a member's is higher in either protocol.
        (member.is_some_and(|member| !member.is_empty()) && metadata.generation() > 0).then_some(metadata)
    }

    /// Returns a membership without generation and member id: for a group that nothing joins, and for
    /// `failpoint::Fault::UnfencedGroupMetadata`.
    pub fn unfenced<C: ClientContext>(client: &Client<C>) -> Option<GroupMetadata> {
        let metadata = GroupMetadata::raw(client)?;
        // SAFETY: the group id is a C string inside of the metadata, which the new metadata copies.
        unsafe {
            let group = sys::rd_kafka_consumer_group_metadata_group_id(metadata.0);
            Some(GroupMetadata(sys::rd_kafka_consumer_group_metadata_new(group)))
        }
    }

    fn raw<C: ClientContext>(client: &Client<C>) -> Option<GroupMetadata> {
        // SAFETY: the client lives while it is borrowed; the metadata, if any, is owned until drop destroys it.
        let metadata = unsafe { sys::rd_kafka_consumer_group_metadata(client.native_ptr()) };
        (!metadata.is_null()).then(|| GroupMetadata(metadata))
    }

    /// Returns the generation of a classic group, or the member's epoch in a group of KIP-848.
    pub fn generation(&self) -> i32 {
        // SAFETY: the pointer is never null, and valid until drop.
        unsafe { sys::rd_kafka_consumer_group_metadata_generation_id(self.0) }
    }
}

// SAFETY: the metadata does not change between its creation and its destruction.
unsafe impl Send for GroupMetadata {}
// SAFETY: as above.
unsafe impl Sync for GroupMetadata {}

impl Drop for GroupMetadata {
    fn drop(&mut self) {
        // SAFETY: made by librdkafka, never null, destroyed only here.
        unsafe { sys::rd_kafka_consumer_group_metadata_destroy(self.0) };
    }
}

/// librdkafka's error of a transactional call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text} ({code})")]
pub(super) struct CallError {
    pub text: String,
    pub code: Code,
    pub class: ErrorClass,
}

impl From<CallError> for TransactionError {
    fn from(mut error: CallError) -> TransactionError {
        // librdkafka does not name the topic.
        if error.code == Code::TopicAuthorizationFailed {
            error.text.push_str(": grant READ on each source, WRITE on target and dead-letter topic");
        }
        TransactionError { class: error.class, kind: error_kind(error.code), source: ClientError::new(error) }
    }
}

/// # Safety
/// `error` is null or an owned error.
unsafe fn check(error: *mut sys::rd_kafka_error_t) -> Result<(), CallError> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: by the contract of this function; the text is a C string inside of the error.
    unsafe {
        let fatal = sys::rd_kafka_error_is_fatal(error) != 0;
        let abortable = sys::rd_kafka_error_txn_requires_abort(error) != 0;
        let retriable = sys::rd_kafka_error_is_retriable(error) != 0;
        let text = CStr::from_ptr(sys::rd_kafka_error_string(error)).to_string_lossy().into_owned();
        let code = sys::rd_kafka_error_code(error).into();
        sys::rd_kafka_error_destroy(error);
        Err(CallError { text, code, class: error_class(fatal, abortable, retriable) })
    }
}

fn error_class(fatal: bool, abortable: bool, retriable: bool) -> ErrorClass {
    match (fatal, abortable, retriable) {
        (true, ..) | (false, false, false) => ErrorClass::Fatal,
        (false, true, _) => ErrorClass::Abortable,
        (false, false, true) => ErrorClass::Retriable,
    }
}

fn error_kind(code: Code) -> ErrorKind {
    match code {
        Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch => ErrorKind::Fenced,
        Code::GroupAuthorizationFailed | Code::OffsetMetadataTooLarge | Code::InvalidCommitOffsetSize => {
            ErrorKind::Group
        }
        Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::InvalidTransactionTimeout
        | Code::UnsupportedFeature
        | Code::UnsupportedVersion => ErrorKind::Denied,
        _ => ErrorKind::Other,
    }
}

/// A step of a transaction that takes nothing but a timeout.
#[derive(Debug, Clone, Copy)]
pub(super) enum TransactionStep {
    /// Gets the producer's epoch and aborts an open transaction of a predecessor with the same id. A second call
    /// continues the first.
    Init,
    /// Contacts no broker.
    Begin,
    /// (`Producer::commit_transaction` polls in full steps of 100 ms, and hides the class of some errors.)
    Commit,
    /// Gives up records that are queued or in flight, too. Another thread must serve the delivery reports.
    Abort,
}

pub(super) fn transaction<C: ClientContext>(
    client: &Client<C>, step: TransactionStep, timeout: Duration,
) -> Result<(), CallError> {
    let (producer, timeout) = (client.native_ptr(), millis(timeout));
    // SAFETY: the client lives while it is borrowed; the error is owned.
    unsafe {
        check(match step {
            TransactionStep::Init => sys::rd_kafka_init_transactions(producer, timeout),
            TransactionStep::Begin => sys::rd_kafka_begin_transaction(producer),
            TransactionStep::Commit => sys::rd_kafka_commit_transaction(producer, timeout),
            TransactionStep::Abort => sys::rd_kafka_abort_transaction(producer, timeout),
        })
    }
}

/// Adds offsets to the transaction, fenced by the consumer's membership. May take far longer than `timeout`, even for
/// ever: librdkafka waits for a connection to the group's coordinator without a timeout.
pub(super) fn send_offsets<C: ClientContext>(
    client: &Client<C>, list: &TopicPartitionList, group: &GroupMetadata, timeout: Duration,
) -> Result<(), CallError> {
    // SAFETY: client, list and metadata live during the call, and librdkafka copies the latter two; the error is owned.
    unsafe {
        check(sys::rd_kafka_send_offsets_to_transaction(client.native_ptr(), list.ptr(), group.0, millis(timeout)))
    }
}

/// Sends lingering batches and waits until no record is in flight; false if that takes longer than `timeout`.
///
/// (`Producer::flush` polls in full steps of 100 ms.) Another thread must serve the delivery reports.
pub(super) fn flush<C: ClientContext>(client: &Client<C>, timeout: Duration) -> bool {
    // SAFETY: the client lives while it is borrowed; flush is thread-safe.
    let error = unsafe { sys::rd_kafka_flush(client.native_ptr(), millis(timeout)) };
    error == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR
}

/// Returns the number of a consumer's records and events that wait to be polled; zero for other clients.
pub(super) fn waiting_records<C: ClientContext>(client: &Client<C>) -> usize {
    // SAFETY: the client lives while it is borrowed; the queue is null or owned.
    unsafe { waiting(sys::rd_kafka_queue_get_consumer(client.native_ptr())) }
}

/// Returns the number of events that wait to be served.
pub(super) fn waiting_events<C: ClientContext>(client: &Client<C>) -> usize {
    // SAFETY: as above.
    unsafe { waiting(sys::rd_kafka_queue_get_main(client.native_ptr())) }
}

/// # Safety
/// `queue` is null or an owned reference to a queue.
unsafe fn waiting(queue: *mut sys::rd_kafka_queue_t) -> usize {
    if queue.is_null() {
        return 0;
    }
    // SAFETY: by the contract of this function.
    unsafe {
        let length = sys::rd_kafka_queue_length(queue);
        sys::rd_kafka_queue_destroy(queue);
        length
    }
}

/// Sets the user and the password for connections that are made from now on; a text with a NUL is left out.
pub(super) fn set_login<C: ClientContext>(client: &Client<C>, user: &str, password: &str) {
    let (Ok(user), Ok(password)) = (CString::new(user), CString::new(password)) else { return };
    // SAFETY: the client lives while it is borrowed; both texts are C strings, which are copied; the error is owned.
    // The only error is that a text is missing.
    let _ = unsafe { check(sys::rd_kafka_sasl_set_credentials(client.native_ptr(), user.as_ptr(), password.as_ptr())) };
}

/// Gives a client its token of OAuth, or the reason why it has none, which is its next error.
pub(super) fn give_token<C: ClientContext>(client: &Client<C>, token: Result<OAuthToken, Box<dyn Error>>) {
    match token {
        Ok(token) => set_token(client, &token),
        Err(reason) => set_token_failure(client, &reason.to_string()),
    }
}

/// Sets a client's token of OAuth. If librdkafka refuses it, its reason is the client's next error.
fn set_token<C: ClientContext>(client: &Client<C>, token: &OAuthToken) {
    let [value, principal] = [&token.token, &token.principal_name].map(|text| c_text(text));
    let mut error: [c_char; 512] = [0; 512];
    let (to_error, error_size) = (error.as_mut_ptr(), error.len());
    // SAFETY: the client lives while it is borrowed; both texts are C strings, which are copied; there are no
    // extensions; `error` has room for `error_size` bytes, and librdkafka ends its text with a NUL.
    unsafe {
        let (rk, lifetime) = (client.native_ptr(), token.lifetime_ms);
        let (value, principal, none) = (value.as_ptr(), principal.as_ptr(), ptr::null_mut());
        let code = sys::rd_kafka_oauthbearer_set_token(rk, value, lifetime, principal, none, 0, to_error, error_size);
        if code != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            set_token_failure(client, &CStr::from_ptr(to_error).to_string_lossy());
        }
    }
}

/// Sets the reason why a client has no token of OAuth, as its next error.
fn set_token_failure<C: ClientContext>(client: &Client<C>, reason: &str) {
    let reason = c_text(reason);
    // SAFETY: the client lives while it is borrowed; the text is a C string, which is copied. The only error is that
    // the client does not use OAUTHBEARER: it needs no token.
    unsafe { sys::rd_kafka_oauthbearer_set_token_failure(client.native_ptr(), reason.as_ptr()) };
}

/// Returns the text behind a pointer that may be null.
///
/// # Safety
/// `pointer` is null or a C string that stays unchanged for `'a`.
unsafe fn text<'a>(pointer: *const c_char) -> Option<Cow<'a, str>> {
    // SAFETY: by the contract of this function.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy())
}

/// Returns a C string; an empty one for a text with a NUL, which no token has.
fn c_text(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// Sets the time that a new group of an embedded cluster waits for more members.
pub(super) fn set_initial_rebalance_delay<C: ClientContext>(client: &Client<C>, delay: Duration) {
    // SAFETY: the client lives while it is borrowed and its cluster as long as it; null means that there is none.
    unsafe {
        let cluster = sys::rd_kafka_handle_mock_cluster(client.native_ptr());
        if !cluster.is_null() {
            sys::rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, millis(delay));
        }
    }
}

fn millis(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX)
}

/// The queue for answers to commits. To be dropped before its client.
pub(super) struct ReplyQueue(*mut sys::rd_kafka_queue_t);

pub(super) struct CommitReply {
    pub error: Code,
    /// The partitions, each with its error.
    pub entries: Vec<Entry>,
}

impl ReplyQueue {
    pub fn new<C: ClientContext>(client: &Client<C>) -> ReplyQueue {
        // SAFETY: the client lives while it is borrowed; the call can't fail.
        ReplyQueue(unsafe { sys::rd_kafka_queue_new(client.native_ptr()) })
    }

    /// Starts a commit; its answer arrives here. (The safe commit waits without a timeout, and drops the errors of
    /// partitions.)
    pub fn start_commit<C: ClientContext>(&self, client: &Client<C>, list: &TopicPartitionList) -> Result<(), Code> {
        // SAFETY: client, list and queue live during the call, and librdkafka copies the list; without a callback the
        // answer is an event.
        let error =
            unsafe { sys::rd_kafka_commit_queue(client.native_ptr(), list.ptr(), self.0, None, ptr::null_mut()) };
        if error == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR { Ok(()) } else { Err(error.into()) }
    }

    pub fn next(&self, timeout: Duration) -> Option<CommitReply> {
        // SAFETY: the queue is valid until drop; an event is owned until it is destroyed, and its list is copied
        // before.
        unsafe {
            let event = sys::rd_kafka_queue_poll(self.0, millis(timeout));
            if event.is_null() {
                return None;
            }
            let list = sys::rd_kafka_event_topic_partition_list(event);
            let entries = if list.is_null() { Vec::new() } else { raw_entries(list) };
            let error = sys::rd_kafka_event_error(event).into();
            sys::rd_kafka_event_destroy(event);
            Some(CommitReply { error, entries })
        }
    }
}

impl Drop for ReplyQueue {
    fn drop(&mut self) {
        // SAFETY: made by `rd_kafka_queue_new` and destroyed only here; answers that still come are dropped by
        // librdkafka.
        unsafe { sys::rd_kafka_queue_destroy(self.0) };
    }
}

// SAFETY: librdkafka's queues may be used from any thread; that the client outlives the queue does not depend on
// threads.
unsafe impl Send for ReplyQueue {}
