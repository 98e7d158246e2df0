// A host that dies as a whole, its daemon and all its ranks at once, at each fault point that one
// of them passes while a group over three hosts joins, works, shrinks and is left, and while the
// daemon holds its place in the cluster. The ranks of the other hosts hear which host it was, go on
// without it and have the right sums; the cluster says that it is lost; started again it is another
// incarnation, with nothing left of the one before.
//
// Hosts a and c live through all of it; each scenario has a victim host of its own, and they are
// played side by side, since most of their time is the wait for a lease to end.

#include <doctest/doctest.h>
#include <fabricshm/fabricshm.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/units.hpp"
#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/etcd_process.hpp"
#include "tests/support/fabricd_process.hpp"
#include "tests/support/job.hpp"
#include "tests/support/program.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::TimePoint;
using test_support::Daemon;
using test_support::FabricdProcess;
using test_support::failed;
using test_support::Job;

namespace {

enum class Where {
    kRank,         // rank 1 passes it before the end of an operation
    kLeave,        // ... when it leaves
    kShrink,       // ... in a shrink, after the death of a rank on another host
    kDaemon,       // the victim's daemon passes it
    kDaemonAgain,  // ... when it is started again
};
struct Point {
    const char* name;
    int passage;
    Where where;
};
constexpr Point kPoints[] = {
    {"session.attached", 1, Where::kRank},
    {"arena.granted", 1, Where::kRank},
    {"hosts.introduced", 1, Where::kRank},
    {"group.attached", 1, Where::kRank},
    {"hosts.opened", 1, Where::kRank},
    {"hosts.exchanged", 1, Where::kRank},
    {"hosts.greeted", 1, Where::kRank},
    {"hosts.begin", 3, Where::kRank},
    {"hosts.begin", 6, Where::kRank},
    {"operation.begin", 3, Where::kRank},
    {"hosts.sent", 1, Where::kRank},
    {"hosts.sent", 12, Where::kRank},
    {"hosts.received", 1, Where::kRank},
    {"hosts.received", 12, Where::kRank},
    {"hosts.scattered", 3, Where::kRank},
    {"hosts.reduced", 3, Where::kRank},
    {"hosts.leaving", 1, Where::kLeave},
    {"hosts.shrink.joined", 1, Where::kShrink},
    {"hosts.shrink.sent", 1, Where::kShrink},
    {"hosts.shrink.collected", 1, Where::kShrink},
    {"hosts.shrink.agreed", 1, Where::kShrink},
    {"hosts.shrink.exchanged", 1, Where::kShrink},
    {"hosts.shrink.exchanged", 2, Where::kShrink},
    {"cluster.renewed", 6, Where::kDaemon},
    {"cluster.updated", 3, Where::kDaemon},
    {"cluster.placed", 1, Where::kDaemonAgain},
    {"cluster.fencing", 1, Where::kDaemonAgain},
    {"cluster.fenced", 1, Where::kDaemonAgain},
};

constexpr int kSideBySide = 10;
constexpr auto kLimit = 40s;  // of one step of a scenario
// From a host's death to the error of the last of the others, on a machine that is busy with all
// the others: a lease of 2 s, 0.8 s, and what it takes to be served.
constexpr auto kBound = 12s;
constexpr int kTimeoutMs = 30'000;
constexpr std::uint64_t kLarge = 100'000;
constexpr int kFirstDead = 4;  // of a shrink

/// What the processes of a scenario know of each other.
struct Board {
    static constexpr int kRounds = 8;
    std::atomic<bool> dead{false};  // the victim
    std::atomic<std::int64_t> died_ns{0};
    std::atomic<std::int64_t> heard_ns{0};  // when the last of the others had its error
    std::atomic<int> shrinks{0};            // attempts of rank 0
    std::atomic<int> arrived[kRounds]{};
    std::atomic<int> decided[kRounds]{};  // 1: all came, 2: one never will
    std::byte bytes[kRounds][1 << 16]{};
};

/// An all-gather as a launcher gives it: it fails for all when a rank is dead.
struct Exchange {
    Board* board;
    int rank;
    int world;
    int round;

