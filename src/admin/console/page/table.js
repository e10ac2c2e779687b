// All clients of a service as a table. Only the rows in sight exist; their figures are asked for in pages.

import { eachFrame, h, id, keyed, set, setText } from './dom.js';
import { get } from './api.js';
import { count, seconds, sum } from './format.js';

const ROW = 36;
const MAX_SHOWN = 14;
const PAGE = 100;

function loan({ lent, borrowed }) {
  if (borrowed >= 0.5) return `borrows ${count(Math.round(borrowed))}`;
  return lent >= 0.5 ? `lends ${count(Math.round(lent))}` : '–';
}
const backlog = (client) => count(Math.max(client.backlog, client.shadow.backlog));
const wait = (client) => (client.oldest_seconds ? seconds(client.oldest_seconds) : '–');
const rejected = (client, enforce) => count(sum(Object.values((enforce ? client : client.shadow).rejected)));

/** Each column: the field that sorts it, its heading, the class that hides it on narrow screens, its meaning, and its
  text where that is not the number of the field. */
const COLUMNS = [
  ['name', 'Client', ''],
  ['wants', 'Wants', '', 'Records that the client wants in this cycle'],
  ['default_share', 'Share', 'wide', 'Its part of the capacity by weight'],
  ['granted', 'Granted', '', 'Records that it may send in this cycle'],
  ['borrowed', 'Loan', 'middle', 'Records that it lends to others or borrows from them', loan],
  ['admitted_in_last_cycle', 'Last cycle', 'middle', 'Records admitted in the last full cycle'],
  ['admitted', 'Admitted', 'wide', 'Records admitted since the start'],
  ['backlog', 'Backlog', '', 'Records that are delayed now', backlog],
  ['oldest_seconds', 'Waits', 'middle', 'The wait of its oldest delayed record', wait],
  ['rejected', 'Rejected', 'wide', 'Records rejected since the start', rejected],
];

export class ClientTable {
  #query = { sort: 'wants', order: 'desc', find: '' };
  #pages = new Map();
  #asking = new Set();
  #nextAsk = 0;
  #matching = 0;
  #says = h('p', { class: 'hint', role: 'status', 'aria-live': 'polite' });
  /** The room of the rows that are out of sight. */
  #above = h('tr', { 'aria-hidden': 'true' });
  #below = h('tr', { 'aria-hidden': 'true' });
  #rows = h('tbody');
  #heads = h('tr', {}, COLUMNS.map(([key, name, narrow, title]) =>
    h('th', { scope: 'col', class: `${key === 'name' ? 'name' : 'number'} ${narrow}` },
      h('button', { type: 'button', title, onclick: () => this.#sort(key) }, name))));
  #paint = eachFrame(() => this.#draw());

  constructor(service, link) {
    Object.assign(this, { service, link });
    this.table = h('table', { class: 'clients' }, h('caption', { class: 'unseen' }, 'Clients'),
      h('thead', {}, this.#heads), h('tbody', {}, this.#above), this.#rows, h('tbody', {}, this.#below));
    const region = { class: 'scroller', tabindex: '0', role: 'region', 'aria-label': 'Clients' };
    this.scroller = h('div', { ...region, onscroll: this.#paint }, this.table);
    const find = h('input', {
      type: 'search', placeholder: 'Find a client', 'aria-label': 'Find clients whose id contains',
      spellcheck: 'false', autocomplete: 'off', oninput: () => this.#change({ find: find.value.trim() }),
    });
    this.element = h('section', { class: 'card table' },
      h('div', { class: 'bar-of-table' }, h('h3', {}, 'Clients'), find, this.#says), this.scroller);
    this.#mark();
    this.#ask(0);
  }

  /** Asks for the rows in sight again, not more often than their answers allow. */
  refresh() {
    if (performance.now() < this.#nextAsk || this.#asking.size) return;
    const [first, last] = this.#sight();
    for (const row of [first, Math.max(first, last - 1)]) this.#ask(Math.floor(row / PAGE));
  }

  #sort(key) {
    const { sort, order } = this.#query;
    const first = key === 'name' ? 'asc' : 'desc';
    this.#change({ sort: key, order: sort === key ? (order === 'asc' ? 'desc' : 'asc') : first });
  }

  #change(change) {
    Object.assign(this.#query, change);
    // An answer to an earlier question fills the former map, which no row reads.
    this.#pages = new Map();
    this.#asking = new Set();
    this.#mark();
    this.scroller.scrollTop = 0;
    this.#ask(0);
  }

  #mark() {
    const order = this.#query.order === 'asc' ? 'ascending' : 'descending';
    COLUMNS.forEach(([key], at) => set(this.#heads.cells[at], { 'aria-sort': key === this.#query.sort && order }));
  }

  async #ask(page) {
    const [pages, asking] = [this.#pages, this.#asking];
    if (asking.has(page)) return;
    asking.add(page);
    const began = performance.now();
    try {
      const query = new URLSearchParams({ top: PAGE, from: page * PAGE, ...this.#query });
      const { clients, matching, known } = await get(`${this.service.path}/clients?${query}`);
      if (pages !== this.#pages) return;
      const took = performance.now() - began;
      // The more an answer costs, the less often it is asked for.
      this.#nextAsk = performance.now() + Math.max(900, 20 * took);
      pages.set(page, clients);
      this.#matching = matching;
      setText(this.#says, matching === known ? `${count(known)} known` : `${count(matching)} of ${count(known)}`);
    } catch {
      // The status line tells. The next event asks again: to draw now would ask again at once.
      this.#nextAsk = performance.now() + 1000;
      return;
    } finally {
      asking.delete(page);
    }
    this.#paint();
  }

  #sight() {
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - 4);
    return [first, Math.min(this.#matching, first + MAX_SHOWN + 8)];
  }

  #draw() {
    const [first, last] = this.#sight();
    this.scroller.style.height = `${ROW * Math.min(MAX_SHOWN, Math.max(1, this.#matching)) + ROW + 2}px`;
    this.table.setAttribute('aria-rowcount', this.#matching + 1);
    this.#above.style.height = `${ROW * first}px`;
    this.#below.style.height = `${ROW * Math.max(0, this.#matching - last)}px`;
    const places = Array.from({ length: Math.max(0, last - first) }, (_, at) => first + at);
    keyed(this.#rows, places, (place) => place - first, () => this.#row(), (row, place) => this.#fill(row, place));
  }

  #row() {
    const cells = COLUMNS.slice(1).map(([, , narrow]) => h('td', { class: `number ${narrow}` }));
    return h('tr', {}, h('th', { scope: 'row', class: 'name' }, h('a', {}, id(''))), cells);
  }

  /** Shows the client of a place in a row, or that it is asked for. */
  #fill(row, place) {
    const page = Math.floor(place / PAGE);
    const client = this.#pages.get(page)?.[place % PAGE];
    if (!client) this.#ask(page);
    const [head, ...cells] = row.cells;
    const link = head.firstChild;
    if (client) link.setAttribute('href', this.link(client.name));
    link.firstChild.title = client?.name ?? '';
    setText(link.firstChild, client?.name ?? '…');
    COLUMNS.slice(1).forEach(([key, , , , text = () => count(client[key])], at) =>
      setText(cells[at], client ? text(client, this.service.now.enforce) : ''));
    cells[6].classList.toggle('strong', Boolean(client) && client.backlog > 0);
    row.setAttribute('aria-rowindex', place + 2);
  }
}
