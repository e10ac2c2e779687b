// The last changes of the configuration: who changed what, and when.

import { card, h, keyed, table } from './dom.js';
import { get, poll } from './api.js';
import { moment } from './format.js';

const shown = (value) => (value === null ? 'not set' : typeof value === 'string' ? value : JSON.stringify(value));

/** Shows the changes of the configuration and, of each service, those of its rules. */
export function changesView() {
  const rows = h('tbody');
  const none = h('p', {}, 'The configuration has not changed since the instance started.');
  const list = table(['When', 'By', 'Service', 'Key', 'From', 'To', 'Written in'], rows);
  const ofRules = h('tbody');
  const noRules = h('p', {}, 'No rule of run time has changed.');
  const listOfRules = table(['When', 'By', 'Service', 'Rule', 'To'], ofRules);
  const row = (at, texts) => h('tr', {}, h('td', {}, h('time', { datetime: at }, moment(Date.parse(at)))),
    texts.map((text) => h('td', {}, h('bdi', {}, text))));
  const show = (body, hint, whole, changes, key, make) => {
    hint.hidden = changes.length > 0;
    whole.hidden = changes.length === 0;
    keyed(body, changes, key, make);
  };
  const stop = poll('/v1/changes', ({ changes }) => show(rows, none, list, changes,
    ({ at, key, service }) => `${at} ${key} ${service}`, ({ at, by, service, key, from, to, origin }) =>
      row(at, [by, service ?? 'all', key, shown(from), shown(to), origin])));
  show(ofRules, noRules, listOfRules, []);
  get('/v1/now').then(async ({ services }) => {
    const of = async ({ now: { name } }) => {
      const { changes } = await get(`/v1/services/${encodeURIComponent(name)}/rules/changes`);
      return changes.map((change) => ({ ...change, service: name }));
    };
    const changes = (await Promise.all(services.map(of))).flat().sort((a, b) => (a.at < b.at ? 1 : -1));
    show(ofRules, noRules, listOfRules, changes, ({ at, service, name }) => `${at} ${service} ${name}`,
      ({ at, by, service, name, rule }) => row(at, [by, service, name, rule === null ? 'deleted' : shown(rule)]));
  }).catch(() => {});
  const hint = h('p', { class: 'hint' }, 'The last ten since this instance started.');
  const element = h('div', {}, h('h1', {}, 'Changes'), card('Configuration', hint, none, list),
    card('Rules', noRules, listOfRules));
  return { title: 'Changes', element, close: stop };
}
