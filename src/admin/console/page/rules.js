// The rules of a service, and a form that shows what a change would do before it makes it.

import { card, h, id, keyed, put, row, set, setText, table } from './dom.js';
import { get, poll, send } from './api.js';
import { hrefOf, state } from './overview.js';
import { trend } from './chart.js';
import { tabs } from './service.js';
import { count, moment, plural, seconds, shown } from './format.js';

const ABOUT = ['name', 'service', 'groups', 'clients', 'in_groups', 'priority', 'from', 'until', 'disabled', 'note'];
/** The words for the states of rules. */
const STATES = { in_force: 'in force', not_yet: 'not yet', not_understood: 'not understood' };

const limitText = ({ rate, per, burst, scale }) => [`${rate} in ${per}`, burst !== undefined && `at once ${burst}`,
  scale && 'times the weight'].filter(Boolean).join(', ');

function target({ service, groups, clients, in_groups: within }) {
  if (service) return 'the service';
  const lines = (groups ?? clients ?? []).join(', ');
  return `${groups ? 'groups' : 'clients'} ${lines}${within ? ` in groups ${within.join(', ')}` : ''}`;
}

/** Returns the values that a rule sets, as text. */
function effects(rule) {
  const one = ([key, value]) => `${key} ${key === 'limit' ? limitText(value) : shown(value)}`;
  return Object.entries(rule).filter(([key]) => !ABOUT.includes(key)).map(one).join(', ');
}

/** Returns the target of a rule and its values as text. One that a later version wrote may have another form. */
function described(rule) {
  try {
    return [target(rule), effects(rule)];
  } catch {
    return ['–', shown(rule)];
  }
}

function holds({ state: word, rule, warnings = [] }) {
  const from = rule.from && word === 'not_yet' && `from ${moment(rule.from)}`;
  const until = rule.until && word !== 'expired' && `until ${moment(rule.until)}`;
  return [STATES[word] ?? word, from, until, ...warnings].filter(Boolean).join(', ');
}

const pathOf = (service, name) => `${service.path}/rules/${encodeURIComponent(name)}`;
const link = (service, text, ...parts) => h('a', { href: hrefOf('s', service.name, 'rules', ...parts) }, text);

/** Makes links to the changes that suit one client; `holding` is the rule that holds it, if there is one. */
export function clientActions(service, client, holding) {
  return h('p', { class: 'actions' },
    holding ? link(service, 'Release…', 'end', holding) : link(service, 'Hold…', 'new', 'hold', client),
    ['weight', 'limit'].map((effect) => link(service, `Set a ${effect}…`, 'new', effect, client)));
}

/** Shows the rules of a service. */
export function rulesView(service) {
  const [head, actions, rows] = [h('div', {}), h('p', { class: 'actions' }), h('tbody')];
  const hint = h('p', { class: 'hint' });
  const rowOf = (view) => {
    const { name, origin, rule, by, at } = view;
    const author = by === null ? 'the configuration' : [by, ', ', h('time', { datetime: at }, moment(at))];
    return row(h('bdi', { class: 'code' }, name), [...described(rule), rule.priority ?? 0, holds(view)],
      h('td', {}, author, rule.note && h('bdi', { class: 'why' }, ` ${rule.note}`)),
      h('td', { class: 'actions' }, link(service, 'Change…', 'change', name),
        origin === 'run_time' && link(service, 'End…', 'end', name)));
  };
  const stop = poll(`${service.path}/rules?limit=200`, ({ rules, age_seconds: age, next }) => {
    setText(hint, [age === null && 'Without a rules_topic, rules can be tried here and change by a reload.',
      next !== null && 'These are the first 200; `watermaster rules ls` prints all.'].filter(Boolean).join(' '));
    keyed(rows, rules, (view) => JSON.stringify(view), rowOf);
  });
  const none = h('p', { class: 'none' }, 'There is no rule. Weights and limits of the configuration hold without one.');
  const list = table(['Rule', 'For', 'Sets', 'Priority', 'State', 'By', 'Change'], rows);
  const element = h('div', {}, h('h1', {}, service.name), head, tabs(service.name, 'rules'), actions,
    card('Rules', hint, none, list));
  function show({ now }) {
    put(head, state(now));
    const links = [['New rule…'], ['Change the capacity…', 'capacity'],
      [now.enforce ? 'Shadow mode…' : 'Enforce…', 'enforce']];
    keyed(actions, links, ([text]) => text, ([text, ...effect]) => link(service, text, 'new', ...effect));
  }
  return { title: `Rules · ${service.name}`, element, show, close: stop };
}

/** Returns a time as its field takes it: in the reader's time zone, to the minute. */
const local = (at) => new Date(Date.parse(at) - 60_000 * new Date(at).getTimezoneOffset()).toISOString().slice(0, 16);

/** The fields of the form: key, label, what is typed or chosen, and a word for those that only rules of clients and
  groups have, or only rules of the service. Others that a rule has are kept as they are. */
