#include "libfabricshm/collective/tuner.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "libfabricshm/shm/link_policy.hpp"

namespace fabricshm {

namespace {

constexpr auto kLimit = std::chrono::seconds(30);
constexpr double kMargin = 0.97;  // of the time before: less is noise, not a better value
constexpr int kBatches = 5;

// Anonymous memory that the ranks inherit: the group block, then input and output of each rank,
// then the results and a link page.
class Ground {
  public:
    Ground(int world, Bytes per_rank, std::size_t probes, const LinkImage* links)
        : block_(group_block_bytes(world)),
          per_rank_(round_up(per_rank, kPageBytes) + kPageBytes),
          results_(block_ + 2 * per_rank_ * static_cast<Bytes>(world)),
          links_(results_ + round_up(probes * sizeof(double), kPageBytes)),
          bytes_(links_ + kLinkPageBytes) {
        void* memory =
            ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        base_ = memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
        if (base_ == nullptr) return;
        format_group_block(base_, {1, 1, world});
        if (links != nullptr) format_links(base_ + links_, *links);
    }
    ~Ground() {
        if (base_ != nullptr) ::munmap(base_, bytes_);
    }
    Ground(const Ground&) = delete;
    Ground& operator=(const Ground&) = delete;

    bool ok() const noexcept { return base_ != nullptr; }
    std::byte* input(int rank) const noexcept {
        return base_ + block_ + 2 * per_rank_ * static_cast<Bytes>(rank);
    }
    std::byte* output(int rank) const noexcept { return input(rank) + per_rank_; }
    std::byte* link_page() const noexcept { return base_ + links_; }
    double* results() const noexcept { return reinterpret_cast<double*>(base_ + results_); }

    GroupPlace place(int rank, int world, const Tuning& tuning) const {
        GroupPlace place;
        place.arena = base_;
        place.arena_bytes = bytes_;
        place.block_bytes = block_;
        place.rank = rank;
        place.world = world;
        place.group_id = 1;
        place.tuning = &tuning;
        return place;
    }

