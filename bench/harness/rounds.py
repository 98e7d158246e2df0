"""Interleaved measuring: each round gives every contender one turn on the same case."""

import statistics
import time
from dataclasses import dataclass, field

from .contenders import PEERS
from .ranks import ContenderFailed

KEPT_PER_FAMILY = 2  # of the settings of one peer, in each state of the cores
# Of each setting in a state, before one is given up in it: first those clearly slower than the best.
SAMPLES_TO_JUDGE, CLEARLY_SLOWER = 5, 1.25
SAMPLES_TO_CHOOSE = 15  # and then all but those that are kept
TURNS_WITHOUT_SAMPLE = 6  # more of these, where the cores' distance changed during all rounds
FAR_BEHIND = 5  # a peer this much slower than the best peer is left with those samples

# A setting this much slower than its family's best is given up at once: more than what near and far
# cores make. One this slow at all is not tried at larger sizes either: gloo's ring stalls for seconds
# on delayed acknowledgements where its others take ms.
HOPELESS_FACTOR, HOPELESS_NS = 8, 50e6
# Large vectors are about memory, which is as near at one time as at another.
LARGE_BYTES, LARGE_FACTOR, LARGE_SAMPLES_TO_JUDGE = 8 << 20, 3, 2


@dataclass(frozen=True)
class Case:
    collective: str
    bytes: int
    place: str  # out, in
    ranks: int


@dataclass(frozen=True)
class Sample:
    nanoseconds: float  # per operation
    state: str  # of the two cores: near, far; any where that is not known
    trip_ns: float  # one way of a cache line, mean of before and after


@dataclass
class Result:
    entry: object
    scouted: float  # nanoseconds per operation at first sight
    iterations: int
    samples: dict = field(default_factory=dict)  # by round; without those of mixed state
    given_up: set = field(default_factory=set)  # states in which others of its family are faster

    def of_state(self, state):
        """Samples of that state alone, by round."""
        return {number: s for number, s in self.samples.items() if s.state == state}

    def median_in(self, state):
        """As `median`, of that state."""
        return statistics.median(s.nanoseconds for s in self.of_state(state).values())

    @property
    def median(self):
        """Per operation, over the rounds; a mean would count every interruption of the machine."""
        return statistics.median(sample.nanoseconds for sample in self.samples.values())


