//! Kafka's own authorizer: the documented permissions suffice, and each one that is missing is named.

use super::permissions::{Kind, Operation, Permission, grant, required};
use super::*;
use crate::adopting::Workers;
use crate::dead_letters::{Desk, dead_letter, first};
use crate::exactly_once::STOP_TIMEOUT;
use crate::support::{broker::Topic, producer::Outgoing, watermaster::Watermaster};

/// The number of users that the broker knows. The first one has all permissions of a test.
const USERS: usize = 17;
const NAMED_TIMEOUT: Duration = Duration::from_secs(30);

/// The output that names a missing permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamedBy {
    Check,
    Run,
}

/// A user without some permissions, and the words that name them.
struct Case {
    kind: Kind,
    name: String,
    lacks: &'static [Operation],
    named_by: NamedBy,
    words: &'static str,
    delivery: &'static str,
}

fn cases(rig: &Rig) -> Vec<Case> {
    use NamedBy::{Check, Run};
    use Operation::{Create, Describe, Read, Write};
    let group = format!("{}.kyc", rig.name);
    let (ids, control) = (format!("{group}."), format!("{group}.seats"));
    let case = |kind, name: &str, lacks, named_by, words| Case {
        kind,
        name: name.to_owned(),
        lacks,
        named_by,
        words,
        delivery: "exactly_once",
    };
    let without_ids = |lacks, delivery| Case {
        delivery,
        ..case(Kind::TransactionalId, &ids, lacks, Check, "not allowed to use the transactional id")
    };
    vec![
        // The first one, for the others make the topic.
        case(Kind::Topic, &control, &[Create], Run, "this program may not make it"),
        case(Kind::Topic, &control, &[Read], Run, "grant READ, WRITE and DESCRIBE"),
        case(Kind::Topic, &control, &[Write], Run, "grant READ, WRITE and DESCRIBE"),
        case(Kind::Topic, &control, &[Read, Write, Describe], Check, "grant DESCRIBE"),
        // The reader notices it, or the first commit.
        case(Kind::Topic, &rig.sources[0], &[Read], Run, "grant READ"),
        case(Kind::Topic, &rig.sources[0], &[Read, Describe], Check, "grant DESCRIBE, and READ on sources"),
        case(Kind::Topic, &rig.target, &[Write], Run, "authorization failed"),
        case(Kind::Topic, &rig.target, &[Write, Describe], Check, "WRITE on target and dead-letter topics"),
        case(Kind::Topic, &rig.dead_letter, &[Write], Run, "authorization failed"),
        case(Kind::Topic, &rig.dead_letter, &[Write, Describe], Check, "WRITE on target and dead-letter topics"),
        case(Kind::Group, &group, &[Read], Run, "grant READ on it"),
        case(Kind::Group, &group, &[Read, Describe], Run, "grant READ on it"),
        without_ids(&[Write], "exactly_once"),
        without_ids(&[Write, Describe], "exactly_once"),
        // The seats of the group have transactional ids, too.
        without_ids(&[Write], "at_least_once"),
        without_ids(&[Write, Describe], "at_least_once"),
    ]
}

/// Returns the way in for user number `n`.
fn login(n: usize) -> Login {
    let user: &'static str = format!("user-{n}").leak();
    let properties = [
        ("security.protocol", "SASL_PLAINTEXT"),
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", user),
        ("sasl.password", user),
    ];
    Login::new("PLAIN", user, &properties)
}

impl Case {
    fn has(&self, permission: &Permission) -> bool {
        let Permission { kind, name, operation } = permission;
        (*kind, name) != (self.kind, &self.name) || !self.lacks.contains(operation)
    }

