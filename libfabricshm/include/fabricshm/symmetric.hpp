// symmetric.hpp: C++20 over symmetric.h. Header only; the rules are those of symmetric.h, the types
// those of fabricshm.hpp.

#pragma once

#include <cstdint>
#include <span>

#include <fabricshm/symmetric.h>
#include <fabricshm/fabricshm.hpp>

namespace fabricshm::api {

struct SymmetricOptions {
    fabricshm_symmetric_method method = FABRICSHM_PACKED;
    fabricshm_algorithm algorithm = FABRICSHM_AUTO;
    double max_error = 0;  // 0: any
    std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT;
};

/// Sums the ranks' n x n matrices into `output`, which may be `input`. T is float or double.
/// FABRICSHM_EINVAL when a span does not have n * n elements.
template <typename T>
Expected<fabricshm_symmetric_report> allreduce_symmetric(const Group& group, std::uint64_t n,
                                                         detail::Input<T> input,
                                                         std::span<T> output,
                                                         const SymmetricOptions& options = {}) {
    // Above 2^20, where n * n might wrap, the library refuses n itself.
    const bool fits = n > 1u << 20 || (input.size() == n * n && output.size() == n * n);
    if (!fits) return detail::wrong_size("allreduce_symmetric: not n * n elements");
    fabricshm_symmetric_call call =
        fabricshm_symmetric_make(options.method, kDTypeOf<T>, n, input.data(), output.data());
    call.algorithm = options.algorithm;
    call.max_error = options.max_error;
    call.timeout_ms = options.timeout_ms;
    fabricshm_symmetric_report report{};
    report.struct_size = sizeof report;
    const int code = fabricshm_allreduce_symmetric(group.get(), &call, &report);
    if (code < 0) return detail::last_error(code);
    return report;
}

}  // namespace fabricshm::api
