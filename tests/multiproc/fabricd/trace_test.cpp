// What fabricctl trace says of ranks that run collectives, read by a reader of the test's own: of a
// job whose operations are known, of one that loses a rank meanwhile, and of a session that fills
// its ring with rubbish.

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <ranges>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/os/page_file.hpp"
#include "libfabricshm/proto/codec.hpp"
#include "libfabricshm/shm/trace_ring.hpp"
#include "tests/multiproc/fabricd/ctl.hpp"
#include "tests/multiproc/fabricd/ready.hpp"
#include "tests/support/children.hpp"
#include "tests/support/job.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/wire_client.hpp"

using nlohmann::json;
using Daemon = test_support::ReadyDaemon;
using test_support::becomes_true;
using test_support::Child;
using test_support::failed;
using test_support::has;
using test_support::Job;
using test_support::TemporaryDirectory;
using test_support::WireClient;

namespace {

constexpr int kWorld = 4;

// The steps of the story, in memory that parent and ranks share.
constexpr int kIdle = 0, kKnown = 1, kEnd = 2;
constexpr int kLate = 3;  // the rank that can be held back

struct Board {
    std::atomic<int> phase{kIdle};
    std::atomic<int> ran{0};  // ranks that have run the known operations
    std::atomic<bool> holds{false};
    std::atomic<std::uint64_t> begun[kWorld]{};  // small sums of each rank

