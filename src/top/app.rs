//! What was chosen by key, and whether the instance answers.

use std::time::Instant;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::Options;
use super::fetch::{Answer, Service};
use super::rates::{self, Row};
use super::table;

/// The order of the clients; the largest first, but for names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Name,
    Wants,
    Granted,
    Admitted,
    Delayed,
    Rejected,
    Backlog,
}

impl Sort {
    const ALL: [Sort; 7] =
        [Sort::Name, Sort::Wants, Sort::Granted, Sort::Admitted, Sort::Delayed, Sort::Rejected, Sort::Backlog];

    /// The title of its column.
    pub fn as_str(self) -> &'static str {
        match self {
            Sort::Name => "client",
            Sort::Wants => "wants",
            Sort::Granted => "granted",
            Sort::Admitted => "admit/s",
            Sort::Delayed => "delay/s",
            Sort::Rejected => "reject/s",
            Sort::Backlog => "backlog",
        }
    }

    /// What is compared.
    pub fn key(self, row: &Row, enforce: bool) -> f64 {
        let rates = row.per_second.as_ref();
        match self {
            Sort::Name => 0.0,
            Sort::Wants => row.client.wants as f64,
            Sort::Granted => row.client.granted as f64,
            Sort::Admitted => rates.map_or(-1.0, |rates| rates.admitted),
            Sort::Delayed => rates.map_or(-1.0, |rates| rates.delayed),
            Sort::Rejected => rates.map_or(-1.0, |rates| rates.rejected),
            Sort::Backlog => table::backlog(row, enforce) as f64,
        }
    }

    fn next(self) -> Sort {
        Sort::ALL[(self as usize + 1) % Sort::ALL.len()]
    }
}

/// Whether to go on after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    GoOn,
    Quit,
}

/// Whether the instance answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Link {
    /// It was asked for the first time.
    Asked,
    Up,
    Down {
        since: Instant,
        why: String,
    },
}

/// Everything that the screen shows.
pub struct App {
    pub options: Options,
    /// As they were when the instance answered last.
    pub services: Vec<Service<Row>>,
    pub link: Link,
    pub sort: Sort,
    pub help: bool,
    /// How many clients are above the screen.
    pub scroll: usize,
    /// By name: services come in the order of their names, and may come and go.
    chosen: Option<String>,
    last: Option<(Vec<Service>, Instant)>,
}

impl App {
    pub fn new(options: Options) -> App {
        App {
            options,
            services: Vec::new(),
            link: Link::Asked,
            sort: Sort::Name,
            help: false,
            scroll: 0,
            chosen: None,
            last: None,
        }
    }

    /// Takes over what came back.
    pub fn receive(&mut self, answer: Answer) {
        match answer.outcome {
            Ok(services) => {
                let before = self.last.take();
                let before = before.as_ref().map(|(before, at)| (before.as_slice(), answer.at.duration_since(*at)));
                self.services = rates::since(before, services.clone());
                self.last = Some((services, answer.at));
                self.link = Link::Up;
            }
            Err(why) => {
                let since = if let Link::Down { since, .. } = self.link { since } else { answer.at };
                self.link = Link::Down { since, why };
            }
        }
    }

