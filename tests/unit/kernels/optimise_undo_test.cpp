#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <thread>

#include "tests/support/children.hpp"
#include "tests/support/skip.hpp"
#include "tests/unit/kernels/optimise_arrays.hpp"

using namespace kernels_test;
using kernels::Rule;
using test_support::Child;

namespace {

constexpr std::uint64_t kBase = 1000;  // of the log: an element's place in its shard
constexpr int kArrays = 4;             // parameters and three states
constexpr int kEnded = 2, kUntraced = 3;

// Arrays and log of a step in memory that a child shares with its parent, and what they were.
class SharedStep {
  public:
    SharedStep(Rule rule, std::size_t count) : count_(count) {
        const std::size_t floats = count * (2 * kArrays + 1);
        bytes_ = sizeof(Words) + floats * sizeof(float);
        memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        REQUIRE(memory_ != MAP_FAILED);
        new (memory_) Words;
        Random random(5);
        for (std::size_t i = 0; i < floats; ++i) {
            array(0)[i] = 0.5F + static_cast<float>(random() >> 40) * 0x1p-24F;
        }
        old_.assign(array(0), array(kArrays));
        restored_ = old_;
        const kernels::RuleRow& row = kernels::row_of(rule);
        const bool has[] = {true, row.first, row.second, row.maximum};
        const auto states = [&](float* (SharedStep::*of)(int), int i) {
            return has[i] ? (this->*of)(i) : nullptr;
        };
        undo_ = {&words().logged,
                 kBase,
                 log(0),
                 states(&SharedStep::log, 1),
                 states(&SharedStep::log, 2),
                 states(&SharedStep::log, 3)};
        gradient_ = array(2 * kArrays);
        job_.rule = rule;
        job_.factors = kernels::make_step_factors(rule, kernels::Hyper{.learning_rate = 0.1}, 2);
        job_.gradients = &gradient_;
        job_.gradient_count = 1;
        job_.parameters = array(0);
        job_.first = states(&SharedStep::array, 1);
        job_.second = states(&SharedStep::array, 2);
        job_.maximum = states(&SharedStep::array, 3);
        job_.count = count;
        job_.undo = &undo_;
    }
    ~SharedStep() { munmap(memory_, bytes_); }
    SharedStep(const SharedStep&) = delete;
    SharedStep& operator=(const SharedStep&) = delete;

    struct Words {
        std::atomic<std::uint64_t> logged{kBase};
        std::atomic<int> state{0};  // 1: it begins; kEnded; kUntraced: it can't be traced
    };
    Words& words() { return *static_cast<Words*>(memory_); }
    const kernels::OptimiseJob& job() const { return job_; }
    std::uint64_t logged() { return words().logged.load(std::memory_order_acquire) - kBase; }

    void reset() {
        std::copy(old_.begin(), old_.end(), array(0));
        words().logged.store(kBase, std::memory_order_relaxed);
        words().state.store(0, std::memory_order_relaxed);
    }

    // Whether undo() of the memory as it is would give the old values. Alters none of it.
    bool can_be_undone() {
        std::copy(array(0), array(kArrays), restored_.begin());
        kernels::OptimiseJob job = job_;
        float* scratch = restored_.data();
        job.parameters = scratch;
        if (job.first != nullptr) job.first = scratch + count_;
        if (job.second != nullptr) job.second = scratch + 2 * count_;
        if (job.maximum != nullptr) job.maximum = scratch + 3 * count_;
        kernels::undo(job);
        return std::memcmp(restored_.data(), old_.data(), old_.size() * sizeof(float)) == 0;
    }
    bool is_old() { return std::memcmp(array(0), old_.data(), old_.size() * sizeof(float)) == 0; }

    float* array(int which) {
        return reinterpret_cast<float*>(static_cast<char*>(memory_) + sizeof(Words)) +
               static_cast<std::size_t>(which) * count_;
    }
    float* log(int which) { return array(kArrays + which); }

