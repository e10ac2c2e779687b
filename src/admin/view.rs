//! The answers of `/v1`, made from snapshots.

use watermaster_api::{
    ClientDetail, ClientView, DecisionsView, DelaysView, GroupView, PaceFigures, ServiceView, ServicesView,
};
use watermaster_core::delays::ClientDelays;
use watermaster_core::pace::PaceView;

use crate::services::ServiceHandle;
use crate::snapshot::{ClientSnapshot, Counts, Levels, ServiceSnapshot};

pub(super) fn services(handles: &[ServiceHandle]) -> ServicesView {
    let mut services: Vec<_> = handles.iter().map(service).collect();
    services.sort_by(|a, b| a.figures.name.cmp(&b.figures.name));
    ServicesView { services }
}

pub(super) fn service(handle: &ServiceHandle) -> ServiceView {
    let (snapshot, pace) = (handle.cell.get(), handle.cell.pace());
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

fn client(client: &ClientSnapshot) -> ClientView {
    let levels = &client.levels;
    let Levels { wants, default_share, granted, backlog, shadow_backlog, oldest_seconds, .. } = *levels;
    ClientView {
        name: client.name.to_string(),
        group: client.group.as_ref().map(|group| group.trim_end_matches('/').to_owned()),
        wants,
        default_share,
        granted,
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
