//! `watermaster allocate`: explains one allocation.

use std::collections::BTreeMap;
use std::io::{self, Read};

use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};
use watermaster_core::allocator::{AllocationParams, Allocator, Claim, Credit, MAX_CLAIMS, Wants};
use watermaster_core::policy::Lending;
use watermaster_core::units::{MAX_CAPACITY, Ratio, Weight};
use watermaster_settings::config;

use crate::cli::{Exit, Output, OutputArg, fail, print, print_json};

/// The most that a client can want.
const MAX_WANTS: u64 = 1 << 63;

const EXAMPLES: &str = "\
Examples:
  watermaster allocate --capacity 40 --reservation 0.1 --wants A=2,B=15,C=10,D=10
  watermaster allocate --capacity 40 --wants A=2,B=15 --weight A=2 --lending max_min
  watermaster allocate --capacity 100000 --wants @clients.txt --output json      lines of NAME=N
  some-report | watermaster allocate --capacity 100000 --wants -                 lines from stdin

The default share is capacity x weight / sum of weights. A client that wants less lends what it
leaves, except for the reserved part. Those that want more borrow it: in proportion to how much more
they want (proportional), or all equally until each has enough (max_min: a flood gains nothing by
asking for more). All grants add up to the capacity.";

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
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
    #[arg(long, value_enum, default_value = "proportional")]
    lending: LendingArg,
    #[command(flatten)]
    output: OutputArg,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum LendingArg {
    Proportional,
    MaxMin,
}

/// A value of the command line is not what is allowed.
#[derive(Debug, thiserror::Error)]
enum ArgumentError {
    #[error("allowed: 0 to 1, with at most six decimals")]
    Ratio,
    #[error("allowed: NAME=WEIGHT")]
    NoWeight,
    #[error("allowed: 0.001 to 1000000, with at most three decimals")]
    Weight,
}

fn ratio(text: &str) -> Result<Ratio, ArgumentError> {
    config::ratio(text).map_err(|_| ArgumentError::Ratio)
}

fn named_weight(text: &str) -> Result<(String, Weight), ArgumentError> {
    let (name, weight) = text.rsplit_once('=').ok_or(ArgumentError::NoWeight)?;
    Ok((name.to_owned(), config::weight(weight).map_err(|_| ArgumentError::Weight)?))
}

/// The clients of the command line make no allocation.
#[derive(Debug, thiserror::Error)]
enum ClientsError {
    #[error("--wants names no client")]
    NoClient,
    #[error("--wants names {0} clients; allowed: {MAX_CLAIMS} at most")]
    TooMany(usize),
    #[error("--weight names {0:?}, which --wants does not")]
    UnknownWeight(String),
    #[error("--weight names {0:?} twice")]
    WeightTwice(String),
    #[error("{from} can't be read: {source}")]
    Unreadable { from: String, source: io::Error },
    #[error("{from}: {source}")]
    Want { from: String, source: WantError },
}

/// One `NAME=N` is wrong.
#[derive(Debug, thiserror::Error)]
enum WantError {
    #[error("{0:?} is not NAME=N; allowed: a name, and a whole number from 0 to {MAX_WANTS}")]
    Malformed(String),
    #[error("{0:?} is named twice")]
    Twice(String),
}

/// Allocates and prints the result.
pub fn run(args: &AllocateArgs) -> Exit {
    let rows = match clients(args) {
        Ok(clients) => allocated(args, clients),
        Err(error) => {
            return fail(
                Exit::Usage,
                format!("error: {error}\n\nFor more information, try 'watermaster allocate --help'."),
            );
        }
    };
    match args.output.format {
        Output::Text => print(format_args!("{}\n\n{}", table(&rows), explanation(args, &rows))),
        Output::Json => print_json(&as_json(args, &rows)),
    }
    Exit::Done
}

/// Reads the clients, sorted by name.
fn clients(args: &AllocateArgs) -> Result<BTreeMap<String, (u64, Weight)>, ClientsError> {
    let mut clients = BTreeMap::new();
    for argument in &args.wants {
        add_clients(argument, &mut clients)?;
    }
    if clients.is_empty() {
        return Err(ClientsError::NoClient);
    }
    if clients.len() > MAX_CLAIMS {
        return Err(ClientsError::TooMany(clients.len()));
    }
    for (at, (name, weight)) in args.weight.iter().enumerate() {
        if args.weight[..at].iter().any(|(other, _)| other == name) {
            return Err(ClientsError::WeightTwice(name.clone()));
        }
        clients.get_mut(name).ok_or_else(|| ClientsError::UnknownWeight(name.clone()))?.1 = *weight;
    }
    Ok(clients)
}

/// Adds the clients of one `--wants`. In lines of a file or of stdin, empty ones and comments (#) are skipped.
fn add_clients(argument: &str, clients: &mut BTreeMap<String, (u64, Weight)>) -> Result<(), ClientsError> {
    let mut text = String::new();
    let (from, read) = match argument.strip_prefix('@') {
        _ if argument == "-" => ("stdin", io::stdin().read_to_string(&mut text).map(drop)),
        Some(path) => (path, std::fs::read_to_string(path).map(|read| text = read)),
        None => {
            let mut parts = argument.split(',');
            return parts.try_for_each(|part| {
                add_client(part, clients).map_err(|source| ClientsError::Want { from: "--wants".to_owned(), source })
            });
        }
    };
    read.map_err(|source| ClientsError::Unreadable { from: from.to_owned(), source })?;
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if !line.is_empty() && !line.starts_with('#') {
            let from = || format!("{from}:{}", index + 1);
            add_client(line, clients).map_err(|source| ClientsError::Want { from: from(), source })?;
        }
    }
    Ok(())
}

