"""Numbers that follow from words: the same on every machine, rank and run, and without a message."""

WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mixed(number):
    """The finaliser of splitmix64."""
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & WORD
    return number ^ (number >> 31)


def numbers_of(*words):
    """Numbers of 64 bits without end: splitmix64 from a state that each of the words changes."""
    state = 0
    for word in words:
        state = _mixed(((state ^ (word & WORD)) + _GOLDEN) & WORD)
    while True:
        state = (state + _GOLDEN) & WORD
        yield _mixed(state)
