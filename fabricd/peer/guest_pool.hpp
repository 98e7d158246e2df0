// PoolMemory: the pool of another host's daemon, as this host reaches it.

#pragma once

#include <array>
#include <cstdint>

#include "libfabricshm/machine/dax_devices.hpp"

namespace fabricd {

struct PoolMemory {
    fabricshm::DaxDevices devices;
    fabricshm::Stripes stripes;
    std::array<std::uint8_t, 16> uuid{};
    fabricshm::Bytes capacity = 0;
};

}  // namespace fabricd
