// The processes of fabric-bench: one per rank, and what becomes of them.

#pragma once

#include <functional>
#include <string>

namespace bench {

inline constexpr int kRankFailed = 1;

/// Ends this rank; its parent says why. Of a process that run_ranks() made.
[[noreturn]] void fail_rank(const std::string& why);

/// Runs `body` in `count` processes and returns the exit code: 0, or 1 when a rank returned
/// kRankFailed, which has then said why itself. The first rank that dies or ends otherwise is named
/// in one line on standard error, and the others are ended: they could only wait for it.
int run_ranks(int count, const std::function<int(int rank)>& body);

}  // namespace bench
