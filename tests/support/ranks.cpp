#include "tests/support/ranks.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/collective/tuning.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "tests/support/test_pool.hpp"

namespace test_support {

using namespace fabricshm;

namespace {

emu::Temper temper_of(const std::string& word) {
    if (word == "eager") return emu::Temper::kEager;
    if (word == "strict") return emu::Temper::kStrict;
    FABRIC_CHECK(word == "random");
    return emu::Temper::kRandom;
}

// FABRIC_TEST_TREE=2, as fabric_test_on_tree() sets it: groups from so many ranks on have a tree,
// on however few processors they run.
const Tuning* tree_tuning() {
    static const Tuning tuning = [] {
        Tuning tree = machine_tuning(8);
        if (const char* text = std::getenv("FABRIC_TEST_TREE")) tree.tree_world = std::stoul(text);
        return tree;
    }();
    return std::getenv("FABRIC_TEST_TREE") != nullptr ? &tuning : nullptr;
}

}  // namespace

Hosts Hosts::of_environment() {
    const char* text = std::getenv("FABRIC_TEST_HOSTS");
    if (text == nullptr || *text == '\0') return {};
    const std::string words = text;
    const auto colon = words.find(':');
    Hosts hosts;
    hosts.count = std::stoi(words);
    if (colon == std::string::npos) return hosts;
    const std::string temper = words.substr(colon + 1);
    hosts.coherent = temper == "coherent";
    if (hosts.coherent) {
        hosts.count = 0;  // of those that share no caches
    } else {
        hosts.behaviour.temper = temper_of(temper);
    }
    return hosts;
}

TestArena::TestArena(int world, Bytes bytes_per_rank, const Hosts& hosts)
    : world_(world),
      per_rank_(round_up(bytes_per_rank, 4096)),
      block_bytes_(group_block_bytes(world)),
      bytes_(block_bytes_ + per_rank_ * static_cast<Bytes>(world + 1)) {
    if (PoolChoice::from_environment().backend != "emu") {
        pool_ = std::make_unique<PoolMemory>(bytes_);
        base_ = pool_->data();
    } else {
        // Without a backend, which would commit every page of a large arena that a test may leave
        // mostly untouched.
        void* memory =
            ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        FABRIC_CHECK(memory != MAP_FAILED);
        base_ = static_cast<std::byte*>(memory);
    }
    if (hosts.coherent) {
        coherent_hosts_ = std::make_unique<CoherentHosts>();
    } else if (hosts.count != 0) {
        hosts_ =
            std::make_unique<emu::IncoherentHosts>(base_, bytes_, hosts.count + 1, hosts.behaviour);
    }
    format_group_block(daemon_base(), {1, 1, world}, daemon_view());
}

std::byte* TestArena::base_of(int rank) const noexcept {
    return hosts_ != nullptr ? hosts_->base(host_of(rank)) : base_;
}

std::byte* TestArena::daemon_base() const noexcept {
    return hosts_ != nullptr ? hosts_->base(hosts_->count() - 1) : base_;
}

VisibilityPolicy* TestArena::policy_of(int host) const noexcept {
    if (hosts_ != nullptr) return &hosts_->policy(host);
    return coherent_hosts_.get();
}

Visibility TestArena::daemon_view() const noexcept {
    return {policy_of(hosts_ != nullptr ? hosts_->count() - 1 : 0), daemon_base(), bytes_};
}

void TestArena::mark_dead(int rank) noexcept {
    mark_rank_dead(daemon_base(), world_, rank, daemon_view());
}

std::uint64_t TestArena::passed(TouchPoint touch) const noexcept {
    std::uint64_t times = 0;
    for (int host = 0; hosts_ != nullptr && host < hosts_->count(); ++host) {
        times += hosts_->policy(host).passed(touch);
    }
    return times;
}

TestArena::~TestArena() {
    if (!pool_) ::munmap(base_, bytes_);
}

GroupPlace TestArena::place(int rank) {
    GroupPlace place;
    place.arena = base_of(rank);
    place.visibility = policy_of(host_of(rank));
    place.arena_bytes = bytes_;
    place.block_bytes = block_bytes_;
    place.rank = rank;
    place.world = world_;
    place.group_id = 1;
    place.tuning = tree_tuning();
    if (tuning_) place.tuning = &*tuning_;
    // Staging comes from the upper half of the rank's own memory, where tests put nothing; what is
    // given back is not used again, so that a use after the release cannot hide.
    auto used = std::make_shared<std::atomic<Bytes>>(0);
    std::byte* pool =
        place.arena + block_bytes_ + per_rank_ * static_cast<Bytes>(rank) + per_rank_ / 2;
    place.allocate = [used, pool, room = per_rank_ / 2](Bytes bytes) -> std::byte* {
        const Bytes start = used->fetch_add(round_up(bytes, 64));
        return start + bytes <= room ? pool + start : nullptr;
    };
    place.release = [](std::byte*) {};
    return place;
}

RankContext TestArena::context(Group& group) {
    auto used = std::make_shared<std::map<int, Bytes>>();
    std::byte* base = base_of(group.rank());
    const auto give = [this, used, base](int owner, Bytes bytes) {
        if (owner < 0) {
            used->clear();
            return static_cast<std::byte*>(nullptr);
        }
        Bytes& start = (*used)[owner];
        std::byte* memory = base + block_bytes_ + per_rank_ * static_cast<Bytes>(owner) + start;
        start += round_up(bytes, 64);
        FABRIC_CHECK(start <= per_rank_ / 2);
        return memory;
    };
    VisibilityPolicy* policy = policy_of(host_of(group.rank()));
    return {group,
            group.rank(),
            world_,
            base,
            give,
            Visibility(policy, base, bytes_),
            [this](int rank) { mark_dead(rank); }};
}

namespace {

TimePoint in_a_minute() {
    return Clock::now() + std::chrono::seconds(60);
}

bool run_rank(TestArena& arena, int rank, TimePoint deadline, const Body& body) {
    auto group = Group::attach(arena.place(rank), deadline);
    if (!group.ok()) {
        std::fprintf(stderr, "rank %d: %s\n", rank, describe(group.error()).c_str());
        return false;
    }
    RankContext context = arena.context(**group);
    return body(context);
}

}  // namespace

int failures_in_threads(int world, Bytes bytes_per_rank, const Body& body) {
    TestArena arena(world, bytes_per_rank);
    return failures_in_threads(arena, in_a_minute(), body);
}

int failures_in_threads(TestArena& arena, TimePoint deadline, const Body& body) {
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < arena.world(); ++rank) {
        threads.emplace_back([&, rank] {
            if (!run_rank(arena, rank, deadline, body)) ++failures;
        });
    }
    for (std::thread& thread : threads) thread.join();
    return failures;
}

int failures_in_processes(int world, Bytes bytes_per_rank, const Body& body) {
    TestArena arena(world, bytes_per_rank);
    std::vector<pid_t> children;
    std::fflush(nullptr);
    for (int rank = 0; rank < world; ++rank) {
        const pid_t child = ::fork();
        FABRIC_CHECK(child >= 0);
        if (child == 0) ::_exit(run_rank(arena, rank, in_a_minute(), body) ? 0 : 1);
        children.push_back(child);
    }
    int failures = 0;
    for (const pid_t child : children) {
        int status = 0;
        ::waitpid(child, &status, 0);
        failures += status != 0 ? 1 : 0;
    }
    return failures;
}

bool report(const RankContext& context, const char* format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "rank %d of %d: %s\n", context.rank, context.world, line);
    return false;
}

}  // namespace test_support
