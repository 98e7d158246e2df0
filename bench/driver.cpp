#include "bench/driver.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>
#include <sstream>

#include "bench/pattern.hpp"

namespace bench {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Whole huge pages, so that the kernel can use them: a buffer that ends in small ones is slower by
// its end.
std::size_t round_to_huge(std::size_t bytes) {
    return (bytes + kHugePage - 1) & ~(kHugePage - 1);
}

// The same clock on all ranks; only differences of one rank are used.
std::int64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// The two pipes of one rank, one line at a time.
class Control {
  public:
    // Both ends block until the orchestrator opens its own, which is how the ranks find together.
    Control(const std::string& folder, const std::string& name, int rank) {
        const std::string base = folder + "/" + name + "." + std::to_string(rank);
        in_ = open((base + ".in").c_str(), O_RDONLY | O_CLOEXEC);
        out_ = open((base + ".out").c_str(), O_WRONLY | O_CLOEXEC);
        if (in_ < 0 || out_ < 0) die("cannot open the control pipes " + base);
    }

    /// The next line, or nothing when the orchestrator is gone. Sleeps in read(): no CPU is used.
    /// A letter at a time: orders are short and rare, and nothing is read ahead of a turn.
    std::optional<std::string> read_line() {
        std::string line;
        char letter = 0;
        while (read(in_, &letter, 1) == 1) {
            if (letter == '\n') return line;
            line += letter;
        }
        return std::nullopt;
    }

