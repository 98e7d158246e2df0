// Session, as Python sees it.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libfabricshm/python/handles.hpp"

namespace fabricshm::python {

class Arena;

/// Closing it closes what was opened through it. The mapping goes with the last array over it.
class Session {
  public:
    Session(const std::optional<std::string>& socket, std::int64_t timeout_ms,
            const std::optional<std::string>& label, const std::optional<std::string>& device);

    std::shared_ptr<Arena> open_arena(const std::string& name, std::uint64_t bytes, bool exclusive);
    void close();
    bool closed() const { return handle_ == nullptr; }

  private:
    std::shared_ptr<SessionHandle> handle_;
    std::vector<std::weak_ptr<Arena>> arenas_;
};

}  // namespace fabricshm::python
