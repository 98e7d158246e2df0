// The version of the project, for those few files that name it: a release compiles them again and
// nothing else.

#pragma once

/// As CMakeLists.txt has it. scripts/release writes both, lint.versions compares them.
#define FABRIC_VERSION "0.2.0"
