// Named tensors between processes, through fabricd.

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/job.hpp"

using test_support::Child;
using test_support::Daemon;
using test_support::failed;
using test_support::Gate;
using test_support::Job;

namespace {

constexpr std::int64_t kElements = 1000;
const std::int64_t kShape[] = {10, 100};

int create(const Job& job, const char* name, fabricshm_tensor* tensor) {
    return fabricshm_tensor_create(job.arena, name, FABRICSHM_I64, 2, kShape, tensor);
}

bool all_are(const fabricshm_tensor& tensor, std::int64_t value) {
    const auto* elements = static_cast<const std::int64_t*>(tensor.data);
    for (std::int64_t i = 0; i < kElements; ++i) {
        if (elements[i] != value) return false;
    }
    return true;
}

void fill(const fabricshm_tensor& tensor, std::int64_t value) {
    auto* elements = static_cast<std::int64_t*>(tensor.data);
    for (std::int64_t i = 0; i < kElements; ++i) elements[i] = value;
}

}  // namespace

TEST_SUITE("multiproc.client.tensors") {
    TEST_CASE("readers that wait for it see every version whole") {
        const Daemon daemon;
        constexpr int kReaders = 3;
        constexpr std::uint64_t kVersions = 200;
        Gate read;
        Child writer([&]() -> int {
            const Job job(daemon.socket());
            fabricshm_tensor tensor;
            if (!job.ok || create(job, "weights", &tensor) != 0) return failed(1);
            for (std::uint64_t version = 1; version <= kVersions; ++version) {
                // Publishing does not lock: the next version waits for the readers of this one.
                if (!read.wait(static_cast<int>(version - 1) * kReaders)) return 2;
                fill(tensor, static_cast<std::int64_t>(version));
                std::uint64_t published = 0;
                if (fabricshm_tensor_publish(job.arena, &tensor, &published) != 0) return failed(3);
                if (published != version) return 4;
            }
            return read.wait(static_cast<int>(kVersions) * kReaders) ? 0 : 5;
        });
        const auto codes = test_support::run_children(kReaders, [&](int) -> int {
            const Job job(daemon.socket());
            fabricshm_tensor tensor;
            if (!job.ok) return 1;
            if (fabricshm_tensor_open(job.arena, "weights", 60'000, &tensor) != 0) return failed(2);
            if (tensor.ndim != 2 || tensor.shape[1] != 100 || tensor.dtype != FABRICSHM_I64)
                return 3;
            for (std::uint64_t version = 1; version <= kVersions; ++version) {
                std::uint64_t seen = 0;
                if (fabricshm_tensor_wait(job.arena, &tensor, version, 60'000, &seen) != 0) {
                    return failed(4);
                }
                if (seen != version || !all_are(tensor, static_cast<std::int64_t>(seen))) return 5;
                read.open();
            }
            return 0;
        });
        CHECK(codes == std::vector<int>(kReaders, 0));
        CHECK(writer.wait() == 0);
    }

    TEST_CASE("the death of the maker ends the waits, and its name is free again") {
        const Daemon daemon;
        Gate made, waiting;
        Child maker([&]() -> int {
            const Job job(daemon.socket());
            fabricshm_tensor tensor;
            if (!job.ok || create(job, "orphan", &tensor) != 0) return failed(1);
            made.open();
            Gate forever;
            return forever.wait() ? 0 : 2;
        });
        REQUIRE(made.wait());
        Child waiter([&]() -> int {
            const Job job(daemon.socket());
            fabricshm_tensor tensor;
            if (!job.ok || fabricshm_tensor_open(job.arena, "orphan", 60'000, &tensor) != 0) {
                return failed(1);
            }
            waiting.open();
            const int code = fabricshm_tensor_wait(job.arena, &tensor, 1, 60'000, nullptr);
            // Gone, when the daemon was faster than our check of its process.
            if (code != FABRICSHM_EPEER && code != FABRICSHM_ENOENT) return failed(2);
            for (int i = 0; i < 2'000'000; ++i) {
                if (create(job, "orphan", &tensor) == 0) return 0;
            }
            return failed(3);
        });
        REQUIRE(waiting.wait());
        maker.kill();
        CHECK(waiter.wait() == 0);
    }

    TEST_CASE(
        "a name is taken while its tensor lives, and waiting for one that no session makes ends") {
        const Daemon daemon;
        Child child([&]() -> int {
            const Job one(daemon.socket()), two(daemon.socket());
            fabricshm_tensor tensor, other;
            if (!one.ok || !two.ok || create(one, "taken", &tensor) != 0) return failed(1);
            if (create(two, "taken", &other) != FABRICSHM_EEXIST) return failed(2);
            if (fabricshm_tensor_open(two.arena, "never", 20, &other) != FABRICSHM_ETIMEOUT)
                return 3;
            if (std::string(fabricshm_error_text()).find("'never'") == std::string::npos) return 4;
            if (fabricshm_tensor_open(two.arena, "taken", 0, &other) != 0) return failed(5);
            if (fabricshm_tensor_free(one.arena, &tensor) != 0) return failed(6);
            if (fabricshm_tensor_publish(two.arena, &other, nullptr) != FABRICSHM_ENOENT) return 7;
            return create(two, "taken", &other) == 0 ? 0 : failed(8);
        });
        CHECK(child.wait() == 0);
    }
}