    /// Does what the key stands for.
    pub fn handle_key(&mut self, key: KeyEvent) -> Flow {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Flow::Quit,
            KeyCode::Char('q') => return Flow::Quit,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Esc => return Flow::Quit,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Tab | KeyCode::Right => self.choose(1),
            KeyCode::BackTab | KeyCode::Left => self.choose(self.services.len().saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.scroll_to(self.scroll + 1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll_to(self.scroll + PAGE),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(PAGE),
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
        Flow::GoOn
    }

    /// Which of the services is looked at.
    pub fn chosen(&self) -> usize {
        let named = |name: &String| self.services.iter().position(|service| service.name == *name);
        self.chosen.as_ref().and_then(named).unwrap_or(0)
    }

    fn choose(&mut self, further: usize) {
        if !self.services.is_empty() {
            let chosen = (self.chosen() + further) % self.services.len();
            self.chosen = Some(self.services[chosen].name.clone());
            self.scroll = 0;
        }
    }

    fn scroll_to(&mut self, row: usize) {
        let clients = self.services.get(self.chosen()).map_or(0, |service| service.clients.len());
        self.scroll = row.min(clients.saturating_sub(1));
    }
}

/// So many rows at a time.
const PAGE: usize = 10;

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::super::fetch::tests::service;
    use super::*;

    /// That looks at an instance with these services since a second.
    pub fn app(names: &[&str], colour: bool) -> App {
        let url = "http://127.0.0.1:9464".to_owned();
        let mut app = App::new(Options { url, token: None, service: None, colour });
        let named = |name: &&str| Service { name: (*name).to_owned(), ..service() };
        let now: Vec<Service> = names.iter().map(named).collect();
        let mut before = now.clone();
        for client in before.iter_mut().flat_map(|service| &mut service.clients) {
            client.admitted -= 20;
        }
        let start = Instant::now();
        app.receive(Answer { at: start, outcome: Ok(before) });
        app.receive(Answer { at: start + Duration::from_secs(1), outcome: Ok(now) });
        app
    }

    fn press(app: &mut App, codes: &[KeyCode]) -> Flow {
        codes.iter().map(|code| app.handle_key(KeyEvent::from(*code))).last().unwrap()
    }

    #[test]
    fn services_are_gone_through_in_both_directions() {
        let mut app = app(&["a", "b", "c"], false);
        let chosen = [KeyCode::Tab, KeyCode::Right, KeyCode::Tab, KeyCode::Left, KeyCode::BackTab].map(|code| {
            press(&mut app, &[code]);
            app.services[app.chosen()].name.clone()
        });
        assert_eq!(chosen, ["b", "c", "a", "c", "b"]);
        app.receive(Answer { at: Instant::now(), outcome: Ok(vec![service()]) });
        assert_eq!(app.services[app.chosen()].name, "kyc", "the one that was chosen is gone");
    }

    #[test]
    fn every_order_comes_round() {
        let mut app = app(&["a"], false);
        let orders = Sort::ALL.map(|_| {
            press(&mut app, &[KeyCode::Char('s')]);
            app.sort
        });
        assert!(Sort::ALL.iter().all(|sort| orders.contains(sort)));
    }

    #[test]
    fn it_is_quit_in_three_ways_and_esc_leaves_the_help_first() {
        let mut app = app(&["a"], false);
        assert_eq!(press(&mut app, &[KeyCode::Char('c')]), Flow::GoOn);
        assert_eq!(press(&mut app, &[KeyCode::Char('q')]), Flow::Quit);
        assert_eq!(press(&mut app, &[KeyCode::Char('?'), KeyCode::Esc]), Flow::GoOn);
        assert_eq!(press(&mut app, &[KeyCode::Esc]), Flow::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(app.handle_key(interrupt), Flow::Quit);
    }

    #[test]
    fn scrolling_ends_with_the_last_client() {
        let mut app = app(&["a"], false);
        press(&mut app, &[KeyCode::PageDown, KeyCode::Down]);
        assert_eq!(app.scroll, app.services[0].clients.len() - 1);
        press(&mut app, &[KeyCode::PageUp, KeyCode::Up]);
        assert_eq!(app.scroll, 0);
        App::new(app.options).scroll_to(3);
    }

    #[test]
    fn an_instance_that_is_away_keeps_its_last_picture_and_the_time_since_when() {
        let mut app = app(&["kyc"], false);
        let start = Instant::now();
        for (seconds, why) in [(0, "refused"), (1, "timed out")] {
            let at = start + Duration::from_secs(seconds);
            app.receive(Answer { at, outcome: Err(why.to_owned()) });
        }
        assert_eq!(app.link, Link::Down { since: start, why: "timed out".to_owned() });
        assert_eq!(app.services.len(), 1);
        app.receive(Answer { at: start + Duration::from_secs(2), outcome: Ok(vec![service()]) });
        assert_eq!(app.link, Link::Up);
    }
}