class Bench:
    """Measures cases with the given ranks and entries."""

    def __init__(self, ranks_by_set, entries, options, say, line_trip):
        self._sets = ranks_by_set
        self._entries = list(entries)
        self._options = options
        self._say = say
        self._line_trip = line_trip
        self._hopeless = set()  # (collective, entry name)
        self._kept = {}  # results by entry name, by case
        self.mixed = 0  # samples that were dropped: the cores' distance changed meanwhile
        self.measured = set()  # families that answered, whether or not a sample of theirs was kept
        self.faults = []  # wrong results and deaths: they make the run fail

    def measure(self, case, memory_budget, until=None):
        """Adds rounds to a case: as many as the options say, or until that time, and one at the least.
        Settings of a peer that turn out slower than its others are given up on the way, in each
        state of the cores for itself."""
        if case not in self._kept:
            self._kept[case] = self._choose(case, memory_budget)
        self._run_rounds(case, self._kept[case], memory_budget, until)
        for entry in self._entries:
            self._drop(entry)

    def results(self, case):
        """By entry name, of all that have samples."""
        kept = self._kept.get(case, {})
        return {name: result for name, result in kept.items() if result.samples}

    def _choose(self, case, memory_budget):
        ready = {}
        for entry in self._entries:
            result = self._scout(case, entry)
            if result:
                ready[entry.name] = result
            if self._is_large(case, memory_budget):
                self._drop(entry)
        return self._without_hopeless(case, ready)

    def _without_hopeless(self, case, ready):
        factor = LARGE_FACTOR if case.bytes >= LARGE_BYTES else HOPELESS_FACTOR
        kept = {}
        for name, result in ready.items():
            best = min(other.scouted for other in ready.values()
                       if other.entry.family == result.entry.family)
            if result.scouted <= factor * best:
                kept[name] = result
            elif result.scouted > HOPELESS_NS:
                self._hopeless.add((case.collective, name))
        return kept

    def _run_rounds(self, case, kept, memory_budget, until):
        order = list(kept.values())
        if not order:
            return
        first = 1 + max(max(result.samples, default=-1) for result in order)
        done, trip = 0, self._line_trip.measure()
        while self._goes_on(done, until):
            # Another order each round: no contender always follows the same neighbour.
            shift = done % len(order)
            # Rotated rather than shuffled: the same run has the same order.
            for result in order[shift:] + order[:shift]:
                if self._line_trip.state(trip, trip) in result.given_up:
                    continue
                before = trip
                nanoseconds = self._turn(case, result.entry, result.iterations, check=False)
                # What comes after this turn is what comes before the next one.
                trip = self._line_trip.measure()
                self._keep_sample(result, first + done, nanoseconds, before, trip)
                if self._is_large(case, memory_budget):
                    self._drop(result.entry)
                    trip = self._line_trip.measure()
            done += 1
            _give_up_slower(order, case.bytes >= LARGE_BYTES)
        self._repeat_mixed(case, order, first + done, memory_budget)

    def _repeat_mixed(self, case, order, number, memory_budget):
        """A short run has a round or two: where the cores' distance changed in all of them, a few
        more turns, so that the table has a figure."""
        for result in order:
            for _ in range(TURNS_WITHOUT_SAMPLE):
                if result.samples or result.given_up:
                    break
                before = self._line_trip.measure()
                nanoseconds = self._turn(case, result.entry, result.iterations, check=False)
                self._keep_sample(result, number, nanoseconds, before, self._line_trip.measure())
                if self._is_large(case, memory_budget):
                    self._drop(result.entry)

    def _goes_on(self, done, until):
        if until is None:
            return done < self._options.rounds
        return done == 0 or time.monotonic() < until

    def _keep_sample(self, result, number, nanoseconds, before, after):
        state = self._line_trip.state(before, after)
        if nanoseconds is None:
            # Its ranks are gone.
            result.given_up |= {"near", "far", "any"}
            return
        self.measured.add(result.entry.family)
        if state == "mixed":
            self.mixed += 1
            return
        trip = None if before is None or after is None else (before + after) / 2
        result.samples[number] = Sample(nanoseconds, state, trip)

    def _is_large(self, case, memory_budget):
        # Input and output of all ranks, for every set that would hold its buffers at the same time.
        per_set = 2 * case.bytes * case.ranks * self._options.pairs
        return per_set * len(self._sets) > memory_budget

    def _scout(self, case, entry):
        """Checks the result once and finds how many iterations make a sample long enough."""
        if entry.process_set not in self._sets or not entry.can_take(case):
            return None
        if (case.collective, entry.name) in self._hopeless:
            return None
        target = self._options.sample_ms * 1e6
        iterations = 1
        nanoseconds = self._turn(case, entry, iterations, check=entry.is_checked)
        while nanoseconds is not None and nanoseconds * iterations < target / 4:
            # A first turn is slow (connections, page tables): approach, do not jump.
            wanted = int(target / max(nanoseconds, 1.0)) + 1
            iterations = min(wanted, iterations * 32)
            nanoseconds = self._turn(case, entry, iterations, check=False)
        if nanoseconds is None:
            return None
        iterations = max(1, int(target / max(nanoseconds, 1.0)))
        if nanoseconds < HOPELESS_NS:
            # The better of two: which settings are tried at all must not depend on one interruption.
            nanoseconds = min(self._turn(case, entry, iterations, check=False) or nanoseconds,
                              nanoseconds)
        return Result(entry, nanoseconds, iterations)

    def _turn(self, case, entry, iterations, check):
        """Nanoseconds per operation: the slowest rank's. None when the entry can't do the case."""
        ranks = self._sets.get(entry.process_set)
        if ranks is None:
            return None
        # An eighth of the sample, so that caches and branch predictors know the case.
        warmup = max(1, min(iterations // 8, 2000))
        place = entry.place or case.place
        line = (f"measure {case.collective} {case.bytes} {place} {entry.memory} {entry.algorithm} "
                f"{self._options.pairs} {warmup} {iterations} {int(check)}")
        try:
            answers = ranks.order(line, self._options.timeout)
        except ContenderFailed as failure:
            self._lose(entry.process_set, str(failure))
            return None
        kinds = {words[0] for words in answers}
        if "wrong" in kinds:
            text = next(" ".join(words[1:]) for words in answers if words[0] == "wrong")
            self._fault(f"{entry.name}: {case.collective} of {case.bytes} B, {case.place}: {text}")
            return None
        if kinds != {"time"}:
            return None
        # A run of send and receive is there and back.
        per_iteration = 2 if case.collective == "send_recv" else 1
        return max(int(words[1]) for words in answers) / iterations / per_iteration

    def _drop(self, entry):
        ranks = self._sets.get(entry.process_set)
        if ranks is None:
            return
        try:
            ranks.order("drop", self._options.timeout)
        except ContenderFailed as failure:
            self._lose(entry.process_set, str(failure))

    def _lose(self, name, text):
        # The contender is left out from now on, and the run fails at its end.
        self._fault(text)
        self._sets.pop(name).stop()

    def _fault(self, text):
        self._say(f"FAULT {text}")
        self.faults.append(text)


def _give_up_slower(order, is_large):
    """The peers and limits with several settings keep their best few; everybody else stays. Twenty
    settings in every round would take hours."""
    families = {}
    for result in order:
        families.setdefault((result.entry.family, result.entry.pinned), []).append(result)
    least = LARGE_SAMPLES_TO_JUDGE if is_large else SAMPLES_TO_JUDGE
    for state in ("near", "far", "any"):
        for results in families.values():
            left = [result for result in results if state not in result.given_up]
            fewest = min((len(result.of_state(state)) for result in left), default=0)
            if fewest < least:
                continue
            left.sort(key=lambda result: result.median_in(state))
            best = left[0].median_in(state)
            for result in left[KEPT_PER_FAMILY:]:
                if fewest >= SAMPLES_TO_CHOOSE or result.median_in(state) > CLEARLY_SLOWER * best:
                    result.given_up.add(state)
        _give_up_far_behind(families, state, least)


def _give_up_far_behind(families, state, least):
    """Peers that spin with more ranks than cores take milliseconds where others take microseconds:
    the time is better spent on the comparison with the best peer."""
    bests = {}
    for (family, pinned), results in families.items():
        own = [r.median_in(state) for r in results if len(r.of_state(state)) >= least]
        if family in PEERS and own:
            bests[family, pinned] = min(own)
    for key, median in bests.items():
        if median > FAR_BEHIND * min(bests.values()):
            for result in families[key]:
                result.given_up.add(state)
