// Sums of symmetric matrices through fabricd and the C ABI, against sums made here in double.

#include <doctest/doctest.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <fabricshm/symmetric.h>
#include <fabricshm/symmetric.hpp>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/job.hpp"

using test_support::Child;
using test_support::Daemon;
using test_support::failed;
using test_support::Gate;
using test_support::Job;
using test_support::run_children;

namespace {

constexpr std::int64_t kTimeoutMs = 60'000;
constexpr std::uint64_t kArenaBytes = 96 << 20;  // a group of four takes 16 MiB for its slots
constexpr std::size_t kN = 101;

fabricshm_group* join(const Job& job, const char* name, int rank, int world) {
    fabricshm_group* group = nullptr;
    if (fabricshm_group_join(job.arena, name, rank, world, kTimeoutMs, &group) != 0) failed(100);
    return group;
}

// v v^T + (rank + 1) n I, which is positive definite.
double element(int rank, std::size_t i, std::size_t j) {
    const auto v = [rank](std::size_t k) { return std::sin(static_cast<double>(k) + rank); };
    return v(i) * v(j) + (i == j ? (rank + 1.0) * static_cast<double>(kN) : 0.0);
}

template <typename T>
std::vector<T> matrix(int rank) {
    std::vector<T> full(kN * kN);
    for (std::size_t i = 0; i < kN; ++i) {
        for (std::size_t j = 0; j < kN; ++j) full[i * kN + j] = static_cast<T>(element(rank, i, j));
    }
    return full;
}

template <typename T>
bool is_sum(const std::vector<T>& got, int world, double tolerance) {
    for (std::size_t i = 0; i < kN; ++i) {
        for (std::size_t j = 0; j < kN; ++j) {
            double sum = 0;
            for (int rank = 0; rank < world; ++rank) sum += element(rank, i, j);
            if (!(std::abs(got[i * kN + j] - sum) <= tolerance * kN * world)) return false;
        }
    }
    return true;
}

struct Sum {
    int code = 0;
    fabricshm_symmetric_report report{};
};

template <typename T>
Sum sum(fabricshm_group* group, std::vector<T>& values, fabricshm_symmetric_method method) {
    const auto type = sizeof(T) == 4 ? FABRICSHM_F32 : FABRICSHM_F64;
    const auto call = fabricshm_symmetric_make(method, type, kN, values.data(), values.data());
    Sum sum;
    sum.report.struct_size = sizeof sum.report;
    sum.code = fabricshm_allreduce_symmetric(group, &call, &sum.report);
    return sum;
}

// Whether this machine has a LAPACK is what the library says; it may be packed then.
template <typename T>
int check_method(fabricshm_group* group, fabricshm_symmetric_method method, double tolerance) {
    std::vector<T> values = matrix<T>(fabricshm_group_rank(group));
    const Sum done = sum(group, values, method);
    if (done.code != 0) return failed(10);
    if (!is_sum(values, fabricshm_group_world(group), tolerance)) return failed(11);
    if (done.report.sent_bytes != kN * (kN + 1) / 2 * sizeof(T)) return failed(12);
    if (done.report.obstacle == FABRICSHM_OBSTACLE_NO_LIBRARY) return 0;
    if (done.report.method != method || done.report.fallbacks != 0) return failed(13);
    if (!(done.report.error < tolerance)) return failed(14);
    return 0;
}

int refuses(fabricshm_group* group) {
    constexpr int kNone = 77;
    std::vector<double> values = matrix<double>(0);
    const auto good =
        fabricshm_symmetric_make(FABRICSHM_PACKED, FABRICSHM_F64, kN, values.data(), values.data());
    const auto code_with = [&](auto change) {
        fabricshm_symmetric_call call = good;
        change(call);
        return fabricshm_allreduce_symmetric(group, &call, nullptr);
    };
    const int codes[] = {
        // No values of the types in C++.
        code_with([&](auto& call) { std::memcpy(&call.method, &kNone, sizeof kNone); }),
        code_with([&](auto& call) { std::memcpy(&call.algorithm, &kNone, sizeof kNone); }),
        code_with([&](auto& call) { std::memcpy(&call.dtype, &kNone, sizeof kNone); }),
        code_with([](auto& call) { call.reserved = 1; }),
        code_with([](auto& call) { call.n = (1 << 20) + 1; }),
        code_with([](auto& call) { call.input = nullptr; }),
        code_with([](auto& call) { call.timeout_ms = -5; }),
        code_with([](auto& call) { call.struct_size = 8; }),
        fabricshm_allreduce_symmetric(nullptr, &good, nullptr),
        fabricshm_allreduce_symmetric(group, nullptr, nullptr),
    };
    int step = 20;
    for (const int code : codes) {
        ++step;
        if (code != FABRICSHM_EINVAL) return failed(step);
    }
    if (code_with([](auto& call) { call.dtype = FABRICSHM_I32; }) != FABRICSHM_EUNSUPPORTED) {
        return failed(40);
    }
    fabricshm_symmetric_report small{};
    small.struct_size = 8;
    return fabricshm_allreduce_symmetric(group, &good, &small) == FABRICSHM_EINVAL ? 0 : failed(41);
}

}  // namespace

