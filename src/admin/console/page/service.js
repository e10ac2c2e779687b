// One service: who wants more than its share, who lends, who waits, and since when.

import { card, h, id, listed, put, set, setText } from './dom.js';
import { Chart, Palette, TREND_S, isSteady, layers, rates, trend } from './chart.js';
import { Flow } from './flow.js';
import { ClientTable } from './table.js';
import { hrefOf, instances, state, used } from './overview.js';
import { count, decimal, perCycle, plural, records, seconds, sum } from './format.js';

/** Admissions are shown as their mean over at least so many seconds, because one look comes a little early or late. */
const SMOOTH_S = 3;

function backlogSays(samples, backlog, now) {
  const { enforce, held, capacity, cycle_seconds: cycle } = now;
  if (backlog === 0) return enforce ? 'No record is delayed.' : 'No record would be delayed.';
  const rise = trend(samples);
  if (rise === null) return 'Too few seconds are known to say how it moves.';
  if (isSteady(rise, backlog)) return 'It neither grows nor shrinks.';
  const above = `${count(Math.ceil(capacity + rise * cycle))} ${perCycle(cycle)}`;
  // Where the capacity is not used up, a limit may be what delays.
  const isFull = addUp(samples, now) && now.window_admitted > 0.9 * capacity;
  const cure = isFull ? ` A capacity above ${above} would shrink it.` : '';
  const why = held.length ? 'a rule holds a client.' : `more is sent than may go.${cure}`;
  if (rise > 0) return `It grows by ${records(Math.round(rise))} a second: ${why}`;
  return `It shrinks by ${records(Math.round(-rise))} a second, so it is gone in about ${seconds(backlog / -rise)}.`;
}

const their = (n) => (n === 1 ? 'its' : 'their');

/** Tells whether all records of a service are delayed or admitted, and here: then its figures add up. */
const addUp = (samples, { mode, enforce, group }) => mode === 'shape' && enforce && (group.members ?? []).length <= 1
  && samples.every((sample) => sample.at_ms < samples.at(-1).at_ms - 1000 * TREND_S || !sample.rejected);

/** Returns what a client sends in a second: its admissions and the rise of its backlog; null if that is not known. */
function sends(samples, client, now) {
  const figure = (at) => ({ clients }) => clients.get(client)?.[at];
  const rise = trend(samples, figure(2));
  if (rise === null || !addUp(samples, now)) return null;
  const [first, ...last] = samples.filter((sample) => sample.at_ms >= samples.at(-1).at_ms - 1000 * TREND_S);
  const passed = (samples.at(-1).at_ms - first.at_ms) / 1000;
  const admitted = sum(last.map((sample) => figure(0)(sample) ?? NaN)) / passed;
  return Number.isNaN(admitted) ? null : Math.max(0, rise + admitted);
}

function floods(link, samples, now) {
  const { demands, held, held_clients: all, known_clients: known, within_share: within, cycle_seconds: cycle } = now;
  const holds = all > 0 && [...listed(held, all), ` ${all === 1 ? 'is' : 'are'} held by a rule. `];
  if (demands.length === 0 && holds) return ['–', holds, [link(held[0]), 'Release it…']];
  if (demands.length === 0) return ['–', 'No client wants more than its share.'];
  const [{ client, wants, default_share: share }, ...rest] = demands;
  const factor = wants >= 10 * share ? count(wants / share) : decimal(wants / share);
  const times = share >= 1 && wants / share >= 1.05 ? `, ${factor} times its share of ${count(share)}` : '';
  const others = Math.max(rest.length, known - within - all - 1);
  const rate = sends(samples, client, now);
  const sent = rate === null ? '' : ` It sends about ${records(Math.round(rate * cycle))} ${perCycle(cycle)}.`;
  return [id(client), [`It wants ${records(wants)} in this cycle, with its backlog${times}.${sent} `,
    others > 0 && `${plural(others, 'other client wants', 'other clients want')} more than ${their(others)} share. `,
    holds], [link(client), 'Hold or limit it…']];
}

function within({ within_share: clients, waits_within_share: waits }) {
  const subject = `${plural(clients, 'client')} within ${their(clients)} share`;
  if (!waits) return ['0 s', `${subject}. None of their records waits.`];
  return [seconds(waits.seconds), [`The longest wait among the ${subject}: `, id(waits.client), '.']];
}

