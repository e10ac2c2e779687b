// Drives the console in Chromium. scripts/console runs it; see there for its environment.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import puppeteer from 'puppeteer-core';
import { serve } from './fixture.mjs';

const PROGRAM = process.env.WATERMASTER_TEST_PROGRAM ?? 'target/debug/watermaster';
const AXE = fs.readFileSync(new URL('node_modules/axe-core/axe.min.js', import.meta.url), 'utf8');
const TOKEN = 'correct-horse-battery';
const STRONGER = 'staple-correct-horse';
/** Client ids that would run, turn the text around or take no room, if they were not shown as text. */
const HOSTILE = [
  '<img src=x onerror=alert(1)>',
  '\u202eright-to-left',
  `a${'\u0301'.repeat(60)}`,
  '__proto__',
  '"><script>alert(1)</script>',
  '𝔘𝔫𝔦/%2F?#',
  '.',
  '..',
];

let browser;
let folder;
const children = [];
/** The problems that any page reported: violations of the security policy, errors, requests to other hosts. */
const problems = [];

before(async () => {
  browser = await puppeteer.launch({
    executablePath: process.env.CHROMIUM,
    args: ['--no-sandbox', '--disable-gpu'],
  });
  folder = fs.mkdtempSync(path.join(os.tmpdir(), 'watermaster-console.'));
});
after(async () => {
  await browser?.close();
  await Promise.all(children.map(stop));
  fs.rmSync(folder, { recursive: true, force: true });
});

// ---- tools

function start(args) {
  const child = spawn(PROGRAM, args, {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, RUST_LOG: 'error' },
  });
  children.push(child);
  child.firstLine = new Promise((resolve) => {
    let text = '';
    child.stdout.on('data', (data) => {
      text += data;
      if (text.includes('\n')) resolve(text.split('\n')[0]);
    });
    child.on('exit', () => resolve(text));
  });
  return child;
}

async function stop(child) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise((resolve) => child.on('exit', resolve));
  child.kill('SIGKILL');
  await ended;
}

