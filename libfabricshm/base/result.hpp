// Result<T>: a value, or why there is none. For errors that the world causes; bugs are
// FABRIC_CHECK.

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace fabricshm {

/// What went wrong, in the words of docs/errors.md. The values are those of the C ABI, negated
/// (FABRICSHM_EINVAL is -kInvalid), and never change once released.
enum class Errc : std::int32_t {
    kOk = 0,
    kInvalid = 1,       // an argument, option or field is out of its range
    kNotFound = 2,      // there is no such object
    kExists = 3,        // the name or the place is taken
    kBusy = 4,          // a live process holds it; trying again may help
    kTimeout = 5,       // the deadline passed
    kPeer = 6,          // a peer died, failed or left; Error::detail is its rank
    kDaemon = 7,        // fabricd is gone or does not answer
    kNoMemory = 8,      // the pool, a quota or an arena is full
    kDenied = 9,        // this user may not
    kMismatch = 10,     // ranks called different operations; Error::detail is the other rank
    kUnsupported = 11,  // valid, but not for this type, algorithm or build
    kCorrupt = 12,      // shared or stored state fails its validation
    kVersion = 13,      // the other side speaks another protocol version
    kClosed = 14,       // the object was closed, or belongs to the parent of a fork
    kBroken = 15,       // the group failed earlier; shrink or leave it
    kSystem = 16,       // a system call failed; Error::detail is errno
    kInternal = 17,     // a bug in fabricd or libfabricshm; please report it
    kPoisoned = 18,     // the hardware lost a page; Error::detail is the region's id, 0: none
    kChanged = 19,      // the file has another version by now; list it again
};

/// The identifier of a code, as in docs/errors.md: "kBusy".
const char* name_of(Errc code) noexcept;

/// What it means, in a few words: "held by a live process".
const char* text_of(Errc code) noexcept;

/// Sixteen bytes, no allocation: usable on the data path. Text is made where it is logged.
struct Error {
    Errc code = Errc::kInternal;
    std::int32_t detail =
        0;  // errno for kSystem, a rank for kPeer and kMismatch, a region for kPoisoned
    const char* step = "";  // what was being done; a string literal
};
static_assert(sizeof(Error) == 16);

/// One line for a person: "map arena: no memory".
std::string describe(const Error& error);

/// An errno as the Error it means: ENOENT is kNotFound, ENOMEM is kNoMemory, others are kSystem.
Error error_from_errno(int saved_errno, const char* step) noexcept;

/// The same of a file that is on some disk: a full disk is kSystem with its errno, since kNoMemory
/// speaks of the pool.
Error error_of_disk(int saved_errno, const char* step) noexcept;

namespace detail {
/// Prints the error and aborts: value() was asked for although there is none.
[[noreturn]] void no_value(const Error& error) noexcept;
}  // namespace detail

template <typename T>
class [[nodiscard]] Result {
  public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit
    Result(Error error) : state_(std::in_place_index<1>, error) {}         // NOLINT: implicit

    bool ok() const noexcept { return state_.index() == 0; }
    explicit operator bool() const noexcept { return ok(); }

    /// The value. Asking for it after a failure is a bug: prints the error and aborts.
    T& value() & { return *held(state_); }
    const T& value() const& { return *held(state_); }
    /// By value, so that a loop over the value of a temporary owns what it walks over.
    T value() && { return std::move(*held(state_)); }
    const Error& error() const { return std::get<1>(state_); }

    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }
    T& operator*() & { return value(); }
    const T& operator*() const& { return value(); }

  private:
    template <typename State>
    static auto held(State& state) noexcept {
        auto* value = std::get_if<0>(&state);
        if (__builtin_expect(value == nullptr, false)) detail::no_value(*std::get_if<1>(&state));
        return value;
    }

    std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
  public:
    Result() = default;
    Result(Error error) : error_(error) {}  // NOLINT: implicit, so that `return Error{...}` works

    bool ok() const noexcept { return error_.code == Errc::kOk; }
    explicit operator bool() const noexcept { return ok(); }
    const Error& error() const noexcept { return error_; }

  private:
    Error error_{Errc::kOk, 0, ""};
};

}  // namespace fabricshm

#define FABRIC_TRY_JOIN2(a, b) a##b
#define FABRIC_TRY_JOIN(a, b) FABRIC_TRY_JOIN2(a, b)

/// `FABRIC_TRY(auto fd, open_it());` gives `fd` the value or returns the error to the caller.
#define FABRIC_TRY(declaration, ...)                           \
    auto FABRIC_TRY_JOIN(fabric_try_, __LINE__) = __VA_ARGS__; \
    if (!FABRIC_TRY_JOIN(fabric_try_, __LINE__).ok())          \
        return FABRIC_TRY_JOIN(fabric_try_, __LINE__).error(); \
    declaration = std::move(FABRIC_TRY_JOIN(fabric_try_, __LINE__)).value()

/// The same where there is no value: `FABRIC_TRY_VOID(close_it());`
#define FABRIC_TRY_VOID(...)                                               \
    do {                                                                   \
        if (auto fabric_try_result = __VA_ARGS__; !fabric_try_result.ok()) \
            return fabric_try_result.error();                              \
    } while (false)
