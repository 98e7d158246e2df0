// What holds for every pool, whatever its memory is: one suite over all implementations of
// PoolBackend. FABRIC_POOL_UNDER_TEST names the one; see the table below and CMakeLists.txt.

#include "libfabricshm/machine/pool_backend.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "libfabricshm/machine/dax_backend.hpp"
#include "libfabricshm/machine/emu_backend.hpp"
#include "libfabricshm/machine/numa_backend.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "tests/support/pool_choice.hpp"
#include "tests/support/skip.hpp"
#include "tests/unit/machine/host_tree.hpp"

using namespace fabricshm;

// Of its own: a program may have this file and those of single backends in one translation unit.
namespace pool_backend_suite {

namespace {

constexpr Bytes kCapacity = 64 * kMiB;

using Made = Result<std::unique_ptr<PoolBackend>>;

/// One implementation, over memory that lasts as long as this does: making it twice is a restart.
struct Implementation {
    const char* name;
    const char* kind;
    const char* lacks;  // what a machine has not on which it can't be made
    Made (*make)(const HostTree& tree);
};

Made emu_of(HugePages huge_pages) {
    EmuOptions options;
    options.capacity = kCapacity;
    options.huge_pages = huge_pages;
    return make_emu_backend(std::move(options));
}

Made numa_node_0() {
    NumaOptions options;
    options.capacity = kCapacity;
    options.huge_pages = HugePages::kOff;
    return make_numa_backend(std::move(options));
}

Made dax_on(std::string device, const HostFiles& files) {
    DaxOptions options;
    options.devices = {std::move(device)};
    options.capacity = kCapacity;
    options.files = files;
    options.settle = [] {};  // there is no other host
    return make_dax_backend(std::move(options));
}

Made dax_on_a_file(const HostTree& tree) {
    const std::string device = tree.path("device");
    const Fd file(::open(device.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    // Longer than the pool by what the catalogue takes. Again after a restart: no change.
    REQUIRE(::ftruncate(file.get(), static_cast<off_t>(kCapacity + 4 * kMiB)) == 0);
    return dax_on(device, tree.files());
}

Made dax_on_a_device() {
    const auto choice = test_support::PoolChoice::from_environment();
    if (choice.backend != "dax") return Error{Errc::kNotFound, 0, "FABRIC_TEST_POOL=dax:DEVICE"};
    return dax_on(choice.where, HostFiles());
}

constexpr Implementation kImplementations[] = {
    {"emu", "emu", "memory files", [](const HostTree&) { return emu_of(HugePages::kOff); }},
    {"emu_huge", "emu", "memory files",
     [](const HostTree&) { return emu_of(HugePages::kTransparent); }},
    {"numa", "numa", "NUMA in its kernel", [](const HostTree&) { return numa_node_0(); }},
    {"dax_file", "dax", "files", [](const HostTree& tree) { return dax_on_a_file(tree); }},
    {"dax_device", "dax", "a DAX device that may be overwritten (FABRIC_TEST_POOL=dax:/dev/dax0.0)",
     [](const HostTree&) { return dax_on_a_device(); }},
};

const Implementation& under_test() {
    const char* name = std::getenv("FABRIC_POOL_UNDER_TEST");
    if (name == nullptr) return kImplementations[0];
    const auto found =
        std::find_if(std::begin(kImplementations), std::end(kImplementations),
                     [&](const Implementation& one) { return one.name == std::string(name); });
    REQUIRE(found != std::end(kImplementations));
    return *found;
}

/// The pool under test, empty. `pool` is null on a machine that can't have it.
struct Fixture {
    Fixture() {
        tree.write("etc/machine-id", "0123456789abcdef0123456789abcdef");
        tree.write("proc/sys/kernel/random/uuid", "00112233-4455-6677-8899-aabbccddeeff");
        restart();
        if (pool == nullptr) return;
        const auto left = pool->list().value();  // by a killed run, on a device
        for (const auto& arena : left) pool->destroy(arena.arena_id);
    }
    ~Fixture() {
        for (std::uint64_t id = 1; pool != nullptr && id < 10; ++id) pool->destroy(id);
    }
    Fixture(const Fixture&) = delete;
    Fixture& operator=(const Fixture&) = delete;

    /// As when the daemon is killed and started again.
    void restart() {
        pool.reset();
        auto made = under_test().make(tree);
        const bool lacking = !made.ok() && (made.error().code == Errc::kUnsupported ||
                                            made.error().code == Errc::kNotFound);
        if (lacking) {
            test_support::skip(under_test().lacks);
            return;
        }
        REQUIRE(made.ok());
        pool = std::move(made).value();
    }
    PoolPiece arena(std::uint64_t id, Bytes bytes) const {
        return std::move(pool->create(id, "job", 0, bytes)).value();
    }

    HostTree tree;
    std::unique_ptr<PoolBackend> pool;
};

Mapping view(const PoolPiece& piece) {
    return std::move(Mapping::map(piece.fd, piece.file_offset, piece.bytes,
                                  {true, piece.align, piece.huge_page_bytes}))
        .value();
}

Fd copy_of(const PoolPiece& piece) {
    return std::move(piece.fd.duplicate()).value();
}

Bytes committed(const PoolPiece& piece) {
    return piece.bytes - piece.uncommitted;
}

bool all_zero(const Mapping& mapping, Bytes bytes) {
    return std::all_of(mapping.data(), mapping.data() + bytes,
                       [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

TEST_SUITE("machine.pool_backend") {
    TEST_CASE_FIXTURE(Fixture, "a pool says what it is, and is empty at first") {
        if (pool == nullptr) return;
        CHECK(std::string(pool->kind()) == under_test().kind);
        CHECK_FALSE(pool->describe().empty());
        CHECK(pool->totals().capacity == kCapacity);
        CHECK(pool->totals().used == 0);
        CHECK(pool->list().value().empty());
    }

    TEST_CASE_FIXTURE(Fixture, "arenas are whole, zero, separate, and counted") {
        if (pool == nullptr) return;
        const auto first = arena(1, 3 * kMiB);
        const auto second = arena(2, 1);
        for (const auto* piece : {&first, &second}) {
            CHECK(piece->bytes % piece->align == 0);
            CHECK(piece->file_offset % piece->align == 0);
        }
        CHECK(first.bytes >= 3 * kMiB);
        CHECK(second.bytes >= 1);
        CHECK(pool->totals().used == committed(first) + committed(second));
        const Mapping one = view(first), two = view(second);
        CHECK(all_zero(one, first.bytes));
        std::memset(one.data(), 0x5a, committed(first));
        CHECK(all_zero(two, second.bytes));
        CHECK(view(first).data()[committed(first) - 1] == std::byte{0x5a});
    }

    TEST_CASE_FIXTURE(Fixture, "an id is given once, and a size that can't be changes nothing") {
        if (pool == nullptr) return;
        const auto piece = arena(7, kMiB);
        const Bytes used = pool->totals().used;
        CHECK(pool->create(7, "a", 0, 1).error().code == Errc::kExists);
        CHECK(pool->create(8, "a", 0, 0).error().code == Errc::kInvalid);
        CHECK(pool->create(8, "a", 0, ~Bytes{0}).error().code == Errc::kNoMemory);
        CHECK(pool->create(8, "a", 0, kCapacity + 1).error().code == Errc::kNoMemory);
        CHECK(pool->create(8, "a", 0, Bytes{1} << 50).error().code == Errc::kNoMemory);
        CHECK(pool->totals().used == used);
        CHECK(pool->create(8, "a", 0, kMiB).ok());
    }

    TEST_CASE_FIXTURE(Fixture, "a full pool has no room, and has it again after a destroy") {
        if (pool == nullptr) return;
        // No more than the first step each, so that they are committed whole by every pool.
        for (std::uint64_t id = 1; id <= 4; ++id) CHECK(arena(id, kCapacity / 4).uncommitted == 0);
        CHECK(pool->totals().used == kCapacity);
        CHECK(pool->create(5, "e", 0, 1).error().code == Errc::kNoMemory);
        CHECK(pool->totals().used == kCapacity);
        pool->destroy(2);
        pool->destroy(2);
        pool->destroy(99);
        CHECK(pool->totals().used == kCapacity - kCapacity / 4);
        CHECK(pool->create(5, "e", 0, kCapacity / 4).ok());
    }

    TEST_CASE_FIXTURE(Fixture, "what an arena held is not seen in the next one") {
        if (pool == nullptr) return;
        {
            const auto piece = arena(1, 4 * kMiB);
            std::memset(view(piece).data(), 0x5a, piece.bytes);
        }
        pool->destroy(1);
        const auto piece = arena(1, 4 * kMiB);
        CHECK(all_zero(view(piece), piece.bytes));
    }

    TEST_CASE_FIXTURE(Fixture,
                      "a large arena is committed whole, or has its first step and grows") {
        if (pool == nullptr) return;
        const Bytes large = 3 * kArenaStep;
        const auto piece = arena(1, large);
        const Mapping mapping = view(piece);
        mapping.data()[0] = std::byte{42};
        CHECK(pool->totals().used == committed(piece));
        if (pool->commits_whole()) {
            CHECK(piece.uncommitted == 0);
            return;
        }
        CHECK(committed(piece) == kArenaStep);
        for (std::uint64_t id : {2, 3}) CHECK(arena(id, large).uncommitted > 0);
        // One step is left, and two are needed in the end: the first of them is not begun.
        CHECK(pool->grow(1, 2 * kArenaStep, large).error().code == Errc::kNoMemory);
        CHECK(pool->totals().used == 3 * kArenaStep);
        pool->destroy(2);
        pool->destroy(3);
        CHECK(pool->grow(1, 2 * kArenaStep, large).ok());
        CHECK(pool->grow(1, kArenaStep, kArenaStep).ok());
        CHECK(pool->totals().used == 2 * kArenaStep);
        CHECK(mapping.data()[0] == std::byte{42});
        CHECK(pool->grow(1, piece.bytes + 4096, piece.bytes + 4096).error().code == Errc::kInvalid);
        CHECK(pool->grow(9, 4096, 4096).error().code == Errc::kNotFound);
        pool->destroy(1);
        CHECK(pool->totals().used == 0);
    }

    TEST_CASE_FIXTURE(Fixture, "an arena that is presented after a restart holds what it held") {
        if (pool == nullptr) return;
        const auto piece = arena(5, kMiB);
        const auto other = arena(6, kMiB);
        view(piece).data()[4097] = std::byte{42};
        restart();
        for (const auto& left : pool->list().value())
            CHECK((left.arena_id == 5 || left.arena_id == 6));
        const auto again = pool->adopt(5, piece.bytes, copy_of(piece));
        REQUIRE(again.ok());
        CHECK(view(*again).data()[4097] == std::byte{42});
        CHECK(pool->totals().used >= committed(*again));
        CHECK(pool->create(5, "a", 0, 1).error().code == Errc::kExists);
        REQUIRE(pool->adopt(6, other.bytes, copy_of(other)).ok());
        pool->destroy(5);
        pool->destroy(6);
        CHECK(pool->totals().used == 0);
    }

    TEST_CASE_FIXTURE(Fixture, "a descriptor that is not the arena's is not adopted") {
        if (pool == nullptr) return;
        const auto piece = arena(5, kMiB);
        restart();
        const auto outcome = [&](std::uint64_t id, Bytes bytes, Fd fd) {
            return pool->adopt(id, bytes, std::move(fd)).error().code;
        };
        const Bytes used = pool->totals().used;
        CHECK(outcome(6, piece.bytes, copy_of(piece)) == Errc::kCorrupt);
        CHECK(outcome(5, piece.bytes + 4096, copy_of(piece)) == Errc::kCorrupt);
        CHECK(outcome(5, piece.bytes, Fd(::open("/dev/null", O_RDWR | O_CLOEXEC))) ==
              Errc::kCorrupt);
        CHECK(outcome(5, piece.bytes, Fd()) == Errc::kCorrupt);
        CHECK(pool->totals().used == used);
    }
}

}  // namespace pool_backend_suite
