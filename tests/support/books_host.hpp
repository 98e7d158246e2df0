// The classes of the nouns with no registry in front: for tests of one by itself.

#pragma once

#include "tests/support/registry_host.hpp"

namespace test_support {

/// Takes notes and does nothing.
struct IdleWork final : PoolWork {
    void create(ArenaId arena, const std::string&, std::uint32_t, Bytes) override {
        created.push_back(arena);
    }
    void adopt(ArenaId, Bytes, Bytes, fabricshm::PresentedFiles) override {}
    void grow(ArenaId, Bytes to, Bytes) override { grown.push_back(to); }
    void shrink(ArenaId, Bytes) override {}
    void destroy(ArenaId arena) noexcept override { destroyed.push_back(arena); }
    void forget(ArenaId, std::shared_ptr<void>) noexcept override {}
    std::vector<ArenaId> created;
    std::vector<Bytes> grown;
    std::vector<ArenaId> destroyed;
};

struct BooksHost {
    explicit BooksHost(const std::vector<DeviceSpec>& devices = {}) : books(Limits{}, devices) {}

    /// Entered by hand, as the rules would have it.
    Session& session(const char* device = "") {
        Session& made = books.sessions[SessionId{books.next_id()}];
        made.id = SessionId{books.last_id};
        made.device = device;
        made.connected = true;
        CHECK(books.users.take_session(made.peer.uid).ok());
        CHECK(books.devices.attach(device).ok());
        return made;
    }
    Arena& arena(const std::vector<SessionId>& members, Bytes bytes = 64 * 4096) {
        Arena& made = books.arenas[ArenaId{books.next_id()}];
        made.id = ArenaId{books.last_id};
        made.name = "arena " + std::to_string(books.last_id);
        made.state = ArenaState::kHere;
        made.bytes = made.committed = bytes;
        made.space = RegionAllocator(bytes);
        books.arena_names[made.name] = made.id;
        CHECK(books.users.take_arena(made.uid, bytes, bytes).ok());
        CHECK(memory.add(made.id, {}).ok());
        for (const SessionId member : members) {
            made.sessions.insert(member);
            books.session(member).arenas.insert(made.id);
        }
        return made;
    }
    int records(RecordType type) const {
        int count = 0;
        for (const auto& entry : file.contents.entries) count += entry.type == type ? 1 : 0;
        return count;
    }

    Books books;
    MemoryJournal file;
    NotedMemory memory;
    IdleWork work;
    NotedCopies copies;
    JournalGuard journal{&file};
    Growth growth{books, journal, work};
    Losses losses{books, journal};
    Regions regions{books, journal, growth};
    Shards shards{books, journal, memory, regions};
    Moves moves{{books, journal, memory, growth, regions, shards, &copies}};
    Groups groups{{books, journal, memory, growth, losses, regions, shards}};
    Publications publications{books, journal, memory, ""};
    Arenas arenas{{books, journal, memory, work, regions, shards, groups, publications, nullptr,
                   true, false}};
    Sessions sessions{books, journal, regions, arenas};
    Quotas quotas{books, journal};
    Effects out;
};

}  // namespace test_support
