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

BRACES = re.compile(r"([{};])")
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
    for token in BRACES.split(code):
        # Braces of a body are only counted, for its end.
        inside_body = any(kind in ("function", "value") for kind, _, _ in stack)
        if token == "{":
            stack.append(("nested" if inside_body else kind_of(head), head, line))
            head = ""
        elif token == "}" and stack:
            kind, opened_by, start = stack.pop()
            if kind == "function":
                found.append(Function(name_of(opened_by), start, line - start + 1))
            head = opened_by + "{}" if kind == "initialiser" else ""
        elif token == ";" and not inside_body:
            head = ""
        else:
            head += token
        line += token.count("\n")
    return found


@dataclass
class Class:
    # members: data of each object. functions: declared or defined inside, constructors and operators included.
    name: str
    line: int
    members: int = 0
    functions: int = 0


CLASS_NAME = re.compile(r"\b(?:class|struct|union)\s+(?:alignas\s*\([^()]*\)\s*|\[\[[^\]]*\]\]\s*)*([\w:]+)(?:<[^{}]*>)?"
                        r"\s*(?:final\s*)?(?::(?!:)[^{}]*)?$")
ACCESS = re.compile(r"\b(?:public|protected|private)\s*:(?!:)")
NO_MEMBER = re.compile(r"^(?:using|typedef|friend|static|static_assert|constexpr|class|struct|union|enum|template)\b")
TEMPLATE = re.compile(r"^template\s*<[^;{}()]*>\s*")
CALLS_NOTHING = re.compile(r"<[^<>;]*>|\b(?:alignas|decltype|__attribute__)\s*\([^()]*\)|\[\[[^\]]*\]\]|=.*$", re.DOTALL)


def declares_function(statement: str) -> bool:
    """Whether a declaration within a class is one of a function: of `std::function<void(int)> f_ = g(1)` it is not."""
    statement = TEMPLATE.sub("", statement)
    if "operator" in statement:
        return True
    while (shorter := CALLS_NOTHING.sub("", statement)) != statement:
        statement = shorter
    return bool(re.search(r"\w\s*\((?!\s*\*)", statement))


def count_declaration(owner: Class, statement: str) -> None:
    """Adds one declaration of a class body, without its `;` or its braces."""
    statement = ACCESS.sub("", statement).strip()
    if not statement or statement.startswith(("friend", "using", "typedef", "static_assert")):
        return
    if declares_function(statement):
        owner.functions += 1
    elif not NO_MEMBER.match(TEMPLATE.sub("", statement)):
        owner.members += 1 + re.sub(r"<[^;]*>|\([^()]*\)|\{[^{}]*\}", "", statement).count(",")


def classes(text: str) -> list[Class]:
    """Every class, struct and union with a body, nested ones by themselves."""
    found: list[Class] = []
    stack: list[tuple[str, Class | None, str]] = []  # kind, class, head
    head, line = "", 1
    for token in BRACES.split(code_only(text)):
        within = stack[-1][1] if stack else None
        if token == "{":
            kind = "body" if any(kind == "body" for kind, _, _ in stack) else kind_of(head)
            name = CLASS_NAME.search(head.strip()) if kind == "scope" else None
            if name is not None:
                stack.append(("class", Class(name.group(1).split("::")[-1], line), head))
                found.append(stack[-1][1])
            else:
                stack.append(("scope" if kind == "scope" and "enum" not in head else
                              "body" if kind == "function" else kind, None, head))
            head = ""
        elif token == "}" and stack:
            kind, _, opened_by = stack.pop()
            owner = stack[-1][1] if stack else None
            if kind == "body" and owner is not None:
                count_declaration(owner, opened_by)
            head = opened_by + "{}" if kind in ("value", "initialiser") else ""
        elif token == ";":
            if within is not None:
                count_declaration(within, head)
            head = ""
        else:
            head += token
        line += token.count("\n")
    return found