  private:
    std::size_t count_;
    std::size_t bytes_ = 0;
    void* memory_ = nullptr;
    std::vector<float> old_, restored_;
    kernels::UndoLog undo_;
    kernels::OptimiseJob job_;
    const void* gradient_ = nullptr;
};

// Runs the step in a child, one instruction at a time, and looks at its memory after each. -1: the
// step can't be undone after one of them; -2: processes can't be traced here.
int count_instants(const kernels::KernelSet& set, SharedStep& step) {
    std::atomic<int>& state = step.words().state;
    Child child([&] {
        const bool traced = ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0;
        state.store(traced ? 1 : kUntraced, std::memory_order_release);
        if (!traced) return 1;
        ::raise(SIGSTOP);
        kernels::optimise_with(set, step.job());
        state.store(kEnded, std::memory_order_release);
        return 0;
    });
    while (state.load(std::memory_order_acquire) == 0) std::this_thread::yield();
    if (state.load(std::memory_order_acquire) == kUntraced) return -2;
    int instants = 0;
    bool undoable = true;
    while (true) {
        int status = 0;
        ::waitpid(child.pid(), &status, 0);
        const bool stopped = WIFSTOPPED(status);
        if (!stopped || (WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP)) return -1;
        undoable = undoable && step.can_be_undone();
        ++instants;
        if (state.load(std::memory_order_acquire) == kEnded) break;
        ::ptrace(PTRACE_SINGLESTEP, child.pid(), nullptr, nullptr);
    }
    ::ptrace(PTRACE_DETACH, child.pid(), nullptr, nullptr);
    return child.wait() == 0 && undoable ? instants : -1;
}

}  // namespace

TEST_SUITE("kernels.optimise_undo") {
    TEST_CASE("a step that ended within any tile is undone, whichever arrays it had reached") {
        for (const kernels::KernelSet* set : available_sets()) {
            for (const Rule rule : kRules) {
                constexpr std::size_t kCount = 600;
                SharedStep step(rule, kCount);
                kernels::optimise_with(*set, step.job());
                CHECK(step.logged() == kCount);
                CHECK_FALSE(step.is_old());
                const std::vector<float> moved(step.array(0), step.array(kArrays));
                const std::vector<float> log(step.log(0), step.log(kArrays));
                for (std::size_t logged = 0; logged <= kCount; logged += 50) {
                    // Of what is logged the last elements are not altered yet, in some arrays more.
                    for (std::size_t behind = 0; behind <= logged; behind += 25) {
                        step.reset();
                        std::copy(log.begin(), log.end(), step.log(0));
                        step.words().logged.store(kBase + logged, std::memory_order_relaxed);
                        for (std::size_t array = 0; array < kArrays; ++array) {
                            const std::size_t altered = logged - behind * (array % 2);
                            const auto from = moved.begin() + array * kCount;
                            std::copy_n(from, altered, step.array(static_cast<int>(array)));
                            std::fill_n(step.log(static_cast<int>(array)) + logged, kCount - logged,
                                        -1.0F);
                        }
                        kernels::undo(step.job());
                        CHECK(step.is_old());
                        kernels::undo(step.job());
                        CHECK(step.is_old());
                    }
                }
            }
        }
    }

    TEST_CASE("a log of before the job, or beyond it, puts back what belongs to the job alone") {
        SharedStep step(Rule::kAdamW, 100);
        kernels::optimise_with(*kernels::kernel_set(0), step.job());
        const std::vector<float> moved(step.array(0), step.array(kArrays));
        step.words().logged.store(kBase - 1, std::memory_order_relaxed);
        kernels::undo(step.job());
        CHECK(std::equal(moved.begin(), moved.end(), step.array(0)));
        step.words().logged.store(kBase + 5000, std::memory_order_relaxed);
        kernels::undo(step.job());
        CHECK(step.is_old());
    }

    TEST_CASE("a step can be undone after each of its instructions") {
        for (const kernels::KernelSet* set : available_sets()) {
            for (const Rule rule : kRules) {
                SharedStep step(rule, 300);
                const int instants = count_instants(*set, step);
                if (instants == -2) return test_support::skip("processes cannot be traced here");
                CAPTURE(set->name);
                CAPTURE(kernels::row_of(rule).name);
                CHECK(instants > 100);
                CHECK_FALSE(step.is_old());
            }
        }
    }

    TEST_CASE("a process killed in the middle of a step leaves one that can be undone") {
        constexpr std::size_t kCount = 64 * 1024;
        constexpr int kKills = 200;
        SharedStep step(Rule::kMaxAdaBelief, kCount);
        Random random(11);
        int within = 0, wrong = 0;
        for (int i = 0; i < kKills; ++i) {
            step.reset();
            const auto sets = available_sets();
            const kernels::KernelSet& set = *sets[static_cast<std::size_t>(i) % sets.size()];
            const std::uint64_t until = random() % kCount;
            Child child([&] {
                step.words().state.store(1, std::memory_order_release);
                kernels::optimise_with(set, step.job());
                return 0;
            });
            while (step.words().state.load(std::memory_order_acquire) == 0 ||
                   step.logged() < until) {
                std::this_thread::yield();
            }
            child.kill();
            const std::uint64_t logged = step.logged();
            within += logged > 0 && logged < kCount ? 1 : 0;
            if (!step.can_be_undone()) ++wrong;
            kernels::undo(step.job());
            if (!step.is_old()) ++wrong;
        }
        CHECK(wrong == 0);
        MESSAGE(within << " of " << kKills << " were killed in the middle");
    }
}
