// Programs and packages that a job is started with.

#pragma once

#include <string>

namespace fabricd {

/// As a shell finds it: in PATH, or `name` itself when it has a slash. "": there is none.
std::string find_program(const std::string& name);

/// What the first line of a script names ("#!/bin/sh -e": "/bin/sh"). "": it names none.
std::string interpreter_of(const std::string& program);

/// The folder of the Python package of this installation or build tree, for PYTHONPATH. "": it is
/// where Python searches anyway, or nowhere.
std::string find_python_packages();

}  // namespace fabricd
