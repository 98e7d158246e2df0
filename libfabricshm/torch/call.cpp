#include "libfabricshm/torch/call.hpp"

#include <fabricshm/cuda.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/dtype.hpp"
#include "libfabricshm/collective/kinds.hpp"
#include "libfabricshm/torch/environment.hpp"
#include "libfabricshm/torch/job_arena.hpp"

namespace fabricshm::torch_backend {

void check(int code, const std::string& what, const std::string& difference) {
    if (code == FABRICSHM_OK) return;
    // Of this thread, and of the call that has just failed: before anything else is called.
    const int rank = fabricshm_error_rank();
    const std::string named = rank >= 0 ? "rank " + std::to_string(rank) : "a rank";
    std::string blame;
    // The library does not say which: a rank that aborts or shuts down its group leaves it.
    if (code == FABRICSHM_EPEER) blame = ": " + named + " died or left the process group";
    if (code == FABRICSHM_EMISMATCH) blame = ": " + named + " called another operation";
    if (code == FABRICSHM_ETIMEOUT) blame = ": timeout passed";
    // Not TORCH_CHECK: it would put a C++ stack trace of no interest behind every dead peer.
    throw std::runtime_error("fabricshm: cannot " + what + blame + " (" +
                             fabricshm_error_name(code) + ": " + fabricshm_error_text() + ")" +
                             difference);
}

namespace {

// An all-gather of small pieces through the store: each call has keys of its own.
struct StoreExchange {
    c10::intrusive_ptr<c10d::Store> store;
    std::string prefix;
    int rank;
    int size;
    int calls = 0;
    std::string error = {};  // why the last call failed

