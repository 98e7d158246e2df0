// On a regular file that stands in for the device: the same code, but for where size and alignment
// come from.

#include "libfabricshm/machine/dax_backend.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "libfabricshm/os/mapping.hpp"
#include "tests/unit/machine/host_tree.hpp"

using namespace fabricshm;

namespace {

constexpr Bytes kBlock = 2 * kMiB;
constexpr const char* kHost = "0123456789abcdef0123456789abcdef";
constexpr const char* kOtherHost = "fedcba9876543210fedcba9876543210";

/// A file of `blocks` blocks on a host of its own.
struct StandIn {
    explicit StandIn(Bytes blocks = 16) {
        tree.write("etc/machine-id", kHost);
        tree.write("proc/sys/kernel/random/uuid", "00112233-4455-6677-8899-aabbccddeeff");
        tree.write("device", "");
        resize(blocks * kBlock);
    }
    void resize(Bytes bytes) {
        REQUIRE(::truncate(tree.path("device").c_str(), 0) == 0);
        grow(bytes);
    }
    void grow(Bytes bytes) {
        REQUIRE(::truncate(tree.path("device").c_str(), static_cast<off_t>(bytes)) == 0);
    }
    DaxOptions options() const {
        DaxOptions result;
        result.devices = {tree.path("device")};
        result.files = tree.files();
        result.settle = [] {};  // there is no other host
        return result;
    }
    std::unique_ptr<PoolBackend> pool() const {
        return std::move(make_dax_backend(options())).value();
    }
    Errc outcome(const DaxOptions& wanted) const {
        const auto made = make_dax_backend(wanted);
        return made.ok() ? Errc::kOk : made.error().code;
    }
    void put(Bytes offset, const void* data, std::size_t bytes) const {
        const Fd fd(::open(tree.path("device").c_str(), O_RDWR | O_CLOEXEC));
        REQUIRE(::pwrite(fd.get(), data, bytes, static_cast<off_t>(offset)) ==
                static_cast<ssize_t>(bytes));
    }
    /// What is on the device, written by another host meanwhile: the next catalogue, as that
    /// host's.
    void write_as_another_host() const {
        const auto bytes = get(0, 2 * kCatalogueCopyBytes);
        const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
        auto catalogue = decode_catalogue(data).value();
        const auto second = decode_catalogue(data + kCatalogueCopyBytes).value();
        if (second.sequence > catalogue.sequence) catalogue = second;
        catalogue.host = parse_uuid(kOtherHost).value();
        ++catalogue.epoch;
        ++catalogue.sequence;
        const auto encoded = encode_catalogue(catalogue);
        put((catalogue.sequence % 2) * kCatalogueCopyBytes, encoded.data(), encoded.size());
    }
    std::vector<char> get(Bytes offset, std::size_t bytes) const {
        std::vector<char> data(bytes);
        const Fd fd(::open(tree.path("device").c_str(), O_RDONLY | O_CLOEXEC));
        REQUIRE(::pread(fd.get(), data.data(), bytes, static_cast<off_t>(offset)) ==
                static_cast<ssize_t>(bytes));
        return data;
    }
    HostTree tree;
};

Mapping view(const PoolPiece& piece) {
    return std::move(Mapping::map(piece.fd, piece.file_offset, piece.bytes, {true, piece.align, 0}))
        .value();
}

}  // namespace

