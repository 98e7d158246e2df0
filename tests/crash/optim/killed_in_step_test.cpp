// A rank is killed at each named point of a step, at every passage, or at any instant: for the
// survivors the step has happened as a whole, the dead rank's gradient included, or not at all;
// they know which, agree on it, and go on. The model moves one array by the formula, in doubles.

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/optim/parameter_set.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using namespace test_support;

namespace {

constexpr int kWorld = 3;
constexpr int kElements = 9000;  // three logs for each of three shards

TimePoint in_a_minute() {
    return Clock::now() + std::chrono::seconds(60);
}

struct Shared {
    std::atomic<std::uint64_t> applied;     // steps of which a survivor knows
    std::atomic<std::uint64_t> recoveries;  // that survivors came through
    std::atomic<std::uint64_t> finished;    // of these: the step was one of those applied
    std::atomic<int> at_step;               // victims that are killed from outside are in it
    std::atomic<bool> dead[kWorld];         // as the parent finds
    std::atomic<int> joins[kWorld];         // the size of the group that the rank is about to join
};

class Memory {
  public:
    explicit Memory(Bytes bytes) : bytes_(bytes) {
        void* memory =
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        FABRIC_CHECK(memory != MAP_FAILED);
        data = static_cast<std::byte*>(memory);
    }
    ~Memory() { ::munmap(data, bytes_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    std::byte* data;

  private:
    Bytes bytes_;
};

struct Story {
    std::string fault;         // of the first victim: "" when it is killed from outside
    std::string second_fault;  // of the second one, in recovery; "": there is none
    bool clips = false;
    int victim = 1;
    useconds_t kill_after = 0;
};

ParameterSpec spec() {
    ParameterSpec made;
    made.parameters = {{"w", {kElements}, 0}};
    made.slots = kWorld;
    return made;
}

StepCall call_of(const Story& story) {
    StepCall call;
    call.hyper.resize(1);
    call.hyper[0].learning_rate = 0.01;
    call.hyper[0].weight_decay = 0.01;
    call.clip_norm = story.clips ? 4 : 0;
    call.deadline = in_a_minute();
    return call;
}

float gradient_of(int slot, std::uint64_t step, int index) {
    return static_cast<float>(
        std::sin(0.37 * index + 1.7 * slot + 0.61 * static_cast<double>(step)));
}

struct Model {
    std::vector<double> p = std::vector<double>(kElements, 1), m = std::vector<double>(kElements),
                        v = std::vector<double>(kElements);
    std::uint64_t steps = 0;

    // `number`: of the step's gradients.
    void step(const std::vector<int>& slots, std::uint64_t number, const StepCall& call) {
        const kernels::Hyper& h = call.hyper[0];
        std::vector<double> g(kElements);
        double square = 0;
        for (int i = 0; i < kElements; ++i) {
            double sum = 0;
            for (const int slot : slots) sum += gradient_of(slot, number, i);
            g[i] = sum / static_cast<double>(slots.size());
            square += g[i] * g[i];
        }
        const double clip =
            call.clip_norm > 0 ? std::min(1.0, call.clip_norm / (std::sqrt(square) + 1e-6)) : 1;
        ++steps;
        for (int i = 0; i < kElements; ++i) {
            const double x = g[i] * clip;
            m[i] = h.beta1 * m[i] + (1 - h.beta1) * x;
            v[i] = h.beta2 * v[i] + (1 - h.beta2) * x * x;
            const double mean = m[i] / (1 - std::pow(h.beta1, static_cast<double>(steps)));
            const double spread = v[i] / (1 - std::pow(h.beta2, static_cast<double>(steps)));
            p[i] = p[i] * (1 - h.learning_rate * h.weight_decay) -
                   h.learning_rate * mean / (std::sqrt(spread) + h.epsilon);
        }
    }
};

bool say(int rank, const char* what) {
    std::fprintf(stderr, "rank %d: %s\n", rank, what);
    return false;
}

bool is_like(const ParameterSet& set, const Model& model, int rank) {
    for (int i = 0; i < kElements; ++i) {
        const double off = std::abs(static_cast<double>(set.values(0)[i]) - model.p[i]);
        const double m_off = std::abs(static_cast<double>(set.state(0, 0)[i]) - model.m[i]);
        const double v_off = std::abs(static_cast<double>(set.state(0, 1)[i]) - model.v[i]);
        if (off < 1e-5 && m_off < 1e-5 && v_off < 1e-5) continue;
        std::fprintf(stderr, "rank %d, after %llu steps: element %d is off by %g, %g, %g\n", rank,
                     static_cast<unsigned long long>(model.steps), i, off, m_off, v_off);
        return false;
    }
    return true;
}

// The groups that ranks may fall back to: that of all, and those of survivors, in shared memory.
struct Stage {
    explicit Stage(const Story& story_)
        : story(story_),
          all(kWorld, 64 * kKiB, {}),
          two(kWorld - 1, 64 * kKiB, {}),
          one(kWorld - 2, 64 * kKiB, {}),
          memory(ParameterLayout::of(spec()).total),
          board_memory(sizeof(Shared)),
          board(new (board_memory.data) Shared{}) {
        ParameterSet::format(memory.data, spec());
    }
    Story story;
    TestArena all, two, one;
    Memory memory;
    Memory board_memory;
    Shared* board;
};

// Those that live, once all of them are about to join a smaller group.
std::vector<int> survivors(Shared& board, const std::vector<int>& before, int rank) {
    while (true) {
        std::vector<int> left;
        for (const int slot : before) {
            if (!board.dead[slot]) left.push_back(slot);
        }
        const int size = static_cast<int>(left.size());
        board.joins[rank] = size;
        bool all = left.size() < before.size();
        for (const int slot : left) all = all && board.joins[slot] == size;
        if (all) return left;
        std::this_thread::yield();
    }
}

bool play(Stage& stage, int rank) {
    const Story& story = stage.story;
    const bool victim = rank == story.victim;
    const int second = (story.victim + 1) % kWorld;
    if (victim && !story.fault.empty()) fault::arm(story.fault.c_str());
    if (rank == second && !story.second_fault.empty()) fault::arm(story.second_fault.c_str());
    const auto deadline = in_a_minute();
    auto group = Group::attach(stage.all.place(rank), deadline);
    if (!group.ok()) return say(rank, "attach");
    std::vector<std::unique_ptr<Group>> groups;
    groups.push_back(std::move(*group));
    auto made = ParameterSet::attach(*groups.back(), {}, stage.memory.data,
                                     ParameterLayout::of(spec()).total, spec(), deadline);
    if (!made.ok()) return say(rank, describe(made.error()).c_str());
    ParameterSet& set = **made;
    if (rank == 0) std::fill_n(set.values(0), kElements, 1.0f);
    Model model;
    std::vector<int> slots{0, 1, 2};
    std::vector<int> members = slots;  // of the last group that the set went over to
    const auto end = [&] { return set.steps() >= 12 && slots.size() < kWorld; };
    for (std::uint64_t number = 0; !end(); ++number) {
        if (number > 100'000) return say(rank, "the fault never fired");
        auto* gradient = reinterpret_cast<float*>(set.gradient(0));
        for (int i = 0; i < kElements; ++i) gradient[i] = gradient_of(rank, number, i);
        const StepCall call = call_of(story);
        if (victim && number == 5) stage.board->at_step = 1;
        const auto stepped = set.step(call);
        if (stepped.ok()) {
            model.step(slots, number, call);
            if (set.steps() != model.steps) return say(rank, "wrong count of steps");
            continue;
        }
        if (stepped.error().code != Errc::kPeer)
            return say(rank, describe(stepped.error()).c_str());
        // As a shrink does: those that live form a new group. Twice, when another one dies.
        while (true) {
            const std::vector<int> left = survivors(*stage.board, slots, rank);
            const std::size_t next_world = left.size();
            TestArena& arena = next_world == 2 ? stage.two : stage.one;
            int new_rank = 0;
            while (left[static_cast<std::size_t>(new_rank)] != rank) ++new_rank;
            auto smaller = Group::attach(arena.place(new_rank), in_a_minute());
            if (!smaller.ok()) return say(rank, "attach to the smaller group");
            groups.push_back(std::move(*smaller));
            const auto recovered = set.recover(*groups.back(), in_a_minute());
            if (!recovered.ok()) {
                if (recovered.error().code != Errc::kPeer) {
                    return say(rank, describe(recovered.error()).c_str());
                }
                slots = left;
                continue;
            }
            ++stage.board->recoveries;
            if (recovered->applied) {
                ++stage.board->finished;
                model.step(members, number, call);
            }
            if (recovered->step != model.steps) return say(rank, "wrong count after recovery");
            slots = left;
            members = left;
            break;
        }
        if (!is_like(set, model, rank)) return say(rank, "after recovery");
    }
    // Others may still wait for this rank's last words.
    Call barrier;
    barrier.kind = Kind::kBarrier;
    barrier.deadline = in_a_minute();
    if (!groups.back()->run(barrier).ok()) return say(rank, "last barrier");
    return is_like(set, model, rank);
}

// Steps until it is killed, or fails because of another one's death; then it just ends.
void step_on(Stage& stage, int rank, const char* fault) {
    if (fault != nullptr) fault::arm(fault);
    const auto group = Group::attach(stage.all.place(rank), in_a_minute());
    if (!group.ok()) return;
    const auto set = ParameterSet::attach(**group, {}, stage.memory.data,
                                          ParameterLayout::of(spec()).total, spec(), in_a_minute());
    if (!set.ok()) return;
    if (rank == 0) std::fill_n((*set)->values(0), kElements, 1.0f);
    for (std::uint64_t number = 0; number < 10; ++number) {
        auto* gradient = reinterpret_cast<float*>((*set)->gradient(0));
        for (int i = 0; i < kElements; ++i) gradient[i] = gradient_of(rank, number, i);
        if (!(*set)->step(call_of(stage.story)).ok()) return;
    }
}

struct Outcome {
    int failures = 0;
    int killed = 0;
    std::uint64_t finished = 0;
};

Outcome run(const Story& story) {
    Stage stage(story);
    std::fflush(nullptr);
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < kWorld; ++rank) {
        const pid_t child = ::fork();
        FABRIC_CHECK(child >= 0);
        if (child == 0) ::_exit(play(stage, rank) ? 0 : 1);
        ranks.push_back(child);
    }
    if (story.fault.empty()) {
        while (stage.board->at_step.load() == 0) std::this_thread::yield();
        ::usleep(story.kill_after);
        ::kill(ranks[static_cast<std::size_t>(story.victim)], SIGKILL);
    }
    Outcome outcome;
    for (int ended = 0; ended < kWorld; ++ended) {
        int status = 0;
        const pid_t child = ::waitpid(-1, &status, 0);
        const auto rank = std::ranges::find(ranks, child) - ranks.begin();
        FABRIC_CHECK(rank < kWorld);
        const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        stage.board->dead[rank] = killed;
        outcome.killed += killed ? 1 : 0;
        outcome.failures += !killed && status != 0 ? 1 : 0;
    }
    outcome.finished = stage.board->finished.load();
    return outcome;
}

}  // namespace

TEST_SUITE("crash.optim.killed_in_step") {
    TEST_CASE("at each point of a step, at every passage: all before or all after") {
        struct Point {
            const char* name;
            int passages;
            bool clips;
            bool after;  // the survivors have to finish the step
        };
        const Point points[] = {
            {"step.begin", 2, false, false},  {"step.ready", 2, false, true},
            {"step.chunk", 6, false, true},   {"step.shard", 2, false, true},
            {"step.begin", 2, true, false},   {"step.ready", 2, true, false},
            {"step.measured", 2, true, true}, {"step.chunk", 4, true, true},
        };
        for (const Point& point : points) {
            for (int passage = 1; passage <= point.passages; ++passage) {
                for (const int victim : {0, 1, 2}) {
                    Story story;
                    story.fault = std::string(point.name) + ":kill:" + std::to_string(passage);
                    story.clips = point.clips;
                    story.victim = victim;
                    CAPTURE(story.fault);
                    CAPTURE(victim);
                    const Outcome outcome = run(story);
                    CHECK(outcome.failures == 0);
                    CHECK(outcome.killed == 1);
                    CHECK(outcome.finished == (point.after ? 2u : 0u));
                }
            }
        }
    }

    TEST_CASE("at any instant") {
        int finished = 0;
        for (int round = 0; round < 60; ++round) {
            Story story;
            story.clips = round % 3 == 0;
            story.victim = round % kWorld;
            story.kill_after = static_cast<useconds_t>((round * 37) % 400);
            CAPTURE(round);
            const Outcome outcome = run(story);
            CHECK(outcome.failures == 0);
            CHECK(outcome.killed == 1);
            finished += outcome.finished != 0 ? 1 : 0;
        }
        MESSAGE(finished, " of 60 steps were finished by survivors");
    }

    TEST_CASE("a survivor that dies while it recovers: the last one finishes for both") {
        struct Second {
            const char* point;
            int passage;
        };
        const Second seconds[] = {{"recover.agreed", 1}, {"recover.shard", 1},
                                  {"recover.shard", 2},  {"step.chunk", 4},
                                  {"step.chunk", 6},     {"recover.finished", 1}};
        for (const char* first : {"step.ready:kill:2", "step.chunk:kill:3", "step.begin:kill:2"}) {
            for (const Second& second : seconds) {
                const std::string then =
                    std::string(second.point) + ":kill:" + std::to_string(second.passage);
                const bool begins = std::string(first).starts_with("step.begin");
                const bool shard =
                    then.starts_with("recover.shard") || then.starts_with("step.chunk");
                // Where nothing was begun there is no shard to finish.
                if (begins && shard) continue;
                for (const int victim : {0, 1, 2}) {
                    Story story;
                    story.fault = first;
                    story.second_fault = then;
                    story.victim = victim;
                    CAPTURE(story.fault);
                    CAPTURE(story.second_fault);
                    CAPTURE(victim);
                    const Outcome outcome = run(story);
                    CHECK(outcome.failures == 0);
                    CHECK(outcome.killed >= 1);
                }
            }
        }
    }

    TEST_CASE("when no rank is left, others get the set as it was after a step, and its count") {
        struct Death {
            const char* faults[kWorld];  // of the ranks; nullptr: it ends when it hears of a death
            bool refused;                // shards are stepped, and others are not
            std::uint64_t steps;
        };
        const Death deaths[] = {
            {{"step.done:kill:3", "step.done:kill:3", "step.done:kill:3"}, false, 3},
            {{"step.begin:kill:3", nullptr, nullptr}, false, 2},
            {{"step.ready:kill:3", nullptr, nullptr}, true, 0},
            {{nullptr, "step.ready:kill:3", "step.ready:kill:3"}, true, 0},
            {{nullptr, nullptr, "step.chunk:kill:4"}, true, 0},
        };
        for (const Death& death : deaths) {
            Stage stage(Story{});
            std::fflush(nullptr);
            std::vector<pid_t> ranks;
            for (int rank = 0; rank < kWorld; ++rank) {
                const pid_t child = ::fork();
                FABRIC_CHECK(child >= 0);
                if (child == 0) {
                    step_on(stage, rank, death.faults[rank]);
                    ::_exit(0);
                }
                ranks.push_back(child);
            }
            for (const pid_t rank : ranks) ::waitpid(rank, nullptr, 0);
            const auto group = Group::attach(stage.one.place(0), in_a_minute());
            REQUIRE(group.ok());
            const auto set =
                ParameterSet::attach(**group, {}, stage.memory.data,
                                     ParameterLayout::of(spec()).total, spec(), in_a_minute());
            CAPTURE(&death - deaths);
            REQUIRE(set.ok() == !death.refused);
            if (!set.ok()) {
                CHECK(set.error().code == Errc::kCorrupt);
                continue;
            }
            Model model;
            for (std::uint64_t step = 0; step < death.steps; ++step) {
                model.step({0, 1, 2}, step, call_of(stage.story));
            }
            CHECK((*set)->steps() == death.steps);
            CHECK(is_like(**set, model, 0));
        }
    }
}
