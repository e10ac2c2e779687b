"""Records the inputs and outputs of the simulated controller, which is the oracle of core/src/pace.rs.

Usage: record.py FOLDER > oracle.txt, where FOLDER holds controllers.py, run.py, sim.py and observe.py.

Times are multiples of an eighth of a second, so that the oracle's floats are exact where a decision depends on them.
Each run is a line of names and numbers, then a line of numbers in base64 VLQ, as source maps have them. Per poll:

- the eighths of the time in which records waited, or 9 without a signal
- with a signal: the growth of the first partition's end, then of each other end less that of the first; a mask of the
  partitions with a commit, and the growth of each committed offset
- the growth of the admitted records less that of all ends
- after each fifth poll: the growth of K and of the limit, in thousandths of a record per cycle
"""
import math
import sys

sys.path.insert(0, sys.argv[1])
import controllers
import run
from sim import World

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
CYCLE = 10
TICK = 0.125
RUNS = [
    ("start 25 %, commit 1 s", 500, 0.5),
    ("start 25 %, commit 5 s", 700, 0.5),
    ("start 400 %, commit 1 s", 500, 0.5),
    ("start 400 %, commit 5 s", 600, 0.5),
    ("start 400 %, one consumer", 700, 0.5),
    ("capacity over the day", 1800, 1.0),
    ("halved at 600 s, back at 1200", 1500, 1.0),
    ("pauses 20 s in 300", 1000, 0.5),
    ("GC 2 s in 30", 500, 0.5),
    ("others write 30 % 600-1200", 1400, 1.0),
    ("scale-out x2 at 600 s", 900, 1.0),
    ("no demand 20 min, halved meanwhile", 2200, 1.0),
    ("batches of 10 s", 700, 0.5),
    ("demand around 0.8", 900, 1.0),
    ("shock: others 400 % for 20 s", 900, 1.0),
    ("noise 20 %", 700, 0.5),
    ("2 per second", 1800, 1.0),
    ("reject mode", 500, 0.5),
    ("signal lost 300 s, halved meanwhile", 1300, 1.0),
    ("one of 6 partitions stuck", 1300, 1.0),
]
OBSERVED = [
    ("observe: demand 50 to 130 %", 1500, lambda t: 200 * (.9 + .4 * math.sin(t / 300))),
    ("observe: demand 30 to 70 %", 900, lambda t: 200 * (.5 + .2 * math.sin(t / 300))),
    ("observe: 60 s of 300 % over 50 %", 700, lambda t: 200 * (3 if 200 < t < 260 else .5)),
]


def vlq(number):
    number = number << 1 if number >= 0 else (-number << 1) | 1
    text = ""
    while True:
        digit, number = number & 31, number >> 5
        text += DIGITS[digit | (32 if number else 0)]
        if not number:
            return text


def whole(fraction):
    return math.floor(fraction + 1e-6)


def record(name, scenario, control, seed, seconds, poll, out_limit=True):
    scenario = dict(scenario, T=seconds, poll=poll)
    text, state = [], {"ends": None, "polls": 0, "sent": 0, "K": 0, "limit": 0}
    step = control.step

    def recorded(now, obs, limited, sent):
        grown = 0
        if obs is None:
            text.append(vlq(9))
        else:
            obs = [(*one[:4], whole(one[4]), whole(one[5])) for one in obs]
            ends, committed = [one[4] for one in obs], [one[5] for one in obs]
            if state["ends"] is None:
                state["ends"], state["committed"] = [0] * len(obs), [0] * len(obs)
            text.append(vlq(round(limited * 8)))
            growth = [new - old for new, old in zip(ends, state["ends"])]
            text.extend(vlq(one - (growth[0] if at else 0)) for at, one in enumerate(growth))
            commits = [new - old for new, old in zip(committed, state["committed"])]
            text.append(vlq(sum(1 << at for at, one in enumerate(commits) if one)))
            text.extend(vlq(one) for one in commits if one)
            state["ends"], state["committed"], grown = ends, committed, sum(growth)
        text.append(vlq(int(sent) - state["sent"] - grown))
        state["sent"] = int(sent)
        answer = step(now, obs, limited, sent)
        state["polls"] += 1
        if state["polls"] % 5 == 0:
            limit = answer[0] if out_limit else 0
            for key, value in (("K", control.K), ("limit", limit)):
                value = round(value * CYCLE * 1000)
                text.append(vlq(value - state[key]))
                state[key] = value
        return answer

    control.step = recorded
    World(scenario, control, seed, TICK).run()
    control_name = "apply" if out_limit else "observe"
    bounds = [round(number * CYCLE) for number in (scenario["start"], control.floor, control.ceiling)]
    print(f"{name.replace(' ', '_')} {control_name} {scenario_lanes(scenario)}", *bounds, round(poll * 1000), state["polls"])
    print("".join(text))


def scenario_lanes(scenario):
    return scenario.get("lanes", 3)


def observer():
    source = open(sys.argv[1] + "/observe.py").read().split("\nC0 = ")[0]
    names = {}
    exec(source, names)
    return busy_only(names["Observe"])


def busy_only(observe):
    """The first rate in an episode covers no time before the service was late by a quarter of what is tolerated."""

    class Busy(observe):
        late_since = None

        def step(self, now, obs, limited, sent):
            self.now = now
            answer = super().step(now, obs, limited, sent)
            self.late_since = self.late_since or now if self.late > self.max_behind / 4 else None
            return answer

        def measure(self):
            if self.late <= self.max_behind:
                return super().measure()
            late_since = self.late_since or self.now
            gap = max(one["g"] for one in self.p.values())
            until, new, others = self.h[-1]
            for back in range(len(self.h) - 1, -1, -1):
                since, old, others_before = self.h[back]
                is_last = back == 0 or self.h[back - 1][0] < late_since
                age, rate, records = until - since, 0.0, 0.0
                for (at, offset), (last_at, last) in zip(old, new):
                    if last_at > at:
                        rate += (last - offset) / (last_at - at)
                        records += last - offset
                fits = age >= max(5 if is_last else self.window, 2 * gap)
                if fits and (records >= self.min_records or back == 0 and age >= self.max_window - 2):
                    return max(0.0, rate - (others - others_before) / age)
                if is_last:
                    return None
            return None

    return Busy


class FirstClimb(controllers.Pace2):
    """The first climb found nothing that is higher than 1.15 of the estimate after its cut."""

    first_climb = "ahead"

    def decide(self, now, obs, limited, target):
        before, was_cutting = self.K, self.cutting
        super().decide(now, obs, limited, target)
        if self.cutting and not was_cutting and self.first_climb == "under way" and self.r > before * self.drop:
            self.hi = min(self.hi, 1.15 * self.K)
            self.first_climb = "over"
        if not self.cutting and self.K > before and self.first_climb == "ahead":
            self.first_climb = "under way"


controllers.FirstClimb = FirstClimb
for number, (name, seconds, poll) in enumerate(RUNS):
    scenario = run.S[name]
    record(name, scenario, run.make("FirstClimb", scenario), 100 + number, seconds, poll)
for number, (name, seconds, demand) in enumerate(OBSERVED):
    control = observer()(floor=1, ceiling=10 ** 6)
    record(name, run.base(demand=demand), control, 200 + number, seconds, 1.0, out_limit=False)
