// Arena: this process's view of one arena, and the regions in it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/client/arena_heap.hpp"
#include "libfabricshm/client/fork_guard.hpp"
#include "libfabricshm/client/session.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/os/poison.hpp"
#include "libfabricshm/proto/messages.hpp"
#include "libfabricshm/shm/visibility.hpp"

namespace fabricshm {

namespace gpu {
class DeviceArena;
}

/// Mapped for as long as it has a holder. Thread-safe.
class Arena {
  public:
    /// Opens or makes the arena. `bytes` of 0: the daemon's default. `flags` as in the C ABI.
    static Result<std::shared_ptr<Arena>> open(std::shared_ptr<Session> session,
                                               const std::string& name, Bytes bytes,
                                               std::uint32_t flags);

    ~Arena() = default;
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    /// Notifies the daemon that this session is done with the arena: once, when no other Arena of
    /// the session has the same id. The mapping stays until the last holder goes.
    void close() noexcept;

    /// True when both are views of one arena, opened by one session.
    bool is_same(const Arena& other) const noexcept {
        return id_ == other.id_ && session_id_ == other.session_id_;
    }

    const std::string& name() const noexcept { return name_; }
    std::uint64_t id() const noexcept { return id_; }
    std::byte* base() const noexcept { return mapping_.data(); }
    Bytes bytes() const noexcept { return mapping_.size(); }
    /// How bytes of this mapping cross to other processes.
    Visibility visibility() const noexcept {
        return {policy_.get(), mapping_.data(), mapping_.size()};
    }

    /// Borrowed, as the session; null where memory is coherent.
    VisibilityPolicy* policy() const noexcept { return policy_.get(); }
    Session& session() const noexcept { return *session_; }

    /// The three calls of the C ABI on regions. What the daemon answers is checked to lie inside.
    Result<proto::Region> create_region(Bytes bytes);
    Result<proto::Region> open_region(std::uint64_t region_id);
    Result<void> free_region(std::uint64_t region_id);

    /// The daemon commits all pages of the arena, which stay so until it ends. Once is enough for
    /// all processes; none is held up by it. kNoMemory: pool or quota do not allow all of it, and
    /// what they allow is committed. kVersion: the daemon is of a version that can't.
    Result<void> commit();

    /// Where memory is not coherent: what this process wrote into the region leaves its caches now.
    /// Later it would land on the next owner's bytes.
    void publish_before_return(const proto::Region& region) const noexcept;

    /// Reports to the daemon that the hardware lost the page at `offset`, and returns the id of the
    /// region that it belongs to: 0 when it is none's, or the daemon does not answer within a
    /// second.
    std::uint64_t report_lost(std::uint64_t offset) noexcept;

    /// Memory of this session in the arena, see ArenaHeap.
    ArenaHeap& heap() noexcept { return *heap_; }

    /// The session's, and the time that it may take to commit `bytes`.
    TimePoint deadline_for(Bytes bytes) const;

    /// Sends `request`, which concerns this arena. kNotFound when the daemon forgot the session
    /// that opened it: ids would mean something else now.
    Result<proto::Message> call(const proto::Message& request, const char* step, TimePoint deadline,
                                Retry retry);

    /// The generation of a tensor's region, as the daemon named it to this process when it made or
    /// opened the tensor last; nothing when it never did.
    void note_tensor(const proto::Region& region);
    std::optional<std::uint64_t> tensor_generation(std::uint64_t region_id) const;

    /// The arena in the address space of a GPU, if it is there (cuda_seat.hpp). It goes before the
    /// mapping does.
    struct OnDevice {
        std::mutex mutex;  // over attaching and detaching
        std::shared_ptr<gpu::DeviceArena> arena;
    };
    OnDevice& on_device() noexcept { return on_device_; }

    /// True when [offset, offset + bytes) lies inside the arena.
    bool holds(std::uint64_t offset, Bytes bytes) const noexcept {
        return mapping_.holds(offset, bytes);
    }

  private:
    Arena(std::shared_ptr<Session> session, const Session::KnownArena& known, std::uint64_t id,
          std::string name, Mapping mapping, std::shared_ptr<VisibilityPolicy> policy,
          PoisonWatch::Source source);
    static Result<std::shared_ptr<Arena>> map(const std::shared_ptr<Session>& session,
                                              const proto::ArenaOpen& opened,
                                              const std::string& name);
    Result<proto::Region> region_call(proto::Message request, const char* step, TimePoint deadline,
                                      Retry retry);

    const std::shared_ptr<Session> session_;
    const std::uint64_t session_id_;    // of the daemon's, when the arena was opened
    const std::shared_ptr<Stay> stay_;  // before what is mapped, so that it goes after that
    const std::uint64_t id_;
    const std::string name_;
    const Mapping mapping_;
    // Of mapping_, where children don't get it. Before what watches it: a child forgets that, too.
    const std::unique_ptr<fork_guard::Hole> hole_;
    const std::shared_ptr<VisibilityPolicy> policy_;  // nullptr: coherent
    const std::shared_ptr<PoisonWatch> watch_;        // of mapping_; goes before it
    std::unique_ptr<ArenaHeap> heap_;
    mutable std::shared_mutex tensors_mutex_;
    std::map<std::uint64_t, std::uint64_t> tensors_;  // region id -> generation
    OnDevice on_device_;                              // the last: it goes first
};

}  // namespace fabricshm
