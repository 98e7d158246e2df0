// The daemon's journal: any bytes, and records whose checksums are right but which contradict each
// other. What is believed makes a sound state, that can be written down and read again, and of
// which nothing stays: whatever has no living owner goes when its time has passed.

#include <array>

#include "libfabricshm/base/crc32c.hpp"
#include "tests/fuzz/registry_case.hpp"

using namespace fuzz;

namespace {

constexpr std::uint64_t kHeadMagic = 0x4441454843424146;
constexpr std::size_t kCrcBytes = sizeof(RecordHeader::crc);

Buffer encode(const std::vector<JournalEntry>& entries) {
    JournalHead head{};
    head.magic = kHeadMagic;
    Buffer records;
    for (const JournalEntry& entry : entries) {
        Buffer record;
        append(record,
               RecordHeader{0, static_cast<std::uint16_t>(entry.type),
                            static_cast<std::uint16_t>(entry.payload.size()), head.records++});
        record.insert(record.end(), entry.payload.begin(), entry.payload.end());
        head.last =
            fabricshm::crc32c(record.data() + kCrcBytes, record.size() - kCrcBytes, head.last);
        std::memcpy(record.data(), &head.last, kCrcBytes);
        records.insert(records.end(), record.begin(), record.end());
    }
    head.bytes = records.size();
    head.crc = fabricshm::crc32c(&head, sizeof head);
    Buffer file;
    append(file, head);
    file.insert(file.end(), records.begin(), records.end());
    return file;
}

// What the lengths say, checksums or not.
std::vector<JournalEntry> cut(Data bytes) {
    std::vector<JournalEntry> entries;
    Data left = bytes.size() < sizeof(JournalHead) ? Data{} : bytes.subspan(sizeof(JournalHead));
    while (left.size() >= sizeof(RecordHeader)) {
        RecordHeader header;
        std::memcpy(&header, left.data(), sizeof header);
        left = left.subspan(sizeof header);
        const Data payload = left.first(std::min<std::size_t>(header.bytes, left.size()));
        entries.push_back({static_cast<RecordType>(header.type), {payload.begin(), payload.end()}});
        left = left.subspan(payload.size());
    }
    return entries;
}

// What there is, without times and places.
std::array<std::size_t, 5> counts_of(const Snapshot& all) {
    return {all.sessions.size(), all.arenas.size(), all.regions.size(), all.groups.size(),
            all.shards.size()};
}

void require_sound(const Registry& registry) {
    FUZZ_REQUIRE(registry.contradictions().empty());
}

// Written down as a whole, as the daemon does when it starts, and read again.
void require_lasting(RegistryCase& books) {
    RegistryCase again;
    FUZZ_REQUIRE(books.registry->write_journal(again.journal).ok());
    FUZZ_REQUIRE(again.restart(kNow).ok());
    require_sound(*again.registry);
    FUZZ_REQUIRE(counts_of(again.registry->snapshot(kNow)) ==
                 counts_of(books.registry->snapshot(kNow)));
}

// Written again from the file alone, as the daemon does while it serves: it says the same.
void require_same_when_compacted(const JournalContents& contents, const RegistryCase& books) {
    const auto image = replay(contents);
    if (!image.ok()) return;
    RegistryCase again;
    FUZZ_REQUIRE(write_image(*image, again.journal).ok());
    MemoryJournal expected;
    FUZZ_REQUIRE(books.registry->write_journal(expected).ok());
    FUZZ_REQUIRE(again.restart(kNow).ok());
    MemoryJournal found;
    FUZZ_REQUIRE(again.registry->write_journal(found).ok());
    FUZZ_REQUIRE(found.contents.entries == expected.contents.entries);
}

// Some arenas come back and some sessions do, by the bits of `choice`; then everybody is gone.
void require_nothing_stays(RegistryCase& books, std::uint32_t choice) {
    unsigned bit = 0;
    const auto chosen = [&] { return (choice >> (bit++ % 32) & 1) != 0; };
    for (const SessionView& view : books.registry->snapshot(kNow).sessions) {
        if (!chosen()) continue;
        (void)books.registry->resume_session(SessionId{view.id}, {view.pid, view.uid, 0}, kToken);
    }
    for (const ArenaView& view : books.registry->snapshot(kNow).arenas) {
        if (!chosen()) continue;
        fabricshm::PoolPiece piece;
        piece.bytes = view.bytes;
        books.registry->found_in_pool(ArenaId{view.id}, std::move(piece));
        require_sound(*books.registry);
    }
    books.outlast(kNow + 1h);
    require_sound(*books.registry);
    for (const SessionView& view : books.registry->snapshot(kNow).sessions) {
        books.registry->end_session(SessionId{view.id}, "fuzz");
    }
    books.outlast(kNow + 2h);
    require_sound(*books.registry);
    const Snapshot left = books.registry->snapshot(kNow);
    FUZZ_REQUIRE(left.sessions.empty() && left.arenas.empty() && left.shards.empty());
}

void run(Data input) {
    const std::array<std::uint64_t, 2> boot{1, 2};
    RegistryCase books;
    books.journal.contents = parse_journal(input, boot);
    const JournalContents& contents = books.journal.contents;
    if (contents.damage) FUZZ_REQUIRE(!describe(*contents.damage).empty());
    const bool is_whole = !contents.damage && !contents.old_layout;
    const Result<void> restored = books.restart(kNow);
    FUZZ_REQUIRE(is_whole || !restored.ok());
    if (!restored.ok()) return;
    require_sound(*books.registry);
    require_same_when_compacted(contents, books);
    require_lasting(books);
    const std::uint32_t choice =
        contents.entries.empty() ? 0 : fabricshm::crc32c(input.data(), input.size());
    require_nothing_stays(books, choice);
}

Buffer seed_of(const std::function<void(RegistryHost&)>& story) {
    RegistryHost host;
    story(host);
    return encode(host.journal.contents.entries);
}

std::vector<Buffer> seeds() {
    const auto shard = [](RegistryHost& host, SessionId owner, ArenaId arena, const char* name) {
        proto::Shard body{};
        body.header.arena_id = raw(arena);
        copy_name(body.name, name);
        body.dtype = 5;
        body.ndim = 1;
        body.shape[0] = 20000;
        return host.registry->create_shard(owner, body).value();
    };
    std::vector<Buffer> all;
    all.push_back(seed_of([](RegistryHost&) {}));
    all.push_back(seed_of([](RegistryHost& host) {
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice);
        (void)host.region(alice, arena);
        (void)host.tensor(alice, arena, "weights");
        (void)host.session(kBob);
    }));
    all.push_back(seed_of([](RegistryHost& host) {
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice, "job", 4096 * 4096);
        host.arena(bob, "job", 4096 * 4096);
        (void)host.region(bob, arena);
        const auto groups = host.together({alice, bob}, arena, "ring");
        host.registry->end_session(bob, "seed");
        host.shrink(alice, groups[0]);
    }));
    all.push_back(seed_of([&](RegistryHost& host) {
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId home = host.arena(alice, "a", 4096 * 4096);
        host.arena(bob, "a", 4096 * 4096);
        host.arena(alice, "b", 4096 * 4096);
        const auto moved = shard(host, alice, home, "moved");
        shard(host, alice, home, "stays");
        proto::Shard open = moved;
        open.timeout_ms = 1000;
        (void)host.registry->open_shard({bob, ++host.requests}, open, kNow);
        (void)host.registry->move_shard({"a/moved", "arena:b", 0}, nullptr);
    }));
    return all;
}

