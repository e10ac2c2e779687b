// One client: its figures now, how each comes about, and the rules behind them.

import { card, facts, h, id, put, row, table } from './dom.js';
import { poll } from './api.js';
import { Chart, Palette, rates } from './chart.js';
import { hrefOf } from './overview.js';
import { bytes, count, decimal, perCycle, percent, records, seconds, sum } from './format.js';
import { reasons } from './letters.js';
import { clientActions } from './rules.js';

/** Makes the table of fields with the rule that decides each. */
function rulesTable({ fields, of_group: ofGroup, of_service: ofService }) {
  const rows = [...fields, ...ofGroup, ...ofService].map(({ field, value, rule, why }) =>
    row(h('span', { class: 'code' }, field), [value, rule?.name ?? 'none', why]));
  return table(['Field', 'Value', 'Rule', 'Why this one'], h('tbody', {}, rows));
}

function figures(client, now, isHeld) {
  const { cycle_seconds: cycle, capacity, enforce } = now;
  const decided = enforce ? client : client.shadow;
  const delays = enforce ? client.delays : client.shadow_delays;
  const would = enforce ? '' : ' (shadow mode: it would be so)';
  const granted = client.borrowed >= 0.5 ? `its share and ${count(Math.round(client.borrowed))} that others leave`
    : client.lent >= 0.5 ? `its share less ${count(Math.round(client.lent))} that it lends, because it wants less`
      : 'its share';
  const rejected = sum(Object.values(decided.rejected));
  return [
    ['Wants', records(client.wants),
      'What waited when the cycle began, and what came first in it; or that of the last cycle, if it is more.'],
    ['Default share', records(client.default_share),
      `${percent(client.default_share / capacity)} of ${count(capacity)} ${perCycle(cycle)}, the capacity, by weight.`],
    client.group && ['Group', h('bdi', {}, client.group),
      'Its clients have one share together, and lend to each other first.'],
    isHeld ? ['Granted', 'nothing', 'A rule holds it: its records wait, or are rejected in mode reject.']
      : ['Granted', records(client.granted), `For this cycle: ${granted}.`],
    client.limit === null ? ['Own limit', 'none', 'Nothing but its grant holds it back.']
      : ['Own limit', records(client.limit), `The most in ${seconds(cycle)}, whatever is free.`],
    ['Admitted', `${count(client.admitted_in_last_cycle)} in the last cycle`, [
      `${percent(client.used_ratio)} of the capacity. `,
      `${count(client.admitted_in_cycle)} in this one so far, ${count(client.admitted)} since the start.`]],
    ['Backlog', records(decided.backlog),
      `Its delayed records${enforce ? `, with ${bytes(client.backlog_bytes)} of memory` : ''}.${would}`],
    ['Longest wait', seconds(client.oldest_seconds), 'The wait of its oldest delayed record.'],
    nextAdmission(client, now),
    delays.records === 0 ? ['Delays', 'none', 'No record has waited since the start.']
      : ['Delays', `median ${seconds(delays.p50_seconds)}`, [`Of ${records(delays.records)}: 99 % at most `,
        `${seconds(delays.p99_seconds)}, the longest ${seconds(delays.longest_seconds)}, since the start.${would}`]],
    ['Rejected', records(rejected), `Since the start, to the dead-letter topic.${would}`],
  ];
}

function nextAdmission({ next_admission_seconds: next, backlog }, { mode, cycle_seconds: cycle }) {
  const fact = (value, why) => ['Next admission', value, why];
  if (next === null && mode === 'reject') return fact('unknown', 'In mode reject a record does not wait for long.');
  if (next === null) return fact('unknown', 'The service is not ready, or nothing is granted.');
  if (next === 0) return fact('at once', 'Nothing waits ahead of a record that is sent now.');
  const rate = `${decimal((backlog / next) * cycle)} ${perCycle(cycle)}`;
  return fact(`in about ${seconds(next)}`, `For a record that is sent now: the backlog ahead of it, at ${rate}.`);
}

/** Shows one client of a service. */
export function clientView(service, name) {
  const [body, rejected, rules] = [h('div'), h('div'), h('div')];
  const actions = h('div', {}, clientActions(service, name));
  const palette = service.palette ??= new Palette();
  const admitted = new Chart({ title: 'Admitted, records a second', unit: 'records a second', height: 160 });
  const delayed = new Chart({ title: 'Delayed records', unit: 'delayed records', height: 160 });
  admitted.element.hidden = delayed.element.hidden = true;
  let [detail, isHeld] = [null, false];
  const draw = () => {
    if (detail === null || !service.now.capacity) return;
    put(body, detail ? facts(figures(detail, service.now, isHeld))
      : h('p', {}, 'This instance does not know the client: it has seen no record of it lately.'));
    put(rejected, detail && reasons((service.now.enforce ? detail : detail.shadow).rejected));
  };
  const take = (answer) => { detail = answer; draw(); };
  // A browser takes these ids for steps of the path. By name, they are among the first ones that have them.
  const stop = ['.', '..'].includes(name)
    ? poll(`${service.path}/clients?sort=name&order=asc&top=100&find=${name}`,
      ({ clients }) => take(clients.find((client) => client.name === name)))
    : poll(`${service.path}/clients/${encodeURIComponent(name)}`, take, 1000, take);
  let known = '';
  const stopRules = poll(`${service.path}/explain?${new URLSearchParams({ client: name })}`, (explained) => {
    const now = JSON.stringify({ ...explained, at: null });
    // Links and rows that did not change stay under the pointer.
    if (now === known) return;
    known = now;
    put(rules, rulesTable(explained));
    const fields = [...explained.fields, ...explained.of_group];
    const { rule } = fields.find(({ field, value }) => field === 'hold' && value === 'true') ?? {};
    isHeld = rule !== undefined;
    put(actions, clientActions(service, name, rule?.origin === 'run_time' && rule.name));
    draw();
  }, 5000);
  const element = h('div', {},
    h('p', { class: 'back' }, h('a', { href: hrefOf('s', service.name) }, '← ', service.name)),
    h('h1', {}, id(name)), actions,
    h('div', { class: 'pair' }, card('Now', body),
      h('div', {}, admitted.element, delayed.element, card('Rejected, by reason', rejected))),
    card('Which rule decides', rules));
  function show({ samples, now }) {
    // Only those clients are in the samples that were admitted most.
    const isKnown = samples.some(({ clients }) => clients.has(name));
    admitted.element.hidden = delayed.element.hidden = !isKnown;
    if (isKnown) {
      const times = samples.map((sample) => sample.at_ms);
      // A sample that is not full lacks no client that was admitted.
      const figure = (at) => ({ clients }) => clients.get(name)?.[at] ?? (clients.size < 8 ? 0 : NaN);
      // Admissions count from a sample with the client on.
      const admissions = rates(samples, Math.max(3, Math.min(now.cycle_seconds, 30)), (sample, before) =>
        (figure(0)(before) >= 0 ? figure(0)(sample) : NaN));
      const granted = samples.slice(1).map((sample) => figure(1)(sample) / now.cycle_seconds);
      palette.choose(samples);
      const layer = (values) => [{ name, colour: palette.of(name), values }];
      admitted.update(times.slice(1), layer(admissions), { name: 'granted', values: granted });
      delayed.update(times, layer(samples.map(figure(2))));
    }
    draw();
  }
  const close = () => [stop, stopRules].forEach((end) => end());
  return { title: `${name} · ${service.name}`, element, show, close };
}
