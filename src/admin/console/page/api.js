// Asks /v1 of this address, and follows the events of a service.

/** Without news for so long, the connection counts as lost. The instance tells something each second. */
const SILENCE_MS = 2500;
const RETRY_MS = 700;
/** The samples of a service that a page keeps: 15 minutes. */
const KEPT_SAMPLES = 900;
const TOKEN = 'watermaster-token';

/** A refusal by the instance, in its words. */
export class Refusal extends Error {
  constructor(status, text, body) {
    super(text);
    Object.assign(this, { status, body });
  }
}

// ---- the token: typed once, kept for this tab, sent as a header

let asking = null;

function askForToken(why, mayCancel) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById('login');
    const input = document.getElementById('token');
    document.getElementById('login-why').textContent = why;
    dialog.querySelector('form').onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(TOKEN, input.value.trim());
      input.value = '';
      end(true);
    };
    const cancel = document.getElementById('login-cancel');
    const end = (typed) => {
      dialog.close();
      asking = null;
      resolve(typed);
    };
    // Unless it is for a change, there is nothing to see without a token.
    cancel.hidden = !mayCancel;
    cancel.onclick = () => end(false);
    dialog.oncancel = (event) => {
      event.preventDefault();
      if (mayCancel) end(false);
    };
    dialog.showModal();
  });
  return asking;
}

/** Asks, and for a token if one is needed. `wait` is called around the time for which a person types. */
async function ask(path, options = {}) {
  const isChange = options.method !== undefined;
  for (;;) {
    if (asking) await asking;
    const token = sessionStorage.getItem(TOKEN);
    const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    const signal = options.signal ?? AbortSignal.timeout(20_000);
    const response = await fetch(path, { ...options, signal, headers, cache: 'no-store', credentials: 'omit' });
    if (response.ok) return response;
    const body = await response.json().catch(() => ({}));
    const { status } = response;
    const refusal = new Refusal(status, body.message ?? body.error ?? `status ${status}`, body);
    if (status !== 401 && !(status === 403 && isChange)) throw refusal;
    if (token === sessionStorage.getItem(TOKEN)) {
      if (status === 401) sessionStorage.removeItem(TOKEN);
      const why = status === 403 ? `${refusal.message}.` : token ? 'This instance refused the token.'
        : isChange ? 'A change needs a token.' : 'This instance shows its figures only with a token.';
      connection.pause(askForToken(why, isChange));
      if (!(await asking)) throw refusal;
    }
  }
}

/** Returns the answer to a question, as it is. */
export async function get(path) {
  return (await ask(path)).json();
}

/** Sends a change, or the question what it would do. Returns the answer, if there is one. */
export async function send(path, method, body, headers = {}) {
  const type = body === undefined ? {} : { 'Content-Type': 'application/json' };
  const response = await ask(path, { method, body: JSON.stringify(body), headers: { ...type, ...headers } });
  return response.status === 204 ? null : response.json();
}

// ---- the connection: known to be alive for as long as news come

export const connection = {
  /** The time since which it is lost; null while it is not. */
  lostAt: null,
  why: '',
  changed: () => {},
  paused: false,

  alive() {
    if (this.lostAt !== null || this.why) this.set(null, '');
  },
  lost(why) {
    if (!this.paused && (this.lostAt === null || this.why !== why)) this.set(this.lostAt ?? Date.now(), why);
  },
  set(lostAt, why) {
    Object.assign(this, { lostAt, why });
    this.changed();
  },
  async pause(typing) {
    this.paused = true;
    this.changed();
    await typing;
    this.paused = false;
    this.changed();
  },
};

const pause = (ms, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  signal.addEventListener('abort', () => { clearTimeout(timer); resolve(); }, { once: true });
});

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
        await attempt(AbortSignal.any([stop.signal, silent.signal]), () => { alive(); connection.alive(); });
      } catch (why) {
        if (!stop.signal.aborted) connection.lost(why instanceof Refusal ? why.message : '');
        wait = RETRY_MS;
      }
      clearTimeout(timer);
      if (wait) await pause(wait, stop.signal);
    }
  })();
  return () => stop.abort();
}

/** Asks each second. Returns the way to stop. */
export function poll(path, show) {
  return repeat(async (signal, alive) => {
    const answer = await (await ask(path, { signal })).json();
    alive();
    // An error in there is none of the connection.
    queueMicrotask(() => show(answer));
  }, 1000);
}

/** A service as its events tell it. */
export class Service {
  samples = [];
  now = {};

  constructor(name, changed) {
    this.name = name;
    this.path = `/v1/services/${encodeURIComponent(name)}`;
    this.stop = repeat((signal, alive) => this.#follow(signal, () => { alive(); changed(this); }), 20);
  }

  async #follow(signal, changed) {
    const last = this.samples.at(-1)?.at_ms;
    const headers = last === undefined ? {} : { 'Last-Event-ID': String(last) };
    const response = await ask(`${this.path}/events`, { signal, headers });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ''; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      const events = text.split('\n\n');
      text = events.pop();
      for (const event of events) this.#take(JSON.parse(event.slice(event.indexOf('data: ') + 6)));
      if (events.length) changed();
    }
  }

  #take({ samples, now }) {
    for (const sample of samples) this.samples.push({ ...sample, clients: Object.entries(sample.clients) });
    this.samples.splice(0, this.samples.length - KEPT_SAMPLES);
    Object.assign(this.now, now);
  }
}
