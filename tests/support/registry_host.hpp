// A registry with a pool, memory and journal that only take notes: for tests of the rules.

#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "fabricd/pool/registry.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace test_support {

using namespace fabricd;  // NOLINT: only tests of fabricd include this
namespace proto = fabricshm::proto;
using namespace std::chrono_literals;

inline constexpr TimePoint kNow{1h};
inline const Peer kAlice{101, 1000, 1000};
inline const Peer kBob{102, 1000, 1000};
inline const Peer kFarBob{102, 1000, 1000, "far", 77, 5, 88, 99};  // of another host
inline const Peer kMallory{666, 2000, 2000};
inline constexpr Token kToken{1, 2, 3};

/// The journal in memory; `broken` is a full disk.
struct MemoryJournal final : JournalSink {
    Result<void> append(RecordType type, std::span<const std::byte> payload) override {
        if (broken || room == 0) return Error{Errc::kNoMemory, 0, "test journal"};
        if (room > 0) --room;
        contents.entries.push_back({type, {payload.begin(), payload.end()}});
        return {};
    }
    JournalContents contents;
    bool broken = false;
    int room = -1;  // for so many records more; negative: there is no end to it
};

struct NotedMemory final : ArenaMemory {
    Result<void> add(ArenaId arena, const fabricshm::PoolPiece&) override {
        here.insert(arena);
        return {};
    }
    void remove(ArenaId arena) noexcept override { here.erase(arena); }
    Result<void> format_links(ArenaId arena, const fabricshm::LinkImage&) override {
        linked.insert(arena);
        return {};
    }
    Result<void> format_group(ArenaId, std::uint64_t offset,
                              const fabricshm::GroupBlockInfo&) override {
        formatted.push_back(offset);
        if (lost_blocks-- > 0) return Error{Errc::kPoisoned, 0, "test memory"};
        return {};
    }
    void mark_dead(ArenaId, std::uint64_t offset, int, int rank) noexcept override {
        dead.emplace_back(offset, rank);
    }
    Result<ArenaSpan> span(ArenaId arena, std::uint64_t offset, Bytes bytes) override {
        made_present = std::max(made_present, bytes);
        return distant(arena, offset, bytes);
    }
    Result<ArenaSpan> distant(ArenaId arena, std::uint64_t offset, Bytes) override {
        if (here.count(arena) == 0) return Error{Errc::kBusy, 0, "test memory"};
        std::shared_ptr<Page[]>& pages = (*contents)[arena];
        if (pages == nullptr) {
            // Not cleared: the arenas of some tests are large, and little of them is touched.
            void* memory = std::aligned_alloc(sizeof(Page), kPages * sizeof(Page));
            pages = std::shared_ptr<Page[]>(static_cast<Page*>(memory),
                                            [](Page* old) { std::free(old); });
        }
        return ArenaSpan{pages, pages[offset / sizeof(Page)].bytes};
    }

    struct alignas(4096) Page {
        std::byte bytes[4096];
    };
    static constexpr std::size_t kPages = 16384;  // no test touches more of an arena
    // Outlives a restart of the daemon, as arenas do.
    using Contents = std::map<ArenaId, std::shared_ptr<Page[]>>;
    std::shared_ptr<Contents> contents = std::make_shared<Contents>();
    std::set<ArenaId> here;
    std::set<ArenaId> linked;
    std::vector<std::uint64_t> formatted;
    Bytes made_present = 0;  // the most that was, in one call
    int lost_blocks = 0;     // how many of the next blocks have lost pages
    std::vector<std::pair<std::uint64_t, int>> dead;
};

