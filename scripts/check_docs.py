#!/usr/bin/python3
"""lint.docs: the documents are all there, their links lead somewhere, and what the code offers
(error codes, C functions, subcommands, configuration keys, environment variables) is in them and in the manual pages."""

import re
from pathlib import Path

from lint_support import SOURCE_SUFFIXES, line_of, list_files, read_text, run_lint

PAGES = ["README.md"] + [f"docs/{name}.md" for name in (
    "architecture", "shm_layout", "protocol", "concurrency", "failure_model", "errors", "emulator",
    "testing", "contributing", "changelog", "api", "adr/0001-record-decisions")]

LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*$", re.MULTILINE)

REFERENCE = re.compile(r"\bdocs/[\w/-]+\.md\b")
SPEAKS_OF_PAGES = {"check_docs.py", "lint_selftest.py"}  # which need not be there
REFERRING = SOURCE_SUFFIXES | {".py", ".txt", ".cmake", ".in", ".toml", ".service"}

HEADER = "libfabricshm/include/fabricshm/fabricshm.h"
ERRC_HEADER, ERRC_SOURCE = "libfabricshm/base/result.hpp", "libfabricshm/base/result.cpp"
ERRC = re.compile(r"^\s*(k[A-Z]\w*) = (\d+),", re.MULTILINE)
ERRC_TEXT = re.compile(r'\{"(k[A-Z]\w*)", "([^"]*)"\}')
ABI_CODE = re.compile(r"^\s*(FABRICSHM_E[A-Z]+) = -(\d+)", re.MULTILINE)
ABI_FUNCTION = re.compile(r"^(?:FABRICSHM_API|static inline)\b[^;{(]*?\b(fabricshm_\w+)\(", re.MULTILINE)
SUBCOMMAND = re.compile(r'add_subcommand\(\s*"([a-z][\w-]*)"')
CONFIG_KEY = re.compile(r'_key\(\s*"([a-z_]+\.[a-z_]+)"')
METRIC, METRICS_PAGE = re.compile(r'"(fabricd_[a-z0-9_]+)'), "docs/telemetry.md"
CONTROL_SOURCE, CONTROL_PAGE = "fabricd/config/control_keys.cpp", "docs/control_reference.md"
CONFIG_SOURCE, CONFIG_PAGE = "fabricd/config/config_keys.cpp", "docs/configuration.md"
VARIABLE = re.compile(r'"(FABRIC_[A-Z_]+)"')
VARIABLE_FOLDERS = {"libfabricshm", "fabricd", "emu", "kernels"}
VARIABLE_TABLE = "fabricd/ctl/environment.cpp"
LAUNCHER, LAUNCHER_MANUAL = "libfabricshm/python/fabricshm/run.py", "docs/man/fabricrun.1"
LAUNCHER_OPTION = re.compile(r'(?:add|add_argument)\((?:"-\w", )?"(--[a-z-]+)"')
ADR_NAME = re.compile(r"docs/adr/(\d{4}-[a-z0-9-]+|README)\.md$")
# In this order; those in brackets where there is something to say.
ADR_HEADINGS = re.compile(r"Question(, Considered)?, Decision, Consequences(, Later)?$")
INDEXES = {"docs": "docs/README.md", "docs/adr": "docs/adr/README.md", "docs/tutorials": "docs/tutorials/README.md"}


def slug(heading: str) -> str:
    """The anchor that a heading gets on the usual forges."""
    words = re.sub(r"[`*]", "", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """Of headings outside of code blocks, in which a # begins a comment."""
    return {slug(match.group(1)) for match in HEADING.finditer(FENCE.sub("", text))}


def link_finding(root: Path, page: Path, target: str, where: str) -> str | None:
    # Links out of the repository are not followed: lints need no network.
    if re.match(r"[a-z]+:", target):
        return None
    name, _, anchor = target.partition("#")
    file = (root / page.parent / name).resolve() if name else root / page
    if not file.exists():
        return f"{where}: the link {target} leads nowhere"
    if anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
        return f"{where}: {target}: there is no such heading"
    return None


def check_links(root: Path) -> list[str]:
    """In all pages, also those that PAGES does not name."""
    findings = []
    for page in (path for path in list_files(root) if path.suffix == ".md"):
        # Code blocks are blanked line by line, so that line numbers stay right.
        text = FENCE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), read_text(root, page))
        for match in LINK.finditer(text):
            where = f"{page}:{line_of(text, match.start())}"
            finding = link_finding(root, page, match.group(1) or match.group(2), where)
            findings += [finding] if finding else []
    return findings


