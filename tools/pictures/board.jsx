// Draws one dashboard with Grafana's own components, from what ask.py was answered (window.ANSWERS) and laid out as the
// dashboard says. What Grafana keeps to itself is done here: which settings a series has, transformations, state timelines.

import React from "react";
import { createRoot } from "react-dom/client";
import { EventBusSrv, FieldType, createTheme, dateTime, getDisplayProcessor } from "@grafana/data";
import { BigValue, GlobalStyles, PanelChrome, PanelContextProvider, ThemeContext, TimeSeries } from "@grafana/ui";
import { TableNG } from "@grafana/ui/unstable";
import "uplot/dist/uPlot.min.css";

const answers = window.ANSWERS;
const theme = createTheme({ colors: { mode: "dark" } });
const quiet = { color: theme.colors.text.secondary };

// What is "five minutes ago" is so at the end of the run, not of the drawing.
Date.now = () => answers.to * 1000;

// Grafana's grid: 24 columns, rows of 30 pixels, 8 between panels.
const [WIDTH, ROW, GAP] = [1600, 30, 8];

// ## Answers to fields

// The panel's settings for the series of that name: defaults, then overrides.
function settings(panel, name) {
  const config = structuredClone(panel.fieldConfig.defaults);
  for (const { matcher, properties } of panel.fieldConfig.overrides) {
    const { id, options } = matcher;
    if (id === "byRegexp" ? !new RegExp(options.slice(1, -1)).test(name) : options !== name) continue;
    for (const { id, value } of properties) {
      const path = id.split(".");
      const last = path.pop();
      path.reduce((at, part) => (at[part] ??= {}), config)[last] = value;
    }
  }
  delete config.links;
  return { displayName: name, ...config };
}

function field(panel, name, type, values, seriesIndex = 0) {
  const numbers = values.filter(Number.isFinite);
  const range = { min: Math.min(...numbers), max: Math.max(...numbers) };
  const made = { name, type, values, config: settings(panel, name), state: { seriesIndex, range } };
  made.display = getDisplayProcessor({ field: made, theme, timeZone: "utc" });
  return made;
}

function nameOf(template, metric, panel) {
  const filled = template.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => metric[label] ?? "");
  return filled || panel.title;
}

// A frame for each series, with null where there was no sample.
function frames(panel, queries) {
  const series = queries.flatMap(({ legend, instant, result }) => result.map((one) => ({ legend, instant, ...one })));
  return series.map(({ legend, instant, metric, values }, index) => {
    const samples = new Map(values.map(([at, value]) => [Math.round(at), Number(value)]));
    const times = instant ? [answers.to] : everyStep();
    const column = times.map((at) => (Number.isNaN(samples.get(at) ?? NaN) ? null : samples.get(at)));
    const time = { name: "Time", type: FieldType.time, values: times.map((at) => at * 1000), config: {} };
    const name = nameOf(legend, metric, panel);
    return { length: times.length, fields: [time, field(panel, name, FieldType.number, column, index)] };
  });
}

function everyStep() {
  const length = Math.floor((answers.to - answers.from) / answers.step) + 1;
  return Array.from({ length }, (_, index) => answers.from + index * answers.step);
}

// The transformations that our tables use: `merge`, then `organize`.
function organized(panel, queries) {
  const { excludeByName, indexByName, renameByName } = panel.transformations.find(({ id }) => id === "organize").options;
  const rows = new Map();
  for (const { refId, result } of queries) {
    for (const { metric, values } of result) {
      const key = JSON.stringify(metric);
      if (!rows.has(key)) rows.set(key, { ...metric });
      rows.get(key)[queries.length > 1 ? `Value #${refId}` : "Value"] = Number(values.at(-1)[1]);
    }
  }
  const names = [...new Set([...rows.values()].flatMap(Object.keys))].filter((name) => !excludeByName[name]);
  names.sort((a, b) => (indexByName[a] ?? 99) - (indexByName[b] ?? 99));
  const fields = names.map((name, index) => {
    const type = name.startsWith("Value") ? FieldType.number : FieldType.string;
    const values = [...rows.values()].map((row) => row[name] ?? null);
    return field(panel, renameByName[name] ?? name, type, values, index);
  });
  return { fields, length: rows.size };
}

// ## Kinds of panels

const context = { eventBus: new EventBusSrv(), sync: () => 0, app: "pictures" };
const timeRange = { from: dateTime(answers.from * 1000), to: dateTime(answers.to * 1000), raw: { from: "", to: "" } };

