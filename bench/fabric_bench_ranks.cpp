#include "bench/fabric_bench_ranks.hpp"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace bench {

namespace {

// Why a rank ended, in memory that it shares with its parent: lines of their own would be one from
// each rank, in any order.
struct Reason {
    char text[512];
};

Reason* g_reason = nullptr;  // of this rank

// A process, and how it ended. Only run_ranks() makes any, so that waiting for any child is waiting
// for one of these.
struct Rank {
    int number = 0;
    pid_t pid = -1;  // -1: it has ended
    int status = 0;

    bool killed() const { return pid < 0 && WIFSIGNALED(status); }
};

/// Takes the end of one process; false when none has ended (without waiting) or there is none.
bool take_end(std::vector<Rank>& ranks, int options) {
    int status = 0;
    pid_t ended = 0;
    do {
        ended = ::waitpid(-1, &status, options);
    } while (ended < 0 && errno == EINTR);
    const auto found = std::find_if(ranks.begin(), ranks.end(),
                                    [&](const Rank& rank) { return rank.pid == ended; });
    if (ended <= 0 || found == ranks.end()) return ended > 0;
    found->pid = -1;
    found->status = status;
    return true;
}

std::string why(const Rank& rank, const Reason& reason) {
    const std::string name = "rank " + std::to_string(rank.number);
    if (WIFSIGNALED(rank.status)) {
        const int number = WTERMSIG(rank.status);
        return name + " was ended by signal " + std::to_string(number) + " (" +
               ::strsignal(number) + "); the others are ended";
    }
    if (reason.text[0] != '\0') return name + ": " + reason.text;
    return name + " ended with exit code " + std::to_string(WEXITSTATUS(rank.status)) +
           "; the others are ended";
}

/// Whether it ended otherwise than by returning from its body.
bool is_lost(const Rank& rank, const Reason& reason) {
    if (rank.pid >= 0) return false;
    if (rank.killed() || reason.text[0] != '\0') return true;
    const int code = WEXITSTATUS(rank.status);
    return code != 0 && code != kRankFailed;
}

/// The rank to name: one that was killed, or the first that gave a reason, which is often the other
/// one's death. nullptr: all that ended have ended well.
const Rank* lost_of(const std::vector<Rank>& ranks, const Reason* reasons) {
    const Rank* lost = nullptr;
    for (const Rank& rank : ranks) {
        if (!is_lost(rank, reasons[rank.number])) continue;
        if (rank.killed()) return &rank;
        if (lost == nullptr) lost = &rank;
    }
    return lost;
}

// SIGKILL: a rank that waits in an operation would report an error of its own on any other way out.
// The daemon takes their memory back as after any death.
void end_all(std::vector<Rank>& ranks) {
    for (const Rank& rank : ranks) {
        if (rank.pid > 0) ::kill(rank.pid, SIGKILL);
    }
    while (std::any_of(ranks.begin(), ranks.end(), [](const Rank& each) { return each.pid > 0; })) {
        if (!take_end(ranks, 0)) return;
    }
}

int watch(std::vector<Rank>& ranks, const Reason* reasons) {
    const auto lives = [](const Rank& rank) { return rank.pid > 0; };
    while (std::any_of(ranks.begin(), ranks.end(), lives)) {
        if (!take_end(ranks, 0)) break;
        // All that have ended by now: a rank dies before the others fail because of it, but the
        // system hands them out in another order.
        while (take_end(ranks, WNOHANG)) {
        }
        const Rank* lost = lost_of(ranks, reasons);
        if (lost == nullptr) continue;
        const std::string line = why(*lost, reasons[lost->number]);
        end_all(ranks);
        std::fprintf(stderr, "fabric-bench: %s\n", line.c_str());
        return kRankFailed;
    }
    const bool all_well =
        std::all_of(ranks.begin(), ranks.end(), [](const Rank& rank) { return rank.status == 0; });
    return all_well ? 0 : kRankFailed;
}

[[noreturn]] void be_rank(int number, pid_t parent, const std::function<int(int)>& body) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The parent may have ended before prctl().
    if (::getppid() != parent) std::_Exit(kRankFailed);
    const int code = body(number);
    std::fflush(nullptr);
    std::_Exit(code);
}

}  // namespace

void fail_rank(const std::string& why) {
    std::fflush(nullptr);  // the rows before
    std::snprintf(g_reason->text, sizeof g_reason->text, "%s", why.c_str());
    std::_Exit(kRankFailed);
}

// Ranks are forked before any session is opened, since a session does not survive a fork.
int run_ranks(int count, const std::function<int(int rank)>& body) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(Reason);
    void* shared =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        std::fprintf(stderr, "fabric-bench: no memory for %d ranks\n", count);
        return kRankFailed;
    }
    auto* reasons = static_cast<Reason*>(shared);
    const pid_t parent = ::getpid();
    std::vector<Rank> ranks;
    std::fflush(nullptr);
    for (int number = 0; number < count; ++number) {
        g_reason = &reasons[number];
        const pid_t child = ::fork();
        if (child == 0) be_rank(number, parent, body);
        if (child < 0) {
            std::fprintf(stderr, "fabric-bench: cannot start rank %d: %s\n", number,
                         std::strerror(errno));
            end_all(ranks);
            return kRankFailed;
        }
        ranks.push_back({number, child, 0});
    }
    return watch(ranks, reasons);
}

}  // namespace bench
