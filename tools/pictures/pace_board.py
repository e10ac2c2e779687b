"""Prints the dashboard of docs/images/pace.png: two services with the same consumer and campaign, one of them with pace.

  pace_board.py
"""

import json
import pathlib

SERVICE = pathlib.Path(__file__).parent.parent.parent / "grafana/dashboards/service.json"
TAKES = ("the service takes", "text", 'worker_rate{topic="paced.requests"}')


def line(name, colour):
    style = [{"id": "color", "value": {"fixedColor": colour, "mode": "fixed"}}]
    if name == TAKES[0]:
        style.append({"id": "custom.lineStyle", "value": {"dash": [10, 6], "fill": "dash"}})
    return {"matcher": {"id": "byName", "options": name}, "properties": style}


def lines(number, title, unit, label, calcs, *queries):
    """A panel of lines: each query is a name, a colour and an expression."""
    return {
        "id": number, "type": "timeseries", "title": title, "gridPos": place(number),
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"axisLabel": label, "lineWidth": 2}},
                        "overrides": [line(name, colour) for name, colour, _ in queries]},
        "options": {"legend": {"calcs": calcs, "displayMode": "table", "placement": "bottom", "showLegend": True}},
        "targets": [{"refId": name, "expr": expression, "legendFormat": name} for name, _, expression in queries],
    }


def place(number):
    return {"x": 12 * (number % 2), "y": 9 * (number // 2), "w": 12, "h": 9}


def both(expression):
    """The two services, by their topics."""
    return [(name, colour, expression.replace("TOPIC", f'topic="{topic}.requests"'))
            for name, colour, topic in (("with a fixed limit", "red", "fixed"), ("with pace", "green", "paced"))]


def limit(name, colour, service):
    return name, colour, f'watermaster_capacity_units{{service="{service}"}}'


def states():
    rows = json.loads(SERVICE.read_text())["panels"]
    panel = next(each for row in rows for each in row.get("panels", []) if each["title"] == "State of the search")
    target = {"refId": "A", "expr": 'watermaster_pace_state{service="paced"} == 1', "legendFormat": "{{state}}"}
    return panel | {"id": 3, "title": "State of the search, with pace", "gridPos": place(3), "targets": [target]}


panels = [
    lines(0, "Limits, and what the service takes", "short", "records a second", ["min", "max"], TAKES,
          limit("fixed limit", "red", "fixed"), limit("limit with pace", "green", "paced")),
    lines(1, "Lag of the service: time from the target topic until a record is finished", "none", "seconds", ["max", "lastNotNull"],
          *both("worker_lag_seconds{TOPIC}")),
    lines(2, "Records that the service finishes", "short", "records a second", ["mean", "lastNotNull"], TAKES,
          *both("rate(worker_finished_total{TOPIC}[$__rate_interval])")),
    states(),
]
print(json.dumps({"uid": "pictures-pace", "templating": {"list": []}, "panels": panels,
                  "title": "A campaign, while the service takes half for two minutes"}))
