#include "tests/support/ranks.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/shm/group_block.hpp"

namespace test_support {

using namespace fabricshm;

TestArena::TestArena(int world, Bytes bytes_per_rank)
    : world_(world),
      per_rank_(round_up(bytes_per_rank, 4096)),
      block_bytes_(group_block_bytes(world)),
      bytes_(block_bytes_ + per_rank_ * static_cast<Bytes>(world + 1)) {
    void* memory =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    FABRIC_CHECK(memory != MAP_FAILED);
    base_ = static_cast<std::byte*>(memory);
    format_group_block(base_, {1, 1, world});
}

TestArena::~TestArena() {
    ::munmap(base_, bytes_);
}

GroupPlace TestArena::place(int rank) {
    GroupPlace place;
    place.arena = base_;
    place.arena_bytes = bytes_;
    place.block_bytes = block_bytes_;
    place.rank = rank;
    place.world = world_;
    place.group_id = 1;
    // Staging comes from the upper half of the rank's own memory, where tests put nothing; what is
    // given back is not used again, so that a use after the release cannot hide.
    auto used = std::make_shared<std::atomic<Bytes>>(0);
    std::byte* pool = base_ + block_bytes_ + per_rank_ * static_cast<Bytes>(rank) + per_rank_ / 2;
    place.allocate = [used, pool, room = per_rank_ / 2](Bytes bytes) -> std::byte* {
        const Bytes start = used->fetch_add(round_up(bytes, 64));
        return start + bytes <= room ? pool + start : nullptr;
    };
    place.release = [](std::byte*) {};
    return place;
}

RankContext TestArena::context(Group& group) {
    auto used = std::make_shared<std::map<int, Bytes>>();
    const auto give = [this, used](int owner, Bytes bytes) {
        if (owner < 0) {
            used->clear();
            return static_cast<std::byte*>(nullptr);
        }
        Bytes& start = (*used)[owner];
        std::byte* memory = base_ + block_bytes_ + per_rank_ * static_cast<Bytes>(owner) + start;
        start += round_up(bytes, 64);
        FABRIC_CHECK(start <= per_rank_ / 2);
        return memory;
    };
    return {group, group.rank(), world_, base_, give};
}

namespace {

bool run_rank(TestArena& arena, int rank, const Body& body) {
    const TimePoint deadline = Clock::now() + std::chrono::seconds(60);
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
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; ++rank) {
        threads.emplace_back([&, rank] {
            if (!run_rank(arena, rank, body)) ++failures;
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
        if (child == 0) ::_exit(run_rank(arena, rank, body) ? 0 : 1);
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

bool complain(const RankContext& context, const char* format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "rank %d of %d: %s\n", context.rank, context.world, line);
    return false;
}

}  // namespace test_support
