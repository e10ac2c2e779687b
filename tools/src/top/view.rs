//! The screen, line by line, for any size of terminal.

use std::time::Instant;

use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::{Frame, widgets::Paragraph};
use watermaster_api::{PaceFigures, ServiceFigures};

use super::app::{App, LinkState};
use super::fetch::{ClientStatus, ServiceStatus};
use super::table;
use crate::format::{printable, seconds};

/// The marks of the clients: a letter on a terminal without colours, or a colour. Red is for trouble.
const MARKS: [(&str, Color); 8] = [
    ("#", Color::Cyan),
    ("=", Color::Yellow),
    ("+", Color::Green),
    ("o", Color::Magenta),
    ("*", Color::Blue),
    ("%", Color::LightCyan),
    ("-", Color::LightYellow),
    ("x", Color::LightGreen),
];
/// The width of the mark before the name of a client.
const MARK_WIDTH: usize = 2;
/// The width of the label before a bar.
const LABEL_WIDTH: usize = 9;

const HELP: &str = include_str!("../help/top-keys.txt");

pub fn draw(frame: &mut Frame<'_>, app: &App, now: Instant) {
    let area = frame.area();
    let lines = screen(app, now, usize::from(area.width), usize::from(area.height));
    frame.render_widget(Paragraph::new(lines), area);
}

fn screen(app: &App, now: Instant, width: usize, height: usize) -> Vec<Line<'static>> {
    let mut lines = head(app, now);
    let service = app.services.get(app.chosen());
    if app.help {
        lines.push(Line::default());
        lines.extend(HELP.lines().map(Line::raw));
    } else if let Some(service) = service {
        let headline = wrapped(&headline(service), width);
        lines.extend(headline.into_iter().map(|line| Line::from(line).style(state(app, service))));
        lines.extend(bars(app, service, width));
        lines.push(Line::default());
        let room = height.saturating_sub(lines.len() + 1);
        let group = group(service, width, room / 2);
        lines.extend(clients(app, service, width, room - group.len()));
        lines.extend(group);
    }
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), Line::default());
    let keys = format!("q quit  s sort: {}  tab service  ↑↓ scroll  ? help", app.sort.title());
    lines.push(Line::from(keys).style(Modifier::DIM));
    lines
}

/// Returns the URL of the instance, whether it answers, and its services if there are several.
fn head(app: &App, now: Instant) -> Vec<Line<'static>> {
    let mut lines = vec![Line::from(vec![Span::from("watermaster top  ").bold(), Span::from(app.url.clone())])];
    match &app.link {
        LinkState::Up => {}
        LinkState::Asked => lines.push(Line::raw("asking …")),
        LinkState::Down { since, reason } => {
            let time = now.saturating_duration_since(*since).as_secs();
            let text = format!("no answer for {time} s, asking again: {}", printable(reason));
            lines.push(Line::from(text).style(alarm(app)));
        }
    }
    if app.services.len() > 1 {
        let tab = |(at, service): (usize, &ServiceStatus)| {
            let name = format!(" {} ", printable(&service.figures.name));
            let chosen = at == app.chosen();
            // Brackets, too: reversed colours are lost in a copy of the screen.
            let name = if chosen { format!("[{}]", name.trim()) } else { name };
            if chosen { Span::from(name).reversed() } else { Span::from(name) }
        };
        lines.push(Line::from(app.services.iter().enumerate().map(tab).collect::<Vec<_>>()));
    }
    lines
}

/// Returns the state of a service, in pieces that may stand on lines of their own.
pub fn headline(service: &ServiceStatus) -> Vec<String> {
    let ServiceFigures { name, mode, enforce, capacity, cycle_seconds, ready, trouble, .. } = &service.figures;
    let mode = if *enforce { mode.to_string() } else { format!("shadow ({mode})") };
    let state = match trouble {
        _ if *ready => "ready".to_owned(),
        Some(reason) => format!("NOT READY: {}", printable(reason)),
        None => "NOT READY".to_owned(),
    };
    let mut pieces = vec![
        format!("{} takes {capacity} in any {}", printable(name), seconds(*cycle_seconds)),
        format!("{} admitted in the last one", service.figures.window_admitted),
        mode,
        state,
    ];
    if let Some(pace) = &service.pace {
        pieces.insert(1, found_capacity(pace));
    }
    if let Some(group) = &service.group {
        let live = group.members.iter().filter(|member| member.state == "live").count();
        pieces.insert(1, shared(group.hold, live));
        if group.configurations > 1 {
            pieces.push(format!("{} DIFFERENT CONFIGURATIONS", group.configurations));
        }
    }
    let clients = service.clients.iter().map(|client| &client.view);
    let oldest = clients.max_by(|a, b| a.oldest_seconds.total_cmp(&b.oldest_seconds));
    if let Some(client) = oldest.filter(|client| client.oldest_seconds > 0.0) {
        pieces.push(format!("{} waits longest: {}", printable(&client.name), seconds(client.oldest_seconds)));
    }
    if !enforce {
        pieces.push("delay/s, reject/s and backlog: what enforcing would do".to_owned());
    }
    pieces
}

