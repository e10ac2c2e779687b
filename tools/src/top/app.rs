//! The state of the screen: the last answer, and the choices made by key.

use std::{ops::ControlFlow, time::Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::fetch::{InstanceAnswer, ServiceStatus, add_rates};
use super::table::Sort;

/// Rows that a page key scrolls.
const PAGE: usize = 10;

/// The state of the connection to the instance.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum LinkState {
    /// The first answer is not there yet.
    #[default]
    Asked,
    Up,
    Down {
        since: Instant,
        reason: String,
    },
}

/// Everything that the screen shows.
#[derive(Default)]
pub struct App {
    pub url: String,
    /// Distinguishes clients by colour instead of letters.
    pub colour: bool,
    /// The last answer.
    pub services: Vec<ServiceStatus>,
    pub link: LinkState,
    pub sort: Sort,
    pub help: bool,
    /// The number of clients above the screen.
    pub scroll: usize,
    /// A name, since services may come and go.
    chosen: Option<String>,
    answered: Option<Instant>,
}

impl App {
    pub fn new(url: String, colour: bool) -> App {
        App { url, colour, ..App::default() }
    }

    /// Takes over an answer. The last services stay if there is none.
    pub fn receive(&mut self, answer: InstanceAnswer) {
        match answer.outcome {
            Ok(mut services) => {
                if let Some(before) = self.answered.replace(answer.at) {
                    add_rates(&mut services, &self.services, answer.at.duration_since(before));
                }
                self.services = services;
                self.link = LinkState::Up;
            }
            Err(error) => {
                let since = if let LinkState::Down { since, .. } = self.link { since } else { answer.at };
                self.link = LinkState::Down { since, reason: error.to_string() };
            }
        }
    }

    /// Carries out the command of a key; breaks if it is to quit.
    pub fn handle_key(&mut self, key: KeyEvent) -> ControlFlow<()> {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return ControlFlow::Break(()),
            KeyCode::Char('q') => return ControlFlow::Break(()),
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Esc => return ControlFlow::Break(()),
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
        ControlFlow::Continue(())
    }

    /// Returns the index of the service that is shown.
    pub fn chosen(&self) -> usize {
        let named = |name: &String| self.services.iter().position(|service| service.figures.name == *name);
        self.chosen.as_ref().and_then(named).unwrap_or(0)
    }

    fn choose(&mut self, further: usize) {
        if !self.services.is_empty() {
            let chosen = (self.chosen() + further) % self.services.len();
            self.chosen = Some(self.services[chosen].figures.name.clone());
            self.scroll = 0;
        }
    }

    fn scroll_to(&mut self, row: usize) {
        let clients = self.services.get(self.chosen()).map_or(0, |service| service.clients.len());
        self.scroll = row.min(clients.saturating_sub(1));
    }
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use super::super::fetch::tests::service;
    use super::*;
    use crate::endpoint::EndpointError;

    /// Builds a screen with these services, a second after the first answer.
    pub fn app(names: &[&str], colour: bool) -> App {
        let mut app = App::new("http://127.0.0.1:9464".to_owned(), colour);
        let named = |name: &&str| {
            let mut service = service();
            service.figures.name = (*name).to_owned();
            service
        };
        let now: Vec<ServiceStatus> = names.iter().map(named).collect();
        let mut before = now.clone();
        for client in before.iter_mut().flat_map(|service| &mut service.clients) {
            client.view.done.admitted -= 20;
        }
        let start = Instant::now();
        app.receive(InstanceAnswer { at: start, outcome: Ok(before) });
        app.receive(InstanceAnswer { at: start + Duration::from_secs(1), outcome: Ok(now) });
        app
    }

    fn press(app: &mut App, codes: &[KeyCode]) -> bool {
        codes.iter().map(|code| app.handle_key(KeyEvent::from(*code)).is_break()).last().unwrap()
    }

    #[test]
    fn keys_choose_services_in_both_directions() {
        let mut app = app(&["a", "b", "c"], false);
        let chosen = [KeyCode::Tab, KeyCode::Right, KeyCode::Tab, KeyCode::Left, KeyCode::BackTab].map(|code| {
            press(&mut app, &[code]);
            app.services[app.chosen()].figures.name.clone()
        });
        assert_eq!(chosen, ["b", "c", "a", "c", "b"]);
        app.receive(InstanceAnswer { at: Instant::now(), outcome: Ok(vec![service()]) });
        assert_eq!(
            app.services[app.chosen()].figures.name,
            "kyc",
            "the first service replaces a chosen one that is gone"
        );
    }

    #[test]
    fn three_keys_quit_and_esc_leaves_the_help_first() {
        let mut app = app(&["a"], false);
        assert!(!press(&mut app, &[KeyCode::Char('c')]));
        assert!(press(&mut app, &[KeyCode::Char('q')]));
        assert!(!press(&mut app, &[KeyCode::Char('?'), KeyCode::Esc]));
        assert!(press(&mut app, &[KeyCode::Esc]));
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(app.handle_key(interrupt).is_break());
    }

    #[test]
    fn scrolling_ends_with_the_last_client() {
        let mut app = app(&["a"], false);
        press(&mut app, &[KeyCode::PageDown, KeyCode::Down]);
        assert_eq!(app.scroll, app.services[0].clients.len() - 1);
        press(&mut app, &[KeyCode::PageUp, KeyCode::Up]);
        assert_eq!(app.scroll, 0);
        App::new(app.url, false).scroll_to(3);
    }

    #[test]
    fn an_unreachable_instance_keeps_its_last_services_and_the_time_since_when() {
        let mut app = app(&["kyc"], false);
        let start = Instant::now();
        for (seconds, error) in [
            (0, EndpointError::TokenNeeded("why".to_owned()).into()),
            (1, EndpointError::TokenRefused("why".to_owned()).into()),
        ] {
            app.receive(InstanceAnswer { at: start + Duration::from_secs(seconds), outcome: Err(error) });
        }
        assert_eq!(
            app.link,
            LinkState::Down { since: start, reason: "it does not accept this token (why)".to_owned() }
        );
        assert_eq!(app.services.len(), 1);
        app.receive(InstanceAnswer { at: start + Duration::from_secs(2), outcome: Ok(vec![service()]) });
        assert_eq!(app.link, LinkState::Up);
    }
}