/** In mode reject little is delayed: shows what is rejected instead. */
function rejections(samples, { done, shadow, enforce }) {
  const { rejected: counts } = enforce ? done : shadow;
  const [most] = Object.entries(counts).sort((a, b) => b[1] - a[1]);
  const rate = rates(samples, TREND_S, (sample) => sample.rejected).at(-1) ?? 0;
  const all = sum(Object.values(counts));
  const none = `No record ${enforce ? 'was' : 'would have been'} rejected.`;
  const since = `${enforce ? '' : 'would have been rejected '}since the start`;
  return [`${count(Math.round(rate))} a second`, all === 0 ? none
    : [`${records(all)} ${since}, most of them as `, h('span', { class: 'code' }, most[0]), '.']];
}

class Tile {
  value = h('p', { class: 'big' });
  #text = h('span');
  /** The link stays, so that it can be clicked and keeps the focus while the text around it changes. */
  #link = h('a', { hidden: true });
  says = h('p', {}, this.#text, this.#link);

  constructor(title) {
    this.title = h('h3', {}, title);
    this.element = h('section', { class: 'card tile' }, this.title, this.value, this.says);
  }

  show(value, says, [href, text] = []) {
    put(this.value, h('b', {}, value));
    put(this.#text, says);
    set(this.#link, { href, hidden: !href });
    setText(this.#link, text ?? '');
  }
}

/** The links between the views of a service. */
export function tabs(name, current) {
  const views = [['', 'Service'], ['dead-letters', 'Dead letters'], ['pace', 'Pace'], ['rules', 'Rules']];
  return h('nav', { class: 'tabs', 'aria-label': `Views of ${name}` }, views.map(([view, title]) =>
    h('a', { href: hrefOf('s', name, ...(view ? [view] : [])), 'aria-current': current === view && 'page' }, title)));
}

/** Shows a service. */
export function serviceView(service) {
  const link = (client) => hrefOf('s', service.name, 'clients', client);
  const palette = service.palette ??= new Palette();
  const titles = ['Capacity in use', 'Wants most', 'Waits within their share', 'Delayed'];
  const tiles = titles.map((title) => new Tile(title));
  const [capacity, flood, share, backlog] = tiles;
  const [head, usedBar, members] = [h('div'), h('div'), h('div')];
  capacity.says.before(usedBar);
  const admitted = new Chart({ title: 'Admitted by client, records a second', unit: 'records a second' });
  const delayed = new Chart({ title: 'Delayed records by client', unit: 'delayed records', height: 150 });
  const flow = new Flow((client) => h('a', { href: link(client) }, id(client)));
  const table = new ClientTable(service, link);
  const element = h('div', {}, h('h1', {}, service.name), head, tabs(service.name, ''),
    h('div', { class: 'tiles' }, tiles.map((tile) => tile.element)), admitted.element,
    h('div', { class: 'pair' }, delayed.element, flow.element), table.element, card('Instances', members));

  function show({ now, samples }) {
    const { cycle_seconds: cycle, enforce } = now;
    put(head, state(now));
    const times = samples.map((sample) => sample.at_ms);
    const stack = layers(samples, palette, 0, (sample) => sample.admitted, Math.max(SMOOTH_S, Math.min(cycle, 30)));
    admitted.update(times.slice(1), stack,
      { name: 'capacity', values: samples.slice(1).map((sample) => sample.capacity / cycle) });
    const rejects = now.mode === 'reject';
    setText(backlog.title, rejects ? 'Rejected' : 'Delayed');
    if (rejects) delayed.call('Rejected records a second', 'rejected records a second');
    else delayed.call('Delayed records by client', 'delayed records');
    const rejected = rejects && rates(samples, SMOOTH_S, (sample) => sample.rejected);
    if (rejects) delayed.update(times.slice(1), [{ name: null, colour: 'c1', values: rejected }]);
    else delayed.update(times, layers(samples, palette, 2, (sample) => sample.backlog, null));
    capacity.show(`${count(now.window_admitted)} of ${count(now.capacity)}`,
      `records ${perCycle(cycle)}; never more than ${count(now.window_admitted_max)} since the start.`);
    put(usedBar, used(now, samples, palette));
    flood.show(...floods(link, samples, now));
    share.show(...within(now));
    const { backlog: all } = enforce ? now.done : now.shadow;
    if (rejects) backlog.show(...rejections(samples, now));
    else backlog.show(records(all), backlogSays(samples, all, now));
    flow.update(now, palette);
    put(members, instances(now));
    table.refresh();
  }
  return { title: service.name, element, show };
}

