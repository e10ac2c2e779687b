// Numbers with their units, in the reader's language and time zone.

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const precise = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: 'medium' });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'long' });

/** A number of records, or another count. */
export const count = (n) => (n > 0 && n < 10 && !Number.isInteger(n) ? precise : whole).format(n);
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
export const records = (n) => plural(n, 'record');
/** A number with at most one decimal. */
export const decimal = (n) => precise.format(n);
export const sum = (numbers) => numbers.reduce((whole, n) => whole + n, 0);
export const percent = (ratio) => `${precise.format(100 * ratio)} %`;

/** A length of time in the unit that suits it. */
export function seconds(s) {
  if (s === 0) return '0 s';
  if (s < 0.0995) return `${Math.max(1, Math.round(1000 * s))} ms`;
  if (s < 9.95) return `${precise.format(s)} s`;
  if (s < 100) return `${whole.format(s)} s`;
  if (s < 6000) return `${whole.format(s / 60)} min`;
  if (s < 172800) return `${precise.format(s / 3600)} h`;
  return `${whole.format(s / 86400)} days`;
}

export function bytes(n) {
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
  const at = Math.min(units.length - 1, n < 1 ? 0 : Math.floor(Math.log2(n) / 10));
  return `${precise.format(n / 1024 ** at)} ${units[at]}`;
}

/** The time of day, and the time with its day and zone, of milliseconds since 1970 or of a text of ISO 8601. */
const at = (format) => (when) =>
  (when === null || isNaN(new Date(when)) ? 'at an unknown time' : format.format(new Date(when)));
export const time = at(clock);
export const moment = at(day);

/** The unit of figures that belong to a cycle. */
export const perCycle = (cycle) => (cycle === 1 ? 'a second' : `in ${seconds(cycle)}`);

/** A value of a configuration or of a rule. */
export function shown(value) {
  if (value === null) return 'not set';
  return typeof value === 'string' ? value : JSON.stringify(value);
}
