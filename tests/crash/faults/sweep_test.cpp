// Every named fault point of the daemon and of the library, found in the sources: a small job is
// run once and once again for each, and the process that passes the point is killed there. The
// others go on, a daemon is started again, and the invariants hold: nothing leaks, no bytes have
// two owners, no read returns stale data, no call outlasts its deadline. A point that no process
// passes fails the test.

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <set>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/units.hpp"
#include "tests/support/fabricd_process.hpp"
#include "tests/support/fault_image.hpp"
#include "tests/support/fault_job.hpp"
#include "tests/support/fault_points.hpp"
#include "tests/support/program.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace test_support;
using namespace std::chrono_literals;
using fabricshm::Clock;

namespace {

constexpr auto kTimeout = 120s;
// The ranks wait 60 s for the test. Where a turn of it took so long, the machine stood still (a
// virtual machine that was paused, a disk that hung), and nothing follows from a rank's timeout.
constexpr auto kStandstill = 10s;
constexpr int kReplays = 3;
constexpr int kAttempts = 8;  // the order in which ranks come to a call is chance
constexpr int kVictim = 0;    // rank 0 passes every point that any rank passes
constexpr int kMortal = 2;  // killed by the test, so that the daemon has a session to reclaim from

// Files of this project in /dev/shm; not folders of tests, which others may run at the same time.
std::set<std::string> shared_files() {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
        const std::string name = entry.path().filename().string();
        const bool is_of_a_test = name.rfind("fabric-test-", 0) == 0;
        if (name.find("fabric") != std::string::npos && !is_of_a_test) names.insert(name);
    }
    return names;
}

// The end of a log, since all of it would hide the problem in front of it.
std::string end_of(const std::string& path) {
    constexpr std::size_t kShown = 3000;
    std::ifstream file(path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return text.size() <= kShown ? text : "..." + text.substr(text.size() - kShown);
}

// Descriptors of a process that hold memory of the pool or watch over other processes.
int holdings_of(pid_t pid) {
    int count = 0;
    std::error_code error;
    const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
        const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
        const bool held = target.find("memfd:") != std::string::npos ||
                          target.find("[pidfd]") != std::string::npos;
        count += held ? 1 : 0;
    }
    return count;
}