const FIELDS = [
  ['weight', 'Weight', { type: 'number', min: 0.001, max: 1_000_000, step: 0.001 }, 'of-clients'],
  ['rate', 'Limit: records', { type: 'number', min: 1 }, 'of-clients'],
  ['per', 'in', { placeholder: '1s' }, 'of-clients'],
  ['burst', 'at once', { type: 'number', min: 1 }, 'of-clients'],
  ['hold', 'Hold: admit nothing', ['', 'true', 'false'], 'of-clients'],
  ['capacity', 'Capacity', { type: 'number', min: 1 }, 'of-service'],
  ['enforce', 'Enforce', ['', 'true', 'false'], 'of-service'],
  ['priority', 'Priority', { type: 'number', min: -1000, max: 1000 }],
  ['from', 'From (your time)', { type: 'datetime-local' }],
  ['until', 'Until (your time)', { type: 'datetime-local' }],
  ['disabled', 'Disabled', ['', 'true', 'false']], ['note', 'Note', { maxlength: 256 }],
];

/** Makes the form for a rule, and returns the way to fill and to read it. */
function makeForm() {
  const options = (texts) => h('select', {}, texts.map((text) => h('option', { value: text }, text || 'not set')));
  const inputs = { name: h('input', { required: true, maxlength: 64, pattern: '[a-z0-9._\\-]+' }),
    target: options(['clients', 'groups', 'service']), which: h('textarea', { rows: 2, spellcheck: 'false' }) };
  const label = (text, input) => h('label', {}, h('span', {}, text), input);
  const labels = FIELDS.map(([key, text, kind]) =>
    label(text, inputs[key] = Array.isArray(kind) ? options(kind) : h('input', kind)));
  const which = label('Ids or patterns with *, one a line', inputs.which);
  const element = h('div', { class: 'form' }, label('Name of the rule', inputs.name), label('For', inputs.target),
    which, labels);
  let former = {};
  /** Switches off, and so hides, the fields that the rule can't have. */
  function fit() {
    const unfit = inputs.target.value === 'service' ? 'of-clients' : 'of-service';
    for (const [key, , , of] of [...FIELDS, ['which', '', {}, 'of-clients']]) inputs[key].disabled = of === unfit;
  }
  set(inputs.target, { onchange: fit });
  fit();
  function fill(rule) {
    former = rule;
    const values = { ...rule, ...rule.limit };
    inputs.target.value = rule.service ? 'service' : rule.groups ? 'groups' : 'clients';
    const which = (rule.groups ?? rule.clients ?? []).join('\n');
    Object.assign(inputs.which, { defaultValue: which, value: which });
    for (const [key, , kind] of FIELDS) {
      const value = String(values[key] ?? '');
      const text = value && kind.type === 'datetime-local' ? local(value) : value;
      Object.assign(inputs[key], { defaultValue: text, value: text });
    }
    fit();
  }
  /** Returns the rule as the API takes it: fields that are not in the form stay. */
  function read() {
    const rule = { ...former };
    for (const key of [...ABOUT, 'limit', ...FIELDS.map(([key]) => key)]) if (key !== 'in_groups') delete rule[key];
    const about = inputs.target.value;
    const { value: which, defaultValue: formerWhich } = inputs.which;
    // An id may begin or end with a space, and hold a line break, which only an unchanged list can tell from two ids.
    rule[about] = about === 'service'
      || (which === formerWhich && former[about] ? former[about] : which.split('\n').filter((line) => line.trim()));
    for (const [key, , kind] of FIELDS) {
      const { value, defaultValue, disabled } = inputs[key];
      if (value === '' || disabled) continue;
      if (key === 'rate')
        rule.limit = { ...former.limit, rate: Number(value), per: inputs.per.value || '1s', burst: undefined };
      else if (key === 'burst') rule.limit = { ...rule.limit, burst: Number(value) };
      else if (kind.type === 'number') rule[key] = Number(value);
      else if (kind.type === 'datetime-local')
        rule[key] = value === defaultValue ? former[key] : new Date(value).toISOString();
      else if (Array.isArray(kind)) rule[key] = value === 'true';
      else if (key !== 'per') rule[key] = value;
    }
    return rule;
  }
  return { element, inputs, fill, read };
}

function backlogIs(backlog, growth) {
  if (growth === null) return 'not known';
  if (growth >= 0.5) return `grows by ${count(Math.round(growth))} a second`;
  if (backlog === 0) return 'none';
  return growth > -0.5 ? 'stays' : `gone in ${seconds(backlog / -growth)}`;
}

