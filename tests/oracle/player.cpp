#include "tests/oracle/player.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>
#include <vector>

#include "emu/hosts/incoherent_hosts.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/os/process.hpp"
#include "tests/oracle/rank.hpp"
#include "tests/support/children.hpp"

namespace oracle {

namespace {

using test_support::Child;

// Beyond the deadline of a call: what a rank may take to find that it has passed.
constexpr int kWatchdogSeconds = 30;

class SharedBoard {
  public:
    SharedBoard()
        : memory_(::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                         -1, 0)) {
        FABRIC_CHECK(memory_ != MAP_FAILED);
        new (memory_) Board{};
        for (auto& line : get().lines) line.position.store(-1);
    }
    ~SharedBoard() { ::munmap(memory_, sizeof(Board)); }
    SharedBoard(const SharedBoard&) = delete;
    SharedBoard& operator=(const SharedBoard&) = delete;

    Board& get() const { return *static_cast<Board*>(memory_); }

  private:
    void* memory_;
};

emu::HostBehaviour behaviour_of(const PlayOptions& options, std::uint64_t seed) {
    emu::HostBehaviour behaviour;
    behaviour.seed = seed;
    if (options.hosts == "eager") behaviour.temper = emu::Temper::kEager;
    if (options.hosts == "strict") behaviour.temper = emu::Temper::kStrict;
    return behaviour;
}

void set_environment(const Program& program, const std::string& tuning_file) {
    ::setenv("FABRIC_TUNING", tuning_file.c_str(), 1);
    const auto set = [](const char* name, const std::string& value) {
        if (value.empty()) {
            ::unsetenv(name);
        } else {
            ::setenv(name, value.c_str(), 1);
        }
    };
    set("FABRIC_ALGORITHM", program.algorithm);
    set("FABRIC_CHECK", program.check ? "buffers" : "");
}

std::string positions(const Program& program, const Board& board) {
    std::string text;
    for (int rank = 0; rank < program.world; ++rank) {
        const std::int64_t position = board.lines[rank].position.load();
        const auto& script = program.scripts[static_cast<std::size_t>(rank)];
        text += "\n  rank " + std::to_string(rank) + " at " + std::to_string(position) + ": ";
        if (position < 0) {
            text += "joining";
        } else if (static_cast<std::size_t>(position) >= script.size()) {
            text += "at its end";
        } else {
            text += describe(program, script[static_cast<std::size_t>(position)]);
        }
    }
    return text;
}

// The processes of a run, until all have ended or something is wrong.
class Run {
  public:
    Run(const Program& program, const PlayOptions& options, std::uint64_t run, Board& board)
        : program_(program), options_(options), board_(board) {
        for (int rank = 0; rank < program.world; ++rank) {
            children_.push_back(std::make_unique<Child>(
                [&, rank] { return play_rank(program, rank, options, run, board); }));
            ends_.push_back(fabricshm::open_pidfd(children_.back()->pid()).value());
        }
    }

    std::optional<Failure> watch();

  private:
    bool dies(int rank) const {
        const auto& script = program_.scripts[static_cast<std::size_t>(rank)];
        return !script.empty() && script.back().type == Action::Type::kKill;
    }
    std::optional<Failure> ended(int rank);
    std::optional<Failure> reported() const;
    std::uint64_t moves() const {
        std::uint64_t sum = 0;
        for (const auto& line : board_.lines) sum += line.moves.load();
        return sum;
    }

    const Program& program_;
    const PlayOptions& options_;
    Board& board_;
    std::vector<std::unique_ptr<Child>> children_;  // null: has ended
    std::vector<fabricshm::Fd> ends_;
};

std::optional<Failure> Run::reported() const {
    if (board_.failed.load() != 2) return std::nullopt;
    return Failure{board_.text + positions(program_, board_)};
}

std::optional<Failure> Run::ended(int rank) {
    const int code = children_[static_cast<std::size_t>(rank)]->wait();
    children_[static_cast<std::size_t>(rank)].reset();
    if (auto failure = reported()) return failure;
    constexpr int kKilled = 128 + SIGKILL;
    if (code == (dies(rank) ? kKilled : 0)) return std::nullopt;
    return Failure{"rank " + std::to_string(rank) + " ended with " + std::to_string(code) +
                   positions(program_, board_)};
}

std::optional<Failure> Run::watch() {
    std::uint64_t seen = moves();
    auto deadline = fabricshm::Clock::now();
    const auto timeout = std::chrono::seconds(options_.timeout_seconds + kWatchdogSeconds);
    deadline += timeout;
    for (;;) {
        std::vector<pollfd> waits;
        std::vector<int> ranks;
        for (int rank = 0; rank < program_.world; ++rank) {
            if (!children_[static_cast<std::size_t>(rank)]) continue;
            waits.push_back({ends_[static_cast<std::size_t>(rank)].get(), POLLIN, 0});
            ranks.push_back(rank);
        }
        if (waits.empty()) return reported();
        const int ready = ::poll(waits.data(), waits.size(), 500);
        for (std::size_t i = 0; ready > 0 && i < waits.size(); ++i) {
            if (waits[i].revents == 0) continue;
            if (auto failure = ended(ranks[i])) return failure;
        }
        if (auto failure = reported()) return failure;
        if (const std::uint64_t now = moves(); now != seen || ready > 0) {
            seen = now;
            deadline = fabricshm::Clock::now() + timeout;
        } else if (fabricshm::Clock::now() > deadline) {
            return Failure{"no rank goes on:" + positions(program_, board_)};
        }
    }
}

}  // namespace

std::optional<Failure> play(const Program& program, const PlayOptions& options, std::uint64_t run) {
    const std::string tuning_file = options.folder + "/oracle-tuning.conf";
    std::ofstream(tuning_file) << program.tuning;
    set_environment(program, tuning_file);
    std::unique_ptr<emu::HostPerProcess> hosts;
    if (!options.hosts.empty()) {
        hosts = std::make_unique<emu::HostPerProcess>(behaviour_of(options, program.seed));
    }
    fabricshm::install_visibility(hosts.get());
    SharedBoard board;
    auto failure = Run(program, options, run, board.get()).watch();
    fabricshm::install_visibility(nullptr);
    return failure;
}

}  // namespace oracle