class SharedBoard {
  public:
    SharedBoard()
        : memory_(::mmap(nullptr, sizeof(JobBoard), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
          board_(new (memory_) JobBoard) {}
    ~SharedBoard() { ::munmap(memory_, sizeof(JobBoard)); }
    SharedBoard(const SharedBoard&) = delete;
    SharedBoard& operator=(const SharedBoard&) = delete;
    JobBoard& operator*() { return *board_; }
    JobBoard* operator->() { return board_; }

  private:
    void* memory_;
    JobBoard* board_;
};

/// One run of the job with one fault.
class Scenario {
  public:
    Scenario(const NamedPoint& point, int passage)
        : point_(point), fault_(point.name + ":kill:" + std::to_string(passage)) {}
    ~Scenario() {
        for (const pid_t pid : ranks_) {
            if (pid <= 0) continue;
            ::kill(pid, SIGKILL);
            ::waitpid(pid, nullptr, 0);
        }
    }
    Scenario(const Scenario&) = delete;
    Scenario& operator=(const Scenario&) = delete;

    /// Plays the whole story. Afterwards `problems()` says what was not as it has to be.
    void run() {
        const auto files = shared_files();
        prepare();
        start_daemon(point_.daemon ? fault_ : "");
        for (int rank = 0; rank < kJobRanks; ++rank) start_rank(rank);
        while (!failed_ && running() != 0) {
            const auto turn = Clock::now();
            look_after_daemon();
            reap();
            advance();
            ::usleep(500);
            longest_turn_ = std::max(longest_turn_, Clock::now() - turn);
            if (Clock::now() > deadline_) fail("the job does not end");
        }
        if (!failed_) check_end();
        if (shared_files() != files) fail("something was left in /dev/shm");
        if (!problems_.empty() || std::getenv("FABRIC_SWEEP_LOGS") != nullptr) show_logs();
    }

    bool fired() const noexcept { return fired_; }
    bool stood_still() const noexcept { return longest_turn_ > kStandstill; }
    const std::vector<std::string>& problems() const noexcept { return problems_; }

  private:
    void fail(const std::string& problem) {
        failed_ = true;
        problems_.push_back(problem);
    }

    std::string log_of(int rank) const {
        return folder_.file(("rank" + std::to_string(rank) + ".log").c_str());
    }

    void show_logs() const {
        std::printf("%s\nfabricd:\n%s", fault_.c_str(), end_of(folder_.file("log")).c_str());
        for (int rank = 0; rank < kJobRanks; ++rank) {
            std::printf("rank %d:\n%s", rank, end_of(log_of(rank)).c_str());
        }
        std::fflush(stdout);
    }

    // Small sizes, so that ranks claim chunks.
    void prepare() {
        std::ofstream tuning(folder_.file("tuning.conf"));
        for (int world = 1; world <= kJobRanks; ++world) {
            tuning << world << ".claim_from_bytes = 4096\n" << world << ".chunk_bytes = 4096\n";
        }
        std::ofstream device(folder_.file("device"));
        device.close();
        std::filesystem::resize_file(folder_.file("device"), 64 << 20);
    }

    // A daemon that died while it formatted its device has no journal yet, and is started with
    // --format again.
    void start_daemon(const std::string& fault) {
        std::vector<std::string> options;
        if (point_.file.find("/machine/") != std::string::npos) {
            options = {"--pool-backend=dax", "--pool-dax-device=" + folder_.file("device"),
                       "--pool-capacity=0"};
            if (!std::filesystem::exists(journal_)) options.emplace_back("--format");
        }
        daemon_armed_ = !fault.empty();
        daemon_ = std::make_unique<FabricdProcess>(folder_.path(), fault, options);
    }

    void start_rank(int rank) {
        std::fflush(nullptr);
        const pid_t parent = ::getpid();
        const pid_t child = ::fork();
        if (child == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (::getppid() != parent) ::_exit(127);
            // What it says is shown when something goes wrong: each loses memory on purpose.
            const bool has_log = std::freopen(log_of(rank).c_str(), "w", stderr) != nullptr;
            if (!has_log) ::_exit(126);
            ::setenv("FABRIC_TUNING", folder_.file("tuning.conf").c_str(), 1);
            if (!point_.daemon && rank == kVictim) fabricshm::fault::arm(fault_.c_str());
            const int code = play_job(*board_, FabricdProcess::socket_in(folder_.path()), rank);
            std::fflush(nullptr);
            ::_exit(code);
        }
        ranks_[static_cast<std::size_t>(rank)] = child;
    }

    int running() const {
        return static_cast<int>(
            std::count_if(ranks_.begin(), ranks_.end(), [](pid_t pid) { return pid > 0; }));
    }

    void look_after_daemon() {
        if (!daemon_->ended()) return;
        if (!daemon_armed_) return fail("fabricd ended by itself");
        fired_ = true;
        start_daemon("");
    }

    void reap() {
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
            int status = 0;
            if (ranks_[rank] <= 0 || ::waitpid(ranks_[rank], &status, WNOHANG) != ranks_[rank]) {
                continue;
            }
            ranks_[rank] = -1;
            board_->dead[rank] = true;
            const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
            const bool victim = !point_.daemon && rank == kVictim && killed;
            const bool mortal = rank == kMortal && killed && mortal_killed_;
            fired_ = fired_ || victim;
            if (status != 0 && !victim && !mortal) {
                fail("rank " + std::to_string(rank) + " ended with status " +
                     std::to_string(status));
            }
        }
    }

    // Lets the ranks go on once all that live have come as far.
    void advance() {
        const int next = board_->opened + 1;
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
            if (ranks_[rank] > 0 && board_->ranks[rank].stage < next) return;
        }
        // Nor after a failure: a rank that has ended by itself has no number to be killed by.
        if (failed_ || running() == 0 || next > kStageEnd) return;
        if (next == kStageMiddle) {
            check_image();
            daemon_->kill();
            start_daemon(point_.daemon && !fired_ ? fault_ : "");
        }
        if (next == kStageMourning) {
            check_image();
            if (point_.daemon && !mortal_killed_) {
                mortal_killed_ = true;
                ::kill(ranks_[kMortal], SIGKILL);
                return;  // the gate opens when it is known to be dead
            }
        }
        board_->opened = next;
    }

