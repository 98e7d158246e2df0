// The pool of pool_choice.hpp in the test's own process, without a daemon.

#pragma once

#include <memory>
#include <utility>

#include "libfabricshm/machine/dax_backend.hpp"
#include "libfabricshm/machine/emu_backend.hpp"
#include "libfabricshm/machine/numa_backend.hpp"
#include "tests/support/pool_choice.hpp"

namespace test_support {

inline fabricshm::Result<std::unique_ptr<fabricshm::PoolBackend>> make_test_pool(
    fabricshm::Bytes capacity) {
    const PoolChoice choice = PoolChoice::from_environment();
    if (choice.backend == "dax") {
        fabricshm::DaxOptions dax;
        dax.devices = choice.devices();
        // All that the device has: it may be cut up by what a killed program left.
        return fabricshm::make_dax_backend(dax);
    }
    if (choice.backend == "numa") {
        fabricshm::NumaOptions numa;
        numa.node = std::stoi(choice.where);
        numa.capacity = capacity;
        numa.huge_pages = fabricshm::HugePages::kOff;
        return fabricshm::make_numa_backend(numa);
    }
    if (choice.backend != "emu") {
        return fabricshm::Error{fabricshm::Errc::kInvalid, 0, "FABRIC_TEST_POOL"};
    }
    fabricshm::EmuOptions emu;
    emu.capacity = capacity;
    emu.huge_pages = fabricshm::HugePages::kOff;
    return fabricshm::make_emu_backend(emu);
}

/// The same without what an earlier program left on a device when it was killed.
inline std::unique_ptr<fabricshm::PoolBackend> empty_test_pool(fabricshm::Bytes capacity) {
    auto pool = make_test_pool(capacity).value();
    // A name of its own: a loop over the value of a temporary would outlive it.
    const auto leftovers = pool->list().value();
    for (const auto& left : leftovers) pool->destroy(left.arena_id);
    return pool;
}

/// One arena of that pool, mapped here and by processes forked from here. Ends the program when
/// there is none.
class PoolMemory {
  public:
    explicit PoolMemory(fabricshm::Bytes bytes)
        : pool_(empty_test_pool(fabricshm::round_up(bytes, 2 * fabricshm::kMiB))),
          piece_(pool_->create(1, "test", 0, bytes).value()),
          mapping_(piece_.map().value()) {}
    ~PoolMemory() { pool_->destroy(1); }
    PoolMemory(const PoolMemory&) = delete;
    PoolMemory& operator=(const PoolMemory&) = delete;

    std::byte* data() const noexcept { return mapping_.data(); }

  private:
    std::unique_ptr<fabricshm::PoolBackend> pool_;
    fabricshm::PoolPiece piece_;
    fabricshm::Mapping mapping_;
};

}  // namespace test_support
