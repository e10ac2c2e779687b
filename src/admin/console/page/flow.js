// Lending as a flow: the clients that lend on the left, the clients that borrow on the right.

import { h, svg, keyed, listed, put, set } from './dom.js';
import { count, sum } from './format.js';

const ROW = 34;
const MIDDLE = 100;

export class Flow {
  #from = h('ul', { class: 'ends from' });
  #to = h('ul', { class: 'ends to' });
  #ribbons = svg('svg', { class: 'ribbons', 'aria-hidden': 'true', preserveAspectRatio: 'none' });
  #says = h('p', { class: 'says' });
  #loans = h('p', { class: 'says' });
  element = h('section', { class: 'card flow' }, h('h3', {}, 'Lending, this cycle'), this.#says,
    h('div', { class: 'streams' }, this.#from, this.#ribbons, this.#to), this.#loans);

  constructor(link) {
    this.link = link;
  }

  update({ lenders, borrowers, lent, borrowed }, palette) {
    // Parts of a record come from rounding alone.
    const ends = (list, all) => [...list, { client: null, records: all - sum(list.map((loan) => loan.records)) }]
      .filter((loan) => loan.records >= 1);
    const [from, to] = [ends(lenders, lent), ends(borrowers, borrowed)];
    const key = ({ client }) => (client === null ? 'others' : `client ${client}`);
    const row = ({ client }) => h('li', {}, client === null ? 'all others' : this.link(client), h('b'));
    const update = (element, loan) => {
      const n = Math.round(loan.records);
      put(element.lastChild, h('span', {}, count(n)), h('span', { class: 'unit' }, n === 1 ? ' record' : ' records'));
    };
    keyed(this.#from, from, key, row, update);
    keyed(this.#to, to, key, row, update);
    this.#says.textContent = from.length === 0 && to.length === 0
      ? 'No client lends or borrows: each is granted its default share.'
      : `${count(Math.round(Math.max(lent, borrowed)))} records of the capacity are on loan.`;
    const named = from.map(({ client }) => client).filter((client) => client !== null);
    const lend = named.length === 1 ? ' wants less than its share and lends the rest.'
      : ' want less than their shares and lend the rest.';
    put(this.#loans, named.length > 0 && [listed(named), lend]);
    const height = ROW * Math.max(1, from.length, to.length);
    const whole = Math.max(1, lent, borrowed);
    const pool = 0.8 * ROW * Math.min(3, Math.max(1, from.length), Math.max(1, to.length));
    // Each ribbon joins the middle of its row to its part of the pool.
    const ribbons = (list, side) => {
      let above = (height - pool) / 2;
      return list.map((loan, at) => {
        const thick = (pool * loan.records) / whole;
        const [row, part] = [ROW * (at + 0.5), above + thick / 2];
        above += thick;
        const [x, bend] = side === 'from' ? [0, MIDDLE / 2] : [2 * MIDDLE, 1.5 * MIDDLE];
        const d = `M${x},${row}C${bend},${row} ${bend},${part} ${MIDDLE},${part}`;
        return svg('path', { class: `ribbon ${palette.of(loan.client)}`, d, 'stroke-width': Math.max(1.5, thick) });
      });
    };
    set(this.#ribbons, { viewBox: `0 0 ${2 * MIDDLE} ${height}`, height });
    put(this.#ribbons, ribbons(from, 'from'), ribbons(to, 'to'));
  }
}