async function freePort() {
  const server = net.createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Repeats a question until its answer is right; a test that waits for ever ends by its own limit. */
async function until(what, ask) {
  for (const deadline = Date.now() + 60_000; ;) {
    const answer = await ask().catch((why) => {
      if (Date.now() > deadline) throw why;
    });
    if (answer) return answer;
    if (Date.now() > deadline) throw new Error(`never: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

async function open(url, { width = 1280, height = 900, scheme = 'light', scale = 1 } = {}) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  const host = new URL(url).host;
  page.on('pageerror', (error) => problems.push(`${error}`));
  page.on('dialog', (dialog) => {
    problems.push(`a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on('console', (message) => {
    if (/Content Security|Trusted/i.test(message.text())) problems.push(message.text());
  });
  page.on('request', (request) => {
    // Browsers draw some fields with pictures of their own.
    const { host: asked, protocol } = new URL(request.url());
    if (asked !== host && protocol !== 'data:') problems.push(`a request to ${request.url()}`);
  });
  await page.evaluateOnNewDocument(() =>
    addEventListener('securitypolicyviolation', (event) =>
      console.log(`Content Security: ${event.violatedDirective} ${event.blockedURI}`),
    ),
  );
  await page.setViewport({ width, height, deviceScaleFactor: scale });
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
  await page.goto(url);
  return page;
}

const close = (page) => page.browserContext().close();
const go = (page, hash) =>
  page.evaluate((to) => {
    location.hash = to;
  }, hash);
const textOf = (page, selector) => page.$eval(selector, (element) => element.textContent);
const status = (page) => textOf(page, '#status');
const live = (page) => until('live', async () => (await status(page)) === 'live');
/** The text of a tile with this title. */
const tile = (page, title) =>
  page.$$eval(
    '.tile',
    (tiles, title) =>
      tiles.find((one) => one.querySelector('h3').textContent === title).textContent.slice(title.length),
    title,
  );
const numbers = (text) => (text.match(/\d[\d,]*/g) ?? []).map((number) => Number(number.replaceAll(',', '')));
const ask = async (url, token) =>
  (await fetch(url, { headers: token ? { authorization: `Bearer ${token}` } : {} })).json();

/** The security policy of the program, which the fixture uses, too. */
const policy = () => {
  const source = fs.readFileSync(new URL('../../src/admin/console/files.rs', import.meta.url), 'utf8');
  return source.match(/SECURITY_POLICY: &str = "([^"]*)"/)[1].replace(/\\\n\s*/g, '');
};

/** Writes a configuration; `tokens` has the token of each role. */
async function configured(clients, listen, tokens = {}) {
  const file = path.join(folder, `${listen.replace(/\D/g, '')}.toml`);
  const tokenTables = Object.entries(tokens).flatMap(([role, token]) => {
    const tokenFile = path.join(folder, role);
    fs.writeFileSync(tokenFile, token, { mode: 0o600 });
    return ['[[admin.token]]', `name = "${role}"`, `role = "${role}"`, `file = "${tokenFile}"`];
  });
  const tables = clients.map((name) => `[service.client.${JSON.stringify(name)}]`);
  const lines = [
    '[kafka]', 'bootstrap_servers = "127.0.0.1:1"', '[admin]', `listen = "${listen}"`,
    ...tokenTables, '[[service]]', 'name = "kyc"', 'target = "kyc.requests"',
    'dead_letter = "kyc.dead-letter"', 'capacity = 1000', 'cycle = "1s"', 'client_from = ["header:client-id"]',
    '[[service.source]]', 'topic = "loans"', ...tables,
  ];
  fs.writeFileSync(file, lines.join('\n'));
  return ['run', '--config', file];
}

// ---- tests

test(
  'the campaign of the demo is seen from its first record to the recall, in the numbers of /v1',
  { timeout: 180_000 },
  async () => {
    const demo = start(['demo', '--seconds', '30']);
    const [url] = (await demo.firstLine).match(/^http:\/\/127\.0\.0\.1:\d+\//) ?? [];
    assert.ok(url, 'the first line of the demo begins with the address');
    const page = await open(url);
    await until('a card', () => page.$('.service a'));
    await page.click('.service a');
    await until('the service', () => page.$('.tile'));
    await live(page);
    await until('the quiet phase', async () => (await tile(page, 'Wants most')).startsWith('personal-loan'));

    // Each number that the page shows in a second is one that /v1 gave in that second.
    const told = new Set();
    let shown;
    await until('the campaign', async () => {
      const {
        services: [{ now }],
      } = await ask(`${url}v1/now`);
      told.add(`${now.window_admitted} of ${now.capacity}, ${now.done.backlog}`);
      shown = await page.evaluate(() => {
        const number = (title) =>
          [...document.querySelectorAll('.tile')]
            .find((one) => one.querySelector('h3').textContent === title)
            .querySelector('b').textContent;
        return `${number('Capacity in use')}, ${number('Delayed')}`
          .replace(/(\d),(\d)/g, '$1$2')
          .replace(/ records?$/, '');
      });
      return numbers(shown).at(-1) > 500 && told.has(shown);
    });
    assert.match(await tile(page, 'Wants most'), /^credit-card.*times its share of 50/);
    assert.match(await tile(page, 'Waits within their share'), /3 clients within their share/);
    assert.match(await tile(page, 'Delayed'), /grows by \d/);
    assert.match(await textOf(page, '.flow'), /home-loan.*credit-card/);
    const lends = () =>
      page.$$eval('.from li', (rows) =>
        Number(
          rows.find((row) => row.textContent.startsWith('home-loan'))?.querySelector('b').firstChild.textContent ?? 0,
        ),
      );
    assert.ok((await lends()) > 30, 'home-loan is nearly idle and lends most of its share');

    // The page of a client shows what /v1 says of it.
    const link = await page.$$eval('.clients a', (links) => links.find((one) => one.textContent === 'home-loan').hash);
    await go(page, link);
    await until('the client', async () => {
      const before = await ask(`${url}v1/services/kyc/clients/home-loan`);
      const rows = Object.fromEntries(
        await page.$$eval('.facts > div', (all) =>
          all.map((row) => [row.querySelector('dt').textContent, row.querySelector('.value').textContent]),
        ),
      );
      return (
        rows.Wants === `${before.wants} records` &&
        rows.Granted === `${before.granted} records` &&
        rows['Default share'] === '50 records'
      );
    });
    await until('the rules behind its values', async () => /weight.*max_delay.*hold/s.test(await textOf(page, 'main')));
    await page.goBack();
    await until('the service again', () => page.$('.flow'));
    if (process.env.WATERMASTER_TEST_PICTURE) {
      const picture = await open(`${url}#/s/kyc`, { width: 1240, height: 1200 });
      await live(picture);
      await until('a backlog in the picture', async () => numbers(await tile(picture, 'Delayed'))[0] > 3500);
      await picture.screenshot({ path: process.env.WATERMASTER_TEST_PICTURE });
      await close(picture);
    }
    await until('the recall: home-loan lends little', async () => (await lends()) < 20);

    // A page that is opened late shows the beginning.
    const late = await open(`${url}#/s/kyc`);
    await live(late);
    await late.focus('.plot');
    const admitted = [];
    for (let at = 0; at < 60; at++) {
      await late.keyboard.press('ArrowLeft');
      // At its first points the chart may not have the client yet.
      admitted.push(Number((await textOf(late, '.tip')).match(/credit-card(\d+)/)?.[1] ?? 0));
    }
    assert.ok(Math.max(...admitted) > 80, `the campaign is in its chart: ${admitted}`);
    const before = admitted.slice(admitted.findLastIndex((rate) => rate > 80));
    assert.ok(
      before.some((rate) => rate >= 36 && rate <= 44),
      `and 40 a second before it: ${admitted}`,
    );
    await close(late);
    await stop(demo);
    await close(page);
  },
);

/** Fills fields of the form by their labels. */
async function type(page, values) {
  for (const [label, text] of Object.entries(values)) {
    const field = await page.evaluateHandle(
      (label) =>
        [...document.querySelectorAll('.form label')]
          .find((one) => one.querySelector('span').textContent === label)
          .querySelector('input, select, textarea'),
      label,
    );
    if (await field.evaluate((element) => element.tagName === 'SELECT')) await field.select(text);
    else {
      await field.click({ count: 3 });
      await field.type(text);
    }
  }
}
/** Presses the link or the button with a text that begins so. */
const press = (page, text) =>
  until(text, () =>
    page.evaluate((text) => {
      const found = [...document.querySelectorAll('main a, main button')].find(
        (one) => !one.hidden && one.textContent.startsWith(text),
      );
      found?.click();
      return found !== undefined;
    }, text),
  );
const cells = (page) => page.$$eval('.plain tbody tr', (rows) => rows.map((row) => row.textContent));

test(
  'a client is held and released, two people change one rule, and a second instance sees it',
  { timeout: 240_000 },
  async () => {
    const demo = start(['demo', '--seconds', '300']);
    const [url] = (await demo.firstLine).match(/^http:\/\/127\.0\.0\.1:\d+\//) ?? [];
    assert.match(await demo.firstLine, /changes its rules/);
    const client = () => ask(`${url}v1/services/kyc/clients/personal-loan`);
    const page = await open(`${url}#/s/kyc/clients/personal-loan`);
    await until('its figures', () => page.$('.facts'));
    await until('records of the client', async () => (await client()).admitted > 0);

    // Holding: the dry run first, then the rule, then its effect.
    await press(page, 'Hold…');
    await until('the form', () => page.$$eval('.form input', ([name]) => name.value !== ''));
    await press(page, 'See what it would do');
    await until('the grant afterwards', async () =>
      (await cells(page)).some((row) => /^personal-loan.*\d → 0/.test(row)),
    );
    const { rules } = await ask(`${url}v1/services/kyc/rules`);
    assert.deepEqual(rules, [], 'a dry run writes nothing');
    await press(page, 'Put it in force');
    await until('the rule in the list', async () =>
      (await cells(page)).some((row) => /^hold-personal-loan.*clients personal-loan.*hold true.*until/.test(row)),
    );
    await until('no admission of it', async () => {
      const { admitted_in_last_cycle: admitted, backlog } = await client();
      return admitted === 0 && backlog > 0;
    });
    await go(page, '#/s/kyc/clients/personal-loan');
    await press(page, 'Release…');
    await press(page, 'See what it would do');
    await until('the grant afterwards', async () =>
      (await cells(page)).some((row) => /^personal-loan.*0 → \d/.test(row)),
    );
    await press(page, 'End the rule');
    await until('no rule', async () => (await page.title()).startsWith('Rules') && !(await cells(page)).length);
    await until('admissions', async () => (await client()).admitted_in_last_cycle > 0);

    // What is wrong is said at once, and the capacity has a bound.
    await press(page, 'Change the capacity…');
    await until('the form', () => page.$$eval('.form input', ([name]) => name.value !== ''));
    await type(page, { Capacity: '1001' });
    await press(page, 'See what it would do');
    await until('the bound', async () => /rules_max_capacity \(1000\)/.test(await textOf(page, '[role=status]:not(#status)')));
    await type(page, { Capacity: '300' });
    await press(page, 'See what it would do');
    await press(page, 'Put it in force');
    const capacity = async () => (await ask(`${url}v1/services/kyc`)).capacity;
    await until('the new capacity', async () => (await capacity()) === 300);

    // A second instance on the broker of the first.
    const broker = (await ask(`${url}v1/config`)).config.kafka.bootstrap_servers;
    const port = await freePort();
    const text = fs
      .readFileSync('config/demo.toml', 'utf8')
      .replace('[kafka]', `[admin]\nlisten = "127.0.0.1:${port}"\n[kafka]\nbootstrap_servers = ${JSON.stringify(broker)}`)
      .replace('instance_id = "demo"', 'instance_id = "second"')
      // The embedded broker answers a fetch only after this time.
      .replace('[[service]]', '[kafka.properties]\n"fetch.wait.max.ms" = "20"\n\n[[service]]');
    const file = path.join(folder, 'second.toml');
    fs.writeFileSync(file, text);
    start(['run', '--config', file]);
    const other = `http://127.0.0.1:${port}/`;
    await until('the second instance', async () => (await fetch(`${other}livez`)).ok);
    await until('its rules', async () => (await ask(`${other}v1/services/kyc/rules`)).rules.length === 1);
    const put = (rule) =>
      fetch(`${url}v1/services/kyc/rules/partner`, {
        method: 'PUT',
        headers: { 'content-type': 'application/json', 'if-none-match': '*' },
        body: JSON.stringify(rule),
      });
    assert.equal((await put({ clients: ['car-loan'], weight: 2, max_delay: '1h' })).status, 201);
    const answered = Date.now();
    await until('the rule at the second', async () => (await ask(`${other}v1/services/kyc/rules`)).rules.length === 2);
    console.log(`the second instance shows the rule ${Date.now() - answered} ms after the answer`);
    assert.ok(Date.now() - answered < 1000, `it takes ${Date.now() - answered} ms`);

    // Two people open the same rule; the second one sees the first one's change, and decides again.
    const pages = await Promise.all([url, url].map((at) => open(`${at}#/s/kyc/rules/change/partner`)));
    for (const [at, each] of pages.entries()) {
      await until('the rule', () => each.$eval('textarea', (field) => field.value === 'car-loan'));
      await type(each, { Weight: String(at + 3) });
      await press(each, 'See what it would do');
      await until('its effect', async () => (await cells(each)).length > 0);
    }
    await press(pages[0], 'Put it in force');
    await until('the first change', async () => (await pages[0].title()).startsWith('Rules'));
    await press(pages[1], 'Put it in force');
    await until('the conflict', async () =>
      /put another version.*weight 3.*Your change was not made/s.test(
        await pages[1].$eval('form [role=status]', (element) => element.textContent),
      ),
    );
    const partner = async () => (await ask(`${url}v1/services/kyc/rules/partner`)).rule;
    assert.equal((await partner()).weight, 3);
    await press(pages[1], 'See what it would do');
    await press(pages[1], 'Put it in force');
    await until('the second change', async () => (await partner()).weight === 4);
    assert.equal((await partner()).max_delay, '1h', 'a field that the form does not have stays');
    await Promise.all([page, ...pages].map(close));
    await stop(demo);
  },
);

test('an instance that is killed is missed within three seconds, and comes back', { timeout: 120_000 }, async () => {
  const port = await freePort();
  const args = await configured(['home-loan'], `127.0.0.1:${port}`);
  const first = start(args);
  const url = `http://127.0.0.1:${port}/`;
  await until('the instance', async () => (await fetch(`${url}livez`)).ok);
  const pages = await Promise.all(['', '#/s/kyc'].map((view) => open(`${url}${view}`)));
  await Promise.all(pages.map(live));
  await stop(first);
  const killed = Date.now();
  const missed = async (page) => (await status(page)).startsWith('no longer connected');
  await Promise.all(pages.map((page) => until('no longer connected', () => missed(page))));
  assert.ok(Date.now() - killed < 3000, `it is said after ${Date.now() - killed} ms`);
  start(args);
  await Promise.all(pages.map(live));
  await Promise.all(pages.map(close));
});

test(
  'a token is asked for, a wrong one is refused, and no token leaves the tab but as a header',
  { timeout: 120_000 },
  async () => {
    const port = await freePort();
    start(await configured(['home-loan'], `0.0.0.0:${port}`, { read: TOKEN, operate: STRONGER }));
    const url = `http://127.0.0.1:${port}/`;
    await until('the instance', async () => (await fetch(`${url}livez`)).ok);
    const page = await open(url);
    const sent = [];
    page.on('request', (request) => sent.push([request.url(), request.headers()]));
    const typeToken = async (token) => {
      await page.waitForSelector('dialog[open] input');
      await page.keyboard.type(token);
      await page.keyboard.press('Enter');
    };
    await typeToken('wrong-wrong-wrong-wrong');
    await until('a refusal', async () => /refused the token/.test(await textOf(page, '#login-why')));
    await typeToken(TOKEN);
    await until('the service', () => page.$('.service a'));
    await live(page);
    assert.match(await textOf(page, '.service .badges'), /not ready/, 'there is no broker');
    assert.equal(await page.evaluate(() => document.cookie), '');
    assert.deepEqual(await page.evaluate(() => [localStorage.length, Object.values(sessionStorage)]), [0, [TOKEN]]);
    assert.ok(
      sent.every(([address]) => !address.includes(TOKEN)),
      'no address has the token',
    );
    assert.ok(sent.some(([, headers]) => headers.authorization === `Bearer ${TOKEN}`));
    await page.reload();
    await until('the service again, without a question', () => page.$('.service a'));

    // A token that only reads shows what a change would do, and another one is asked for to make it.
    await go(page, '#/s/kyc/rules/new/weight/home-loan');
    await until('the form', () => page.$$eval('.form input', ([name]) => name?.value));
    await press(page, 'See what it would do');
    await press(page, 'Put it in force');
    await until('the role', async () => /has the role read/.test(await textOf(page, '#login-why')));
    await page.click('#login-cancel');
    const answer = () => textOf(page, 'form [role=status]');
    await until('the reason', async () => /has the role read/.test(await answer()));
    await live(page);
    await press(page, 'See what it would do');
    await press(page, 'Put it in force');
    await typeToken(STRONGER);
    await until('the next reason', async () => /has no rules_topic/.test(await answer()));
    assert.deepEqual(await page.evaluate(() => Object.values(sessionStorage)), [STRONGER]);
    await close(page);
  },
);

test('the program shows hostile client ids as text', { timeout: 120_000 }, async () => {
  const port = await freePort();
  start(await configured(HOSTILE, `127.0.0.1:${port}`));
  const url = `http://127.0.0.1:${port}/`;
  await until('the instance', async () => (await fetch(`${url}livez`)).ok);
  const page = await open(`${url}#/s/kyc`);
  await until('all rows', async () => (await page.$$('.clients tbody th')).length === HOSTILE.length);
  const names = await page.$$eval('.clients tbody th bdi', (cells) => cells.map((cell) => cell.textContent));
  assert.deepEqual(names.sort(), [...HOSTILE].sort());
  for (const name of HOSTILE) {
    await go(page, `#/s/kyc/clients/${encodeURIComponent(name)}`);
    await until(name, async () => (await textOf(page, 'h1')) === name && (await page.$('.facts')));
  }
  assert.equal(await page.$$eval('main img, main script', (found) => found.length), 0);
  await close(page);
});

describe('with a fixture', () => {
  const many = Array.from({ length: 100_000 }, (_, at) => `client-${String(at).padStart(6, '0')}`);
  /** Each view, its title, and an element that it has once figures have come. */
  const views = [
    ['#/', 'Services', '.service .bar'],
    ['#/s/kyc', 'kyc', '.clients tbody bdi'],
    ['#/s/kyc/dead-letters', 'Dead letters · kyc', '.letters dd'],
    ['#/s/kyc/pace', 'Pace · kyc', '.plot path'],
    [`#/s/kyc/clients/${encodeURIComponent(HOSTILE[0])}`, `${HOSTILE[0]} · kyc`, '.plain tbody th'],
    ['#/changes', 'Changes', 'tbody td'],
    ['#/s/kyc/rules', 'Rules · kyc', 'tbody td'],
    [`#/s/kyc/rules/new/hold/${encodeURIComponent(HOSTILE[0])}`, 'New rule · kyc', 'tbody td', 'See what it would do'],
  ];
  async function show(page, [hash, title, figures, button]) {
    await go(page, hash);
    await until(`the title ${title}`, async () => (await page.title()) === `${title} · Watermaster`);
    await until(`${title} with its figures`, async () => {
      if (button) await press(page, button);
      return page.$(figures);
    });
    await page.$$eval('details', (all) => all.forEach((one) => (one.open = true)));
    await live(page);
  }
  let [large, small, hostile] = [];
  before(async () => {
    [large, small, hostile] = await Promise.all(
      [many, many.slice(0, 100), HOSTILE].map((names) => serve(names, policy())),
    );
  });
  after(() => [large, small, hostile].forEach((one) => one?.close()));

  /** Returns the median time in ms from an action in the table until its rows are drawn, and the first row. */
  async function timed(page, act, row) {
    return page.evaluate(
      async (act, row) => {
        const first = () => document.querySelector('.clients tbody bdi')?.textContent;
        const began = performance.now();
        const input = document.querySelector('input[type=search]');
        if (act.find !== undefined) {
          input.value = act.find;
          input.dispatchEvent(new Event('input'));
        } else
          [...document.querySelectorAll('.clients button')].find((button) => button.textContent === act.sort).click();
        while (first() !== row) {
          if (performance.now() - began > 20_000) throw new Error(`the first row is ${first()}, not ${row}`);
          await new Promise(requestAnimationFrame);
        }
        return performance.now() - began;
      },
      act,
      row,
    );
  }
  const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

  test('a hundred thousand clients sort, filter and scroll', { timeout: 180_000 }, async () => {
    const times = {};
    for (const [name, { url }, last] of [
      ['small', small, many[99]],
      ['large', large, many[99_999]],
    ]) {
      const page = await open(`${url}#/s/kyc`);
      await until('rows', async () => (await page.$$('.clients tbody th')).length > 10);
      const took = { sort: [], find: [] };
      for (let round = 0; round < 5; round++) {
        await timed(page, { sort: 'Client' }, many[0]);
        took.sort.push(await timed(page, { sort: 'Client' }, last));
        took.find.push(await timed(page, { find: '000042' }, many[42]));
        took.find.push(await timed(page, { find: '' }, last));
        await timed(
          page,
          { sort: 'Wants' },
          await page.evaluate(
            async () => (await (await fetch('/v1/services/kyc/clients?top=1')).json()).clients[0].name,
          ),
        );
      }
      // Frames while the table scrolls to its end, and while nothing moves.
      const frames = (moves) =>
        page.evaluate(async (moves) => {
          const scroller = document.querySelector('.scroller');
          const times = [];
          for (let at = 0, before = performance.now(); at < 90; at++) {
            if (moves) scroller.scrollTop = (scroller.scrollHeight * at) / 90;
            await new Promise(requestAnimationFrame);
            times.push(performance.now() - before);
            before = performance.now();
          }
          return times;
        }, moves);
      times[name] = {
        sort: median(took.sort),
        find: median(took.find),
        still: median(await frames(false)),
        scroll: median(await frames(true)),
      };
      if (name === 'large') {
        await page.evaluate(() => {
          const scroller = document.querySelector('.scroller');
          scroller.scrollTop = scroller.scrollHeight;
        });
        await until('the last row', () => page.$(`.clients tr[aria-rowindex="${many.length + 1}"]`));
        assert.ok((await page.$$('.clients tbody tr')).length < 40, 'only the rows in sight exist');
      }
      await close(page);
    }
    console.log('median ms:', JSON.stringify(times));
    // On a slow machine a hundred clients take long, too.
    for (const act of ['sort', 'find'])
      assert.ok(times.large[act] < Math.max(200, 3 * times.small[act]), `${act}: ${times.large[act]} ms`);
    assert.ok(times.large.scroll < Math.max(50, 3 * times.large.still), `a frame takes ${times.large.scroll} ms`);
  });

  test('a backlog that shrinks is told with its end', { timeout: 60_000 }, async () => {
    const page = await open(`${small.url}#/s/kyc`);
    await live(page);
    assert.equal(
      await tile(page, 'Delayed'),
      '24 recordsIt shrinks by 1 record a second, so it is gone in about 24 s.',
    );
    // After the end of a flood, the page told for a quarter of a minute that the backlog still grew.
    const rises = await page.evaluate(async () => {
      const { trend } = await import('/console/chart.js');
      const backlog = (at) => 1000 + 240 * Math.min(at, 14) - 100 * Math.max(0, at - 14);
      return [3, 14, 20].map((seconds) =>
        trend([...Array(seconds).keys()].map((at) => ({ at_ms: 1000 * at, backlog: backlog(at), admitted: 200 }))));
    });
    assert.deepEqual(rises, [null, 240, -100]);
    await close(page);
  });

  test('a client that is not in all samples has gaps, and no zeros', { timeout: 60_000 }, async () => {
    const page = await open(`${small.url}#/s/kyc`);
    const [means, path] = await page.evaluate(async () => {
      const { Chart, rates } = await import('/console/chart.js');
      const values = [0, 6, 6, NaN, 9, 9];
      const samples = values.map((value, at) => ({ at_ms: 1000 * at, value }));
      const chart = new Chart({ title: '', unit: '' });
      document.getElementById('main').append(chart.element);
      chart.update(samples.map((sample) => sample.at_ms), [{ name: 'a', colour: 'c0', values }]);
      return [rates(samples, 3, (sample) => sample.value), chart.element.querySelector('.layer').getAttribute('d')];
    });
    assert.deepEqual(means, [6, 6, null, 9, 9]);
    assert.match(path, /^M[^MN]*ZM[^MN]*Z$/);
    await close(page);
  });

  test('a field that the target of a rule does not have hinders nothing', { timeout: 60_000 }, async () => {
    const page = await open(`${small.url}#/s/kyc/rules/new/weight/client-000001`);
    await until('the form', () => page.$$eval('.form input', ([name]) => name?.value));
    await page.$eval('.form input[type=number]', (weight) => {
      weight.value = '-1';
    });
    await page.select('.form select', 'service');
    await press(page, 'See what it would do');
    await until('the effect', () => page.$('form tbody td'));
    await close(page);
  });

  test('a dead letter opens to its headers, which are text', { timeout: 60_000 }, async () => {
    const page = await open(`${hostile.url}#/s/kyc/dead-letters`);
    await until('the dead letters', async () => (await page.$$('.letters li')).length === 2);
    assert.match(await textOf(page, '.letters li:last-child summary'), /at an unknown time/);
    await page.click('.letters summary');
    const headers = await page.$$eval('.letters li:first-child dd bdi', (all) => all.map((one) => one.textContent));
    assert.deepEqual(headers, [...HOSTILE.slice(0, 20), 'null']);
    // They are asked for again every two seconds; the open one stays open, with the same element.
    await page.$eval('.letters details', (one) => (one.dataset.mine = 'yes'));
    const read = await textOf(page, '.letters + p');
    await until('another reading', async () => (await textOf(page, '.letters + p')) !== read);
    assert.equal(await page.$$eval('.letters details[open][data-mine=yes]', (all) => all.length), 1);
    await close(page);
  });

  test('a client that is forgotten is told as such, and the connection is not lost', { timeout: 60_000 }, async () => {
    const page = await open(`${small.url}#/s/kyc/clients/nobody`);
    await until('the answer', async () => /does not know the client/.test(await textOf(page, 'main')));
    await live(page);
    const texts = await page.evaluate(async () => {
      const seen = new Set();
      for (let at = 0; at < 150; at++) {
        seen.add(document.getElementById('status').textContent);
        await new Promise(requestAnimationFrame);
      }
      return [...seen];
    });
    assert.deepEqual(texts, ['live']);
    await close(page);
  });

  test('a rule of another form hides none', { timeout: 60_000 }, async () => {
    const page = await open(`${small.url}#/s/kyc/rules`);
    await until('both rules', async () => (await cells(page)).length === 2);
    assert.match((await cells(page))[0], /^later.*"limit":null.*not understood, of form 2/);
    await close(page);
  });

  test('every view fits a screen of 390 pixels', { timeout: 120_000 }, async () => {
    const page = await open(hostile.url, { width: 390, height: 844 });
    for (const view of views) {
      await show(page, view);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(wide <= 390, `${view[1]} is ${wide} wide`);
    }
    await close(page);
  });

  for (const scheme of ['light', 'dark']) {
    test(`axe finds nothing serious in ${scheme} colours`, { timeout: 180_000 }, async () => {
      const page = await open(hostile.url, { scheme });
      await page.evaluate(AXE);
      for (const view of views) {
        await show(page, view);
        const found = await page.evaluate(async () =>
          (await axe.run(document, { resultTypes: ['violations'] })).violations
            .filter(({ impact }) => impact === 'serious' || impact === 'critical')
            .map(
              ({ id, nodes }) =>
                `${id}: ${nodes
                  .slice(0, 3)
                  .map(({ html, failureSummary }) => `${html} ${failureSummary}`)
                  .join('; ')}`,
            ),
        );
        assert.deepEqual(found, [], view[1]);
      }
      await close(page);
    });
  }

  test('the keyboard alone reaches everything', { timeout: 120_000 }, async () => {
    const page = await open(hostile.url);
    const focused = () =>
      page.evaluate(
        () =>
          document.activeElement.getAttribute('aria-label') ||
          document.activeElement.textContent ||
          document.activeElement.tagName,
      );
    const tabTo = async (what) => {
      for (let at = 0; at < 60; at++) {
        await page.keyboard.press('Tab');
        if (what.test(await focused())) return;
      }
      assert.fail(`Tab never reaches ${what}`);
    };
    await until('the service', () => page.$('.service a'));
    await tabTo(/^kyc$/);
    await page.keyboard.press('Enter');
    await until('rows', async () => (await page.$$('.clients tbody th')).length === HOSTILE.length);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'main', 'a new view has the focus');
    await tabTo(/^Hold or limit/);
    const reached = await page.evaluate(() => performance.now());
    await until('two more seconds', async () => (await page.evaluate(() => performance.now())) > reached + 2000);
    assert.match(await focused(), /^Hold or limit/);
    await tabTo(/arrow keys/);
    await page.keyboard.press('ArrowLeft');
    assert.match(await textOf(page, '.tip'), /capacity100/, 'the figures of a time');
    await tabTo(/Find clients/);
    await page.keyboard.type('PROTO');
    await until('one row', async () => (await page.$$('.clients tbody th')).length === 1);
    await tabTo(/^Backlog$/);
    await page.keyboard.press('Enter');
    await until('another order', () => page.$('[aria-sort=descending] button[title*=delayed]'));
    await page.keyboard.press('Enter');
    await until('the other order', () => page.$('[aria-sort=ascending] button[title*=delayed]'));
    await tabTo(/^__proto__$/);
    // Figures come each second; the focus stays where it is.
    const seen = await page.evaluate(() => performance.now());
    await until('two more seconds', async () => (await page.evaluate(() => performance.now())) > seen + 2000);
    assert.equal(await focused(), '__proto__');
    await page.keyboard.press('Enter');
    await until('the client', () => page.$('.facts'));
    assert.equal(await textOf(page, 'h1'), '__proto__');
    await tabTo(/^Changes$/);
    await page.keyboard.press('Enter');
    await until('the changes', async () => (await textOf(page, 'h1')) === 'Changes');
    await close(page);
  });
});

test('no page has reported a problem', () => assert.deepEqual(problems, []));
