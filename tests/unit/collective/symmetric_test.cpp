// Sums of symmetric matrices by ranks in threads and processes, against sums in long double that
// were made one element after the other.

#include "libfabricshm/collective/symmetric.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/support/lapack.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/skip.hpp"

using namespace fabricshm;
using namespace test_support;

namespace {

constexpr Bytes kPerRank = 16 * kMiB;

bool has_lapack() {
    if (some_lapack() != nullptr) return true;
    test_support::skip("no LAPACK");
    return false;
}

TimePoint soon() {
    return Clock::now() + std::chrono::seconds(60);
}

// Positive definite, since the diagonal is larger than the rest of its row, and of any magnitude.
double element(int rank, std::uint64_t n, std::uint64_t i, std::uint64_t j) {
    if (i == j) return static_cast<double>(n) + 1.25 * (rank + 1);
    const std::uint64_t low = std::min(i, j);
    const std::uint64_t high = std::max(i, j);
    const std::uint64_t mixed =
        (low * 2654435761u + high * 40503u + static_cast<unsigned>(rank)) % 997;
    return static_cast<double>(mixed) / 997 - 0.5;
}

template <typename T>
std::vector<T> matrix(int rank, std::uint64_t n) {
    std::vector<T> full(n * n);
    for (std::uint64_t i = 0; i < n; ++i) {
        for (std::uint64_t j = 0; j < n; ++j)
            full[i * n + j] = static_cast<T>(element(rank, n, i, j));
    }
    return full;
}

// The largest difference to the sum of all ranks, of the size of the largest element.
template <typename T>
double worst(const std::vector<T>& got, int world, std::uint64_t n) {
    long double most = 0;
    for (std::uint64_t i = 0; i < n; ++i) {
        for (std::uint64_t j = 0; j < n; ++j) {
            long double sum = 0;
            for (int rank = 0; rank < world; ++rank) {
                sum += static_cast<long double>(static_cast<T>(element(rank, n, i, j)));
            }
            most = std::max(most, std::abs(sum - static_cast<long double>(got[i * n + j])));
        }
    }
    return static_cast<double>(most) / (static_cast<double>(n + 2) * world);
}

template <typename T>
constexpr kernels::DType kType = sizeof(T) == 4 ? kernels::DType::kF32 : kernels::DType::kF64;

template <typename T>
SymmetricCall call_of(SymmetricMethod method, std::uint64_t n, const std::vector<T>& input,
                      std::vector<T>& output) {
    SymmetricCall call;
    call.method = method;
    call.dtype = kType<T>;
    call.n = n;
    call.input = reinterpret_cast<const std::byte*>(input.data());
    call.output = reinterpret_cast<std::byte*>(output.data());
    call.deadline = soon();
    return call;
}

// Memory of the arena for scratch, as the heap of a session gives it.
ArenaMemory memory_of(RankContext& context) {
    ArenaMemory memory;
    memory.allocate = [&context](Bytes bytes) { return context.place(context.rank, bytes); };
    memory.release = [](std::byte*) {};
    return memory;
}

// The sum of all ranks' vectors as a plain allreduce gives it.
template <typename T>
bool plain_sum(RankContext& context, Algorithm algorithm, std::vector<T>& values) {
    Call call;
    call.kind = Kind::kAllreduce;
    call.dtype = kType<T>;
    call.algorithm = algorithm;
    call.input = reinterpret_cast<const std::byte*>(values.data());
    call.output = reinterpret_cast<std::byte*>(values.data());
    call.count = values.size();
    call.deadline = soon();
    return context.group.run(call).ok();
}

template <typename T>
bool packed_is_exact(RankContext& context, Algorithm algorithm, bool in_arena) {
    SymmetricReduce reduce(context.group, in_arena ? memory_of(context) : ArenaMemory{});
    for (const std::uint64_t n : {0, 1, 2, 5, 33, 200}) {
        const std::vector<T> own = matrix<T>(context.rank, n);
        std::vector<T> full = own;
        if (!plain_sum(context, algorithm, full)) return report(context, "plain sum");
        std::vector<T> got(n * n, 3);
        SymmetricCall call = call_of(SymmetricMethod::kPacked, n, own, got);
        call.algorithm = algorithm;
        const auto done = reduce.run(call);
        if (!done.ok()) return report(context, "%s", describe(done.error()).c_str());
        if (std::memcmp(got.data(), full.data(), full.size() * sizeof(T)) != 0) {
            return report(context, "n = %d: not the bits of the full sum", static_cast<int>(n));
        }
        if (done->sent_bytes != n * (n + 1) / 2 * sizeof(T)) return report(context, "bytes");
        // In place.
        std::vector<T> same = own;
        call = call_of(SymmetricMethod::kPacked, n, same, same);
        call.algorithm = algorithm;
        if (!reduce.run(call).ok() || same != full) return report(context, "in place");
    }
    return true;
}

template <typename T>
bool factors_sum(RankContext& context, double tolerance) {
    SymmetricReduce reduce(context.group, memory_of(context));
    reduce.set_lapack(some_lapack());
    for (const std::uint64_t n : {0, 1, 2, 5, 33, 200}) {
        const std::vector<T> own = matrix<T>(context.rank, n);
        std::vector<T> got(n * n, 3);
        const auto done = reduce.run(call_of(SymmetricMethod::kCholesky, n, own, got));
        if (!done.ok()) return report(context, "%s", describe(done.error()).c_str());
        if (done->method != SymmetricMethod::kCholesky) return report(context, "packed");
        if (!(done->error < tolerance)) return report(context, "error %g", done->error);
        const double off = worst(got, context.world, n);
        if (!(off < tolerance))
            return report(context, "n = %d: off by %g", static_cast<int>(n), off);
        // The same bits on all ranks: nothing is larger or smaller anywhere.
        std::vector<T> largest = got;
        for (const auto op : {kernels::ReduceOp::kMax, kernels::ReduceOp::kMin}) {
            Call call;
            call.kind = Kind::kAllreduce;
            call.dtype = kType<T>;
            call.op = op;
            call.input = reinterpret_cast<const std::byte*>(got.data());
            call.output = reinterpret_cast<std::byte*>(largest.data());
            call.count = got.size();
            call.deadline = soon();
            if (!context.group.run(call).ok() || largest != got) return report(context, "bits");
        }
    }
    return true;
}

// Rank 1 has something that all have to agree about.
bool falls_back(RankContext& context, CholeskyObstacle obstacle) {
    SymmetricReduce reduce(context.group, memory_of(context));
    const bool odd = context.rank == 1;
    const bool no_library = obstacle == CholeskyObstacle::kNoLibrary && odd;
    reduce.set_lapack(no_library ? nullptr : some_lapack());
    const std::uint64_t n = 21;
    for (std::uint64_t times = 1; times <= 3; ++times) {
        std::vector<double> own = matrix<double>(context.rank, n);
        if (obstacle == CholeskyObstacle::kNotDefinite && odd) own[0] = -1000;
        if (obstacle == CholeskyObstacle::kNotFinite && odd) own[n] = std::nan("");
        std::vector<double> full = own;
        if (!plain_sum(context, Algorithm::kAuto, full)) return report(context, "plain sum");
        std::vector<double> got(n * n);
        SymmetricCall call = call_of(SymmetricMethod::kCholesky, n, own, got);
        if (obstacle == CholeskyObstacle::kInaccurate && odd) call.max_error = 1e-300;
        const auto done = reduce.run(call);
        if (!done.ok()) return report(context, "%s", describe(done.error()).c_str());
        if (done->method != SymmetricMethod::kPacked || done->obstacle != obstacle ||
            done->fallbacks != times) {
            return report(context, "obstacle %d", static_cast<int>(done->obstacle));
        }
        for (std::uint64_t i = 0; i < n; ++i) {
            if (std::memcmp(&got[i * n], &full[i * n], (i + 1) * sizeof(double)) != 0) {
                return report(context, "row %d", static_cast<int>(i));
            }
        }
    }
    return true;
}

Errc code_of(SymmetricReduce& reduce, const SymmetricCall& call) {
    const auto done = reduce.run(call);
    return done.ok() ? Errc::kOk : done.error().code;
}

bool refuses(RankContext& context) {
    SymmetricReduce reduce(context.group, memory_of(context));
    std::vector<double> a(9);
    std::vector<double> b(9);
    const SymmetricCall good = call_of(SymmetricMethod::kPacked, 3, a, b);
    const auto with = [&](auto change) {
        SymmetricCall call = good;
        change(call);
        return code_of(reduce, call);
    };
    const Errc codes[] = {
        with([](SymmetricCall& call) { call.n = kMaxSymmetric + 1; }),
        with([](SymmetricCall& call) { call.n = ~std::uint64_t{0}; }),
        with([](SymmetricCall& call) { call.input = nullptr; }),
        with([](SymmetricCall& call) { call.output = nullptr; }),
        with([](SymmetricCall& call) { call.output = const_cast<std::byte*>(call.input) + 8; }),
        with([](SymmetricCall& call) { call.max_error = -1; }),
        with([](SymmetricCall& call) { call.max_error = std::nan(""); }),
    };
    for (const Errc code : codes) {
        if (code != Errc::kInvalid) return report(context, "code %d", static_cast<int>(code));
    }
    if (with([](SymmetricCall& call) { call.dtype = kernels::DType::kF16; }) !=
        Errc::kUnsupported) {
        return report(context, "f16");
    }
    // The group is as it was.
    return code_of(reduce, good) == Errc::kOk || report(context, "good call");
}

// Bytes between each two ranks, as telemetry counts them.
Bytes metered(int world, std::uint64_t n, bool full, SymmetricMethod method) {
    TestArena arena(world, kPerRank);
    std::atomic<Bytes> bytes{0};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; ++rank) {
        threads.emplace_back([&, rank] {
            GroupPlace place = arena.place(rank);
            const auto meter = std::make_shared<Meter>();
            place.meter = meter;
            auto group = Group::attach(std::move(place), soon());
            if (!group.ok()) return;
            RankContext context = arena.context(**group);
            std::vector<double> own = matrix<double>(rank, n);
            if (full) {
                auto* memory = reinterpret_cast<double*>(context.place(rank, n * n * 8));
                Call call;
                call.kind = Kind::kAllreduce;
                call.dtype = kernels::DType::kF64;
                call.input = reinterpret_cast<const std::byte*>(memory);
                call.output = reinterpret_cast<std::byte*>(memory);
                call.count = n * n;
                call.deadline = soon();
                if (!(*group)->run(call).ok()) return;
            } else {
                SymmetricReduce reduce(**group, memory_of(context));
                reduce.set_lapack(some_lapack());
                if (!reduce.run(call_of(method, n, own, own)).ok()) return;
            }
            if (rank == 0) bytes = meter->sums().bytes_to[1];
        });
    }
    for (std::thread& thread : threads) thread.join();
    return bytes;
}

}  // namespace

