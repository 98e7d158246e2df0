// How an Error leaves the library: a negative code, and a text and a rank of the calling thread.

#pragma once

#include <cstddef>
#include <exception>
#include <new>
#include <system_error>

#include "libfabricshm/base/result.hpp"

namespace fabricshm {

/// Keeps "<what>: <error>" and the rank for this thread and returns the code for the caller. `what`
/// is printf-like and names the object: "tensor 'weights'". Allocates nothing, so that memory that
/// ran out can be reported, too. The text holds until the thread's next failure; successes leave
/// it.
int fail(const Error& error, const char* what, ...) noexcept __attribute__((format(printf, 2, 3)));

/// The same for a bad argument: EINVAL, "<function>: <parameter> is ...".
int refuse(const char* format, ...) noexcept __attribute__((format(printf, 1, 2)));

/// Whether a caller's number is one of an enumeration's, 0 to `last`.
inline bool in_range(int value, int last) noexcept {
    return value >= 0 && value <= last;
}

/// Runs the body of an extern "C" function: the only place that catches. Memory of the process that
/// ran out and threads that can't be started are errors of the world, everything else is a bug.
template <typename Body>
int guarded(const char* function, Body&& body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return fail({Errc::kNoMemory, 0, "memory of this process"}, "%s", function);
    } catch (const std::system_error& error) {
        return fail({Errc::kSystem, error.code().value(), "start thread"}, "%s", function);
    } catch (...) {
        return fail({Errc::kInternal, 0, "unexpected exception"}, "%s", function);
    }
}

/// A struct of a caller that may be older or newer than this library: `known` bytes are ours, the
/// rest (if any) has to be zero, since it asks for what we do not know. 0, or the refusal.
/// `name` is the parameter's, for the text.
int check_struct_size(const char* name, const void* given, std::size_t given_size,
                      std::size_t known);

/// 0 when `name` can be the name of an object, or the refusal.
int check_name(const char* function, const char* name);

}  // namespace fabricshm
