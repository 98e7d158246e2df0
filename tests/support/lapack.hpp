// A LAPACK of this machine, for tests that need one whatever FABRIC_LAPACK says.

#pragma once

#include <optional>

#include "libfabricshm/os/lapack.hpp"

namespace test_support {

/// Of OpenBLAS, else the plain one; nullptr: there is none. Loaded once.
inline const fabricshm::Lapack* some_lapack() {
    static const auto openblas = fabricshm::Lapack::open("libopenblas.so.0");
    static const auto found = openblas ? openblas : fabricshm::Lapack::open("liblapack.so.3");
    return found ? &*found : nullptr;
}

}  // namespace test_support
