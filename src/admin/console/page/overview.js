// All services of the instance.

import { h, id, keyed } from './dom.js';
import { poll } from './api.js';
import { bar, Palette } from './chart.js';
import { count, plural, records, seconds, perCycle } from './format.js';

export const hrefOf = (...parts) => `#/${parts.map(encodeURIComponent).join('/')}`;

/** The state of a service, in a word and in full. */
export function state({ ready, trouble, mode, enforce }) {
  return h('p', { class: 'badges' },
    h('span', { class: `badge ${ready ? 'good' : 'bad'}` }, ready ? 'ready' : `not ready: ${trouble ?? 'joining the group'}`),
    h('span', { class: 'badge' }, mode === 'shape' ? 'delays' : 'rejects', h('span', { class: 'unseen' }, ' (mode)')),
    !enforce && h('span', { class: 'badge warn' }, 'shadow mode: everything is admitted'));
}

/** The used capacity as a bar by client. `sample` has the admissions of the last second. */
export function used({ capacity, cycle_seconds: cycle, window_admitted: admitted }, samples, palette) {
  const recent = samples.filter((sample) => sample.at_ms > samples.at(-1).at_ms - 1000 * Math.max(1, cycle));
  const sums = new Map();
  for (const { clients } of recent) for (const [name, figures] of clients) sums.set(name, (sums.get(name) ?? 0) + figures[0]);
  const all = recent.reduce((sum, sample) => sum + sample.admitted, 0);
  // The parts are those of the last samples, the whole is the window's.
  const part = (value) => (all ? (value / all) * admitted : 0);
  const named = [...sums].sort((a, b) => (a[0] < b[0] ? -1 : 1)).map(([name, value]) => ({ colour: palette.of(name), value: part(value) }));
  const others = admitted - named.reduce((sum, { value }) => sum + value, 0);
  return bar([...named, { colour: 'others', value: Math.max(0, others) }], capacity, `${records(admitted)} of ${count(capacity)} admitted ${perCycle(cycle)}`);
}

/** The members of a group with what each holds. */
export function instances({ group, capacity }) {
  if (group.state === null) return h('p', { class: 'hint' }, 'One instance has the whole capacity.');
  return h('ul', { class: 'instances' }, group.members.map((member) => h('li', { class: member.state === 'live' ? '' : 'gone' },
    id(member.instance),
    bar([{ colour: 'c0', value: member.used }, { colour: 'held', value: Math.max(0, member.hold - member.used) }], Math.max(1, capacity), `holds ${count(member.hold)} of ${count(capacity)}`),
    h('span', {}, `holds ${count(member.hold)} of ${count(capacity)}${member.state === 'live' ? '' : ` · ${member.state}`}`))));
}

/** Shows the services; `known` is told their names. */
export function overview(known) {
  const cards = h('div', { class: 'cards' });
  const histories = new Map();
  const stop = poll('/v1/now', ({ services }) => {
    known(services.map(({ now }) => now.name));
    keyed(cards, services, ({ now }) => now.name, ({ now }) => {
      histories.set(now.name, { samples: [], palette: new Palette() });
      return h('article', { class: 'card service' }, h('h2', {}, h('a', { href: hrefOf('s', now.name) }, now.name)), h('div', { class: 'body' }));
    }, (card, { samples, now }) => {
      const { samples: kept, palette } = histories.get(now.name);
      for (const sample of samples) if (sample.at_ms !== kept.at(-1)?.at_ms) kept.push({ ...sample, clients: Object.entries(sample.clients) });
      kept.splice(0, kept.length - 60);
      const names = palette.choose(kept, 0);
      const waits = now.longest_wait;
      card.lastChild.replaceChildren(state(now),
        h('p', { class: 'big' }, h('b', {}, count(now.window_admitted)), ` of ${count(now.capacity)} records ${perCycle(now.cycle_seconds)}`),
        kept.length ? used(now, kept, palette) : '',
        h('ul', { class: 'legend' }, names.map((name) => h('li', {}, h('i', { class: `key ${palette.of(name)}`, 'aria-hidden': 'true' }), id(name)))),
        h('p', {}, now.done.backlog + now.shadow.backlog > 0
          ? [records(Math.max(now.done.backlog, now.shadow.backlog)), now.enforce ? ' delayed' : ' would be delayed', waits ? [', the oldest for ', seconds(waits.seconds), ' (', id(waits.client), ')'] : '', '.']
          : `No record is delayed. ${plural(now.known_clients, 'client')} known.`),
        h('h3', {}, 'Instances'), instances(now));
    });
  });
  return { title: 'Services', element: h('div', {}, h('h1', {}, 'Services'), cards), close: stop };
}

