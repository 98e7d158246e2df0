#include "libfabricshm/collective/group.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/collective/mailbox.hpp"
#include "libfabricshm/collective/operation.hpp"
#include "libfabricshm/collective/request.hpp"
#include "libfabricshm/collective/route_log.hpp"
#include "libfabricshm/collective/worker.hpp"

namespace fabricshm {

namespace {

Visibility view_of(const GroupPlace& place) noexcept {
    return {place.visibility, place.arena, place.arena_bytes};
}

Result<void> check_place(const GroupPlace& place) {
    const bool sane = place.world >= 1 && place.world <= kWorldMax && place.rank >= 0 &&
                      place.rank < place.world && place.arena != nullptr;
    if (!sane) return Error{Errc::kInvalid, 0, "attach group"};
    const Bytes needed = group_block_bytes(place.world);
    // The daemon's word on the block is checked against this mapping before anything there is read.
    const bool inside = place.block_bytes >= needed && place.block_bytes <= place.arena_bytes &&
                        place.block_offset <= place.arena_bytes - place.block_bytes &&
                        place.block_offset % kPageBytes == 0;
    if (!inside) return Error{Errc::kCorrupt, 0, "attach group: block outside the arena"};
    const auto* header = reinterpret_cast<const GroupHeader*>(place.arena + place.block_offset);
    // All but slots and posts, which hold data only: the caches of this host may hold what an
    // earlier group had there. A word stored next to such a remainder would carry it back into the
    // pool.
    view_of(place).acquire(TouchPoint::kBlockRead, header, GroupLayout::of(place.world).slots);
    const bool ours = header->magic == kGroupMagic && header->version == kGroupVersion &&
                      header->group_id == place.group_id &&
                      header->world == static_cast<std::uint32_t>(place.world);
    if (!ours) return Error{Errc::kCorrupt, 0, "attach group: not the block of this group"};
    return {};
}

// What a failure means for the others: after these the group cannot go on, since no rank knows how
// far the others have got. A wrong argument stays this rank's own affair.
bool breaks_group(Errc code) noexcept {
    return code == Errc::kPeer || code == Errc::kTimeout || code == Errc::kMismatch ||
           code == Errc::kCorrupt || code == Errc::kPoisoned;
}

// A buffer that is known to have lost a page.
const std::byte* lost_buffer(const Call& call, int rank, int world) noexcept {
    const std::byte* place = find_lost(call.input, input_bytes(call, rank, world));
    return place != nullptr ? place : find_lost(call.output, output_bytes(call, rank, world));
}

// An operation that went well for this rank, although another one touched a lost page: what it
// handed out is not what it should be. It broke the group before it let any rank go on.
Result<void> intact(const Result<void>& own, Barrier& barrier) noexcept {
    if (!own.ok() || !barrier.broken()) return own;
    const auto state = barrier.check(-1);
    return state.error().code == Errc::kPoisoned ? state : own;
}

// Several ranks may have died, and two survivors each have observed another one. The group keeps
// the first reason, and all survivors give that one, so that they agree on what to do next. One
// that heard of it in a message may have called something else already.
Result<void> agreed(const Result<void>& own, Barrier& barrier) noexcept {
    const bool may_follow =
        !own.ok() && (own.error().code == Errc::kPeer || own.error().code == Errc::kMismatch);
    if (!may_follow) return own;
    const auto first = barrier.check(-1);
    return !first.ok() && first.error().code == Errc::kPeer ? first : own;
}

// In the caller's own variable: a returned one was copied in larger pieces than it was written in,
// for which the processor waits until the pieces have left it.
void plan_input(const Operation& operation, PlanInput& input) {
    const Call& call = operation.call;
    input.kind = call.kind;
    input.algorithm =
        call.algorithm != Algorithm::kAuto ? call.algorithm : operation.group.tuning.forced;
    input.trigger = call.trigger;
    input.world = operation.world();
    input.part_bytes = operation.largest_part;
    const auto posted = posts_all_parts(call.kind) ? static_cast<Bytes>(operation.world()) : 1;
    input.total_bytes = operation.largest_part * posted;
    input.shared_output = call.shares_output();
    input.own_counts = call.has_own_counts();
}

// A group of one: every collective is a copy from the input to the output.
Result<void> run_alone(Operation& operation) {
    Pointers posted{};
    posted[0] = const_cast<std::byte*>(operation.call.input);  // only read
    combine(operation, posted, 0, operation.largest_part, operation.largest_part);
    return {};
}

// What a rank posts before it arrives, if its own buffers are outside the arena. With trigger
// `sync` the first bytes move at rank 0's command, and without the others' counts nothing can be
// cut.
void (*first_post(const PlanInput& input, const Tuning& tuning))(Operation&) {
    if (input.trigger == Trigger::kSync || input.own_counts) return nullptr;
    const Algorithm outside = choose_arrived(input, false, tuning);
    if (outside == Algorithm::kFlat) return post_first_piece;
    return outside == Algorithm::kStaged ? post_first_chunk : nullptr;
}

Result<void> run_arrived(Operation& operation) {
    PlanInput input;
    plan_input(operation, input);
    FABRIC_TRY_VOID(arrive(operation, first_post(input, operation.group.tuning)));
    // All clocks may be here although a rank has given up since: its buffers are its own again.
    FABRIC_TRY_VOID(operation.barrier().check_unbroken());
    const Algorithm algorithm =
        choose_arrived(input, operation.all_in_arena, operation.group.tuning);
    constexpr const char* kWays[] = {"", "flat", "direct", "ring", "staged", "host"};
    log_route(operation, kWays[static_cast<std::size_t>(algorithm)]);
    operation.way = static_cast<TraceWay>(algorithm);
    switch (algorithm) {
        case Algorithm::kDirect:
            return run_direct(operation);
        case Algorithm::kStaged:
            return run_staged(operation);
        case Algorithm::kRing:
            return operation.all_in_arena ? run_ring(operation)
                                          : run_in_slots(operation, Algorithm::kRing);
        case Algorithm::kHost:
            return operation.all_in_arena ? run_host(operation)
                                          : run_in_slots(operation, Algorithm::kHost);
        default:
            return run_slots(operation);
    }
}

// Rank 0 times the operations whose way of storing may be chosen; small ones are not delayed by it.
TimePoint time_for_stores(const Operation& operation) noexcept {
    const Bytes all = operation.largest_part * static_cast<Bytes>(operation.world());
    const bool timed =
        operation.rank() == 0 && operation.route != Route::kTiny && all >= StorePolicy::kMinBytes;
    return timed ? Clock::now() : TimePoint{};
}

void judge_stores(Operation& operation, TimePoint start) noexcept {
    if (start == TimePoint{}) return;
    GroupState& group = operation.group;
    const int cell = operation.store_cell;
    if (!group.stores.ran(cell, Clock::now() - start)) return;
    show_past_cache(operation.barrier().header(), cell, group.stores.past_cache(cell));
}

// Before anything is measured: past the cache when the operation does not fit into it.
void show_first_stores(GroupState& group, bool crowded) noexcept {
    for (int cell = 0; cell < kStoreCells; ++cell) {
        const auto world = static_cast<Bytes>(group.place.world);
        const bool shared = StorePolicy::place_of(cell) == StorePlace::kSharedOutput;
        const Bytes touched = StorePolicy::least_bytes(cell) * (shared ? world + 1 : 2 * world);
        const bool past = touched >= group.tuning.streaming_from;
        group.stores.begin_with(cell, past, crowded);
        show_past_cache(group.barrier.header(), cell, past);
    }
}

// The first values of the clocks: the rank is there; it knows of the tuning that rank 0 decided.
constexpr std::uint64_t kAttached = 1;
constexpr std::uint64_t kDecided = 2;

// What the tuning is for all: by rank 0, once it knows where they run.
void decide_tuning(GroupState& group) {
    const Barrier& barrier = group.barrier;
    const GroupPlace& place = group.place;
    const int cpus = barrier.processors();
    Tuning tuning;
    if (place.tuning != nullptr) {
        tuning = *place.tuning;
    } else {
        const std::string machine = place.visibility != nullptr ? place.visibility->machine() : "";
        tuning = load_tuning(place.world, machine, cpus);
    }
    tuning.coherent = barrier.view().coherent();
    tuning.one_kernel = barrier.view().one_kernel();
    pack_tuning(tuning, barrier.header().tuning);
    barrier.view().publish(TouchPoint::kTuning, barrier.header().tuning,
                           sizeof barrier.header().tuning);
    group.tuning = unpack_tuning(barrier.header().tuning);
    show_first_stores(group, cpus < place.world);
}

Result<void> attach_all(GroupState& group, TimePoint deadline) {
    Barrier& barrier = group.barrier;
    barrier.signal(kAttached);
    FABRIC_TRY_VOID(barrier.wait_all(kAttached, deadline));
    if (group.place.rank == 0) {
        decide_tuning(group);
    } else {
        FABRIC_TRY_VOID(barrier.wait(0, kDecided, deadline));
    }
    barrier.signal(kDecided);
    return {};
}

MeteredCall metered(const Operation& operation) noexcept {
    // Operations in which no buffer was shown went through lines or slots.
    return {operation.call.kind, operation.largest_part, operation.arrival == 0,
            operation.rank(),    operation.world(),      operation.call.root};
}

// All but its times.
TraceRecord traced(const Operation& operation, const Result<void>& result) noexcept {
    constexpr TraceWay kByRoute[] = {TraceWay::kTiny, TraceWay::kSlots, TraceWay::kTree};
    TraceRecord record{};
    record.group_id = operation.group.place.group_id;
    record.epoch = operation.group.operations;
    record.bytes = operation.largest_part;
    record.kind = static_cast<std::uint8_t>(operation.call.kind);
    const bool by_route = operation.world() > 1 && operation.route != Route::kArrive;
    record.way = by_route ? kByRoute[static_cast<std::size_t>(operation.route)] : operation.way;
    record.rank = static_cast<std::uint16_t>(operation.rank());
    record.world = static_cast<std::uint16_t>(operation.world());
    if (!result.ok()) record.failed = static_cast<std::uint16_t>(result.error().code);
    return record;
}

// Works out all that does not depend on the buffers.
void prepare(Operation& operation, Bytes largest_part) noexcept {
    operation.largest_part = largest_part;
    operation.signature = signature_of(operation.call);
    PlanInput input;
    plan_input(operation, input);
    operation.route = choose_route(input, operation.group.tuning);
    if (operation.route == Route::kTiny) prepare_tiny(operation);
    constexpr const char* kWays[] = {"tiny lines", "slots", "the tree"};
    if (operation.route != Route::kArrive) {
        log_route(operation, kWays[static_cast<std::size_t>(operation.route)]);
    }
}

// Whether what is worked out for a call is kept for others like it: for the small ones, of which it
// is a good part of the time.
bool is_worth_keeping(const Operation& operation) noexcept {
    constexpr Bytes kSmall = 64 * kKiB;
    if (!operation.call.counts.empty()) return false;
    // One that arrived first, to have its buffers checked, does so every time.
    if (operation.route == Route::kTiny) return operation.arrival == 0;
    return operation.route == Route::kArrive && operation.largest_part <= kSmall;
}

Result<void> run_operation(Operation& operation) {
    if (operation.world() == 1) return run_alone(operation);
    const bool shows_buffers = operation.group.tuning.check_buffers;
    if (__builtin_expect(shows_buffers, false) && operation.route != Route::kArrive &&
        operation.call.kind != Kind::kBarrier) {
        FABRIC_TRY_VOID(arrive(operation));
    }
    switch (operation.route) {
        case Route::kTiny:
            return run_tiny(operation);
        case Route::kSlots:
            return run_slots(operation);
        case Route::kTree:
            return run_tree(operation);
        default:
            return run_arrived(operation);
    }
}

Bytes message_bytes(const Call& message) noexcept {
    return message.count * kernels::size_of(message.dtype);
}

// True only for what check_call() accepts: the usual message, found in a few instructions.
bool is_plain_message(const Call& call, int rank, int world) noexcept {
    constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 32;
    const bool sends = call.kind == Kind::kSend;
    if (!sends && call.kind != Kind::kRecv) return false;
    const bool between_ranks = call.peer >= 0 && call.peer < world && call.peer != rank;
    const bool plain = call.op == kernels::ReduceOp::kSum && call.algorithm == Algorithm::kAuto &&
                       call.trigger == Trigger::kAsync && call.root == 0 && call.counts.empty() &&
                       call.recv_counts.empty() && call.count <= kMaxCount && call.flags == 0;
    const bool buffers = sends ? call.input != nullptr : call.output != nullptr;
    return between_ranks && plain && buffers && static_cast<int>(call.dtype) < kernels::kDTypeCount;
}

// Runs it; kPoisoned when this rank, or another one that it depends on, touched a lost page.
Result<void> run_intact(Operation& operation) {
    Barrier& barrier = operation.barrier();
    FAULT_POINT("operation.begin");
    const std::byte* lost =
        any_lost() ? lost_buffer(operation.call, operation.rank(), operation.world()) : nullptr;
    if (lost != nullptr) {
        operation.group.poisoned(lost);
        return barrier.check(-1);
    }
    const Result<void> result = run_operation(operation);
    operation.check_harm();
    return operation.guard->hit() ? barrier.check(-1) : intact(result, barrier);
}

}  // namespace

/// The last call, when it was a small one and went well.
struct Group::Kept {
    Call call;
    std::optional<Operation> operation;  // of `call`; empty: the last one was of another sort
    std::uint64_t number = 0;            // rises with each that is kept
};

GroupState::GroupState(GroupPlace where, std::byte* block)
    : place(std::move(where)),
      layout(GroupLayout::of(place.world)),
      barrier(block, place.rank, place.world, view_of(place)),
      tiny(reinterpret_cast<TinySlot*>(block + layout.tiny)),
      channels(reinterpret_cast<ChannelLine*>(block + layout.channels)),
      taken(reinterpret_cast<ChannelTaken*>(block + layout.taken)),
      calls(reinterpret_cast<ChannelCalls*>(block + layout.calls)),
      slots(block + layout.slots),
      posts(block + layout.posts) {}

void GroupState::poisoned(const std::byte* at) noexcept {
    // Relaxed: it only lets one thread through; fail() below orders what others see of it.
    if (reported_poison.exchange(true, std::memory_order_relaxed)) return;
    const auto offset = static_cast<Bytes>(at - place.arena);
    const bool inside = at >= place.arena && offset < place.arena_bytes;
    const std::uint64_t region = inside && place.lost ? place.lost(offset) : 0;
    log(LogLevel::kError, "the hardware lost the page at byte %llu of the arena (region %llu)",
        static_cast<unsigned long long>(offset), static_cast<unsigned long long>(region));
    barrier.fail(Errc::kPoisoned, static_cast<int>(region));
}

Result<std::unique_ptr<Group>> Group::attach(GroupPlace place, TimePoint deadline) {
    FABRIC_TRY_VOID(check_place(place));
    std::byte* block = place.arena + place.block_offset;
    auto state = std::make_unique<GroupState>(std::move(place), block);
    Barrier& barrier = state->barrier;
    if (VisibilityPolicy* policy = state->place.visibility; policy != nullptr) {
        // Before the first word is written, since writing may depend on it.
        policy->take_place(state->place.rank, state->place.world);
    }
    barrier.set_meter(state->place.meter.get());
    barrier.long_waits().screen = state->place.screen.get();
    FABRIC_TRY_VOID(
        barrier.announce(state->place.runs_at != nullptr ? *state->place.runs_at : own_place()));
    const auto met = attach_all(*state, deadline);
    if (!met.ok()) {
        barrier.fail(met.error().code, met.error().detail);
        return agreed(met, barrier).error();
    }
    if (state->place.rank != 0) {
        barrier.view().acquire(TouchPoint::kTuningRead, barrier.header().tuning,
                               sizeof barrier.header().tuning, 0);
    }
    state->tuning = unpack_tuning(barrier.header().tuning);
    const auto memory = [](bool coherent, bool one_kernel) {
        return one_kernel ? "coherent" : coherent ? "coherent among hosts" : "not coherent";
    };
    const std::string mine = memory(barrier.view().coherent(), barrier.view().one_kernel());
    const std::string theirs = memory(state->tuning.coherent, state->tuning.one_kernel);
    if (mine != theirs) {
        // The ranks would go different ways through one operation, and all of them report success.
        barrier.fail(Errc::kPeer, state->place.rank);
        return explain({Errc::kInvalid, 0, "attach group"},
                       "visibility: the memory is %s for this rank and %s for rank 0; start all "
                       "ranks with the same FABRIC_VISIBILITY",
                       mine.c_str(), theirs.c_str());
    }
    state->tuning.max_ahead = std::min(state->tuning.max_ahead, state->layout.post_bytes);
    state->tuning.max_flat = std::min(state->tuning.max_flat, state->layout.post_bytes);
    barrier.settle(state->tuning);
    if (!barrier.view().coherent()) state->tuning.tree_world = Tuning::kNoTree;
    if (static_cast<std::uint64_t>(state->place.world) >= state->tuning.tree_world) {
        state->tree = make_tree(barrier, state->layout, block);
        barrier.follow(state->tree->tree);
    }
    state->last_turn = kDecided;
    state->base = kDecided + 1;
    FAULT_POINT("group.attached");
    return std::unique_ptr<Group>(new Group(std::move(state)));
}

Group::Group(std::unique_ptr<GroupState> state)
    : state_(std::move(state)), mailbox_(std::make_unique<Mailbox>(*state_)) {}

Group::~Group() {
    // The threads first: they use the mailbox and the state.
    worker_.reset();
    messages_.reset();
    // After the messages that others have yet to take, or they would be taken for lost.
    mailbox_.reset();
    state_->barrier.depart();
}

int Group::rank() const noexcept {
    return state_->place.rank;
}

int Group::world() const noexcept {
    return state_->place.world;
}

std::uint64_t Group::id() const noexcept {
    return state_->place.group_id;
}

void Group::set_long_wait(Duration from) noexcept {
    state_->barrier.long_waits().from = from;
}

void Group::abort(Errc code, int rank) noexcept {
    state_->barrier.fail(code, rank);
}

// The flag first: what is small enough needs no wait that the reason would end.
void Group::give_up() noexcept {
    state_->failed = true;
    abort(Errc::kPeer, rank());
}

Result<void> Group::check() noexcept {
    for (int peer = 0; peer < world(); ++peer) {
        if (peer != rank()) FABRIC_TRY_VOID(state_->barrier.check(peer, true));
    }
    return state_->barrier.check(-1);
}

void Group::raise(const Word& word, std::uint64_t value) noexcept {
    state_->barrier.raise(word, value);
}

Result<void> Group::await(const Word& word, std::uint64_t value, int peer, TimePoint deadline) {
    // Acquire, against the release in raise(): what was stored before the value is seen with it.
    if (word.value.load(std::memory_order_acquire) >= value) return {};
    if (state_->failed) return Error{Errc::kBroken, 0, "step: the group failed before"};
    return ended(state_->barrier.await(word, value, peer, deadline));
}

Result<void> Group::intact(const PoisonGuard& guard) {
    if (!guard.hit()) return {};
    state_->poisoned(PoisonGuard::place());
    return ended(state_->barrier.check(-1));
}

void Group::retire() noexcept {
    state_->failed = true;
    Barrier& barrier = state_->barrier;
    // A death that this rank heard of in a message, which breaks no group, is named to all.
    int gone = barrier.broken() ? -1 : state_->place.world - 1;
    while (gone >= 0 && (gone == state_->place.rank || barrier.lives(gone))) --gone;
    barrier.fail(gone < 0 ? Errc::kBroken : Errc::kPeer, gone);
    worker_.reset();
    messages_.reset();
}

Result<void> Group::quiesce(TimePoint deadline) noexcept {
    retire();
    Barrier& barrier = state_->barrier;
    FABRIC_TRY_VOID(mailbox_->await_leaving(deadline));
    // Where hosts do not share caches no rank stores into another rank's output.
    if (state_->exposed == 0 || !barrier.view().coherent()) return {};
    FABRIC_TRY_VOID(barrier.await_leaving(state_->exposed, deadline));
    state_->exposed = 0;
    return {};
}

std::optional<PeerRead> Group::time_peer(int peer) noexcept {
    constexpr Bytes kRead = 32 * kKiB;  // slots have twice that at least
    const GroupState& state = *state_;
    const bool other = peer >= 0 && peer < state.place.world && peer != state.place.rank;
    const bool quiet = worker_ == nullptr || worker_->idle();
    // Behind a policy a read means more than a load, and it belongs to the operations.
    if (!other || !quiet || state.failed || state.barrier.view().active()) return std::nullopt;
    const PoisonGuard guard;
    const PeerRead read = time_read(state.slot(peer, 0), kRead);
    // The next operation that touches the lost page says so.
    if (guard.hit() || read.ns == 0) return std::nullopt;
    return read;
}

Result<void> Group::run_now(const Call& call) {
    if (state_->failed) return Error{Errc::kBroken, 0, "collective: the group failed before"};
    if (kept_) kept_->operation.reset();
    Operation operation(*state_, call);
    Bytes largest_part = operation.parts.largest();
    if (call.has_own_counts()) {
        const auto largest = agree_on_largest(call);
        if (!largest.ok()) return ended(largest.error());
        largest_part = *largest;
    }
    prepare(operation, largest_part);
    const Result<void> result = run_prepared(operation);
    if (result.ok() && is_worth_keeping(operation)) keep(operation);
    return result;
}

// A call like this one needs but its buffers: what else it takes is worked out.
void Group::keep(const Operation& operation) {
    if (kept_ == nullptr) kept_ = std::make_unique<Kept>();
    kept_->call = operation.call;
    Operation& copy = kept_->operation.emplace(*state_, kept_->call);
    copy.largest_part = operation.largest_part;
    copy.signature = operation.signature;
    copy.route = operation.route;
    if (operation.route == Route::kTiny) copy.tiny = operation.tiny;
    ++kept_->number;
}

std::uint64_t Group::kept() const noexcept {
    // The worker first: while it runs operations, what is kept is its own.
    const bool quiet = worker_ == nullptr || worker_->idle();
    return quiet && kept_ != nullptr && kept_->operation ? kept_->number : 0;
}

Result<void> Group::repeat(const std::byte* input, std::byte* output, Duration timeout) {
    Operation& operation = *kept_->operation;
    FABRIC_TRY_VOID(take_buffers(input, output));
    operation.timeout = timeout;
    operation.timeout_ends = {};
    // Only the tiny engine asks for it when a wait has turned slow.
    if (operation.route != Route::kTiny) kept_->call.deadline = deadline_from_now(timeout);
    return run_prepared(operation);
}

Result<void> Group::take_buffers(const std::byte* input, std::byte* output) {
    Call& call = kept_->call;
    if (call.input == input && call.output == output) return {};
    FABRIC_TRY_VOID(check_buffers(call, input, output, rank(), world()));
    call.input = input;
    call.output = output;
    return {};
}

Result<void> Group::run_prepared(Operation& operation) {
    if (state_->failed) return Error{Errc::kBroken, 0, "collective: the group failed before"};
    const PoisonGuard guard;
    operation.guard = &guard;
    operation.next = state_->base;
    operation.arrival = 0;
    operation.store_cell = -1;
    operation.past_cache = false;
    operation.way = TraceWay::kNone;
    state_->barrier.view().step(PoolStep::kBegin);
    state_->barrier.begin_operation(row_of(operation.call.kind).name, operation.largest_part);
    const TimePoint start = time_for_stores(operation);
    Meter* meter = state_->place.meter.get();
    const Meter::Timing timing =
        meter != nullptr ? meter->begin(operation.largest_part) : Meter::Timing{};
    const Result<void> result = run_intact(operation);
    if (meter != nullptr) {
        meter->end(timing, {operation.call.kind, operation.largest_part, result.ok()});
    }
    if (meter != nullptr && result.ok()) meter->count(metered(operation));
    if (__builtin_expect(timing.traced_ns != 0, false)) {
        meter->trace(timing, traced(operation, result));
    }
    state_->barrier.view().step(PoolStep::kEnd);
    if (result.ok() && operation.store_cell >= 0) judge_stores(operation, start);
    // All ranks count the same steps: the next operation starts where this one ended, on every rank
    // that comes to it.
    FABRIC_DCHECK(operation.next >= state_->base);
    FABRIC_DCHECK(!result.ok() || operation.world() == 1 || operation.next > state_->base);
    state_->base = operation.next;
    state_->run_before = 0;
    ++state_->operations;
    if (operation.arrival != 0) state_->barrier.leave(operation.arrival);
    if (result.ok()) return {};
    state_->exposed = operation.arrival;
    return ended(result);
}

// What the caller gets for `result`: after a failure that ends the group, all others learn of it.
Result<void> Group::ended(const Result<void>& result) {
    if (!result.ok() &&
        (breaks_group(result.error().code) || result.error().code == Errc::kBroken)) {
        state_->failed = true;
        if (breaks_group(result.error().code)) {
            state_->barrier.fail(result.error().code, result.error().detail);
        }
        state_->barrier.leave(kLeftForGood);
    }
    return agreed(result, state_->barrier);
}

// all_to_all with counts: no rank knows the others' parts, and all have to cut alike. So each shows
// the bytes it has for each rank; what this rank expects must be what the others send.
Result<Bytes> Group::agree_on_largest(const Call& call) {
    const auto world = static_cast<std::size_t>(state_->place.world);
    const auto rank = static_cast<std::size_t>(state_->place.rank);
    const Bytes element = kernels::size_of(call.dtype);
    std::vector<std::uint64_t> mine;
    for (const std::uint64_t count : call.counts) mine.push_back(count * element);
    std::vector<std::uint64_t> sent(world * world);  // [from * world + to]
    Call exchange;
    exchange.kind = Kind::kAllGather;
    exchange.dtype = kernels::DType::kU64;
    exchange.count = world;
    exchange.input = reinterpret_cast<const std::byte*>(mine.data());
    exchange.output = reinterpret_cast<std::byte*>(sent.data());
    exchange.deadline = call.deadline;
    FABRIC_TRY_VOID(run_now(exchange));
    for (std::size_t from = 0; from < world; ++from) {
        if (sent[from * world + rank] == call.recv_counts[from] * element) continue;
        return Error{Errc::kMismatch, static_cast<int>(from), "all_to_all: recv_counts"};
    }
    return *std::ranges::max_element(sent);
}

Result<void> Group::run(const Call& call) {
    if (kept() != 0 && is_like(kept_->call, call)) {
        FABRIC_TRY_VOID(take_buffers(call.input, call.output));
        kept_->call.deadline = call.deadline;
        kept_->operation->timeout = {};
        return run_prepared(*kept_->operation);
    }
    if (!is_plain_message(call, rank(), world())) {
        FABRIC_TRY_VOID(check_call(call, rank(), world()));
    }
    if (state_->failed) return Error{Errc::kBroken, 0, "collective: the group failed before"};
    if (call.kind == Kind::kSend || call.kind == Kind::kRecv) {
        if (state_->place.meter) state_->place.meter->moved(call.peer, message_bytes(call));
        return mailbox_->run(call);
    }
    // Behind what was started before, or the order of collectives would differ between ranks.
    if (worker_ == nullptr || worker_->idle()) return run_now(call);
    FABRIC_TRY(const auto request, start(call));
    return request->wait();
}

bool Group::cancel(const Request& request) {
    return mailbox_->cancel(request);
}

Result<std::shared_ptr<Request>> Group::start(Call call) {
    FABRIC_TRY_VOID(check_call(call, rank(), world()));
    if (state_->failed) return Error{Errc::kBroken, 0, "collective: the group failed before"};
    if (call.kind == Kind::kSend || call.kind == Kind::kRecv) {
        if (state_->place.meter) state_->place.meter->moved(call.peer, message_bytes(call));
        const auto request = mailbox_->post(call);
        // Most small messages are complete by now.
        if (request->done()) return std::shared_ptr<Request>(request);
        if (messages_ == nullptr) messages_ = std::make_unique<Worker>();
        messages_->push([this] { mailbox_->finish_all(); });
        return std::shared_ptr<Request>(request);
    }
    const auto request = std::make_shared<PendingRequest>();
    if (worker_ == nullptr) worker_ = std::make_unique<Worker>();
    worker_->push([this, request, call = std::move(call)]() mutable {
        // Only now: an operation that stood behind long ones has all of its time before it.
        if (call.timeout != Duration::max()) call.deadline = deadline_from_now(call.timeout);
        request->complete(run_now(call));
    });
    return std::shared_ptr<Request>(request);
}

}  // namespace fabricshm
