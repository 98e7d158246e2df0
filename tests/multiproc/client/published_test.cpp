// An arena that one process writes and others read, while readers, the maker and fabricd are
// killed.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "libfabricshm/client/published_arena.hpp"
#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/skip.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;
using test_support::Child;
using test_support::Daemon;
using test_support::Gate;

namespace {

// The application of this test: lines of one page, whose words say which generation is in them.
enum : std::uint64_t { kEmpty = 0, kReady = 1, kLeaving = 2 };
struct Line {
    std::atomic<std::uint64_t> word;  // generation << 8 | state
    std::uint64_t body[511];
};
static_assert(sizeof(Line) == 4096);
constexpr std::size_t kLines = 12;
constexpr Bytes kArenaBytes = kLines * sizeof(Line);

std::uint64_t word_of(std::uint64_t generation, std::uint64_t state) {
    return generation << 8 | state;
}

// What the processes of a story count together.
struct Counts {
    std::atomic<std::uint64_t> reads, wrong, replaced, kept, unknown, is_new, readers;
    std::atomic<int> stop, error;
};

Counts& shared_counts() {
    void* memory =
        ::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return *::new (memory) Counts{};
}

TimePoint in(Duration time) {
    return deadline_from_now(time);
}

Result<std::shared_ptr<Session>> attach(const std::string& socket) {
    SessionOptions options;
    options.sockets = {socket};
    options.label = "published";
    return Session::open(options);
}

Line* lines_of(PublishedArena& arena) {
    return reinterpret_cast<Line*>(arena.data());
}

const Line* lines_of(const SubscribedArena& arena) {
    return reinterpret_cast<const Line*>(arena.data());
}

// By words that the compiler can't move or leave out: readers look at any time.
void fill(Line& line, std::uint64_t generation) {
    for (std::uint64_t& word : line.body) {
        std::atomic_ref(word).store(generation, std::memory_order_relaxed);
    }
    line.word.store(word_of(generation, kReady), std::memory_order_release);
}

bool holds(const Line& line, std::uint64_t generation) {
    for (const std::uint64_t& word : line.body) {
        auto& same = const_cast<std::uint64_t&>(word);
        if (std::atomic_ref(same).load(std::memory_order_relaxed) != generation) return false;
    }
    return true;
}

// Finds the lines as the maker before, which was killed, left them.
void take_up(PublishedArena& arena) {
    for (std::size_t i = 0; i < kLines; ++i) {
        Line& line = lines_of(arena)[i];
        const std::uint64_t word = line.word.load();
        if ((word & 0xff) == kLeaving) line.word.store(word_of(word >> 8, kReady));
        if ((word & 0xff) == kEmpty) fill(line, std::max<std::uint64_t>(word >> 8, 1));
    }
}

enum class Replaced { kYes, kPinned, kUnknown };

Replaced replace(PublishedArena& arena, std::uint64_t number, TimePoint deadline) {
    Line& line = lines_of(arena)[number];
    const std::uint64_t generation = line.word.load() >> 8;
    line.word.store(word_of(generation, kLeaving));
    const std::array<std::uint64_t, 1> lines{number};
    std::array<std::uint8_t, 1> pinned{};
    PinScan scan(lines, pinned);
    const bool known = arena.scan_all(scan, deadline).ok();
    if (!known || scan.pinned(0)) {
        line.word.store(word_of(generation, kReady));
        return known ? Replaced::kPinned : Replaced::kUnknown;
    }
    line.word.store(word_of(generation + 1, kEmpty));
    fill(line, generation + 1);
    return Replaced::kYes;
}

int run_maker(const std::string& socket, Counts& counts) {
    const auto session = attach(socket);
    if (!session.ok()) return 1;
    auto made = PublishedArena::publish(*session, "cache", kArenaBytes, {}, in(30s));
    if (!made.ok()) return 2;
    PublishedArena& arena = **made;
    counts.is_new += arena.is_new() ? 1 : 0;
    take_up(arena);
    std::mt19937 random(static_cast<unsigned>(::getpid()));
    while (counts.stop.load() == 0) {
        const Replaced done = replace(arena, random() % kLines, in(100ms));
        counts.replaced += done == Replaced::kYes ? 1 : 0;
        counts.kept += done == Replaced::kPinned ? 1 : 0;
        counts.unknown += done == Replaced::kUnknown ? 1 : 0;
        std::this_thread::yield();
    }
    // All that were killed are gone from it.
    for (int tries = 0; tries < 100; ++tries) {
        if (arena.sync_pages(in(1s)).ok()) counts.readers = arena.readers().size();
        if (counts.readers == 0) break;
        std::this_thread::sleep_for(50ms);
    }
    arena.unpublish();
    (*session)->close();
    return 0;
}

int run_reader(const std::string& socket, Counts& counts) {
    const auto session = attach(socket);
    if (!session.ok()) return 1;
    Result<std::shared_ptr<SubscribedArena>> read = Error{};
    const TimePoint until = in(30s);
    while (!read.ok() && Clock::now() < until) {
        read = SubscribedArena::subscribe(*session, "cache", in(1s));
        if (!read.ok()) std::this_thread::sleep_for(10ms);
    }
    if (!read.ok()) return 2;
    const SubscribedArena& arena = **read;
    std::mt19937 random(static_cast<unsigned>(::getpid()));
    while (counts.stop.load() == 0) {
        const std::size_t number = random() % kLines;
        const Line& line = lines_of(arena)[number];
        const std::uint64_t seen = line.word.load(std::memory_order_acquire);
        const std::size_t slot = random() % 3;
        if ((seen & 0xff) != kReady || !pin(arena.pins(), slot, number, line.word, seen)) continue;
        bool whole = holds(line, seen >> 8);
        if (random() % 8 == 0) std::this_thread::yield();
        whole = whole && holds(line, seen >> 8);
        unpin(arena.pins(), slot);
        counts.reads += 1;
        counts.wrong += whole ? 0 : 1;
    }
    return arena.is_held() ? 0 : 3;
}

// Pins line 0, reports it, and checks it again when the gate opens.
int hold_line(const std::string& socket, Gate& pinned, Gate& check) {
    const auto session = attach(socket);
    if (!session.ok()) return 1;
    const auto arena = SubscribedArena::subscribe(*session, "cache", in(10s));
    if (!arena.ok()) return 2;
    const Line& line = *lines_of(**arena);
    const std::uint64_t seen = line.word.load();
    if (!pin((*arena)->pins(), 5, 0, line.word, seen)) return 3;
    pinned.open();
    if (!check.wait()) return 4;
    return holds(line, seen >> 8) ? 0 : 5;
}

int files_of(pid_t pid, const char* name) {
    int count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
        std::error_code gone;
        const auto target = std::filesystem::read_symlink(entry.path(), gone);
        if (!gone && target.string().find(name) != std::string::npos) ++count;
    }
    return count;
}

}  // namespace

