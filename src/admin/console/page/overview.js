// All services of the instance.

import { h, id, keyed, put } from './dom.js';
import { poll, sampleOf } from './api.js';
import { bar, isSteady, legendEntry, Palette, trend } from './chart.js';
import { count, plural, records, seconds, sum, perCycle } from './format.js';

export const hrefOf = (...parts) => `#/${parts.map(encodeURIComponent).join('/')}`;

/** The state of a service, in a word and in full. */
export function state({ ready, trouble, mode, enforce }) {
  const word = ready ? 'ready' : `not ready: ${trouble ?? 'joining the group'}`;
  return h('p', { class: 'badges' },
    h('span', { class: `badge ${ready ? 'good' : 'bad'}` }, word),
    h('span', { class: 'badge' }, `mode ${mode}: ${mode === 'shape' ? 'delays' : 'rejects'} bursts`),
    !enforce && h('span', { class: 'badge warn' }, 'shadow mode: everything is admitted'));
}

/** The used capacity as a bar by client. `sample` has the admissions of the last second. */
export function used({ capacity, cycle_seconds: cycle, window_admitted: admitted }, samples, palette) {
  const recent = samples.filter((sample) => sample.at_ms > samples.at(-1).at_ms - 1000 * Math.max(1, cycle));
  const sums = new Map();
  for (const [name, [n]] of recent.flatMap(({ clients }) => [...clients])) sums.set(name, (sums.get(name) ?? 0) + n);
  const all = sum(recent.map((sample) => sample.admitted));
  // The parts are those of the last samples, the whole is the window's.
  const part = (value) => (all ? (value / all) * admitted : 0);
  const named = [...sums].sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, value]) => ({ colour: palette.of(name), value: part(value) }));
  const others = admitted - sum(named.map(({ value }) => value));
  const label = `${records(admitted)} of ${count(capacity)} admitted ${perCycle(cycle)}`;
  return bar([...named, { colour: 'others', value: Math.max(0, others) }], capacity, label);
}

/** The members of a group with what each holds. */
export function instances({ group, capacity }) {
  if (group.state === null) return h('p', { class: 'hint' }, 'One instance has the whole capacity.');
  return h('ul', { class: 'instances' }, group.members.map(({ instance, state: word, hold, used: spent }) => {
    const holds = `holds ${count(hold)} of ${count(capacity)}, ${count(spent)} used`;
    const parts = [{ colour: 'c0', value: spent }, { colour: 'held', value: Math.max(0, hold - spent) }];
    return h('li', { class: word === 'live' ? '' : 'gone' }, id(instance), bar(parts, Math.max(1, capacity), holds),
      h('span', {}, word === 'live' ? holds : `${holds} · ${word}`));
  }));
}

function delayed({ enforce, done, shadow, longest_wait: waits, known_clients: known }, samples) {
  const backlog = enforce ? done.backlog : shadow.backlog;
  if (backlog === 0) return `No record is delayed. ${plural(known, 'client')} known.`;
  const oldest = waits && [', the oldest for ', seconds(waits.seconds), ' (', id(waits.client), ')'];
  const rise = trend(samples);
  const moves = rise !== null && !isSteady(rise, backlog)
    && `; they grow by ${records(Math.round(rise))} a second`.replace('grow by -', 'shrink by ');
  return [records(backlog), enforce ? ' delayed' : ' would be delayed', oldest, moves, '.'];
}

/** Shows the services; `known` is told their names. */
export function overview(known) {
  const cards = h('div', { class: 'cards' });
  const histories = new Map();
  const stop = poll('/v1/now', ({ services }) => {
    known(services.map(({ now }) => now.name));
    keyed(cards, services, ({ now }) => now.name, ({ now }) => {
      histories.set(now.name, { samples: [], palette: new Palette() });
      const title = h('h2', {}, h('a', { href: hrefOf('s', now.name) }, now.name));
      return h('article', { class: 'card service' }, title, h('div', { class: 'body' }));
    }, (card, { samples, now }) => {
      const { samples: kept, palette } = histories.get(now.name);
      const isNew = (sample) => sample.at_ms !== kept.at(-1)?.at_ms;
      kept.push(...samples.filter(isNew).map(sampleOf));
      kept.splice(0, kept.length - 60);
      const keys = palette.choose(kept).map((client) => legendEntry({ client, colour: palette.of(client) }));
      const of = ` of ${count(now.capacity)} records ${perCycle(now.cycle_seconds)}`;
      put(card.lastChild, state(now), h('p', { class: 'big' }, h('b', {}, count(now.window_admitted)), of),
        kept.length > 0 && used(now, kept, palette), h('ul', { class: 'legend' }, keys),
        h('p', {}, delayed(now, kept)), h('h3', {}, 'Instances'), instances(now));
    });
  });
  return { title: 'Services', element: h('div', {}, h('h1', {}, 'Services'), cards), close: stop };
}

