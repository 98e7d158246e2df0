#include "libfabricshm/base/result.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "libfabricshm/base/late_rank.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricshm {

namespace {

struct CodeText {
    const char* name;
    const char* text;
};

// Indexed by Errc; a test compares it with docs/errors.md.
constexpr CodeText kTexts[] = {
    {"kOk", "success"},
    {"kInvalid", "invalid argument"},
    {"kNotFound", "no such object"},
    {"kExists", "already exists"},
    {"kBusy", "held by a live process"},
    {"kTimeout", "deadline passed"},
    {"kPeer", "a peer died, failed or left"},
    {"kDaemon", "fabricd does not answer"},
    {"kNoMemory", "no memory left in the pool or quota"},
    {"kDenied", "permission denied"},
    {"kMismatch", "ranks called different operations"},
    {"kUnsupported", "not supported"},
    {"kCorrupt", "state failed its validation"},
    {"kVersion", "protocol versions differ"},
    {"kClosed", "closed"},
    {"kBroken", "the group failed earlier"},
    {"kSystem", "system call failed"},
    {"kInternal", "internal error"},
    {"kPoisoned", "memory was lost to a hardware error"},
    {"kChanged", "another version of the file is there by now"},
};

const CodeText& entry_of(Errc code) noexcept {
    const auto index = static_cast<std::size_t>(code);
    return kTexts[index < std::size(kTexts) ? index : static_cast<std::size_t>(Errc::kInternal)];
}

}  // namespace

void detail::no_value(const Error& error) noexcept {
    std::fprintf(stderr, "fabric: bug: the value of an error was used: %s (%s)\n",
                 describe(error).c_str(), name_of(error.code));
    std::abort();
}

const char* name_of(Errc code) noexcept {
    return entry_of(code).name;
}

const char* text_of(Errc code) noexcept {
    return entry_of(code).text;
}

int late_rank_of(const Error& error) noexcept {
    const bool waited = error.code == Errc::kTimeout && std::strcmp(error.step, kPeerWaitStep) == 0;
    const bool was_ended =
        error.code == Errc::kBroken && std::strcmp(error.step, kPeerLateStep) == 0;
    return waited || was_ended ? error.detail : -1;
}

std::string describe(const Error& error) {
    std::string line = error.step;
    line += line.empty() ? "" : ": ";
    const std::string reason = reason_of(error);
    line += reason.empty() ? text_of(error.code) : reason;
    const bool names_rank =
        (error.code == Errc::kPeer || error.code == Errc::kMismatch) && error.detail >= 0;
    if (names_rank || late_rank_of(error) >= 0)
        line += " (rank " + std::to_string(error.detail) + ")";
    const bool names_region = error.code == Errc::kPoisoned && error.detail > 0;
    if (names_region) line += " (region " + std::to_string(error.detail) + ")";
    // Not once more where the reason has it.
    const std::string system = std::strerror(error.detail);
    const bool names_system =
        error.code == Errc::kSystem && error.detail != 0 && line.find(system) == std::string::npos;
    if (names_system) line += " (" + system + ")";
    return line;
}

Error error_from_errno(int saved_errno, const char* step) noexcept {
    switch (saved_errno) {
        case ENOENT:
            return {Errc::kNotFound, 0, step};
        case EEXIST:
            return {Errc::kExists, 0, step};
        case ENOMEM:
        case ENOSPC:
            return {Errc::kNoMemory, 0, step};
        case EACCES:
        case EPERM:
            return {Errc::kDenied, 0, step};
        case ETIMEDOUT:
            return {Errc::kTimeout, 0, step};
        default:
            return {Errc::kSystem, saved_errno, step};
    }
}

Error error_of_disk(int saved_errno, const char* step) noexcept {
    if (saved_errno == ENOSPC) return {Errc::kSystem, saved_errno, step};
    return error_from_errno(saved_errno, step);
}

}  // namespace fabricshm
