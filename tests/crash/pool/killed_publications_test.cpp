// A published arena whose daemon, maker or reader is killed at a named point. A daemon started
// again has each reader's page once, the maker sees every pin of a reader that lives and none of
// one that was never answered, and when all are gone nothing is left.

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/client/published_arena.hpp"
#include "tests/support/children.hpp"
#include "tests/support/fabricd_process.hpp"
#include "tests/support/fault_image.hpp"
#include "tests/support/program.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;
using test_support::Child;
using test_support::FabricdProcess;
using test_support::Gate;
using test_support::TemporaryDirectory;

namespace {

constexpr std::size_t kLines = 3;  // each is pinned by one reader
struct Line {
    std::atomic<std::uint64_t> word;
    std::uint64_t body[511];
};
constexpr Bytes kArenaBytes = kLines * sizeof(Line);
constexpr std::uint64_t kReady = 0x101;
constexpr auto kPatience = 60s;

// What the maker and the readers say; sets of lines are a bit each.
struct Board {
    std::atomic<std::uint64_t> pinned;     // by readers that live and were not asked to let go
    std::atomic<std::uint64_t> seen;       // by the last scan
    std::atomic<std::uint64_t> readers;    // at the last scan
    std::atomic<std::uint64_t> confirmed;  // scans of pages that a living daemon had listed
    std::atomic<std::uint64_t> missed;     // scans that lacked a line of `pinned`
    std::atomic<int> is_new, stop;
};

Board& shared_board() {
    void* memory =
        ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    return *::new (memory) Board{};
}

bool eventually(const std::function<bool()>& wanted) {
    const TimePoint until = deadline_from_now(kPatience);
    while (!wanted()) {
        if (Clock::now() >= until) return false;
        std::this_thread::sleep_for(1ms);
    }
    return true;
}

Result<std::shared_ptr<Session>> attach(const std::string& socket) {
    Result<std::shared_ptr<Session>> session = Error{};
    eventually([&] {
        SessionOptions options;
        options.sockets = {socket};
        options.label = "killed_publications";
        session = Session::open(options);
        return session.ok();
    });
    return session;
}

// Scans all the time, also while there is no daemon: every second time by what it knows.
void scan_for(PublishedArena& arena, Board& board) {
    constexpr std::array<std::uint64_t, kLines> kAll{0, 1, 2};
    for (bool lists = true; board.stop.load() == 0; lists = !lists) {
        const std::uint64_t before = board.pinned.load();
        std::array<std::uint8_t, kLines> pinned{};
        PinScan scan(kAll, pinned);
        if (lists && !arena.sync_pages(deadline_from_now(200ms)).ok()) continue;
        if (!arena.scan_all(scan, deadline_from_now(200ms)).ok()) continue;
        std::uint64_t seen = 0;
        for (std::size_t i = 0; i < kLines; ++i) seen |= scan.pinned(i) ? 1u << i : 0u;
        // A reader may have been asked to let go meanwhile.
        const std::uint64_t all_along = before & board.pinned.load();
        board.missed += (all_along & ~seen) != 0 ? 1 : 0;
        board.seen = seen;
        board.readers = arena.readers().size();
        board.confirmed += lists ? 1 : 0;
        std::this_thread::sleep_for(1ms);
    }
}

int run_maker(const std::string& socket, Board& board, const std::string& fault) {
    fault::arm(fault.c_str());
    const auto session = attach(socket);
    if (!session.ok()) return 1;
    Result<std::shared_ptr<PublishedArena>> made = Error{};
    // kBusy for as long as the daemon has not noticed the end of the maker before.
    eventually([&] {
        const TimePoint deadline = deadline_from_now(kPatience);
        made = PublishedArena::publish(*session, "cache", kArenaBytes, {}, deadline);
        return made.ok() || made.error().code != Errc::kBusy;
    });
    if (!made.ok()) return 2;
    board.is_new = (*made)->is_new() ? 1 : 0;
    Line* const lines = reinterpret_cast<Line*>((*made)->data());
    for (std::size_t i = 0; i < kLines; ++i) lines[i].word.store(kReady);
    scan_for(**made, board);
    (*made)->unpublish();
    (*session)->close();
    return 0;
}

// A process that pins one line, lets it go when it is asked to, and lives until it is asked again.
class Reader {
  public:
    Reader(const std::string& socket, Board& board, std::size_t line, std::string fault)
        : board_(board), line_(line), child_([this, socket, fault = std::move(fault)] {
              fault::arm(fault.c_str());
              return run(socket);
          }) {}

