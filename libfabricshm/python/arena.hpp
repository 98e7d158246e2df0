// Arena, regions and named tensors, as Python sees them.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libfabricshm/python/arrays.hpp"
#include "libfabricshm/python/handles.hpp"
#include "libfabricshm/python/shard.hpp"

namespace fabricshm::python {

class Group;

/// A region: bytes that peers find by id.
struct Region {
    std::shared_ptr<ArenaHandle> arena;
    fabricshm_region region;

    Bytes array() const { return borrowed_array(arena, region.base, region.bytes); }
    void free() const;
};

/// A named tensor; its array is bytes here and gets its type in Python (bfloat16 has none there).
struct NamedTensor {
    std::shared_ptr<ArenaHandle> arena;
    fabricshm_tensor tensor;

    /// Keeps its arena open, not its region: a tensor lives until its maker frees it.
    Bytes array() const { return borrowed_array(arena, tensor.data, tensor.bytes); }
    std::vector<std::int64_t> shape() const;
    std::uint64_t publish() const;
    std::uint64_t wait(std::uint64_t version, std::int64_t timeout_ms) const;
    void free() const;
};

/// One handle of an arena. Arrays outlive close(): the mapping goes with the last of them. After
/// close() every call raises.
class Arena {
  public:
    explicit Arena(std::shared_ptr<ArenaHandle> handle) : handle_(std::move(handle)) {}

    std::uint64_t bytes() const;

    /// Whether the array's first byte lies in the arena: then collectives use it in place, without
    /// staging.
    bool contains(const pybind11::array& array) const;
    Bytes allocate(std::uint64_t bytes) const;
    Region create_region(std::uint64_t bytes) const;
    Region open_region(std::uint64_t id) const;
    NamedTensor create_tensor(const std::string& name, int dtype,
                              const std::vector<std::int64_t>& shape) const;

    /// Waits until it is made, at most so long, without the interpreter's lock.
    NamedTensor open_tensor(const std::string& name, std::int64_t timeout_ms) const;
    Shard create_shard(const std::string& name, int dtype,
                       const std::vector<std::int64_t>& shape) const {
        return Shard::create(open(), name, dtype, shape);
    }
    Shard open_shard(const std::string& name, std::int64_t timeout_ms) const {
        return Shard::open(open(), name, timeout_ms);
    }

    /// The group holds the arena; the arena knows the group only weakly, to leave it in close().
    std::shared_ptr<Group> join(const std::string& name, int rank, int world,
                                std::int64_t timeout_ms);

    /// Of ranks that may be on several hosts. `exchange` takes bytes and returns those of all
    /// ranks.
    std::shared_ptr<Group> join_hosts(const std::string& name, int rank, int world,
                                      const pybind11::function& exchange,
                                      const std::optional<std::string>& trusted,
                                      std::int64_t timeout_ms);

    /// For what stands on the arena and keeps it; raises when it was closed.
    std::shared_ptr<ArenaHandle> handle() const { return open(); }

    void close();
    bool closed() const { return handle_ == nullptr; }

  private:
    const std::shared_ptr<ArenaHandle>& open() const;
    std::shared_ptr<Group> keep(const std::shared_ptr<ArenaHandle>& arena, fabricshm_group* joined);

    std::shared_ptr<ArenaHandle> handle_;
    std::vector<std::weak_ptr<Group>> groups_;
};

}  // namespace fabricshm::python