/// Arenas are memfds without committed pages. Work waits when `later` is set; growths always do.
struct NotedWork final : PoolWork {
    void create(ArenaId arena, const std::string&, std::uint32_t, Bytes bytes) override {
        created.emplace_back(arena, bytes);
        if (later) return;
        fabricshm::PoolPiece piece = make(bytes);
        if (first != 0 && first < bytes) piece.uncommitted = bytes - first;
        registry->arena_made(arena, std::move(piece));
    }
    void adopt(ArenaId arena, Bytes bytes, Bytes uncommitted,
               fabricshm::PresentedFiles presented) override {
        adopted.push_back(arena);
        adopted_uncommitted = uncommitted;
        if (later) return;
        fabricshm::PoolPiece piece;
        piece.fd = std::move(presented.fd);
        piece.others = std::move(presented.others);
        piece.bytes = bytes;
        piece.uncommitted = uncommitted;
        registry->arena_adopted(arena, std::move(piece));
    }
    void grow(ArenaId arena, Bytes to, Bytes need) override { grown.push_back({arena, to, need}); }
    /// The oldest growth that was asked for is done.
    void finish_growth(const Result<void>& done = {}) {
        const Growth growth = grown.at(grown_done++);
        registry->arena_grown(growth.arena, growth.to, done);
    }
    void shrink(ArenaId arena, Bytes to) override { shrunk.push_back({arena, to, 0}); }
    /// The oldest shrinking that was asked for is done.
    void finish_shrinking(const Result<void>& done = {}) {
        const Growth one = shrunk.at(shrunk_done++);
        registry->arena_grown(one.arena, one.to, done);
    }
    void destroy(ArenaId arena) noexcept override { destroyed.push_back(arena); }
    void forget(ArenaId arena, std::shared_ptr<void> records) noexcept override {
        forgotten.emplace_back(arena, std::move(records));
    }

    static fabricshm::PoolPiece make(Bytes bytes) {
        fabricshm::PoolPiece piece;
        piece.fd = fabricshm::Fd(::memfd_create("test", MFD_CLOEXEC));
        piece.bytes = bytes;
        if (::ftruncate(piece.fd.get(), static_cast<off_t>(bytes)) != 0) piece.bytes = 0;
        return piece;
    }
    fabricshm::PoolTotals totals() const override { return pool; }

    struct Growth {
        ArenaId arena;
        Bytes to;
        Bytes need;
    };
    Registry* registry = nullptr;
    bool later = false;
    Bytes first = 0;  // committed when an arena is made; 0: all of it
    std::vector<Growth> grown;
    std::size_t grown_done = 0;
    std::vector<Growth> shrunk;
    std::size_t shrunk_done = 0;
    fabricshm::PoolTotals pool;
    Bytes adopted_uncommitted = 0;
    std::vector<std::pair<ArenaId, Bytes>> created;
    std::vector<ArenaId> adopted;
    std::vector<ArenaId> destroyed;
    std::vector<std::pair<ArenaId, std::shared_ptr<void>>> forgotten;
};

/// Copies that the test makes, or lets fail, when it wants to.
struct NotedCopies final : CopyWork {
    void copy(CopyJob job) override { jobs.push_back(std::move(job)); }
    bool knows_node(int node) const override { return node < nodes; }
    std::vector<CopyJob> jobs;
    int nodes = 4;
};

struct RegistryHost {
    explicit RegistryHost(const Limits& wanted = {}) : limits(wanted) { renew(); }

    /// As after a SIGKILL: everything but the journal is forgotten.
    void restart(TimePoint now = kNow, Duration grace = 10s) {
        const auto image = replay(journal.contents);
        renew();
        restored = image.ok() ? registry->restore(*image, now, grace) : image.error();
    }
    void renew() {
        const auto contents = memory.contents;
        memory = NotedMemory{};
        memory.contents = contents;
        copies = NotedCopies{};
        work = NotedWork{};
        registry = std::make_unique<Registry>(
            limits, Registry::Parts{&journal, &memory, &work, devices, links, &copies,
                                    first_step == 0, false, caches_apart});
        work.first = first_step;
        work.registry = registry.get();
        if (journal.contents.entries.empty()) {
            [[maybe_unused]] const auto started = registry->write_journal(journal);
        }
    }

    SessionId session(const Peer& peer) {
        return registry->open_session(peer, "test", kToken, kNow).value();
    }
    /// Turns of the control thread, until nothing is left to be done at once. How many there were.
    int settle() {
        int turns = 0;
        for (; registry->next_deadline() <= kNow; ++turns) (void)registry->expire(kNow);
        return turns;
    }
    /// The answer to the request with this id; an error when there is none yet.
    Answer answer(std::uint64_t request_id) {
        for (Answer& late : registry->take_answers()) answers.push_back(std::move(late));
        for (auto it = answers.begin(); it != answers.end(); ++it) {
            if (it->to.request_id != request_id) continue;
            Answer found = *it;
            answers.erase(it);
            return found;
        }
        return {{}, {}, Error{Errc::kInternal, 0, "no answer"}, {}};
    }
    bool answered(std::uint64_t request_id) {
        const Answer found = answer(request_id);
        const bool there = found.error.code != Errc::kInternal;
        if (there) answers.push_back(found);
        return there;
    }

