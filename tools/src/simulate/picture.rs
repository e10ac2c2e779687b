//! Delays and rejections by capacity as one SVG: for each mode and lending a plot of the 99th percentile of the delays
//! and a plot of the rejected part, with a line for each client.

use std::{cmp::Reverse, collections::BTreeMap, fmt::Write};

use askama::Template;

use super::report::{Point, WhatIf, worst};
use super::tally::ClientResult;
use crate::format::{decimal, seconds};

/// The height of a plot with its title and its axis; the template has the other numbers, too.
const HEIGHT: usize = 250;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 600.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 210.0;
/// The number of colours, and so of clients in a plot.
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31"];
/// The shortest delay of the scale: shorter ones are drawn there.
const SHORTEST: f64 = 0.1;

#[derive(Template)]
#[template(path = "simulate/picture.svg", config = "src/askama.toml")]
struct Picture<'r> {
    title: String,
    height: usize,
    panels: Vec<Panel<'r>>,
}

/// A plot.
struct Panel<'r> {
    title: String,
    top: usize,
    levels: Vec<Tick>,
    capacities: Vec<Tick>,
    lines: Vec<Line<'r>>,
}

/// A labelled place on an axis.
struct Tick {
    at: String,
    label: String,
}

/// The line of a client.
struct Line<'r> {
    client: &'r str,
    colour: &'static str,
    path: String,
    dots: Vec<(String, String)>,
    legend: usize,
}

pub fn svg(report: &WhatIf) -> String {
    let (clients, mut panels) = (most_affected(&report.points), Vec::new());
    for points in report.points.chunk_by(|one, other| one.rules == other.rules) {
        let rules = format!("{}, {}", <&str>::from(points[0].rules.mode), <&str>::from(points[0].rules.lending));
        let delay = |client: &ClientResult| client.delay_seconds.p99;
        let share = |client: &ClientResult| Some(100.0 * client.rejected_total() as f64 / client.records.max(1) as f64);
        let longest = largest(points, delay);
        let decades = (longest / SHORTEST).max(10.0).log10().ceil();
        let levels = (0..=decades as i32).map(|decade| SHORTEST * 10_f64.powi(decade));
        let logarithmic = |value: f64| (value.max(SHORTEST) / SHORTEST).log10() / decades;
        let levels = levels.map(|value| (logarithmic(value), seconds(value))).collect();
        let title = format!("Delay, 99th percentile ({rules})");
        panels.push(Panel::new(title, (points, &clients), panels.len() * HEIGHT, levels, |client| {
            delay(client).map(logarithmic)
        }));
        let most = (largest(points, share) / 10.0).ceil().max(1.0) * 10.0;
        let levels =
            (0..=5).map(|fifth| (f64::from(fifth) / 5.0, format!("{} %", decimal(most * f64::from(fifth) / 5.0))));
        let title = format!("Rejected records ({rules})");
        let levels = levels.collect();
        panels.push(Panel::new(title, (points, &clients), panels.len() * HEIGHT, levels, |client| {
            share(client).map(|at| at / most)
        }));
    }
    let picture = Picture { title: report.title(), height: panels.len() * HEIGHT, panels };
    // XML can't hold control characters.
    let is_forbidden = |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{fffe}' | '\u{ffff}');
    picture.to_string().replace(is_forbidden, "\u{fffd}")
}

fn largest(points: &[Point], value: impl Fn(&ClientResult) -> Option<f64>) -> f64 {
    points.iter().flat_map(|point| &point.outcome.clients).filter_map(value).fold(0.0, f64::max)
}

/// Returns the clients with the longest delays and the most rejections at any point, as many as there are colours.
fn most_affected(points: &[Point]) -> Vec<&str> {
    let mut clients = BTreeMap::new();
    for client in points.iter().flat_map(|point| worst(&point.outcome.clients, COLOURS.len()).0) {
        let delay = (client.delay_seconds.p99.unwrap_or(0.0) * 1e3) as u64;
        let most = clients.entry(client.name.as_str()).or_default();
        *most = (client.rejected_total(), delay).max(*most);
    }
    let mut names: Vec<&str> = clients.keys().copied().collect();
    names.sort_by_key(|name| Reverse(clients[name]));
    names.truncate(COLOURS.len());
    names
}

impl<'r> Panel<'r> {
    /// Draws the line of each client. `height` is from 0, the bottom of the plot, to 1.
    fn new(
        title: String, (points, clients): (&[Point], &[&'r str]), top: usize, levels: Vec<(f64, String)>,
        height: impl Fn(&ClientResult) -> Option<f64>,
    ) -> Panel<'r> {
        let (least, most) = (points[0].capacity as f64, points[points.len() - 1].capacity as f64);
        let x = |capacity: u64| {
            let part = if most > least { (capacity as f64 - least) / (most - least) } else { 0.5 };
            format!("{:.1}", LEFT + (RIGHT - LEFT) * part)
        };
        let y = |part: f64| format!("{:.1}", BOTTOM - (BOTTOM - TOP) * part);
        let lines = clients.iter().zip(COLOURS).enumerate().map(|(index, (&client, colour))| {
            let (mut path, mut pen, mut dots) = (String::new(), 'M', Vec::new());
            for point in points {
                let found = point.outcome.clients.iter().find(|found| found.name == client);
                match found.and_then(&height) {
                    None => pen = 'M',
                    Some(value) => {
                        let at = (x(point.capacity), y(value));
                        let _ = write!(path, "{pen}{} {}", at.0, at.1);
                        dots.push(at);
                        pen = 'L';
                    }
                }
            }
            Line { client, colour, path, dots, legend: 48 + 18 * index }
        });
        let labelled = points.iter().step_by(points.len().div_ceil(8));
        Panel {
            title,
            top,
            levels: levels.into_iter().map(|(at, label)| Tick { at: y(at), label }).collect(),
            capacities: labelled
                .map(|point| Tick { at: x(point.capacity), label: point.capacity.to_string() })
                .collect(),
            lines: lines.collect(),
        }
    }
}