    static int run(void* context, const void* mine, std::size_t bytes, void* all) {
        auto* self = static_cast<Exchange*>(context);
        return self->gather(mine, bytes, all) ? 0 : -1;
    }
    bool gather(const void* mine, std::size_t bytes, void* all) {
        const int now = round++;
        std::byte* room = board->bytes[now];
        std::memcpy(room + static_cast<std::size_t>(rank) * bytes, mine, bytes);
        board->arrived[now].fetch_add(1);
        for (; board->decided[now] == 0; ::usleep(200)) {
            int none = 0;
            if (board->arrived[now] == world) {
                board->decided[now].compare_exchange_strong(none, 1);
            } else if (now < 2 && board->dead) {
                board->decided[now].compare_exchange_strong(none, 2);
            }
        }
        std::memcpy(all, room, static_cast<std::size_t>(world) * bytes);
        return board->decided[now] == 1;
    }
};

std::int64_t now_ns() {
    return Clock::now().time_since_epoch().count();
}

template <typename Done>
bool until(const Done& done) {
    for (const TimePoint end = Clock::now() + kLimit; Clock::now() < end; ::usleep(2000)) {
        if (done()) return true;
    }
    return false;
}

/// What a session hears of the hosts; empty: nothing.
struct Hosts {
    std::vector<fabricshm_host> hosts = std::vector<fabricshm_host>(256);
    fabricshm_cluster cluster{};

    explicit Hosts(fabricshm_session* session) {
        cluster.struct_size = sizeof cluster;
        const int code = fabricshm_session_hosts(session, hosts.data(), 256, &cluster);
        hosts.resize(code == 0 ? static_cast<std::size_t>(cluster.total) : 0);
    }
    /// The newest incarnation of that name; nullptr: none.
    const fabricshm_host* find(const std::string& name) const {
        const auto found = std::ranges::find_if(hosts, [&](const auto& host) {
            return name == host.name && (host.flags & FABRICSHM_HOST_NEWEST) != 0;
        });
        return found == hosts.end() ? nullptr : &*found;
    }
    bool admits_own() const {
        return cluster.admits != 0 && std::ranges::any_of(hosts, [](const auto& host) {
                   return (host.flags & FABRICSHM_HOST_SELF) != 0;
               });
    }
};

/// One rank of a scenario, in a process of its own; its results are exit codes.
class Rank {
  public:
    Rank(Board& board, const Point& point, const std::string& socket, const std::string& arena,
         int rank)
        : board_(board),
          point_(point),
          job_(socket, 160 << 20, arena.c_str()),
          rank_(rank),
          world_(point.where == Where::kShrink ? 5 : 4) {
        for (int member = 0; member < world_; ++member) members_.push_back(member);
    }
    ~Rank() { fabricshm_group_leave(group_); }
    Rank(const Rank&) = delete;
    Rank& operator=(const Rank&) = delete;

    int run() {
        if (!job_.ok) return 1;
        if (!until([&] { return Hosts(job_.session).admits_own(); })) return 2;
        const int joined = join("group", 0);
        return rank_ == 0 || rank_ == 3 ? survive(joined) : be_victim(joined);
    }

  private:
    int join(const char* name, int round) {
        const auto world = static_cast<int>(members_.size());
        const auto own = std::ranges::find(members_, rank_) - members_.begin();
        Exchange exchange{&board_, static_cast<int>(own), world, round};
        fabricshm_hosts_spec spec{};
        spec.struct_size = sizeof spec;
        spec.name = name;
        spec.rank = exchange.rank;
        spec.world = world;
        spec.exchange = &Exchange::run;
        spec.context = &exchange;
        spec.trusted = "127.0.0.0/8";
        spec.timeout_ms = kTimeoutMs;
        return fabricshm_group_join_hosts(job_.arena, &spec, &group_);
    }

    // Numbers that differ by rank, place and round, whose sums are exact.
    static float number(int rank, std::uint64_t i, int round) {
        return static_cast<float>((rank + 1) * 1000 + static_cast<int>(i % 997) + round % 89);
    }
    int sum(std::uint64_t count) {
        std::vector<float> mine(count), sums(count);
        for (std::uint64_t i = 0; i < count; ++i) mine[i] = number(rank_, i, round_);
        const int code = fabricshm_allreduce(group_, mine.data(), sums.data(), count, FABRICSHM_F32,
                                             FABRICSHM_SUM);
        for (std::uint64_t i = 0; code == 0 && i < count; ++i) {
            float right = 0;
            for (const int member : members_) right += number(member, i, round_);
            if (sums[i] != right) return wrong(count, i, sums[i], right);
        }
        return code;
    }
    int wrong(std::uint64_t count, std::uint64_t i, float is, float right) {
        std::fprintf(stderr, "%s: rank %d, round %d: element %zu of %zu is %f and not %f\n",
                     point_.name, rank_, round_, static_cast<std::size_t>(i),
                     static_cast<std::size_t>(count), double{is}, double{right});
        wrong_ = true;
        return FABRICSHM_EBROKEN;
    }
    int broadcast() {
        std::vector<float> data(1000, static_cast<float>(rank_ + round_));
        const int code = fabricshm_broadcast(group_, data.data(), data.size(), FABRICSHM_F32, 0);
        const auto right = static_cast<float>(members_.front() + round_);
        return code != 0 || data.back() == right ? code : wrong(1000, 999, data.back(), right);
    }
    // One operation of each kind; the first code that is not 0.
    int operations() {
        ++round_;
        int code = sum(3);
        if (code == 0) code = sum(kLarge);
        if (code == 0) code = broadcast();
        if (code == 0) code = fabricshm_barrier(group_);
        return code;
    }

