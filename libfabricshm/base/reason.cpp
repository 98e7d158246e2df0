#include "libfabricshm/base/reason.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace fabricshm {

namespace {

struct Reason {
    Errc code = Errc::kOk;
    char step[64] = "";
    char text[kReasonBytes] = "";
};

thread_local Reason t_reason;

const char* step_of(const Error& error) noexcept {
    return error.step != nullptr ? error.step : "";
}

}  // namespace

Error explain(const Error& error, const char* format, ...) noexcept {
    // Formatted first: an argument may be the text that is kept already.
    char text[kReasonBytes];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    t_reason.code = error.code;
    std::snprintf(t_reason.step, sizeof t_reason.step, "%s", step_of(error));
    std::memcpy(t_reason.text, text, sizeof text);
    return error;
}

// Compared by the step too: a code alone would let an old reason speak for a new failure.
const char* reason_of(const Error& error) noexcept {
    const bool same = error.code != Errc::kOk && error.code == t_reason.code &&
                      std::strncmp(t_reason.step, step_of(error), sizeof t_reason.step - 1) == 0;
    return same ? t_reason.text : "";
}

std::string explanation_of(const Error& error) {
    const std::string reason = reason_of(error);
    return reason.empty() ? describe(error) : reason;
}

}  // namespace fabricshm
