// The C ABI: sessions.

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/client/c_error.hpp"
#include "libfabricshm/client/cuda_seat.hpp"
#include "libfabricshm/client/handles.hpp"
#include "libfabricshm/client/socket_path.hpp"
#include "libfabricshm/os/identity.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricshm {

namespace {

constexpr std::int64_t kDefaultTimeoutMs = 30'000;

// What the struct had before it grew: callers built against that go on working.
constexpr std::size_t kMinOptions = offsetof(fabricshm_session_options, device);

// Only the part that the caller's header knew is read; NULL is a caller that knew nothing.
// Unknown fields are zero, see check_options().
fabricshm_session_options known_part(const fabricshm_session_options* given) {
    fabricshm_session_options known{};
    if (given == nullptr) return known;
    std::memcpy(&known, given, given->struct_size < sizeof known ? kMinOptions : sizeof known);
    return known;
}

const char* either(const char* given, const char* otherwise) {
    return given != nullptr ? given : otherwise;
}

// Everything the options leave open.
SessionOptions options_of(const fabricshm_session_options& given) {
    // 0 and -1 are both "the library's". A year at most, see deadline_of().
    const std::int64_t timeout_ms =
        std::min(given.timeout_ms > 0 ? given.timeout_ms : kDefaultTimeoutMs, proto::kTimeoutMsMax);
    SessionOptions options;
    options.sockets = socket_paths(either(given.socket, ""));
    options.timeout = std::chrono::milliseconds(timeout_ms);
    options.label = given.label != nullptr ? given.label : program_name();
    options.device = either(given.device, either(std::getenv("FABRIC_DEVICE"), ""));
    return options;
}

// Of the caller's version, older or newer; what it has more than we know must be zero.
int check_options(const fabricshm_session_options* options) {
    if (options == nullptr) return FABRICSHM_OK;
    const std::size_t known =
        std::clamp(options->struct_size, kMinOptions, sizeof(fabricshm_session_options));
    if (const int code = check_struct_size("options", options, options->struct_size, known);
        code != FABRICSHM_OK) {
        return code;
    }
    if (options->timeout_ms < -1) {
        return refuse("fabricshm_session_open: options->timeout_ms is negative");
    }
    const bool empty = options->socket != nullptr && *options->socket == '\0';
    if (empty) return refuse("fabricshm_session_open: options->socket is empty");
    return FABRICSHM_OK;
}

// The texts name what was tried: several sockets, or the device that was asked for.
int open_failed(const Error& error, const SessionOptions& wanted) {
    const std::string sockets = joined(wanted.sockets);
    // Nothing else that a new session asks for could be missing.
    if (error.code == Errc::kNotFound || error.code == Errc::kInvalid) {
        return fail(error, "device '%s' at socket %s", wanted.device.c_str(), sockets.c_str());
    }
    return fail(error, "socket %s", sockets.c_str());
}

}  // namespace

Duration timeout_of(const Session& session, std::int64_t timeout_ms) noexcept {
    if (timeout_ms == FABRICSHM_TIMEOUT_DEFAULT) return session.timeout();
    // Larger values would overflow the clock's nanoseconds; a year is as good as endless.
    return std::chrono::milliseconds(std::min(timeout_ms, proto::kTimeoutMsMax));
}

TimePoint deadline_of(const Session& session, std::int64_t timeout_ms) noexcept {
    return deadline_from_now(timeout_of(session, timeout_ms));
}

int check_timeout(const char* function, std::int64_t timeout_ms) {
    if (timeout_ms >= FABRICSHM_TIMEOUT_DEFAULT) return FABRICSHM_OK;
    return refuse("%s: timeout_ms is negative", function);
}

}  // namespace fabricshm

using namespace fabricshm;

extern "C" {

int fabricshm_session_open(const fabricshm_session_options* options, fabricshm_session** session) {
    return guarded("fabricshm_session_open", [&]() -> int {
        if (session == nullptr) return refuse("fabricshm_session_open: session is NULL");
        if (const int code = check_options(options); code != FABRICSHM_OK) return code;
        const SessionOptions wanted = options_of(known_part(options));
        auto handle = std::make_unique<fabricshm_session>();
        auto opened = Session::open(wanted);
        if (!opened.ok()) return open_failed(opened.error(), wanted);
        handle->session = std::move(opened).value();
        handle->options = wanted;
        handle->identity = encode_identity(place_of(*handle->session));
        *session = handle.release();
        return FABRICSHM_OK;
    });
}

const char* fabricshm_session_daemon(const fabricshm_session* session) {
    return session == nullptr ? "" : session->session->daemon().c_str();
}

const char* fabricshm_session_identity(const fabricshm_session* session) {
    return session == nullptr ? "" : session->identity.c_str();
}

int fabricshm_identity_difference(const char* mine, const char* mine_name, const char* theirs,
                                  const char* theirs_name, char* text, size_t size) {
    return guarded("fabricshm_identity_difference", [&]() -> int {
        const bool given = mine != nullptr && mine_name != nullptr && theirs != nullptr &&
                           theirs_name != nullptr && text != nullptr && size != 0;
        if (!given) return refuse("fabricshm_identity_difference: an argument is NULL or empty");
        const auto one = decode_identity(mine);
        const auto other = decode_identity(theirs);
        if (!one || !other) {
            return refuse(
                "fabricshm_identity_difference: %s is no line of "
                "fabricshm_session_identity() of this version",
                one ? "theirs" : "mine");
        }
        const auto difference = difference_of(*one, mine_name, *other, theirs_name);
        std::snprintf(text, size, "%s", difference ? difference->c_str() : "");
        return difference ? FABRICSHM_EMISMATCH : FABRICSHM_OK;
    });
}

void fabricshm_session_close(fabricshm_session* session) {
    // In a child of fork() everything here is the parent's, locks that no thread will release
    // included. What is left behind is a copy, and goes with the process.
    if (session == nullptr || session->session->is_foreign()) return;
    // Groups first: they wait for the operations that were started, which the daemon is no part of.
    // Without the lock, since leaving a group waits for them.
    while (true) {
        fabricshm_group* group = nullptr;
        {
            const std::lock_guard lock(session->mutex);
            if (!session->groups.empty()) group = *session->groups.begin();
            if (group != nullptr) session->groups.erase(group);
        }
        if (group == nullptr) break;
        drop_group(group);
    }
    if (has_stuck_kernel(*session->session)) {
        log(LogLevel::kError, "the session stays open: a kernel on a GPU does not end");
        return;
    }
    // Ends calls of other threads, one that opens an arena and holds `opening` included.
    session->session->close();
    {
        const std::lock_guard one_at_a_time(session->opening);
        const std::lock_guard lock(session->mutex);
        while (!session->arenas.empty()) drop_arena(*session, *session->arenas.begin());
    }
    delete session;
}

}  // extern "C"
