#include "emu/sim/probe.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <new>

#include "kernels/copy.hpp"

namespace emu {

using fabricshm::Bytes;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;

namespace {

constexpr int kMaxWorkers = 8;
constexpr int kMaxPoints = 24;
// The best of so many counts: a virtual core is taken away now and then, and what it can do when it
// is there is asked.
constexpr int kBatches = 7;
// Far beyond any measurement: a wait that long is for a process that died.
constexpr auto kLimit = std::chrono::seconds(60);

struct alignas(128) SharedWord {
    std::atomic<std::uint64_t> value{0};
};

// What the workers share: words for barriers, and where they leave what they measured.
struct Board {
    SharedWord arrived;
    SharedWord ping[2];
    double kept[kMaxWorkers][kMaxPoints];
    double handed[kMaxWorkers][kMaxPoints];
    double given[kMaxWorkers][kMaxPoints];
    double streamed[kMaxWorkers][kMaxPoints];
    double exchange;
    double yield_trip;
};

// Of this process, and not of the machine: containers and taskset give fewer.
int usable_cores() {
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return std::max(1, CPU_COUNT(&set));
}

// Keeps this process on the n-th of its cores: two workers on one core would hand bytes on within
// its cache, and measure something else.
void stay_on_core(int n) {
    // Refused or gone: then it is measured from wherever the kernel puts us.
    cpu_set_t allowed;
    if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    int core = -1;
    for (int found = 0; found <= n && core + 1 < CPU_SETSIZE;) {
        if (CPU_ISSET(++core, &allowed)) ++found;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ::sched_setaffinity(0, sizeof one, &one);
}

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Waits for a word to rise, and gives up when the others must be dead.
void await(const std::atomic<std::uint64_t>& word, std::uint64_t value) {
    Clock::time_point start{};  // of polling slowly; a fast wait never asks for the time
    // Acquire: what the other stored before its word is read after this.
    for (std::uint64_t looks = 1; word.load(std::memory_order_acquire) < value; ++looks) {
        if (looks % 2000 != 0) continue;
        ::sched_yield();
        if (looks % 2'000'000 != 0) continue;
        const Clock::time_point now = Clock::now();
        if (start == Clock::time_point{}) start = now;
        if (now - start > kLimit) ::_exit(1);
    }
}

class Worker {
  public:
    Worker(Board& board, std::byte* memory, Bytes room, int index, int workers,
           const ProbeOptions& options)
        : board_(board),
          memory_(memory),
          room_(room),
          index_(index),
          workers_(workers),
          options_(options) {}

    void run(const std::vector<Bytes>& footprints) {
        stay_on_core(index_);
        for (std::size_t point = 0; point < footprints.size(); ++point) {
            // Half is read and half is written: together they are the footprint.
            const Bytes half = footprints[point] / 2;
            const auto at = static_cast<std::size_t>(index_);
            board_.kept[at][point] = copies(half, Before::kNothing, false);
            board_.streamed[at][point] = copies(half, Before::kNothing, true);
            board_.handed[at][point] = copies(half, Before::kWritten, false);
            board_.given[at][point] = copies(half, Before::kRead, false);
        }
        meet();
        // Two ranks run a barrier by their words; more of them read more words, which the simulator
        // adds up itself.
        if (index_ < 2 && workers_ > 1) exchange_words();
    }

  private:
    // What another core does with the bytes before each timed copy.
    enum class Before { kNothing, kWritten, kRead };

    std::byte* source(int worker) const { return memory_ + static_cast<Bytes>(worker) * 2 * room_; }
    std::byte* destination(int worker) const { return source(worker) + room_; }

    void meet() {
        barriers_ += static_cast<std::uint64_t>(workers_);
        // Release and acquire: what each wrote before is there for all after.
        board_.arrived.value.fetch_add(1, std::memory_order_acq_rel);
        await(board_.arrived.value, barriers_);
    }

    // Seconds per byte touched of copying `half` bytes, all workers at once: the best batch, since
    // that is the machine's limit; in the others the core was taken away.
    double copies(Bytes half, Before before, bool streaming) {
        const bool alone = before == Before::kNothing;
        // Five gigabytes a second: only to choose how often to repeat, not a result.
        const double guess = static_cast<double>(half) / 5e9;
        const double wanted = std::chrono::duration<double>(options_.sample).count() / kBatches;
        const int times = alone ? std::max(1, static_cast<int>(wanted / guess)) : 1;
        const int batches =
            alone ? kBatches : std::clamp(static_cast<int>(4 * wanted / guess), kBatches, 200);
        const int next = (index_ + 1) % workers_;
        // `kWritten`: each copies from its neighbour, so that every byte was last written by
        // another core.
        const std::byte* from = source(before == Before::kWritten ? next : index_);
        double best = 1e9;
        for (int batch = -1; batch < batches; ++batch) {  // the first warms up and does not count
            if (before == Before::kWritten) std::memset(source(index_), batch, half);
            if (before == Before::kRead)
                kernels::copy(source(index_), destination(next), half, false);
            meet();
            const auto start = Clock::now();
            for (int i = 0; i < times; ++i)
                kernels::copy(destination(index_), from, half, streaming);
            if (batch >= 0) best = std::min(best, seconds_since(start) / times);
            meet();
        }
        return best / (2.0 * static_cast<double>(half));
    }

    // Both store a word of their own and await the other's, as in a barrier. Not a round trip: that
    // would be two such steps, one behind the other.
    void exchange_words() {
        constexpr std::uint64_t kTrips = 500;
        double best = 1e9;
        std::uint64_t trip = 0;
        for (int batch = 0; batch < 15; ++batch) {
            const auto start = Clock::now();
            for (std::uint64_t i = 0; i < kTrips; ++i) {
                // Release: as a rank's clock, though nothing hangs on it here.
                board_.ping[index_].value.store(++trip, std::memory_order_release);
                await(board_.ping[1 - index_].value, trip);
            }
            best = std::min(best, seconds_since(start) / kTrips);
        }
        if (index_ == 0) board_.exchange = best;
    }

    Board& board_;
    std::byte* memory_;
    Bytes room_;
    int index_;
    int workers_;
    const ProbeOptions& options_;
    std::uint64_t barriers_ = 0;
};

// The same where the other needs this very core: it is let in after every poll.
void await_yielding(const std::atomic<std::uint64_t>& word, std::uint64_t value) {
    const Clock::time_point start = Clock::now();
    for (std::uint64_t looks = 1; word.load(std::memory_order_acquire) < value; ++looks) {
        ::sched_yield();
        if (looks % 1000 == 0 && Clock::now() - start > kLimit) ::_exit(1);
    }
}

// Two processes on one core hand it to each other: each turn is one switch.
void yield_ping_pong(Board& board, int index) {
    stay_on_core(0);
    constexpr std::uint64_t kTrips = 200;
    double best = 1e9;
    std::uint64_t trip = 0;
    for (int batch = 0; batch < 15; ++batch) {
        const auto start = Clock::now();
        for (std::uint64_t i = 0; i < kTrips; ++i) {
            ++trip;
            auto& mine = board.ping[index].value;
            const auto& other = board.ping[1 - index].value;
            if (index == 0) mine.store(trip, std::memory_order_release);
            await_yielding(other, trip);
            if (index == 1) mine.store(trip, std::memory_order_release);
        }
        // Each trip hands the core over twice.
        best = std::min(best, seconds_since(start) / kTrips / 2);
    }
    if (index == 0) board.yield_trip = best;
}

// Forks `count` processes that run body(index) and waits for all of them.
template <typename Body>
Result<void> in_processes(int count, const Body& body) {
    std::vector<pid_t> children;
    for (int index = 0; index < count; ++index) {
        const pid_t child = ::fork();
        if (child == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // no process is left to read what it measures
            body(index);
            ::_exit(0);
        }
        if (child > 0) children.push_back(child);
    }
    // One that could not be forked leaves the others waiting until their limit, and then it is a
    // failure.
    bool well = static_cast<int>(children.size()) == count;
    for (const pid_t child : children) {
        int status = 0;
        while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
        }
        well = well && status == 0;
    }
    if (!well) return Error{Errc::kPeer, 0, "probe the machine"};
    return {};
}

// Memory shared with the children, all of it there at once and gone with the object.
class SharedMemory {
  public:
    explicit SharedMemory(Bytes bytes) : bytes_(bytes) {
        void* memory =
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        base_ = memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
    }
    ~SharedMemory() {
        if (base_ != nullptr) ::munmap(base_, bytes_);
    }
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;
    std::byte* base() const noexcept { return base_; }

