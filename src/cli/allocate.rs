//! `watermaster allocate`: one allocation, explained.

use std::collections::BTreeMap;
use std::io::Read;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;
use watermaster_core::allocator::{AllocationParams, Allocator, Credit, Grant, NamedClaim, Wants};
use watermaster_core::policy::Lending;
use watermaster_core::units::Weight;

use super::{Allocate, Output, say};
use crate::exit::Exit;
use watermaster_settings::config;

/// The most that a client can want.
const MAX_WANTS: u64 = 1 << 63;
/// The most clients of one allocation.
const MAX_CLIENTS: usize = watermaster_core::allocator::MAX_CLAIMS;

/// One client as it was typed.
struct Client {
    name: String,
    weight: Weight,
    wants: u64,
}

/// Allocates and prints the result.
pub fn allocate(args: &Allocate) -> Exit {
    let clients = match clients(args) {
        Ok(clients) => clients,
        Err(problem) => {
            eprintln!("error: {problem}\n\nFor more information, try 'watermaster allocate --help'.");
            return Exit::Usage;
        }
    };
    let terms =
        AllocationParams { capacity: args.capacity, reservation: args.reservation, lending: args.lending.into() };
    let claims: Vec<_> = clients.iter().map(claim).collect();
    let mut grants = Vec::new();
    Allocator::new().allocate(&terms, &claims, &mut grants);
    match args.output.format {
        Output::Text => print_text(&terms, &clients, &grants),
        Output::Json => say(format_args!("{:#}", as_json(&terms, &clients, &grants))),
    }
    Exit::Done
}

fn claim(client: &Client) -> NamedClaim<'_> {
    NamedClaim {
        name: &client.name,
        weight: client.weight.thousandths(),
        wants: Wants::Records(client.wants),
        credit: Credit::default(),
    }
}

/// The clients, sorted by name.
fn clients(args: &Allocate) -> Result<Vec<Client>, String> {
    let mut wants = BTreeMap::new();
    for argument in &args.wants {
        add_wants(argument, &mut wants)?;
    }
    if wants.is_empty() {
        return Err("--wants names no client".to_owned());
    }
    if wants.len() > MAX_CLIENTS {
        return Err(format!("--wants names {} clients; allowed: {MAX_CLIENTS} at most", wants.len()));
    }
    let mut weights = BTreeMap::new();
    for (name, weight) in &args.weight {
        if !wants.contains_key(name) {
            return Err(format!("--weight names {name:?}, which --wants does not"));
        }
        if weights.insert(name.clone(), *weight).is_some() {
            return Err(format!("--weight names {name:?} twice"));
        }
    }
    let client = |(name, wants)| {
        let weight = weights.get(&name).copied().unwrap_or(Weight::ONE);
        Client { name, weight, wants }
    };
    Ok(wants.into_iter().map(client).collect())
}

fn add_wants(argument: &str, wants: &mut BTreeMap<String, u64>) -> Result<(), String> {
    if argument == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|error| format!("stdin can't be read: {error}"))?;
        return add_lines(&text, "stdin", wants);
    }
    if let Some(path) = argument.strip_prefix('@') {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path} can't be read: {error}"))?;
        return add_lines(&text, path, wants);
    }
    argument.split(',').try_for_each(|part| add_want(part, wants).map_err(|problem| format!("--wants: {problem}")))
}

/// Lines of NAME=N; empty ones and comments (#) are passed over.
fn add_lines(text: &str, from: &str, wants: &mut BTreeMap<String, u64>) -> Result<(), String> {
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') {
            add_want(line, wants).map_err(|problem| format!("{from}:{}: {problem}", index + 1))?;
        }
    }
    Ok(())
}

fn add_want(text: &str, wants: &mut BTreeMap<String, u64>) -> Result<(), String> {
    let wrong = || format!("{text:?} is not NAME=N; allowed: a name, and a whole number from 0 to {MAX_WANTS}");
    let (name, number) = text.rsplit_once('=').ok_or_else(wrong)?;
    let (name, number) = (name.trim(), number.trim());
    let number = config::count(number, 0..=MAX_WANTS).map_err(|_| wrong())?;
    if name.is_empty() {
        return Err(wrong());
    }
    match wants.insert(name.to_owned(), number) {
        None => Ok(()),
        Some(_) => Err(format!("{name:?} is named twice")),
    }
}