    // Never raises: it is called by C.
    bool gather(const void* mine, std::size_t bytes, void* all) noexcept {
        try {
            const std::string key = prefix + std::to_string(calls++) + '/';
            const auto* first = static_cast<const std::uint8_t*>(mine);
            store->set(key + std::to_string(rank), std::vector<std::uint8_t>(first, first + bytes));
            for (int peer = 0; peer < size; ++peer) {
                const auto theirs = store->get(key + std::to_string(peer));
                if (theirs.size() != bytes) {
                    error = "rank " + std::to_string(peer) + " has another version of fabricshm";
                    return false;
                }
                std::memcpy(
                    static_cast<std::uint8_t*>(all) + static_cast<std::size_t>(peer) * bytes,
                    theirs.data(), bytes);
            }
            return true;
        } catch (const std::exception& failure) {
            error = failure.what();
            return false;
        }
    }
};

}  // namespace

Communicator::Communicator(std::shared_ptr<JobArena> arena, const std::string& name, int rank,
                           int size, std::chrono::milliseconds timeout,
                           c10::intrusive_ptr<c10d::Store> store, bool several_hosts)
    : arena_(std::move(arena)),
      rank_(rank),
      size_(size),
      owner_pid_(getpid()),
      store_(std::move(store)),
      name_(name) {
    if (several_hosts) {
        join_hosts(timeout);
    } else {
        fabricshm_group* group = nullptr;
        check(fabricshm_group_join(arena_->handle(), name.c_str(), rank, size, timeout.count(),
                                   &group),
              "join the process group");
        group_ = group;
    }
}

void Communicator::join_hosts(std::chrono::milliseconds timeout) {
    StoreExchange exchange{store_, "fabricshm/hosts/" + name_ + '/', rank_, size_};
    fabricshm_hosts_spec spec{};
    spec.struct_size = sizeof spec;
    spec.name = name_.c_str();
    spec.rank = rank_;
    spec.world = size_;
    spec.context = &exchange;
    spec.exchange = [](void* context, const void* mine, std::size_t bytes, void* all) {
        return static_cast<StoreExchange*>(context)->gather(mine, bytes, all) ? 0 : 1;
    };
    spec.timeout_ms = timeout.count();
    fabricshm_group* group = nullptr;
    check(fabricshm_group_join_hosts(arena_->handle(), &spec, &group), "join the process group",
          exchange.error);
    group_ = group;
}

void Communicator::abort(const char* why) noexcept {
    if (is_of_parent()) return;
    outstanding_->end(why);
    const std::lock_guard lock(leaving_);
    if (handle() != nullptr) fabricshm_group_abort(handle());
}

Communicator::~Communicator() {
    leave();
}

void Communicator::leave() {
    // A forked child has a copy of this object but not of the membership: leaving would end its
    // parent's.
    if (is_of_parent()) return;
    outstanding_->end(kDestroyedGroup);
    // A start that has found the group is over, and later ones find the reason above.
    const std::scoped_lock lock(leaving_, starting_);
    fabricshm_group* const left = group_.exchange(nullptr, std::memory_order_relaxed);
    if (left == nullptr) return;
    const auto leave = [group = left, arena = std::move(arena_), has_device = has_device_] {
        // On a device this rank leaves alone: its peers may be gone without a word. The words that
        // their kernels read stay as long as the arena.
        fabricshm_group_leave(group);
        if (has_device) arena->detach_device();
    };
    if (outstanding_->none()) {
        leave();
        return;
    }
    // Leaving waits for what was started: a receive that no peer answers would hold up
    // destroy_process_group() for as long as the group's timeout.
    std::thread(leave).detach();
}

bool Communicator::is_of_parent() const {
    return getpid() != owner_pid_;
}

fabricshm_request* Communicator::start(const fabricshm_call& call, const char* what,
                                       std::shared_ptr<void>& in_flight) const {
    fabricshm_request* request = nullptr;
    // Several threads may send at the same time; the library wants them one after the other.
    std::lock_guard lock(starting_);
    outstanding_->check(what);
    in_flight = outstanding_->begin();
    check(fabricshm_start(group_, &call, &request), what);
    return request;
}

namespace {

// Half of a stage is what a piece of an operation has room for; eight groups find room in an arena.
std::uint64_t stage_bytes_in(std::uint64_t arena_bytes, int size) {
    constexpr std::uint64_t kUnit = 64 << 10;
    constexpr std::uint64_t kMax = 64 << 20;
    if (const std::uint64_t wanted = bytes_in_environment("FABRIC_TORCH_STAGE_BYTES")) {
        return wanted;
    }
    const std::uint64_t room = arena_bytes / (8 * static_cast<std::uint64_t>(size));
    return std::clamp(room / kUnit * kUnit, kUnit, kMax);
}

}  // namespace

// Before a rank waits for the others: what one can't do is an error of all.
void Communicator::agree_on_cuda(int device, std::uint64_t& stage_bytes,
                                 std::chrono::milliseconds timeout) {
    std::exception_ptr error;
    try {
        stage_bytes = stage_bytes_in(fabricshm_arena_bytes(arena_->handle()), size_);
        arena_->attach_device(device);
        has_device_ = true;
    } catch (...) {
        error = std::current_exception();
    }
    const std::int64_t mine = error ? 1 : 0;
    std::vector<std::int64_t> all(static_cast<std::size_t>(size_));
    fabricshm_call call = make_call(FABRICSHM_ALL_GATHER, FABRICSHM_I64, 1, timeout);
    call.input = &mine;
    call.output = all.data();
    // The name is for a rank that calls something else: it has tensors of the CPU.
    run(call, "first operation of CUDA tensors");
    if (error) std::rethrow_exception(error);
    for (int rank = 0; rank < size_; ++rank) {
        if (all[static_cast<std::size_t>(rank)] == 0) continue;
        throw std::runtime_error("fabricshm: cannot use CUDA tensors: rank " +
                                 std::to_string(rank) + " can't, and says why");
    }
}

void Communicator::join_cuda(int device, std::chrono::milliseconds timeout) {
    std::uint64_t stage_bytes = 0;
    try {
        agree_on_cuda(device, stage_bytes, timeout);
        fabricshm_cuda_options options{};
        options.struct_size = sizeof options;
        options.stage_bytes = stage_bytes;
        options.timeout_ms = timeout.count() > 0 ? timeout.count() : FABRICSHM_TIMEOUT_DEFAULT;
        check(fabricshm_cuda_join(group_, &options),
              "join on cuda:" + std::to_string(device) + " with stages of " +
                  std::to_string(stage_bytes) + " bytes (FABRIC_TORCH_STAGE_BYTES)");
    } catch (...) {
        if (std::exchange(has_device_, false)) arena_->detach_device();
        throw;
    }
}

// The text is made on failure only.
void Communicator::run(const fabricshm_call& call, const char* what) const {
    outstanding_->check(what);
    // Buffers of counts are the caller's; a single count says enough.
    called_[calls_++ % kRemembered] = {what,
                                       static_cast<fabricshm_kind>(call.kind),
                                       static_cast<fabricshm_dtype>(call.dtype),
                                       static_cast<fabricshm_op>(call.op),
                                       call.root,
                                       call.counts == nullptr ? call.count : 0};
    const int code = fabricshm_run(group_, &call);
    if (code == FABRICSHM_OK) return;
    outstanding_->check(what);
    const bool differs = code == FABRICSHM_EMISMATCH || code == FABRICSHM_EBROKEN;
    // The error of the library is of this thread's last call, and the store makes none.
    check(code, what, differs ? difference(fabricshm_error_rank()) : std::string());
}

std::string Communicator::Called::text() const {
    std::ostringstream out;
    out << what;
    if (kind == FABRICSHM_BARRIER) return out.str();
    const Kind row = static_cast<Kind>(kind);
    out << " of " << count << ' ' << kernels::row_of(static_cast<kernels::DType>(dtype)).python;
    if (row_of(row).reduces) {
        out << ", operation " << kernels::row_of(static_cast<kernels::ReduceOp>(op)).name;
    }
    if (has_root(row)) out << ", root " << root;
    return out.str();
}

// Each rank that fails writes down what it called last, and finds where a peer's list differs from
// its own. "" when that cannot be found out within a moment: the error itself is what counts.
std::string Communicator::difference(int peer) const try {
    const auto key_of = [this](int rank) {
        return "fabricshm/called/" + name_ + '/' + std::to_string(rank);
    };
    const std::uint64_t first = calls_ > kRemembered ? calls_ - kRemembered : 0;
    std::ostringstream mine;
    for (std::uint64_t i = first; i < calls_; ++i) {
        mine << i << ' ' << called_[i % kRemembered].text() << '\n';
    }
    const std::string text = mine.str();
    store_->set(key_of(rank_), std::vector<std::uint8_t>(text.begin(), text.end()));
    if (peer < 0 || peer >= size_ || peer == rank_) return {};
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (!store_->check({key_of(peer)})) {
        if (std::chrono::steady_clock::now() > deadline) return {};
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const auto bytes = store_->get(key_of(peer));
    std::istringstream theirs(std::string(bytes.begin(), bytes.end()));
    std::uint64_t number = 0;
    for (std::string line; theirs >> number && std::getline(theirs.ignore(), line);) {
        if (number < first || number >= calls_) continue;
        const std::string here = called_[number % kRemembered].text();
        if (here == line) continue;
        return "; this rank called " + here + ", rank " + std::to_string(peer) + " called " + line;
    }
    return {};
} catch (const std::exception&) {
    return {};  // a store that is gone
}

void Communicator::step(fabricshm_step_info info) const {
    // The group is this one's, whatever the caller left there.
    outstanding_->check("report a step");
    info.group = group_;
    check(fabricshm_step(arena_->session(), &info), "report a step");
}

std::optional<fabricshm_directive> Communicator::directives() const {
    outstanding_->check("read the directives");
    fabricshm_directive directive{};
    directive.struct_size = sizeof(directive);
    check(fabricshm_directives(arena_->session(), &directive), "read the directives");
    // A session has one page, and its groups may be several: directives name theirs.
    const bool others = directive.group_id != 0 && directive.group_id != fabricshm_group_id(group_);
    if (directive.serial == 0 || others) return std::nullopt;
    return directive;
}

fabricshm_call make_call(fabricshm_kind kind, fabricshm_dtype dtype, std::uint64_t count,
                         std::chrono::milliseconds timeout) {
    fabricshm_call call{};
    call.struct_size = sizeof(call);
    call.kind = kind;
    call.dtype = dtype;
    call.op = FABRICSHM_SUM;
    call.algorithm = FABRICSHM_AUTO;
    // A rank is ready when it calls: DDP's order of buckets is the same everywhere, so there is
    // nothing to command.
    call.trigger = FABRICSHM_ASYNC;
    call.count = count;
    // c10d's "unset" is negative, and 0 would fail at once.
    call.timeout_ms = timeout.count() > 0 ? timeout.count() : FABRICSHM_TIMEOUT_DEFAULT;
    return call;
}

}  // namespace fabricshm::torch_backend
