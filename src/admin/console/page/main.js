// The frame of the page: the address after # names a view, and one service at a time is followed.

import { eachFrame, h, keyed, set } from './dom.js';
import { Service, connection, get, isAsking } from './api.js';
import { time } from './format.js';
import { hrefOf, overview } from './overview.js';
import { serviceView } from './service.js';
import { clientView } from './client.js';
import { lettersView } from './letters.js';
import { paceView } from './pace.js';
import { ruleForm, rulesView } from './rules.js';
import { changesView } from './changes.js';

const main = document.getElementById('main');
const nav = document.getElementById('services');
const status = document.getElementById('status');

let view = null;
let followed = null;
let path = [];
let names = [];

/** Returns the parts of the address after #; of one that is no address of this page, none. */
function parts() {
  try {
    return location.hash.replace(/^#\/?/, '').split('/').filter(Boolean).map(decodeURIComponent);
  } catch {
    return [];
  }
}

/** Shows the service that is followed once something is known of it. */
function draw() {
  if (followed?.samples.length && followed.now.name) view.show?.(followed);
}
const drawSoon = eachFrame(draw);

function follow(name) {
  if (followed?.name === name) return followed;
  followed?.stop();
  followed = name === null ? null : new Service(name, drawSoon);
  return followed;
}

function choose([kind, name, sub, client, ...rest]) {
  if (kind === 's' && name) {
    const service = follow(name);
    if (sub === 'clients' && client) return clientView(service, client);
    if (sub === 'dead-letters') return lettersView(service);
    if (sub === 'pace') return paceView(service);
    if (sub === 'rules') return client ? ruleForm(service, client, ...rest) : rulesView(service);
    return serviceView(service);
  }
  follow(null);
  return kind === 'changes' ? changesView() : overview(showNames);
}

function showNames(known) {
  names = known;
  const links = [
    ['Overview', '#/', path.length === 0],
    ...known.map((name) => [name, hrefOf('s', name), path[0] === 's' && path[1] === name]),
    ['Changes', '#/changes', path[0] === 'changes']];
  keyed(nav, links, ([name, href]) => `${href} ${name}`, ([name, href]) => h('a', { href }, name),
    (link, [, , isCurrent]) => set(link, { 'aria-current': isCurrent && 'page' }));
}

function route() {
  const isFirst = view === null;
  view?.close?.();
  path = parts();
  view = choose(path);
  document.title = `${view.title} · Watermaster`;
  main.replaceChildren(view.element);
  draw();
  showNames(names);
  window.scrollTo(0, 0);
  if (!isFirst) main.focus({ preventScroll: true });
}

connection.changed = () => {
  const { lostAt, why } = connection;
  document.body.classList.toggle('lost', lostAt !== null);
  status.textContent = isAsking() ? 'waiting for a token'
    : lostAt === null ? 'live' : `${why || 'no longer connected'} · since ${time(lostAt)} · trying again`;
};

addEventListener('hashchange', route);
route();
get('/v1/now').then(({ services }) => {
  showNames(services.map(({ now }) => now.name));
  connection.changed();
}, () => {});