    void write_line(const std::string& line) {
        const std::string text = line + "\n";
        if (write(out_, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
            die("the orchestrator is gone");
    }

  private:
    int in_ = -1;
    int out_ = -1;
};

struct Turn {
    Case wanted;
    std::size_t warmup = 0;
    std::size_t iterations = 0;
    bool check = false;
};

Turn parse_turn(std::istringstream& words) {
    Turn turn;
    std::string collective, place, memory;
    words >> collective >> turn.wanted.bytes >> place >> memory >> turn.wanted.algorithm >>
        turn.wanted.pairs >> turn.warmup >> turn.iterations >> turn.check;
    // The orchestrator is of the same version: what is not understood is a bug, and ends the rank.
    if (!words) die("cannot read the order of the orchestrator");
    const char* const kNames[] = {"allreduce", "all_gather", "reduce_scatter", "broadcast",
                                  "barrier",   "send_recv",  "scan",           "step"};
    for (std::size_t i = 0; i < std::size(kNames); ++i)
        if (collective == kNames[i]) turn.wanted.collective = static_cast<Collective>(i);
    turn.wanted.place = place == "in"       ? Place::kIn
                        : place == "shared" ? Place::kShared
                                            : Place::kOut;
    turn.wanted.memory = memory == "arena" ? Memory::kArena : Memory::kHeap;
    return turn;
}

/// The buffers of the current case and the loop over it.
class Stand {
  public:
    explicit Stand(Contender& contender) : contender_(contender) {}
    ~Stand() { drop(); }

    std::string measure(const Turn& turn) {
        const std::string why = refusal(turn.wanted);
        if (!why.empty()) return "unsupported " + why;
        // Cases that repeat keep their buffers: their pages are there, as in a job that trains.
        const bool is_new = !(turn.wanted == case_) || !holds_;
        if (is_new) set_up(turn.wanted);
        // Checked in the same buffers and before they are timed, so that no wrong result gets a
        // time.
        if (turn.check) {
            const std::string wrong = check();
            if (!wrong.empty()) return "wrong " + wrong;
        }
        return "time " + std::to_string(time_batch(turn));
    }

    void drop() {
        if (!holds_) return;
        holds_ = false;
        tensors_.clear();
        contender_.forget();
        for (const Block& block : blocks_)
            contender_.release(block.memory, block.start, block.bytes);
        if (shared_ != nullptr) contender_.release_shared(shared_, case_.bytes);
        blocks_.clear();
        pairs_.clear();
        shared_ = nullptr;
    }

  private:
    struct Block {
        void* start;
        std::size_t bytes;
        Memory memory;
    };

    // Whole parts only: what to do with a rest differs between the libraries.
    std::string refusal(const Case& wanted) const {
        const std::size_t parts = static_cast<std::size_t>(contender_.world()) * sizeof(float);
        const bool has_parts = wanted.collective == Collective::kAllGather ||
                               wanted.collective == Collective::kReduceScatter;
        if (has_parts && wanted.bytes % parts != 0) return "not a whole element per rank";
        if (wanted.collective == Collective::kSendRecv && contender_.world() % 2 != 0)
            return "a rank would have no partner";
        const bool steps = wanted.collective == Collective::kStep;
        if (steps && wanted.place == Place::kOut) return "a step is in place";
        if (steps && wanted.place == Place::kIn && !has_local_step()) return "no step";
        return contender_.refuses(steps && wanted.place == Place::kIn ? allreduce_of(wanted)
                                                                      : wanted);
    }

    /// What the ranks do together in a step that each of them ends alone.
    static Case allreduce_of(const Case& step) {
        Case inner = step;
        inner.collective = Collective::kAllreduce;
        return inner;
    }

    void set_up(const Case& wanted) {
        // The last case's memory first, or a large case would need twice as much.
        drop();
        case_ = wanted;
        holds_ = true;
        steps_ = 0;
        if (wanted.collective == Collective::kStep) return set_up_step();
        if (wanted.place == Place::kShared) shared_ = contender_.allocate_shared(wanted.bytes);
        for (int i = 0; i < wanted.pairs; ++i) pairs_.push_back(make_pair());
        contender_.prepare(case_, pairs_);
    }

    void set_up_step() {
        if (case_.place == Place::kShared) {
            tensors_ = contender_.prepare_step(case_);
            return;
        }
        const std::size_t count = case_.bytes / sizeof(float);
        float* gradient = take(count);
        pairs_.push_back({gradient, gradient, count, count});
        contender_.prepare(allreduce_of(case_), pairs_);
        // Parameters and state are the rank's own, wherever the gradient has to be.
        float* own[3];
        for (float*& array : own) {
            array = take(count, Memory::kHeap);
        }
        tensors_ = {{gradient, own[0], own[1], own[2], count}};
    }

    float* take(std::size_t count) { return take(count, case_.memory); }

    float* take(std::size_t count, Memory memory) {
        const std::size_t bytes = count * sizeof(float);
        void* block = contender_.allocate(memory, bytes);
        contender_.clear(memory, block, bytes);
        blocks_.push_back({block, bytes, memory});
        return static_cast<float*>(block);
    }

    void run(std::size_t pair) {
        contender_.run(pair);
        if (case_.collective == Collective::kStep && case_.place == Place::kIn)
            local_step(tensors_[0], contender_.world(), ++steps_);
    }

    // The same layout for all contenders, whatever they call their arguments.
    Buffers make_pair() {
        if (case_.collective == Collective::kBarrier) return {};
        const std::size_t whole = case_.bytes / sizeof(float);
        const std::size_t part = whole / static_cast<std::size_t>(contender_.world());
        const std::size_t offset = part * static_cast<std::size_t>(contender_.rank());
        const bool in_place = case_.place == Place::kIn;
        switch (case_.collective) {
            case Collective::kAllGather: {
                float* output = take(whole);
                return {in_place ? output + offset : take(part), output, part, whole};
            }
            case Collective::kReduceScatter: {
                float* input = take(whole);
                // Where the result goes differs by library, and with it the place that is checked.
                float* own = contender_.in_place_result_at_start() ? input : input + offset;
                return {input, in_place ? own : take(part), whole, part};
            }
            // One buffer, sent by the root and overwritten by the others.
            case Collective::kBroadcast: {
                float* buffer = take(whole);
                return {buffer, buffer, whole, whole};
            }
            default: {
                float* input = take(whole);
                float* output = static_cast<float*>(shared_);
                if (output == nullptr) output = in_place ? input : take(whole);
                return {input, output, whole, whole};
            }
        }
    }

    /// Runs each pair once on known values and looks at every element of the result.
    std::string check() {
        if (case_.collective == Collective::kStep) return check_step();
        std::string wrong;
        for (std::size_t i = 0; i < pairs_.size(); ++i) {
            fill(case_.collective, contender_.rank(), pairs_[i]);
            contender_.barrier();  // no rank starts on a shared output while another still reads it
            contender_.run(i);
            contender_.finish();
            contender_.barrier();
            const std::string here =
                verify(case_.collective, contender_.rank(), contender_.world(), pairs_[i]);
            if (wrong.empty()) wrong = here;
            contender_.barrier();
            // In place, sums would grow without end over the iterations: go on with zeros.
            if (pairs_[i].input != nullptr)
                std::memset(pairs_[i].input, 0, pairs_[i].input_count * sizeof(float));
        }
        return wrong;
    }

    /// The first step from zeros, looked at by every rank, and zeros again: a gradient of zeros
    /// stays one however often it is summed, and no state comes near the numbers that are slow.
    std::string check_step() {
        fill_step(contender_.rank(), tensors_);
        contender_.barrier();
        run(0);
        contender_.barrier();
        const std::string wrong = verify_step(contender_.world(), tensors_);
        contender_.barrier();
        const bool owns = case_.place == Place::kIn || contender_.rank() == 0;
        for (const StepTensor& tensor : tensors_) {
            std::memset(tensor.gradient, 0, tensor.count * sizeof(float));
            for (float* array : {tensor.values, tensor.first, tensor.second})
                if (owns) std::memset(array, 0, tensor.count * sizeof(float));
        }
        contender_.barrier();
        return wrong;
    }

    // All ranks begin together and end together; the time is this rank's own, and the slowest one
    // counts, see rounds.py.
    std::int64_t time_batch(const Turn& turn) {
        const std::size_t pairs = pairs_.empty() ? 1 : pairs_.size();
        contender_.barrier();
        for (std::size_t i = 0; i < turn.warmup; ++i) run(i % pairs);
        contender_.finish();
        contender_.barrier();
        const std::int64_t start = now_ns();
        // A counter that is compared and not a remainder, which would be part of what is measured.
        std::size_t pair = 0;
        for (std::size_t i = 0; i < turn.iterations; ++i) {
            run(pair);
            if (++pair == pairs) pair = 0;
        }
        contender_.finish();
        const std::int64_t length = now_ns() - start;
        // A rank that went to sleep now could still owe progress to the others.
        contender_.barrier();
        return length;
    }

    Contender& contender_;
    Case case_;
    std::vector<Buffers> pairs_;
    std::vector<Block> blocks_;
    std::vector<StepTensor> tensors_;
    void* shared_ = nullptr;
    std::uint64_t steps_ = 0;  // of this case, by local_step()
    bool holds_ = false;       // the memory of case_
};

}  // namespace

void* Contender::allocate(Memory memory, std::size_t bytes) {
    if (memory != Memory::kHeap) die("this contender has no arena");
    // Aligned for the widest stores, and to what madvise() can work on.
    const std::size_t rounded = round_to_huge(bytes);
    void* block = std::aligned_alloc(kHugePage, rounded);
    if (block == nullptr) die("out of memory for the buffers");
    madvise(block, rounded, MADV_HUGEPAGE);  // advice only: refused is as good as ignored
    return block;
}

void Contender::release(Memory /*memory*/, void* block, std::size_t /*bytes*/) {
    std::free(block);
}

void Contender::clear(Memory /*memory*/, void* block, std::size_t bytes) {
    std::memset(block, 0, bytes);
}

void* Contender::allocate_shared(std::size_t /*bytes*/) {
    die("this contender shares no result");
}

void Contender::release_shared(void* /*block*/, std::size_t /*bytes*/) {}

std::vector<StepTensor> Contender::prepare_step(const Case& /*wanted*/) {
    die("this contender shares no parameters");
}

int serve(Contender& contender, const std::string& control, const std::string& name) {
    Control pipe(control, name, contender.rank());
    pipe.write_line("hello " + std::to_string(getpid()) + " " + contender.version());
    // Destroyed before the contender: its buffers are the contender's memory.
    Stand stand(contender);
    // The end of the pipe is the end of the orchestrator: nothing is left to measure for.
    while (const auto line = pipe.read_line()) {
        std::istringstream words(*line);
        std::string verb;
        words >> verb;
        if (verb == "quit") break;
        if (verb == "drop") {
            stand.drop();
            pipe.write_line("dropped");
        } else if (verb == "measure") {
            pipe.write_line(stand.measure(parse_turn(words)));
        } else {
            die("unknown order: " + *line);
        }
    }
    return 0;
}

int run_ranks(int world, const std::function<int(int rank)>& body) {
    int rank = 0;
    const pid_t first = getpid();
    for (int child = 1; child < world && rank == 0; ++child) {
        const pid_t forked = fork();
        // One rank too few would leave the others in their first barrier for ever.
        if (forked < 0) die("cannot fork the ranks");
        if (forked == 0) rank = child;
    }
    // Should the first rank die, nothing else ends the others.
    if (rank != 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    // It may have died before that line, and then no signal comes.
    if (rank != 0 && getppid() != first) return 1;
    const int result = body(rank);
    // The others end by the end of their own pipes.
    while (rank == 0 && wait(nullptr) > 0) {
    }
    return result;
}

void die(const std::string& what) {
    std::fprintf(stderr, "bench: %s\n", what.c_str());
    std::exit(1);
}

void pin_to_core(int number) {
    cpu_set_t usable;
    CPU_ZERO(&usable);
    if (sched_getaffinity(0, sizeof usable, &usable) != 0) die("cannot read the cores to use");
    int left = number % CPU_COUNT(&usable);
    int core = 0;
    while (!CPU_ISSET(core, &usable) || left-- > 0) ++core;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) die("cannot pin the rank");
}

// The first one counts. Values are not looked at: std::stoi() of a word ends the rank, which is as
// good as a message to the orchestrator that started it.
std::string option(int argc, char** argv, const std::string& name, const char* fallback) {
    for (int i = 1; i + 1 < argc; ++i)
        if (name == argv[i]) return argv[i + 1];
    if (fallback == nullptr) die("option " + name + " is missing");
    return fallback;
}

}  // namespace bench