/// Tells the part of a capacity that some of the instances of a group hold.
fn shared(hold: u64, live: usize) -> String {
    match live {
        1 => format!("{hold} of them here, by the only instance"),
        _ => format!("{hold} of them here, shared by {live} instances"),
    }
}

/// Returns the result of the search for the capacity.
fn found_capacity(pace: &PaceFigures) -> String {
    let found = match pace.found {
        Some(found) if pace.at_least => format!("the service takes at least {found}"),
        Some(found) => format!("the service takes {found}"),
        None => "the capacity is not known".to_owned(),
    };
    let late = seconds((pace.late_seconds * 10.0).round() / 10.0);
    let text = format!("{found} ({}; {late} late)", printable(&pace.state).replace('_', " "));
    if pace.control == "apply" { format!("{text}, floor {}, ceiling {}", pace.floor, pace.ceiling) } else { text }
}

fn wrapped(pieces: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces {
        match lines.last_mut() {
            Some(line) if table::width_of(line) + 2 + table::width_of(piece) <= width => {
                line.push_str("; ");
                line.push_str(piece);
            }
            _ => lines.push(piece.clone()),
        }
    }
    lines
}

/// Draws the grants, stacked up to the capacity, and the records admitted in the last cycle.
fn bars(app: &App, service: &ServiceStatus, width: usize) -> [Line<'static>; 2] {
    let room = width.saturating_sub(LABEL_WIDTH);
    let granted: Vec<u64> = service.clients.iter().map(|client| client.view.granted).collect();
    let all = granted.iter().fold(0, |sum: u64, granted| sum.saturating_add(*granted));
    let capacity = service.figures.capacity;
    let whole = capacity.max(all).max(1);
    let mut stacked = vec![Span::from("granted  ")];
    let mut drawn = 0;
    for (at, part) in parts(&granted, whole, room).into_iter().enumerate().filter(|(_, part)| *part > 0) {
        stacked.push(mark(app, at, part));
        drawn += part;
    }
    stacked.push(Span::from("·".repeat(room - drawn)));
    let full = parts(&[service.figures.window_admitted], capacity.max(1), room)[0];
    let block = if app.colour { "█" } else { "#" };
    let admitted = format!("admitted {}{}", block.repeat(full), "·".repeat(room - full));
    [Line::from(stacked), Line::from(admitted)]
}

/// Divides `room` among amounts by their running sum, so that the parts together are off by one at most.
fn parts(amounts: &[u64], whole: u64, room: usize) -> Vec<usize> {
    let mut sum = 0_u64;
    let mut before = 0;
    let part = |amount: &u64| {
        sum = sum.saturating_add(*amount).min(whole);
        let end = (sum as f64 / whole as f64 * room as f64).round() as usize;
        end - std::mem::replace(&mut before, end)
    };
    amounts.iter().map(part).collect()
}

/// Draws part of a bar in the colour or letter of the client at this index.
fn mark(app: &App, at: usize, times: usize) -> Span<'static> {
    let (letter, colour) = MARKS[at % MARKS.len()];
    if app.colour { Span::styled("█".repeat(times), colour) } else { Span::from(letter.repeat(times)) }
}

fn clients(app: &App, service: &ServiceStatus, width: usize, room: usize) -> Vec<Line<'static>> {
    let rows = table::rows(service, app.sort);
    let mut table = table::fitted(service, &rows, width.saturating_sub(MARK_WIDTH)).into_iter();
    let titles = Span::from(format!("  {}", table.next().unwrap_or_default())).bold();
    let mut lines = vec![Line::from(titles)];
    if rows.is_empty() {
        lines.push(Line::raw("  no client yet"));
    }
    let stale = if app.link == LinkState::Up { Style::new() } else { Style::new().add_modifier(Modifier::DIM) };
    let line = |((at, _), text): (&(usize, &ClientStatus), String)| {
        Line::from(vec![mark(app, *at, 1), Span::from(format!(" {text}"))]).style(stale)
    };
    let room = room.saturating_sub(1);
    let left = rows.len().saturating_sub(app.scroll);
    let shown = if left > room { room.saturating_sub(1) } else { left };
    lines.extend(rows.iter().zip(table).skip(app.scroll).take(shown).map(line));
    if left > shown {
        lines.push(Line::raw(format!("  … {} more", left - shown)));
    }
    lines
}