// One record lost, doubled, exchanged, or with another number in it, as in registry_random_test.
void corrupt(std::vector<JournalEntry>& entries, std::uint32_t random) {
    if (entries.size() < 2) return;
    const auto next = [&](std::size_t count) {
        random = random * 1664525U + 1013904223U;
        return (random >> 8) % count;
    };
    const std::size_t at = 1 + next(entries.size() - 1);
    const std::size_t other = 1 + next(entries.size() - 1);
    const auto place = entries.begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t choice = next(8);
    if (choice == 0) return void(entries.erase(place));
    if (choice == 1) return void(entries.insert(place, JournalEntry(entries[other])));
    if (choice == 2) return std::swap(entries[at], entries[other]);
    auto& payload = entries[at].payload;
    const auto& source = entries[other].payload;
    if (payload.size() < 8 || source.size() < 8) return;
    std::byte* const word = payload.data() + next(payload.size() / 8) * 8;
    std::uint64_t number = 0;
    std::memcpy(&number, word, 8);
    const std::size_t change = next(5);
    if (change == 0) number = next(9);
    if (change == 1) number = ~std::uint64_t{0} >> next(3);
    if (change == 2) number += next(2) == 0 ? 1 : ~std::uint64_t{0};
    if (change == 3) number ^= std::uint64_t{1} << next(64);
    if (change == 4) std::memcpy(&number, source.data() + next(source.size() / 8) * 8, 8);
    std::memcpy(word, &number, 8);
}

// Bytes, records or both; then all checksums are right, but for one time in sixteen.
void mutate(Buffer& bytes, std::size_t most, std::uint32_t random, const MutateBytes& change) {
    if (random % 16 == 0) return change(bytes, most);
    if (random % 4 == 0) change(bytes, most);
    std::vector<JournalEntry> entries = cut(bytes);
    const std::uint32_t times = random % 4 == 0 ? 0 : 1 + random / 16 % 3;
    for (std::uint32_t i = 0; i < times; ++i) corrupt(entries, random + i * 977);
    bytes = encode(entries);
    while (bytes.size() > most && !entries.empty()) {
        entries.pop_back();
        bytes = encode(entries);
    }
}

const Registered kTarget({"journal", run, seeds, mutate});

}  // namespace