    pid_t pid() const { return child_.pid(); }
    std::uint64_t bit() const { return 1u << line_; }
    bool has_pinned() const { return pinned_.wait(); }
    void leave() {
        board_.pinned &= ~bit();
        leave_.open();
    }
    void kill() {
        board_.pinned &= ~bit();
        child_.kill();
    }
    void end() { end_.open(); }
    int wait() { return child_.wait(); }

  private:
    int run(const std::string& socket) {
        const auto session = attach(socket);
        if (!session.ok()) return 1;
        Result<std::shared_ptr<SubscribedArena>> read = Error{};
        eventually([&] {
            read = SubscribedArena::subscribe(*session, "cache", deadline_from_now(kPatience));
            return read.ok() || read.error().code != Errc::kNotFound;
        });
        if (!read.ok()) return 2;
        const auto& line = reinterpret_cast<const Line*>((*read)->data())[line_];
        // By a maker that has stored it, perhaps in a moment.
        const bool done =
            eventually([&] { return pin((*read)->pins(), line_ + 7, line_, line.word, kReady); });
        if (!done) return 3;
        board_.pinned |= bit();
        pinned_.open();
        if (!leave_.wait() || !(*read)->is_held()) return 4;
        read->reset();
        return end_.wait() ? 0 : 5;
    }

    Board& board_;
    const std::size_t line_;
    Gate pinned_, leave_, end_;
    Child child_;
};

// Of files that the daemon has open, those whose names say that they are of memory or processes.
int held_by(pid_t pid, const std::vector<const char*>& names) {
    int count = 0;
    std::error_code gone;
    const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
    for (const auto& entry : std::filesystem::directory_iterator(folder, gone)) {
        const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
        for (const char* name : names) count += target.find(name) != std::string::npos ? 1 : 0;
    }
    return count;
}

bool is_stopped(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/status");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return text.find("State:\tT") != std::string::npos;
}

// Not folders of tests, which others may run at the same time.
std::set<std::string> shared_files() {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
        const std::string name = entry.path().filename().string();
        const bool is_of_a_test = name.rfind("fabric-test-", 0) == 0;
        if (name.find("fabric") != std::string::npos && !is_of_a_test) names.insert(name);
    }
    return names;
}

class Story {
  public:
    explicit Story(const std::string& fault = "") { start_daemon(fault); }
    Story(const Story&) = delete;
    Story& operator=(const Story&) = delete;

    Board& board() { return board_; }
    void start_daemon(const std::string& fault = "") {
        // Longer than any that lives takes to come back: what ends sooner is known to be dead.
        const std::vector<std::string> options{"--state-adopt-grace=50s"};
        daemon_ = std::make_unique<FabricdProcess>(folder_.path(), fault, options);
    }
    void kill_daemon() { daemon_->kill(); }
    void daemon_dies() {
        REQUIRE(eventually([&] { return daemon_->ended(); }));
    }
    Child maker(const std::string& fault = "") {
        return Child([this, fault] { return run_maker(socket_, board_, fault); });
    }
    std::unique_ptr<Reader> reader(std::size_t line, const std::string& fault = "") {
        return std::make_unique<Reader>(socket_, board_, line, fault);
    }
    std::unique_ptr<Reader> pinning_reader(std::size_t line) {
        auto one = reader(line);
        REQUIRE(one->has_pinned());
        return one;
    }

    /// The number of a page by its reader, as a daemon that is started now finds them; each once.
    std::map<pid_t, std::uint64_t> pages() const {
        std::map<pid_t, std::uint64_t> numbers;
        for (const auto& [id, arena] : image().arenas) {
            for (const auto& [number, page] : arena.pin_pages) {
                REQUIRE(numbers.emplace(page.pid, number).second);
            }
        }
        return numbers;
    }