fn as_json(terms: &AllocationParams, clients: &[Client], grants: &[Grant]) -> serde_json::Value {
    let each = |value: &dyn Fn(&Client, &Grant) -> serde_json::Value| -> serde_json::Value {
        clients.iter().zip(grants).map(|(client, grant)| (client.name.clone(), value(client, grant))).collect()
    };
    json!({
        "capacity": terms.capacity,
        "reservation": decimal(terms.reservation.millionths().into(), 1e6),
        "lending": lending_name(terms.lending),
        "wants": each(&|client, _| json!(client.wants)),
        "weight": each(&|client, _| json!(decimal(client.weight.thousandths(), 1e3))),
        "default_share": each(&|_, grant| json!(grant.default_share.as_f64())),
        "granted": each(&|_, grant| json!(grant.records)),
    })
}

/// For people: nothing is computed with it.
#[expect(clippy::cast_precision_loss, reason = "at most 10^9, which is exact")]
fn decimal(count: u64, per_unit: f64) -> f64 {
    count as f64 / per_unit
}

fn lending_name(lending: Lending) -> &'static str {
    match lending {
        Lending::Proportional => "proportional",
        Lending::MaxMin => "max_min",
    }
}

/// The formula's parts for one client, for people: floats, never decisions.
struct Row {
    default_share: f64,
    floor: f64,
    granted: f64,
}

impl Row {
    #[expect(clippy::cast_precision_loss, reason = "for people; grants come from the exact allocator")]
    fn new(terms: &AllocationParams, client: &Client, grant: &Grant) -> Row {
        let default_share = grant.default_share.as_f64();
        let wants = client.wants as f64;
        let reserved = default_share * decimal(terms.reservation.millionths().into(), 1e6);
        Row { default_share, floor: wants.max(reserved), granted: grant.records as f64 }
    }

    /// What it could lend (above zero) or misses (below).
    fn gap(&self) -> f64 {
        self.default_share - self.floor
    }
}

fn print_text(terms: &AllocationParams, clients: &[Client], grants: &[Grant]) {
    let rows: Vec<_> = clients.iter().zip(grants).map(|(client, grant)| Row::new(terms, client, grant)).collect();
    say(table(clients, grants, &rows));
    say(format_args!("\n{}", explanation(terms, &rows)));
}

fn table(clients: &[Client], grants: &[Grant], rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "client",
        "weight",
        "default share",
        "wants",
        "floor",
        "lent (-) or borrowed (+)",
        "granted",
        "unmet",
    ]);
    for ((client, grant), row) in clients.iter().zip(grants).zip(rows) {
        table.add_row([
            client.name.clone(),
            number(decimal(client.weight.thousandths(), 1e3)),
            number(row.default_share),
            client.wants.to_string(),
            number(row.floor),
            signed(row.granted - row.default_share),
            grant.records.to_string(),
            client.wants.saturating_sub(grant.records).to_string(),
        ]);
    }
    let sum = |value: &dyn Fn(&Client, &Grant) -> u64| {
        clients.iter().zip(grants).map(|(client, grant)| u128::from(value(client, grant))).sum::<u128>().to_string()
    };
    table.add_row([
        "all".to_owned(),
        number(decimal(clients.iter().map(|client| client.weight.thousandths()).sum(), 1e3)),
        number(rows.iter().map(|row| row.default_share).sum()),
        sum(&|client, _| client.wants),
        number(rows.iter().map(|row| row.floor).sum()),
        String::new(),
        sum(&|_, grant| grant.records),
        sum(&|client, grant| client.wants.saturating_sub(grant.records)),
    ]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn explanation(terms: &AllocationParams, rows: &[Row]) -> String {
    let surplus: f64 = rows.iter().map(Row::gap).filter(|gap| *gap > 0.0).sum();
    let deficit: f64 = rows.iter().map(Row::gap).filter(|gap| *gap < 0.0).map(|gap| -gap).sum();
    let remaining = (surplus - deficit).max(0.0);
    let ending = match (terms.lending, deficit > surplus) {
        (_, false) => {
            format!("Everybody gets what it wants; the {} that remain go back to the lenders.", number(remaining))
        }
        (Lending::Proportional, true) => format!(
            "Too little is lent for everybody: each that wants more gets {:.1} % of what it misses.",
            100.0 * surplus / deficit
        ),
        (Lending::MaxMin, true) => {
            "Too little is lent for everybody: all loans rise together, by weight, until nothing is left to lend."
                .to_owned()
        }
    };
    format!(
        "To lend: {} (default share - floor, where that is above 0; the floor is what a client wants, \
         at least {} of its default share).\nTo borrow: {} (where it is below 0).\n{ending}\n\
         Grants are whole records: rounded down, the rest by largest remainder, ties by name.",
        number(surplus),
        decimal(terms.reservation.millionths().into(), 1e6),
        number(deficit)
    )
}

/// Writes a number with at most three decimals, without zeros at the end and without the sign of a zero.
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