def check_references(root: Path) -> list[str]:
    """A comment that sends its reader to a page names one that is there."""
    findings = []
    for path in list_files(root):
        if path.suffix not in REFERRING or path.name in SPEAKS_OF_PAGES:
            continue
        text = read_text(root, path)
        for match in REFERENCE.finditer(text):
            if not (root / match.group()).is_file():
                findings.append(f"{path}:{line_of(text, match.start())}: {match.group()} is missing")
    return findings


def check_pages(root: Path) -> list[str]:
    """The pages that have to be there, and the names of decisions."""
    findings = [f"{page}: is missing" for page in PAGES if not (root / page).is_file()]
    for page in (path for path in list_files(root) if path.parts[:2] == ("docs", "adr")):
        if not ADR_NAME.match(str(page)):
            findings.append(f"{page}: a decision is named docs/adr/NNNN-short-title.md")
    return findings


def check_decisions(root: Path) -> list[str]:
    """One form for all, so that a reader finds the alternatives and the costs of each at the same place."""
    findings = []
    for page in (path for path in list_files(root) if path.parts[:2] == ("docs", "adr") and path.name[0].isdigit()):
        text = FENCE.sub("", read_text(root, page))
        if not text.startswith(f"# {int(page.name[:4])}. "):
            findings.append(f"{page}: begins with \"# {int(page.name[:4])}. \" and what was decided")
        headings = ", ".join(re.findall(r"^## (.*?)\s*$", text, re.MULTILINE))
        if not ADR_HEADINGS.match(headings):
            findings.append(f"{page}: has the headings {headings or 'of nothing'}; a decision has Question, Considered "
                            "(if something else was), Decision, Consequences, and Later for what was learned afterwards")
    return findings


def check_indexes(root: Path) -> list[str]:
    """A page that no index leads to is found by none of its readers."""
    findings = []
    for folder, index in INDEXES.items():
        text = optional_text(root, index)
        linked = {name.split("#")[0] for match in LINK.findall(text) for name in match}
        for page in (path for path in list_files(root) if path.suffix == ".md" and str(path.parent) == folder):
            if str(page) != index and page.name not in linked:
                findings.append(f"{page}: {index} does not link to it")
    return findings


def optional_text(root: Path, name: str) -> str:
    """Empty for a file that is missing: the checks find nothing in it then, and say so."""
    path = root / name
    return path.read_text() if path.is_file() else ""