fn add_client(text: &str, clients: &mut BTreeMap<String, (u64, Weight)>) -> Result<(), WantError> {
    let wrong = || WantError::Malformed(text.to_owned());
    let (name, number) = text.rsplit_once('=').ok_or_else(wrong)?;
    let (name, number) = (name.trim(), number.trim());
    let wants = config::count(number, 0..=MAX_WANTS).map_err(|_| wrong())?;
    if name.is_empty() {
        return Err(wrong());
    }
    match clients.insert(name.to_owned(), (wants, Weight::ONE)) {
        None => Ok(()),
        Some(_) => Err(WantError::Twice(name.to_owned())),
    }
}

/// The parts of the formula for one client. The floats are for display; the grant comes from the exact allocator.
struct Row {
    name: String,
    weight: f64,
    default_share: f64,
    wants: u128,
    floor: f64,
    granted: u64,
    unmet: u128,
}

impl Row {
    /// The surplus that the client can lend (above zero) or its deficit (below zero).
    fn gap(&self) -> f64 {
        self.default_share - self.floor
    }
}

fn params(args: &AllocateArgs) -> AllocationParams {
    let lending = match args.lending {
        LendingArg::Proportional => Lending::Proportional,
        LendingArg::MaxMin => Lending::MaxMin,
    };
    AllocationParams { capacity: args.capacity, reservation: args.reservation, lending }
}

fn reservation(args: &AllocateArgs) -> f64 {
    f64::from(args.reservation.millionths()) / 1e6
}

fn allocated(args: &AllocateArgs, clients: BTreeMap<String, (u64, Weight)>) -> Vec<Row> {
    let names: Vec<&str> = clients.keys().map(String::as_str).collect();
    let mut claims = Vec::with_capacity(clients.len());
    for (wants, weight) in clients.values() {
        let (weight, wants) = (weight.thousandths(), Wants::Records(*wants));
        claims.push(Claim { weight, wants, credit: Credit::default() });
    }
    let mut grants = Vec::new();
    Allocator::default().allocate(&params(args), &claims, |index| names[index], &mut grants);
    let mut rows = Vec::with_capacity(clients.len());
    for ((name, (wants, weight)), grant) in clients.iter().zip(&grants) {
        let default_share = grant.default_share.as_f64();
        rows.push(Row {
            name: name.clone(),
            weight: weight.thousandths() as f64 / 1e3,
            default_share,
            wants: (*wants).into(),
            floor: (*wants as f64).max(default_share * reservation(args)),
            granted: grant.records,
            unmet: wants.saturating_sub(grant.records).into(),
        });
    }
    rows
}

fn as_json(args: &AllocateArgs, rows: &[Row]) -> Value {
    let each = |value: fn(&Row) -> Value| -> Value { rows.iter().map(|row| (row.name.clone(), value(row))).collect() };
    json!({
        "capacity": args.capacity,
        "reservation": reservation(args),
        "lending": args.lending.to_possible_value().map(|value| value.get_name().to_owned()),
        "wants": each(|row| json!(row.wants as u64)),
        "weight": each(|row| json!(row.weight)),
        "default_share": each(|row| json!(row.default_share)),
        "granted": each(|row| json!(row.granted)),
    })
}

fn table(rows: &[Row]) -> Table {
    let sum = |value: fn(&Row) -> f64| rows.iter().map(value).sum();
    let all = Row {
        name: "all".to_owned(),
        weight: sum(|row| row.weight),
        default_share: sum(|row| row.default_share),
        wants: rows.iter().map(|row| row.wants).sum(),
        floor: sum(|row| row.floor),
        granted: rows.iter().map(|row| row.granted).sum(),
        unmet: rows.iter().map(|row| row.unmet).sum(),
    };
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    let lent = "lent (-) or borrowed (+)";
    table.set_header(["client", "weight", "default share", "wants", "floor", lent, "granted", "unmet"]);
    for row in rows.iter().chain([&all]) {
        table.add_row([
            row.name.clone(),
            number(row.weight),
            number(row.default_share),
            row.wants.to_string(),
            number(row.floor),
            signed(row.granted as f64 - row.default_share),
            row.granted.to_string(),
            row.unmet.to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn explanation(args: &AllocateArgs, rows: &[Row]) -> String {
    let surplus: f64 = rows.iter().map(|row| row.gap().max(0.0)).sum();
    let deficit: f64 = rows.iter().map(|row| (-row.gap()).max(0.0)).sum();
    let outcome = match args.lending {
        _ if deficit <= surplus => {
            format!(
                "Each client gets what it wants; the remaining {} go back to the lenders.",
                number(surplus - deficit)
            )
        }
        LendingArg::Proportional => format!(
            "Too little is lent for all: each client that wants more gets {:.1} % of its deficit.",
            100.0 * surplus / deficit
        ),
        LendingArg::MaxMin => {
            "Too little is lent for all: all loans rise together, by weight, until nothing is left to lend.".to_owned()
        }
    };
    format!(
        "To lend: {} (default share - floor, where that is above 0; the floor is what a client wants, \
         at least {} of its default share).\nTo borrow: {} (where it is below 0).\n{outcome}\n\
         Grants are whole records: rounded down, the rest by largest remainder, ties by name.",
        number(surplus),
        reservation(args),
        number(deficit)
    )
}

/// Writes a number with at most three decimals, without trailing zeros and without the sign of a zero.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    match text.trim_end_matches('0').trim_end_matches('.') {
        "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

fn signed(value: f64) -> String {
    let text = number(value);
    if value > 0.0 && text != "0" { format!("+{text}") } else { text }
}
