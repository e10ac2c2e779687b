//! `watermaster allocate`: explains one allocation.

use std::collections::BTreeMap;
use std::{fmt::Display, fs, io};

use clap::Args;
use comfy_table::Table;
use serde_json::{Value, json};
use watermaster_core::allocator::{AllocationParams, Allocator, Claim, Credit, Grant, MAX_CLAIMS, Wants};
use watermaster_core::policy::Lending;
use watermaster_core::units::{MAX_CAPACITY, Ratio, Weight};
use watermaster_settings::config;

use crate::cli::{Exit, Failure, OutputArg, variant};
use crate::format::decimal;

/// The most that a client can want.
const MAX_WANTS: u64 = 1 << 63;

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("help/allocate.txt").trim_end())]
pub struct AllocateArgs {
    /// Records that the service can take in one cycle
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_CAPACITY))]
    capacity: u64,
    /// The part of its default share that a client never lends: 0 to 1, at most six decimals
    #[arg(long, value_name = "R", default_value = "0.1", value_parser = ratio)]
    reservation: Ratio,
    /// The wants of clients: NAME=N,NAME=N (repeatable), @FILE or - with a NAME=N on each line
    #[arg(long, value_name = "NAME=N", required = true, allow_hyphen_values = true)]
    wants: Vec<String>,
    /// A client's weight (repeatable): 0.001 to 1000000, at most three decimals; 1 for those not named
    #[arg(long, value_name = "NAME=W", value_parser = named_weight)]
    weight: Vec<(String, Weight)>,
    /// The rule for sharing out lent records
    #[arg(long, value_parser = variant::<Lending>(), default_value = "proportional")]
    lending: Lending,
    #[command(flatten)]
    output: OutputArg,
}

fn ratio(text: &str) -> Result<Ratio, &'static str> {
    config::ratio(text).map_err(|_| "allowed: 0 to 1, with at most six decimals")
}

fn named_weight(text: &str) -> Result<(String, Weight), &'static str> {
    let (name, weight) = text.rsplit_once('=').ok_or("allowed: NAME=WEIGHT")?;
    let weight = config::weight(weight).map_err(|_| "allowed: 0.001 to 1000000, with at most three decimals")?;
    Ok((name.to_owned(), weight))
}

/// The clients of the command line make no allocation.
fn wrong(problem: impl Display) -> Failure {
    let hint = "For more information, try 'watermaster allocate --help'.";
    Failure::usage(format_args!("{problem}\n\n{hint}"))
}

/// Allocates and prints the result.
pub fn run(args: &AllocateArgs) -> Result<Exit, Failure> {
    let rows = allocated(args, &clients(args)?);
    args.output.show(&as_json(args, &rows), || format!("{}\n\n{}", table(&rows), explanation(args, &rows)));
    Ok(Exit::Done)
}

/// Reads the clients, sorted by name.
fn clients(args: &AllocateArgs) -> Result<BTreeMap<String, (u64, Weight)>, Failure> {
    let mut clients = BTreeMap::new();
    for argument in &args.wants {
        for (from, text) in wants(argument)? {
            let Some((name, wants)) = named_want(&text) else {
                let allowed = format!("a name, and a whole number from 0 to {MAX_WANTS}");
                return Err(wrong(format_args!("{from}: {text:?} is not NAME=N; allowed: {allowed}")));
            };
            if clients.insert(name.to_owned(), (wants, Weight::ONE)).is_some() {
                return Err(wrong(format_args!("{from}: {name:?} is named twice")));
            }
        }
    }
    if clients.is_empty() {
        return Err(wrong("--wants names no client"));
    }
    if clients.len() > MAX_CLAIMS {
        return Err(wrong(format_args!("--wants names {} clients; allowed: {MAX_CLAIMS} at most", clients.len())));
    }
    for (at, (name, weight)) in args.weight.iter().enumerate() {
        if args.weight[..at].iter().any(|(other, _)| other == name) {
            return Err(wrong(format_args!("--weight names {name:?} twice")));
        }
        let unknown = || wrong(format_args!("--weight names {name:?}, which --wants does not"));
        clients.get_mut(name).ok_or_else(unknown)?.1 = *weight;
    }
    Ok(clients)
}

/// Returns each `NAME=N` of one `--wants`, and where it stands. In a file or stdin, empty lines and comments (#) are
/// skipped.
fn wants(argument: &str) -> Result<Vec<(String, String)>, Failure> {
    let (from, text) = match argument.strip_prefix('@') {
        _ if argument == "-" => ("stdin", io::read_to_string(io::stdin())),
        Some(path) => (path, fs::read_to_string(path)),
        None => return Ok(argument.split(',').map(|want| ("--wants".to_owned(), want.to_owned())).collect()),
    };
    let text = text.map_err(|source| wrong(format_args!("{from} can't be read: {source}")))?;
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(|(index, line)| (format!("{from}:{}", index + 1), line.to_owned())).collect())
}

