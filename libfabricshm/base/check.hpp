// FABRIC_CHECK: aborts on a bug in this process. Never used on what a peer or a client can write.

#pragma once

namespace fabricshm::detail {

/// Writes one line to stderr and aborts. Async-signal-safe but for the line buffering of stderr.
[[noreturn]] void check_failed(const char* condition, const char* file, int line) noexcept;

}  // namespace fabricshm::detail

#define FABRIC_CHECK(condition)         \
    ((condition) ? static_cast<void>(0) \
                 : ::fabricshm::detail::check_failed(#condition, __FILE__, __LINE__))

#ifdef NDEBUG
#define FABRIC_DCHECK(condition) static_cast<void>(0)
#else
#define FABRIC_DCHECK(condition) FABRIC_CHECK(condition)
#endif
