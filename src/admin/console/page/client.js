// One client: its figures now, how each comes about, and the keys of the configuration behind them.

import { h, id, facts, keyed } from './dom.js';
import { get, poll } from './api.js';
import { Chart, Palette, layers } from './chart.js';
import { hrefOf } from './overview.js';
import { bytes, count, decimal, perCycle, percent, records, seconds } from './format.js';
import { reasons } from './letters.js';

const own = (object, key) => (object && Object.hasOwn(object, key) ? object[key] : undefined);

/** Returns the keys that concern a client, each with its value and the place where it is written. */
function settings(config, service, name) {
  const table = config.service.find((one) => one.name.value === service);
  if (!table) return [];
  const client = own(table.client, name);
  const limit = own(client, 'limit');
  const key = (text, setting, says) => setting && { text, setting, says };
  const shape = own(table, 'shape');
  return [
    client ? key(`client.${name}.weight`, client.weight, 'Its share is in proportion to its weight.')
      : key('unlisted_weight', table.unlisted_weight, 'It has no table of its own: all such clients together weigh at most so much.'),
    ...['rate', 'per', 'burst'].map((part) => key(`client.${name}.limit.${part}`, own(limit, part), 'Its own limit, whatever is free.')),
    key('capacity', table.capacity, 'Records that the service takes in a cycle.'),
    key('reservation', table.reservation, 'The part of its share that it never lends.'),
    key('lending', table.lending, 'How lent records are shared among borrowers.'),
    key('shape.queue_capacity', own(shape, 'queue_capacity'), 'The most records of it that wait in memory.'),
    key('shape.max_delay', own(shape, 'max_delay'), 'A record that waits longer is rejected as expired.'),
  ].filter(Boolean);
}

const shown = (value) => (value === null || value === undefined ? 'not set' : Array.isArray(value) ? value.join(', ') : String(value));

/** Makes the table of settings with their origins. */
export function settingsTable(rows) {
  return h('table', { class: 'plain' }, h('thead', {}, h('tr', {}, ['Key', 'Value', 'Written in', 'Meaning'].map((name) => h('th', { scope: 'col' }, name)))),
    h('tbody', {}, rows.map(({ text, setting, says }) => h('tr', {},
      h('th', { scope: 'row' }, h('bdi', { class: 'code' }, text)), h('td', {}, h('bdi', {}, shown(setting.value))), h('td', {}, h('bdi', {}, setting.origin === 'default' ? 'nowhere: the default' : setting.origin)), h('td', {}, says)))));
}

function figures(client, now) {
  const { cycle_seconds: cycle, capacity, mode, enforce } = now;
  const decided = enforce ? client : client.shadow;
  const delays = enforce ? client.delays : client.shadow_delays;
  const would = enforce ? '' : ' (shadow mode: it would be so)';
  const granted = client.borrowed >= 0.5 ? `its share and ${count(Math.round(client.borrowed))} that others leave`
    : client.lent >= 0.5 ? `its share less ${count(Math.round(client.lent))} that it lends, because it wants less` : 'its share';
  const next = client.next_admission_seconds;
  return [
    ['Wants', records(client.wants), 'What waited when the cycle began, and what came first in it; or that of the last cycle, if it is more.'],
    ['Default share', records(client.default_share), `${percent(client.default_share / capacity)} of the capacity of ${count(capacity)} ${perCycle(cycle)}, by weight.`],
    ['Granted', records(client.granted), `For this cycle: ${granted}.`],
    ['Own limit', client.limit === null ? 'none' : records(client.limit), client.limit === null ? 'Nothing but its grant holds it back.' : `The most in ${seconds(cycle)}, whatever is free.`],
    ['Admitted', `${count(client.admitted_in_last_cycle)} in the last cycle`, `${percent(client.used_ratio)} of the capacity. ${count(client.admitted_in_cycle)} in this one so far, ${count(client.admitted)} since the start.`],
    ['Backlog', records(decided.backlog), `Its delayed records${enforce ? `, with ${bytes(client.backlog_bytes)} of memory` : ''}.${would}`],
    ['Longest wait', seconds(client.oldest_seconds), 'The wait of its oldest delayed record.'],
    ['Next admission', next === null ? 'unknown' : next === 0 ? 'at once' : `in about ${seconds(next)}`,
      next === null ? (mode === 'reject' ? 'In mode reject a record is admitted or rejected at once.' : 'The service is not ready, or nothing is granted.')
        : next === 0 ? 'Nothing waits ahead of a record that is sent now.' : `A record that is sent now: the backlog, at ${decimal(client.backlog / next * cycle)} ${perCycle(cycle)}.`],
    ['Delays', delays.records ? `median ${seconds(delays.p50_seconds)}` : 'none', delays.records ? `Of ${records(delays.records)}: 99 % at most ${seconds(delays.p99_seconds)}, the longest ${seconds(delays.longest_seconds)}, since the start.${would}` : 'No record has waited since the start.'],
    ['Rejected', records(Object.values(decided.rejected).reduce((a, b) => a + b, 0)), `Since the start, to the dead-letter topic.${would}`],
  ];
}

/** Shows one client of a service. */
export function clientView(service, name) {
  const body = h('div', {});
  const rejected = h('div', {});
  const origin = h('div', {});
  const palette = new Palette();
  const admitted = new Chart({ title: 'Admitted, records a second', unit: 'records a second', height: 160 });
  const delayed = new Chart({ title: 'Delayed records', unit: 'delayed records', height: 160 });
  admitted.element.hidden = delayed.element.hidden = true;
  let detail = null;
  const draw = () => {
    if (!detail || !service.now.capacity) return;
    body.replaceChildren(facts(figures(detail, service.now)));
    keyed(rejected, [service.now.enforce ? detail.rejected : detail.shadow.rejected], () => 'reasons', () => h('div', {}), (element, counts) => element.replaceChildren(reasons(counts)));
  };
  const stop = poll(`${service.path}/clients/${encodeURIComponent(name)}`, (answer) => { detail = answer; draw(); });
  get('/v1/config?origins=true').then(({ config }) => origin.replaceChildren(settingsTable(settings(config, service.name, name))), () => {});
  const element = h('div', {},
    h('p', { class: 'back' }, h('a', { href: hrefOf('s', service.name) }, '← ', service.name)), h('h1', {}, id(name)),
    h('div', { class: 'pair' }, h('section', { class: 'card' }, h('h3', {}, 'Now'), body),
      h('div', {}, admitted.element, delayed.element, h('section', { class: 'card' }, h('h3', {}, 'Rejected, by reason'), rejected))),
    h('section', { class: 'card' }, h('h3', {}, 'Where its values come from'), origin));
  function show({ samples, now }) {
    // Only those clients are in the samples that were admitted most.
    const mine = samples.map((sample) => ({ ...sample, clients: sample.clients.filter(([client]) => client === name) }));
    const known = mine.some(({ clients }) => clients.length);
    admitted.element.hidden = delayed.element.hidden = !known;
    if (known) {
      const times = samples.map((sample) => sample.at_ms);
      const figure = (at) => (sample) => sample.clients[0]?.[1][at] ?? 0;
      const granted = mine.slice(1).map((sample) => figure(1)(sample) / now.cycle_seconds);
      admitted.update(times.slice(1), layers(mine, palette, 0, figure(0), Math.max(3, Math.min(now.cycle_seconds, 30))).map((layer) => ({ ...layer, values: layer.values.slice(1) })), { name: 'granted', values: granted });
      delayed.update(times, layers(mine, palette, 2, figure(2), null));
    }
    draw();
  }
  return { title: `${name} · ${service.name}`, element, show, close: stop };
}