TEST_SUITE("multiproc.client.published") {
    TEST_CASE("readers have the bytes that they pinned, whatever is killed, and nothing is left") {
        Daemon daemon;
        Counts& counts = shared_counts();
        const auto reader = [&] {
            return Child([&] { return run_reader(daemon.socket(), counts); });
        };
        const auto maker = [&] {
            return std::make_unique<Child>([&] { return run_maker(daemon.socket(), counts); });
        };
        auto writes = maker();
        std::vector<Child> reads;
        for (int i = 0; i < 3; ++i) reads.push_back(reader());
        const auto more = [&](std::atomic<std::uint64_t>& count, std::uint64_t by) {
            const std::uint64_t wanted = count.load() + by;
            const TimePoint until = in(60s);
            while (count.load() < wanted && Clock::now() < until) std::this_thread::sleep_for(1ms);
            return count.load() >= wanted;
        };
        REQUIRE(more(counts.replaced, 20));
        for (int round = 0; round < 18; ++round) {
            CAPTURE(round);
            switch (round % 3) {
                case 0:
                    reads[static_cast<std::size_t>(round / 3) % reads.size()].kill();
                    reads[static_cast<std::size_t>(round / 3) % reads.size()].~Child();
                    ::new (&reads[static_cast<std::size_t>(round / 3) % reads.size()])
                        Child(reader());
                    break;
                case 1:
                    writes->kill();
                    writes = maker();
                    break;
                default:
                    daemon.kill();
                    daemon.start();
                    break;
            }
            REQUIRE(more(counts.replaced, 5));
            REQUIRE(more(counts.reads, 20));
        }
        // The arena was made once: each maker after the first took it up.
        CHECK(counts.is_new.load() == 1);
        counts.stop = 1;
        for (Child& one : reads) CHECK(one.wait() == 0);
        CHECK(writes->wait() == 0);
        CHECK(counts.wrong.load() == 0);
        CHECK(counts.kept.load() > 0);
        CHECK(counts.readers.load() == 0);
        const TimePoint until = in(10s);
        const auto left = [&] {
            return files_of(daemon.pid(), "fabric-pins") + files_of(daemon.pid(), "fabric-arena");
        };
        while (left() != 0 && Clock::now() < until) std::this_thread::sleep_for(10ms);
        CHECK(left() == 0);
        MESSAGE("reads " << counts.reads.load() << ", replaced " << counts.replaced.load()
                         << ", pinned " << counts.kept.load() << ", unknown "
                         << counts.unknown.load());
    }

    TEST_CASE("a killed reader's pins are gone within a second") {
        Daemon daemon;
        Gate published, go, pinned, check;
        Counts& counts = shared_counts();
        Child maker([&]() -> int {
            const auto session = attach(daemon.socket());
            auto made = PublishedArena::publish(*session, "cache", kArenaBytes, {}, in(10s));
            if (!made.ok()) return 1;
            take_up(**made);
            published.open();
            if (!pinned.wait()) return 2;
            if (replace(**made, 0, in(10s)) != Replaced::kPinned) return 3;
            if (replace(**made, 1, in(10s)) != Replaced::kYes) return 4;
            counts.kept = 1;
            if (!go.wait()) return 5;
            const TimePoint killed{Duration(static_cast<std::int64_t>(counts.reads.load()))};
            while (replace(**made, 0, in(1s)) != Replaced::kYes) {
                if (Clock::now() - killed > 20s) return 6;
                std::this_thread::sleep_for(1ms);
            }
            counts.readers = static_cast<std::uint64_t>(
                std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - killed)
                    .count());
            return 0;
        });
        REQUIRE(published.wait());
        Child reader([&] { return hold_line(daemon.socket(), pinned, check); });
        while (counts.kept.load() == 0) std::this_thread::sleep_for(1ms);
        counts.reads = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
        reader.kill();
        go.open();
        CHECK(maker.wait() == 0);
        CHECK(counts.readers.load() < 1000);
        MESSAGE("the pin of a killed reader was gone after " << counts.readers.load() << " ms");
    }

    TEST_CASE("a stopped reader that the daemon gives up keeps what it has pinned") {
        Daemon daemon({"--state-adopt-grace=300ms"});
        Gate published, pinned, check, given_up, ended;
        Child maker([&]() -> int {
            const auto session = attach(daemon.socket());
            auto made = PublishedArena::publish(*session, "cache", kArenaBytes, {}, in(10s));
            if (!made.ok()) return 1;
            take_up(**made);
            published.open();
            if (!given_up.wait()) return 2;
            // The new daemon has not seen the page, and says of the reader that it may live.
            for (int i = 0; i < 50; ++i) {
                if (replace(**made, 0, in(200ms)) == Replaced::kYes) return 3;
            }
            check.open();
            if (!ended.wait()) return 4;
            for (int i = 0; i < 200; ++i) {
                if (replace(**made, 0, in(200ms)) == Replaced::kYes) return 0;
                std::this_thread::sleep_for(50ms);
            }
            return 5;
        });
        REQUIRE(published.wait());
        Child reader([&] { return hold_line(daemon.socket(), pinned, check); });
        REQUIRE(pinned.wait());
        REQUIRE(::kill(reader.pid(), SIGSTOP) == 0);
        daemon.kill();
        daemon.start();
        const TimePoint until = in(30s);
        while (daemon.log().find("did not come back") == std::string::npos &&
               Clock::now() < until) {
            std::this_thread::sleep_for(20ms);
        }
        CHECK(daemon.log().find("did not come back") != std::string::npos);
        given_up.open();
        REQUIRE(check.wait());
        REQUIRE(::kill(reader.pid(), SIGCONT) == 0);
        CHECK(reader.wait() == 0);
        ended.open();
        CHECK(maker.wait() == 0);
    }

    TEST_CASE("a reader of another user can write nothing of it, by no way") {
        if (::geteuid() != 0) return test_support::skip("only root can be two users");
        Daemon daemon({"--server-socket-mode=0666", "--server-allow-uids=65534"});
        const auto folder = std::filesystem::path(daemon.socket()).parent_path();
        REQUIRE(::chmod(folder.c_str(), 0755) == 0);
        Gate published, listed, done;
        Child maker([&]() -> int {
            const auto session = attach(daemon.socket());
            auto made = PublishedArena::publish(*session, "cache", kArenaBytes, {}, in(10s));
            const auto other = attach(daemon.socket());
            auto closed = PublishedArena::publish(*other, "private", kArenaBytes, {"77"}, in(10s));
            if (!made.ok() || !closed.ok()) return 1;
            take_up(**made);
            published.open();
            if (!done.wait()) return 2;
            if (!(*made)->sync_pages(in(10s)).ok() || (*made)->readers().size() != 1) return 3;
            return (*made)->readers()[0].uid == 65534 ? 0 : 4;
        });
        REQUIRE(published.wait());
        Child reader([&]() -> int {
            if (::setgid(65534) != 0 || ::setresuid(65534, 65534, 65534) != 0) return 1;
            const auto session = attach(daemon.socket());
            if (!session.ok()) return 2;
            const auto denied = SubscribedArena::subscribe(*session, "private", in(10s));
            if (denied.ok() || denied.error().code != Errc::kDenied) return 3;
            const auto arena = SubscribedArena::subscribe(*session, "cache", in(10s));
            if (!arena.ok()) return 4;
            const int fd = (*session)->known_arena((*arena)->id()).descriptor->get();
            const std::string link = "/proc/self/fd/" + std::to_string(fd);
            if (::open(link.c_str(), O_RDWR) >= 0) return 5;
            if (::open(link.c_str(), O_WRONLY) >= 0) return 6;
            if (::fchmod(fd, 0666) == 0) return 7;
            if (::mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED) return 8;
            if (::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0) return 9;
            if (::ftruncate(fd, 0) == 0) return 10;
            auto* const base = const_cast<std::byte*>((*arena)->data()) - kPublishedHeaderBytes;
            if (::mprotect(base, 4096, PROT_READ | PROT_WRITE) == 0) return 11;
            if (::madvise(base, 4096, MADV_REMOVE) == 0) return 12;
            if (!holds(*lines_of(**arena), 1)) return 13;
            done.open();
            return listed.wait() ? 0 : 14;
        });
        CHECK(maker.wait() == 0);
        listed.open();
        CHECK(reader.wait() == 0);
    }
}