  private:
    Bytes block_;
    Bytes per_rank_;
    Bytes results_;
    Bytes links_;
    Bytes bytes_;
    std::byte* base_ = nullptr;
};

// Nanoseconds of one call, the median over batches that take `sample` together. All ranks run the
// same number of calls: rank 0's first timing decides it, spread by a broadcast.
Result<double> time_call(Group& group, Call call, Duration sample) {
    // A root waits for no rank: without the barrier its time would be that of its own copy.
    Call together;
    together.kind = Kind::kBarrier;
    together.deadline = call.deadline;
    const auto run = [&](std::uint64_t times) -> Result<double> {
        const TimePoint start = Clock::now();
        for (std::uint64_t i = 0; i < times; ++i) FABRIC_TRY_VOID(group.run(call));
        FABRIC_TRY_VOID(group.run(together));
        return std::chrono::duration<double, std::nano>(Clock::now() - start).count() /
               static_cast<double>(times);
    };
    // Says how many make a batch.
    FABRIC_TRY(const double first, run(3));
    const double share = std::chrono::duration<double, std::nano>(sample).count() / kBatches;
    // With a root, more than it can be ahead by; else the barrier would be most of the time.
    const std::uint64_t least = has_root(call.kind) ? 4 * kTinyTurns : 2;
    std::uint64_t times = std::max(static_cast<std::uint64_t>(share / first), least);
    // Rank 0's number for all: the ranks have to run the same operations.
    Call agree;
    agree.kind = Kind::kBroadcast;
    agree.count = sizeof times;
    agree.input = reinterpret_cast<const std::byte*>(&times);
    agree.output = reinterpret_cast<std::byte*>(&times);
    agree.deadline = call.deadline;
    FABRIC_TRY_VOID(group.run(agree));
    std::vector<double> batches;
    for (int batch = 0; batch < kBatches; ++batch) {
        FABRIC_TRY(const double nanoseconds, run(times));
        batches.push_back(nanoseconds);
    }
    // The median: the machine may have done something else in a batch.
    std::nth_element(batches.begin(), batches.begin() + kBatches / 2, batches.end());
    return batches[kBatches / 2];
}

bool run_rank(const Ground& ground, int rank, const TuneOptions& options, const Tuning& tuning,
              const std::vector<TuneProbe>& probes) {
    const TimePoint deadline = Clock::now() + kLimit;
    GroupPlace place = ground.place(rank, options.world, tuning);
    std::shared_ptr<LinkPolicy> policy;
    if (options.links != nullptr) {
        const auto opened = LinkPolicy::open(ground.link_page());
        if (!opened.ok()) return false;
        policy = *opened;
        place.visibility = policy.get();
    }
    const auto group = Group::attach(std::move(place), deadline);
    if (!group.ok()) return false;
    for (std::size_t i = 0; i < probes.size(); ++i) {
        const Bytes bytes = probes[i].bytes;
        std::vector<std::byte> own(probes[i].in_arena ? 0 : 2 * bytes);
        Call call;
        call.kind = probes[i].kind;
        call.dtype = kernels::DType::kF32;
        call.count = bytes / sizeof(float);
        call.input = probes[i].in_arena ? ground.input(rank) : own.data();
        call.output = probes[i].in_arena ? ground.output(rank) : own.data() + bytes;
        call.deadline = deadline;
        const auto taken = time_call(**group, call, options.sample);
        if (!taken.ok()) return false;
        if (rank == 0) ground.results()[i] = *taken;
    }
    return true;
}

// One value of the tuning, what to try for it, and what shows the difference.
struct Query {
    const char* name;
    std::vector<std::pair<std::uint64_t Tuning::*, std::vector<std::uint64_t>>> values;
    std::vector<TuneProbe> probes;
};

std::vector<Query> questions() {
    constexpr Bytes kNever = Bytes{1} << 40;
    return {
        {"pauses between yields",
         {{&Tuning::spins, {0, 4, 20, 100, 300}}},
         {{8, true}, {8 * kKiB, true}, {64 * kKiB, true}}},
        {"up to where slots beat buffers in place",
         {{&Tuning::max_flat, {0, kKiB, 2 * kKiB, 4 * kKiB, 8 * kKiB, 16 * kKiB, 64 * kKiB}}},
         {{1 * kKiB, true},
          {2 * kKiB, true},
          {4 * kKiB, true},
          {8 * kKiB, true},
          {16 * kKiB, true},
          {64 * kKiB, true}}},
        {"up to where a root runs ahead",
         {{&Tuning::max_ahead, {0, kKiB, 4 * kKiB, 16 * kKiB}}},
         {{2 * kKiB, true, Kind::kBroadcast},
          {4 * kKiB, true, Kind::kBroadcast},
          {16 * kKiB, true, Kind::kBroadcast}}},
        {"fixed parts or claimed chunks",
         {{&Tuning::claim_from, {256 * kKiB, kMiB, kNever}},
          {&Tuning::chunk_bytes, {64 * kKiB, 256 * kKiB}}},
         {{512 * kKiB, true}, {4 * kMiB, true}}},
        {"where stores go past the cache",
         {{&Tuning::streaming_from, {4 * kMiB, 12 * kMiB, 24 * kMiB, 64 * kMiB, kNever}}},
         {{2 * kMiB, true}, {8 * kMiB, true}, {24 * kMiB, true}}},
        {"pieces of staged operations",
         {{&Tuning::two_phase_from, {kKiB, 256 * kKiB, kGiB}},
          {&Tuning::piece_bytes, {64 * kKiB, 128 * kKiB, 256 * kKiB, 512 * kKiB, kMiB}}},
         {{64 * kKiB, false}, {256 * kKiB, false}, {512 * kKiB, false}, {4 * kMiB, false}}},
    };
}

// Every combination of the question's values, on top of `base`; the first is `base` itself.
std::vector<Tuning> candidates_of(const Query& question, const Tuning& base) {
    std::vector<Tuning> candidates{base};
    for (const auto& [field, values] : question.values) {
        std::vector<Tuning> next{base};
        for (const Tuning& candidate : candidates) {
            for (const std::uint64_t value : values) {
                next.push_back(candidate);
                next.back().*field = value;
            }
        }
        candidates = next;
    }
    return candidates;
}

double geometric_mean(const std::vector<double>& times) {
    double sum = 0;
    for (const double time : times) sum += std::log(time);
    return std::exp(sum / static_cast<double>(times.size()));
}

Result<Tuning> answer(const Query& question, const TuneOptions& options, const Tuning& base) {
    TuneOptions measured = options;
    std::vector<Tuning> candidates = candidates_of(question, base);
    std::vector<double> best(candidates.size(), HUGE_VAL);
    // Candidates in turn, so that a slow minute of the machine hits all of them.
    for (int round = 0; round < options.rounds; ++round) {
        for (std::size_t i = 0; i < candidates.size(); ++i) {
            FABRIC_TRY(const auto times, time_probes(measured, candidates[i], question.probes));
            best[i] = std::min(best[i], geometric_mean(times));
        }
    }
    const auto winner = std::min_element(best.begin(), best.end());
    // Noise is no answer.
    const bool better = *winner < best[0] * kMargin;
    if (options.progress) {
        char line[160];
        std::snprintf(line, sizeof line, "%d ranks: %s: %s (%.1f %% of the time before)",
                      options.world, question.name, better ? "changed" : "kept",
                      100.0 * (better ? *winner : best[0]) / best[0]);
        options.progress(line);
    }
    return better ? candidates[static_cast<std::size_t>(winner - best.begin())] : base;
}

}  // namespace

Result<std::vector<double>> time_probes(const TuneOptions& options, const Tuning& tuning,
                                        const std::vector<TuneProbe>& probes) {
    Bytes largest = 0;
    for (const TuneProbe& probe : probes) largest = std::max(largest, probe.bytes);
    const Ground ground(options.world, largest, probes.size(), options.links);
    if (!ground.ok()) return Error{Errc::kNoMemory, 0, "tune: memory for the ranks"};
    // Once for all ranks: it measures the clock, which takes some milliseconds.
    if (options.links != nullptr) (void)LinkClock::real();
    std::fflush(nullptr);  // or every child would print what is still in the buffers
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < options.world; ++rank) {
        const pid_t child = ::fork();
        if (child < 0) break;
        if (child == 0) ::_exit(run_rank(ground, rank, options, tuning, probes) ? 0 : 1);
        ranks.push_back(child);
    }
    // Bounded: ranks give up at their own deadline, also when some were never started.
    int bad = static_cast<int>(ranks.size()) == options.world ? -1 : static_cast<int>(ranks.size());
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        int status = 0;
        while (::waitpid(ranks[rank], &status, 0) < 0 && errno == EINTR) {
        }
        if (status != 0 && bad < 0) bad = static_cast<int>(rank);
    }
    if (bad >= 0) return Error{Errc::kPeer, bad, "tune"};
    return std::vector<double>(ground.results(), ground.results() + probes.size());
}