    /// The maker has heard from the daemon, sees these readers' pins and no others, and neither the
    /// daemon nor its journal has pages of others; `idle` sessions have none.
    void expect(const std::vector<const Reader*>& readers, std::size_t idle = 0) {
        std::uint64_t lines = 0;
        for (const Reader* one : readers) lines |= one->bit();
        const std::uint64_t enough = board_.confirmed.load() + 2;  // one may be under way
        REQUIRE(eventually([&] {
            return board_.confirmed.load() >= enough && board_.seen.load() == lines &&
                   board_.readers.load() == readers.size() && pages().size() == readers.size() &&
                   image().sessions.size() == readers.size() + idle + 1 &&
                   held_by(daemon_->pid(), {"fabric-pins"}) == static_cast<int>(readers.size());
        }));
        const auto numbers = pages();
        for (const Reader* one : readers) CHECK(numbers.count(one->pid()) == 1);
        CHECK(board_.missed.load() == 0);
    }

    /// All go, in this order: what is left of a reader would keep the arena.
    void end(Child& maker, const std::vector<Reader*>& readers) {
        board_.stop = 1;
        CHECK(maker.wait() == 0);
        for (Reader* one : readers) {
            one->leave();
            one->end();
            CHECK(one->wait() == 0);
        }
        CHECK(board_.missed.load() == 0);
        nothing_is_left();
    }

    void nothing_is_left() {
        CHECK(eventually([&] {
            const auto left = image();
            return left.sessions.empty() && left.arenas.empty() &&
                   held_by(daemon_->pid(), {"memfd:", "[pidfd]"}) == 0;
        }));
        const auto pools = test_support::run_program(
            {FABRICCTL_PATH, "pools", "--json", "--socket", folder_.file("admin.sock")});
        CHECK(pools.code == 0);
        CHECK_MESSAGE(pools.out.find("\"used_bytes\":0") != std::string::npos, pools.out);
        CHECK(daemon_->stop() == 0);
        // What is another test's goes by itself.
        CHECK(eventually([&] {
            const auto files = shared_files();
            return std::includes(files_.begin(), files_.end(), files.begin(), files.end());
        }));
    }

  private:
    fabricd::PoolImage image() const {
        std::string problem;
        auto read = test_support::pool_image_in(FabricdProcess::state_in(folder_.path()), problem);
        REQUIRE_MESSAGE(problem.empty(), problem);
        return read;
    }

    Board& board_ = shared_board();
    const std::set<std::string> files_ = shared_files();
    const TemporaryDirectory folder_{"/dev/shm"};
    const std::string socket_ = FabricdProcess::socket_in(folder_.path());
    std::unique_ptr<FabricdProcess> daemon_;
};

std::string kill_at(const std::string& point, int passage = 1) {
    return point + ":kill:" + std::to_string(passage);
}

}  // namespace

