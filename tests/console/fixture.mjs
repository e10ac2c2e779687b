// Stands in for an instance with very many clients, or with ids that no campaign has: the page's own files, and answers
// of /v1 as an instance gives them.

import fs from 'node:fs';
import http from 'node:http';

const PAGE = new URL('../../src/admin/console/page/', import.meta.url);
const TYPES = { html: 'text/html', js: 'text/javascript', css: 'text/css', svg: 'image/svg+xml' };

const none = { admitted: 0, delayed: 0, rejected: { over_allocation: 0 }, backlog: 0 };
const delays = { records: 3, p50_seconds: 0.5, p99_seconds: 4.2, longest_seconds: 4.2 };

/** Makes a client as /v1 shows it. */
function client(name, at) {
  const wants = (at * 7919) % 100_003;
  return {
    name,
    wants,
    default_share: 20,
    granted: 20 + (at % 5),
    ...none,
    admitted: at,
    backlog: at % 100,
    lent: 0,
    borrowed: at % 5,
    oldest_seconds: (at % 100) / 10,
    shadow: none,
    configured: true,
    admitted_in_cycle: 1,
    admitted_in_last_cycle: at % 20,
    used_ratio: 0.1,
    limit: null,
    backlog_bytes: 0,
    next_admission_seconds: 1,
    delays,
    shadow_delays: delays,
  };
}