    /// The late rank is held back, and all others wait for it in the next sum.
    bool is_held() const {
        const std::uint64_t late = begun[kLate];
        return holds && late != 0 && std::ranges::all_of(std::views::iota(0, kLate), [&](int rank) {
                   return begun[rank] == late + 1;
               });
    }
};

struct SharedBoard {
    fabricshm::PageFile file =
        fabricshm::make_page_file("board", 4096, fabricshm::PageAccess::kReadOnly,
                                  [](std::byte*) noexcept {})
            .value();
    Board& operator*() { return *reinterpret_cast<Board*>(file.mapping.data()); }
    Board* operator->() { return &**this; }
};

void spin(std::chrono::microseconds length) {
    const auto until = std::chrono::steady_clock::now() + length;
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
}

// What the test knows of: name, bytes of its largest part, how often.
struct Known {
    const char* name;
    std::uint64_t bytes;
    int times;
};
constexpr Known kKnownOperations[] = {{"allreduce", 24, 50},
                                      {"all_gather", 64 << 10, 20},
                                      {"broadcast", 4 << 20, 5},
                                      {"barrier", 0, 10}};

int run_known(fabricshm_group* group, int rank, std::vector<float>& in, std::vector<float>& out) {
    int bad = 0;
    for (int i = 0; i < 50; ++i) {
        if (rank == 3) spin(std::chrono::milliseconds(2));  // the last to arrive
        bad |= fabricshm_allreduce(group, in.data(), out.data(), 6, FABRICSHM_F32, FABRICSHM_SUM);
    }
    for (int i = 0; i < 20; ++i) {
        bad |= fabricshm_all_gather(group, in.data(), out.data(), 16 << 10, FABRICSHM_F32);
    }
    for (int i = 0; i < 5; ++i) {
        bad |= fabricshm_broadcast(group, in.data(), 1 << 20, FABRICSHM_F32, 0);
    }
    for (int i = 0; i < 10; ++i) bad |= fabricshm_barrier(group);
    return bad;
}

// Small sums until the phase changes, on all ranks at the same one: it is in the sum.
int work(const std::string& socket, int rank, Board& board) {
    const Job job(socket, 64 << 20);
    fabricshm_group* group = nullptr;
    if (!job.ok || fabricshm_group_join(job.arena, "world", rank, kWorld, 60'000, &group) != 0) {
        return failed(1);
    }
    std::vector<float> in(1 << 20, 1.0F), out(1 << 20);
    for (bool is_done = false;;) {
        spin(std::chrono::microseconds(300));
        while (rank == kLate && board.holds) spin(std::chrono::microseconds(100));
        ++board.begun[rank];
        float phase = rank == 0 ? static_cast<float>(board.phase.load()) : 0.0F;
        const int code =
            fabricshm_allreduce(group, &phase, &phase, 1, FABRICSHM_F32, FABRICSHM_SUM);
        if (code == FABRICSHM_EPEER) {  // the story in which one is killed
            // A trace ends with the last process of its job.
            while (board.phase != kEnd) spin(std::chrono::microseconds(300));
            return 0;
        }
        if (code != 0) return failed(2);
        const int now = static_cast<int>(phase);
        if (now == kEnd) return 0;
        if (now != kKnown || is_done) continue;
        if (run_known(group, rank, in, out) != 0) return failed(3);
        is_done = true;
        ++board.ran;
    }
}

std::string text_of(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

/// What is in a trace, with all that has to hold for any of them checked.
struct Reading {
    struct Slice {
        std::string name;
        double begin = 0, end = 0;
        json arguments;
    };
    std::map<int, std::vector<Slice>> tracks;  // by rank
    std::map<int, int> rank_of;                // by number of the track
    std::vector<std::pair<int, int>> arrows;   // from rank to rank
    json about;

    explicit Reading(const std::string& path) {
        const json all = json::parse(text_of(path));
        about = all["otherData"];
        std::map<std::uint64_t, json> starts;
        for (const json& event : all["traceEvents"]) {
            const std::string phase = event["ph"];
            if (event["name"] == "thread_name") {
                const std::string name = event["args"]["name"];
                rank_of[event["tid"]] = std::stoi(name.substr(5));
            }
            if (phase == "X") add_slice(event);
            if (phase == "s") CHECK(starts.emplace(event["id"], event).second);
            if (phase == "f") {
                REQUIRE(starts.count(event["id"]) == 1);
                add_arrow(starts[event["id"]], event);
                starts.erase(event["id"].get<std::uint64_t>());
            }
        }
        CHECK(starts.empty());
        for (auto& [rank, slices] : tracks) check_track(slices);
        // Once all slices are known.
        for (const auto& [from, to] : ends_) {
            CHECK(is_inside_collective(from));
            CHECK(is_inside_collective(to));
            CHECK(to["ts"].get<double>() >= from["ts"].get<double>());
        }
    }

    /// How many of these there are on a rank's track, or -1 when some have other bytes.
    int count(int rank, const std::string& name, std::uint64_t bytes) const {
        const auto found = tracks.find(rank);
        if (found == tracks.end()) return 0;
        return static_cast<int>(std::ranges::count_if(found->second, [&](const Slice& slice) {
            return slice.name == name && slice.arguments.value("bytes", ~std::uint64_t{0}) == bytes;
        }));
    }

  private:
    void add_slice(const json& event) {
        const double begin = event["ts"], length = event["dur"];
        CHECK(begin >= 0);
        CHECK(length >= 0);
        REQUIRE(rank_of.count(event["tid"]) == 1);
        tracks[rank_of[event["tid"]]].push_back(
            {event["name"], begin, begin + length, event.value("args", json::object())});
    }
    void add_arrow(const json& from, const json& to) {
        arrows.emplace_back(rank_of[from["tid"]], rank_of[to["tid"]]);
        ends_.emplace_back(from, to);
    }
    bool is_inside_collective(const json& end) const {
        const double at = end["ts"];
        return std::ranges::any_of(tracks.at(rank_of.at(end["tid"])), [&](const Slice& slice) {
            return slice.arguments.contains("epoch") && slice.begin - 1e-6 <= at &&
                   at <= slice.end + 1e-6;
        });
    }
    // Slices follow each other or lie in each other, and operations are numbered without a gap
    // unless the trace says so.
    static void check_track(const std::vector<Slice>& slices) {
        constexpr double kRounding = 1e-6;
        double end = 0, inner = 0;
        std::uint64_t epoch = 0;
        for (const Slice& slice : slices) {
            if (slice.name == "wait") {
                CHECK(slice.begin >= inner - kRounding);
                CHECK(slice.end <= end + kRounding);
                continue;
            }
            CHECK(slice.begin >= end - kRounding);
            inner = slice.begin;
            end = slice.end;
            if (slice.name == "not recorded") epoch = 0;
            if (!slice.arguments.contains("epoch")) continue;
            const auto number = slice.arguments["epoch"].get<std::uint64_t>();
            if (epoch != 0) CHECK(number == epoch + 1);
            epoch = number;
        }
    }

    std::vector<std::pair<json, json>> ends_;
};

/// What a process has mapped of traces: of each trace another file.
std::string ring_of(pid_t process) {
    std::ifstream maps("/proc/" + std::to_string(process) + "/maps");
    for (std::string line; std::getline(maps, line);) {
        const auto device = line.find(" 00:");
        if (has(line, "fabric-trace")) return line.substr(device);
    }
    return "";
}

int count_of(const std::string& text, const std::string& part) {
    int count = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
}

/// fabricctl trace while the test goes on; ended by Ctrl-C at the latest.
class Tracing {
  public:
    Tracing(const Daemon& daemon, std::string path, const char* seconds)
        : path_(std::move(path)), program_([this, &daemon, seconds] {
              const std::string socket = "--socket=" + daemon.folder() + "/admin.sock";
              if (std::freopen((path_ + ".out").c_str(), "w", stdout) == nullptr) return 90;
              if (std::freopen((path_ + ".err").c_str(), "w", stderr) == nullptr) return 91;
              ::execl(FABRICCTL_PATH, FABRICCTL_PATH, "trace", "--job", "job", "--seconds", seconds,
                      "-o", path_.c_str(), "--json", socket.c_str(), nullptr);
              return 92;
          }) {}
    /// What is written so far.
    std::string so_far() const { return text_of(path_ + ".part"); }
    /// True once each of the ranks has a slice in it.
    bool sees_all_ranks() const {
        const std::string text = so_far();
        for (int track = 1; track <= kWorld; ++track) {
            if (!has(text, "\"tid\":" + std::to_string(track) + ",\"ts\"")) return false;
        }
        return true;
    }
    /// Its exit code.
    int interrupt() {
        ::kill(program_.pid(), SIGINT);
        return program_.wait();
    }
    int wait() { return program_.wait(); }
    void signal(int number) { ::kill(program_.pid(), number); }
    json said() const { return json::parse(text_of(path_ + ".out")); }
    std::string errors() const { return text_of(path_ + ".err"); }

  private:
    std::string path_;
    Child program_;
};

}  // namespace

TEST_SUITE("multiproc.fabricd.trace") {
    TEST_CASE("a trace has each operation of each rank once, and arrows from the late one") {
        const TemporaryDirectory folder;
        const std::string path = folder.file("trace.json");
        std::ofstream(path) << "of before";
        SharedBoard board;
        Daemon daemon;
        std::vector<Child> ranks;
        for (int rank = 0; rank < kWorld; ++rank) {
            ranks.emplace_back([&, rank] { return work(daemon.socket(), rank, *board); });
        }
        const auto is_joined = [&] {
            const json groups = json::parse(test_support::ctl(daemon, {"groups", "--json"}).out);
            return groups["groups"].size() == 1 && groups["groups"][0]["state"] == "complete";
        };
        REQUIRE(becomes_true(is_joined));
        {
            Tracing tracing(daemon, path, "600");
            REQUIRE(becomes_true([&] { return tracing.sees_all_ranks(); }));
            // One at a time.
            CHECK(test_support::ctl(daemon, {"trace", "-o", folder.file("other.json")}).code == 1);
            board->phase = kKnown;
            REQUIRE(becomes_true(
                [&] { return count_of(tracing.so_far(), "\"name\":\"barrier\"") == 10 * kWorld; }));
            CHECK(board->ran == kWorld);
            const int code = tracing.interrupt();
            CAPTURE(tracing.errors());
            REQUIRE(code == 0);
            const json said = tracing.said();
            CHECK(said["ranks"] == kWorld);
            CHECK(said["lost"] == 0);
            CHECK(said["senseless"] == 0);
            CHECK(said["bytes"] == text_of(path).size());
        }
        const Reading reading(path);
        CHECK(reading.tracks.size() == kWorld);
        for (int rank = 0; rank < kWorld; ++rank) {
            for (const Known& known : kKnownOperations) {
                CAPTURE(rank);
                CAPTURE(known.name);
                CHECK(reading.count(rank, known.name, known.bytes) == known.times);
            }
        }
        // The known sums, three arrows each; a scheduler may let another one come last now and
        // then.
        const auto from_late = std::ranges::count(reading.arrows, 3, &std::pair<int, int>::first);
        CHECK(from_late >= 40 * (kWorld - 1));

        // A second trace of the same job, and none of another one.
        REQUIRE(test_support::ctl(daemon, {"trace", "--seconds", "0.2", "-o", path}).code == 0);
        CHECK(Reading(path).tracks.size() == kWorld);
        const auto other = test_support::ctl(daemon, {"trace", "--job", "none", "-o", path});
        CHECK(other.code == 1);
        CHECK(has(other.error, "no process"));
        CHECK(Reading(path).tracks.size() == kWorld);
        board->phase = kEnd;
        for (Child& rank : ranks) CHECK(rank.wait() == 0);
    }

    TEST_CASE("a sum that one trace saw begin and the next one end is in neither, and no forgery") {
        const TemporaryDirectory folder;
        const std::string path = folder.file("trace.json");
        SharedBoard board;
        Daemon daemon;
        std::vector<Child> ranks;
        for (int rank = 0; rank < kWorld; ++rank) {
            ranks.emplace_back([&, rank] { return work(daemon.socket(), rank, *board); });
        }
        REQUIRE(becomes_true([&] { return board->begun[kLate] > 0; }));
        for (int i = 0; i < 3; ++i) {
            Tracing first(daemon, path, "600");
            REQUIRE(becomes_true([&] { return first.sees_all_ranks(); }));
            board->holds = true;
            REQUIRE(becomes_true([&] { return board->is_held(); }));
            REQUIRE(first.interrupt() == 0);
            CHECK(first.said()["senseless"] == 0);
            const auto rings = [&] {
                std::set<std::string> all;
                for (const Child& rank : ranks) all.insert(ring_of(rank.pid()));
                return all;
            };
            const auto before = rings();
            Tracing second(daemon, path, "600");
            REQUIRE(becomes_true([&] {
                return std::ranges::none_of(
                    rings(), [&](const auto& ring) { return before.count(ring) != 0; });
            }));
            CHECK(board->is_held());
            board->holds = false;
            REQUIRE(becomes_true([&] { return second.sees_all_ranks(); }));
            REQUIRE(second.interrupt() == 0);
            CAPTURE(second.errors());
            CHECK(second.said()["senseless"] == 0);
            CHECK(second.said()["ranks"] == kWorld);
        }
        CHECK_FALSE(has(daemon.log(), "can't be"));
        board->phase = kEnd;
        for (Child& rank : ranks) CHECK(rank.wait() == 0);
    }

    TEST_CASE("a rank that is killed meanwhile leaves what it has done") {
        const TemporaryDirectory folder;
        const std::string path = folder.file("trace.json");
        SharedBoard board;
        Daemon daemon;
        std::vector<Child> ranks;
        for (int rank = 0; rank < kWorld; ++rank) {
            ranks.emplace_back([&, rank] { return work(daemon.socket(), rank, *board); });
        }
        const auto is_traced = [&] {
            const json groups = json::parse(test_support::ctl(daemon, {"groups", "--json"}).out);
            return groups["groups"].size() == 1 && groups["groups"][0]["state"] == "complete";
        };
        REQUIRE(becomes_true(is_traced));
        Tracing tracing(daemon, path, "600");
        REQUIRE(becomes_true([&] { return tracing.sees_all_ranks(); }));
        ranks[2].kill();
        REQUIRE(becomes_true([&] { return count_of(tracing.so_far(), "\"error\"") == 3; }));
        REQUIRE(tracing.interrupt() == 0);
        board->phase = kEnd;
        const Reading reading(path);
        CHECK(reading.tracks.size() == kWorld);
        CHECK(reading.about["senseless"] == 0);
        // The operation in which the others heard of it is in the trace with what it ended in.
        for (const int rank : {0, 1, 3}) {
            const auto& slices = reading.tracks.at(rank);
            const bool failed = std::ranges::any_of(
                slices, [](const auto& slice) { return slice.arguments.contains("error"); });
            CHECK(failed);
            CHECK(ranks[static_cast<std::size_t>(rank)].wait() == 0);
        }
    }

    TEST_CASE("a trace that is stopped loses its place, and one ends with its job; both are kept") {
        const TemporaryDirectory folder;
        const std::string path = folder.file("trace.json");
        SharedBoard board;
        Daemon daemon;
        std::vector<Child> ranks;
        for (int rank = 0; rank < kWorld; ++rank) {
            ranks.emplace_back([&, rank] { return work(daemon.socket(), rank, *board); });
        }
        const auto is_joined = [&] {
            const json groups = json::parse(test_support::ctl(daemon, {"groups", "--json"}).out);
            return groups["groups"].size() == 1 && groups["groups"][0]["state"] == "complete";
        };
        REQUIRE(becomes_true(is_joined));
        const std::string other = folder.file("other.json");
        {
            Tracing stopped(daemon, path, "600");
            REQUIRE(becomes_true([&] { return stopped.sees_all_ranks(); }));
            stopped.signal(SIGSTOP);
            // By the log: a fabricctl that asks again and again would leave the ranks no time for
            // the operations that fill the buffers.
            CHECK(becomes_true([&] {
                spin(std::chrono::milliseconds(1));
                return has(daemon.log(), "its client took nothing for 5 s");
            }));
            CHECK(test_support::ctl(daemon, {"trace", "--seconds", "0.1", "-o", other}).code == 0);
            stopped.signal(SIGCONT);
            CHECK(stopped.wait() == 0);
            CHECK(has(stopped.errors(), "took nothing for 5 s"));
        }
        const Reading reading(path);
        CHECK(reading.tracks.size() == kWorld);
        CHECK(has(reading.about["ended_early"], "took nothing"));
        CHECK(has(text_of(path), "rank 2 of world (4 ranks)"));

        Tracing last(daemon, path, "600");
        REQUIRE(becomes_true([&] { return last.sees_all_ranks(); }));
        board->phase = kEnd;
        for (Child& rank : ranks) CHECK(rank.wait() == 0);
        CHECK(last.wait() == 0);
        CHECK(has(last.errors(), "the last process of the job has ended"));
        CHECK(last.said()["ranks"] == kWorld);
        CHECK(Reading(path).about["ended_early"] == last.said()["ended_early"]);
    }

    TEST_CASE("what can't be traced is one line, and a daemon that is killed leaves the trace") {
        const TemporaryDirectory folder;
        const std::string path = folder.file("trace.json");
        Daemon daemon;
        const auto refused = [&](std::vector<std::string> words) {
            words.insert(words.begin(), "trace");
            return test_support::ctl(daemon, words);
        };
        CHECK(refused({"--seconds", "0"}).code == 2);
        CHECK(refused({"--seconds", "nan"}).code == 2);
        CHECK(has(refused({"--seconds", "nan"}).error, "from 0.001 to 3600"));
        CHECK(has(refused({"--job", "nosuch"}).error, "\"nosuch\""));
        CHECK(has(refused({"--job", "a\xff"}).error, "no UTF-8"));
        auto client = WireClient::attach(daemon.socket(), "idle").value();
        REQUIRE(client.open_arena("job", 1 << 20).ok());
        const auto piped = refused({"--seconds", "0.1", "-o", "-"});
        CHECK(piped.code == 0);
        CHECK(json::parse(piped.out)["otherData"]["operations"] == 0);
        CHECK(has(piped.error, "-: 0 operations"));
        Tracing tracing(daemon, path, "600");
        REQUIRE(becomes_true([&] { return has(tracing.so_far(), "job job"); }));
        daemon.kill();
        CHECK(tracing.wait() == 0);
        CHECK(has(tracing.errors(), "fabricd is gone"));
        CHECK(Reading(path).about["ended_early"] == "fabricd is gone");
    }

    TEST_CASE("a ring full of rubbish is read without harm, and named in one line") {
        const TemporaryDirectory folder;
        const std::string path = folder.file("trace.json");
        Daemon daemon;
        auto hostile = WireClient::attach(daemon.socket(), "hostile").value();
        REQUIRE(hostile.open_arena("job", 1 << 20).ok());
        Tracing tracing(daemon, path, "1");
        const auto news = hostile.receive();
        REQUIRE(news.ok());
        REQUIRE(fabricshm::proto::type_of(news->header) == fabricshm::proto::Type::kTrace);
        CHECK(news->header.request_id == 0);
        const auto ring =
            fabricshm::Mapping::map(hostile.descriptor, 0, news->trace.bytes, {}).value();
        REQUIRE(fabricshm::check_trace(ring.data()).ok());
        std::mt19937_64 random(3);
        auto* words = reinterpret_cast<fabricshm::SharedWord*>(ring.data());
        auto& shared = *reinterpret_cast<fabricshm::TraceRing*>(ring.data());
        for (std::uint64_t round = 0; ::access(path.c_str(), F_OK) != 0; ++round) {
            for (int i = 0; i < 10'000; ++i) words[2 + random() % 32'000].store(random());
            // Some rounds with a head and sequences that are believed.
            const std::uint64_t from = round * fabricshm::kTraceRecords;
            for (std::uint64_t n = from; n < from + 1000; ++n) {
                shared.slots[n % fabricshm::kTraceRecords].sequence.store(2 * n + 2);
            }
            shared.head.store(2 * (from + 1000));
            std::this_thread::yield();
        }
        CHECK(tracing.wait() == 0);
        const std::string errors = tracing.errors();
        CAPTURE(errors);
        CHECK(has(errors, "records can't be"));
        CHECK(count_of(errors, "\n") <= 3);
        CHECK(Reading(path).about["operations"] == 0);
        CHECK(has(daemon.log(), "wrote records that can't be"));
        CHECK(test_support::ctl(daemon, {"status"}).code == 0);
    }
}
