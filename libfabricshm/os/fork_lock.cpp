#include "libfabricshm/os/fork_lock.hpp"

namespace fabricshm {

std::mutex& fork_lock() noexcept {
    // Never destroyed: threads of sessions may still run while the process exits.
    static auto* const lock = new std::mutex;
    return *lock;
}

}  // namespace fabricshm
