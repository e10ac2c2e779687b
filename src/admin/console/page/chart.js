// A stacked chart of the last 15 minutes, by client, and the colours of clients.

import { h, svg, id, keyed, put, set, setText } from './dom.js';
import { count, sum, time } from './format.js';

const COLOURS = 8;
const MARGIN = { left: 52, right: 10, top: 12, bottom: 22 };
const STEPS_S = [5, 10, 15, 30, 60, 120, 300];

/** Gives the clients that were admitted most a colour each, for as long as they are among them. */
export class Palette {
  /** The client of each colour. */
  #clients = Array(COLOURS).fill(undefined);

  /** Returns the clients that have a colour now, by name. */
  choose(samples) {
    const sums = new Map();
    for (const [name, [admitted]] of samples.flatMap(({ clients }) => [...clients])) {
      sums.set(name, (sums.get(name) ?? 0) + admitted + 1e-6);
    }
    const most = [...sums].sort((a, b) => b[1] - a[1]).slice(0, COLOURS).map(([name]) => name).sort();
    this.#clients = this.#clients.map((name) => (most.includes(name) ? name : undefined));
    for (const name of most) if (!this.#clients.includes(name)) this.#clients[this.#clients.indexOf(undefined)] = name;
    return most;
  }

  /** Returns the class of a client's colour. */
  of(name) {
    const colour = this.#clients.indexOf(name);
    return colour < 0 ? 'others' : `c${colour}`;
  }
}

/** The seconds over which the rise or fall of the backlog is measured: less once the last ones clearly differ. */
export const TREND_S = 15;

/** Returns the rise of a backlog in records a second; null without enough samples that have it. `chance`: arrivals by
 * chance move a backlog by about the root of their number. */
export function trend(samples, of = (sample) => sample.backlog) {
  if (samples.length === 0) return null;
  const [whole, late] = [TREND_S, 5].map((time) => {
    const all = samples.filter((sample) => sample.at_ms >= samples.at(-1).at_ms - 1000 * time);
    const passed = (all.at(-1).at_ms - all[0].at_ms) / 1000;
    const chance = Math.sqrt(sum(all.map(({ admitted }) => admitted))) / passed;
    return { rise: passed >= 3.5 ? (of(all.at(-1)) - of(all[0])) / passed : NaN, chance };
  });
  const { rise } = Math.abs(late.rise - whole.rise) > Math.max(3 * late.chance, Math.abs(whole.rise) / 2) ? late : whole;
  return Number.isNaN(rise) ? null : rise;
}

/** Tells whether a backlog neither grows nor shrinks: it would take more than an hour to double, or to go. */
export const isSteady = (rise, backlog) => Math.abs(rise) < Math.max(0.5, backlog / 3600);

/** Returns a figure of each sample but the first as the mean rate of the seconds before it. `of` takes a sample and the one
 * before; where it returns NaN, there is a gap. */
export function rates(samples, window, of) {
  let from = 0;
  let total = 0;
  return samples.slice(1).map((sample, at) => {
    total += of(sample, samples[at]);
    while (from < at && sample.at_ms - samples[from].at_ms > window * 1000 + 500) {
      total -= of(samples[++from], samples[from - 1]);
    }
    const rate = Math.max(0, (1000 * total) / Math.max(1, sample.at_ms - samples[from].at_ms));
    if (Number.isNaN(rate)) [from, total] = [at + 1, 0];
    return rate;
  });
}

/** Returns a layer for each client with a colour, and one for all others. `window`: that of rates; null for levels. */
export function layers(samples, palette, figure, total, window) {
  const values = (of) => (window === null ? samples.map(of) : rates(samples, window, of));
  const named = palette.choose(samples).map((name) => ({
    name, colour: palette.of(name), values: values(({ clients }) => clients.get(name)?.[figure] ?? 0),
  }));
  const totals = values(total);
  const others = totals.map((all, at) => Math.max(0, all - sum(named.map((layer) => layer.values[at]))));
  return sum(others) > sum(totals) / 100 ? [...named, { name: null, colour: 'others', values: others }] : named;
}

/** Returns round values from 0 to at least `max`. */
function marks(max) {
  const unit = 10 ** Math.floor(Math.log10(max / 4));
  const step = Math.max(1, [1, 2, 5, 10].map((factor) => factor * unit).find((one) => 4 * one >= max));
  return [...Array(Math.ceil(max / step) + 1).keys()].map((at) => at * step);
}

/** Makes an entry of a legend: a colour and the client that has it, or another label. */
export function legendEntry({ colour, client, label }, ...more) {
  return h('li', {}, h('i', { class: `key ${colour}`, 'aria-hidden': 'true' }), client ? id(client) : label, more);
}

/** The chart. `unit` follows each number. */
export class Chart {
  #plot = svg('g');
  #axes = svg('g', { class: 'axes', 'aria-hidden': 'true' });
  #cursor = svg('line', { class: 'cursor', hidden: true });
  #svg = svg('svg', { 'aria-hidden': 'true' }, this.#axes, this.#plot, this.#cursor);
  #legend = h('ul', { class: 'legend' });
  #tip = h('div', { class: 'tip', hidden: true, role: 'status' });
  #data = null;
  #at = null;