    int be_victim(int joined) {
        if (joined != 0) return failed(10);
        for (int code = 0; code == 0;) {
            code = operations();
            if (rank_ == kFirstDead && round_ == 2) std::raise(SIGKILL);
            if (point_.where == Where::kLeave && round_ == 3) break;
        }
        if (point_.where == Where::kShrink) {
            fabricshm_group* smaller = nullptr;
            (void)fabricshm_group_shrink(group_, kTimeoutMs, &smaller);
        }
        if (point_.where == Where::kLeave) fabricshm_group_leave(std::exchange(group_, nullptr));
        // The other rank of the host dies with the first.
        return until([&] { return board_.dead.load(); }) ? 11 : 12;
    }

    bool is_dead_rank(int rank) const {
        if (point_.where == Where::kShrink) return rank == kFirstDead;
        return rank == 1 || rank == 2;
    }

    int survive(int joined) {
        if (joined == 0) {
            int code = 0;
            for (const TimePoint end = Clock::now() + kLimit; code == 0 && Clock::now() < end;) {
                code = operations();
            }
            if (wrong_) return 20;
            if (code != FABRICSHM_EPEER) return failed(21);
            const bool named =
                is_dead_rank(fabricshm_error_rank()) &&
                std::string(fabricshm_error_text()).find(" on host ") != std::string::npos;
            if (!named) return failed(22);
            heard();
            if (const int failure = shrink(); failure != 0) return failure;
        } else {
            // The launcher's exchange failed, or a rank was gone when they connected.
            heard();
            const bool known = joined == FABRICSHM_EINVAL || joined == FABRICSHM_EPEER;
            if (!known) return failed(23);
            if (!until([&] { return board_.dead.load(); })) return 24;
            members_ = {0, 3};
            if (join("rest", 2) != 0) return failed(25);
        }
        if (fabricshm_group_world(group_) != 2) {
            std::fprintf(stderr, "%s: rank %d is in a group of %d\n", point_.name, rank_,
                         fabricshm_group_world(group_));
            return 26;
        }
        members_ = {0, 3};
        round_ = 100;
        for (int i = 0; i < 2; ++i) {
            if (operations() != 0) return wrong_ ? 27 : failed(28);
        }
        return 0;
    }

    void heard() {
        const std::int64_t now = now_ns();
        std::int64_t last = board_.heard_ns;
        while (last < now && !board_.heard_ns.compare_exchange_weak(last, now)) {
        }
    }

    int shrink() {
        fabricshm_group* smaller = nullptr;
        int code = FABRICSHM_EPEER;
        for (int attempt = 0; code != 0 && attempt < 20; ++attempt) {
            code = fabricshm_group_shrink(group_, kTimeoutMs / 3, &smaller);
            if (rank_ == 0) board_.shrinks.fetch_add(1);
            const bool known = code == 0 || code == FABRICSHM_EPEER || code == FABRICSHM_ETIMEOUT ||
                               code == FABRICSHM_EBROKEN || code == FABRICSHM_EBUSY;
            if (!known) return failed(30);
        }
        if (code != 0) return failed(31);
        fabricshm_group_leave(std::exchange(group_, smaller));
        return 0;
    }

