// A C ABI that only notes what is called, so that the C++ owners can be tested without a daemon.

#pragma once

#include <fabricshm/fabricshm.h>

#include <string>
#include <vector>

namespace fake_abi {

/// What was called, in order: "open session", "close arena", ...
std::vector<std::string>& calls();

/// The code that the next functions return, and the rank and text that go with a failure.
void fail_with(int code, int rank, const char* text);

/// Everything as at the start.
void reset();

/// The last fabricshm_call that was run or started.
const fabricshm_call& last_call();

inline constexpr int kRank = 1;
inline constexpr int kWorld = 4;
/// That fabricshm_session_hosts() has once it is asked for all; one less before.
inline constexpr int kHosts = 2;

}  // namespace fake_abi
