// Cholesky: a symmetric positive definite matrix as its packed factor L, and back as L L^T. One
// rank's arithmetic; symmetric.hpp has what the ranks do with it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/dtype.hpp"
#include "libfabricshm/os/lapack.hpp"

namespace fabricshm {

/// Why a matrix does not travel as its factor. The values are those of the C ABI (symmetric.h); of
/// several ranks' the highest counts.
enum class CholeskyObstacle : std::uint8_t {
    kNone = 0,
    kNotDefinite = 1,  // not even with the largest jitter
    kInaccurate = 2,   // L L^T is further from the matrix than the caller takes
    kNotFinite = 3,    // the matrix, or L L^T, has an infinity or a NaN
    kNoMemory = 4,     // of the process, for two copies of the matrix
    kNoLibrary = 5,    // no LAPACK
};
inline constexpr int kCholeskyObstacleCount = 6;

/// In a few words, for the log.
const char* text_of(CholeskyObstacle obstacle) noexcept;

struct CholeskyOutcome {
    CholeskyObstacle obstacle = CholeskyObstacle::kNone;
    double jitter = 0;  // that was added to the diagonal, as a fraction of its mean
    double error = 0;   // ||L L^T - A|| / ||A||, Frobenius
};

/// What a factorisation that fails is tried again with, as a fraction of the mean of the diagonal:
/// the first, and how often it grows by ten.
inline constexpr double kFirstJitter = 1e-6;
inline constexpr int kJitterGrowths = 5;

/// Matrices of one type (kF32 or kF64) and size. One thread at a time. Only lower triangles of
/// matrices are read.
class Cholesky {
  public:
    virtual ~Cholesky() = default;

    /// nullptr when memory for two matrices can't be had. `lapack` outlives it.
    static std::unique_ptr<Cholesky> make(kernels::DType type, std::size_t n,
                                          const Lapack& lapack) noexcept;

    /// Factorises `matrix` and puts its L into `packed`; keeps L L^T as the own matrix. With an
    /// obstacle, what is in `packed` is undefined. `max_error` 0: any error is taken.
    virtual CholeskyOutcome encode(const void* matrix, void* packed, double max_error) noexcept = 0;

    /// Adds to `sum` the L L^T of `packed`, or the own one when that is nullptr; `first`: stores
    /// it. The lower triangle only.
    virtual void add(const void* packed, void* sum, bool first) noexcept = 0;
};

}  // namespace fabricshm
