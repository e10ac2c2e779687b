// The search for the capacity: what was found, and why.

import { card, facts, h, put } from './dom.js';
import { Chart, rates } from './chart.js';
import { state } from './overview.js';
import { tabs } from './service.js';
import { count, perCycle, percent, plural, records, seconds } from './format.js';

const STATES = {
  learning: 'The capacity is not known yet.',
  at_least: 'The service was never late, so it takes at least what was found.',
  found: 'The service was late above what was found.',
  late: 'The service is late now, and the brake holds records back.',
  stalled: 'The service commits nothing although records are open.',
  no_demand: 'Few records wait, so nothing is learned.',
  no_signal: 'The offsets of the service can not be read, or it has committed none: it is not protected.',
  not_alone: 'Another instance admits records to the same service.',
  at_floor: 'The limit is the floor.',
  at_ceiling: 'What was found is the ceiling: the service may take more.',
};

function rows(pace, per) {
  const rate = (n) => (n === null ? 'unknown' : `${count(n)} ${per}`);
  const applies = pace.control === 'apply';
  const stuck = plural(pace.stuck_partitions, 'partition');
  return [
    ['State', pace.state.replaceAll('_', ' '), STATES[pace.state]],
    ['Found', `${pace.found !== null && pace.at_least ? 'at least ' : ''}${rate(pace.found)}`,
      applies ? 'The limit follows it.' : 'It is only reported; the limit does not follow it.'],
    ['Limit', rate(pace.limit), `Between the floor of ${count(pace.floor)} and the ceiling of ${count(pace.ceiling)}.`],
    ['Let through', percent(pace.brake),
      pace.brake < 1 ? 'The brake holds the rest back, because the service is late.' : 'The brake is open.'],
    ['Late', seconds(pace.late_seconds),
      `The age of the oldest open record, beyond the usual ${seconds(pace.usual_seconds)}.`],
    ['Open', records(pace.open_offsets),
      `Offsets that the service has not committed; it commits each ${seconds(pace.commit_gap_seconds)}.`],
    ['Finished', rate(pace.finished), 'The rate that the service finished lately.'],
    ['Signal', pace.signal_age_seconds === null ? 'none yet' : `${seconds(pace.signal_age_seconds)} old`,
      pace.stuck_partitions ? `${stuck} stuck.` : 'When the offsets were read last.'],
  ];
}

/** Shows the search for the capacity of a service. */
export function paceView(service) {
  const [head, body] = [h('div', {}), h('div', {})];
  const chart = new Chart({ title: 'Admitted and the limit, records a second', unit: 'records a second' });
  const element = h('div', {}, h('h1', {}, service.name), head, tabs(service.name, 'pace'),
    card('The capacity', body), chart.element);
  function show({ now, samples }) {
    put(head, state(now));
    const { pace, cycle_seconds: cycle, capacity } = now;
    const per = perCycle(cycle);
    put(body, pace === null
      ? h('p', {}, `The capacity of ${count(capacity)} ${per} is configured. `,
        'With a table [service.pace] the instance would search for it.')
      : facts(rows(pace, per)));
    const times = samples.slice(1).map((sample) => sample.at_ms);
    const admitted = rates(samples, 3, (sample) => sample.admitted);
    const limit = samples.slice(1).map((sample) => sample.capacity / cycle);
    chart.update(times, [{ name: null, colour: 'c0', values: admitted }], { name: 'limit', values: limit });
  }
  return { title: `Pace · ${service.name}`, element, show };
}
