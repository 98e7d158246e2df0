// ArenaMemory: the few bytes of an arena that the daemon itself writes.

#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "fabricd/pool/ids.hpp"
#include "libfabricshm/machine/pool_backend.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/os/poison.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "libfabricshm/shm/link_page.hpp"
#include "libfabricshm/shm/visibility.hpp"

namespace fabricd {

/// Bytes of an arena, mapped for as long as this is held: also after the arena was dropped.
struct ArenaSpan {
    std::shared_ptr<const void> keep;
    std::byte* data = nullptr;

    /// Sees to it that [data + offset, data + offset + bytes) can be touched without a signal, and
    /// without a fault for each page. A hole that a client punched is filled, or is an error when
    /// memory is out. Some 0.1 s/GiB the first time; for the thread that is going to touch them.
    Result<void> make_present(Bytes offset, Bytes bytes) const;
};

/// What the registry asks for; tests give it one that takes notes. What is read from an arena is
/// hearsay, since every process of the job can write there: it may decide when the job's own memory
/// is free again, and nothing else.
class ArenaMemory {
  public:
    virtual ~ArenaMemory() = default;

    /// The arena's memory is there (made or adopted), or no longer. add() fails like mmap(): the
    /// arena is not served then.
    virtual Result<void> add(ArenaId arena, const fabricshm::PoolPiece& piece) = 0;
    virtual void remove(ArenaId arena) noexcept = 0;

    /// The link page of an emulated machine, before any client hears of the arena.
    virtual Result<void> format_links(ArenaId arena, const fabricshm::LinkImage& links) = 0;

    /// An empty group block, before any member hears of it. kPoisoned: the hardware lost a page
    /// there.
    virtual Result<void> format_group(ArenaId arena, std::uint64_t offset,
                                      const fabricshm::GroupBlockInfo& info) = 0;

    /// Notifies the group's members that a rank is dead. A failure is logged, not returned: the
    /// caller is cleaning up and could do nothing else.
    virtual void mark_dead(ArenaId arena, std::uint64_t offset, int world, int rank) noexcept = 0;

    /// Present and writable bytes, for headers of shards. kBusy: the arena is not here.
    virtual Result<ArenaSpan> span(ArenaId arena, std::uint64_t offset, Bytes bytes) = 0;

    /// The same without ArenaSpan::make_present(), which takes long for elements of a shard.
    virtual Result<ArenaSpan> distant(ArenaId arena, std::uint64_t offset, Bytes bytes) = 0;
};

/// Maps every arena whole. Used by the control thread only.
/// What it writes is published by `policy`; nullptr: memory of one host.
class MappedArenas final : public ArenaMemory {
  public:
    explicit MappedArenas(std::shared_ptr<fabricshm::VisibilityPolicy> policy = nullptr) noexcept
        : policy_(std::move(policy)) {}

    Result<void> add(ArenaId arena, const fabricshm::PoolPiece& piece) override;
    void remove(ArenaId arena) noexcept override;
    Result<void> format_links(ArenaId arena, const fabricshm::LinkImage& links) override;
    Result<void> format_group(ArenaId arena, std::uint64_t offset,
                              const fabricshm::GroupBlockInfo& info) override;
    void mark_dead(ArenaId arena, std::uint64_t offset, int world, int rank) noexcept override;
    Result<ArenaSpan> span(ArenaId arena, std::uint64_t offset, Bytes bytes) override;
    Result<ArenaSpan> distant(ArenaId arena, std::uint64_t offset, Bytes bytes) override;

  private:
    fabricshm::Visibility view_of(ArenaId arena) const;
    Result<std::byte*> writable(ArenaId arena, std::uint64_t offset, Bytes bytes);

    struct Mapped {
        fabricshm::Mapping mapping;
        std::unique_ptr<fabricshm::PoisonWatch> watch;  // goes before what it watches
    };
    const std::shared_ptr<fabricshm::VisibilityPolicy> policy_;
    std::unordered_map<ArenaId, std::shared_ptr<Mapped>> mappings_;
};

}  // namespace fabricd