    fn assert_named(&self, secured: &Secured, rig: &Rig, login: &Login) {
        let what = format!("without {:?} on {:?} {}", self.lacks, self.kind, self.name);
        let config = login.config(rig, secured);
        let (code, said) = check(&config);
        if self.named_by == NamedBy::Check {
            assert!(self.is_named_in(&said), "{what}: {said}");
            return;
        }
        assert_eq!(code, Some(0), "{what}: {said}");
        // One record goes to each topic: the second one names no client.
        let anonymous = Outgoing { topic: rig.sources[0].clone(), value: Some(b"1|".into()), ..Outgoing::default() };
        Producer::to(secured).send_all([Outgoing::numbered(&rig.sources[0], 0, "one"), anonymous]);
        let mut watermaster = Watermaster::spawn(&config);
        wait_until(&format!("the log to name it: {what}"), NAMED_TIMEOUT, || self.is_named_in(&watermaster.log()));
        assert_eq!(watermaster.wait(NAMED_TIMEOUT).code(), Some(70), "{what}: {}", watermaster.log());
    }

    /// Returns whether a line names the resource and the permission.
    fn is_named_in(&self, text: &str) -> bool {
        text.lines().any(|line| line.contains(&self.name) && line.contains(self.words))
    }
}

/// Starts a broker that knows the users.
fn start() -> Secured {
    let users: String = (0..USERS).map(|n| format!(" user_user-{n}=\"user-{n}\"")).collect();
    let module = "org.apache.kafka.common.security.plain.PlainLoginModule required";
    let properties = vec![
        "listener.name.plain.sasl.enabled.mechanisms=PLAIN".to_owned(),
        format!("listener.name.plain.plain.sasl.jaas.config={module}{users};"),
    ];
    Secured::start(Arc::new(Keys::new()), &[("PLAIN", "SASL_PLAINTEXT")], properties, vec![])
}

/// These tests run only with `scripts/test --long`.
mod long {
    use super::*;

    #[test]
    #[ignore = "needs a real Kafka and its jars: scripts/test"]
    fn the_documented_permissions_suffice_and_each_missing_one_is_named() {
        let secured = start();
        for delivery in ["exactly_once", "at_least_once"] {
            Login { delivery, ..login(0) }.forwards(&secured);
        }
        let rig = Rig::new(&secured, "denied", 1, 1, TargetTime::Create);
        let (cases, required) = (cases(&rig), required(&rig));
        let mut logins: Vec<Login> = (0..USERS).map(login).collect();
        assert!(cases.len() < USERS);
        logins[1..].iter_mut().zip(&cases).for_each(|(login, case)| login.delivery = case.delivery);
        let mut grants = Vec::new();
        for (case, login) in cases.iter().zip(&logins[1..]) {
            let has: Vec<_> = required.iter().filter(|permission| case.has(permission)).collect();
            assert_eq!(has.len() + case.lacks.len(), required.len(), "{} needs no such permission", case.name);
            grants.extend(has.into_iter().map(|permission| (login.user, permission)));
        }
        grants.extend(required.iter().map(|permission| (logins[0].user, permission)));
        grant(&secured, &grants);
        // Grants take effect in their order, so that those of the last user are the last.
        wait_for_grants(&logins[0].config(&rig, &secured));
        for (case, login) in cases.iter().zip(&logins[1..]) {
            case.assert_named(&secured, &rig, login);
        }
    }

