#include "libfabricshm/collective/cholesky.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

namespace fabricshm {

namespace {

// A norm whose squares neither overflow nor vanish: everything is divided by the largest first.
class Norm {
  public:
    explicit Norm(double largest) noexcept : scale_(largest > 0 ? largest : 1) {}
    void add(double value, double times) noexcept {
        const double scaled = value / scale_;
        sum_ += times * scaled * scaled;
    }
    double value() const noexcept { return scale_ * std::sqrt(sum_); }

  private:
    double scale_;
    double sum_ = 0;
};

template <typename T>
class CholeskyOf final : public Cholesky {
  public:
    CholeskyOf(std::size_t n, const Lapack& lapack) noexcept
        : n_(n),
          lapack_(lapack),
          work_(new (std::nothrow) T[std::max<std::size_t>(n * n, 1)]),
          own_(new (std::nothrow) T[std::max<std::size_t>(n * n, 1)]) {}

    bool has_memory() const noexcept { return work_ != nullptr && own_ != nullptr; }

    CholeskyOutcome encode(const void* matrix, void* packed, double max_error) noexcept override {
        const T* full = static_cast<const T*>(matrix);
        CholeskyOutcome outcome;
        if (!measure(full)) outcome.obstacle = CholeskyObstacle::kNotFinite;
        if (outcome.obstacle != CholeskyObstacle::kNone) return outcome;
        if (!factorise(full, outcome.jitter)) {
            outcome = {CholeskyObstacle::kNotDefinite};
            return outcome;
        }
        T* to = static_cast<T*>(packed);
        for (std::size_t i = 0; i < n_; to += ++i) std::copy_n(&work_[i * n_], i + 1, to);
        if (!restore(static_cast<const T*>(packed), own_.get())) {
            return {CholeskyObstacle::kNotFinite};
        }
        outcome.error = error_of(full);
        if (!std::isfinite(outcome.error)) return {CholeskyObstacle::kNotFinite};
        if (max_error > 0 && outcome.error > max_error) {
            outcome.obstacle = CholeskyObstacle::kInaccurate;
        }
        return outcome;
    }

    void add(const void* packed, void* sum, bool first) noexcept override {
        const T* from = own_.get();
        if (packed != nullptr) {
            // It was a factor of this size on the rank that sent it, and a product can't fail.
            (void)restore(static_cast<const T*>(packed), work_.get());
            from = work_.get();
        }
        T* to = static_cast<T*>(sum);
        for (std::size_t i = 0; i < n_; ++i) {
            const T* row = last_of_row(from, i);
            for (std::size_t j = 0; j <= i; ++j) {
                const T value = row[-static_cast<std::ptrdiff_t>(j)];
                T& element = to[i * n_ + j];
                element = first ? value : element + value;
            }
        }
    }

  private:
    // Of a matrix from its last element to its first: element (i, 0). (i, j) is j before it.
    const T* last_of_row(const T* reversed, std::size_t i) const noexcept {
        return reversed + (n_ * n_ - 1 - i * n_);
    }

    // Largest value, mean of the diagonal and norm; false when not all are finite.
    bool measure(const T* full) noexcept {
        double largest = 0;
        double trace = 0;
        for (std::size_t i = 0; i < n_; ++i) {
            for (std::size_t j = 0; j <= i; ++j) {
                const double value = std::abs(static_cast<double>(full[i * n_ + j]));
                if (!std::isfinite(value)) return false;
                largest = std::max(largest, value);
            }
            trace += static_cast<double>(full[i * n_ + i]) / static_cast<double>(n_);
        }
        Norm norm(largest);
        for_lower([&](std::size_t i, std::size_t j, double times) {
            norm.add(static_cast<double>(full[i * n_ + j]), times);
        });
        largest_ = largest;
        mean_ = trace;
        norm_ = norm.value();
        return true;
    }

    // visit(i, j, how often the value is in the whole matrix).
    template <typename Visit>
    void for_lower(const Visit& visit) const noexcept {
        for (std::size_t i = 0; i < n_; ++i) {
            for (std::size_t j = 0; j < i; ++j) visit(i, j, 2.0);
            visit(i, i, 1.0);
        }
    }

    bool factorise(const T* full, double& jitter) noexcept {
        jitter = 0;
        for (int attempt = 0; attempt <= kJitterGrowths + 1; ++attempt) {
            // A diagonal whose mean is not positive is not made so by a fraction of it.
            if (attempt != 0 && !(mean_ > 0)) return false;
            if (attempt != 0) jitter = attempt == 1 ? kFirstJitter : jitter * 10;
            for (std::size_t i = 0; i < n_; ++i) {
                std::copy_n(full + i * n_, i + 1, &work_[i * n_]);
                work_[i * n_ + i] += static_cast<T>(jitter * mean_);
            }
            if (lapack_.factorise(work_.get(), n_)) return true;
        }
        return false;
    }

    bool restore(const T* packed, T* reversed) const noexcept {
        for (std::size_t i = 0; i < n_; packed += ++i) {
            std::reverse_copy(packed, packed + i + 1, reversed + (n_ * n_ - 1 - i * n_ - i));
        }
        return lapack_.restore(reversed, n_);
    }

    double error_of(const T* full) const noexcept {
        Norm norm(largest_);
        for_lower([&](std::size_t i, std::size_t j, double times) {
            const T restored = last_of_row(own_.get(), i)[-static_cast<std::ptrdiff_t>(j)];
            norm.add(static_cast<double>(restored) - static_cast<double>(full[i * n_ + j]), times);
        });
        return norm_ > 0 ? norm.value() / norm_ : 0;
    }

    const std::size_t n_;
    const Lapack& lapack_;
    const std::unique_ptr<T[]> work_;  // the matrix that is factorised, then what is restored
    const std::unique_ptr<T[]> own_;   // reversed
    double largest_ = 0;
    double mean_ = 0;
    double norm_ = 0;
};

template <typename T>
std::unique_ptr<Cholesky> make_of(std::size_t n, const Lapack& lapack) noexcept {
    std::unique_ptr<CholeskyOf<T>> made(new (std::nothrow) CholeskyOf<T>(n, lapack));
    if (made != nullptr && !made->has_memory()) made.reset();
    return made;
}

}  // namespace

const char* text_of(CholeskyObstacle obstacle) noexcept {
    switch (obstacle) {
        case CholeskyObstacle::kNone:
            return "none";
        case CholeskyObstacle::kNotDefinite:
            return "the matrix is not positive definite";
        case CholeskyObstacle::kInaccurate:
            return "the error is larger than asked for";
        case CholeskyObstacle::kNotFinite:
            return "not all values are finite";
        case CholeskyObstacle::kNoMemory:
            return "no memory for two copies of the matrix";
        case CholeskyObstacle::kNoLibrary:
            return "there is no LAPACK";
    }
    return "unknown";
}

std::unique_ptr<Cholesky> Cholesky::make(kernels::DType type, std::size_t n,
                                         const Lapack& lapack) noexcept {
    return type == kernels::DType::kF32 ? make_of<float>(n, lapack) : make_of<double>(n, lapack);
}

}  // namespace fabricshm
