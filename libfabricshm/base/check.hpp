// FABRIC_CHECK: aborts on a bug in this process. Never used on what a peer or a client can write.
// FABRIC_DCHECK: the same where a release has no time for it: on the data path, or where the check
// costs more than the step. On in Debug builds and with sanitizers, which run the unit tests, the
// oracle and the crash sweep.

#pragma once

namespace fabricshm::detail {

/// Writes one line to stderr and aborts. Async-signal-safe but for the line buffering of stderr.
[[noreturn]] void check_failed(const char* condition, const char* file, int line) noexcept;

}  // namespace fabricshm::detail

#define FABRIC_CHECK(condition)         \
    ((condition) ? static_cast<void>(0) \
                 : ::fabricshm::detail::check_failed(#condition, __FILE__, __LINE__))

#if defined(FABRIC_DCHECKS) || !defined(NDEBUG)
#define FABRIC_DCHECK(condition) FABRIC_CHECK(condition)
#else
// Not evaluated, but compiled: a condition that no longer builds is found in any build.
#define FABRIC_DCHECK(condition) static_cast<void>(sizeof(static_cast<bool>(condition)))
#endif
