//! Reading a file like a load scenario: variants of a table, rates, sizes, choices.

use std::time::{Duration, Instant};

use strum::{Display, EnumString, VariantNames};

use super::Fallback::{Required, Text};
use super::*;
use crate::read_struct;

/// The kinds of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
enum PhaseKind {
    Steady,
    Ramp,
}

impl Choice for PhaseKind {}

/// Records per second, or a part of the capacity.
#[derive(Debug, PartialEq)]
struct Rate(f64, bool);

impl FromText for Rate {
    fn from_text(text: &str, _: Kind) -> Result<Rate, ValueError> {
        let number = text.strip_suffix('%').unwrap_or(text).trim();
        let rate = number.parse().map_err(|_| ValueError::NotAllowed)?;
        if (0.0..=1e6).contains(&rate) { Ok(Rate(rate, number != text)) } else { Err(ValueError::NotAllowed) }
    }
}

#[derive(Debug, PartialEq)]
enum Phase {
    Steady { rate: Rate, length: Duration },
    Ramp { from: Rate, to: Rate },
}

#[derive(Debug, PartialEq)]
struct Scenario {
    seed: u64,
    sizes: Vec<u32>,
    phases: Vec<Phase>,
}

const RATE: Kind = Kind::DecimalOrPercent("records per second or a part of the capacity");
const LENGTH: Kind = Kind::Duration(Duration::from_millis(1), Duration::from_secs(60));

static PHASE_KINDS: [SectionSchema; 2] = [
    section("steady", Shape::Variant, STEADY, &[]),
    section("ramp", Shape::Variant, &[key("from", RATE, Text("0")), key("to", RATE, Required)], &[]),
];
const STEADY: &[Key] = &[key("rate", RATE, Required), key("for", LENGTH, Text("10s"))];
static SECTIONS: [SectionSchema; 1] =
    [section("phase", Shape::List, &[key("kind", Kind::Choice(PhaseKind::VARIANTS), Required)], &PHASE_KINDS)];
const KEYS: &[Key] = &[
    key("seed", Kind::Count(0, i64::MAX as u64), Text("1")),
    key("sizes", Kind::Integers("a size, or [smallest, largest], from 0 to 1000"), Text("300")),
];
static SCHEMA: Schema = Schema {
    subject: "scenario",
    variable_prefix: "NONE_",
    other_variables: &[],
    former_keys: &[],
    root: section("", Shape::Table, KEYS, &SECTIONS),
};

fn phase(section: &Section<'_>) -> Option<Phase> {
    let kind: PhaseKind = section.get("kind")?;
    let section = section.variant(&kind.to_string());
    match kind {
        PhaseKind::Steady => {
            let (rate, length) = (section.get("rate"), section.get("for"));
            Some(Phase::Steady { rate: rate?, length: length? })
        }
        PhaseKind::Ramp => {
            let (from, to) = (section.get("from"), section.get("to"));
            Some(Phase::Ramp { from: from?, to: to? })
        }
    }
}

fn parse(text: &str) -> Result<Scenario, ConfigErrors> {
    let reader = Reader::new(&SCHEMA, &[("s.toml", text)], [])?;
    let root = reader.root();
    let phases: Vec<_> = root.tables("phase").iter().map(phase).collect();
    let scenario = read_struct!(Scenario {
        [root => seed]
        sizes: root.list("sizes", |text| count(text, 0..=1000).map(|size| size as u32)).flatten(),
        phases: phases.into_iter().collect(),
    });
    reader.finish(scenario).map(|reading| reading.value)
}

#[test]
fn a_table_has_the_keys_of_its_variant() {
    let scenario =
        parse("sizes = [10, 20]\n[[phase]]\nkind = \"steady\"\nrate = \"80%\"\n[[phase]]\nkind = \"ramp\"\nto = 0.5\n");
    let phases = vec![
        Phase::Steady { rate: Rate(80.0, true), length: Duration::from_secs(10) },
        Phase::Ramp { from: Rate(0.0, false), to: Rate(0.5, false) },
    ];
    assert_eq!(scenario.unwrap(), Scenario { seed: 1, sizes: vec![10, 20], phases });
    assert_eq!(parse("sizes = 7\n[[phase]]\nkind = \"ramp\"\nto = 1\n").unwrap().sizes, [7]);
}

#[test]
fn all_errors_are_reported_with_key_and_line() {
    let text = "seed = -1\nsizes = [1, 2000]\nspeed = 3\n[[phase]]\nkind = \"steady\"\nrate = \"much\"\nto = 1\n\
                [[phase]]\nkind = \"dance\"\n[[phase]]\nkind = \"ramp\"\nto = true\n";
    let errors = parse(text).unwrap_err();
    let found: Vec<_> = errors.iter().map(|error| (error.key.to_string(), error.origin.to_string())).collect();
    let expected = [
        ("phase[0].rate", 6),
        ("phase[0].to", 7),
        ("phase[1].kind", 9),
        ("phase[2].to", 12),
        ("seed", 1),
        ("sizes[1]", 2),
        ("speed", 3),
    ];
    assert_eq!(found, expected.map(|(key, line)| (key.to_owned(), format!("s.toml:{line}"))), "{errors}");
    let text = errors.to_string();
    assert!(text.starts_with("scenario: 7 errors\n\nphase[0].rate is \"much\"\n    allowed: records"), "{text}");
    assert!(text.contains("phase[0].to is not a key of this section\n    allowed: kind, rate, for"), "{text}");
    assert!(text.contains("phase[1].kind is \"dance\"\n    allowed: \"steady\" or \"ramp\""), "{text}");
    assert!(parse("").unwrap_err().to_string().contains("at least one [[phase]]"));
    assert!(parse("[[phase").unwrap_err().to_string().contains("(file) is no TOML, line 1"));
}

/// Each value used to count the line breaks before it: four times the clients took 14 times as long.
#[test]
fn the_time_to_parse_is_proportional_to_the_clients() {
    let seconds = |clients: usize| {
        let text: String =
            (0..clients).map(|client| format!("[service.client.client-{client:05}]\nweight = 2\n")).collect();
        let once = |_| {
            let start = Instant::now();
            super::tree::parse(&text, Path::new("w.toml")).unwrap();
            start.elapsed().as_secs_f64()
        };
        (0..3).map(once).fold(f64::INFINITY, f64::min)
    };
    let (few, many) = (seconds(4_000), seconds(16_000));
    assert!(many < 8.0 * few, "4 000 clients take {few} s, four times as many {many} s");
}
