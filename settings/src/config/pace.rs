//! `[service.pace]`: the search for the capacity.

use std::time::Duration;

use humantime::format_duration;
use watermaster_core::pace::{Control, PaceParams};

use super::values;
use crate::model::PaceSettings;
use crate::read_struct;
use crate::reader::Section;

/// Polls in the time between two changes of the estimate, at least.
const MIN_POLLS: u32 = 5;

/// Reads the consumer group of the target, which `[service.pace]` may name, too.
pub fn consumer_group(section: &Section<'_>) -> Option<Option<String>> {
    let group = section.optional("consumer_group", values::consumer_group)?;
    let pace = section.table("pace");
    if !pace.is_written() {
        return Some(group);
    }
    match (pace.optional("group", values::consumer_group)?, group) {
        (None, None) => {
            pace.refuse("group", "is missing", "the consumer group that reads the target, here or as consumer_group");
            None
        }
        (Some(of_pace), Some(group)) if of_pace != group => {
            pace.refuse("group", format!("is {of_pace:?}, but consumer_group is {group:?}"), "one group for both");
            None
        }
        (of_pace, group) => Some(group.or(of_pace)),
    }
}

/// Reads the bound on open records, which only the offsets of a consumer group tell.
pub fn max_open(section: &Section<'_>) -> Option<Option<u64>> {
    let max_open = section.optional_value("max_open")?;
    if max_open.is_some() && consumer_group(section).is_some_and(|group| group.is_none()) {
        section.refuse("max_open", "is set without consumer_group", "the consumer group that reads the target");
        return None;
    }
    if max_open.is_some() {
        check_targets(section);
    }
    Some(max_open)
}

/// Reads the section, if it is written.
pub fn pace(service: &Section<'_>) -> Option<Option<PaceSettings>> {
    let section = service.table("pace");
    if !section.is_written() {
        return Some(None);
    }
    let (capacity, cycle): (Option<u64>, Option<Duration>) = (service.get("capacity"), service.get("cycle"));
    let control: Option<Control> = section.get("control");
    let least = service.optional_value("capacity_min").flatten().unwrap_or(1);
    let floor: Option<u64> = section.derived("floor", capacity.map(|capacity| (capacity / 10).max(least)));
    let ceiling = ceiling(&section, control);
    check_bounds(&section, capacity, floor, ceiling.flatten());
    check_targets(service);
    let interval: Option<Duration> = section.get("interval");
    let poll = poll(&section, interval);
    // Without enforcement nothing is held back, so that there is nothing to apply.
    let control = control.zip(service.get("enforce"));
    let params = read_struct!(PaceParams {
        [section => max_behind, signal_timeout]
        capacity, floor, cycle, interval,
        control: control.map(|(control, enforce): (_, bool)| if enforce { control } else { Control::Observe }),
        // An observed capacity has no bounds.
        ceiling: ceiling.and_then(|ceiling| ceiling.or(capacity)),
    });
    read_struct!(PaceSettings { params, poll }).map(Some)
}

/// The search and the bound on open records follow the commits in one topic.
fn check_targets(service: &Section<'_>) {
    let target = service.text("target", values::topic);
    for source in service.tables("source") {
        if let Some(own) = source.optional("target", values::topic).flatten().filter(|own| target.as_ref() != Some(own))
        {
            let problem = format!("is {own:?}, but max_open and [service.pace] follow one target only");
            source.refuse("target", problem, "the target of the service, or neither of both");
        }
    }
}

/// Reads the ceiling, without which no limit may rise.
fn ceiling(section: &Section<'_>, control: Option<Control>) -> Option<Option<u64>> {
    let ceiling: Option<u64> = section.optional_value("ceiling")?;
    if ceiling.is_none() && control == Some(Control::Apply) {
        section.refuse("ceiling", "is missing", "with control = \"apply\", the most records in any window of a cycle");
        return None;
    }
    Some(ceiling)
}

fn check_bounds(section: &Section<'_>, capacity: Option<u64>, floor: Option<u64>, ceiling: Option<u64>) {
    let Some(capacity) = capacity else { return };
    if let Some(floor) = floor.filter(|floor| *floor > capacity) {
        section.refuse("floor", format!("is {floor}, above the capacity"), format!("{capacity} or less"));
    }
    if let Some(ceiling) = ceiling.filter(|ceiling| *ceiling < capacity) {
        section.refuse("ceiling", format!("is {ceiling}, below the capacity"), format!("{capacity} or more"));
    }
}

fn poll(section: &Section<'_>, interval: Option<Duration>) -> Option<Duration> {
    let poll: Duration = section.get("poll")?;
    let longest = interval? / MIN_POLLS;
    if poll > longest {
        let problem = format!("is \"{}\", above a fifth of the interval", format_duration(poll));
        section.refuse("poll", problem, format!("{} or less", format_duration(longest)));
        return None;
    }
    Some(poll)
}
