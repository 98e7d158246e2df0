// Shards of an arena: named tensors that move while they are read. docs/migration.md.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/client/arena.hpp"
#include "libfabricshm/client/shard_meters.hpp"
#include "libfabricshm/proto/messages.hpp"
#include "libfabricshm/shm/shard_header.hpp"

namespace fabricshm {

/// A read or a write under way, and where it finds the elements.
struct ShardAccess {
    std::byte* data = nullptr;
    ShardPin pin;
};

/// One handle of a shard. Reads may be begun by any thread, several at a time; writes by one thread
/// at a time, and only through the handle that made the shard.
class Shard {
  public:
    /// Opens another arena of the session by name: what lies in the C ABI's handles.
    using OpenArena = std::function<Result<std::shared_ptr<Arena>>(const std::string& name)>;

    /// Makes it, with version 0. kExists when the name is taken.
    static Result<std::unique_ptr<Shard>> create(std::shared_ptr<Arena> arena,
                                                 const std::string& name, std::uint32_t dtype,
                                                 std::span<const std::int64_t> shape,
                                                 OpenArena open_arena);

    /// Opens it, waiting for it to be made. kTimeout.
    static Result<std::unique_ptr<Shard>> open(std::shared_ptr<Arena> arena,
                                               const std::string& name, TimePoint deadline,
                                               OpenArena open_arena);

    /// Gives the session's line back. Reads that are under way lose their protection.
    ~Shard();
    Shard(const Shard&) = delete;
    Shard& operator=(const Shard&) = delete;

    /// See pin_shard() and unpin_shard(). The first read after a move to an arena that this session
    /// has not opened takes as long as opening it.
    Result<ShardAccess> begin_read(std::uint64_t version, TimePoint deadline);
    /// kBusy: the owner wrote meanwhile, what was read must not be used. kClosed: likewise, since
    /// the daemon gave this session up.
    Result<void> end_read(std::uint64_t word);

    /// See begin_write() and publish_shard(). kDenied through a handle that did not make it.
    Result<ShardAccess> begin_write();
    Result<std::uint64_t> publish();

    /// Asks the daemon to move it; returns when the move has begun.
    Result<void> move(const std::string& target, std::uint64_t bytes_per_second);

    /// Ends the shard. Reads under way end well, new ones are refused with kNotFound.
    Result<void> free();

    const std::string& name() const noexcept { return name_; }
    Arena& arena() const noexcept { return *arena_; }
    Bytes bytes() const noexcept { return bytes_; }
    std::uint64_t region_id() const noexcept { return key_.region_id; }
    std::uint32_t dtype() const noexcept { return dtype_; }
    std::span<const std::int64_t> shape() const noexcept { return {shape_.data(), ndim_}; }

  private:
    Shard() = default;
    static Result<std::unique_ptr<Shard>> made_of(std::shared_ptr<Arena> arena,
                                                  const proto::Shard& reply, bool owner,
                                                  OpenArena open_arena);
    proto::Message request(proto::Type type) const;
    Result<std::byte*> locate(const ShardPin& pin, TimePoint deadline);
    Result<std::shared_ptr<Arena>> arena_of(const ShardPin& pin, TimePoint deadline);
    std::shared_ptr<Arena> known_arena(const std::string& name);

    std::shared_ptr<Arena> arena_;  // the header's
    OpenArena open_arena_;
    ShardHeader* header_ = nullptr;
    ShardKey key_;
    std::string name_;
    Bytes bytes_ = 0;
    std::uint32_t dtype_ = 0;
    std::uint32_t ndim_ = 0;
    std::array<std::int64_t, proto::kDimsMax> shape_{};
    int slot_ = 0;
    std::uint64_t session_id_ = 0;
    std::shared_ptr<ShardMeter> meter_;
    bool owner_ = false;

    std::mutex mutex_;                                                  // of others_
    std::unordered_map<std::uint64_t, std::shared_ptr<Arena>> others_;  // where it moved to, by id
};

}  // namespace fabricshm
