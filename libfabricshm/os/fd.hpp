// Fd: owns a file descriptor.

#pragma once

#include <utility>

#include "libfabricshm/base/result.hpp"

namespace fabricshm {

/// Closes its descriptor when it goes. Move-only; -1 means none.
class Fd {
  public:
    Fd() = default;
    explicit Fd(int fd) noexcept : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd& operator=(Fd&& other) noexcept {
        if (this != &other) {
            reset();
            fd_ = std::exchange(other.fd_, -1);
        }
        return *this;
    }
    ~Fd() { reset(); }

    int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }
    int release() noexcept { return std::exchange(fd_, -1); }
    void reset() noexcept;

    /// A second descriptor of the same file, close-on-exec.
    Result<Fd> duplicate() const;

  private:
    int fd_ = -1;
};

}  // namespace fabricshm
