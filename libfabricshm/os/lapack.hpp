// LAPACK of this machine, found when it is first asked for, so that nothing needs it to be there.

#pragma once

#include <cstddef>
#include <optional>

namespace fabricshm {

/// The routines that symmetric.cpp uses, in Fortran's calling convention with 32-bit integers.
class Lapack {
  public:
    /// Looks for libopenblas.so.0, then liblapack.so.3; or only for what FABRIC_LAPACK names (a
    /// file, or a name that the loader searches for; "off": nothing). nullptr when there is none:
    /// that is logged once, at level info. Once per process; thread-safe. The first call loads the
    /// library, which may start threads (OPENBLAS_NUM_THREADS), and it stays loaded.
    static const Lapack* find() noexcept;

    /// As find(), of one library; nothing without it, or when it lacks a routine. For tests.
    static std::optional<Lapack> open(const char* library) noexcept;

    /// Factorises the n x n matrix whose lower triangle lies row by row in `matrix`: A = L L^T, and
    /// L takes its place. The rest is not touched. False: not positive definite, or n above 2^31;
    /// then the triangle holds neither.
    bool factorise(double* matrix, std::size_t n) const noexcept;
    bool factorise(float* matrix, std::size_t n) const noexcept;

    /// The way back, from the last element to the first: `reversed` holds element k of L at n * n -
    /// 1 - k, and is given L L^T in that order. The upper triangle of L is not read; n is one that
    /// factorise() took.
    ///
    /// Reversed, since LAPACK has a product of factors for L^T L alone: with J, which reverses the
    /// order of rows, J L^T J is lower in Fortran's order of elements, and its product is J A J. It
    /// is in place and takes n^3/3 operations, a third of what a general product would.
    bool restore(double* reversed, std::size_t n) const noexcept;
    bool restore(float* reversed, std::size_t n) const noexcept;

  private:
    template <typename T>
    using Routine = void (*)(const char* triangle, const int* n, T* a, const int* lda, int* info,
                             std::size_t triangle_length);
    Routine<double> dpotrf_ = nullptr;
    Routine<double> dlauum_ = nullptr;
    Routine<float> spotrf_ = nullptr;
    Routine<float> slauum_ = nullptr;
};

}  // namespace fabricshm
