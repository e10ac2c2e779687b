//! Saves what the panels' queries answered; the module above says in which form.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::placed::needs;
use super::prometheus::Prometheus;
use super::question::Run;
use super::stage::SERVICES;
use crate::support::board::{Board, Panel, text};

/// Writes all boards below this folder, which is made if need be.
pub fn save(folder: &Path, boards: &[Board], prometheus: &Prometheus, run: Run) {
    for board in boards {
        write(folder, board, &board_of(board, None, prometheus, run));
        for service in SERVICES {
            write(&folder.join(service), board, &board_of(board, Some(service), prometheus, run));
        }
    }
}

fn write(folder: &Path, board: &Board, json: &Value) {
    fs::create_dir_all(folder).unwrap_or_else(|why| panic!("{}: {why}", folder.display()));
    let file = folder.join(format!("{}.json", board.uid()));
    fs::write(&file, format!("{json:#}\n")).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
}

fn board_of(board: &Board, service: Option<&str>, prometheus: &Prometheus, run: Run) -> Value {
    let panels = board.panels().map(|panel| {
        let needs = needs(board.uid(), panel.id(), panel.targets().count()).expect("every panel is placed");
        let services = needs.iter().map(|needs| service.unwrap_or(needs.service()));
        panel_of(&panel, services, prometheus, run)
    });
    json!({ "dashboard": board.uid(), "title": board.json["title"], "panels": panels.collect::<Value>() })
}

fn panel_of<'s>(
    panel: &Panel<'_>,
    services: impl Iterator<Item = &'s str>,
    prometheus: &Prometheus,
    run: Run,
) -> Value {
    let queries = panel.targets().zip(services).map(|(target, service)| {
        let expression = run.substitute(text(&target["expr"]), service);
        let range = run.range();
        let mut parameters = vec![("query", expression.as_str())];
        parameters.extend(range.iter().map(|(name, value)| (*name, value.as_str())));
        let answer = prometheus.ask("query_range", &parameters).unwrap_or_else(|why| panic!("{expression}: {why}"));
        json!({
            "refId": target["refId"],
            "expr": expression,
            "service": service,
            "legend": text(&target["legendFormat"]),
            "instant": target["instant"] == true,
            "result": answer["result"],
        })
    });
    let queries: Value = queries.collect();
    let (json, unit) = (panel.json, &panel.json["fieldConfig"]["defaults"]["unit"]);
    json!({ "id": panel.id(), "title": panel.title(), "type": json["type"], "unit": unit, "queries": queries })
}
