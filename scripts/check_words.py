#!/usr/bin/python3
"""lint.words: comments, messages, metrics, test names and documents say things in the field's words. The words that are
not used, what to say instead and why are in scripts/words.txt."""

import io
import re
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

import cxx_scan
from lint_support import SOURCE_SUFFIXES, line_of, list_files, read_text, repository_root, run_lint

TABLE = "scripts/words.txt"
PAGES = {".md", ".1", ".5", ".7", ".8"}
COMMENTED = {".sh", ".cmake", ".toml", ".txt", ".yml", ".yaml", ".service", ".proto"}
UNREAD = {".json", ".png", ".svg"}
# Files that hold the words because they are about them, and records of what was measured, which stay as they were.
EXEMPT = {TABLE, "scripts/check_words.py", "tests/lint/lint_selftest.py"}
RECORDS = ("docs", "perf")
HASH_COMMENT = re.compile(r"(?:^|(?<=\s))(?:#|//)[^\n]*")


@dataclass
class Word:
    """One row of the table."""

    source: str   # a regular expression over whole words
    instead: str
    ceiling: int  # how often it may still be found: 0, or what is left of a word that is on its way out
    reason: str


def parse_row(line: str) -> Word | str:
    """A row reads `pattern ; instead ; ceiling ; reason`. What is wrong with it, if anything."""
    cells = [cell.strip() for cell in line.split(" ; ")]
    if len(cells) != 4 or not all(cells) or not cells[2].isdigit():
        return f"{TABLE}: a row reads: pattern ; what to say instead ; how many are left ; reason: {line}"
    try:
        groups = re.compile(cells[0]).groups
    except re.error as error:
        return f"{TABLE}: {cells[0]}: {error}"
    if groups or cells[0] != cells[0].lower():
        return f"{TABLE}: {cells[0]}: a pattern has small letters and no groups but (?:...)"
    return Word(cells[0], cells[1], int(cells[2]), cells[3])


def table(root: Path) -> tuple[list[Word], list[str]]:
    """The rows, and what is wrong with the others."""
    path = root / TABLE
    lines = path.read_text().splitlines() if path.is_file() else []
    rows = [parse_row(line) for line in lines if line.strip() and not line.startswith("#")]
    findings = [row for row in rows if isinstance(row, str)]
    words = [row for row in rows if isinstance(row, Word)]
    return words, findings if rows else [f"{TABLE}: is missing or empty"]


def kept(text: str, spans: list[tuple[int, int]]) -> str:
    """`text` with everything outside of the spans blanked, so that positions stay."""
    parts, end = [], 0
    for start, stop in spans:
        parts += [cxx_scan.blank(text[end:start]), text[start:stop]]
        end = stop
    return "".join(parts + [cxx_scan.blank(text[end:])])


def cxx_prose(text: str) -> str:
    """Comments and texts in quotes; not the names of included files."""
    return kept(text, [match.span() for match in cxx_scan.TOKEN.finditer(text)
                       if not text[text.rfind("\n", 0, match.start()) + 1:match.start()].startswith("#include")])


def python_prose(text: str) -> str:
    """Comments and texts in quotes."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return ""  # lint.paths reports it
    return kept(text, [(starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1])
                       for token in tokens if token.type in (tokenize.COMMENT, tokenize.STRING)])


def prose(path: Path, text: str) -> str | None:
    """What is written for people in a file, at its place; None for a file that is not looked at."""
    if str(path) in EXEMPT or path.parts[:2] == RECORDS:
        return None
    if path.suffix in SOURCE_SUFFIXES:
        return cxx_prose(text)
    if path.suffix in PAGES:
        return text
    if path.suffix == ".py" or (path.suffix == "" and text.startswith("#!/usr/bin/python3")):
        return python_prose(text)
    if path.suffix in COMMENTED or (path.suffix == "" and text.startswith("#!/bin/")):
        return kept(text, [match.span() for match in HASH_COMMENT.finditer(text)])
    return None


def places(root: Path, words: list[Word]) -> dict[str, list[str]]:
    """Where each word is, by its pattern. One pass over each file looks for all of them; where two fit, the first of the
    table counts."""
    found: dict[str, list[str]] = {word.source: [] for word in words}
    any_word = re.compile(r"\b(?:" + "|".join(f"({word.source})" for word in words) + r")\b")
    for path in list_files(root):
        text = prose(path, read_text(root, path)) if path.suffix not in UNREAD else None
        for match in any_word.finditer(text.lower()) if text else []:
            found[words[match.lastindex - 1].source].append(f"{path}:{line_of(text, match.start())}")
    return found


def word_findings(word: Word, where: list[str]) -> list[str]:
    """A word that is gone is reported at each place; one on its way out only when there is more of it than before."""
    if len(where) <= word.ceiling:
        return []
    if word.ceiling == 0:
        return [f"{place}: \"{word.source}\": say {word.instead} ({word.reason})" for place in where]
    return [f"{len(where)} of \"{word.source}\", and no more than {word.ceiling} are allowed: say {word.instead} "
            f"({word.reason}); scripts/check_words.py --where \"{word.source}\" shows them"]


def check(root: Path) -> list[str]:
    """Checks comments, texts in quotes and documents against the table of words."""
    words, findings = table(root)
    found = places(root, words)
    left = [f"{word.source} {len(found[word.source])} of {word.ceiling}" for word in words if word.ceiling]
    print("words on their way out: " + (", ".join(left) or "none"))
    for word in words:
        findings += word_findings(word, found[word.source])
        if len(found[word.source]) < word.ceiling:
            print(f"{TABLE}: the number of \"{word.source}\" can be lowered to {len(found[word.source])} (--lower)")
    return findings


def lower(root: Path) -> None:
    """Writes today's counts into the table where they are smaller."""
    words, _ = table(root)
    found = places(root, words)
    path = root / TABLE
    lines = path.read_text().splitlines(keepends=True)
    for word in words:
        count = min(word.ceiling, len(found[word.source]))
        lines = [line.replace(f" ; {word.ceiling} ; ", f" ; {count} ; ", 1) if line.startswith(f"{word.source} ; ")
                 else line for line in lines]
    path.write_text("".join(lines))


def main() -> None:
    arguments = sys.argv[1:]
    root = Path(arguments[arguments.index("--root") + 1]).resolve() if "--root" in arguments else repository_root()
    if "--where" in arguments:
        wanted = parse_row(f"{arguments[arguments.index('--where') + 1]} ; - ; 0 ; -")
        print("\n".join(places(root, [wanted])[wanted.source]))
    elif "--lower" in arguments:
        lower(root)
    else:
        run_lint("lint.words", check)


if __name__ == "__main__":
    main()