/** Serves a service with clients of these names; `policy` is the security policy of the page. Returns its address. */
export async function serve(names, policy) {
  const clients = names.map(client);
  const sorted = new Map();
  const inOrder = (sort, order) => {
    const key = `${sort} ${order}`;
    const sign = order === 'asc' ? 1 : -1;
    const by = sort === 'name' ? (a, b) => (a.name < b.name ? -sign : sign) : (a, b) => sign * (a[sort] - b[sort]);
    if (!sorted.has(key)) sorted.set(key, [...clients].sort(by));
    return sorted.get(key);
  };
  const busiest = Object.fromEntries(clients.slice(0, 8).map(({ name }) => [name, [5, 20, 3]]));
  // The backlog shrinks by a record each second.
  const start = Date.now();
  const sample = (at_ms) => ({
    at_ms,
    capacity: 100,
    admitted: 60,
    delayed: 1,
    rejected: 0,
    wants: 9,
    granted: 9,
    backlog: 24 + Math.max(0, Math.round((start - at_ms) / 1000) + 900),
    clients: busiest,
  });
  const loans = clients.slice(0, 8).map(({ name }) => ({ client: name, records: 4 }));
  const now = {
    name: 'kyc',
    mode: 'shape',
    enforce: true,
    capacity: 100,
    cycle_seconds: 1,
    cycle: 7,
    window_admitted: 60,
    window_admitted_max: 99,
    ready: true,
    trouble: null,
    pace: null,
    groups: [],
    known_clients: clients.length,
    done: { ...none, backlog: 24 },
    shadow: none,
    lent: 40,
    borrowed: 40,
    lenders: loans,
    borrowers: loans,
    demands: loans.map((loan) => ({ client: loan.client, wants: 90, default_share: 9 })),
    held: [names[0]],
    held_clients: 1,
    within_share: 3,
    waits_within_share: { client: names[0], seconds: 0.2 },
    longest_wait: { client: names[0], seconds: 9 },
    target_lag: null,
    dead_letters: { offsets: 2, oldest_ms: 1_700_000_000_000 },
    group: {
      state: 'active',
      capacity: 100,
      hold: 60,
      target: 60,
      ahead: 1,
      circulating: 100,
      configurations: 1,
      members: [
        {
          instance: names[0],
          life: '0',
          state: 'live',
          hold: 60,
          used: 20,
          target: 60,
          ahead: 1,
          capacity: 100,
          configuration: '0',
          state_age_seconds: 0,
        },
      ],
    },
  };
  const change = {
    at: '2026-11-26T10:00:00Z',
    by: 'token ops',
    key: `service[0].client.${names[0]}`,
    service: 'kyc',
    from: 1,
    to: names[0],
    origin: 'a.toml:3',
    doubtful_factor: null,
  };

  const server = http.createServer((request, answer) => {
    const { pathname, searchParams } = new URL(request.url, 'http://fixture');
    const json = (value) => answer.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(value));
    const file =
      pathname === '/' ? 'index.html' : pathname.startsWith('/console/') ? pathname.slice('/console/'.length) : null;
    if (file) {
      answer.writeHead(200, { 'content-type': TYPES[file.split('.').at(-1)], 'content-security-policy': policy });
      answer.end(fs.readFileSync(new URL(file, PAGE)));
    } else if (pathname === '/v1/now') json({ services: [{ samples: [sample(Date.now())], now }] });
    else if (pathname === '/v1/changes') json({ changes: [change] });
    else if (pathname.endsWith('/rules/changes')) {
      json({ changes: [{ at: change.at, by: names[0], name: names[0], etag: '1', rule: null }] });
    } else if (pathname.endsWith('/rules')) {
      const rule = { clients: names.slice(0, 3), hold: true, limit: { rate: 1, per: '1s' }, note: names[0] };
      const view = { name: names[0], origin: 'run_time', state: 'in_force', etag: '1-0', by: names[0], at: change.at, rule };
      const later = { ...view, state: 'not_understood', rule: { clients: 'a', limit: null }, warnings: ['of form 2'] };
      json({ service: 'kyc', age_seconds: 0, rules: [{ ...later, name: 'later' }, view], next: null });
    } else if (searchParams.has('dry_run')) {
      const effects = clients.slice(0, 3).map(({ name, wants, backlog }) => ({
        ...{ name, wants, backlog, before: [], after: [], granted_before: 9, granted_after: 9 },
        ...{ limit_before: null, limit_after: 4.4 },
      }));
      json({ dry_run: true, changed: 7, clients: effects, warnings: [] });
    } else if (pathname.endsWith('/explain')) {
      const rule = { name: names[0], origin: 'file', priority: 0, value: '1' };
      const field = { field: 'weight', value: '1', rule, why: names[0], losers: [] };
      json({ at: change.at, client: names[0], group: null, fields: [field], of_group: [], of_service: [] });
    } else if (pathname.endsWith('/dead-letters')) {
      const place = { topic: names[0], partition: 0, at_ms: 1_700_000_000_000, state: 'open', rejected_at: change.at };
      const headers = [...names.slice(0, 20).map((name) => ({ name, value: name })), { name: 'none', value: null }];
      const letters = [0, 1].map((offset) => ({ ...place, offset, reason: 'expired', headers }));
      letters[1].rejected_at = null;
      json({ service: 'kyc', read_ms: Date.now(), complete: true, letters });
    } else if (pathname.endsWith('/events')) {
      answer.writeHead(200, { 'content-type': 'text/event-stream' });
      const tell = (samples, changed) => answer.write(`data: ${JSON.stringify({ samples, now: changed })}\n\n`);
      tell(
        Array.from({ length: 900 }, (_, at) => sample(Date.now() - 1000 * (900 - at))),
        now,
      );
      const timer = setInterval(() => tell([sample(Date.now())], {}), 1000);
      answer.on('close', () => clearInterval(timer));
    } else if (pathname.endsWith('/clients')) {
      const find = searchParams.get('find')?.toLowerCase() ?? '';
      const matching = inOrder(searchParams.get('sort') ?? 'wants', searchParams.get('order') ?? 'desc').filter(
        ({ name }) => name.toLowerCase().includes(find),
      );
      const from = Number(searchParams.get('from') ?? 0);
      json({
        service: 'kyc',
        known: clients.length,
        matching: matching.length,
        clients: matching.slice(from, from + Number(searchParams.get('top') ?? 10)),
      });
    } else {
      const found = clients.find(({ name }) => pathname.endsWith(`/${encodeURIComponent(name)}`));
      if (found) json(found);
      else answer.writeHead(404).end('{"error":"no such client"}');
    }
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}
