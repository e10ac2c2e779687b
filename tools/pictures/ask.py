"""Asks a Prometheus what the panels of a Grafana dashboard show, and prints it as JSON for board.html.

  ask.py PROMETHEUS BOARD.json FROM TO STEP [VARIABLE=VALUE...]

FROM and TO are in seconds since 1970, STEP is in seconds, as are the scrapes of that Prometheus. Prints
{"dashboard": uid, "title", "from", "to", "step", "variables", "board": the dashboard itself,
"panels": [{"id", "title", "queries": [{"refId", "expr", "legend", "instant", "result": items of a range query}]}]}.
"""

import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request


def get(prometheus, path, **parameters):
    url = f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as problem:
        sys.exit(f"{parameters['query']}: {problem.read().decode()}")


def filled(expression, variables):
    """The expression with its variables' values, be they written $name or ${name}."""
    pattern = re.compile("|".join(rf"\$\{{{name}\}}|\${name}\b" for name in variables))
    return pattern.sub(lambda found: variables[found[0].strip("${}")], expression)


def ask(prometheus, target, variables, start, end, step):
    expression = filled(target["expr"], variables)
    instant = target.get("instant", False)
    if instant:
        result = get(prometheus, "query", query=expression, time=end)
        result = [{"metric": item["metric"], "values": [item["value"]]} for item in result]
    else:
        result = get(prometheus, "query_range", query=expression, start=start, end=end, step=step)
    legend = target.get("legendFormat") or ""
    return {"refId": target["refId"], "expr": expression, "legend": filled(legend, variables), "instant": instant,
            "result": result}


def main():
    if len(sys.argv) < 6 or "--help" in sys.argv:
        sys.exit(__doc__)
    prometheus, path, *times = sys.argv[1:6]
    start, end, step = (int(each) for each in times)
    board = json.load(open(path))
    variables = {variable["name"]: variable.get("allValue") or "" for variable in board["templating"]["list"]}
    # As Grafana does: a rate needs four scrapes, so that one may be missing.
    variables |= {"__rate_interval": f"{4 * step}s", "__interval": f"{step}s", "__range": f"{end - start}s"}
    variables |= dict(each.split("=", 1) for each in sys.argv[6:])

    panels = []
    # A collapsed row contains its panels.
    for panel in [each for row in board["panels"] for each in (row, *row.get("panels", []))]:
        panel["title"] = filled(panel.get("title", ""), variables)
        queries = [ask(prometheus, target, variables, start, end, step) for target in panel.get("targets", [])]
        panels.append({"id": panel["id"], "title": panel["title"], "queries": queries})
    json.dump({"dashboard": board["uid"], "title": board["title"], "from": start, "to": end, "step": step,
               "variables": variables, "board": board, "panels": panels}, sys.stdout)


if __name__ == "__main__":
    main()