TEST_SUITE("machine.dax_backend") {
    TEST_CASE("a mark is read on the same memory alone, and is no part of the catalogue") {
        StandIn host;
        (void)host.pool();
        const auto own =
            DaxDevice::open_as_guest(host.options().devices[0], host.tree.files()).value();
        const std::string copied = host.tree.path("copied");
        std::filesystem::copy_file(host.options().devices[0], copied);
        const auto copy = DaxDevice::open_as_guest(copied, host.tree.files()).value();
        for (const std::uint32_t mark : {0U, DaxDevice::kMarks - 1}) {
            REQUIRE(own.write_mark(mark, 77 + mark).ok());
        }
        for (const std::uint32_t mark : {0U, DaxDevice::kMarks - 1}) {
            CHECK(own.read_mark(mark).value() == 77 + mark);
            CHECK(copy.read_mark(mark).value() == 0);
        }
        CHECK(own.load().value().uuid == copy.load().value().uuid);
        CHECK(own.load().value().sequence == copy.load().value().sequence);
    }

    TEST_CASE("arenas are separate, zero, whole blocks behind the catalogue") {
        const StandIn device;
        auto pool = device.pool();
        CHECK(pool->totals().capacity == 15 * kBlock);
        const auto first = std::move(pool->create(1, "a", 0, 1)).value();
        const auto second = std::move(pool->create(2, "b", 0, kBlock + 1)).value();
        CHECK(first.file_offset >= kBlock);
        CHECK(first.bytes == kBlock);
        CHECK(second.bytes == 2 * kBlock);
        CHECK(second.file_offset >= first.file_offset + first.bytes);
        CHECK(pool->totals().used == 3 * kBlock);
        CHECK(pool->create(1, "a", 0, 1).error().code == Errc::kExists);
        CHECK(pool->create(3, "c", 0, 13 * kBlock).error().code == Errc::kNoMemory);
        CHECK(pool->create(3, "c", 0, ~Bytes{0}).error().code == Errc::kNoMemory);
        CHECK(pool->create(3, "c", 0, 0).error().code == Errc::kInvalid);
    }

    TEST_CASE("arenas outlive the daemon with name, owner and contents") {
        const StandIn device;
        {
            auto pool = device.pool();
            const auto piece = std::move(pool->create(5, "job", 1000, kBlock)).value();
            view(piece).data()[17] = std::byte{42};
        }
        auto pool = device.pool();
        auto found = std::move(pool->list()).value();
        REQUIRE(found.size() == 1);
        CHECK(found[0].arena_id == 5);
        CHECK(found[0].name == "job");
        CHECK(found[0].uid == 1000);
        CHECK(view(found[0].piece).data()[17] == std::byte{42});
        CHECK(pool->totals().used == kBlock);

        auto again = pool->adopt(5, kBlock, std::move(found[0].piece.fd.duplicate()).value());
        REQUIRE(again.ok());
        CHECK(view(*again).data()[17] == std::byte{42});
        CHECK(pool->adopt(5, kBlock, Fd(::open("/dev/null", O_RDWR))).error().code ==
              Errc::kCorrupt);
        CHECK(pool->adopt(6, kBlock, std::move(again->fd.duplicate()).value()).error().code ==
              Errc::kCorrupt);
        pool->destroy(5);
        CHECK(device.outcome(device.options()) == Errc::kBusy);
        pool.reset();
        CHECK(device.pool()->list().value().empty());
    }

    TEST_CASE("a client that keeps the descriptor does not keep the next daemon out") {
        const StandIn device;
        auto pool = device.pool();
        const auto piece = std::move(pool->create(1, "a", 0, 1)).value();
        pool.reset();
        CHECK(device.outcome(device.options()) == Errc::kOk);
    }
}

TEST_SUITE("machine.dax_backend identity") {
    TEST_CASE("a device of another size or host, or another UUID, is refused and left alone") {
        StandIn device;
        device.pool()->create(1, "a", 0, 1).value();
        const auto before = device.get(0, kBlock);

        device.grow(17 * kBlock);
        CHECK(device.outcome(device.options()) == Errc::kCorrupt);
        device.grow(16 * kBlock);
        CHECK(device.outcome(device.options()) == Errc::kOk);

        DaxOptions other = device.options();
        other.uuid = "ffffffff-4455-6677-8899-aabbccddeeff";
        CHECK(device.outcome(other) == Errc::kNotFound);
        other.uuid = "not a UUID";
        CHECK(device.outcome(other) == Errc::kInvalid);
        other.uuid = "00112233-4455-6677-8899-aabbccddeeff";
        CHECK(device.outcome(other) == Errc::kOk);

        device.tree.write("etc/machine-id", kOtherHost);
        CHECK(device.outcome(device.options()) == Errc::kDenied);
        CHECK(device.get(0, kBlock) == before);
    }

    TEST_CASE("another alignment than the catalogue's is refused") {
        StandIn device;
        DaxCatalogue catalogue;
        catalogue.device_bytes = 16 * kBlock;
        catalogue.align = 2 * kBlock;
        const auto bytes = encode_catalogue(catalogue);
        device.put(0, bytes.data(), bytes.size());
        CHECK(device.outcome(device.options()) == Errc::kCorrupt);
    }

    TEST_CASE(
        "other data anywhere we check keeps a device from being formatted, --format does not") {
        for (const Bytes offset : {Bytes{1024}, kBlock - 1, 3 * kBlock - 7}) {
            CAPTURE(offset);
            const StandIn device(3);
            device.put(offset, "x", 1);
            CHECK(device.outcome(device.options()) == Errc::kExists);
            CHECK(device.get(offset, 1)[0] == 'x');
            DaxOptions format = device.options();
            format.format = true;
            CHECK(device.outcome(format) == Errc::kOk);
        }
    }

    TEST_CASE("--format forgets the arenas, and only it does") {
        const StandIn device;
        device.pool()->create(1, "a", 0, 1).value();
        CHECK(device.pool()->list().value().size() == 1);
        DaxOptions format = device.options();
        format.format = true;
        CHECK(make_dax_backend(format).value()->list().value().empty());
    }

    TEST_CASE("a wanted UUID is not made on a blank device") {
        const StandIn device;
        DaxOptions options = device.options();
        options.uuid = "00112233-4455-6677-8899-aabbccddeeff";
        CHECK(device.outcome(options) == Errc::kNotFound);
    }

    TEST_CASE("what is no device, and one too small for a catalogue and an arena, is refused") {
        const StandIn device;
        DaxOptions options = device.options();
        options.devices = {"/dev/null"};
        CHECK(device.outcome(options) == Errc::kInvalid);
        options.devices = {"/nowhere"};
        CHECK(device.outcome(options) == Errc::kNotFound);
        CHECK(StandIn(1).outcome(StandIn(1).options()) == Errc::kInvalid);
        options = device.options();
        options.capacity = 16 * kBlock;
        CHECK(device.outcome(options) == Errc::kNoMemory);
        const auto first = device.get(0, kBlock);
        CHECK(std::count(first.begin(), first.end(), '\0') == static_cast<int>(kBlock));
    }
}