  constructor({ title, unit, height = 220 }) {
    this.height = height;
    this.area = h('div', {
      class: 'plot', tabindex: '0', role: 'group',
      onpointermove: (event) => this.#point(event.offsetX), onpointerleave: () => this.#show(null),
      onkeydown: (event) => this.#key(event), onblur: () => this.#show(null),
    }, this.#svg, this.#tip);
    this.title = h('h3');
    this.element = h('section', { class: 'card chart' }, this.title, this.area, this.#legend);
    this.call(title, unit);
    new ResizeObserver(() => this.#draw()).observe(this.area);
  }

  /** Names what the chart shows, and the unit of its numbers. */
  call(title, unit) {
    this.unit = unit;
    setText(this.title, title);
    set(this.area, { 'aria-label': `${title}. The arrow keys read the figures of one time.` });
  }

  /** Shows layers over times; `line` is drawn above them. */
  update(times, stack, line = null) {
    this.#data = times.length > 1 ? { times, stack, line } : null;
    this.#draw();
  }

  #scales() {
    const { times, stack, line } = this.#data;
    const width = Math.max(120, this.area.clientWidth);
    const sums = times.map((_, at) => sum(stack.map(({ values }) => values[at] || 0)));
    const heights = marks(1.05 * Math.max(1, ...sums, ...(line?.values ?? []).map((value) => value || 0)));
    const top = heights.at(-1);
    const end = times.at(-1);
    const start = Math.min(times[0], end - 30_000);
    const x = (ms) => MARGIN.left + ((ms - start) / (end - start)) * (width - MARGIN.left - MARGIN.right);
    const y = (value) => this.height - MARGIN.bottom - (value / top) * (this.height - MARGIN.top - MARGIN.bottom);
    return { width, heights, start, end, x, y };
  }

  #draw() {
    if (!this.#data || !this.area.clientWidth) return;
    const { times, stack, line } = this.#data;
    const { width, heights, start, end, x, y } = this.#scales();
    set(this.#svg, { viewBox: `0 0 ${width} ${this.height}`, height: this.height });
    const every = Math.ceil(times.length / (width / 2));
    const shown = [...times.keys()].filter((at) => (times.length - 1 - at) % every === 0);
    /** Draws what is between two gaps, each time. */
    const path = (values, of) => {
      const parts = [[]];
      for (const at of shown) if (values[at] >= 0) parts.at(-1).push(at); else parts.push([]);
      return parts.filter((part) => part.length).map((part) => `M${of(part).join('L')}`).join('');
    };
    const trace = (values, part) => part.map((at) => `${x(times[at]).toFixed(1)},${y(values[at]).toFixed(1)}`);
    let floor = times.map(() => 0);
    const paths = stack.map(({ colour, values }) => {
      const bottom = floor;
      floor = floor.map((height, at) => height + (values[at] || 0));
      const area = (part) => [...trace(floor, part), `${trace(bottom, part).reverse().join('L')}Z`];
      return svg('path', { class: `layer ${colour}`, d: path(values, area) });
    });
    if (line) paths.push(svg('path', { class: 'limit', d: path(line.values, (part) => trace(line.values, part)) }));
    const base = svg('line', { class: 'base', x1: MARGIN.left, x2: width - MARGIN.right, y1: y(0), y2: y(0) });
    put(this.#plot, paths, base);
    const lines = heights.map((value) => [
      svg('line', { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
      svg('text', { x: MARGIN.left - 6, y: y(value) + 4, 'text-anchor': 'end' }, count(value)),
    ]);
    const step = 1000 * (STEPS_S.find((s) => (1000 * s * (width - 60)) / (end - start) > 90) ?? 300);
    const ticks = [];
    for (let at = Math.ceil(start / step) * step; at <= end; at += step) {
      if (x(at) < MARGIN.left + 20 || x(at) > width - 34) continue;
      ticks.push(svg('text', { x: x(at), y: this.height - 6, 'text-anchor': 'middle' }, time(at)));
    }
    put(this.#axes, lines, ticks);
    keyed(this.#legend, this.#entries(), ({ colour, label }) => `${colour} ${label}`, legendEntry);
    if (this.#at !== null) this.#show(this.#at);
  }

  /** Returns the layers and the line above them, as the legend and the tip show them. */
  #entries() {
    const { stack, line } = this.#data;
    const others = stack.length > 1 ? 'all others' : 'all clients';
    const entries = stack.map(({ name, ...layer }) => ({ ...layer, client: name, label: name ?? others }));
    return line ? [...entries, { ...line, colour: 'limit', label: line.name }] : entries;
  }

  #point(offset) {
    if (!this.#data) return;
    const { x } = this.#scales();
    const { times } = this.#data;
    const away = (at) => Math.abs(x(times[at]) - offset);
    this.#show(times.reduce((best, _, at) => (away(at) < away(best) ? at : best), 0));
  }

  #key(event) {
    if (!this.#data || !['ArrowLeft', 'ArrowRight', 'Escape'].includes(event.key)) return;
    event.preventDefault();
    if (event.key === 'Escape') this.#show(null);
    else this.#show((this.#at ?? this.#data.times.length) + (event.key === 'ArrowLeft' ? -1 : 1));
  }

  #show(at) {
    this.#at = at;
    this.#tip.hidden = at === null;
    set(this.#cursor, { hidden: at === null });
    if (at === null || !this.#data) return;
    const { times } = this.#data;
    const { width, x } = this.#scales();
    at = this.#at = Math.max(0, Math.min(at, times.length - 1));
    const place = x(times[at]);
    set(this.#cursor, { x1: place, x2: place, y1: MARGIN.top, y2: this.height - MARGIN.bottom });
    const known = this.#entries().filter(({ values }) => values[at] >= 0);
    const rows = known.map((entry) => legendEntry(entry, h('b', {}, count(entry.values[at]))));
    put(this.#tip, h('p', {}, `${time(times[at])}, ${this.unit}`), h('ul', {}, rows.reverse()));
    this.#tip.style.transform = `translateX(${place > width / 2 ? place - this.#tip.offsetWidth - 12 : place + 12}px)`;
  }
}

/** A bar of a whole, by client. Parts that do not fill it leave the rest empty. */
export function bar(parts, whole, label) {
  let from = 0;
  const pieces = parts.map(({ colour, value }) => {
    // A small gap sets the parts apart.
    const width = Math.max(0, (1000 * Math.min(value, whole - from)) / whole - 2);
    const piece = svg('rect', { class: colour, x: (1000 * from) / whole, width, height: 10 });
    from += value;
    return piece;
  });
  const view = { viewBox: '0 0 1000 10', preserveAspectRatio: 'none' };
  return svg('svg', { class: 'bar', ...view, role: 'img', 'aria-label': label }, pieces);
}

