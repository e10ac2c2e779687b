// Elements are made from text and never from HTML: a client id may be anything.

const SVG = 'http://www.w3.org/2000/svg';

/** Sets attributes, listeners (`onclick`) and children, of which empty ones are left out. */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter((child) => (child ?? false) !== false));
  return element;
}

/** Makes an HTML element. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Makes an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Shows a client id apart from the text around it, whatever its direction. */
export function id(name, attributes = {}) {
  return h('bdi', { class: 'id', title: name, ...attributes }, name);
}

/** Sets a text only where it changes, so that screen readers and selections are left alone. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Makes the children of an element those of a list. Each keeps its element, and so its focus, with its key. */
export function keyed(parent, items, key, make, update = () => {}) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let next = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = before.get(name);
    before.delete(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
    update(child, item);
  }
  for (const child of before.values()) child.remove();
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

/** Joins client ids as a sentence does, and counts those that are too many. */
export function listed(names, most = 3) {
  const parts = names.slice(0, names.length > most + 1 ? most : most + 1).map((name) => id(name));
  const others = names.length - parts.length;
  if (others > 0) parts.push(`${others} more`);
  return parts.flatMap((part, at) => (at === 0 ? [part] : [at === parts.length - 1 ? ' and ' : ', ', part]));
}
