// The last changes of the configuration: who changed what, and when.

import { card, h, keyed, row, table } from './dom.js';
import { get, poll } from './api.js';
import { moment, shown } from './format.js';

const dated = (at, texts) => row(h('time', { datetime: at }, moment(at)), texts);

/** Shows the changes of the configuration and, of each service, those of its rules. */
export function changesView() {
  const [rows, ofRules] = [h('tbody'), h('tbody')];
  const stop = poll('/v1/changes', ({ changes }) => keyed(rows, changes,
    ({ at, key, service, from, to }) => JSON.stringify([at, key, service, from, to]),
    ({ at, by, service, key, from, to, origin }) =>
      dated(at, [by, service ?? 'all', key, shown(from), shown(to), origin])));
  async function showRules({ services }) {
    const of = async ({ now: { name } }) => {
      const { changes } = await get(`/v1/services/${encodeURIComponent(name)}/rules/changes`);
      return changes.map((change) => ({ ...change, service: name }));
    };
    const changes = (await Promise.all(services.map(of))).flat().sort((a, b) => (a.at < b.at ? 1 : -1));
    keyed(ofRules, changes, ({ at, service, name, etag }) => `${at} ${service} ${name} ${etag}`,
      ({ at, by, service, name, rule }) => dated(at, [by, service, name, rule === null ? 'deleted' : shown(rule)]));
  }
  // Without an answer, what is shown stays.
  const stopRules = poll('/v1/now', (answer) => { showRules(answer).catch(() => {}); }, 5000);
  const element = h('div', {}, h('h1', {}, 'Changes'),
    card('Configuration', h('p', { class: 'hint' }, 'The last ten since this instance started.'),
      h('p', { class: 'none' }, 'The configuration has not changed since the instance started.'),
      table(['When', 'By', 'Service', 'Key', 'From', 'To', 'Written in'], rows)),
    card('Rules', h('p', { class: 'none' }, 'No rule of run time has changed.'),
      table(['When', 'By', 'Service', 'Rule', 'To'], ofRules)));
  const close = () => [stop, stopRules].forEach((end) => end());
  return { title: 'Changes', element, close };
}