    Board& board_;
    const Point& point_;
    Job job_;
    const int rank_;
    const int world_;
    std::vector<int> members_;
    fabricshm_group* group_ = nullptr;
    int round_ = 0;
    bool wrong_ = false;
};

/// The hosts that live through all scenarios.
struct Others {
    const Daemon& a;
    const Daemon& c;
    std::string etcd;
};

std::string fault_of(const Point& point, const char* action) {
    return std::string(point.name) + ":" + action + ":" + std::to_string(point.passage);
}

/// One host's death, in a process of its own. `problems()` says what was not as it has to be.
class Scenario {
  public:
    Scenario(const Point& point, const std::string& name, const Others& others)
        : point_(point), name_(name), others_(others) {
        void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        board_ = new (memory) Board;
    }
    ~Scenario() { ::munmap(board_, sizeof(Board)); }
    Scenario(const Scenario&) = delete;
    Scenario& operator=(const Scenario&) = delete;

    int run() {
        // What is left of the victim is this process's child then.
        ::prctl(PR_SET_CHILD_SUBREAPER, 1);
        const TimePoint begin = Clock::now();
        play();
        const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
        if (std::getenv("FABRIC_SWEEP_TIMES") != nullptr) {
            std::printf("%6.2f s  %s:%d, heard after %.2f s, shrinks: %d\n", seconds, point_.name,
                        point_.passage,
                        static_cast<double>(board_->heard_ns - board_->died_ns) * 1e-9,
                        board_->shrinks.load());
        }
        for (const auto& problem : problems_) {
            std::fprintf(stderr, "%s:%d, host %s: %s\n", point_.name, point_.passage, name_.c_str(),
                         problem.c_str());
        }
        std::fflush(nullptr);
        return problems_.empty() ? 0 : 1;
    }

  private:
    void fail(const std::string& problem) { problems_.push_back(problem); }

    std::vector<std::string> options() const {
        return {"--cluster-etcd=" + others_.etcd,
                "--cluster-name=sweep",
                "--cluster-host-name=" + name_,
                "--cluster-ttl=2s",
                "--log-level=error",
                "--pool-capacity=512MiB"};
    }

    test_support::Child start_rank(const std::string& socket, int rank, bool armed) {
        return test_support::Child([this, socket, rank, armed] {
            if (armed) fabricshm::fault::arm(fault_of(point_, "host").c_str());
            // An arena stands for a host, and d's rank is at the daemon of host a.
            const std::string arena = name_ + (rank == kFirstDead ? "-d" : "");
            return Rank(*board_, point_, socket, arena, rank).run();
        });
    }

    // The processes of the victim, which die at once: a process group.
    pid_t start_victim() {
        std::fflush(nullptr);
        const pid_t host = ::fork();
        if (host != 0) {
            ::setpgid(host, host);
            return host;
        }
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::setpgid(0, 0);
        const bool in_daemon = point_.where == Where::kDaemon;
        const FabricdProcess daemon(folder_.path(), in_daemon ? fault_of(point_, "host") : "",
                                    options());
        // It has to have a place that others can miss.
        const bool admits = until([&] {
            return test_support::run_program(
                       {FABRICCTL_PATH, "hosts", "--json", "--socket", folder_.file("admin.sock")})
                       .out.find("\"admits\":true") != std::string::npos;
        });
        if (!admits) ::_exit(2);
        auto one = start_rank(FabricdProcess::socket_in(folder_.path()), 1,
                              !in_daemon && point_.where != Where::kDaemonAgain);
        auto two = start_rank(FabricdProcess::socket_in(folder_.path()), 2, false);
        // A host that loses its power at no point of its own.
        if (point_.where == Where::kDaemonAgain) {
            until([&] { return board_->decided[1] != 0; });
            ::kill(0, SIGKILL);
        }
        const int codes[] = {one.wait(), two.wait()};
        std::fprintf(stderr, "%s: its ranks ended with %d and %d\n", name_.c_str(), codes[0],
                     codes[1]);
        ::_exit(1);
    }

    void play() {
        auto zero = start_rank(others_.a.socket(), 0, false);
        auto three = start_rank(others_.c.socket(), 3, false);
        std::unique_ptr<test_support::Child> first_dead;
        if (point_.where == Where::kShrink) {
            first_dead = std::make_unique<test_support::Child>(
                start_rank(others_.a.socket(), kFirstDead, false));
        }
        const pid_t host = start_victim();
        int status = 0;
        if (!until([&] { return ::waitpid(host, &status, WNOHANG) == host; })) {
            fail("no process of the victim passes it");
        } else if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
            fail("the victim ended by itself");
        }
        ::kill(-host, SIGKILL);
        while (::waitpid(-host, nullptr, 0) > 0) {
        }
        board_->died_ns = now_ns();
        board_->dead = true;
        check_rank(zero.wait(), 0);
        check_rank(three.wait(), 3);
        const auto late = std::chrono::nanoseconds(board_->heard_ns - board_->died_ns);
        if (late > kBound) fail("the others heard of it too late");
        if (problems_.empty()) check_membership();
    }