    void check_image() {
        std::vector<JobClaim> claims;
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
            if (ranks_[rank] <= 0) continue;
            const auto& told = board_->ranks[rank];
            claims.insert(claims.end(), told.claim.begin(), told.claim.begin() + told.claims);
        }
        std::string problem;
        const auto image = pool_image_in(FabricdProcess::state_in(folder_.path()), problem);
        if (!problem.empty()) fail(problem);
        for (const auto& found : two_owners(image, claims)) fail(found);
    }

    // No process is left: neither the image nor the daemon may hold anything.
    void check_end() {
        const auto empty = [&] {
            std::string problem;
            const auto image = pool_image_in(FabricdProcess::state_in(folder_.path()), problem);
            if (!problem.empty()) fail(problem);
            return image.daemon_epoch != 0 && image.sessions.empty() && image.arenas.empty() &&
                   holdings_of(daemon_->pid()) == 0;
        };
        while (!failed_) {
            look_after_daemon();
            if (empty()) break;
            ::usleep(500);
            if (Clock::now() > deadline_) fail("memory or sessions are left over");
        }
        if (failed_) return;
        const Output pools = run_program(
            {FABRICCTL_PATH, "pools", "--json", "--socket", folder_.file("admin.sock")});
        if (pools.code == 3 && daemon_->ended() && daemon_armed_) return check_again();
        const bool none_used = pools.out.find("\"used_bytes\":0") != std::string::npos;
        if (pools.code != 0 || !none_used) fail("fabricctl pools: " + pools.out + pools.error);
        if (daemon_->stop() != 0 && !daemon_armed_) fail("fabricd did not end well");
    }

    // It was killed by its fault at the very end.
    void check_again() {
        look_after_daemon();
        check_end();
    }

    const NamedPoint& point_;
    const std::string fault_;
    const fabricshm::TimePoint deadline_ = Clock::now() + kTimeout;
    // In memory: processes are killed, not the host, and calls with deadlines of 15 s would fail
    // where a disk hangs for as long in the daemon's fsync.
    const TemporaryDirectory folder_{"/dev/shm"};
    const std::string journal_ = FabricdProcess::state_in(folder_.path()) + "/journal";
    SharedBoard board_;
    std::unique_ptr<FabricdProcess> daemon_;
    std::array<pid_t, kJobRanks> ranks_{-1, -1, -1};
    std::vector<std::string> problems_;
    fabricshm::Duration longest_turn_{};
    bool daemon_armed_ = false;
    bool mortal_killed_ = false;
    bool fired_ = false;
    bool failed_ = false;
};

// The first rank to come works in a claimed reduction, so a point may be missed.
// Adds what was not as it has to be to `wrong`.
bool passes(const NamedPoint& point, int passage, int attempts, std::string& wrong) {
    int replays = 0;
    for (int attempt = 0; attempt < attempts; ++attempt) {
        Scenario scenario(point, passage);
        const auto begin = Clock::now();
        scenario.run();
        if (std::getenv("FABRIC_SWEEP_TIMES") != nullptr) {
            std::printf("%6.2f s  %s:%d%s\n",
                        std::chrono::duration<double>(Clock::now() - begin).count(),
                        point.name.c_str(), passage, scenario.fired() ? "" : " (not passed)");
        }
        if (!scenario.problems().empty() && scenario.stood_still() && replays++ < kReplays) {
            std::printf("%s:%d: the machine stood still: played again\n", point.name.c_str(),
                        passage);
            --attempt;
            continue;
        }
        for (const auto& problem : scenario.problems()) {
            FAIL_CHECK(problem);
            wrong += point.name + ":" + std::to_string(passage) + ": " + problem + "\n";
        }
        if (scenario.fired() || !scenario.problems().empty()) return true;
    }
    return false;
}

