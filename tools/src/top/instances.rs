//! Several instances of a group, shown as one.

use std::time::Instant;

use watermaster_api::{ClientView, DecisionsView, ServiceFigures};

use super::fetch::{ClientStatus, FetchError, FoundClient, Instance, InstanceAnswer, ServiceStatus};

/// The instances that are asked, with their addresses.
pub struct InstanceSet(pub Vec<(String, Instance)>);

impl InstanceSet {
    /// Asks all instances, one after the other. While one answers, the others only make their services not ready.
    pub fn ask(&self) -> InstanceAnswer {
        let (mut all, mut silent, mut first_error) = (Vec::new(), Vec::new(), None);
        for (url, instance) in &self.0 {
            match instance.ask().outcome {
                Ok(services) => add(&mut all, services),
                Err(why) => {
                    silent.push(format!("{url}: {why}"));
                    first_error.get_or_insert(why);
                }
            }
        }
        for figures in all.iter_mut().map(|service| &mut service.figures).filter(|_| !silent.is_empty()) {
            (figures.ready, figures.trouble) = (false, Some(silent.join("; ")));
        }
        let outcome = match first_error {
            Some(why) if silent.len() == self.0.len() => Err(why),
            _ => Ok(all),
        };
        InstanceAnswer { at: Instant::now(), outcome }
    }

    /// Asks for one client at each instance, and names the instance if there are several.
    pub fn client(&self, name: &str) -> Result<Vec<FoundClient>, FetchError> {
        let (mut found, mut unknown) = (Vec::new(), None);
        for (url, instance) in &self.0 {
            match instance.client(name) {
                Ok(here) => found.extend(here.into_iter().map(|client| match self.0.len() {
                    1 => client,
                    _ => FoundClient { service: format!("{} at {url}", client.service), ..client },
                })),
                Err(why @ FetchError::NoClient(_)) => unknown = Some(why),
                Err(why) => return Err(why),
            }
        }
        match unknown {
            Some(why) if found.is_empty() => Err(why),
            _ => Ok(found),
        }
    }
}

/// Adds the figures of another instance: counts, wants, grants and shares add up over the instances of a group.
fn add(all: &mut Vec<ServiceStatus>, more: Vec<ServiceStatus>) {
    for service in more {
        let name = &service.figures.name;
        let Some(sum) = all.iter_mut().find(|known| known.figures.name == *name) else {
            all.push(service);
            continue;
        };
        sum.others += 1;
        let ServiceFigures { window_admitted, ready, trouble, .. } = service.figures;
        sum.figures.window_admitted += window_admitted;
        // Without a group each instance has the whole capacity for itself.
        if sum.group.is_none() {
            sum.figures.capacity += service.figures.capacity;
        }
        if sum.figures.ready && !ready {
            (sum.figures.ready, sum.figures.trouble) = (false, trouble);
        }
        if let (Some(sum), Some(group)) = (&mut sum.group, service.group) {
            sum.hold += group.hold;
        }
        for client in service.clients {
            match sum.clients.binary_search_by(|known| known.view.name.cmp(&client.view.name)) {
                Ok(at) => add_client(&mut sum.clients[at], client),
                Err(at) => sum.clients.insert(at, client),
            }
        }
    }
}

fn add_client(sum: &mut ClientStatus, ClientStatus { view, .. }: ClientStatus) {
    let ClientView { wants, default_share, granted, done, oldest_seconds, shadow, .. } = view;
    let sum = &mut sum.view;
    sum.wants += wants;
    sum.default_share += default_share;
    sum.granted += granted;
    // One instance may lend what another one borrows.
    sum.lent = (sum.default_share - sum.granted as f64).max(0.0);
    sum.borrowed = (sum.granted as f64 - sum.default_share).max(0.0);
    sum.oldest_seconds = sum.oldest_seconds.max(oldest_seconds);
    for (sum, more) in [(&mut sum.done, done), (&mut sum.shadow, shadow)] {
        let DecisionsView { admitted, delayed, rejected, backlog } = more;
        sum.admitted += admitted;
        sum.delayed += delayed;
        sum.backlog += backlog;
        rejected.into_iter().for_each(|(reason, count)| *sum.rejected.entry(reason).or_default() += count);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fetch::tests::{group, service};
    use super::*;

    #[test]
    fn the_figures_of_a_group_add_up() {
        let with = |hold| ServiceStatus { group: Some(watermaster_api::GroupFigures { hold, ..group() }), ..service() };
        let mut other = with(80);
        other.clients.remove(0);
        other.clients[0].view.granted = 8;
        (other.figures.ready, other.figures.trouble) = (false, Some("joining".to_owned()));
        let mut all = Vec::new();
        add(&mut all, vec![with(120)]);
        add(&mut all, vec![other]);
        let [sum] = &all[..] else { panic!("one service") };
        assert_eq!(
            (sum.figures.capacity, sum.figures.window_admitted, sum.group.as_ref().unwrap().hold),
            (200, 360, 200)
        );
        assert_eq!((sum.figures.ready, sum.figures.trouble.as_deref()), (false, Some("joining")));
        let card = &sum.clients[1].view;
        assert_eq!((card.granted, card.default_share, card.done.backlog, card.lent), (80, 100.0, 12_668, 20.0));
        assert_eq!((sum.clients.len(), sum.clients[0].view.done.admitted), (4, 944));
    }

    #[test]
    fn instances_without_a_group_have_a_capacity_each() {
        let mut all = vec![service()];
        add(&mut all, vec![service()]);
        assert_eq!(all[0].figures.capacity, 400);
    }
}
