// What ranks that share parameters let each other know before they go on.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/group.hpp"

namespace fabricshm {

Result<void> pass_barrier(Group& group, TimePoint deadline);

/// `mine` of every rank, by rank; equally many numbers on all.
Result<std::vector<std::uint64_t>> gather(Group& group, const std::vector<std::uint64_t>& mine,
                                          TimePoint deadline);

/// An error with its words, which another explain() of this thread would replace.
class KeptError {
  public:
    explicit KeptError(const Error& error);
    Error again() const;

  private:
    Error error_;
    std::string text_;
};

/// By all ranks: all fail when one does, since a rank that has failed would let the others wait in
/// vain. `own` is this rank's outcome, which it gets back; the others get the code of the first
/// that failed, and which rank it was. What a rank says of itself is input: kCorrupt for no code.
Result<void> agree(Group& group, const Result<void>& own, const char* step, TimePoint deadline);

/// The words in which another rank's failure, `code`, is reported here; not kOk.
Error failure_of(int rank, std::uint64_t code, const char* step);

}  // namespace fabricshm