// Points that this job cannot come to, and the test that kills there. Hosts that share no caches
// have an engine of their own; the job is on one host; a rank that is killed in a shrink needs one
// that died before it.
struct Elsewhere {
    const char* point;
    const char* file;
};
constexpr Elsewhere kElsewhere[] = {
    // Of the data cache's disk, which a job has nothing to do with.
    {"catalogue.begun", "/tests/crash/data/spill_test.cpp"},
    {"catalogue.committed", "/tests/crash/data/spill_test.cpp"},
    {"catalogue.log_removed", "/tests/crash/data/spill_test.cpp"},
    {"catalogue.renamed", "/tests/crash/data/spill_test.cpp"},
    {"catalogue.written", "/tests/crash/data/spill_test.cpp"},
    {"spill.files_made", "/tests/crash/data/spill_test.cpp"},
    {"spill.slot_taken", "/tests/crash/data/spill_test.cpp"},
    {"spill.write", "/tests/crash/data/spill_test.cpp"},
    {"spill.written", "/tests/crash/data/spill_test.cpp"},
    // Of several hosts: there a whole host dies.
    {"cluster.fenced", "/tests/net/sweep_test.cpp"},
    {"cluster.fencing", "/tests/net/sweep_test.cpp"},
    {"cluster.placed", "/tests/net/sweep_test.cpp"},
    {"cluster.renewed", "/tests/net/sweep_test.cpp"},
    {"cluster.updated", "/tests/net/sweep_test.cpp"},
    {"hosts.begin", "/tests/net/sweep_test.cpp"},
    {"hosts.exchanged", "/tests/net/sweep_test.cpp"},
    {"hosts.greeted", "/tests/net/sweep_test.cpp"},
    {"hosts.introduced", "/tests/net/sweep_test.cpp"},
    {"hosts.leaving", "/tests/net/sweep_test.cpp"},
    {"hosts.opened", "/tests/net/sweep_test.cpp"},
    {"hosts.received", "/tests/net/sweep_test.cpp"},
    {"hosts.reduced", "/tests/net/sweep_test.cpp"},
    {"hosts.scattered", "/tests/net/sweep_test.cpp"},
    {"hosts.sent", "/tests/net/sweep_test.cpp"},
    {"hosts.shrink.agreed", "/tests/net/sweep_test.cpp"},
    {"hosts.shrink.collected", "/tests/net/sweep_test.cpp"},
    {"hosts.shrink.exchanged", "/tests/net/sweep_test.cpp"},
    {"hosts.shrink.joined", "/tests/net/sweep_test.cpp"},
    {"hosts.shrink.sent", "/tests/net/sweep_test.cpp"},
    // Of the data cache, which the job does not use.
    {"data.upload.completed", "/tests/net/s3_writer_test.cpp"},
    {"data.upload.completing", "/tests/net/s3_writer_test.cpp"},
    {"data.upload.initiated", "/tests/net/s3_writer_test.cpp"},
    {"data.upload.part", "/tests/net/s3_writer_test.cpp"},
    {"data.write.appended", "/tests/crash/data/killed_writer_test.cpp"},
    {"data.write.cached", "/tests/crash/data/killed_writes_test.cpp"},
    {"data.write.published", "/tests/crash/data/killed_writes_test.cpp"},
    {"data.write.begun", "/tests/crash/data/killed_writer_test.cpp"},
    {"data.write.foldered", "/tests/crash/data/killed_writer_test.cpp"},
    {"data.write.named", "/tests/crash/data/killed_writer_test.cpp"},
    {"data.write.synced", "/tests/crash/data/killed_writer_test.cpp"},
    {"data.write.two_names", "/tests/crash/data/killed_writer_test.cpp"},
    // Servers of the mount.
    {"mount.answered", "/tests/multiproc/mount/kills_test.cpp"},
    {"mount.answering", "/tests/multiproc/mount/kills_test.cpp"},
    {"mount.marked", "/tests/multiproc/mount/kills_test.cpp"},
    {"mount.read", "/tests/multiproc/mount/kills_test.cpp"},
    {"mount.replaying", "/tests/multiproc/mount/kills_test.cpp"},
    // The job's journal stays short.
    {"journal.compact.after", "/tests/crash/pool/daemon_killed_test.cpp"},
    {"journal.compact.before", "/tests/crash/pool/daemon_killed_test.cpp"},
    {"journal.compact.begin", "/tests/crash/pool/daemon_killed_test.cpp"},
    {"journal.compact.written", "/tests/crash/pool/daemon_killed_test.cpp"},
    // The job publishes no arena.
    {"elastic.before", "/tests/multiproc/data/gives_way_test.cpp"},
    {"elastic.gone", "/tests/multiproc/data/gives_way_test.cpp"},
    {"elastic.written", "/tests/multiproc/data/gives_way_test.cpp"},
    {"pins.after_end", "/tests/crash/pool/killed_publications_test.cpp"},
    {"pins.after_page", "/tests/crash/pool/killed_publications_test.cpp"},
    {"pins.before_end", "/tests/crash/pool/killed_publications_test.cpp"},
    {"pins.before_page", "/tests/crash/pool/killed_publications_test.cpp"},
    {"pins.published", "/tests/crash/pool/killed_publications_test.cpp"},
    {"pins.subscribed", "/tests/crash/pool/killed_publications_test.cpp"},
    {"share.before", "/tests/multiproc/data/gives_way_test.cpp"},
    {"share.emptied", "/tests/multiproc/data/gives_way_test.cpp"},
    {"share.kept", "/tests/multiproc/data/gives_way_test.cpp"},
    {"pull.combined", "/tests/crash/collective/killed_rank_test.cpp"},
    {"pull.reduced", "/tests/crash/collective/killed_rank_test.cpp"},
    {"pull.shared", "/tests/crash/collective/killed_rank_test.cpp"},
    // The job's ranks step together.
    {"push.range", "/tests/python/optim/server_test.py"},
    {"push.version", "/tests/python/optim/server_test.py"},
    // A survivor that is killed while it finishes the step of another.
    {"recover.agreed", "/tests/crash/optim/killed_in_step_test.cpp"},
    {"recover.finished", "/tests/crash/optim/killed_in_step_test.cpp"},
    {"recover.shard", "/tests/crash/optim/killed_in_step_test.cpp"},
    // The job writes no snapshots.
    {"restore.tensor", "/tests/python/optim/snapshots_test.py"},
    {"shrink.retired", "/tests/crash/client/shrink_test.cpp"},
    {"snapshot.begun", "/tests/python/optim/snapshots_test.py"},
    {"snapshot.commit", "/tests/python/optim/snapshots_test.py"},
    {"snapshot.exchanged", "/tests/python/optim/snapshots_test.py"},
    {"snapshot.headers", "/tests/python/optim/snapshots_test.py"},
    {"snapshot.named", "/tests/python/optim/snapshots_test.py"},
    {"snapshot.pruned", "/tests/python/optim/snapshots_test.py"},
    {"snapshot.recorded", "/tests/python/optim/snapshots_test.py"},
    {"snapshot.saved", "/tests/python/optim/snapshots_test.py"},
    {"snapshot.slice", "/tests/python/optim/snapshots_test.py"},
    {"snapshot.written", "/tests/python/optim/snapshots_test.py"},
    // The job has too few ranks for a tree.
    {"tree.before_post", "/tests/crash/collective/killed_rank_test.cpp"},
    {"tree.posted", "/tests/crash/collective/killed_rank_test.cpp"},
    {"tree.released", "/tests/crash/collective/killed_rank_test.cpp"},
    {"vgpu.allocated", "/tests/crash/vgpu/killed_tenant_test.cpp"},
    {"vgpu.charge.locked", "/tests/crash/vgpu/killed_tenant_test.cpp"},
    {"vgpu.charge.slot", "/tests/crash/vgpu/killed_tenant_test.cpp"},
    {"vgpu.claim.filled", "/tests/crash/vgpu/killed_tenant_test.cpp"},
    {"vgpu.freed", "/tests/crash/vgpu/killed_tenant_test.cpp"},
    {"vgpu.reclaim.pid", "/tests/crash/vgpu/killed_tenant_test.cpp"},
    {"vgpu.release.slot", "/tests/crash/vgpu/killed_tenant_test.cpp"},
    {"vgpu.reserved", "/tests/crash/vgpu/killed_tenant_test.cpp"},
};

