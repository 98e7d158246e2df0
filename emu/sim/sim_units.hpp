// Rates and times as people write them: "64 GB/s", "250 ns".

#pragma once

#include <string>
#include <string_view>

#include "emu/sim/topology.hpp"
#include "libfabricshm/base/result.hpp"

namespace emu {

/// "64 GB/s", "10.1GB/s" (powers of 1000), "60 GiB/s", "512MB/s". kInvalid otherwise.
fabricshm::Result<Rate> parse_rate(std::string_view text);

/// "250ns", "1.5us", "20 ms", "3 s". kInvalid otherwise.
fabricshm::Result<Seconds> parse_seconds(std::string_view text);

/// "12.3 us": three digits and a unit.
std::string format_seconds(Seconds length);

/// "64 GB/s", likewise.
std::string format_rate(Rate rate);

}  // namespace emu
