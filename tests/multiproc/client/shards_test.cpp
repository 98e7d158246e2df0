// Shards between processes: what readers see while the shard moves under them, through fabricd.

#include <doctest/doctest.h>
#include <fabricshm/shard.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <string>
#include <thread>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/job.hpp"

using test_support::Child;
using test_support::Daemon;
using test_support::failed;
using test_support::Gate;
using test_support::Job;

namespace {

constexpr std::int64_t kElements = 128 * 1024;  // 1 MiB
constexpr int kReaders = 3;
constexpr int kMoves = 200;

/// What the processes of one story share.
struct Board {
    std::atomic<std::uint64_t> published{0};
    std::atomic<int> reading{0};
    std::atomic<bool> over{false};
    std::atomic<std::uint64_t> reads[kReaders]{};
};

class SharedBoard {
  public:
    SharedBoard()
        : board_(new (::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board) {}
    ~SharedBoard() { ::munmap(board_, sizeof(Board)); }
    SharedBoard(const SharedBoard&) = delete;
    SharedBoard& operator=(const SharedBoard&) = delete;
    Board* operator->() const { return board_; }
    Board& operator*() const { return *board_; }

  private:
    Board* board_;
};

struct Shard {
    ~Shard() { fabricshm_shard_close(handle); }
    fabricshm_shard* handle = nullptr;
};

int make(const Job& job, Shard* shard) {
    return fabricshm_shard_create(job.arena, "s", FABRICSHM_U64, 1, &kElements, &shard->handle);
}

bool write_and_publish(fabricshm_shard* shard, Board& board) {
    fabricshm_shard_view view{};
    if (fabricshm_shard_write(shard, &view) != 0) return false;
    auto* words = static_cast<std::uint64_t*>(view.data);
    for (std::int64_t i = 0; i < kElements; ++i) {
        words[i] = (view.version + 1) * 1000003 + static_cast<std::uint64_t>(i);
    }
    std::uint64_t version = 0;
    if (fabricshm_shard_publish(shard, &version) != 0) return false;
    board.published.store(version);
    return true;
}

// The content is the version's: any byte of another one is seen.
bool whole(const fabricshm_shard_view& view) {
    const auto* words = static_cast<const std::uint64_t*>(view.data);
    std::uint64_t wrong = 0;
    for (std::int64_t i = 0; i < kElements; ++i) {
        wrong |= words[i] ^ (view.version * 1000003 + static_cast<std::uint64_t>(i));
    }
    return wrong == 0;
}

// Asks until the one before is done.
bool move(fabricshm_shard* shard, const char* target) {
    const auto timeout = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < timeout) {
        const int code = fabricshm_shard_move(shard, target, 0);
        if (code == FABRICSHM_OK) return true;
        if (code != FABRICSHM_EBUSY) return false;
        std::this_thread::yield();
    }
    return false;
}

int read_until_over(const Daemon& daemon, Board& board, int rank) {
    const Job job(daemon.socket());
    Shard shard;
    if (!job.ok) return 1;
    if (fabricshm_shard_open(job.arena, "s", 60'000, &shard.handle) != 0) return failed(2);
    board.reading.fetch_add(1);
    while (!board.over.load()) {
        const std::uint64_t least = board.published.load();
        fabricshm_shard_view view{};
        if (fabricshm_shard_read(shard.handle, 1, 60'000, &view) != 0) return failed(3);
        const bool intact = whole(view);
        const bool stale = view.version < least;
        const int code = fabricshm_shard_release(shard.handle, &view);
        if (code == FABRICSHM_EBUSY) continue;  // the owner wrote: dropped, as reported
        if (code != 0) return failed(4);
        if (!intact) return 5;
        if (stale) return 6;
        board.reads[rank].fetch_add(1);
    }
    return 0;
}

}  // namespace

TEST_SUITE("multiproc.client.shards") {
    TEST_CASE("readers see whole and current versions while the shard moves to and fro") {
        const Daemon daemon;
        const SharedBoard board;
        Child owner([&]() -> int {
            const Job job(daemon.socket());
            fabricshm_arena* far = nullptr;
            Shard shard;
            if (!job.ok || make(job, &shard) != 0) return failed(1);
            if (fabricshm_arena_open(job.session, "far", 4 << 20, 0, &far) != 0) return failed(2);
            if (!write_and_publish(shard.handle, *board)) return failed(3);
            while (board->reading.load() != kReaders && !board->over.load()) {
                std::this_thread::yield();
            }
            const char* const targets[] = {"arena:far", "here", "arena:job", "here"};
            for (int i = 0; i < kMoves; ++i) {
                if (!move(shard.handle, targets[i % 4])) return failed(4);
                if (i % 3 == 0 && !write_and_publish(shard.handle, *board)) {
                    return failed(5);
                }
            }
            board->over.store(true);
            // The shard ends with its owner, and a reader may be in the middle of its last read.
            const auto timeout = std::chrono::steady_clock::now() + std::chrono::seconds(60);
            while (board->reading.load() != 0) {
                if (std::chrono::steady_clock::now() > timeout) return failed(6);
                std::this_thread::yield();
            }
            return 0;
        });
        const auto codes = test_support::run_children(kReaders, [&](int rank) {
            const int code = read_until_over(daemon, *board, rank);
            board->over.store(code != 0 || board->over.load());
            board->reading.fetch_sub(1);
            return code;
        });
        CHECK(owner.wait() == 0);
        for (int rank = 0; rank < kReaders; ++rank) {
            CHECK(codes[static_cast<std::size_t>(rank)] == 0);
            CHECK(board->reads[rank].load() > 0);
        }
    }

    TEST_CASE("a reader that is killed while it reads keeps nothing from the others") {
        const Daemon daemon;
        const SharedBoard board;
        Gate pinned;
        Gate dead;
        Child owner([&]() -> int {
            const Job job(daemon.socket(), 4 << 20);
            Shard shard;
            if (!job.ok || make(job, &shard) != 0) return failed(1);
            if (!write_and_publish(shard.handle, *board)) return failed(2);
            if (!pinned.wait()) return 3;
            if (!move(shard.handle, "here")) return failed(4);
            if (!dead.wait()) return 5;
            // Two copies fit into the arena, three don't: each move needs the last old copy gone.
            for (int i = 0; i < 3; ++i) {
                if (!move(shard.handle, "here")) return failed(6);
            }
            return write_and_publish(shard.handle, *board) ? 0 : failed(7);
        });
        Child reader([&]() -> int {
            const Job job(daemon.socket());
            Shard shard;
            fabricshm_shard_view view{};
            if (!job.ok) return 1;
            if (fabricshm_shard_open(job.arena, "s", 60'000, &shard.handle) != 0) return failed(2);
            if (fabricshm_shard_read(shard.handle, 1, 60'000, &view) != 0) return failed(3);
            pinned.open();
            dead.wait();
            return 0;
        });
        CHECK(pinned.wait());
        reader.kill();
        dead.open();
        CHECK(owner.wait() == 0);
    }

    TEST_CASE("a shard outlives the daemon, moves and all") {
        Daemon daemon;
        const SharedBoard board;
        Gate made;
        Child owner([&]() -> int {
            const Job job(daemon.socket());
            Shard shard;
            if (!job.ok || make(job, &shard) != 0) return failed(1);
            if (!write_and_publish(shard.handle, *board)) return failed(2);
            made.open();
            // The daemon dies somewhere in these; a move may be lost, the shard never.
            while (!board->over.load()) {
                fabricshm_shard_move(shard.handle, "here", 0);
                fabricshm_shard_view view{};
                if (fabricshm_shard_read(shard.handle, 1, 0, &view) != 0) return failed(3);
                if (!whole(view)) return 4;
                if (fabricshm_shard_release(shard.handle, &view) != 0) return failed(5);
            }
            for (int i = 0; i < 3; ++i) {
                if (!move(shard.handle, "here")) return failed(7);
                if (!write_and_publish(shard.handle, *board)) return failed(8);
            }
            return 0;
        });
        CHECK(made.wait());
        for (int i = 0; i < 3; ++i) {
            daemon.kill();
            daemon.start();
        }
        board->over.store(true);
        CHECK(owner.wait() == 0);
    }

    TEST_CASE("what the C ABI refuses, and what a freed shard answers") {
        const Daemon daemon;
        Child both([&]() -> int {
            const Job job(daemon.socket());
            Shard shard;
            Shard again;
            if (!job.ok || make(job, &shard) != 0) return failed(1);
            if (make(job, &again) != FABRICSHM_EEXIST) return 2;
            if (fabricshm_shard_open(job.arena, "s", 0, &again.handle) != 0) return failed(3);
            fabricshm_shard_view view{};
            if (fabricshm_shard_write(again.handle, &view) != FABRICSHM_EDENIED) return 4;
            if (fabricshm_shard_read(again.handle, 1, 0, &view) != FABRICSHM_ETIMEOUT) return 5;
            if (fabricshm_shard_publish(shard.handle, nullptr) != FABRICSHM_EINVAL) return 6;
            if (fabricshm_shard_move(shard.handle, "nowhere", 0) != FABRICSHM_EINVAL) return 7;
            if (fabricshm_shard_read(shard.handle, 0, 0, &view) != 0) return failed(8);
            if (view.bytes != kElements * 8 || view.ndim != 1 || view.version != 0) return 9;
            if (fabricshm_shard_free(shard.handle) != 0) return failed(10);
            if (fabricshm_shard_release(shard.handle, &view) != 0) return failed(11);
            if (fabricshm_shard_read(again.handle, 0, 0, &view) != FABRICSHM_ENOENT) return 12;
            return fabricshm_shard_write(shard.handle, &view) == FABRICSHM_ENOENT ? 0 : 13;
        });
        CHECK(both.wait() == 0);
    }
}
