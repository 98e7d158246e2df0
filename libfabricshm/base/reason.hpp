// The words behind an Error: how much was wanted, what is free, which option refuses.

#pragma once

#include <cstddef>
#include <string>

#include "libfabricshm/base/result.hpp"

namespace fabricshm {

/// With the terminating zero. What is longer is cut. It fits into the body of an attach message.
inline constexpr std::size_t kReasonBytes = 256;

/// `return explain({Errc::kNoMemory, 0, "quota of the user"}, "wanted %s, ...", ...)`: keeps a text
/// for this thread and gives the error back. An Error has no room for numbers, and must not
/// allocate; so they stay behind, in one place per thread, until the next explain() there.
/// describe() and fabricshm_error_text() show them in place of the code's own few words.
Error explain(const Error& error, const char* format, ...) noexcept
    __attribute__((format(printf, 2, 3)));

/// The text of this thread's last explain(), when it was for this error: the same code and the same
/// step. "" otherwise. An error that is carried to another thread leaves its reason behind: take it
/// along by hand.
const char* reason_of(const Error& error) noexcept;

/// The reason alone where there is one, else describe(): for a reader that knows what was asked.
std::string explanation_of(const Error& error);

}  // namespace fabricshm
