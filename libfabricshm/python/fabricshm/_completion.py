"""Completions of fabricrun for bash, zsh and fish, made of its parser: there is no second list."""

SHELLS = ("bash", "zsh", "fish")


def _options(parser):
    """(names, help, metavar or None, choices) of each option."""
    for action in parser._actions:
        if action.option_strings:
            takes = None if action.nargs == 0 else action.metavar or action.dest.upper()
            yield action.option_strings, action.help or "", takes, action.choices


def _quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def _bash(parser):
    cases = []
    for names, _, takes, choices in _options(parser):
        if takes is None:
            continue
        words = f"-W {_quoted(' '.join(choices))}" if choices else "-f" if takes == "SOCKET" else None
        reply = "COMPREPLY=()" if words is None else \
            f"mapfile -t COMPREPLY < <(compgen {words} -- \"$word\")"
        cases.append(f"        {'|'.join(names)}) {reply}; return ;;")
    names = " ".join(name for names, *_ in _options(parser) for name in names)
    # Behind the script the words are its own: files are the best guess.
    return "\n".join([
        "# Completion of fabricrun for bash. Made by the program itself.",
        "_fabricrun() {",
        "    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}",
        "    case $previous in", *cases, "    esac",
        "    if [[ $word == -* ]]; then",
        f"        mapfile -t COMPREPLY < <(compgen -W {_quoted(names)} -- \"$word\")",
        "    else",
        "        compopt -o filenames 2> /dev/null",
        "        mapfile -t COMPREPLY < <(compgen -f -- \"$word\")",
        "    fi", "}", "complete -F _fabricrun fabricrun", ""])


def _zsh(parser):
    def escaped(text):
        return "".join("\\" + letter if letter in "[]:\\" else letter for letter in text)

    lines = ["#compdef fabricrun", "# Made by the program itself.", "_fabricrun() {", "    _arguments \\"]
    for names, text, takes, choices in _options(parser):
        action = f"({' '.join(choices)})" if choices else "_files" if takes == "SOCKET" else " "
        for name in names:
            value = f":{takes}:{action}" if takes else ""
            mark = "=" if takes and name.startswith("--") else ""
            lines.append(f"        {_quoted(f'{name}{mark}[{escaped(text)}]{value}')} \\")
    lines += ["        '1:SCRIPT:_files' \\", "        '*::ARGUMENT:_files'", "}", "_fabricrun \"$@\"", ""]
    return "\n".join(lines)


def _fish(parser):
    lines = ["# Completion of fabricrun for fish. Made by the program itself.", "complete -c fabricrun -F"]
    for names, text, takes, choices in _options(parser):
        line = "complete -c fabricrun"
        for name in names:
            line += f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}"
        line += f" -d {_quoted(text)}"
        if choices:
            line += f" -x -a {_quoted(' '.join(choices))}"
        elif takes:
            line += " -r -F" if takes == "SOCKET" else " -x"
        lines.append(line)
    return "\n".join([*lines, ""])


def script(parser, shell):
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](parser)
