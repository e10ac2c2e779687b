use watermaster_core::pace::{Control, PaceState, PaceView};
use watermaster_core::units::Ratio;

use super::*;
use crate::snapshot::OwnLimit;
use crate::tests::assert_current;

/// Scripts rely on the names, the order and the form of all figures: each line is a path and its answer, byte for byte.
const ANSWERS: &str = "src/admin/tests/bytes.txt";

#[test]
fn answers_keep_their_bytes() {
    let server = Server::start(Ipv4Addr::LOCALHOST);
    server.show(snapshot());
    let mut shown = vec![answer(&server, "/v1/services/kyc"), answer(&server, "/v1/services/kyc/group")];
    let mut service = snapshot();
    (service.figures.mode, service.figures.ready) = ("shape".into(), false);
    service.figures.trouble = Some("draining".to_owned());
    service.clients = [waiting()].into_iter().collect();
    service.group.figures = group();
    server.show(service);
    server.state.services()[0].cell.pace.set(Some(pace().into()));
    let paths = ["/v1/services", "/v1/services/kyc/group", "/v1/services/kyc/clients?top=1"];
    shown.extend(paths.map(|path| answer(&server, path)));
    server.state.services()[0]
        .cell
        .pace
        .set(Some(PaceView { found: None, rate: None, signal_age: None, ..pace() }.into()));
    shown.extend(["/v1/services/kyc", "/v1/services/kyc/clients/credit-card"].map(|path| answer(&server, path)));
    assert_current(ANSWERS, &(shown.join("\n") + "\n"));
}

fn answer(server: &Server, path: &str) -> String {
    let answer = server.get(path).1;
    // The explanation has the time.
    let figures = answer.split_once(",\"explain\":").map_or(answer.clone(), |(figures, _)| format!("{figures}}}"));
    format!("{path} {figures}")
}

fn waiting() -> ClientSnapshot {
    let (name, group) = ("credit-card".into(), Some("cards/".into()));
    let mut client = ClientSnapshot { name, group, configured: true, ..Default::default() };
    client.levels = Levels {
        wants: 900,
        default_share: 33.25,
        granted: 40,
        limit: Some(OwnLimit { most: 45, pace: 20.5 }),
        admitted_last: 50,
        admitted_now: 7,
        backlog: 800,
        backlog_bytes: 80_000,
        oldest_seconds: 4.2,
        ..Levels::default()
    };
    (client.counts.admitted, client.counts.delayed) = (12, 9);
    client.counts.rejected.add(Reason::Expired);
    for millis in [300, 4_200] {
        client.counts.delays.record(Duration::from_millis(millis));
    }
    client
}

fn pace() -> PaceView {
    PaceView {
        state: PaceState::AtFloor,
        control: Control::Apply,
        found: Some(1_940),
        at_least: false,
        limit: 1_900,
        floor: 200,
        ceiling: 8_000,
        late: Duration::from_millis(310),
        usual: Duration::from_secs(2),
        gap: Duration::from_secs(5),
        open_offsets: 77,
        rate: Some(1_800),
        brake: Ratio::from_millionths(750_000).expect("it is below 1"),
        signal_age: Some(Duration::from_millis(1_500)),
        stuck_partitions: 1,
        ..PaceView::default()
    }
}