// True when another test names the point; that it does so is read off its source.
bool is_killed_elsewhere(const NamedPoint& point) {
    for (const Elsewhere& other : kElsewhere) {
        if (point.name != other.point) continue;
        std::ifstream file(std::string(FABRIC_SOURCE_DIR) + other.file);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        CHECK_MESSAGE(text.find('"' + point.name + '"') != std::string::npos, other.file,
                      " does not kill at ", point.name, " any more");
        return true;
    }
    return false;
}

}  // namespace

TEST_SUITE("crash.faults.sweep") {
    TEST_CASE(
        "a process that dies at a named fault point leaves a job that goes on and nothing behind") {
        const auto points = fault_points_of(FABRIC_SOURCE_DIR);
        REQUIRE(points.size() > 40);
        const char* only = std::getenv("FABRIC_SWEEP_ONLY");  // for people in search of a fault
        int kills = 0;
        int elsewhere = 0;
        std::string wrong;
        for (const NamedPoint& point : points) {
            if (only != nullptr && point.name != only) continue;
            CAPTURE(point.name);
            CAPTURE(point.file);
            if (is_killed_elsewhere(point)) {
                ++elsewhere;
                continue;
            }
            const bool reached = passes(point, 1, kAttempts, wrong);
            CHECK_MESSAGE(reached, "no process passes ", point.name, " (", point.file,
                          "): make the job of tests/support/fault_player.cpp do what passes it");
            kills += reached ? 1 : 0;
            // Also later in the story, where there is a later passage.
            kills += passes(point, 4, 1, wrong) ? 1 : 0;
        }
        std::printf(
            "%zu fault points, %d deaths, all invariants checked after each; %d of the points "
            "are other tests'\n",
            points.size(), kills, elsewhere);
        // At the end as well, which is what is left of a long log.
        if (!wrong.empty()) std::printf("not as it has to be:\n%s", wrong.c_str());
    }
}
