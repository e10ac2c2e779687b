//! One client in detail, as `GET /v1/services/{name}/clients/{client}` shows it.

use watermaster_api::{ClientDetail, ClientView, ExplainView, FieldView};

use super::fetch::FoundClient;
use crate::format::{decimal, printable, seconds};

/// Writes a client as plain text.
pub fn plain(FoundClient { service, detail }: &FoundClient) -> String {
    let limit = detail.limit.map_or("none".to_owned(), |limit| format!("{limit} records in a cycle"));
    let next = match detail.next_admission_seconds {
        None => "is not known".to_owned(),
        Some(0.0) => "goes at once".to_owned(),
        Some(time) => format!("goes in about {}", seconds(time)),
    };
    let ClientDetail { client, admitted_in_cycle, admitted_in_last_cycle, backlog_bytes, .. } = detail;
    let ClientView { name, group, wants, granted, held, default_share, done, oldest_seconds, .. } = client;
    let group = group.as_ref().map(|group| format!(", in the group {}", printable(group))).unwrap_or_default();
    let granted = if *held { "none, it is held".to_owned() } else { granted.to_string() };
    let (share, used) = (decimal(*default_share), decimal(detail.used_ratio * 100.0));
    let mut lines = vec![
        format!("{} of {}{group}", printable(name), printable(service)),
        format!("wants      {wants}"),
        format!("granted    {granted}, default share {share}"),
        format!("admitted   {admitted_in_cycle} in this cycle, {admitted_in_last_cycle} in the last one ({used} %)"),
        format!("own limit  {limit}"),
        format!("backlog    {} records, {backlog_bytes} bytes, oldest {}", done.backlog, seconds(*oldest_seconds)),
        format!("next       a record that is sent now {next}"),
    ];
    if let Some(ExplainView { fields, of_group, .. }) = &detail.explain {
        for (of, fields) in [("", fields), ("of the group: ", of_group)] {
            lines.extend(fields.iter().filter_map(|FieldView { field, value, rule, .. }| {
                let name = printable(&rule.as_ref()?.name);
                Some(format!("rule       {of}{field} {} ({name})", printable(value)))
            }));
        }
    }
    let shadow = client.shadow.rejected_total();
    if shadow > 0 || client.shadow.delayed > 0 {
        let delayed = client.shadow.delayed;
        lines.push(format!("in shadow  {shadow} records would have been rejected, {delayed} delayed"));
    }
    for (title, delays) in [("delays   ", &detail.delays), ("in shadow", &detail.shadow_delays)] {
        if let (Some(p50), Some(p99)) = (delays.p50_seconds, delays.p99_seconds) {
            let (p50, p99, longest) = (seconds(p50), seconds(p99), seconds(delays.longest_seconds));
            lines.push(format!("{title}  {} records, p50 {p50}, p99 {p99}, longest {longest}", delays.records));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_client_is_shown_as_expected() {
        let delays = json!({ "records": 8_462, "p50_seconds": 3.12, "p99_seconds": 4.0, "longest_seconds": 4.2 });
        let none = json!({ "records": 0, "p50_seconds": null, "p99_seconds": null, "longest_seconds": 0.0 });
        let answer = json!({
            "name": "credit-card", "group": "cards", "wants": 6_350, "default_share": 50.0, "granted": 72, "admitted_in_cycle": 31,
            "admitted_in_last_cycle": 72, "used_ratio": 0.36, "limit": null, "backlog": 6_334, "backlog_bytes": 633_400,
            "oldest_seconds": 4.25, "next_admission_seconds": 88.0, "delays": delays, "shadow_delays": none,
            "configured": true, "admitted": 9, "delayed": 8, "rejected": {}, "lent": 0.0, "borrowed": 22.0,
            "shadow": { "admitted": 0, "delayed": 0, "rejected": {}, "backlog": 0 },
        });
        let detail = serde_json::from_value(answer).unwrap();
        let expected = "\
credit-card of kyc, in the group cards
wants      6350
granted    72, default share 50
admitted   31 in this cycle, 72 in the last one (36 %)
own limit  none
backlog    6334 records, 633400 bytes, oldest 4.2 s
next       a record that is sent now goes in about 88 s
delays     8462 records, p50 3.1 s, p99 4 s, longest 4.2 s";
        let mut found = FoundClient { service: "kyc".to_owned(), detail };
        assert_eq!(plain(&found), expected);

        let rule = json!({ "name": "night", "origin": "run_time", "priority": 0, "value": "true" });
        let none = json!({ "field": "weight", "value": "1", "rule": null, "why": "no rule sets it", "losers": [] });
        let hold = json!({ "field": "hold", "value": "true", "rule": rule, "why": "no other", "losers": [] });
        let explain = json!({ "at": "", "client": "credit-card", "group": "cards", "fields": [none, hold],
            "of_group": [hold], "of_service": [] });
        found.detail.explain = Some(serde_json::from_value(explain).unwrap());
        found.detail.client.held = true;
        let text = plain(&found);
        for line in ["granted    none, it is held, default share 50", "rule       hold true (night)"] {
            assert!(text.lines().any(|shown| shown == line), "{text}");
        }
        assert!(text.contains("\nrule       of the group: hold true (night)\n") && !text.contains("weight"), "{text}");
    }
}