function Lines({ panel, queries, ...size }) {
  return (
    <PanelContextProvider value={context}>
      <TimeSeries frames={frames(panel, queries)} structureRev={1} timeRange={timeRange} timeZone="utc"
        legend={panel.options.legend} options={panel.options} {...size}>
        {() => null}
      </TimeSeries>
    </PanelContextProvider>
  );
}

function Stat({ panel, queries, ...size }) {
  const [time, values] = frames(panel, queries)[0].fields;
  const last = values.values.findLast((value) => value !== null);
  const area = { ...values, config: { ...values.config, custom: {} } };
  const { graphMode, textMode } = panel.options;
  return (
    <BigValue value={{ ...values.display(last), title: values.name }} theme={theme} colorMode="value" graphMode={graphMode}
      textMode={textMode === "auto" ? "value" : textMode}
      sparkline={graphMode === "area" ? { x: time, y: area } : undefined} {...size} />
  );
}

function StateTimeline({ panel, queries, height }) {
  const all = frames(panel, queries);
  const row = { display: "flex", alignItems: "center", height: Math.min(60, height / all.length) };
  const labels = 7 * Math.max(...all.map(({ fields: [, { config }] }) => config.displayName.length));
  return all.map(({ fields: [, states] }) => (
    <div key={states.name} style={row}>
      <div style={{ width: labels, fontSize: 12, flex: "none" }}>{states.config.displayName}</div>
      {spans(states.values).map(([value, length], index) => {
        const { text, color } = value === null ? {} : states.display(value);
        const look = { background: color, opacity: 0.8, height: "80%", padding: "4px 0", fontSize: 12, color: "black" };
        const shown = panel.options.showValue === "never" ? "" : text;
        return <div key={index} style={{ ...look, flex: `${length} 0 0`, overflow: "hidden", whiteSpace: "nowrap" }}>{shown}</div>;
      })}
    </div>
  ));
}

// [value, how often] of values that follow each other.
function spans(values) {
  const found = [];
  for (const value of values) {
    if (found.at(-1)?.[0] === value) found.at(-1)[1] += 1;
    else found.push([value, 1]);
  }
  return found;
}

function Rows({ panel, queries, ...size }) {
  return <TableNG data={organized(panel, queries)} initialSortBy={panel.options.sortBy} {...size} />;
}

// ## The page

const KINDS = { timeseries: Lines, stat: Stat, "state-timeline": StateTimeline, table: Rows };

function Panel({ panel }) {
  const { x, y, w, h } = panel.gridPos;
  const column = (WIDTH - GAP) / 24;
  const [width, height] = [w * column - GAP, h * (ROW + GAP) - GAP];
  const box = { position: "absolute", left: GAP + x * column, top: y * (ROW + GAP), width, height };
  if (panel.type === "row") {
    return <div style={{ ...box, paddingTop: 6, fontSize: 16 }}>{panel.collapsed && "▸ "}{panel.title}</div>;
  }

  const Kind = KINDS[panel.type];
  const { queries } = answers.panels.find(({ id }) => id === panel.id);
  const empty = queries.every(({ result }) => result.length === 0);
  return (
    <div style={box}>
      <PanelChrome title={panel.title} width={width} height={height}>
        {(width, height) => empty
          ? <div style={{ ...quiet, textAlign: "center", paddingTop: height / 3 }}>No data</div>
          : <Kind panel={panel} queries={queries} width={width} height={height} />}
      </PanelChrome>
    </div>
  );
}

function Board() {
  const { panels } = answers.board;
  const height = Math.max(...panels.map(({ gridPos: { y, h } }) => y + h)) * (ROW + GAP);
  document.title = height + 104; // what draw.py cuts the picture to
  const chosen = ["service", "client"].filter((name) => answers.variables[name]);
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div style={{ height: 46, padding: "12px 8px", fontSize: 20 }}>
        {answers.title}
        {chosen.map((name) => <span key={name} style={{ ...quiet, fontSize: 14, marginLeft: 24 }}>{name} <b>{answers.variables[name]}</b></span>)}
      </div>
      <div style={{ position: "relative", height }}>{panels.map((panel) => <Panel key={panel.id} panel={panel} />)}</div>
      <div style={{ ...quiet, height: 58, padding: 8 }}>{window.LABEL}</div>
    </ThemeContext.Provider>
  );
}

createRoot(document.getElementById("root")).render(<Board />);
