// The names that codes have in the C ABI: what people look up in docs/errors.md.

#pragma once

#include <cstddef>
#include <iterator>

#include "libfabricshm/base/result.hpp"

namespace fabricshm {

/// In the order of Errc; c_error.cpp holds them against fabricshm.h.
inline constexpr const char* kCodeNames[] = {
    "FABRICSHM_OK",       "FABRICSHM_EINVAL",    "FABRICSHM_ENOENT",    "FABRICSHM_EEXIST",
    "FABRICSHM_EBUSY",    "FABRICSHM_ETIMEOUT",  "FABRICSHM_EPEER",     "FABRICSHM_EDAEMON",
    "FABRICSHM_ENOMEM",   "FABRICSHM_EDENIED",   "FABRICSHM_EMISMATCH", "FABRICSHM_EUNSUPPORTED",
    "FABRICSHM_ECORRUPT", "FABRICSHM_EVERSION",  "FABRICSHM_ECLOSED",   "FABRICSHM_EBROKEN",
    "FABRICSHM_ESYSTEM",  "FABRICSHM_EINTERNAL", "FABRICSHM_EPOISONED", "FABRICSHM_ECHANGED",
};

/// nullptr for a number that is no code.
constexpr const char* c_name_of(Errc code) noexcept {
    const auto index = static_cast<std::size_t>(code);
    return index < std::size(kCodeNames) ? kCodeNames[index] : nullptr;
}

}  // namespace fabricshm