TEST_SUITE("multiproc.client.symmetric") {
    TEST_CASE("matrices of two, three and four ranks add up by both methods") {
        const Daemon daemon;
        for (const int world : {2, 3, 4}) {
            const auto codes = run_children(world, [&](int rank) -> int {
                const Job job(daemon.socket(), kArenaBytes);
                fabricshm_group* group = join(job, "sum", rank, world);
                if (!job.ok || group == nullptr) return 1;
                for (const auto method : {FABRICSHM_PACKED, FABRICSHM_CHOLESKY}) {
                    if (const int code = check_method<float>(group, method, 1e-5)) return code;
                    if (const int code = check_method<double>(group, method, 1e-14)) return code;
                }
                return 0;
            });
            CHECK(codes == std::vector<int>(static_cast<std::size_t>(world), 0));
        }
    }

    TEST_CASE("without a LAPACK on one rank all send triangles and say why") {
        const Daemon daemon;
        const auto codes = run_children(3, [&](int rank) -> int {
            if (rank == 1) ::setenv("FABRIC_LAPACK", "/nonexistent/liblapack.so", 1);
            const Job job(daemon.socket(), kArenaBytes);
            fabricshm_group* group = join(job, "poor", rank, 3);
            if (!job.ok || group == nullptr) return 1;
            for (std::uint64_t times = 1; times <= 2; ++times) {
                std::vector<double> values = matrix<double>(rank);
                const Sum done = sum(group, values, FABRICSHM_CHOLESKY);
                if (done.code != 0) return failed(2);
                if (done.report.method != FABRICSHM_PACKED) return failed(3);
                if (done.report.obstacle != FABRICSHM_OBSTACLE_NO_LIBRARY) return failed(4);
                if (done.report.fallbacks != times) return failed(5);
                if (!is_sum(values, 3, 1e-14)) return failed(6);
            }
            return 0;
        });
        CHECK(codes == std::vector<int>(3, 0));
    }

    TEST_CASE("FABRIC_LAPACK=off is no LAPACK") {
        const Daemon daemon;
        Child child([&]() -> int {
            ::setenv("FABRIC_LAPACK", "off", 1);
            const Job job(daemon.socket(), kArenaBytes);
            fabricshm_group* group = join(job, "alone", 0, 1);
            if (!job.ok || group == nullptr) return 1;
            std::vector<double> values = matrix<double>(0);
            const Sum done = sum(group, values, FABRICSHM_CHOLESKY);
            return done.report.obstacle == FABRICSHM_OBSTACLE_NO_LIBRARY ? 0 : failed(2);
        });
        CHECK(child.wait() == 0);
    }

    TEST_CASE("arguments out of their range are refused, and the group goes on") {
        const Daemon daemon;
        const auto codes = run_children(2, [&](int rank) -> int {
            const Job job(daemon.socket(), kArenaBytes);
            fabricshm_group* group = join(job, "strict", rank, 2);
            if (!job.ok || group == nullptr) return 1;
            if (const int code = refuses(group)) return code;
            return check_method<double>(group, FABRICSHM_PACKED, 1e-14);
        });
        CHECK(codes == std::vector<int>(2, 0));
    }

    TEST_CASE("a full arena makes it slower, not impossible") {
        const Daemon daemon;
        const auto codes = run_children(2, [&](int rank) -> int {
            const Job job(daemon.socket(), kArenaBytes);
            fabricshm_group* group = join(job, "full", rank, 2);
            if (!job.ok || group == nullptr) return 1;
            // The largest block first, then smaller ones, until nothing of a packed matrix fits.
            for (std::uint64_t bytes = kArenaBytes; bytes >= 4096; bytes /= 2) {
                while (fabricshm_alloc(job.arena, bytes) != nullptr) {
                }
            }
            if (fabricshm_barrier(group) != 0) return failed(2);
            for (const auto method : {FABRICSHM_PACKED, FABRICSHM_CHOLESKY}) {
                if (const int code = check_method<double>(group, method, 1e-14)) return code;
            }
            return 0;
        });
        CHECK(codes == std::vector<int>(2, 0));
    }

    TEST_CASE("when a rank dies the survivors get its number, shrink, and go on") {
        const Daemon daemon;
        constexpr int kWorld = 3;
        constexpr int kVictim = 1;
        for (const auto method : {FABRICSHM_PACKED, FABRICSHM_CHOLESKY}) {
            Gate joined;
            std::vector<Child> children;
            for (int rank = 0; rank < kWorld; ++rank) {
                children.emplace_back([&, rank]() -> int {
                    const Job job(daemon.socket(), kArenaBytes);
                    fabricshm_group* group = join(job, "world", rank, kWorld);
                    if (!job.ok || group == nullptr) return 1;
                    if (const int code = check_method<double>(group, method, 1e-14)) return code;
                    joined.open();
                    int code = FABRICSHM_OK;
                    while (code == FABRICSHM_OK) {
                        std::vector<double> values = matrix<double>(rank);
                        code = sum(group, values, method).code;
                    }
                    if (code != FABRICSHM_EPEER || fabricshm_error_rank() != kVictim) {
                        return failed(2);
                    }
                    fabricshm_group* survivors = nullptr;
                    if (fabricshm_group_shrink(group, kTimeoutMs, &survivors) != 0) {
                        return failed(3);
                    }
                    fabricshm_group_leave(group);
                    std::vector<double> values = matrix<double>(fabricshm_group_rank(survivors));
                    if (sum(survivors, values, method).code != 0) return failed(4);
                    return is_sum(values, kWorld - 1, 1e-14) ? 0 : failed(5);
                });
            }
            REQUIRE(joined.wait(kWorld));
            children[kVictim].kill();
            for (int rank = 0; rank < kWorld; ++rank) {
                if (rank != kVictim) CHECK(children[static_cast<std::size_t>(rank)].wait() == 0);
            }
        }
    }

    TEST_CASE("in C++ spans are summed, and those of a wrong size refused") {
        const Daemon daemon;
        const auto codes = run_children(2, [&](int rank) -> int {
            fabricshm::api::SessionOptions options;
            options.socket = daemon.socket();
            auto session = fabricshm::api::Session::open(options);
            if (!session.ok()) return 1;
            auto arena = session.value().open_arena("job", kArenaBytes);
            if (!arena.ok()) return 2;
            auto group = arena.value().join("cxx", rank, 2);
            if (!group.ok()) return 3;
            const std::vector<float> own = matrix<float>(rank);
            std::vector<float> got(own.size());
            const auto done =
                fabricshm::api::allreduce_symmetric(group.value(), kN, own, std::span(got));
            if (!done.ok() || !is_sum(got, 2, 1e-5)) return 4;
            const auto refused =
                fabricshm::api::allreduce_symmetric(group.value(), kN - 1, own, std::span(got));
            return !refused.ok() && refused.error().code == FABRICSHM_EINVAL ? 0 : 5;
        });
        CHECK(codes == std::vector<int>(2, 0));
    }
}
