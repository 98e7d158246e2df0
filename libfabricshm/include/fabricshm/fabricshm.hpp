// fabricshm.hpp: owners and types for C++20 over the C ABI of fabricshm.h. Header only.
//
// Handles are shared and keep alive what they stand on: a Group keeps its Arena, an Arena its
// Session, so the order in which they go does not matter. Nothing here throws; calls that can fail
// return an Expected. A program usually begins with `namespace fabric = fabricshm::api;`.
//
// The rules on buffers and threads are those of fabricshm.h.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <fabricshm/fabricshm.h>

namespace fabricshm::api {

/// Why a call failed: a FABRICSHM_E* code, the rank it names (or -1), and one line for people.
struct Error {
    int code = FABRICSHM_EINTERNAL;
    int rank = -1;
    std::string text;
};

/// A value or an Error. Asking for the one that is not there ends the program.
template <typename T>
class [[nodiscard]] Expected {
  public:
    Expected(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
    Expected(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

    bool ok() const noexcept { return state_.index() == 0; }
    explicit operator bool() const noexcept { return ok(); }

    T& value() & { return checked<0>(*this); }
    const T& value() const& { return checked<0>(*this); }
    T&& value() && { return std::move(checked<0>(*this)); }
    const Error& error() const { return checked<1>(*this); }
    T* operator->() { return &value(); }
    T& operator*() & { return value(); }

  private:
    template <std::size_t kIndex, typename Self>
    static auto& checked(Self& self) {
        auto* held = std::get_if<kIndex>(&self.state_);
        if (held == nullptr) std::abort();
        return *held;
    }

    std::variant<T, Error> state_;
};

/// For calls that give nothing but their success.
using Status = Expected<std::monostate>;

/// Floats of 16 and 8 bits as bits, so that they have a type: this header does no arithmetic.
struct Float16 {
    std::uint16_t bits;
};
struct BFloat16 {
    std::uint16_t bits;
};
struct Float8E4M3 {
    std::uint8_t bits;
};
struct Float8E5M2 {
    std::uint8_t bits;
};

namespace detail {

template <typename T>
struct DTypeOf;
// clang-format off
template <> struct DTypeOf<double> { static constexpr fabricshm_dtype kValue = FABRICSHM_F64; };
template <> struct DTypeOf<float> { static constexpr fabricshm_dtype kValue = FABRICSHM_F32; };
template <> struct DTypeOf<Float16> { static constexpr fabricshm_dtype kValue = FABRICSHM_F16; };
template <> struct DTypeOf<BFloat16> { static constexpr fabricshm_dtype kValue = FABRICSHM_BF16; };
template <> struct DTypeOf<Float8E4M3> { static constexpr fabricshm_dtype kValue = FABRICSHM_F8_E4M3; };
template <> struct DTypeOf<Float8E5M2> { static constexpr fabricshm_dtype kValue = FABRICSHM_F8_E5M2; };
template <> struct DTypeOf<std::int8_t> { static constexpr fabricshm_dtype kValue = FABRICSHM_I8; };
template <> struct DTypeOf<std::uint8_t> { static constexpr fabricshm_dtype kValue = FABRICSHM_U8; };
template <> struct DTypeOf<std::int32_t> { static constexpr fabricshm_dtype kValue = FABRICSHM_I32; };
template <> struct DTypeOf<std::uint32_t> { static constexpr fabricshm_dtype kValue = FABRICSHM_U32; };
template <> struct DTypeOf<std::int64_t> { static constexpr fabricshm_dtype kValue = FABRICSHM_I64; };
template <> struct DTypeOf<std::uint64_t> { static constexpr fabricshm_dtype kValue = FABRICSHM_U64; };
template <> struct DTypeOf<fabricshm_f64_int> { static constexpr fabricshm_dtype kValue = FABRICSHM_F64_INT; };
template <> struct DTypeOf<fabricshm_f32_int> { static constexpr fabricshm_dtype kValue = FABRICSHM_F32_INT; };
template <> struct DTypeOf<fabricshm_i32_int> { static constexpr fabricshm_dtype kValue = FABRICSHM_I32_INT; };
template <> struct DTypeOf<fabricshm_i64_int> { static constexpr fabricshm_dtype kValue = FABRICSHM_I64_INT; };
// clang-format on

inline Error last_error(int code) {
    return Error{code, fabricshm_error_rank(), fabricshm_error_text()};
}

inline Error wrong_size(const char* what) {
    return Error{FABRICSHM_EINVAL, -1, what};
}

inline Status status_of(int code) {
    if (code < 0) return last_error(code);
    return std::monostate{};
}

/// What an operation reads: any span, array or vector of T, written or not, where T is the element
/// type of its output.
template <typename T>
using Input = std::type_identity_t<std::span<const T>>;

}  // namespace detail

/// The element type of a C++ type; there is none for types that the fabric cannot reduce.
template <typename T>
inline constexpr fabricshm_dtype kDTypeOf = detail::DTypeOf<std::remove_cv_t<T>>::kValue;

/// An operation under way. Waits when it goes, because the buffers are borrowed until then.
class Request {
  public:
    explicit Request(fabricshm_request* request) : handle_(request) {}

    /// True when wait() would not block. An operation that failed is complete too.
    bool done() const noexcept { return handle_ == nullptr || fabricshm_test(handle_.get()) != 0; }

    /// The rank that sent: for a receive that is done() and not yet waited for.
    int peer() const noexcept { return fabricshm_request_peer(handle_.get()); }

    /// Waits and gives the result. A second call succeeds at once.
    Status wait() {
        if (handle_ == nullptr) return std::monostate{};
        return detail::status_of(fabricshm_wait(handle_.release()));
    }

  private:
    struct Waiter {
        void operator()(fabricshm_request* request) const noexcept { fabricshm_wait(request); }
    };
    std::unique_ptr<fabricshm_request, Waiter> handle_;
};

/// One rank of a group. Collectives of one group are called in the same order on every rank.
class Group {
  public:
    explicit Group(std::shared_ptr<fabricshm_group> handle) : handle_(std::move(handle)) {}

    int rank() const noexcept { return fabricshm_group_rank(handle_.get()); }
    int world() const noexcept { return fabricshm_group_world(handle_.get()); }
    int hosts() const noexcept { return fabricshm_group_hosts(handle_.get()); }
    std::uint64_t id() const noexcept { return fabricshm_group_id(handle_.get()); }
    fabricshm_group* get() const noexcept { return handle_.get(); }

    /// Any operation, with all its options; fabricshm_call_make() gives the usual ones.
    Status run(const fabricshm_call& call) {
        return detail::status_of(fabricshm_run(handle_.get(), &call));
    }

    /// The same without waiting. The buffers stay borrowed until the Request is done.
    Expected<Request> start(const fabricshm_call& call) {
        fabricshm_request* request = nullptr;
        const int code = fabricshm_start(handle_.get(), &call, &request);
        if (code < 0) return detail::last_error(code);
        return Request(request);
    }

    /// `output` becomes the reduction of every rank's `input`; both may be the same memory.
    template <typename T>
    Status allreduce(detail::Input<T> input, std::span<T> output, fabricshm_op op = FABRICSHM_SUM) {
        if (input.size() != output.size()) return detail::wrong_size("allreduce: sizes differ");
        return run(call_of(FABRICSHM_ALLREDUCE, op, input.data(), output, input.size()));
    }

    /// In place.
    template <typename T>
    Status allreduce(std::span<T> buffer, fabricshm_op op = FABRICSHM_SUM) {
        return allreduce(buffer, buffer, op);
    }

    /// Part `rank` of the reduction: `input` holds world parts of the size of `output`.
    template <typename T>
    Status reduce_scatter(detail::Input<T> input, std::span<T> output,
                          fabricshm_op op = FABRICSHM_SUM) {
        if (input.size() != output.size() * ranks()) {
            return detail::wrong_size("reduce_scatter: the input must hold one part for each rank");
        }
        return run(call_of(FABRICSHM_REDUCE_SCATTER, op, input.data(), output, output.size()));
    }

    /// Every rank's `input`, in rank order.
    template <typename T>
    Status all_gather(detail::Input<T> input, std::span<T> output) {
        if (output.size() != input.size() * ranks()) {
            return detail::wrong_size("all_gather: the output must hold one part for each rank");
        }
        return run(
            call_of(FABRICSHM_ALL_GATHER, FABRICSHM_SUM, input.data(), output, input.size()));
    }

    /// `buffer` becomes that of `root`.
    template <typename T>
    Status broadcast(std::span<T> buffer, int root) {
        auto call =
            call_of(FABRICSHM_BROADCAST, FABRICSHM_SUM, buffer.data(), buffer, buffer.size());
        call.root = root;
        return run(call);
    }

    /// The root's `output` becomes the reduction of every rank's `input`; the others' is left alone
    /// and may be empty.
    template <typename T>
    Status reduce(detail::Input<T> input, std::span<T> output, int root,
                  fabricshm_op op = FABRICSHM_SUM) {
        if (rank() == root && input.size() != output.size()) {
            return detail::wrong_size("reduce: sizes differ");
        }
        return rooted(call_of(FABRICSHM_REDUCE, op, input.data(), output, input.size()), root);
    }

    /// Every rank's `input`, in rank order, at the root; the others' `output` may be empty.
    template <typename T>
    Status gather(detail::Input<T> input, std::span<T> output, int root) {
        if (rank() == root && output.size() != input.size() * ranks()) {
            return detail::wrong_size("gather: the output must hold one part for each rank");
        }
        return rooted(call_of(FABRICSHM_GATHER, FABRICSHM_SUM, input.data(), output, input.size()),
                      root);
    }

    /// Part `rank` of the root's `input`; the others' may be empty.
    template <typename T>
    Status scatter(detail::Input<T> input, std::span<T> output, int root) {
        if (rank() == root && input.size() != output.size() * ranks()) {
            return detail::wrong_size("scatter: the input must hold one part for each rank");
        }
        return rooted(
            call_of(FABRICSHM_SCATTER, FABRICSHM_SUM, input.data(), output, output.size()), root);
    }

    /// Part p of `input` goes to rank p; `output` has what the ranks sent, in rank order.
    template <typename T>
    Status all_to_all(detail::Input<T> input, std::span<T> output) {
        if (input.size() != output.size() || input.size() % ranks() != 0) {
            return detail::wrong_size("all_to_all: both must hold one part for each rank");
        }
        const std::size_t part = input.size() / ranks();
        return run(call_of(FABRICSHM_ALL_TO_ALL, FABRICSHM_SUM, input.data(), output, part));
    }

    /// Returns when `buffer` may be used again.
    template <typename T>
    Status send(std::span<const T> buffer, int peer, int tag = 0) {
        const std::span<T> none;
        auto call = call_of(FABRICSHM_SEND, FABRICSHM_SUM, buffer.data(), none, buffer.size());
        call.peer = peer;
        call.tag = tag;
        return run(call);
    }

    /// The same of a span that may be written, or whose size is part of its type.
    template <typename T, std::size_t kExtent>
    Status send(std::span<T, kExtent> buffer, int peer, int tag = 0) {
        return send(std::span<const std::remove_const_t<T>>(buffer), peer, tag);
    }

    /// From rank `peer`, or FABRICSHM_ANY_PEER (start() has a Request that says which).
    template <typename T>
    Status recv(std::span<T> buffer, int peer, int tag = 0) {
        auto call = call_of(FABRICSHM_RECV, FABRICSHM_SUM, nullptr, buffer, buffer.size());
        call.peer = peer;
        call.tag = tag;
        return run(call);
    }

    /// `output` becomes the reduction of the inputs of ranks 0 to this one; both may be the same.
    template <typename T>
    Status scan(detail::Input<T> input, std::span<T> output, fabricshm_op op = FABRICSHM_SUM) {
        if (input.size() != output.size()) return detail::wrong_size("scan: sizes differ");
        return run(call_of(FABRICSHM_SCAN, op, input.data(), output, input.size()));
    }

    /// The same without this rank's own input. At rank 0 `output` stays as it is.
    template <typename T>
    Status exscan(detail::Input<T> input, std::span<T> output, fabricshm_op op = FABRICSHM_SUM) {
        if (input.size() != output.size()) return detail::wrong_size("exscan: sizes differ");
        return run(call_of(FABRICSHM_EXSCAN, op, input.data(), output, input.size()));
    }

    Status barrier() { return detail::status_of(fabricshm_barrier(handle_.get())); }

    /// After a failure: waits until no peer stores into this rank's buffers any more.
    Status quiesce(std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) {
        return detail::status_of(fabricshm_group_quiesce(handle_.get(), timeout_ms));
    }

    /// Gives the group up: ends what this rank waits for, and what the others need it for.
    /// Thread-safe.
    Status abort() { return detail::status_of(fabricshm_group_abort(handle_.get())); }

    /// After a failure: a new group of those that live and ask too. This one stays broken.
    Expected<Group> shrink(std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) {
        fabricshm_group* survivors = nullptr;
        const int code = fabricshm_group_shrink(handle_.get(), timeout_ms, &survivors);
        if (code < 0) return detail::last_error(code);
        // The deleter holds the old group, and so the arena that both stand on.
        return Group({survivors, [old = handle_](auto* group) { fabricshm_group_leave(group); }});
    }

  private:
    std::size_t ranks() const noexcept { return static_cast<std::size_t>(world()); }

    Status rooted(fabricshm_call call, int root) {
        call.root = root;
        return run(call);
    }

    template <typename T>
    static fabricshm_call call_of(fabricshm_kind kind, fabricshm_op op, const void* input,
                                  std::span<T> output, std::size_t count) {
        return fabricshm_call_make(kind, kDTypeOf<T>, op, input, output.data(), count);
    }

    std::shared_ptr<fabricshm_group> handle_;
};

/// Elements inside an arena, where collectives need no copies. Given back when it goes.
template <typename T>
class Buffer {
  public:
    Buffer(std::shared_ptr<T> data, std::size_t count) : data_(std::move(data)), count_(count) {}

    std::span<T> span() const noexcept { return {data_.get(), count_}; }
    operator std::span<T>() const noexcept { return span(); }  // NOLINT: a buffer is a span
    T& operator[](std::size_t index) const noexcept { return data_.get()[index]; }
    std::size_t size() const noexcept { return count_; }
    T* data() const noexcept { return data_.get(); }

  private:
    std::shared_ptr<T> data_;
    std::size_t count_;
};

/// A named tensor. It goes with the session that created it, or by free() before that.
class Tensor {
  public:
    Tensor(std::shared_ptr<fabricshm_arena> arena, const fabricshm_tensor& tensor)
        : arena_(std::move(arena)), tensor_(tensor) {}

    const fabricshm_tensor& info() const noexcept { return tensor_; }

    /// Its elements; empty when T is not its type.
    template <typename T>
    std::span<T> as() const noexcept {
        if (kDTypeOf<T> != tensor_.dtype) return {};
        return {static_cast<T*>(tensor_.data), tensor_.bytes / sizeof(T)};
    }

    /// Publishes all earlier writes to the waiters, and gives the new version.
    Expected<std::uint64_t> publish() {
        std::uint64_t version = 0;
        const int code = fabricshm_tensor_publish(arena_.get(), &tensor_, &version);
        if (code < 0) return detail::last_error(code);
        return version;
    }

    /// Waits for `version` or a later one, and gives the one that is there.
    Expected<std::uint64_t> wait(std::uint64_t version,
                                 std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) {
        std::uint64_t seen = 0;
        const int code = fabricshm_tensor_wait(arena_.get(), &tensor_, version, timeout_ms, &seen);
        if (code < 0) return detail::last_error(code);
        return seen;
    }

    Status free() { return detail::status_of(fabricshm_tensor_free(arena_.get(), &tensor_)); }

  private:
    std::shared_ptr<fabricshm_arena> arena_;
    fabricshm_tensor tensor_;
};

/// The memory of one job, mapped into this process.
class Arena {
  public:
    explicit Arena(std::shared_ptr<fabricshm_arena> handle) : handle_(std::move(handle)) {}

    std::span<std::byte> bytes() const noexcept {
        auto* base = static_cast<std::byte*>(fabricshm_arena_base(handle_.get()));
        return {base, fabricshm_arena_bytes(handle_.get())};
    }
    fabricshm_arena* get() const noexcept { return handle_.get(); }

    /// `count` elements, 64-byte aligned, not cleared. FABRICSHM_ENOMEM when the arena is full.
    template <typename T>
    Expected<Buffer<T>> allocate(std::size_t count) {
        if (count > SIZE_MAX / sizeof(T)) return detail::wrong_size("allocate: count is too large");
        auto* data = static_cast<T*>(fabricshm_alloc(handle_.get(), count * sizeof(T)));
        if (data == nullptr) return detail::last_error(FABRICSHM_ENOMEM);
        auto give_back = [arena = handle_](T* block) { fabricshm_free(arena.get(), block); };
        return Buffer<T>(std::shared_ptr<T>(data, std::move(give_back)), count);
    }

    /// Joins `name` and waits until all `world` ranks are there.
    Expected<Group> join(std::string_view name, int rank, int world,
                         std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) {
        fabricshm_group* group = nullptr;
        const int code = fabricshm_group_join(handle_.get(), std::string(name).c_str(), rank, world,
                                              timeout_ms, &group);
        if (code < 0) return detail::last_error(code);
        return Group({group, [arena = handle_](auto* left) { fabricshm_group_leave(left); }});
    }

    /// Joins a group whose ranks may be on several hosts; `exchange(mine, all)` gathers the bytes
    /// of all ranks, and is false when it failed. See fabricshm_group_join_hosts(). It is called on
    /// this thread.
    template <typename Exchange>
    Expected<Group> join_hosts(std::string_view name, int rank, int world, Exchange&& exchange,
                               const char* trusted = nullptr,
                               std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) {
        const std::string text(name);
        fabricshm_hosts_spec spec{};
        spec.struct_size = sizeof spec;
        spec.name = text.c_str();
        spec.rank = rank;
        spec.world = world;
        spec.trusted = trusted;
        spec.timeout_ms = timeout_ms;
        struct Context {
            std::remove_reference_t<Exchange>* exchange;
            std::size_t world;
        } context{&exchange, static_cast<std::size_t>(world)};
        spec.context = &context;
        spec.exchange = [](void* given, const void* mine, std::size_t bytes, void* all) -> int {
            auto& it = *static_cast<Context*>(given);
            const std::span own(static_cast<const std::byte*>(mine), bytes);
            const std::span gathered(static_cast<std::byte*>(all), bytes * it.world);
            return (*it.exchange)(own, gathered) ? 0 : 1;
        };
        fabricshm_group* group = nullptr;
        const int code = fabricshm_group_join_hosts(handle_.get(), &spec, &group);
        if (code < 0) return detail::last_error(code);
        return Group({group, [arena = handle_](auto* left) { fabricshm_group_leave(left); }});
    }

    template <typename T>
    Expected<Tensor> create_tensor(std::string_view name, std::span<const std::int64_t> shape) {
        fabricshm_tensor tensor{};
        const int code =
            fabricshm_tensor_create(handle_.get(), std::string(name).c_str(), kDTypeOf<T>,
                                    static_cast<int>(shape.size()), shape.data(), &tensor);
        if (code < 0) return detail::last_error(code);
        return Tensor(handle_, tensor);
    }

    /// Waits until it has been made.
    Expected<Tensor> open_tensor(std::string_view name,
                                 std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) {
        fabricshm_tensor tensor{};
        const int code =
            fabricshm_tensor_open(handle_.get(), std::string(name).c_str(), timeout_ms, &tensor);
        if (code < 0) return detail::last_error(code);
        return Tensor(handle_, tensor);
    }

  private:
    std::shared_ptr<fabricshm_arena> handle_;
};

/// Rank, world and places of this process, as its launcher set them: see fabricshm_launcher().
inline Expected<fabricshm_launch> launch() {
    fabricshm_launch read{};
    read.struct_size = sizeof read;
    const int code = fabricshm_launcher(&read);
    if (code < 0) return detail::last_error(code);
    return read;
}

struct SessionOptions {
    std::string socket;           // empty: where fabricd usually listens
    std::int64_t timeout_ms = 0;  // of calls that wait; 0: 30 s
    std::string label;            // empty: the program's name
    std::string device;           // empty: $FABRIC_DEVICE, else none
};

/// What the daemon knows of its cluster.
struct Hosts {
    bool admits = false;                // groups over several hosts may be made now
    std::vector<fabricshm_host> hosts;  // incarnations, by name, the newest of each first
};

/// One process's connection to fabricd.
class Session {
  public:
    static Expected<Session> open(const SessionOptions& options = {}) {
        fabricshm_session_options raw{};
        raw.struct_size = sizeof raw;
        raw.socket = options.socket.empty() ? nullptr : options.socket.c_str();
        raw.timeout_ms = options.timeout_ms;
        raw.label = options.label.empty() ? nullptr : options.label.c_str();
        raw.device = options.device.empty() ? nullptr : options.device.c_str();
        fabricshm_session* session = nullptr;
        const int code = fabricshm_session_open(&raw, &session);
        if (code < 0) return detail::last_error(code);
        return Session(std::shared_ptr<fabricshm_session>(session, fabricshm_session_close));
    }

    /// Opens or makes the arena `name`; `bytes` of 0 leave its size to the daemon.
    Expected<Arena> open_arena(std::string_view name, std::uint64_t bytes = 0,
                               std::uint32_t flags = 0) {
        fabricshm_arena* arena = nullptr;
        const int code =
            fabricshm_arena_open(handle_.get(), std::string(name).c_str(), bytes, flags, &arena);
        if (code < 0) return detail::last_error(code);
        return Arena({arena, [session = handle_](auto* closed) { fabricshm_arena_close(closed); }});
    }

    /// The hosts of the daemon's cluster: see fabricshm_session_hosts().
    Expected<Hosts> hosts() {
        Hosts known;
        fabricshm_cluster cluster{};
        cluster.struct_size = sizeof cluster;
        do {
            known.hosts.resize(static_cast<std::size_t>(cluster.total));
            const int code =
                fabricshm_session_hosts(handle_.get(), known.hosts.data(), cluster.total, &cluster);
            if (code < 0) return detail::last_error(code);
            // Others may have come since there was room for all.
        } while (static_cast<std::size_t>(cluster.total) > known.hosts.size());
        known.hosts.resize(static_cast<std::size_t>(cluster.total));
        known.admits = cluster.admits != 0;
        return known;
    }

    /// Ends a step of training: fabricshm_step_info_make() and what is known. Never waits.
    Status step(const fabricshm_step_info& info) {
        return detail::status_of(fabricshm_step(handle_.get(), &info));
    }

    /// What the daemon asks for; serial 0: nothing yet. Never waits.
    Expected<fabricshm_directive> directives() {
        fabricshm_directive directive{};
        directive.struct_size = sizeof directive;
        const int code = fabricshm_directives(handle_.get(), &directive);
        if (code < 0) return detail::last_error(code);
        return directive;
    }

    /// What the session may hold of the pool, and whether that shrinks. Never waits.
    Expected<fabricshm_quota> quotas() {
        fabricshm_quota quota{};
        quota.struct_size = sizeof quota;
        const int code = fabricshm_quotas(handle_.get(), &quota);
        if (code < 0) return detail::last_error(code);
        return quota;
    }

    fabricshm_session* get() const noexcept { return handle_.get(); }

  private:
    explicit Session(std::shared_ptr<fabricshm_session> handle) : handle_(std::move(handle)) {}

    std::shared_ptr<fabricshm_session> handle_;
};

}  // namespace fabricshm::api
