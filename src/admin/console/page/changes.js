// The last changes of the configuration: who changed what, and when.

import { h, keyed } from './dom.js';
import { poll } from './api.js';
import { moment } from './format.js';

const shown = (value) => (value === null ? 'not set' : typeof value === 'string' ? value : JSON.stringify(value));

/** Shows the changes. */
export function changesView() {
  const rows = h('tbody');
  const none = h('p', {}, 'The configuration has not changed since the instance started.');
  const table = h('table', { class: 'plain' }, h('thead', {}, h('tr', {}, ['When', 'By', 'Service', 'Key', 'From', 'To', 'Written in'].map((name) => h('th', { scope: 'col' }, name)))), rows);
  const stop = poll('/v1/changes', ({ changes }) => {
    none.hidden = changes.length > 0;
    table.hidden = changes.length === 0;
    keyed(rows, changes, (change) => `${change.at} ${change.key} ${change.service}`, (change) => h('tr', {},
      h('td', {}, h('time', { datetime: change.at }, moment(Date.parse(change.at)))),
      [change.by, change.service ?? 'all', change.key, shown(change.from), shown(change.to), change.origin].map((text) => h('td', {}, h('bdi', {}, text)))));
  });
  return {
    title: 'Changes', close: stop,
    element: h('div', {}, h('h1', {}, 'Changes'), h('section', { class: 'card' }, h('p', { class: 'hint' }, 'The last ten, since this instance started.'), none, table)),
  };
}
