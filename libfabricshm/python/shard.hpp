// Shards for Python: reads and writes as pairs of calls; _shards.py makes context managers of them.

#pragma once

#include <fabricshm/shard.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "libfabricshm/python/arrays.hpp"
#include "libfabricshm/python/handles.hpp"

namespace fabricshm::python {

struct ShardHandle : Owned {
    ShardHandle(std::shared_ptr<ArenaHandle> of, fabricshm_shard* opened)
        : arena(std::move(of)), shard(opened) {}
    ~ShardHandle() {
        if (mine()) fabricshm_shard_close(shard);
    }
    ShardHandle(const ShardHandle&) = delete;
    ShardHandle& operator=(const ShardHandle&) = delete;

    std::shared_ptr<ArenaHandle> arena;
    fabricshm_shard* shard;
};

/// A read or a write under way. Its array is bytes here, and is good until the end of it: one that
/// is kept longer shows whatever the memory is used for then.
struct ShardView {
    std::shared_ptr<ArenaHandle> arena;
    fabricshm_shard_view view;

    Bytes array() const { return borrowed_array(arena, view.data, view.bytes); }
    std::vector<std::int64_t> shape() const { return {view.shape, view.shape + view.ndim}; }
};

/// One handle. read() and release(), write() and publish() belong together; Python's context
/// managers see to it.
class Shard {
  public:
    static Shard create(std::shared_ptr<ArenaHandle> arena, const std::string& name, int dtype,
                        const std::vector<std::int64_t>& shape);
    static Shard open(std::shared_ptr<ArenaHandle> arena, const std::string& name,
                      std::int64_t timeout_ms);

    ShardView read(std::uint64_t version, std::int64_t timeout_ms) const;
    /// False: the owner wrote meanwhile.
    bool release(const ShardView& view) const;
    ShardView write() const;
    std::uint64_t publish() const;
    void move(const std::string& target, std::uint64_t bytes_per_second) const;
    void free() const;
    void close() { handle_.reset(); }  // calls that are under way keep it until they end

  private:
    explicit Shard(std::shared_ptr<ShardHandle> handle) : handle_(std::move(handle)) {}
    std::shared_ptr<ShardHandle> held() const;

    std::shared_ptr<ShardHandle> handle_;
};

}  // namespace fabricshm::python
