// Topology file: a topology in TOML. docs/simulator.md shows one with every key.

#pragma once

#include <string>
#include <variant>

#include "emu/sim/topology.hpp"

namespace emu {

/// The topology, or one line for a person on what is wrong: "rack.toml:7: switch: unknown key x".
using TopologyOrError = std::variant<Topology, std::string>;

/// `name` stands in front of error messages. The result has no error_message() of its own.
TopologyOrError parse_topology(const std::string& text, const std::string& name);

/// The same from a file.
TopologyOrError read_topology_file(const std::string& path);

}  // namespace emu
