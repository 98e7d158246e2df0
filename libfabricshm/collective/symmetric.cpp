#include "libfabricshm/collective/symmetric.hpp"

#include <cmath>
#include <utility>

#include "kernels/symmetric.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/os/poison.hpp"

namespace fabricshm {

namespace {

Bytes packed_bytes(const SymmetricCall& call) noexcept {
    return kernels::packed_count(call.n) * kernels::size_of(call.dtype);
}

Bytes full_bytes(const SymmetricCall& call) noexcept {
    return call.n * call.n * kernels::size_of(call.dtype);
}

bool overlap(const SymmetricCall& call) noexcept {
    const Bytes bytes = full_bytes(call);
    return call.input < call.output + bytes && call.output < call.input + bytes;
}

}  // namespace

// What the ranks find out together, by the maximum of each number. All are exact as doubles.
struct SymmetricReduce::Agreement {
    double obstacle = 0;
    double jitter = 0;
    double error = 0;
    double matrix = 0;  // of size and type: is the same on all if its maximum is minus that of
    double minus = 0;   // its negative
    static constexpr std::uint64_t kCount = 5;
};

SymmetricReduce::SymmetricReduce(Group& group, ArenaMemory arena)
    : group_(group), own_(arena), received_(std::move(arena)) {}

Result<SymmetricReport> SymmetricReduce::run(const SymmetricCall& call) {
    FABRIC_TRY_VOID(check(call));
    if (!own_.reserve(packed_bytes(call))) {
        return Error{Errc::kNoMemory, 0, "packed matrix"};
    }
    if (call.method == SymmetricMethod::kCholesky) return run_cholesky(call);
    FABRIC_TRY_VOID(add_packed(call));
    SymmetricReport report;
    report.sent_bytes = packed_bytes(call);
    report.fallbacks = fallbacks_;
    return report;
}

void SymmetricReduce::settle() noexcept {
    own_.set_exposed(false);
    received_.set_exposed(false);
}

Result<void> SymmetricReduce::check(const SymmetricCall& call) const {
    if (call.dtype != kernels::DType::kF32 && call.dtype != kernels::DType::kF64) {
        return Error{Errc::kUnsupported, 0, "dtype: symmetric matrices are f32 or f64"};
    }
    if (call.n > kMaxSymmetric) return Error{Errc::kInvalid, 0, "n: above 2^20"};
    if (!(call.max_error >= 0)) return Error{Errc::kInvalid, 0, "max_error: below 0, or a NaN"};
    if (call.n == 0) return {};
    if (call.input == nullptr) return Error{Errc::kInvalid, 0, "input: null"};
    if (call.output == nullptr) return Error{Errc::kInvalid, 0, "output: null"};
    if (call.input != call.output && overlap(call)) {
        return Error{Errc::kInvalid, 0, "output: overlaps the input"};
    }
    return {};
}

// A collective of the group on memory of this object.
Result<void> SymmetricReduce::run_inside(Call& inside, const SymmetricCall& call) {
    inside.deadline = call.deadline;
    const Result<void> result = group_.run(inside);
    if (!result.ok()) {
        // Peers may be behind, and store into what this rank gave them as outputs.
        own_.set_exposed(true);
        received_.set_exposed(true);
    }
    return result;
}

Result<void> SymmetricReduce::add_packed(const SymmetricCall& call) {
    const PoisonGuard guard;
    kernels::pack_lower(call.dtype, call.input, call.n, own_.data());
    FABRIC_TRY_VOID(group_.intact(guard));
    Call inside;
    inside.kind = Kind::kAllreduce;
    inside.dtype = call.dtype;
    inside.algorithm = call.algorithm;
    inside.input = own_.data();
    inside.output = own_.data();
    inside.count = kernels::packed_count(call.n);
    FABRIC_TRY_VOID(run_inside(inside, call));
    kernels::unpack_symmetric(call.dtype, own_.data(), call.n, call.output);
    return group_.intact(guard);
}

CholeskyOutcome SymmetricReduce::encode(const SymmetricCall& call,
                                        std::unique_ptr<Cholesky>& cholesky) {
    if (lapack_ == nullptr) return {CholeskyObstacle::kNoLibrary};
    cholesky = Cholesky::make(call.dtype, call.n, *lapack_);
    const bool room = cholesky != nullptr && received_.reserve(packed_bytes(call));
    if (!room) return {CholeskyObstacle::kNoMemory};
    return cholesky->encode(call.input, own_.data(), call.max_error);
}

Result<SymmetricReduce::Agreement> SymmetricReduce::agree(const SymmetricCall& call,
                                                          const CholeskyOutcome& own) {
    const double matrix = static_cast<double>(call.n) * kernels::kDTypeCount +
                          static_cast<double>(static_cast<int>(call.dtype));
    Agreement agreed{static_cast<double>(static_cast<int>(own.obstacle)), own.jitter, own.error,
                     matrix, -matrix};
    static_assert(sizeof(Agreement) == Agreement::kCount * sizeof(double));
    Call inside;
    inside.kind = Kind::kAllreduce;
    inside.dtype = kernels::DType::kF64;
    inside.op = kernels::ReduceOp::kMax;
    inside.input = reinterpret_cast<const std::byte*>(&agreed);
    inside.output = reinterpret_cast<std::byte*>(&agreed);
    inside.count = Agreement::kCount;
    FABRIC_TRY_VOID(run_inside(inside, call));
    if (agreed.matrix != -agreed.minus) {
        // Which rank differs is not known, only that one does. All ranks are here, and the group is
        // as whole as before.
        return Error{Errc::kMismatch, -1, "n or dtype"};
    }
    // Other processes write what it is made of.
    const bool sane = agreed.obstacle >= static_cast<double>(static_cast<int>(own.obstacle)) &&
                      agreed.obstacle < kCholeskyObstacleCount;
    if (!sane) return Error{Errc::kCorrupt, 0, "agree on Cholesky factors"};
    return agreed;
}

Result<void> SymmetricReduce::add_factors(const SymmetricCall& call, Cholesky& cholesky) {
    // In the order of ranks, so that all get the same bits.
    for (int rank = 0; rank < group_.world(); ++rank) {
        const bool own = rank == group_.rank();
        Call inside;
        inside.kind = Kind::kBroadcast;
        inside.dtype = call.dtype;
        inside.root = rank;
        inside.input = own_.data();
        inside.output = own ? own_.data() : received_.data();
        inside.count = kernels::packed_count(call.n);
        FABRIC_TRY_VOID(run_inside(inside, call));
        cholesky.add(own ? nullptr : received_.data(), call.output, rank == 0);
    }
    kernels::mirror_lower(call.dtype, call.output, call.n);
    return {};
}

Result<SymmetricReport> SymmetricReduce::run_cholesky(const SymmetricCall& call) {
    const PoisonGuard guard;
    std::unique_ptr<Cholesky> cholesky;
    const CholeskyOutcome own = encode(call, cholesky);
    FABRIC_TRY_VOID(group_.intact(guard));
    FABRIC_TRY(const Agreement agreed, agree(call, own));
    SymmetricReport report;
    report.sent_bytes = packed_bytes(call);
    report.obstacle = static_cast<CholeskyObstacle>(static_cast<int>(agreed.obstacle));
    if (report.obstacle == CholeskyObstacle::kNone) {
        // The maximum is no less than this rank's own.
        FABRIC_CHECK(own.obstacle == CholeskyObstacle::kNone && cholesky != nullptr);
        FABRIC_TRY_VOID(add_factors(call, *cholesky));
        report.method = SymmetricMethod::kCholesky;
        report.jitter = agreed.jitter;
        report.error = agreed.error;
        report.fallbacks = fallbacks_;
        FABRIC_TRY_VOID(group_.intact(guard));
        return report;
    }
    cholesky.reset();  // its memory, before the wait for others
    FABRIC_TRY_VOID(add_packed(call));
    report.fallbacks = ++fallbacks_;
    if (fallbacks_ == 1) {
        log(LogLevel::kInfo,
            "rank %d of %d: a %llu x %llu matrix travels as its triangle, not as a Cholesky factor:"
            " %s (of one rank at least; the first time in this group)",
            group_.rank(), group_.world(), static_cast<unsigned long long>(call.n),
            static_cast<unsigned long long>(call.n), text_of(report.obstacle));
    }
    return report;
}

}  // namespace fabricshm
