// The last changes of the configuration: who changed what, and when.

import { card, h, keyed, table } from './dom.js';
import { poll } from './api.js';
import { moment } from './format.js';

const shown = (value) => (value === null ? 'not set' : typeof value === 'string' ? value : JSON.stringify(value));

/** Shows the changes. */
export function changesView() {
  const rows = h('tbody');
  const none = h('p', {}, 'The configuration has not changed since the instance started.');
  const list = table(['When', 'By', 'Service', 'Key', 'From', 'To', 'Written in'], rows);
  const stop = poll('/v1/changes', ({ changes }) => {
    none.hidden = changes.length > 0;
    list.hidden = changes.length === 0;
    keyed(rows, changes, (change) => `${change.at} ${change.key} ${change.service}`, (change) => h('tr', {},
      h('td', {}, h('time', { datetime: change.at }, moment(Date.parse(change.at)))),
      [change.by, change.service ?? 'all', change.key, shown(change.from), shown(change.to), change.origin]
        .map((text) => h('td', {}, h('bdi', {}, text)))));
  });
  const hint = h('p', { class: 'hint' }, 'The last ten since this instance started.');
  const element = h('div', {}, h('h1', {}, 'Changes'), card('Configuration', hint, none, list));
  return { title: 'Changes', element, close: stop };
}
