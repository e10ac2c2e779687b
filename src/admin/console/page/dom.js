// Elements are made from text and never from HTML: a client id may be anything.

const SVG = 'http://www.w3.org/2000/svg';

const isGiven = (value) => value !== null && value !== undefined && value !== false;

/** Sets attributes and listeners (`onclick`). An attribute without a value is removed. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (isGiven(value)) element.setAttribute(name, value === true ? '' : value);
    else element.removeAttribute(name);
  }
  return element;
}

/** Makes these the children of an element. Those without a value are left out. */
export function put(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter(isGiven));
  return element;
}

/** Makes an HTML element. */
export function h(tag, attributes = {}, ...children) {
  return put(set(document.createElement(tag), attributes), children);
}

/** Makes an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return put(set(document.createElementNS(SVG, tag), attributes), children);
}

/** Shows a client id apart from the text around it, whatever its direction. */
export function id(name) {
  return h('bdi', { class: 'id', title: name }, name);
}

/** Sets a text only where it changes, so that screen readers and selections are left alone. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Returns a function that draws with the next frame, however often it is called until then. */
export function eachFrame(draw) {
  let frame = 0;
  const now = () => {
    frame = 0;
    draw();
  };
  return () => { frame ||= requestAnimationFrame(now); };
}

/** Makes the children of an element those of a list. Each keeps its element, and so its focus, with its key. */
export function keyed(parent, items, key, make, update = () => {}) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, at) => {
    const name = String(key(item));
    const child = before.get(name) ?? make(item);
    before.delete(name);
    child.dataset.key = name;
    if (child !== parent.children[at]) parent.insertBefore(child, parent.children[at] ?? null);
    update(child, item);
  });
  while (parent.children.length > items.length) parent.lastElementChild.remove();
}

/** Makes a definition list: each row has a name, a value and perhaps an explanation. */
export function facts(rows) {
  return h('dl', { class: 'facts' }, rows.filter(Boolean).map(([name, value, why]) =>
    h('div', {}, h('dt', {}, name),
      h('dd', {}, h('div', { class: 'value' }, value), why && h('div', { class: 'why' }, why)))));
}

/** Makes a card with a heading. */
export function card(title, ...children) {
  return h('section', { class: 'card' }, h('h3', {}, title), children);
}

/** Makes a table with a heading for each column. Its body has its rows, or gets them later. */
export function table(heads, body) {
  return h('table', { class: 'plain' },
    h('thead', {}, h('tr', {}, heads.map((name) => h('th', { scope: 'col' }, name)))), body);
}

/** Makes a row of a table from its heading, from texts of any direction, and from cells that are made already. */
export function row(head, texts, ...cells) {
  return h('tr', {}, h('th', { scope: 'row' }, head), texts.map((text) => h('td', {}, h('bdi', {}, text))), cells);
}

/** Joins client ids as a sentence does, and counts those that are too many. */
export function listed(names, all = names.length) {
  const parts = names.slice(0, all > 4 ? 3 : 4).map(id);
  if (all > parts.length) parts.push(`${all - parts.length} more`);
  return parts.flatMap((part, at) => [at === 0 ? '' : at === parts.length - 1 ? ' and ' : ', ', part]);
}