/// Draws the instances that share the capacity; no line where there is no room for two of them.
fn group(service: &ServiceStatus, width: usize, room: usize) -> Vec<Line<'static>> {
    let Some(group) = service.group.as_ref().filter(|_| room >= 4) else { return Vec::new() };
    let mut table = table::group(group, width).into_iter();
    let mut lines = vec![Line::default(), Line::from(table.next().unwrap_or_default().bold())];
    let shown = if table.len() > room - 2 { room - 3 } else { table.len() };
    let hidden = table.len() - shown;
    lines.extend(table.take(shown).map(Line::raw));
    if hidden > 0 {
        lines.push(Line::raw(format!("… {hidden} more")));
    }
    lines
}

fn state(app: &App, service: &ServiceStatus) -> Style {
    if service.figures.ready { Style::new() } else { alarm(app) }
}

fn alarm(app: &App) -> Style {
    let style = Style::new().add_modifier(Modifier::BOLD);
    if app.colour { style.fg(Color::Red) } else { style }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use ratatui::{Terminal, backend::TestBackend};

    use super::super::app::tests::app;
    use super::super::fetch::{self, InstanceAnswer};
    use super::*;
    use crate::endpoint::EndpointError;

    fn drawn(app: &App, now: Instant, width: u16, height: u16) -> TestBackend {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, app, now)).unwrap();
        terminal.backend().clone()
    }

    /// Returns the lines of the screen without trailing blanks.
    fn text(app: &App, now: Instant, width: u16, height: u16) -> String {
        let shown = drawn(app, now, width, height).to_string();
        let lines = shown.lines().map(|line| line.trim_matches('"').trim_end());
        lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }

    #[test]
    fn a_campaign_is_drawn_as_expected() {
        let expected = "\
watermaster top  http://127.0.0.1:9464
kyc takes 200 in any 1 s; 180 admitted in the last one; shape; ready
granted  ############==========================++++++++++++++++++ooooooooooooooo
admitted ################################################################·······

  client        wants granted      share admit/s delay/s reject/s backlog
# car-loan         35      35   lends 15      20       0        0       0
= credit-card    6350      72 borrows 22      20       0        0    6334
+ home-loan        52      50          -      20       0        0       0
o personal-loan    43      43    lends 7      20       0        0       0


q quit  s sort: client  tab service  ↑↓ scroll  ? help";
        assert_eq!(text(&app(&["kyc"], false), Instant::now(), 80, 13), expected);
    }

    #[test]
    fn the_found_capacity_is_one_line() {
        let at_floor = PaceFigures {
            state: "at_floor".into(),
            control: "apply".into(),
            found: Some(1_940),
            floor: 200,
            ceiling: 8_000,
            late_seconds: 0.31,
            ..PaceFigures::default()
        };
        let expected = "the service takes 1940 (at floor; 300 ms late), floor 200, ceiling 8000";
        assert_eq!(found_capacity(&at_floor), expected);
        let observed = PaceFigures { control: "observe".into(), at_least: true, ..at_floor };
        assert_eq!(found_capacity(&observed), "the service takes at least 1940 (at floor; 300 ms late)");
    }

    #[test]
    fn a_narrow_terminal_shows_the_most_important_columns() {
        let expected = "\
watermaster top  http://127.0.0.1:
[bureau] kyc
bureau takes 200 in any 1 s
180 admitted in the last one
shape; ready
granted  ####=========+++++++ooooo
admitted #######################··

  client   granted admit/s backlog
# car-loan      35      20       0
= credit-…      72      20    6334
+ home-lo…      50      20       0
o persona…      43      20       0


q quit  s sort: client  tab servic";
        assert_eq!(text(&app(&["bureau", "kyc"], false), Instant::now(), 34, 16), expected);
    }

    #[test]
    fn an_unreachable_instance_is_shown_as_such() {
        let mut app = app(&["kyc"], false);
        let now = Instant::now();
        app.receive(InstanceAnswer { at: now, outcome: Err(EndpointError::TokenNeeded("why".to_owned()).into()) });
        let shown = text(&app, now + Duration::from_secs(7), 80, 12);
        assert_eq!(
            shown.lines().nth(1),
            Some("no answer for 7 s, asking again: it asks for a token: --token-file (why)")
        );
        assert!(shown.contains("credit-card"), "the last answer must stay: {shown}");
    }

    #[test]
    fn a_service_that_is_not_ready_shows_why_and_shadow_mode_is_named() {
        let mut app = app(&["kyc"], false);
        let service = &mut app.services[0].figures;
        (service.ready, service.enforce) = (false, false);
        service.trouble = Some("no broker can be reached".to_owned());
        let shown = text(&app, Instant::now(), 160, 14);
        assert!(shown.contains("shadow (shape); NOT READY: no broker can be reached"), "{shown}");
        assert!(shown.contains("backlog: what enforcing would do"), "{shown}");
    }

    #[test]
    fn the_instances_of_a_group_stand_below_the_clients() {
        let mut app = app(&["kyc"], false);
        app.services[0].group = Some(fetch::tests::group());
        let expected = "\
kyc takes 200 in any 1 s; 120 of them here, by the only instance
180 admitted in the last one; shape; ready
granted  ############==========================++++++++++++++++++ooooooooooooooo
admitted ################################################################·······

  client        wants granted      share admit/s delay/s reject/s backlog
# car-loan         35      35   lends 15      20       0        0       0
= credit-card    6350      72 borrows 22      20       0        0    6334
+ home-loan        52      50          -      20       0        0       0
o personal-loan    43      43    lends 7      20       0        0       0

instance hold target used   state last state
wm-0      120    118   97    live  0.4 s ago
wm-1       80     82   80  silent 12.3 s ago
wm-2        0      0    0 claimed 41.0 s ago";
        let shown = text(&app, Instant::now(), 80, 17);
        assert_eq!(shown.lines().skip(1).take(15).collect::<Vec<_>>().join("\n"), expected);
        app.services[0].group.as_mut().unwrap().configurations = 2;
        let shown = text(&app, Instant::now(), 80, 15);
        assert!(shown.contains("2 DIFFERENT CONFIGURATIONS") && shown.contains(" ago\n… 2 more"), "{shown}");
    }

    #[test]
    fn more_clients_than_lines_are_counted_and_scrolled_to() {
        let mut app = app(&["kyc"], false);
        let shown = text(&app, Instant::now(), 80, 9);
        assert!(shown.contains("car-loan") && shown.contains("… 3 more") && !shown.contains("home-loan"), "{shown}");
        app.scroll = 2;
        let shown = text(&app, Instant::now(), 80, 9);
        assert!(shown.contains("home-loan") && !shown.contains("car-loan") && !shown.contains("more"), "{shown}");
    }

    #[test]
    fn the_help_explains_every_column() {
        let mut app = app(&["kyc"], false);
        app.help = true;
        let shown = text(&app, Instant::now(), 80, 20);
        for title in ["group", "wants", "granted", "share", "admit/s", "delay/s", "reject/s", "backlog"] {
            assert!(shown.lines().any(|line| line.starts_with(title)), "{title}: {shown}");
        }
    }

    #[test]
    fn no_colour_is_drawn_if_colour_is_off() {
        let colours = |colour| {
            let screen = drawn(&app(&["bureau", "kyc"], colour), Instant::now(), 80, 14);
            let cells = screen.buffer().content().iter();
            cells.filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
        };
        assert_eq!(colours(false), 0);
        assert!(colours(true) > 4);
    }

    proptest! {
        #[test]
        fn bars_are_proportional(
            amounts in prop::collection::vec(0..1_000_000_u64, 0..30),
            room in 0..200_usize,
        ) {
            let whole = amounts.iter().sum::<u64>().max(1);
            let parts = parts(&amounts, whole, room);
            let (mut sum, mut drawn) = (0, 0);
            for (amount, part) in amounts.iter().zip(&parts) {
                (sum, drawn) = (sum + amount, drawn + part);
                let exact = sum as f64 / whole as f64 * room as f64;
                prop_assert!((drawn as f64 - exact).abs() <= 0.5);
            }
        }

        #[test]
        fn any_size_of_terminal_works(width in 1..200_u16, height in 1..50_u16, help: bool, scroll in 0..9_usize) {
            let mut app = app(&["bureau", "kyc"], true);
            app.services[0].group = Some(fetch::tests::group());
            (app.help, app.scroll) = (help, scroll);
            drawn(&app, Instant::now(), width, height);
        }
    }
}