def table_rows(text: str) -> list[list[str]]:
    """The cells of each row; headlines and the lines below them come along."""
    lines = (line.strip() for line in text.split("\n"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def error_row_finding(rows: dict, name: str, value: int, text: str, abi: dict[int, str]) -> str | None:
    """A row reads: | `kBusy` | `FABRICSHM_EBUSY` | text | what happened | what to do |"""
    row = rows.get(f"`{name}`")
    if row is None:
        return f"docs/errors.md: no row for {name}"
    if value not in abi:
        return f"{HEADER}: no FABRICSHM_E* code has the value -{value} of {name}"
    if len(row) < 5 or not all(row[:5]):
        return f"docs/errors.md: the row of {name} needs five filled cells"
    if row[1] != f"`{abi[value]}`":
        return f"docs/errors.md: {name} is {abi[value]} in the C ABI, the row says {row[1]}"
    if row[2] != text:
        return f"docs/errors.md: {name} prints \"{text}\", the row says \"{row[2]}\""
    return None


def check_errors(root: Path) -> list[str]:
    """The table of docs/errors.md says of each code what the sources say of it."""
    errors = optional_text(root, "docs/errors.md")
    codes = {name: int(value) for name, value in ERRC.findall(optional_text(root, ERRC_HEADER))}
    texts = dict(ERRC_TEXT.findall(optional_text(root, ERRC_SOURCE)))
    abi = {int(value): name for name, value in ABI_CODE.findall(optional_text(root, HEADER))}
    if not codes or not abi:
        return [f"no error codes found in {ERRC_HEADER} and {HEADER}"]
    rows = {row[0]: row for row in table_rows(errors)}
    findings = [error_row_finding(rows, name, value, texts.get(name, ""), abi)
                for name, value in codes.items() if name != "kOk"]
    findings += [f"{ERRC_HEADER}: no Errc for {name}" for value, name in abi.items()
                 if value not in codes.values()]
    return [finding for finding in findings if finding]


def check_mentions(root: Path) -> list[str]:
    """Every C function is in api.md, every subcommand and configuration key in its page."""
    api = optional_text(root, "docs/api.md")
    functions = sorted(set(ABI_FUNCTION.findall(optional_text(root, HEADER))))
    findings = [f"docs/api.md: does not mention {name}()" for name in functions
                if not re.search(rf"\b{name}\b", api)]
    if not functions:
        findings.append(f"{HEADER}: no functions found")
    return findings + check_commands(root) + check_keys(root)


def check_commands(root: Path) -> list[str]:
    """Read from the sources, so that no command can be added without a word."""
    findings = []
    fabricctl = optional_text(root, "docs/fabricctl.md")
    for source in (path for path in list_files(root) if path.parts[:2] == ("fabricd", "ctl")):
        for name in SUBCOMMAND.findall(read_text(root, source)):
            if f"`fabricctl {name}" not in fabricctl:
                findings.append(f"docs/fabricctl.md: does not mention `fabricctl {name}`")
    return findings


def check_keys(root: Path) -> list[str]:
    """As check_commands(), for the keys of the configuration."""
    page = optional_text(root, CONFIG_PAGE)
    keys = CONFIG_KEY.findall(optional_text(root, CONFIG_SOURCE))
    control = optional_text(root, CONTROL_PAGE)
    findings = [f"{CONFIG_PAGE}: does not mention `{key}`" for key in keys if f"`{key}`" not in page]
    return findings + [f"{CONTROL_PAGE}: does not mention `{key}`"
                       for key in CONFIG_KEY.findall(optional_text(root, CONTROL_SOURCE)) if f"`{key}`" not in control]


def check_metrics(root: Path) -> list[str]:
    """What /metrics shows is in the page on telemetry."""
    page = optional_text(root, METRICS_PAGE)
    names = {name for path in list_files(root) if path.parts[0] == "fabricd" and path.suffix == ".cpp"
             for name in METRIC.findall(read_text(root, path))}
    return [f"{METRICS_PAGE}: does not mention {name}" for name in sorted(names) if f"`{name}`" not in page]


def manual_text(root: Path, name: str) -> str:
    """A manual page without the backslashes that hyphens have there."""
    return optional_text(root, name).replace("\\", "")


def check_manuals(root: Path) -> list[str]:
    """Commands of fabricctl and options of fabricrun are in their manual pages."""
    pages = {"docs/man/fabricctl.1": set(), LAUNCHER_MANUAL: set(LAUNCHER_OPTION.findall(optional_text(root, LAUNCHER)))}
    for source in (path for path in list_files(root) if path.parts[:2] == ("fabricd", "ctl")):
        pages["docs/man/fabricctl.1"] |= set(SUBCOMMAND.findall(read_text(root, source)))
    return [f"{page}: does not mention {word}" for page, words in pages.items() for word in sorted(words)
            if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", manual_text(root, page))]


def check_variables(root: Path) -> list[str]:
    """What the sources read from the environment is in `fabricctl env` and in libfabricshm(7)."""
    table = set(VARIABLE.findall(optional_text(root, VARIABLE_TABLE)))
    manual = manual_text(root, "docs/man/libfabricshm.7")
    read = set()
    for path in list_files(root):
        code = path.suffix in SOURCE_SUFFIXES | {".py"} and path.parts[0] in VARIABLE_FOLDERS
        if code and str(path) != VARIABLE_TABLE:
            read |= set(VARIABLE.findall(read_text(root, path)))
    findings = [f"{VARIABLE_TABLE}: does not have {name}" for name in sorted(read - table)]
    findings += [f"{VARIABLE_TABLE}: nothing reads {name}" for name in sorted(table - read)]
    return findings + [f"docs/man/libfabricshm.7: does not mention {name}" for name in sorted(table)
                       if name not in manual]


def check(root: Path) -> list[str]:
    """Checks pages, decisions, links, references from code, error rows and mentions."""
    checks = (check_pages, check_decisions, check_indexes, check_links, check_references, check_errors, check_mentions, check_metrics,
              check_manuals, check_variables)
    return [finding for one in checks for finding in one(root)]


if __name__ == "__main__":
    run_lint("lint.docs", check)
