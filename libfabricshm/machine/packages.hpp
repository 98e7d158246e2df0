// The packages of this machine: which processors and which memory nodes belong together.

#pragma once

#include <string>
#include <vector>

namespace fabricshm {

struct Package {
    int number = 0;               // as the kernel counts them
    std::string model;            // "" when unknown
    std::vector<int> processors;  // operating system numbers, rising
    std::vector<int> nodes;       // of its memory, rising; -1 is none
};

/// From hwloc; one package with all processors where that finds none. A few milliseconds, once.
std::vector<Package> read_packages();

}  // namespace fabricshm
