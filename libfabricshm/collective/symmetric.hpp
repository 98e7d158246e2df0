// The sum of the ranks' symmetric matrices, for half the bytes. docs/symmetric.md.
//
//   packed     the lower triangles are added up as one array: exact, any symmetric matrix
//   Cholesky   each rank gives its factor L to all others, which add up L L^T. If one rank has no
//              factor, all go on with packed triangles; they agree on it before any factor is sent
//
// A rank therefore runs one allreduce (packed), or a small one to agree and then a broadcast of
// each rank, or a small one and then the packed one.

#pragma once

#include <cstdint>
#include <memory>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/call.hpp"
#include "libfabricshm/collective/cholesky.hpp"
#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/collective/packed_buffer.hpp"

namespace fabricshm {

enum class SymmetricMethod : std::uint8_t { kPacked = 0, kCholesky = 1 };

/// A matrix above this has 4 TiB and more.
inline constexpr std::uint64_t kMaxSymmetric = std::uint64_t{1} << 20;

/// What the caller gives; the same on all ranks, but for buffers and `max_error`. Of `input` the
/// lower triangle is read, whether the upper one mirrors it or not; `output` gets both. In place,
/// or apart.
struct SymmetricCall {
    SymmetricMethod method = SymmetricMethod::kPacked;
    kernels::DType dtype = kernels::DType::kF32;  // or kF64
    Algorithm algorithm = Algorithm::kAuto;       // of the sum of packed triangles
    std::uint64_t n = 0;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    double max_error = 0;  // a factor with more is not sent; 0: any
    TimePoint deadline = TimePoint::max();
};

/// The same on all ranks.
struct SymmetricReport {
    SymmetricMethod method = SymmetricMethod::kPacked;    // that was used
    CholeskyObstacle obstacle = CholeskyObstacle::kNone;  // why it is not the one asked for
    double jitter = 0;            // the largest that a rank added to its diagonal, of its mean
    double error = 0;             // the largest ||L L^T - A|| / ||A|| of a rank
    Bytes sent_bytes = 0;         // of one packed matrix
    std::uint64_t fallbacks = 0;  // so far in this group
};

/// Of one rank in one group; one call at a time, in the order of the group's collectives.
class SymmetricReduce {
  public:
    /// Neither group nor arena is used by the destructor, but for ArenaMemory::release.
    SymmetricReduce(Group& group, ArenaMemory arena);

    /// For the Cholesky method; nullptr, as at first: there is none.
    void set_lapack(const Lapack* lapack) noexcept { lapack_ = lapack; }

    /// kInvalid, kUnsupported, kNoMemory: of this rank alone, as of other collectives. kMismatch:
    /// of all, if the ranks' calls differ. Anything else is of the collective inside; then the
    /// output is undefined.
    Result<SymmetricReport> run(const SymmetricCall& call);

    /// The group is quiet after a failure: no peer stores into memory of this rank any more.
    void settle() noexcept;

  private:
    struct Agreement;
    Result<void> check(const SymmetricCall& call) const;
    Result<void> run_inside(Call& inside, const SymmetricCall& call);
    Result<void> add_packed(const SymmetricCall& call);
    Result<Agreement> agree(const SymmetricCall& call, const CholeskyOutcome& own);
    CholeskyOutcome encode(const SymmetricCall& call, std::unique_ptr<Cholesky>& cholesky);
    Result<void> add_factors(const SymmetricCall& call, Cholesky& cholesky);
    Result<SymmetricReport> run_cholesky(const SymmetricCall& call);

    Group& group_;
    const Lapack* lapack_ = nullptr;
    PackedBuffer own_;
    PackedBuffer received_;
    std::uint64_t fallbacks_ = 0;
};

}  // namespace fabricshm