    void check_rank(int code, int rank) {
        if (code == 0) return;
        fail("rank " + std::to_string(rank) + " ended with " + std::to_string(code));
    }

    void check_membership() {
        Job watcher(others_.a.socket(), 1 << 20, ("watch-" + name_).c_str());
        if (!watcher.ok) return fail("no session at the first host");
        std::uint64_t before = 0;
        const bool lost = until([&] {
            const Hosts hosts(watcher.session);
            const fabricshm_host* host = hosts.find(name_);
            if (host == nullptr || host->state < FABRICSHM_HOST_LOST) return false;
            before = host->incarnation;
            return true;
        });
        if (!lost) return fail("the cluster does not say that it is lost");
        const bool dies_again = point_.where == Where::kDaemonAgain;
        auto daemon = std::make_unique<FabricdProcess>(
            folder_.path(), dies_again ? fault_of(point_, "kill") : "", options());
        if (dies_again && !until([&] { return daemon->ended(); })) {
            return fail("the daemon does not pass it");
        }
        if (dies_again) daemon = std::make_unique<FabricdProcess>(folder_.path(), "", options());
        const bool back = until([&] {
            const Hosts hosts(watcher.session);
            const fabricshm_host* host = hosts.find(name_);
            const bool up = host != nullptr && (host->state == FABRICSHM_HOST_UP ||
                                                host->state == FABRICSHM_HOST_BACK);
            return up && host->incarnation > before;
        });
        if (!back) return fail("started again it is no new incarnation");
        std::string shown;
        const bool empty = until([&] {
            const auto pools = test_support::run_program(
                {FABRICCTL_PATH, "pools", "--json", "--socket", folder_.file("admin.sock")});
            shown = pools.out + pools.error;
            return shown.find("\"used_bytes\":0") != std::string::npos;
        });
        if (!empty) fail("something is left in its pool: " + shown);
        if (daemon->stop() != 0) fail("its daemon did not end well");
    }

    const Point& point_;
    const std::string name_;
    const Others& others_;
    const test_support::TemporaryDirectory folder_{"/dev/shm"};
    Board* board_;
    std::vector<std::string> problems_;
};

std::set<std::string> shared_files() {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
        names.insert(entry.path().filename().string());
    }
    return names;
}

std::vector<std::string> options_of(const std::string& etcd, const char* host) {
    return {"--cluster-etcd=" + etcd, "--cluster-name=sweep",
            std::string("--cluster-host-name=") + host, "--cluster-ttl=2s", "--pool-capacity=4GiB"};
}

}  // namespace

TEST_SUITE("net.sweep") {
    TEST_CASE("a host that dies at any fault point is lost, and the others go on") {
        if (!test_support::has_etcd()) return;
        ::setenv("FABRIC_NET_LIBRARY", NET_LIBRARY, 1);
        const auto files = shared_files();
        const test_support::EtcdProcesses etcd;
        const Daemon a(options_of(etcd.endpoint_list(), "a"));
        const Daemon c(options_of(etcd.endpoint_list(), "c"));
        const Others others{a, c, etcd.endpoint_list()};
        const char* only = std::getenv("FABRIC_SWEEP_POINT");
        const auto worker = [&](int number) {
            int bad = 0;
            for (std::size_t i = static_cast<std::size_t>(number); i < std::size(kPoints);
                 i += kSideBySide) {
                if (only != nullptr && std::string(kPoints[i].name) != only) continue;
                bad += Scenario(kPoints[i], "b" + std::to_string(i), others).run();
            }
            return bad;
        };
        for (const int code : test_support::run_children(kSideBySide, worker)) CHECK(code == 0);
        for (const Daemon* daemon : {&a, &c}) {
            std::string shown;
            const bool empty = until([&] {
                const auto pools =
                    test_support::run_program({FABRICCTL_PATH, "pools", "--json", "--socket",
                                               daemon->folder() + "/admin.sock"});
                shown = pools.out;
                return shown.find("\"used_bytes\":0") != std::string::npos;
            });
            CHECK_MESSAGE(empty, shown);
        }
        CHECK(shared_files() == files);
    }
}
