// The dead letters of a service: how many, why, and of which clients.

import { CAUSES } from './causes.js';
import { card, facts, h, id, keyed, put, setText } from './dom.js';
import { get } from './api.js';
import { bar } from './chart.js';
import { hrefOf, state } from './overview.js';
import { tabs } from './service.js';
import { count, moment, plural, records, sum, time } from './format.js';

/** Makes a list of reasons with bars, those that occurred first. */
export function reasons(counts) {
  const found = Object.entries(counts).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
  if (found.length === 0) return h('p', {}, 'None since the start.');
  const most = found[0][1];
  return h('ul', { class: 'reasons' }, found.map(([reason, n]) => h('li', {},
    h('span', { class: 'code' }, reason), h('b', {}, count(n)),
    bar([{ colour: 'c1', value: n }], most, `${reason}: ${records(n)}`),
    h('span', { class: 'why' }, CAUSES[reason] ?? ''))));
}

/** Makes the entry of one dead letter: its headers open below it. */
function letter({ rejected_at: at, reason, state: now, topic, partition, offset, headers }) {
  const rows = headers.map(({ name, value }) => [h('bdi', {}, name), h('bdi', {}, value ?? 'null')]);
  const says = [' ', moment(at), now !== 'open' && `, ${now}`];
  return h('li', {}, h('details', {}, h('summary', {}, h('span', { class: 'code' }, reason ?? 'no reason'), says),
    facts([['At', `${topic}, partition ${partition}, offset ${offset}`], ...rows])));
}

/** Shows the dead letters of a service. */
export function lettersView(service) {
  const [head, open, why] = [h('div', {}), h('div', {}), h('div', {})];
  const clients = h('ol', { class: 'ranking' });
  const newest = h('ul', { class: 'letters' });
  const read = h('p', { class: 'hint' }, 'They are being read.');
  const command = `watermaster dlq ls --service ${service.name} --config FILE`;
  const element = h('div', {}, h('h1', {}, service.name), head, tabs(service.name, 'dead-letters'),
    h('div', { class: 'pair' },
      card('Open', open, h('p', { class: 'hint' }, 'All of them, counted: ', h('code', {}, command))),
      card('Rejected since the start, by reason', why)),
    card('Clients with most rejections', h('p', { class: 'none' }, 'None since the start.'), clients),
    card('The newest of each reason, with their headers', newest, read));
  let nextAsk = 0;
  function showNewest({ read_ms: at, complete, letters }) {
    keyed(newest, letters, (one) => `${one.topic} ${one.partition} ${one.offset} ${one.state}`, letter);
    const all = !complete ? ' Not all of them were read in time.' : letters.length ? '' : ' There are none.';
    setText(read, at ? `Read at ${time(at)}.${all}` : 'Not read yet, or the instance may not read the topic.');
  }
  function showClients({ clients: found }) {
    const rejected = (client) => sum(Object.values((service.now.enforce ? client : client.shadow).rejected));
    keyed(clients, found.filter(rejected), (client) => client.name,
      ({ name }) => h('li', {}, h('a', { href: hrefOf('s', service.name, 'clients', name) }, id(name)), ' ', h('b')),
      (item, client) => setText(item.lastChild, records(rejected(client))));
  }
  function show({ now }) {
    put(head, state(now));
    const letters = now.dead_letters;
    put(open, letters === null
      ? h('p', {}, 'Not known: the instance has not read the dead-letter topic yet, or may not read it.')
      : facts([
        ['Not redriven', plural(letters.offsets, 'offset'),
          letters.offsets ? 'Some of them can be the marks of transactions.' : 'No dead letter is open.'],
        letters.oldest_ms !== null && ['The oldest', moment(letters.oldest_ms)]]));
    put(why, !now.enforce && h('p', {}, 'Shadow mode: enforcing would have rejected these.'),
      reasons((now.enforce ? now.done : now.shadow).rejected));
    if (performance.now() < nextAsk) return;
    nextAsk = performance.now() + 2000;
    // Without an answer, what is shown stays.
    get(`${service.path}/dead-letters`).then(showNewest, () => {});
    get(`${service.path}/clients?top=10&sort=rejected`).then(showClients, () => {});
  }
  return { title: `Dead letters · ${service.name}`, element, show };
}