TEST_SUITE("machine.dax_backend several hosts") {
    TEST_CASE("a pool of another host is not even formatted, until it is taken over") {
        StandIn device;
        device.pool()->create(1, "a", 0, 1).value();
        const auto before = device.get(0, kBlock);
        device.tree.write("etc/machine-id", kOtherHost);
        DaxOptions format = device.options();
        format.format = true;
        CHECK(device.outcome(device.options()) == Errc::kDenied);
        CHECK(device.outcome(format) == Errc::kDenied);
        CHECK(device.get(0, kBlock) == before);

        DaxOptions take = device.options();
        take.take_over = true;
        CHECK(make_dax_backend(take).value()->list().value().size() == 1);
        CHECK(device.outcome(device.options()) == Errc::kOk);
        device.tree.write("etc/machine-id", kHost);
        CHECK(device.outcome(device.options()) == Errc::kDenied);
        take.format = true;
        CHECK(make_dax_backend(take).value()->list().value().empty());
    }

    TEST_CASE("a host whose pool was taken over grants nothing any more and writes nothing") {
        const StandIn device;
        auto pool = device.pool();
        pool->create(1, "a", 0, 1).value();
        device.write_as_another_host();
        const auto taken = device.get(0, kBlock);
        CHECK(pool->create(2, "b", 0, 1).error().code == Errc::kDenied);
        CHECK(pool->totals().used == kBlock);
        pool->destroy(1);
        CHECK(device.get(0, kBlock) == taken);
    }

    TEST_CASE("of two hosts that format or take a device at the same time one goes on") {
        const StandIn device;
        DaxOptions options = device.options();
        options.settle = [&] { device.write_as_another_host(); };
        CHECK(device.outcome(options) == Errc::kDenied);
        options.take_over = true;
        CHECK(device.outcome(options) == Errc::kDenied);
        options.settle = [] {};
        CHECK(device.outcome(options) == Errc::kOk);
        CHECK(device.outcome(device.options()) == Errc::kOk);
    }
}

TEST_SUITE("machine.dax_backend torn writes") {
    TEST_CASE("a write torn at any point leaves the catalogue before it") {
        const StandIn device;
        {
            auto pool = device.pool();
            pool->create(1, "a", 0, 1).value();
        }
        const auto before = device.get(0, kBlock);
        {
            auto pool = device.pool();
            pool->create(2, "b", 0, 1).value();
        }
        const auto after = device.get(0, kBlock);
        // Where the second write went, and how long it was.
        const auto differs = std::mismatch(before.begin(), before.end(), after.begin());
        const auto start = static_cast<std::size_t>(differs.first - before.begin()) /
                           kCatalogueCopyBytes * kCatalogueCopyBytes;
        const std::size_t length = 128 * 3;

        for (std::size_t cut = 0; cut < length; cut += 8) {
            CAPTURE(cut);
            device.put(0, before.data(), before.size());
            device.put(start, after.data() + start, cut);
            const auto found = device.pool()->list().value();
            // The last bytes are padding, so that a write cut there is complete.
            REQUIRE((found.size() == 1 || cut > 128 * 2));
            REQUIRE(found[0].arena_id == 1);
        }
    }

    TEST_CASE("with both copies damaged the device is refused, not formatted") {
        const StandIn device;
        device.pool()->create(1, "a", 0, 1).value();
        device.put(200, "damage", 6);
        CHECK(device.outcome(device.options()) == Errc::kOk);
        device.put(kCatalogueCopyBytes + 20, "damage", 6);
        device.put(20, "damage", 6);
        CHECK(device.outcome(device.options()) == Errc::kCorrupt);
    }
}