/** Makes the table of what a change would do to the clients. */
function effectOf({ changed, clients, warnings = [] }, { now: { cycle_seconds: cycle }, samples }) {
  const warns = warnings.map((warning) => h('p', { class: 'badge warn' }, warning));
  if (changed === 0) return [h('p', {}, 'No client would get another value or another grant.'), ...warns];
  const rows = clients.map(({ name, wants, backlog, ...effect }) => {
    // A limit does not change a grant.
    const [before, after] = ['before', 'after'].map((when) =>
      Math.min(effect[`granted_${when}`], effect[`limit_${when}`] ?? Infinity));
    const growth = trend(samples, ({ clients: all }) => all.get(name)?.[2]);
    // No more is admitted than is wanted. The records that come stay as they are.
    const more = (Math.min(after, wants) - Math.min(before, wants)) / cycle;
    const then = backlogIs(backlog, growth === null ? null : growth - more);
    return row(id(name), [count(wants), count(backlog), `${count(before)} → ${count(after)}`,
      `${backlogIs(backlog, growth)} → ${then}`]);
  });
  const others = changed > clients.length ? `; the first ${clients.length} by their wants:` : '.';
  return [h('p', {}, `${plural(changed, 'client')} would get another value or another grant${others}`),
    ...warns,
    table(['Client', 'Wants', 'Delayed', 'May send in a cycle', 'Its backlog'], h('tbody', {}, rows))];
}

/** Returns the start of a new rule with an effect, perhaps for one client. */
function preset(effect, client, now) {
  const effects = {
    capacity: { service: true, capacity: now.capacity }, enforce: { service: true, enforce: !now.enforce },
    hold: { hold: true }, weight: { weight: 2 }, limit: { limit: { rate: 10, per: '1s' } },
  };
  const clients = client === undefined ? [] : [client.replaceAll('*', '\\*')];
  return { clients, until: new Date(Date.now() + 3_600_000).toISOString(), ...effects[effect] };
}

/** Shows the form to make a new rule (for one `effect`, for one `client`), to change one, or to end one. */
export function ruleForm(service, verb, subject, client) {
  const isEnd = verb === 'end';
  const { element: form, inputs, fill, read } = makeForm();
  const [says, effect] = [h('div', { role: 'status' }), h('div', {})];
  const confirm = h('button', { type: 'button', hidden: true, onclick: () => make().catch(refused) },
    isEnd ? 'End the rule' : 'Put it in force');
  const text = h('p', {}, 'This rule no longer holds once it has ended.');
  let [etag, wasFilled, edits] = [null, false, 0];
  const say = (...texts) => put(says, texts.map((line) => h('p', {}, h('bdi', {}, line))));
  const undecided = () => {
    edits += 1;
    confirm.hidden = true;
    put(effect);
    say();
  };
  const write = (query, headers) => send(`${pathOf(service, inputs.name.value)}${query}`, isEnd ? 'DELETE' : 'PUT',
    isEnd ? undefined : read(), headers);
  function refused(why) {
    confirm.hidden = true;
    const { in_force: other, errors = [] } = why.body ?? {};
    if (why.status !== 412) return say(why.message, ...errors.map(({ key, problem, allowed }) =>
      `${key} ${problem}; allowed: ${allowed}`));
    etag = other?.etag ?? null;
    return say(other ? `${other.by} has put another version of this rule in force at ${moment(other.at)}: ${
      described(other.rule).join(', ')}.` : 'This rule has been ended meanwhile.',
    'Your change was not made. Try it again to put it in the place of that version.');
  }
  async function attempt() {
    undecided();
    const of = edits;
    const answer = await write('?dry_run=true');
    // An answer to what has been edited since says nothing.
    if (of !== edits) return;
    put(effect, effectOf(answer, service));
    confirm.hidden = false;
  }
  async function make() {
    confirm.hidden = true;
    const stated = etag === null ? { 'If-None-Match': '*' } : { 'If-Match': `"${etag}"` };
    await write('', stated);
    location.hash = hrefOf('s', service.name, 'rules');
  }
  const tries = h('button', { type: 'submit' }, 'See what it would do');
  // Outside of a dialog, a form with this method is not sent.
  // The version is that of the rule with the former name.
  set(inputs.name, { oninput: () => { etag = null; } });
  const body = h('form', { method: 'dialog', oninput: undecided, onsubmit: () => attempt().catch(refused) },
    isEnd ? text : form, h('p', { class: 'actions' }, tries, confirm, link(service, 'Back to the rules')),
    says, effect);
  if (verb !== 'new') {
    Object.assign(inputs.name, { value: subject, readOnly: true });
    get(pathOf(service, subject)).then((found) => {
      etag = found.etag === 'file' ? null : found.etag;
      if (!isEnd) fill(found.rule);
      put(text, h('bdi', {}, `It is for ${described(found.rule).join(' and sets ')}.`));
    }).catch(refused);
  }
  function show({ now }) {
    if (wasFilled || verb !== 'new') return;
    wasFilled = true;
    fill(preset(subject, client, now));
    const words = [subject, client].filter(Boolean).join('-').toLowerCase();
    inputs.name.value = words.replace(/[^a-z0-9._-]+/g, '-').slice(0, 64);
  }
  const title = isEnd ? `End the rule ${subject}` : verb === 'change' ? `Change the rule ${subject}` : 'New rule';
  const element = h('div', {}, h('h1', {}, service.name), tabs(service.name, 'rules'), card(title, body));
  return { title: `${title} · ${service.name}`, element, show };
}