Result<Tuning> measure_tuning(const TuneOptions& options) {
    Tuning tuning = machine_tuning(options.world);
    for (const Query& question : questions()) {
        FABRIC_TRY(tuning, answer(question, options, tuning));
    }
    return tuning;
}

Result<void> check_tuning_file(const std::string& path) {
    std::error_code failure;
    const auto status = std::filesystem::status(path, failure);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
        // A device would be replaced by a file, and one without an end read for ever.
        return explain({Errc::kInvalid, 0, "write tuning"}, "%s is no plain file", path.c_str());
    }
    const auto parent = std::filesystem::path(path).parent_path();
    if (!parent.empty()) std::filesystem::create_directories(parent, failure);
    const std::string tried = path + ".new";
    errno = 0;
    const bool opens = std::ofstream(tried, std::ios::trunc).is_open();
    const int number = errno;
    if (!opens) {
        return explain(error_from_errno(number, "write tuning"), "can't write %s: %s",
                       tried.c_str(), std::strerror(number));
    }
    std::filesystem::remove(tried, failure);
    return {};
}

Result<void> save_tuning(const std::string& path, const Tuning& tuning, int world) {
    FABRIC_TRY_VOID(check_tuning_file(path));
    std::ostringstream kept;
    const std::string prefix = std::to_string(world) + ".";
    if (std::ifstream file(path); file) {
        for (std::string line; std::getline(file, line);) {
            if (line.rfind(prefix, 0) != 0) kept << line << '\n';
        }
    }
    // Next to it, then in its place: a reader sees the old file or the new one, never half of one.
    const std::string beside = path + ".new";
    std::ofstream out(beside, std::ios::trunc);
    if (kept.str().empty()) out << "# Measured by fabricctl tune: world.key = value\n";
    out << kept.str() << format_tuning(tuning, world);
    out.close();
    std::error_code failure;
    if (!out) {
        const Error error = error_from_errno(errno, "write tuning");
        std::filesystem::remove(beside, failure);
        return error;
    }
    std::filesystem::rename(beside, path, failure);
    if (failure) return error_from_errno(failure.value(), "replace tuning");
    return {};
}

}  // namespace fabricshm
