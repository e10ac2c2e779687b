// All clients of a service as a table. Only the rows in sight exist; their figures are asked for in pages.

import { h, id, setText } from './dom.js';
import { get } from './api.js';
import { count, seconds } from './format.js';

const ROW = 36;
const MAX_SHOWN = 14;
const PAGE = 100;

function loan({ lent, borrowed }) {
  if (borrowed >= 0.5) return `borrows ${count(Math.round(borrowed))}`;
  return lent >= 0.5 ? `lends ${count(Math.round(lent))}` : '–';
}
const rejected = ({ rejected: reasons }) => Object.values(reasons).reduce((sum, n) => sum + n, 0);

/** Each column: the key that sorts it, its heading, its text, and the class that hides it on narrow screens. */
const COLUMNS = [
  ['name', 'Client', null, ''],
  ['wants', 'Wants', (client) => count(client.wants), ''],
  ['default_share', 'Share', (client) => count(client.default_share), 'wide'],
  ['granted', 'Granted', (client) => count(client.granted), ''],
  ['borrowed', 'Loan', loan, 'middle'],
  ['admitted_in_last_cycle', 'Last cycle', (client) => count(client.admitted_in_last_cycle), 'middle'],
  ['admitted', 'Admitted', (client) => count(client.admitted), 'wide'],
  ['backlog', 'Backlog', (client) => count(Math.max(client.backlog, client.shadow.backlog)), ''],
  ['oldest_seconds', 'Waits', (client) => (client.oldest_seconds ? seconds(client.oldest_seconds) : '–'), 'middle'],
  ['rejected', 'Rejected', (client, enforce) => count(rejected(enforce ? client : client.shadow)), 'wide'],
];
const HINTS = {
  wants: 'Records that the client wants in this cycle',
  default_share: 'Its part of the capacity by weight',
  granted: 'Records that it may send in this cycle',
  borrowed: 'Records that it lends to others or borrows from them',
  admitted_in_last_cycle: 'Records admitted in the last full cycle',
  admitted: 'Records admitted since the start',
  backlog: 'Records that are delayed now',
  oldest_seconds: 'The wait of its oldest delayed record',
  rejected: 'Records rejected since the start',
};

export class ClientTable {
  #query = { sort: 'wants', order: 'desc', find: '' };
  #pages = new Map();
  #asking = new Map();
  #generation = 0;
  #nextAsk = 0;
  #rows = [];
  #matching = 0;
  #frame = 0;
  #says = h('p', { class: 'hint', role: 'status', 'aria-live': 'polite' });
  #above = h('tr', { 'aria-hidden': 'true' });
  #below = h('tr', { 'aria-hidden': 'true' });
  #body = h('tbody', {}, this.#above, this.#below);
  #heads = new Map();

  constructor(service, link) {
    Object.assign(this, { service, link });
    const heads = COLUMNS.map(([key, name, , narrow]) => {
      const head = h('th', { scope: 'col', class: `${key === 'name' ? 'name' : 'number'} ${narrow}` },
        h('button', { type: 'button', title: HINTS[key], onclick: () => this.#sort(key) }, name));
      this.#heads.set(key, head);
      return head;
    });
    this.table = h('table', { class: 'clients' }, h('caption', { class: 'unseen' }, 'Clients'),
      h('thead', {}, h('tr', {}, heads)), this.#body);
    const region = { class: 'scroller', tabindex: '0', role: 'region', 'aria-label': 'Clients' };
    this.scroller = h('div', { ...region, onscroll: () => this.#paint() }, this.table);
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
    const [from, to] = [first, Math.max(first, last - 1)].map((row) => Math.floor(row / PAGE));
    for (let page = from; page <= to; page++) this.#ask(page);
  }

  close() {
    cancelAnimationFrame(this.#frame);
  }

  #sort(key) {
    const { sort, order } = this.#query;
    const first = key === 'name' ? 'asc' : 'desc';
    this.#change({ sort: key, order: sort === key ? (order === 'asc' ? 'desc' : 'asc') : first });
  }

  #change(change) {
    Object.assign(this.#query, change);
    this.#generation += 1;
    this.#pages.clear();
    this.#asking.clear();
    this.#mark();
    this.scroller.scrollTop = 0;
    this.#ask(0);
  }

  #mark() {
    for (const [key, head] of this.#heads) {
      const order = this.#query.order === 'asc' ? 'ascending' : 'descending';
      if (key === this.#query.sort) head.setAttribute('aria-sort', order);
      else head.removeAttribute('aria-sort');
    }
  }

  async #ask(page) {
    const generation = this.#generation;
    if (this.#asking.has(page)) return;
    this.#asking.set(page, true);
    const began = performance.now();
    try {
      const query = new URLSearchParams({ top: PAGE, from: page * PAGE, ...this.#query });
      const { clients, matching, known } = await get(`${this.service.path}/clients?${query}`);
      if (generation !== this.#generation) return;
      const took = performance.now() - began;
      // The more an answer costs, the less often it is asked for.
      this.#nextAsk = performance.now() + Math.max(900, 20 * took);
      this.#pages.set(page, clients);
      this.#matching = matching;
      setText(this.#says, matching === known ? `${count(known)} known` : `${count(matching)} of ${count(known)}`);
    } catch {
      // The status line tells; the events begin again, and so does this.
    } finally {
      if (generation === this.#generation) this.#asking.delete(page);
    }
    this.#paint();
  }

  #sight() {
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - 4);
    return [first, Math.min(this.#matching, first + MAX_SHOWN + 8)];
  }

  #paint() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
    });
  }

  #draw() {
    const [first, last] = this.#sight();
    this.scroller.style.height = `${ROW * Math.min(MAX_SHOWN, Math.max(1, this.#matching)) + ROW + 2}px`;
    this.table.setAttribute('aria-rowcount', this.#matching + 1);
    while (this.#rows.length < last - first) {
      const row = this.#row();
      this.#rows.push(row);
      this.#below.before(row.element);
    }
    while (this.#rows.length > Math.max(0, last - first)) this.#rows.pop().element.remove();
    this.#above.style.height = `${ROW * first}px`;
    this.#below.style.height = `${ROW * Math.max(0, this.#matching - last)}px`;
    const { enforce } = this.service.now;
    this.#rows.forEach((row, at) => {
      const place = first + at;
      const client = this.#pages.get(Math.floor(place / PAGE))?.[place % PAGE];
      if (!client) this.#ask(Math.floor(place / PAGE));
      row.element.setAttribute('aria-rowindex', place + 2);
      row.show(client, enforce);
    });
  }

  #row() {
    const name = id('');
    const link = h('a', {}, name);
    const cells = COLUMNS.slice(1).map(([, , , narrow]) => h('td', { class: `number ${narrow}` }));
    const show = (client, enforce) => {
      setText(name, client?.name ?? '…');
      name.title = client?.name ?? '';
      if (client) link.setAttribute('href', this.link(client.name));
      cells.forEach((cell, at) => setText(cell, client ? COLUMNS[at + 1][2](client, enforce) : ''));
      cells[6].classList.toggle('strong', Boolean(client) && client.backlog > 0);
    };
    return { element: h('tr', {}, h('th', { scope: 'row', class: 'name' }, link), cells), show };
  }
}

