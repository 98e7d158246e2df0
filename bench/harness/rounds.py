"""Interleaved measuring: each round gives every contender one turn on the same case."""

import statistics
from dataclasses import dataclass, field

from .ranks import ContenderFailed

KEPT_PER_FAMILY = 2  # of the settings of one peer, after the scouting round

# A setting this much slower than its family's best, and this slow at all, is not tried at larger
# sizes: gloo's ring stalls for seconds on delayed acknowledgements where its others take ms.
HOPELESS_FACTOR, HOPELESS_NS = 4, 50e6


@dataclass(frozen=True)
class Case:
    collective: str
    bytes: int
    place: str  # out, in
    ranks: int


@dataclass
class Result:
    entry: object
    nanoseconds: list = field(default_factory=list)  # per operation, one per round
    iterations: int = 0

    @property
    def median(self):
        """Per operation, over the rounds; a mean would count every interruption of the machine."""
        return statistics.median(self.nanoseconds)


class Bench:
    """Measures cases with the given ranks and entries."""

    def __init__(self, ranks_by_set, entries, options, say):
        self._sets = ranks_by_set
        self._entries = list(entries)
        self._options = options
        self._say = say
        self._hopeless = set()  # (collective, entry name)
        self.faults = []  # wrong results and deaths: they make the run fail

    def measure(self, case, memory_budget):
        """Results of one case, by entry name; the best settings of each peer only."""
        ready = {}
        for entry in self._entries:
            result = self._scout(case, entry)
            if result:
                ready[entry.name] = result
            if self._is_large(case, memory_budget):
                self._drop(entry)
        # The first look at all settings decides which of them are measured: twenty settings times
        # seven rounds would take hours.
        kept = _keep_best(ready)
        self._note_hopeless(case, ready)
        for result in kept.values():
            result.nanoseconds = []
        self._run_rounds(case, kept, memory_budget)
        for entry in self._entries:
            self._drop(entry)
        return {name: result for name, result in kept.items() if result.nanoseconds}

    def _note_hopeless(self, case, ready):
        for result in ready.values():
            best = min(other.nanoseconds[0] for other in ready.values()
                       if other.entry.family == result.entry.family)
            own = result.nanoseconds[0]
            if own > HOPELESS_NS and own > HOPELESS_FACTOR * best:
                self._hopeless.add((case.collective, result.entry.name))

    def _run_rounds(self, case, kept, memory_budget):
        order = list(kept.values())
        for round_number in range(self._options.rounds):
            # Another order each round: nobody always follows the same neighbour.
            shift = round_number % len(order) if order else 0
            # Rotated rather than shuffled: the same run has the same order.
            for result in order[shift:] + order[:shift]:
                nanoseconds = self._turn(case, result.entry, result.iterations, check=False)
                if nanoseconds is not None:
                    result.nanoseconds.append(nanoseconds)
                if self._is_large(case, memory_budget):
                    self._drop(result.entry)

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
        if nanoseconds > HOPELESS_NS:
            return Result(entry, [nanoseconds], iterations)
        # Twice, and the better one: what is kept must not depend on one interruption.
        again = self._turn(case, entry, iterations, check=False)
        if again is None:
            return None
        return Result(entry, [min(nanoseconds, again)], iterations)

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
        return max(int(words[1]) for words in answers) / iterations

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


def _keep_best(ready):
    """The peers and limits with several settings keep their best few; everybody else stays."""
    families = {}
    for result in ready.values():
        families.setdefault(result.entry.family, []).append(result)
    kept = {}
    for results in families.values():
        results.sort(key=lambda result: result.nanoseconds[0])
        for result in results[:KEPT_PER_FAMILY]:
            kept[result.entry.name] = result
    return kept
