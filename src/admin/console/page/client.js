// One client: its figures now, how each comes about, and the rules behind them.

import { card, facts, h, id, table } from './dom.js';
import { get, poll } from './api.js';
import { Chart, Palette, rates } from './chart.js';
import { hrefOf } from './overview.js';
import { bytes, count, decimal, perCycle, percent, records, seconds } from './format.js';
import { reasons } from './letters.js';
import { clientActions } from './rules.js';

/** Makes the table of fields with the rule that decides each. */
function rulesTable({ fields, of_group: ofGroup, of_service: ofService }) {
  const row = ({ field, value, rule, why }) => h('tr', {},
    h('th', { scope: 'row' }, h('span', { class: 'code' }, field)),
    [value, rule?.name ?? 'none', why].map((text) => h('td', {}, h('bdi', {}, text))));
  const rows = [...fields, ...ofGroup, ...ofService].map(row);
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
  const rejected = Object.values(decided.rejected).reduce((sum, n) => sum + n, 0);
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
  const row = (value, why) => ['Next admission', value, why];
  if (next === null && mode === 'reject') return row('unknown', 'In mode reject a record does not wait for long.');
  if (next === null) return row('unknown', 'The service is not ready, or nothing is granted.');
  if (next === 0) return row('at once', 'Nothing waits ahead of a record that is sent now.');
  const rate = `${decimal((backlog / next) * cycle)} ${perCycle(cycle)}`;
  return row(`in about ${seconds(next)}`, `For a record that is sent now: the backlog ahead of it, at ${rate}.`);
}

/** Shows one client of a service. */
export function clientView(service, name) {
  const body = h('div', {});
  const rejected = h('div', {});
  const [actions, rules] = [h('div', {}, clientActions(service, name)), h('div', {})];
  const palette = service.palette ??= new Palette();
  const admitted = new Chart({ title: 'Admitted, records a second', unit: 'records a second', height: 160 });
  const delayed = new Chart({ title: 'Delayed records', unit: 'delayed records', height: 160 });
  admitted.element.hidden = delayed.element.hidden = true;
  let [detail, isHeld] = [null, false];
  const draw = () => {
    if (!detail || !service.now.capacity) return;
    body.replaceChildren(facts(figures(detail, service.now, isHeld)));
    rejected.replaceChildren(reasons(service.now.enforce ? detail.rejected : detail.shadow.rejected));
  };
  const stop = poll(`${service.path}/clients/${encodeURIComponent(name)}`, (answer) => { detail = answer; draw(); });
  get(`${service.path}/explain?${new URLSearchParams({ client: name })}`)
    .then((explained) => {
      rules.replaceChildren(rulesTable(explained));
      const fields = [...explained.fields, ...explained.of_group];
      const { rule } = fields.find(({ field, value }) => field === 'hold' && value === 'true') ?? {};
      isHeld = rule !== undefined;
      actions.replaceChildren(clientActions(service, name, rule?.origin === 'run_time' && rule.name));
    }, () => {});
  const element = h('div', {},
    h('p', { class: 'back' }, h('a', { href: hrefOf('s', service.name) }, '← ', service.name)),
    h('h1', {}, id(name)), actions,
    h('div', { class: 'pair' }, card('Now', body),
      h('div', {}, admitted.element, delayed.element, card('Rejected, by reason', rejected))),
    card('Which rule decides', rules));
  function show({ samples, now }) {
    // Only those clients are in the samples that were admitted most.
    const own = (sample) => ({ ...sample, clients: sample.clients.filter(([client]) => client === name) });
    const mine = samples.map(own);
    const known = mine.some(({ clients }) => clients.length);
    admitted.element.hidden = delayed.element.hidden = !known;
    if (known) {
      const times = samples.map((sample) => sample.at_ms);
      const figure = (at) => (sample) => sample.clients[0]?.[1][at] ?? 0;
      const granted = mine.slice(1).map((sample) => figure(1)(sample) / now.cycle_seconds);
      palette.choose(samples, 0);
      const layer = (values) => [{ name, colour: palette.of(name), values }];
      const admissions = rates(mine, Math.max(3, Math.min(now.cycle_seconds, 30)), figure(0)).slice(1);
      admitted.update(times.slice(1), layer(admissions), { name: 'granted', values: granted });
      delayed.update(times, layer(mine.map(figure(2))));
    }
    draw();
  }
  return { title: `${name} · ${service.name}`, element, show, close: stop };
}
