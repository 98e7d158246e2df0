#include "libfabricshm/shm/tensor_header.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <new>
#include <thread>
#include <vector>

using namespace fabricshm;
using namespace std::chrono_literals;

namespace {

constexpr TensorKey kTensorKey{7, 3};

// A header and a few elements in memory that forked children share.
struct SharedTensor {
    SharedTensor() {
        void* memory =
            ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        header = new (memory) TensorHeader{};
        elements = reinterpret_cast<std::uint64_t*>(header + 1);
    }
    ~SharedTensor() { ::munmap(header, 8192); }
    TensorHeader* header;
    std::uint64_t* elements;
};

TimePoint soon() {
    return Clock::now() + 30s;
}

}  // namespace

TEST_SUITE("shm.tensor_header") {
    TEST_CASE("a fresh tensor has version 0 and every publication adds one") {
        SharedTensor tensor;
        format_tensor(*tensor.header, kTensorKey, own_identity().value());
        CHECK(is_tensor(*tensor.header, kTensorKey));
        CHECK(wait_for_version(*tensor.header, kTensorKey, 0, soon()).value() == 0);
        CHECK(publish_tensor(*tensor.header) == 1);
        CHECK(publish_tensor(*tensor.header) == 2);
        CHECK(wait_for_version(*tensor.header, kTensorKey, 1, soon()).value() == 2);
    }

    TEST_CASE("what an earlier tensor left in the memory is not taken for the new one") {
        SharedTensor tensor;
        format_tensor(*tensor.header, kTensorKey, own_identity().value());
        const TensorKey next{kTensorKey.region_id, kTensorKey.generation + 1};
        CHECK_FALSE(is_tensor(*tensor.header, next));
        CHECK(await_tensor(*tensor.header, next, Clock::now() + 2ms).error().code ==
              Errc::kTimeout);
    }

    TEST_CASE("a wait without a publish ends at the deadline") {
        SharedTensor tensor;
        format_tensor(*tensor.header, kTensorKey, own_identity().value());
        CHECK(wait_for_version(*tensor.header, kTensorKey, 1, Clock::now() + 5ms).error().code ==
              Errc::kTimeout);
        CHECK(sleepers_on(*tensor.header) == 0);
    }

    TEST_CASE("threads that wait see the elements of every version") {
        SharedTensor tensor;
        format_tensor(*tensor.header, kTensorKey, own_identity().value());
        constexpr std::uint64_t kVersions = 2000;
        std::vector<std::thread> readers;
        std::vector<int> wrong(3, 0);
        // Each reader acknowledges a version before the writer makes the next one, so that the
        // plain elements are never read and written at the same time.
        std::atomic<std::uint64_t> read{0};
        for (auto& errors : wrong) {
            readers.emplace_back([&] {
                for (std::uint64_t v = 1; v <= kVersions; ++v) {
                    const auto seen = wait_for_version(*tensor.header, kTensorKey, v, soon());
                    if (!seen.ok() || tensor.elements[0] != v) ++errors;
                    read.fetch_add(1);
                }
            });
        }
        for (std::uint64_t v = 1; v <= kVersions; ++v) {
            while (read.load() < (v - 1) * wrong.size()) std::this_thread::yield();
            tensor.elements[0] = v;
            publish_tensor(*tensor.header);
        }
        for (auto& reader : readers) reader.join();
        CHECK(wrong == std::vector<int>(3, 0));
    }

    TEST_CASE("a process sleeps until another one publishes") {
        SharedTensor tensor;
        format_tensor(*tensor.header, kTensorKey, own_identity().value());
        const pid_t child = ::fork();
        if (child == 0) {
            const auto seen = wait_for_version(*tensor.header, kTensorKey, 1, soon());
            ::_exit(seen.ok() && tensor.elements[0] == 42 ? 0 : 1);
        }
        while (sleepers_on(*tensor.header) == 0) std::this_thread::yield();
        tensor.elements[0] = 42;
        publish_tensor(*tensor.header);
        int status = -1;
        ::waitpid(child, &status, 0);
        CHECK(status == 0);
    }

    TEST_CASE("the death of the maker ends the wait, but what it published counts") {
        SharedTensor tensor;
        const pid_t child = ::fork();
        if (child == 0) {
            format_tensor(*tensor.header, kTensorKey, own_identity().value());
            publish_tensor(*tensor.header);
            for (;;) ::pause();
        }
        REQUIRE(await_tensor(*tensor.header, kTensorKey, soon()).ok());
        REQUIRE(wait_for_version(*tensor.header, kTensorKey, 1, soon()).ok());
        ::kill(child, SIGKILL);
        const auto missing = wait_for_version(*tensor.header, kTensorKey, 2, soon());
        CHECK(missing.error().code == Errc::kPeer);
        CHECK(missing.error().detail == -1);
        CHECK(wait_for_version(*tensor.header, kTensorKey, 1, soon()).value() == 1);
        ::waitpid(child, nullptr, 0);
    }

    TEST_CASE("a waiter leaves alone what the next owner of the memory wrote") {
        SharedTensor tensor;
        format_tensor(*tensor.header, kTensorKey, own_identity().value());
        // The tensor was freed and its memory granted again between the waiter's check and its
        // sleep, as far as the waiter can see.
        constexpr std::uint64_t kTheirs = 0x0123456789abcdef;
        tensor.header->sleepers.store(kTheirs);
        std::atomic<bool> done{false};
        Errc seen = Errc::kOk;
        std::thread waiter([&] {
            seen =
                wait_for_version(*tensor.header, kTensorKey, 1, Clock::now() + 20ms).error().code;
            done.store(true);
        });
        bool touched = false;
        while (!done.load()) touched = touched || tensor.header->sleepers.load() != kTheirs;
        waiter.join();
        CHECK_FALSE(touched);
        CHECK(tensor.header->sleepers.load() == kTheirs);
        CHECK(seen == Errc::kTimeout);
    }

    TEST_CASE("freeing a tensor wakes its waiters with kNotFound") {
        SharedTensor tensor;
        format_tensor(*tensor.header, kTensorKey, own_identity().value());
        Errc seen = Errc::kOk;
        std::thread waiter(
            [&] { seen = wait_for_version(*tensor.header, kTensorKey, 1, soon()).error().code; });
        while (sleepers_on(*tensor.header) == 0) std::this_thread::yield();
        retire_tensor(*tensor.header);
        waiter.join();
        CHECK(seen == Errc::kNotFound);
    }
}
