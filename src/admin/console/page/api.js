// Asks /v1 of this address, and follows the events of a service.

/** Without news for so long, the connection counts as lost. The instance tells something each second. */
const SILENCE_MS = 2500;
const RETRY_MS = 700;
/** The time for which a page keeps the samples of a service: 15 minutes. */
const KEPT_MS = 900_000;
const TOKEN = 'watermaster-token';

/** A refusal by the instance, in its words. */
class Refusal extends Error {
  constructor(status, body) {
    super(body.message ?? body.error ?? `status ${status}`);
    Object.assign(this, { status, body });
  }
}

// ---- the token: typed once, kept for this tab, sent as a header

let asking = null;

/** Tells whether a person is asked for a token. */
export const isAsking = () => asking !== null;

function askForToken(why, mayCancel) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById('login');
    const input = document.getElementById('token');
    document.getElementById('login-why').textContent = why;
    // Unless it is for a change, there is nothing to see without a token.
    document.getElementById('login-cancel').hidden = !mayCancel;
    dialog.closedBy = mayCancel ? 'closerequest' : 'none';
    dialog.returnValue = '';
    dialog.onclose = () => {
      const isTyped = dialog.returnValue === 'typed';
      if (isTyped) sessionStorage.setItem(TOKEN, input.value.trim());
      input.value = '';
      asking = null;
      connection.changed();
      resolve(isTyped);
    };
    dialog.showModal();
  });
  connection.changed();
  return asking;
}

/** Asks, and for a token if one is needed. */
async function ask(path, options = {}) {
  const isChange = options.method !== undefined;
  for (;;) {
    await asking;
    const token = sessionStorage.getItem(TOKEN);
    const headers = { ...options.headers, ...(token && { Authorization: `Bearer ${token}` }) };
    const signal = options.signal ?? AbortSignal.timeout(20_000);
    const response = await fetch(path, { ...options, signal, headers, cache: 'no-store', credentials: 'omit' });
    if (response.ok) return response;
    const refusal = new Refusal(response.status, await response.json().catch(() => ({})));
    const isForbidden = response.status === 403;
    if (response.status !== 401 && !(isForbidden && isChange)) throw refusal;
    if (token === sessionStorage.getItem(TOKEN)) {
      if (!isForbidden) sessionStorage.removeItem(TOKEN);
      const why = isForbidden ? `${refusal.message}.` : token ? 'This instance refused the token.'
        : isChange ? 'A change needs a token.' : 'This instance shows its figures only with a token.';
      if (!(await askForToken(why, isChange))) throw refusal;
    }
  }
}

/** Returns the answer to a question, as it is. */
export async function get(path, options) {
  return (await ask(path, options)).json();
}

/** Sends a change, or the question what it would do. Returns the answer, if there is one. */
export async function send(path, method, body, headers) {
  const type = { 'Content-Type': 'application/json' };
  const response = await ask(path, { method, body: JSON.stringify(body), headers: { ...type, ...headers } });
  return response.status === 204 ? null : response.json();
}

// ---- the connection: known to be alive for as long as news come

export const connection = {
  /** The time since which it is lost; null while it is not. */
  lostAt: null,
  why: '', changed: () => {},

  lost(why) {
    if (!asking) this.set(this.lostAt ?? Date.now(), why);
  },
  set(lostAt, why) {
    if (lostAt === this.lostAt && why === this.why) return;
    Object.assign(this, { lostAt, why });
    this.changed();
  },
};

/** Repeats `attempt`; each ends after a silence, unless it calls `alive`. Returns the way to stop. */
function repeat(attempt, between) {
  const stop = new AbortController();
  (async () => {
    while (!stop.signal.aborted) {
      const silent = new AbortController();
      let timer;
      const alive = () => {
        clearTimeout(timer);
        timer = setTimeout(() => {
          if (asking) return alive();
          connection.lost('');
          silent.abort();
        }, SILENCE_MS);
      };
      alive();
      let wait = between;
      try {
        await attempt(AbortSignal.any([stop.signal, silent.signal]), () => { alive(); connection.set(null, ''); });
      } catch (why) {
        if (!stop.signal.aborted) connection.lost(why instanceof Refusal ? why.message : '');
        wait = RETRY_MS;
      }
      clearTimeout(timer);
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  })();
  return () => stop.abort();
}

/** Asks each second, or with another pause in milliseconds. `missing` tells of an answer that there is no such thing.
 * Returns the way to stop. */
export function poll(path, show, pause = 1000, missing = null) {
  return repeat(async (signal, alive) => {
    const answer = await get(path, { signal }).catch((why) => {
      if (!missing || why.status !== 404) throw why;
    });
    alive();
    // An error in there is none of the connection.
    queueMicrotask(() => (answer === undefined ? missing() : show(answer)));
  }, pause);
}

/** Returns a sample with the figures of its clients by name: admitted, granted and delayed records. */
export const sampleOf = (sample) => ({ ...sample, clients: new Map(Object.entries(sample.clients)) });

/** A service as its events tell it. */
export class Service {
  samples = [];
  now = {};

  constructor(name, changed) {
    this.name = name;
    this.path = `/v1/services/${encodeURIComponent(name)}`;
    this.stop = repeat((signal, alive) => this.#follow(signal, () => { alive(); changed(); }), 20);
  }

  async #follow(signal, changed) {
    const last = this.samples.at(-1)?.at_ms;
    const headers = last === undefined ? {} : { 'Last-Event-ID': String(last) };
    const response = await ask(`${this.path}/events`, { signal, headers });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ''; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (text + value).split('\n\n');
      text = events.pop();
      for (const event of events) this.#take(JSON.parse(event.slice(event.indexOf('data: ') + 6)));
      if (events.length) changed();
    }
  }

  #take({ samples, now }) {
    const all = [...this.samples, ...samples.map(sampleOf)];
    const last = all.at(-1)?.at_ms;
    // After a gap, or a step of the instance's clock, the former samples are of another time.
    this.samples = all.filter(({ at_ms: at }) => last - KEPT_MS < at && at <= last);
    Object.assign(this.now, now);
  }
}
