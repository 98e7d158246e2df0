#include "fabricd/pool/publications.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "libfabricshm/base/reason.hpp"
#include "tests/support/registry_host.hpp"

using namespace test_support;

namespace {

constexpr std::uint32_t kPublish = proto::kArenaPublish;
constexpr std::uint32_t kSubscribe = proto::kArenaSubscribe;
constexpr Bytes kBytes = 16 * 4096;

// Of one published arena: what the registry answers, and what the header says.
struct Host : RegistryHost {
    explicit Host(const Limits& wanted = {}) : RegistryHost(wanted) {}

    SessionId maker = session(kAlice);
    ArenaId id = publish(maker);

    ArenaId publish(SessionId who, const char* readers = "", Bytes bytes = kBytes) {
        const std::uint64_t request = ++requests;
        proto::ArenaOpen body = arena_body("cache", bytes, kPublish);
        std::string(readers).copy(body.readers, sizeof body.readers - 1);
        const auto asked = registry->open_arena({who, request}, body);
        last_error = asked.error();
        if (!asked.ok()) return ArenaId::kNone;
        const Answer got = answer(request);
        last_error = got.error;
        const auto* opened = std::get_if<proto::ArenaOpen>(&got.body);
        return opened != nullptr ? ArenaId{opened->arena_id} : ArenaId::kNone;
    }
    ArenaId subscribe(SessionId who) { return arena(who, "cache", 0, kSubscribe); }
    Result<PinPageGrant> page(SessionId who, std::uint64_t number = 0) {
        proto::PinPageRef ref{};
        ref.arena_id = raw(id);
        ref.number = number;
        return registry->pins.page(who, ref);
    }
    std::uint64_t reader(SessionId who) {
        REQUIRE(subscribe(who) == id);
        return page(who)->page.number;
    }
    proto::PinPages list(std::uint64_t above = 0) {
        proto::PinPages ref{};
        ref.arena_id = raw(id);
        ref.above = above;
        return registry->pins.list(maker, ref).value();
    }
    const fabricshm::PublishedHeader& header() {
        return *reinterpret_cast<const fabricshm::PublishedHeader*>(
            (*memory.contents)[id][0].bytes);
    }
    bool is_there() { return memory.here.count(id) != 0; }
    fabricshm::Fd file(SessionId who) {
        return fabricshm::Fd(::fcntl(registry->descriptors(id, who).at(0), F_DUPFD_CLOEXEC, 0));
    }
    // As its session says it after a restart.
    bool present(SessionId who, const Peer& peer, fabricshm::Fd file) {
        REQUIRE(registry->resume_session(who, peer, kToken).ok());
        const std::uint64_t request = ++requests;
        const auto asked = registry->adopt_arena({who, request}, id, std::move(file));
        last_error = asked.ok() ? answer(request).error : asked.error();
        return last_error.code == Errc::kOk;
    }
    bool present_page(SessionId who, std::uint64_t number, fabricshm::Fd file) {
        proto::PinPageRef ref{};
        ref.arena_id = raw(id);
        ref.number = number;
        const auto done = registry->pins.adopt(who, ref, std::move(file));
        last_error = done.error();
        return done.ok();
    }
    void is_sound() {
        for (const auto& problem : registry->problems()) FAIL(problem);
    }
};

int access_of(const fabricshm::Fd& file) {
    return ::fcntl(file.get(), F_GETFL) & O_ACCMODE;
}

// The daemon has two descriptors of each page for a moment, and one for good.
void raise_file_limit() {
    struct rlimit limit {};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

const Peer kReader{201, 2000, 2000};
const Peer kOther{202, 2000, 2000};

}  // namespace

TEST_SUITE("pool.publications") {
    TEST_CASE("its maker gets the file for writing, readers of other users for reading") {
        Host host;
        REQUIRE(host.id != ArenaId::kNone);
        CHECK(host.header().magic.load() == fabricshm::kPublishedMagic);
        const SessionId reader = host.session(kReader);
        REQUIRE(host.subscribe(reader) == host.id);
        CHECK(access_of(host.file(host.maker)) == O_RDWR);
        CHECK(access_of(host.file(reader)) == O_RDONLY);
        host.is_sound();
    }

    TEST_CASE("the bytes behind the header are one region of the maker, and of no reader") {
        Host host;
        const SessionId reader = host.session(kReader);
        REQUIRE(host.subscribe(reader) == host.id);
        CHECK(host.region(reader, host.id, kBytes).error().code == Errc::kDenied);
        const auto all = host.region(host.maker, host.id, kBytes);
        REQUIRE(all.ok());
        CHECK(all->offset == fabricshm::kPublishedHeaderBytes);
        CHECK(all->bytes == kBytes);
        // Asked again by a maker that lost the answer.
        CHECK(host.region(host.maker, host.id, kBytes)->region_id == all->region_id);
        CHECK(host.tensor(reader, host.id, "t").error().code == Errc::kDenied);
        CHECK(host.join(reader, host.id, "g", 0, 1) == 0);
        host.is_sound();
    }

    TEST_CASE("a page's number is in the header before its reader has it, and numbers rise") {
        Host host;
        CHECK(host.header().newest.load() == 0);
        const SessionId one = host.session(kReader), two = host.session(kOther);
        const std::uint64_t first = host.reader(one);
        CHECK(host.header().newest.load() == first);
        const std::uint64_t second = host.reader(two);
        CHECK(host.header().newest.load() == second);
        CHECK(second > first);
        const proto::PinPages listed = host.list();
        CHECK(listed.count == 2);
        CHECK(listed.numbers[0] == first);
        CHECK(listed.newest == second);
        CHECK(host.list(first).count == 1);
        host.is_sound();
    }

    TEST_CASE(
        "a reader writes its page, the maker gets it for reading, another reader not at all") {
        Host host;
        const SessionId one = host.session(kReader), two = host.session(kOther);
        const std::uint64_t number = host.reader(one);
        host.reader(two);
        auto own = host.page(one);
        REQUIRE(own.ok());
        CHECK(own->page.number == number);
        CHECK(access_of(own->descriptor) == O_RDWR);
        auto seen = host.page(host.maker, number);
        REQUIRE(seen.ok());
        CHECK(access_of(seen->descriptor) == O_RDONLY);
        CHECK(seen->page.pid == kReader.pid);
        CHECK(host.page(two, number).error().code == Errc::kDenied);
        CHECK(host.page(host.maker, number + 100).error().code == Errc::kNotFound);
        // The same memory, whose size no process changes.
        CHECK(::ftruncate(own->descriptor.get(), 0) != 0);
        const auto one_byte = std::byte{7};
        REQUIRE(::pwrite(own->descriptor.get(), &one_byte, 1, 5000) == 1);
        std::byte read{};
        REQUIRE(::pread(seen->descriptor.get(), &read, 1, 5000) == 1);
        CHECK(read == one_byte);
    }

    TEST_CASE("a reader that ends or closes takes its page along, and its memory goes back") {
        Host host;
        const SessionId one = host.session(kReader), two = host.session(kOther);
        host.reader(one);
        host.reader(two);
        const auto kept = host.page(one);
        const auto one_byte = std::byte{7};
        REQUIRE(::pwrite(kept->descriptor.get(), &one_byte, 1, 5000) == 1);
        const std::uint64_t before = host.header().changes.load();
        host.registry->end_session(one, "test");
        CHECK(host.list().count == 1);
        CHECK(host.header().changes.load() > before);
        std::byte read{1};
        REQUIRE(::pread(kept->descriptor.get(), &read, 1, 5000) == 1);
        CHECK(read == std::byte{0});
        REQUIRE(host.registry->close_arena({two, 99}, host.id).ok());
        CHECK(host.list().count == 0);
        host.is_sound();
    }

    TEST_CASE("only those of the list are readers, and root, the daemon's user and the maker's") {
        Host host;
        const SessionId reader = host.session(kReader);
        const auto allowed = [&](const char* readers) {
            REQUIRE(host.publish(host.maker, readers) == host.id);
            const bool in = host.subscribe(reader) == host.id;
            if (in) REQUIRE(host.registry->close_arena({reader, 99}, host.id).ok());
            if (!in) CHECK(host.last_error.code == Errc::kDenied);
            return in;
        };
        CHECK(allowed(""));
        CHECK(allowed("u2000"));
        CHECK(allowed("u7,u2000"));
        CHECK(allowed("g2000"));
        CHECK_FALSE(allowed("u20001"));
        CHECK_FALSE(allowed("g2001"));
        CHECK_FALSE(allowed("2000"));
        CHECK_FALSE(allowed("u"));
        CHECK_FALSE(allowed("u2000x"));
        CHECK_FALSE(allowed(",,"));
        host.registry->pins.learn_groups(reader, {5, 2001});
        CHECK(allowed("g2001"));
        REQUIRE(host.publish(host.maker, "u7") == host.id);
        CHECK(host.subscribe(host.session({203, 0, 0})) == host.id);
        CHECK(host.subscribe(host.session(kBob)) == host.id);  // of the maker's user
    }

    TEST_CASE("a published arena is opened as one, and no other arena is") {
        Host host;
        CHECK(host.arena(host.session(kBob), "cache") == ArenaId::kNone);
        CHECK(host.last_error.code == Errc::kExists);
        REQUIRE(host.arena(host.session(kBob), "job") != ArenaId::kNone);
        CHECK(host.arena(host.session(kBob), "job", 0, kSubscribe) == ArenaId::kNone);
        CHECK(host.last_error.code == Errc::kExists);
        CHECK(host.arena(host.session(kReader), "none", 0, kSubscribe) == ArenaId::kNone);
        CHECK(host.last_error.code == Errc::kNotFound);
        CHECK(host.subscribe(host.maker) == ArenaId::kNone);
        CHECK(host.last_error.code == Errc::kInvalid);
        host.is_sound();
    }

    TEST_CASE("one live maker at a time; after its death one of its user takes the arena up") {
        Host host;
        const SessionId reader = host.session(kReader);
        const std::uint64_t number = host.reader(reader);
        const SessionId next = host.session(kBob);
        CHECK(host.publish(next) == ArenaId::kNone);
        CHECK(host.last_error.code == Errc::kBusy);
        host.registry->end_session(host.maker, "test");
        CHECK(host.is_there());
        CHECK(host.publish(host.session(kMallory)) == ArenaId::kNone);
        CHECK(host.last_error.code == Errc::kDenied);
        CHECK(host.publish(next, "", 2 * kBytes) == ArenaId::kNone);
        CHECK(host.last_error.code == Errc::kExists);
        REQUIRE(host.publish(next) == host.id);
        host.maker = next;
        CHECK(access_of(host.file(next)) == O_RDWR);
        CHECK(host.list().numbers[0] == number);
        CHECK(host.page(next, number).ok());
        host.is_sound();
    }

    TEST_CASE("withdrawn, it takes no more readers, and goes with the last one") {
        Host host;
        const SessionId reader = host.session(kReader);
        host.reader(reader);
        REQUIRE(host.registry->close_arena({host.maker, 99}, host.id).ok());
        CHECK(host.is_there());
        CHECK(host.subscribe(host.session(kOther)) == ArenaId::kNone);
        CHECK(host.last_error.code == Errc::kNotFound);
        CHECK(host.publish(host.maker) == ArenaId::kNone);
        CHECK(host.last_error.code == Errc::kBusy);
        host.registry->end_session(reader, "test");
        CHECK_FALSE(host.is_there());
        CHECK(host.publish(host.maker) != ArenaId::kNone);
        host.is_sound();
    }

    TEST_CASE("the last to go gives the memory back") {
        Host host;
        host.registry->end_session(host.maker, "test");
        CHECK_FALSE(host.is_there());
        CHECK(host.registry->snapshot(kNow).arenas.empty());
    }

    TEST_CASE("a reader that does not come back keeps its page until its process has ended") {
        Host host;
        const SessionId reader = host.session(kReader);
        const std::uint64_t number = host.reader(reader);
        host.registry->connection_lost(reader, kNow);
        CHECK(host.registry->expire(kNow + 1h).size() == 1);
        CHECK(host.registry->pins.may_be_used(reader));
        CHECK(host.list().count == 1);
        CHECK(host.page(host.maker, number).ok());
        // Nor does the arena go from under it.
        host.registry->end_session(host.maker, "test");
        CHECK(host.is_there());
        host.is_sound();
        host.registry->pins.process_ended(reader);
        CHECK_FALSE(host.registry->pins.may_be_used(reader));
        CHECK_FALSE(host.is_there());
        host.is_sound();
    }

    TEST_CASE("a maker that does not come back may be writing: none but its process takes over") {
        Host host;
        host.reader(host.session(kReader));
        host.registry->connection_lost(host.maker, kNow);
        CHECK(host.registry->expire(kNow + 1h).size() >= 1);
        const SessionId next = host.session(kBob);
        CHECK(host.publish(next) == ArenaId::kNone);
        CHECK(host.last_error.code == Errc::kBusy);
        SUBCASE("its own process") {
            CHECK(host.publish(host.session(kAlice)) == host.id);
        }
        SUBCASE("another one, when that has ended") {
            host.registry->pins.process_ended(host.maker);
            CHECK(host.publish(next) == host.id);
        }
        SUBCASE("nor after a restart") {
            host.restart();
            REQUIRE(host.restored.ok());
            CHECK(host.registry->pins.may_be_used(host.maker));
        }
        host.is_sound();
    }

    TEST_CASE(
        "after a restart a reader's descriptor brings the arena back, for its maker to write") {
        Host host;
        const SessionId reader = host.session(kReader);
        const std::uint64_t number = host.reader(reader);
        fabricshm::Fd presented = host.file(reader);
        auto page = host.page(reader);
        const std::uint64_t newest = host.header().newest.load();
        host.restart();
        REQUIRE(host.restored.ok());
        REQUIRE(host.present(reader, kReader, std::move(presented)));
        CHECK(access_of(host.file(host.maker)) == O_RDWR);
        CHECK(access_of(host.file(reader)) == O_RDONLY);
        // Known, but not to be had yet: a new maker can replace nothing.
        CHECK(host.header().newest.load() == newest);
        REQUIRE(host.registry->resume_session(host.maker, kAlice, kToken).ok());
        CHECK(host.list().numbers[0] == number);
        CHECK(host.page(host.maker, number).error().code == Errc::kBusy);
        REQUIRE(host.present_page(reader, number, std::move(page->descriptor)));
        CHECK(host.page(host.maker, number).ok());
        host.is_sound();
    }

    TEST_CASE("another file is not taken for a page, nor another's page for one's own") {
        Host host;
        const SessionId one = host.session(kReader), two = host.session(kOther);
        const std::uint64_t first = host.reader(one);
        host.reader(two);
        auto others = host.page(two);
        CHECK_FALSE(host.present_page(one, first, std::move(others->descriptor)));
        CHECK(host.last_error.code == Errc::kCorrupt);
        CHECK_FALSE(host.present_page(two, first,
                                      host.page(one)->descriptor.get() >= 0
                                          ? std::move(host.page(one)->descriptor)
                                          : fabricshm::Fd()));
        CHECK(host.last_error.code == Errc::kNotFound);
    }

    TEST_CASE("a page that its reader was never given is replaced when it asks again") {
        Host host;
        const SessionId reader = host.session(kReader);
        const std::uint64_t lost = host.reader(reader);
        fabricshm::Fd presented = host.file(reader);
        host.restart();
        REQUIRE(host.present(reader, kReader, std::move(presented)));
        const auto again = host.page(reader);
        REQUIRE(again.ok());
        CHECK(again->page.number > lost);
        REQUIRE(host.registry->resume_session(host.maker, kAlice, kToken).ok());
        CHECK(host.list().count == 1);
        host.is_sound();
    }

    TEST_CASE("a session gets 32 pages in its life") {
        Host host;
        const SessionId reader = host.session(kReader);
        for (int i = 0; i < kPinPagesOfSession; ++i) {
            host.reader(reader);
            REQUIRE(host.registry->close_arena({reader, 99}, host.id).ok());
        }
        REQUIRE(host.subscribe(reader) == host.id);
        CHECK(host.page(reader).error().code == Errc::kNoMemory);
        // Ten thousand times for the one that it has is one page.
        const SessionId other = host.session(kOther);
        const std::uint64_t number = host.reader(other);
        for (int i = 0; i < 10'000; ++i) REQUIRE(host.page(other)->page.number == number);
        CHECK(host.list().count == 1);
        host.is_sound();
    }

    TEST_CASE("a user has 1024 pages at a time, and others have theirs") {
        raise_file_limit();
        Limits limits;
        limits.max_sessions_per_user = 2000;
        Host host(limits);
        std::vector<SessionId> readers;
        const auto come = [&] {
            const int pid = 1000 + static_cast<int>(readers.size());
            readers.push_back(host.session({pid, kReader.uid, kReader.gid}));
            REQUIRE(host.subscribe(readers.back()) == host.id);
            return host.page(readers.back());
        };
        for (int i = 0; i < 1024; ++i) REQUIRE(come().ok());
        const auto refused = come();
        CHECK(refused.error().code == Errc::kNoMemory);
        const std::string reason = fabricshm::reason_of(refused.error());
        CHECK(reason.find("user 2000") != std::string::npos);
        CHECK(reason.find("1024") != std::string::npos);
        // None was made, those that there are stay, and another user gets one.
        CHECK(host.list().total == 1024);
        CHECK(host.page(readers[7]).ok());
        const SessionId other = host.session({301, 3000, 3000});
        REQUIRE(host.subscribe(other) == host.id);
        CHECK(host.page(other).ok());
        SUBCASE("one ends") {
            host.registry->end_session(readers[3], "test");
            CHECK(host.page(readers.back()).ok());
            CHECK(come().error().code == Errc::kNoMemory);
        }
        SUBCASE("after a restart") {
            fabricshm::Fd presented = host.file(readers[5]);
            const Peer sixth{1005, kReader.uid, kReader.gid};
            host.restart();
            REQUIRE(host.restored.ok());
            REQUIRE(host.present(readers[5], sixth, std::move(presented)));
            CHECK(come().error().code == Errc::kNoMemory);
        }
        host.is_sound();
    }

    TEST_CASE("where nothing is published the maker is refused with the reason") {
        RegistryHost host;
        Registry registry(host.limits, Registry::Parts{.journal = &host.journal,
                                                       .memory = &host.memory,
                                                       .work = &host.work,
                                                       .unpublished = "not here"});
        const SessionId maker = registry.open_session(kAlice, "test", kToken, kNow).value();
        const auto asked =
            registry.open_arena({maker, 1}, RegistryHost::arena_body("cache", kBytes, kPublish));
        CHECK(asked.error().code == Errc::kUnsupported);
        CHECK(std::string(fabricshm::reason_of(asked.error())) == "not here");
    }
}
