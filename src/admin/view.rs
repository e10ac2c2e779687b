//! The answers of `/v1`, made from snapshots.

use watermaster_api::{
    ClientDetail, ClientView, DecisionsView, DelaysView, GroupView, HeaderView, LetterView, NewestLettersView,
    PaceFigures, ServiceView, ServicesView,
};
use watermaster_core::delays::ClientDelays;
use watermaster_core::pace::PaceView;
use watermaster_kafka::dead_letters::HeaderHead;
use watermaster_kafka::headers;
use watermaster_kafka::record::NO_TIMESTAMP;

use crate::services::ServiceHandle;
use crate::snapshot::{ClientSnapshot, Counts, Levels, NewestLetter, ServiceSnapshot};

pub(super) fn services(handles: &[ServiceHandle]) -> ServicesView {
    let mut services: Vec<_> = handles.iter().map(service).collect();
    services.sort_by(|a, b| a.figures.name.cmp(&b.figures.name));
    ServicesView { services }
}

pub(super) fn service(handle: &ServiceHandle) -> ServiceView {
    let (snapshot, pace) = (handle.cell.get(), handle.cell.pace.get());
    let clients = snapshot.clients.iter().map(client).collect();
    let (pace, groups) = (pace.as_deref().map(pace_figures), snapshot.throttle.groups.clone());
    ServiceView { figures: snapshot.figures.clone(), pace, groups, clients }
}

pub(super) fn pace_figures(pace: &PaceView) -> PaceFigures {
    PaceFigures {
        state: pace.state.into_str().into(),
        control: pace.control.into_str().into(),
        found: pace.found,
        at_least: pace.at_least,
        limit: pace.limit,
        floor: pace.floor,
        ceiling: pace.ceiling,
        late_seconds: pace.late.as_secs_f64(),
        usual_seconds: pace.usual.as_secs_f64(),
        commit_gap_seconds: pace.gap.as_secs_f64(),
        open_offsets: pace.open_offsets,
        finished: pace.rate,
        brake: f64::from(pace.brake.millionths()) / 1e6,
        signal_age_seconds: pace.signal_age.map(|age| age.as_secs_f64()),
        stuck_partitions: pace.stuck_partitions,
    }
}

pub(super) fn group(handle: &ServiceHandle) -> GroupView {
    let figures = handle.cell.get().group.figures.clone();
    let scope = if figures.state.is_some() { "group" } else { "instance" };
    GroupView { name: handle.name.clone(), scope: scope.into(), figures }
}

/// The newest dead letters as they were read last. They are read again soon. The values of headers that producers
/// wrote may be personal: only `shows_all` shows them.
pub(super) fn letters(handle: &ServiceHandle, shows_all: bool) -> NewestLettersView {
    let newest = handle.cell.ask_for_letters();
    NewestLettersView {
        service: handle.name.clone(),
        read_ms: newest.as_ref().map(|newest| newest.read_ms),
        complete: newest.as_ref().is_some_and(|newest| newest.is_complete),
        letters: newest.iter().flat_map(|newest| &newest.letters).map(|one| letter(one, shows_all)).collect(),
    }
}

fn letter(letter: &NewestLetter, shows_all: bool) -> LetterView {
    let head = &letter.head;
    let is_own = |name: &str| name.as_bytes().starts_with(headers::PREFIX);
    let header = |HeaderHead { name, value, bytes }: &HeaderHead| HeaderView {
        name: name.clone(),
        value: match value {
            Some(_) if !shows_all && !is_own(name) => Some(format!("{bytes} bytes, for the role operate")),
            value => value.clone(),
        },
    };
    LetterView {
        topic: letter.topic.to_string(),
        partition: head.partition,
        offset: head.offset,
        rejected_at: letter.rejected_at().map(str::to_owned),
        at_ms: (head.timestamp_ms != NO_TIMESTAMP).then_some(head.timestamp_ms),
        reason: letter.reason.map(Into::into),
        state: head.state.map_or("open", |state| state.into_str()).into(),
        headers: head.headers.iter().map(header).collect(),
    }
}

fn client(client: &ClientSnapshot) -> ClientView {
    let levels = &client.levels;
    let Levels { wants, default_share, granted, backlog, shadow_backlog, oldest_seconds, .. } = *levels;
    ClientView {
        name: client.name.to_string(),
        group: client.group.as_ref().map(|group| group.trim_end_matches('/').to_owned()),
        wants,
        default_share,
        granted,
        held: levels.is_held(),
        done: decisions(&client.counts, backlog),
        lent: levels.lent(),
        borrowed: levels.borrowed(),
        oldest_seconds,
        shadow: decisions(&client.shadow, shadow_backlog),
    }
}

pub(super) fn decisions(counts: &Counts, backlog: u64) -> DecisionsView {
    let rejected = counts.rejected.iter().map(|(reason, count)| (reason.into_str().into(), count)).collect();
    DecisionsView { admitted: counts.admitted, delayed: counts.delayed, rejected, backlog }
}

pub(super) fn detail(service: &ServiceSnapshot, shown: &ClientSnapshot) -> ClientDetail {
    let levels = &shown.levels;
    ClientDetail {
        client: client(shown),
        configured: shown.configured,
        admitted_in_cycle: levels.admitted_now,
        admitted_in_last_cycle: levels.admitted_last,
        used_ratio: levels.used_ratio(service.figures.capacity),
        limit: levels.limit.map(|limit| limit.most),
        backlog_bytes: levels.backlog_bytes,
        next_admission_seconds: shown.next_admission_seconds(service),
        delays: delays(&shown.counts.delays),
        shadow_delays: delays(&shown.shadow.delays),
        explain: None,
    }
}

fn delays(delays: &ClientDelays) -> DelaysView {
    DelaysView {
        records: delays.counts.iter().sum(),
        p50_seconds: delays.quantile(0.5),
        p99_seconds: delays.quantile(0.99),
        longest_seconds: delays.longest as f64 / 1e6,
    }
}