fn named_want(text: &str) -> Option<(&str, u64)> {
    let (name, number) = text.rsplit_once('=')?;
    let name = Some(name.trim()).filter(|name| !name.is_empty())?;
    Some((name, config::count(number.trim(), 0..=MAX_WANTS).ok()?))
}

/// The parts of the formula for one client. The floats are for display; the grant comes from the exact allocator.
struct AllocationRow {
    name: String,
    weight: f64,
    default_share: f64,
    wants: u128,
    floor: f64,
    granted: u64,
    unmet: u128,
}

impl AllocationRow {
    /// The surplus that the client can lend (above zero) or its deficit (below zero).
    fn gap(&self) -> f64 {
        self.default_share - self.floor
    }
}

fn reservation(args: &AllocateArgs) -> f64 {
    f64::from(args.reservation.millionths()) / 1e6
}

fn allocated(args: &AllocateArgs, clients: &BTreeMap<String, (u64, Weight)>) -> Vec<AllocationRow> {
    let names: Vec<&str> = clients.keys().map(String::as_str).collect();
    let mut claims = Vec::with_capacity(clients.len());
    for (wants, weight) in clients.values() {
        let (weight, wants) = (weight.thousandths(), Wants::Records(*wants));
        claims.push(Claim { weight, wants, credit: Credit::default() });
    }
    let AllocateArgs { capacity, reservation: reserved, lending, .. } = *args;
    let mut grants = Vec::new();
    let params = AllocationParams { capacity, reservation: reserved, lending };
    Allocator::default().allocate(&params, &claims, |index| names[index], &mut grants);
    let row = |((name, (wants, weight)), grant): ((&String, &(u64, Weight)), &Grant)| {
        let default_share = grant.default_share.as_f64();
        AllocationRow {
            name: name.clone(),
            weight: weight.thousandths() as f64 / 1e3,
            default_share,
            wants: (*wants).into(),
            floor: (*wants as f64).max(default_share * reservation(args)),
            granted: grant.records,
            unmet: wants.saturating_sub(grant.records).into(),
        }
    };
    clients.iter().zip(&grants).map(row).collect()
}

fn as_json(args: &AllocateArgs, rows: &[AllocationRow]) -> Value {
    let each = |value: fn(&AllocationRow) -> Value| -> Value {
        rows.iter().map(|row| (row.name.clone(), value(row))).collect()
    };
    json!({
        "capacity": args.capacity,
        "reservation": reservation(args),
        "lending": <&str>::from(args.lending),
        "wants": each(|row| json!(row.wants as u64)),
        "weight": each(|row| json!(row.weight)),
        "default_share": each(|row| json!(row.default_share)),
        "granted": each(|row| json!(row.granted)),
    })
}

fn table(rows: &[AllocationRow]) -> Table {
    let sum = |value: fn(&AllocationRow) -> f64| rows.iter().map(value).sum();
    let all = AllocationRow {
        name: "all".to_owned(),
        weight: sum(|row| row.weight),
        default_share: sum(|row| row.default_share),
        wants: rows.iter().map(|row| row.wants).sum(),
        floor: sum(|row| row.floor),
        granted: rows.iter().map(|row| row.granted).sum(),
        unmet: rows.iter().map(|row| row.unmet).sum(),
    };
    let lent = "lent (-) or borrowed (+)";
    let titles = ["client", "weight", "default share", "wants", "floor", lent, "granted", "unmet"];
    let mut table = crate::format::table(titles, None, |index| index > 0);
    for row in rows.iter().chain([&all]) {
        table.add_row([
            row.name.clone(),
            decimal(row.weight),
            decimal(row.default_share),
            row.wants.to_string(),
            decimal(row.floor),
            signed(row.granted as f64 - row.default_share),
            row.granted.to_string(),
            row.unmet.to_string(),
        ]);
    }
    table
}

fn explanation(args: &AllocateArgs, rows: &[AllocationRow]) -> String {
    let surplus: f64 = rows.iter().map(|row| row.gap().max(0.0)).sum();
    let deficit: f64 = rows.iter().map(|row| (-row.gap()).max(0.0)).sum();
    let outcome = match args.lending {
        _ if deficit <= surplus => {
            let remaining = decimal(surplus - deficit);
            format!("Each client gets what it wants; the remaining {remaining} go back to the lenders.")
        }
        Lending::Proportional => {
            let part = 100.0 * surplus / deficit;
            format!("Too little is lent for all: each client that wants more gets {part:.1} % of its deficit.")
        }
        Lending::MaxMin => {
            "Too little is lent for all: all loans rise together, by weight, until nothing is left to lend.".to_owned()
        }
    };
    format!(
        "To lend: {} (default share - floor, where that is above 0; the floor is what a client wants, \
         at least {} of its default share).\nTo borrow: {} (where it is below 0).\n{outcome}\n\
         Grants are whole records: rounded down, the rest by largest remainder, ties by name.",
        decimal(surplus),
        reservation(args),
        decimal(deficit)
    )
}

fn signed(value: f64) -> String {
    let text = decimal(value);
    if value > 0.0 && text != "0" { format!("+{text}") } else { text }
}
