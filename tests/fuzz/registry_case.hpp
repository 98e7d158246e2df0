// A registry for the fuzz targets: its journal is in memory, its pool takes notes, and its arenas
// may be of any size, since only what the daemon touches of them is there.

#pragma once

#include "tests/fuzz/fuzz.hpp"
#include "tests/support/registry_host.hpp"

namespace fuzz {

using namespace test_support;  // NOLINT: as registry_host.hpp does

/// Bytes by arena and offset. The daemon touches a few headers of an arena; two of them that
/// overlap would be two owners of one byte, which the registry's own checks look for.
class SparseMemory final : public ArenaMemory {
  public:
    Result<void> add(ArenaId arena, const fabricshm::PoolPiece&) override {
        here_.insert(arena);
        return {};
    }
    void remove(ArenaId arena) noexcept override { here_.erase(arena); }
    Result<void> format_links(ArenaId, const fabricshm::LinkImage&) override { return {}; }
    Result<void> format_group(ArenaId, std::uint64_t, const fabricshm::GroupBlockInfo&) override {
        return {};
    }
    void mark_dead(ArenaId, std::uint64_t, int, int) noexcept override {}
    // Elements of shards are never touched, whatever their size: copies are only noted.
    Result<ArenaSpan> span(ArenaId arena, std::uint64_t offset, Bytes) override {
        if (here_.count(arena) == 0) return Error{Errc::kBusy, 0, "fuzz memory"};
        std::shared_ptr<std::byte>& piece = (*contents_)[{arena, offset}];
        if (piece == nullptr) {
            void* const memory = std::aligned_alloc(4096, kRoom);
            std::memset(memory, 0, kRoom);
            piece = std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), std::free);
        }
        return ArenaSpan{piece, piece.get()};
    }
    Result<ArenaSpan> distant(ArenaId arena, std::uint64_t offset, Bytes bytes) override {
        return span(arena, offset, bytes);
    }

    /// As after a restart of the daemon: the arenas hold what they held, and are not mapped.
    void forget() { here_.clear(); }

  private:
    static constexpr Bytes kRoom = fabricshm::round_up(fabricshm::kShardHeaderBytes, 4096);

    using Contents = std::map<std::pair<ArenaId, std::uint64_t>, std::shared_ptr<std::byte>>;
    std::shared_ptr<Contents> contents_ = std::make_shared<Contents>();
    std::set<ArenaId> here_;
};

struct RegistryCase {
    RegistryCase() { renew(); }

    void renew() {
        memory.forget();
        copies = NotedCopies{};
        work = NotedWork{};
        registry = std::make_unique<Registry>(
            limits,
            Registry::Parts{&journal, &memory, &work, devices, nullptr, &copies, first_step == 0});
        work.registry = registry.get();
        work.first = first_step;
    }
    /// A fresh daemon's first record.
    void start() { FUZZ_REQUIRE(registry->write_journal(journal).ok()); }

    /// As after a SIGKILL: everything but the journal and the arenas is forgotten.
    Result<void> restart(TimePoint now) {
        const auto image = replay(journal.contents);
        renew();
        if (!image.ok()) return image.error();
        return registry->restore(*image, now, 10s);
    }

    /// Everything that has a deadline has passed it. Nothing may be left that has one.
    void outlast(TimePoint now) {
        for (int turn = 0; registry->next_deadline() != TimePoint::max(); ++turn) {
            FUZZ_REQUIRE(turn < 1000);
            registry->expire(now);
            (void)registry->take_answers();
            while (!copies.jobs.empty()) end_copy(false);
        }
    }

    void end_copy(bool well) {
        const CopyJob job = copies.jobs.front();
        copies.jobs.erase(copies.jobs.begin());
        auto& header = *reinterpret_cast<fabricshm::ShardHeader*>(job.header.data);
        const fabricshm::ShardWord seen = fabricshm::word_of(header);
        if (well) return registry->shard_copied(job.shard, seen);
        registry->shard_copied(job.shard, Error{Errc::kClosed, 0, "fuzz"});
    }

    Limits limits;
    std::vector<DeviceSpec> devices;  // before renew()
    Bytes first_step = 0;             // likewise: arenas grow from so many bytes on
    MemoryJournal journal;
    SparseMemory memory;
    NotedWork work;
    NotedCopies copies;
    std::unique_ptr<Registry> registry;
};

}  // namespace fuzz