    /// Without one of its permissions a redrive names what is missing, and moves nothing.
    #[test]
    #[ignore = "needs a real Kafka and its jars: scripts/test"]
    fn a_redrive_names_the_permission_that_it_lacks_and_moves_nothing() {
        let secured = start();
        let rig = Rig::new(&secured, "redrive", 1, 1, TargetTime::Create);
        let record = first(1, &rig.sources[0], crate::rig::an_hour_ago());
        // The first one goes back, the second one to the parking topic.
        let letters = [1, 5].map(|attempt| dead_letter(&rig, &record, (0, 7), "expired", attempt));
        Producer::to(&secured).send_all(letters);
        let [parked, ledger] = ["parked", "ledger"].map(|name| format!("{}.{name}", rig.dead_letter));
        let _made = secured.create(&[Topic::new(&parked, 1), Topic::new(&ledger, 1)]);
        // The entry of an earlier job: an empty ledger is not read.
        let holder = br#"{"process":"earlier","job":"earlier","transaction":1}"#.to_vec();
        let entry = Outgoing { key: Some(b"holder".to_vec()), value: Some(holder), ..Outgoing::default() };
        Producer::to(&secured).send_all([Outgoing { topic: ledger.clone(), ..entry }]);
        let group = |job: &str| format!("{}.kyc.redrive.{job}", rig.name);
        let permission = |kind, name: &str, operation| Permission { kind, name: name.to_owned(), operation };
        let needed = |n: usize| {
            vec![
                permission(Kind::Topic, &rig.dead_letter, Operation::Read),
                permission(Kind::Group, &group(&format!("job-{n}")), Operation::Read),
                permission(Kind::Group, &group("default"), Operation::Read),
                permission(Kind::Topic, &ledger, Operation::Read),
                permission(Kind::Topic, &ledger, Operation::Write),
                permission(Kind::Topic, &rig.sources[0], Operation::Write),
                permission(Kind::Topic, &parked, Operation::Write),
                permission(Kind::TransactionalId, &group("~all"), Operation::Write),
            ]
        };
        let count = needed(0).len();
        let logins: Vec<Login> = (0..=count).map(login).collect();
        let needs: Vec<_> = (0..=count).map(needed).collect();
        let has = |n: usize| needs[n].iter().enumerate().filter(move |(at, _)| *at != n).map(|(_, one)| one);
        grant(
            &secured,
            &(0..=count).flat_map(|n| has(n).map(|one| (logins[n].user, one)).collect::<Vec<_>>()).collect::<Vec<_>>(),
        );
        let redrive = |n: usize| {
            let desk = Desk::new(&logins[n].config(&rig, &secured));
            let output = desk.command("redrive", &["--job", &format!("job-{n}")]).output().expect("watermaster runs");
            (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        for (n, missing) in needs.iter().enumerate().take(count) {
            let (code, said) = redrive(n);
            let name = &missing[n].name;
            assert!(
                code != Some(0) && said.contains(name) && said.contains("uthoriz"),
                "without {name}: {code:?} {said}"
            );
            assert_eq!(rig.read_sources().len(), 0, "without {name} something was moved");
        }
        let (code, said) = redrive(count);
        assert_eq!((code, rig.read_sources().len()), (Some(0), 1), "{said}");
    }

    /// Without one of its permissions a handover names what is missing, and changes no offset; with all of them it asks
    /// for no others.
    #[test]
    #[ignore = "needs a real Kafka and its jars: scripts/test"]
    fn a_handover_names_the_permission_that_it_lacks_and_changes_nothing() {
        use Operation::{Describe, Read};
        let secured = start();
        let rig = Rig::new(&secured, "handover", 1, 1, TargetTime::Create);
        let [ours, theirs, of_target] = ["kyc", "workers", "readers"].map(|name| format!("{}.{name}", rig.name));
        let source = &rig.sources[0];
        // Records that are completed out of order are read and counted.
        Producer::to(&secured).send_all((0..RECORDS).map(|n| numbered(&rig.sources, n)));
        let mut watermaster = Watermaster::start(&exactly_once::config(&rig, 100, "only"));
        wait_until("a record to be completed out of order", DRAIN_TIMEOUT, || {
            watermaster.metric("watermaster_map_span_records", &[]).is_some_and(|span| span > 0.0)
        });
        assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());

        // Each case takes permissions away from a user. The words name them: in a dry run and with `--execute`, first of
        // `--to`, then of `--from`. Without words, the dry run succeeds; `--execute` would, too.
        let (sees, reads) = (Some("grant DESCRIBE on it"), Some("authorization failed"));
        let (commits, lag) = (Some("needs the READ permission"), Some("warning: the lag"));
        let cases = [
            (Kind::Topic, source, &[Read][..], [reads, reads, commits, commits]),
            (Kind::Topic, source, &[Read, Describe], [reads; 4]),
            (Kind::Group, &ours, &[Read], [commits; 4]),
            (Kind::Group, &ours, &[Read, Describe], [sees; 4]),
            (Kind::Group, &theirs, &[Read], [commits, commits, None, None]),
            (Kind::Group, &theirs, &[Read, Describe], [sees; 4]),
            (Kind::Group, &of_target, &[Describe], [lag, None, None, None]),
            (Kind::Topic, &rig.target, &[Describe], [lag, None, None, None]),
        ];
        // READ includes DESCRIBE. The cases that lack both, or lack DESCRIBE alone, make up the whole list.
        let listed = cases.iter().filter(|case| case.2.contains(&Describe)).flat_map(|(kind, name, all, _)| {
            all.iter().map(|&operation| Permission { kind: *kind, name: (*name).clone(), operation })
        });
        let listed: Vec<Permission> = listed.collect();
        let logins: Vec<Login> = (0..=cases.len()).map(login).collect();
        // The first user has all of them, and comes last: grants take effect in their order.
        for (n, login) in logins.iter().enumerate().rev() {
            let lacks =
                |one: &Permission| n > 0 && *cases[n - 1].1 == one.name && cases[n - 1].2.contains(&one.operation);
            let has = listed.iter().filter(|one| !lacks(one)).map(|one| (login.user, one));
            grant(&secured, &has.collect::<Vec<_>>());
        }
        let hand_over = |n: usize, options: &[&str]| {
            let mut config = logins[n].config(&rig, &secured);
            config.services[0].keys += &format!("\nconsumer_group = {of_target:?}");
            Desk::new(&config).any("handover", options)
        };
        wait_until("the grants to take effect", DRAIN_TIMEOUT, || hand_over(0, &["--to", &theirs]).0 == Some(0));
        let known = secured.log().len();
        for (at, option) in [(0, "--to"), (2, "--from")] {
            let plan = || hand_over(0, &[option, &theirs, "--output", "json"]).1;
            let planned = plan();
            assert_eq!(planned.contains("\"twice\": 0,"), option == "--from", "{planned}");
            for (n, (_, name, lacks, words)) in (1..).zip(&cases) {
                for (words, more) in words[at..at + 2].iter().zip([&[][..], &["--execute"]]) {
                    if words.is_none() && !more.is_empty() {
                        continue;
                    }
                    let (code, out, err) = hand_over(n, &[&[option, &theirs], more].concat());
                    let what = format!("{option} {more:?} without {lacks:?} on {name}: {code:?} {out}{err}");
                    assert_eq!(code == Some(0), words.is_none() || *words == lag, "{what}");
                    let is_named = |words| err.lines().any(|line| line.contains(name.as_str()) && line.contains(words));
                    assert!(words.is_none_or(is_named), "{what}");
                    let needs = *words != lag || **name != of_target || is_named("grant DESCRIBE on it");
                    assert!(needs, "no more is needed for the lag: {what}");
                }
            }
            assert_eq!(plan(), planned, "an offset has changed");
            let (code, out, err) = hand_over(0, &[option, &theirs, "--execute"]);
            assert!(code == Some(0) && out.contains("done: "), "{option}: {code:?} {out}{err}");
            assert!(!err.contains("warning"), "{err}");
            if option == "--to" {
                let workers = Workers::start(&secured, &theirs, &[source], &Arc::default());
                workers.wait_for(RECORDS as usize / 2);
                workers.stop();
            }
        }
        let log = secured.log();
        let denials = |n: usize| {
            let denied = format!("Principal = User:{} is Denied", logins[n].user);
            log[known..].lines().filter(|line| line.contains(&denied)).collect::<Vec<_>>()
        };
        assert!(!denials(1).is_empty(), "the log of the broker names no denial");
        assert!(denials(0).is_empty(), "more permissions are asked for: {}", denials(0).join("\n"));
    }
}