    ArenaId arena(SessionId owner, const char* name = "job", Bytes bytes = 64 * 4096,
                  std::uint32_t flags = 0) {
        const std::uint64_t id = ++requests;
        const auto asked = registry->open_arena({owner, id}, arena_body(name, bytes, flags));
        last_error = asked.error();
        if (!asked.ok()) return ArenaId::kNone;
        const Answer got = answer(id);
        last_error = got.error;
        if (got.error.code != Errc::kOk) return ArenaId::kNone;
        return ArenaId{std::get<proto::ArenaOpen>(got.body).arena_id};
    }
    static proto::ArenaOpen arena_body(const char* name, Bytes bytes, std::uint32_t flags = 0) {
        proto::ArenaOpen body{};
        copy_name(body.name, name);
        body.bytes = bytes;
        body.flags = flags;
        return body;
    }

    Result<proto::Region> region(SessionId owner, ArenaId id, Bytes bytes = 4096) {
        return registry->create_region(owner, {raw(id), 0, 0, 0, bytes});
    }
    Result<proto::Tensor> tensor(SessionId owner, ArenaId id, const char* name) {
        return registry->create_tensor(owner, tensor_body(id, name));
    }
    static proto::Tensor tensor_body(ArenaId id, const char* name, std::int64_t timeout_ms = 0) {
        proto::Tensor body{};
        body.region.arena_id = raw(id);
        copy_name(body.name, name);
        body.dtype = 1;
        body.ndim = 1;
        body.shape[0] = 10;
        body.timeout_ms = timeout_ms;
        return body;
    }

    /// Returns the request's id; 0 when it was refused at once, and then `last_error` says why.
    std::uint64_t join(SessionId who, ArenaId id, const char* name, int rank, int world,
                       std::int64_t timeout_ms = 1000) {
        proto::Group body{};
        body.arena_id = raw(id);
        copy_name(body.name, name);
        body.rank = rank;
        body.world = world;
        body.timeout_ms = timeout_ms;
        const auto asked = registry->join_group({who, ++requests}, body, kNow);
        last_error = asked.error();
        return asked.ok() ? requests : 0;
    }
    std::uint64_t shrink(SessionId who, const proto::Group& group, std::int64_t timeout_ms = 1000) {
        proto::Group body = group;
        body.timeout_ms = timeout_ms;
        const auto asked = registry->shrink_group({who, ++requests}, body, kNow);
        last_error = asked.error();
        return asked.ok() ? requests : 0;
    }
    proto::Group group_of(std::uint64_t request_id) {
        const Answer got = answer(request_id);
        last_error = got.error;
        const auto* group = std::get_if<proto::Group>(&got.body);
        return group != nullptr ? *group : proto::Group{};
    }
    /// All of them in one group, in rank order.
    std::vector<proto::Group> together(const std::vector<SessionId>& members, ArenaId id,
                                       const char* name) {
        std::vector<std::uint64_t> asked;
        for (std::size_t i = 0; i < members.size(); ++i) {
            asked.push_back(
                join(members[i], id, name, static_cast<int>(i), static_cast<int>(members.size())));
        }
        std::vector<proto::Group> groups;
        for (const std::uint64_t request : asked) groups.push_back(group_of(request));
        return groups;
    }

    Limits limits;
    const fabricshm::LinkImage* links = nullptr;  // before renew(): a machine is emulated
    Bytes first_step = 0;                         // likewise: arenas grow from so many bytes on
    bool caches_apart = false;                    // likewise
    std::vector<DeviceSpec> devices;              // likewise
    MemoryJournal journal;
    NotedMemory memory;
    NotedCopies copies;
    NotedWork work;
    std::unique_ptr<Registry> registry;
    Result<void> restored;
    Error last_error{Errc::kOk, 0, ""};
    std::vector<Answer> answers;
    std::uint64_t requests = 0;
};

/// What a daemon that reads a journal writes itself: two journals that say the same give the same.
inline Result<std::vector<JournalEntry>> records_after(const JournalContents& contents) {
    RegistryHost host;
    host.journal.contents = contents;
    host.restart();
    if (!host.restored.ok()) return host.restored.error();
    MemoryJournal books;
    if (const auto written = host.registry->write_journal(books); !written.ok()) {
        return written.error();
    }
    return books.contents.entries;
}

/// The journal as Compaction writes it.
inline JournalContents compacted(const JournalContents& contents) {
    MemoryJournal brief;
    const auto image = replay(contents);
    const bool written = image.ok() && write_image(*image, brief).ok();
    return written ? brief.contents : JournalContents{};
}

}  // namespace test_support
