#include "libfabricshm/client/tensor.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <thread>

#include "libfabricshm/shm/tensor_header.hpp"
#include "tests/support/fake_daemon.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;
using test_support::FakeDaemon;

namespace {

constexpr std::uint32_t kF32 = 1;
const std::int64_t kShape[] = {3, 5};

std::shared_ptr<Arena> join(const FakeDaemon& daemon) {
    SessionOptions options;
    options.sockets = {daemon.path()};
    options.timeout = 30s;
    return Arena::open(Session::open(options).value(), "job", kMiB, 0).value();
}

TimePoint soon() {
    return Clock::now() + 30s;
}

}  // namespace

TEST_SUITE("client.tensor") {
    TEST_CASE("a tensor is opened by name with the type and shape it was made with") {
        FakeDaemon daemon;
        const auto maker = join(daemon), reader = join(daemon);
        const auto made = create_tensor(*maker, "weights", kF32, kShape).value();
        CHECK(made.bytes == 60);
        CHECK(reinterpret_cast<std::uintptr_t>(made.data) % kTensorHeaderBytes == 0);
        std::memset(made.data, 7, made.bytes);
        const auto found = open_tensor(*reader, "weights", soon()).value();
        CHECK(found.ndim == 2);
        CHECK(found.shape == made.shape);
        CHECK(found.dtype == kF32);
        CHECK(found.region_id == made.region_id);
        CHECK(found.data[59] == std::byte{7});
        CHECK(create_tensor(*reader, "weights", kF32, kShape).error().code == Errc::kExists);
    }

    TEST_CASE("opening waits for the maker, and publishing wakes the reader") {
        FakeDaemon daemon;
        const auto maker = join(daemon), reader = join(daemon);
        std::uint64_t seen = 0;
        std::byte value{0};
        std::thread waiter([&] {
            const auto found = open_tensor(*reader, "late", soon());
            if (!found.ok()) return;
            const auto version =
                await_tensor(*reader, found->data, found->bytes, found->region_id, 1, soon());
            if (version.ok()) seen = version.value();
            value = found->data[0];
        });
        REQUIRE(daemon.wait_for(proto::Type::kTensorOpen, 1));
        const auto made = create_tensor(*maker, "late", kF32, kShape).value();
        made.data[0] = std::byte{9};
        CHECK(publish_tensor(*maker, made.data, made.bytes, made.region_id).value() == 1);
        waiter.join();
        CHECK(seen == 1);
        CHECK(value == std::byte{9});
    }

    TEST_CASE("a wait for one that is never made or published ends at the deadline") {
        FakeDaemon daemon;
        const auto arena = join(daemon);
        CHECK(open_tensor(*arena, "never", Clock::now() + 20ms).error().code == Errc::kTimeout);
        const auto made = create_tensor(*arena, "quiet", kF32, kShape).value();
        const auto wait =
            await_tensor(*arena, made.data, made.bytes, made.region_id, 1, Clock::now() + 20ms);
        CHECK(wait.error().code == Errc::kTimeout);
    }

    TEST_CASE("a freed tensor is gone for all sessions, and its name is free again") {
        FakeDaemon daemon;
        const auto maker = join(daemon), reader = join(daemon);
        const auto made = create_tensor(*maker, "short", kF32, kShape).value();
        const auto found = open_tensor(*reader, "short", soon()).value();
        CHECK(free_tensor(*maker, made.data, made.bytes, made.region_id).ok());
        CHECK(publish_tensor(*reader, found.data, found.bytes, found.region_id).error().code ==
              Errc::kNotFound);
        CHECK(free_tensor(*maker, made.data, made.bytes, made.region_id).error().code ==
              Errc::kNotFound);
        CHECK(create_tensor(*maker, "short", kF32, kShape).ok());
    }

    TEST_CASE("a struct that outlived its tensor is not taken for the next one in its place") {
        FakeDaemon daemon;
        const auto maker = join(daemon), reader = join(daemon);
        const auto made = create_tensor(*maker, "old", kF32, kShape).value();
        const auto found = open_tensor(*reader, "old", soon()).value();
        // Freed, and the id and the bytes granted again to a tensor of this process.
        auto& header = *reinterpret_cast<TensorHeader*>(found.data - kTensorHeaderBytes);
        const TensorKey next{found.region_id, header.generation + 1};
        format_tensor(header, next, own_identity().value());
        CHECK(publish_tensor(*reader, found.data, found.bytes, found.region_id).error().code ==
              Errc::kNotFound);
        CHECK(await_tensor(*reader, found.data, found.bytes, found.region_id, 1, soon())
                  .error()
                  .code == Errc::kNotFound);
        CHECK(free_tensor(*maker, made.data, made.bytes, made.region_id).error().code ==
              Errc::kNotFound);
        CHECK(is_tensor(header, next));
        CHECK(header.version.load() == 0);
    }

    TEST_CASE("pointers that are no tensor of the arena are refused") {
        FakeDaemon daemon;
        const auto arena = join(daemon);
        const auto made = create_tensor(*arena, "real", kF32, kShape).value();
        alignas(128) std::byte elsewhere[256] = {};
        const auto code = [&](const void* data) {
            return publish_tensor(*arena, data, made.bytes, made.region_id).error().code;
        };
        CHECK(code(nullptr) == Errc::kInvalid);
        CHECK(code(elsewhere + 128) == Errc::kInvalid);
        CHECK(code(arena->base()) == Errc::kInvalid);
        CHECK(code(made.data + 4) == Errc::kInvalid);
        CHECK(code(made.data + 128) == Errc::kNotFound);
        CHECK(publish_tensor(*arena, made.data, made.bytes, made.region_id + 1).error().code ==
              Errc::kNotFound);
    }
}