TEST_SUITE("crash.pool.killed_publications") {
    TEST_CASE("fabricd killed around the making of a page: its reader gets one all the same") {
        for (const std::string point : {"pins.before_page", "pins.after_page"}) {
            CAPTURE(point);
            Story story(kill_at(point, 2));
            Child maker = story.maker();
            const auto old = story.pinning_reader(0);
            const auto before = story.pages();
            const auto asking = story.reader(1);
            story.daemon_dies();
            story.start_daemon();
            REQUIRE(asking->has_pinned());
            story.expect({old.get(), asking.get()});
            CHECK(story.pages().at(old->pid()) == before.at(old->pid()));
            CHECK(story.pages().at(asking->pid()) > before.at(old->pid()));
            story.end(maker, {old.get(), asking.get()});
        }
    }

    TEST_CASE("fabricd killed there, and the reader too: what it was to get holds nothing") {
        for (const std::string point : {"pins.before_page", "pins.after_page"}) {
            CAPTURE(point);
            Story story(kill_at(point, 2));
            Child maker = story.maker();
            const auto old = story.pinning_reader(0);
            const auto asking = story.reader(1);
            story.daemon_dies();
            CHECK(story.pages().count(asking->pid()) == (point == "pins.after_page"));
            asking->kill();
            story.start_daemon();
            story.expect({old.get()});
            story.end(maker, {old.get()});
        }
    }

    TEST_CASE("fabricd killed again when it replaces a page that was never given") {
        for (const std::string point : {"pins.before_end", "pins.after_end"}) {
            CAPTURE(point);
            Story story(kill_at("pins.after_page", 2));
            Child maker = story.maker();
            const auto old = story.pinning_reader(0);
            const auto asking = story.reader(1);
            story.daemon_dies();
            const std::uint64_t lost = story.pages().at(asking->pid());
            story.start_daemon(kill_at(point));
            story.daemon_dies();
            story.start_daemon();
            REQUIRE(asking->has_pinned());
            story.expect({old.get(), asking.get()});
            CHECK(story.pages().at(asking->pid()) > lost);
            story.end(maker, {old.get(), asking.get()});
        }
    }

    TEST_CASE("fabricd killed around the end of a page of a reader that was killed") {
        for (const std::string point : {"pins.before_end", "pins.after_end"}) {
            CAPTURE(point);
            Story story(kill_at(point));
            Child maker = story.maker();
            const auto old = story.pinning_reader(0);
            const auto dying = story.pinning_reader(1);
            story.expect({old.get(), dying.get()});
            const auto before = story.pages();
            dying->kill();
            story.daemon_dies();
            story.start_daemon();
            const auto next = story.pinning_reader(1);
            story.expect({old.get(), next.get()});
            CHECK(story.pages().at(old->pid()) == before.at(old->pid()));
            story.end(maker, {old.get(), next.get()});
        }
    }

    TEST_CASE("fabricd killed around the end of a page of a reader that lives on without it") {
        for (const std::string point : {"pins.before_end", "pins.after_end"}) {
            CAPTURE(point);
            Story story(kill_at(point));
            Child maker = story.maker();
            const auto old = story.pinning_reader(0);
            const auto leaving = story.pinning_reader(1);
            story.expect({old.get(), leaving.get()});
            leaving->leave();
            story.daemon_dies();
            story.start_daemon();
            story.expect({old.get()}, 1);
            leaving->end();
            CHECK(leaving->wait() == 0);
            story.end(maker, {old.get()});
        }
    }

    TEST_CASE("a maker killed when it was answered: its arena goes, and the next makes its own") {
        Story story;
        Child first = story.maker(kill_at("pins.published"));
        CHECK(first.wait() == 128 + SIGKILL);
        Child second = story.maker();
        const auto reader = story.pinning_reader(0);
        story.expect({reader.get()});
        CHECK(story.board().is_new.load() == 1);
        story.end(second, {reader.get()});
    }

    TEST_CASE("a maker killed when it took an arena up: the next one does, and sees the pins") {
        Story story;
        Child first = story.maker();
        const auto reader = story.pinning_reader(0);
        story.expect({reader.get()});
        const auto before = story.pages();
        first.kill();
        Child second = story.maker(kill_at("pins.published"));
        CHECK(second.wait() == 128 + SIGKILL);
        Child third = story.maker();
        story.expect({reader.get()});
        CHECK(story.board().is_new.load() == 0);
        CHECK(story.pages() == before);
        story.end(third, {reader.get()});
    }

    TEST_CASE("a reader killed before it asked for a page: the arena does not wait for it") {
        Story story;
        Child maker = story.maker();
        const auto old = story.pinning_reader(0);
        const auto dying = story.reader(1, kill_at("pins.subscribed"));
        CHECK(dying->wait() == 128 + SIGKILL);
        story.expect({old.get()});
        story.end(maker, {old.get()});
    }

    TEST_CASE("the same with no daemon there to notice: the next one waits for it no more") {
        Story story;
        Child maker = story.maker();
        const auto old = story.pinning_reader(0);
        const auto dying = story.reader(1, "pins.subscribed:stop");
        REQUIRE(eventually([&] { return is_stopped(dying->pid()); }));
        story.kill_daemon();
        dying->kill();
        story.start_daemon();
        story.expect({old.get()});
        story.end(maker, {old.get()});
    }
}
