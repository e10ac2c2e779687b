//! Rolling forward from the former version and back, as docs/upgrading.md describes it.

mod long {
    use std::path::PathBuf;
    use std::process::Command;

    use crate::exactly_once::{STOP_TIMEOUT, config, finish_with, follow, numbered, wait_for_backlog};
    use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
    use crate::support::repository::{read, root};
    use crate::support::{broker::Broker, config::Config, producer::Load, reader::Follower};
    use crate::support::{watermaster::START_TIMEOUT, watermaster::Watermaster};

    const INSTANCES: [&str; 2] = ["wm-0", "wm-1"];

    /// A version of the program, and the lines of a configuration that it does not know.
    struct Version {
        program: PathBuf,
        unknown: &'static [&'static str],
    }

    impl Version {
        fn start(&self, config: &Config, instance: &'static str) -> Watermaster {
            let text = Config { instance, ..config.clone() }.to_toml();
            let known = |line: &&str| !self.unknown.iter().any(|key| line.starts_with(key));
            let text: Vec<&str> = text.lines().filter(known).collect();
            let mut watermaster = Watermaster::spawn_program(&self.program, &text.join("\n"), &[]);
            watermaster.wait_ready(START_TIMEOUT);
            watermaster
        }
    }

    /// Builds the commit that docs/upgrading.md names, in a folder of its own; a second run finds it built.
    fn former() -> Version {
        let text = read(&root("docs/upgrading.md"));
        let commit = text.split_once("commit `").and_then(|(_, rest)| rest.split_once('`')).expect("a commit").0;
        let folder = root("target/former").join(commit);
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        let run = |command: &mut Command| {
            let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
            assert!(status.success(), "{command:?}: {status}; the clone needs its whole history");
        };
        let archive = folder.join("source.tar");
        run(Command::new("git").current_dir(root("")).args(["archive", "-o"]).arg(&archive).arg(commit));
        run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&folder));
        let build = ["build", "--quiet", "--locked", "--bin", "watermaster", "--target-dir", "target"];
        run(Command::new("cargo").current_dir(&folder).args(build));
        // Keys that were added since, with which this test's configurations keep the former behaviour.
        Version { program: folder.join("target/debug/watermaster"), unknown: &["scope", "group_lease"] }
    }

    /// Replaces one instance after the other by another version; each leaves delayed records, and so offset maps.
    fn roll(running: &mut [Watermaster], to: &Version, config: &Config, follower: &mut Follower) {
        for (watermaster, instance) in running.iter_mut().zip(INSTANCES) {
            wait_for_backlog(watermaster, 300.0);
            let span = watermaster.metric("watermaster_map_span_records", &[]);
            eprintln!("{instance} ends; its widest map covers {span:?} records");
            assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
            *watermaster = to.start(config, instance);
            follower.wait_for(follower.seen() as u64 + 2_000, DRAIN_TIMEOUT);
        }
    }

    #[test]
    #[ignore = "needs a real Kafka, and builds the former version: scripts/test --long"]
    fn rolling_forward_and_back_repeats_nothing() {
        let former = former();
        let this = Version { program: env!("CARGO_BIN_EXE_watermaster").into(), unknown: &[] };
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "upgrade", 2, 4, TargetTime::Create);
        let mut config = config(&rig, 800, "");
        config.services[0].keys.push_str("\nscope = \"instance\"");
        let sources = rig.sources.clone();
        let load = Load::start(&broker, 2_500, move |n| numbered(&sources, n));
        let mut follower = follow(&broker, &rig);
        let mut running = INSTANCES.map(|instance| former.start(&config, instance));
        roll(&mut running, &this, &config, &mut follower);
        roll(&mut running, &former, &config, &mut follower);
        for watermaster in &mut running {
            wait_for_backlog(watermaster, 300.0);
            assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
        }
        let sent = load.stop();
        config.services[0].capacity = 100_000;
        finish_with(&Config { instance: "wm-0", ..config }, &rig, &mut follower, sent);
    }
}