  private:
    Bytes bytes_;
    std::byte* base_ = nullptr;
};

CacheCurve curve_of(const Board& board, const std::vector<Bytes>& footprints, int workers) {
    CacheCurve curve;
    for (std::size_t point = 0; point < footprints.size(); ++point) {
        const auto slowest = [&](const double(&measured)[kMaxWorkers][kMaxPoints]) {
            double most = 0;
            for (int worker = 0; worker < workers; ++worker) {
                most = std::max(most, measured[worker][point]);
            }
            return most;
        };
        const double kept = slowest(board.kept);
        // In these copies half of the touches were of bytes that another core had before.
        const double handed = std::max(2 * slowest(board.handed) - kept, kept);
        const double given = std::max(2 * slowest(board.given) - kept, kept);
        curve.points.push_back(
            {static_cast<double>(footprints[point]), kept, handed, given, slowest(board.streamed)});
    }
    return curve;
}

}  // namespace

Result<MachineLimits> probe_machine(const ProbeOptions& options) {
    MachineLimits limits;
    limits.cores = usable_cores();
    const int workers = std::clamp(limits.cores, 1, kMaxWorkers);
    std::vector<Bytes> footprints;
    for (Bytes bytes = options.least; bytes <= options.most; bytes *= 2)
        // Doubling, since a cache's size is felt on a logarithmic scale.
        footprints.push_back(bytes);
    if (footprints.empty() || footprints.size() > kMaxPoints) {
        return Error{Errc::kInvalid, 0, "probe: sizes out of range"};
    }
    const SharedMemory words(sizeof(Board));
    // Every worker has a source and a destination of half the largest footprint each.
    const SharedMemory memory(options.most * static_cast<Bytes>(workers));
    if (words.base() == nullptr || memory.base() == nullptr) {
        return Error{Errc::kNoMemory, 0, "probe: memory for the workers"};
    }
    Board& board = *new (words.base()) Board;
    FABRIC_TRY_VOID(in_processes(workers, [&](int index) {
        Worker(board, memory.base(), options.most / 2, index, workers, options).run(footprints);
    }));
    limits.word = board.exchange;
    limits.cache = curve_of(board, footprints, workers);
    // Both probes use these words, and each begins to count at one.
    for (SharedWord& word : board.ping) word.value = 0;
    FABRIC_TRY_VOID(in_processes(2, [&](int index) { yield_ping_pong(board, index); }));
    limits.switch_cost = board.yield_trip;
    return limits;
}

Topology machine_topology(const MachineLimits& limits, int devices) {
    Topology topology;
    topology.name = "this machine";
    topology.line_latency = limits.word;
    topology.switch_cost = limits.switch_cost;
    topology.cache = limits.cache;
    Node host;
    host.name = "host[0]";
    host.kind = NodeKind::kHost;
    host.cores = limits.cores;
    topology.nodes.push_back(host);
    // One node more than devices: the memory, which holds all buffers.
    for (int i = 0; i <= devices; ++i) {
        Node node;
        node.kind = i == devices ? NodeKind::kPool : NodeKind::kDevice;
        node.name = i == devices ? "memory[0]" : "core[" + std::to_string(i) + "]";
        node.parent = 0;
        // The curve says what touches cost; these only have to be there.
        node.read = node.write = 1e12;
        topology.nodes.push_back(node);
    }
    return topology;
}

}  // namespace emu
