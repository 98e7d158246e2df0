// The lock that fork() takes, so that a child is never made in the middle of certain steps.

#pragma once

#include <mutex>

namespace fabricshm {

/// Held across fork() by what registered its handlers (client/fork_guard), and across each step
/// that a child may not be born in the middle of: a descriptor is made and put on the list of those
/// that children close, memory is mapped and kept from them. Innermost of all locks: while it is
/// held nothing is waited for, no other lock is taken (but malloc's), nothing is logged. So fork()
/// waits for some system calls at most, whatever a daemon is doing.
std::mutex& fork_lock() noexcept;

}  // namespace fabricshm
