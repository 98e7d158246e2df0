"""A reader of C++ that is just good enough to find comments and the extent of functions."""

import re
from dataclasses import dataclass

# One alternative per thing that may hold braces or slashes without meaning them.
TOKEN = re.compile(
    r"(?P<comment>//[^\n]*(?:\\\n[^\n]*)*|/\*.*?\*/)"
    r'|(?P<raw>R"(?P<mark>[^()\s\\]{0,16})\(.*?\)(?P=mark)")'
    r'|(?P<string>"(?:\\.|[^"\\\n])*")'
    r"|(?P<char>(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+')",
    re.DOTALL,
)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)

SCOPE_HEAD = re.compile(r"\bnamespace\b|^\s*extern\s*$|^\s*TEST_SUITE\b")
TYPE_HEAD = re.compile(r"\b(class|struct|union|enum)\b")
FUNCTION_TAIL = re.compile(
    r"\)\s*(?:(?:const|volatile|noexcept|override|final|mutable|try|&&?)\s*(?:\([^()]*\)\s*)?)*"
    r"(?:->[^;{}]*|requires[^;{}]*)?$"
)
INITIALISERS = re.compile(r"\)\s*(?:noexcept\s*(?:\([^()]*\))?\s*)?:(?!:)")


@dataclass
class Function:
    # lines: from the brace that opens the body to the one that closes it.
    name: str
    line: int
    lines: int


def blank(text: str) -> str:
    """`text` with everything but its line ends replaced by spaces."""
    return re.sub(r"[^\n]", " ", text)


def without_comments(text: str) -> str:
    """Comments become spaces; strings stay."""
    return TOKEN.sub(lambda m: blank(m.group()) if m.group("comment") else m.group(), text)


def code_only(text: str) -> str:
    """Comments, literals and preprocessor lines become spaces, so that braces mean what they say."""
    text = TOKEN.sub(lambda m: blank(m.group()), text)
    return PREPROCESSOR.sub(lambda m: blank(m.group()), text)


def comment_lines(text: str) -> tuple[int, int]:
    """Lines that hold a comment and nothing else, and lines with a comment behind code."""
    alone = behind_code = 0
    for full, rest in zip(text.split("\n"), without_comments(text).split("\n")):
        if full.rstrip() != rest.rstrip():
            behind_code += bool(rest.strip())
            alone += not rest.strip()
    return alone, behind_code


def kind_of(head: str) -> str:
    """What the `{` after `head` opens, outside of functions."""
    if SCOPE_HEAD.search(head):
        return "scope"
    if INITIALISERS.search(head):
        # In a constructor's initialisers a name before the brace is a member, else it is the body.
        return "initialiser" if re.search(r"[\w>]\s*$", head) else "function"
    if FUNCTION_TAIL.search(head):
        return "function"
    return "scope" if TYPE_HEAD.search(head) else "value"


def name_of(head: str) -> str:
    """The first name with a parenthesis behind it, in what precedes the body."""
    names = re.findall(r"(~?[\w:]+|operator\s*\S+?)\s*\(", head)
    return names[0] if names else "(unnamed)"


def functions(text: str) -> list[Function]:
    """Every function with a body: its name, its line, and its lines from `{` to `}`."""
    code = code_only(text)
    found: list[Function] = []
    stack: list[tuple[str, str, int]] = []  # kind, head, line of the brace
    head, line = "", 1
    for character in code:
        # Braces of a body are only counted, for its end.
        inside_body = any(kind in ("function", "value") for kind, _, _ in stack)
        if character == "{":
            stack.append(("nested" if inside_body else kind_of(head), head, line))
            head = ""
        elif character == "}" and stack:
            kind, opened_by, start = stack.pop()
            if kind == "function":
                found.append(Function(name_of(opened_by), start, line - start + 1))
            head = opened_by + "{}" if kind == "initialiser" else ""
        elif character == ";" and not inside_body:
            head = ""
        else:
            head += character
        line += character == "\n"
    return found
