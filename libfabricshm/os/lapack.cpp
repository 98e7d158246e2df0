#include "libfabricshm/os/lapack.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <limits>

#include "libfabricshm/base/log.hpp"

namespace fabricshm {

namespace {

template <typename Routine>
bool look_up(void* library, const char* name, Routine& routine) noexcept {
    routine = reinterpret_cast<Routine>(::dlsym(library, name));
    return routine != nullptr;
}

template <typename Routine, typename T>
bool call(Routine routine, char triangle, T* matrix, std::size_t n) noexcept {
    if (n == 0) return true;  // a leading dimension of 0 is an error to LAPACK
    if (n > static_cast<std::size_t>(std::numeric_limits<int>::max())) return false;
    const int size = static_cast<int>(n);
    int info = 0;
    routine(&triangle, &size, matrix, &size, &info, 1);
    return info == 0;
}

std::optional<Lapack> open_first() noexcept {
    // Not in programs with more rights than their user: it names code.
    const char* wanted = ::secure_getenv("FABRIC_LAPACK");
    const bool named = wanted != nullptr && *wanted != '\0';
    std::optional<Lapack> found;
    if (named) {
        if (std::strcmp(wanted, "off") != 0) found = Lapack::open(wanted);
    } else {
        found = Lapack::open("libopenblas.so.0");
        if (!found) found = Lapack::open("liblapack.so.3");
    }
    if (!found) {
        log(LogLevel::kInfo, "no LAPACK (%s): symmetric matrices travel as packed triangles",
            named ? wanted : "libopenblas.so.0, liblapack.so.3");
    }
    return found;
}

}  // namespace

const Lapack* Lapack::find() noexcept {
    static const std::optional<Lapack> found = open_first();
    return found ? &*found : nullptr;
}

std::optional<Lapack> Lapack::open(const char* library) noexcept {
    // Local, so that a program's own BLAS keeps its names; one that is loaded already is shared.
    void* handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return std::nullopt;
    Lapack lapack;
    if (look_up(handle, "dpotrf_", lapack.dpotrf_) && look_up(handle, "dlauum_", lapack.dlauum_) &&
        look_up(handle, "spotrf_", lapack.spotrf_) && look_up(handle, "slauum_", lapack.slauum_)) {
        // Never unloaded: its threads may run to the end of the process.
        return lapack;
    }
    ::dlclose(handle);
    return std::nullopt;
}

// Row by row, a lower triangle is what column by column is an upper one: A = U^T U, U = L^T.
bool Lapack::factorise(double* matrix, std::size_t n) const noexcept {
    return call(dpotrf_, 'U', matrix, n);
}

bool Lapack::factorise(float* matrix, std::size_t n) const noexcept {
    return call(spotrf_, 'U', matrix, n);
}

bool Lapack::restore(double* reversed, std::size_t n) const noexcept {
    return call(dlauum_, 'L', reversed, n);
}

bool Lapack::restore(float* reversed, std::size_t n) const noexcept {
    return call(slauum_, 'L', reversed, n);
}

}  // namespace fabricshm