TEST_SUITE("collective.symmetric") {
    TEST_CASE("packed triangles add up to the bits of the full allreduce") {
        for (const int world : {1, 2, 3, 4}) {
            CHECK(failures_in_processes(world, kPerRank, [](RankContext& context) {
                      return packed_is_exact<float>(context, Algorithm::kAuto, true) &&
                             packed_is_exact<double>(context, Algorithm::kAuto, true);
                  }) == 0);
        }
    }

    TEST_CASE("packed triangles may be forced along any algorithm but ring") {
        for (const Algorithm algorithm :
             {Algorithm::kFlat, Algorithm::kDirect, Algorithm::kStaged, Algorithm::kHost}) {
            CHECK(failures_in_threads(3, kPerRank, [algorithm](RankContext& context) {
                      return packed_is_exact<float>(context, algorithm, true);
                  }) == 0);
        }
    }

    TEST_CASE("without room in the arena packed triangles are in memory of the process") {
        CHECK(failures_in_processes(3, kPerRank, [](RankContext& context) {
                  return packed_is_exact<double>(context, Algorithm::kAuto, false);
              }) == 0);
    }

    TEST_CASE("factors add up to the sum, with the same bits on all ranks") {
        if (!has_lapack()) return;
        for (const int world : {1, 2, 3, 4}) {
            CHECK(failures_in_threads(world, kPerRank, [](RankContext& context) {
                      return factors_sum<float>(context, 1e-5) &&
                             factors_sum<double>(context, 1e-14);
                  }) == 0);
        }
    }

    TEST_CASE("when one rank has no factor all send triangles, and count it") {
        if (!has_lapack()) return;
        for (const CholeskyObstacle obstacle :
             {CholeskyObstacle::kNotDefinite, CholeskyObstacle::kNotFinite,
              CholeskyObstacle::kNoLibrary, CholeskyObstacle::kInaccurate}) {
            CAPTURE(text_of(obstacle));
            CHECK(failures_in_threads(3, kPerRank, [obstacle](RankContext& context) {
                      return falls_back(context, obstacle);
                  }) == 0);
        }
    }

    TEST_CASE("what no rank could run is refused, and the group stays whole") {
        CHECK(failures_in_threads(2, kPerRank, refuses) == 0);
    }

    TEST_CASE("ranks that give factors of different sizes or types all get a mismatch") {
        CHECK(failures_in_threads(3, kPerRank, [](RankContext& context) {
                  SymmetricReduce reduce(context.group, memory_of(context));
                  reduce.set_lapack(some_lapack());
                  const std::uint64_t n = context.rank == 1 ? 4 : 5;
                  std::vector<double> own = matrix<double>(context.rank, n);
                  const auto call = call_of(SymmetricMethod::kCholesky, n, own, own);
                  if (code_of(reduce, call) != Errc::kMismatch) return report(context, "size");
                  // And the group goes on.
                  std::vector<double> same = matrix<double>(context.rank, 5);
                  SymmetricCall next = call_of(SymmetricMethod::kCholesky, 5, same, same);
                  if (context.rank == 2) next.dtype = kernels::DType::kF32;
                  if (code_of(reduce, next) != Errc::kMismatch) return report(context, "type");
                  next.dtype = kernels::DType::kF64;
                  return code_of(reduce, next) == Errc::kOk || report(context, "afterwards");
              }) == 0);
    }

    TEST_CASE("ranks that ask for different methods get a mismatch") {
        CHECK(failures_in_threads(2, kPerRank, [](RankContext& context) {
                  SymmetricReduce reduce(context.group, memory_of(context));
                  // As many elements as the ranks agree by, and of the same type.
                  std::vector<double> own = matrix<double>(context.rank, 2);
                  const auto method =
                      context.rank == 0 ? SymmetricMethod::kPacked : SymmetricMethod::kCholesky;
                  return code_of(reduce, call_of(method, 2, own, own)) == Errc::kMismatch ||
                         report(context, "method");
              }) == 0);
    }

    TEST_CASE("half the bytes of the full allreduce cross the fabric") {
        constexpr std::uint64_t kN = 255;
        const auto share = [](int world, SymmetricMethod method) {
            return static_cast<double>(metered(world, kN, false, method)) /
                   static_cast<double>(metered(world, kN, true, method));
        };
        const double half = (kN + 1) / 2.0 / kN;
        CHECK(share(2, SymmetricMethod::kPacked) == doctest::Approx(half).epsilon(0.001));
        CHECK(share(3, SymmetricMethod::kPacked) == doctest::Approx(half).epsilon(0.001));
        if (!has_lapack()) return;
        // A factor goes to every rank whole, where of a sum each rank has its N-th.
        CHECK(share(2, SymmetricMethod::kCholesky) == doctest::Approx(half).epsilon(0.01));
        CHECK(share(4, SymmetricMethod::kCholesky) == doctest::Approx(2 * half).epsilon(0.01));
    }
}
