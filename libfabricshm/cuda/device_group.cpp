#include "libfabricshm/cuda/device_group.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "libfabricshm/base/lasting.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricshm::gpu {

namespace device = kernels::cuda;

namespace {

constexpr const char* kStep = "operation on a stream";
constexpr const char* kExportStep = "export device memory";
constexpr const char* kLeaveStep = "leave a group on a device";

// The parts that one rank gives and receives.
int input_parts(device::CollectiveKind kind, int world) noexcept {
    return kind == device::CollectiveKind::kReduceScatter ? world : 1;
}
int output_parts(device::CollectiveKind kind, int world) noexcept {
    return kind == device::CollectiveKind::kAllGather ? world : 1;
}

// An element of two words is aligned as its words are.
Bytes alignment_of(kernels::DType dtype) noexcept {
    return std::min<Bytes>(kernels::size_of(dtype), 8);
}

bool reduces(device::CollectiveKind kind) noexcept {
    return kind == device::CollectiveKind::kAllReduce ||
           kind == device::CollectiveKind::kReduceScatter;
}

device::DeviceGroupHeader& header_of(std::byte* block) noexcept {
    return *reinterpret_cast<device::DeviceGroupHeader*>(block);
}

Result<void> check_alignment(Pointer address, Bytes alignment, const char* name) {
    if (address % alignment == 0) return {};
    return explain({Errc::kInvalid, 0, kStep}, "%s is not aligned to its elements of %d bytes",
                   name, static_cast<int>(alignment));
}

// What a kernel needs that has no block.
device::GroupArgs args_of(const device::Gate& gate) noexcept {
    device::GroupArgs args{};
    args.grid = gate.grid;
    args.status = gate.status;
    args.counts = static_cast<std::uint32_t>(gate.counts);
    return args;
}

// Polls done() until it is true or the deadline has passed. A failure ends what waits for peers; it
// is waited for all the same, since it may still touch buffers.
template <typename Done>
bool poll_until(DeviceGroup& group, TimePoint deadline, const Done& done) {
    constexpr Duration kMaxPause = std::chrono::milliseconds(1);
    for (Duration pause = std::chrono::microseconds(10);; pause = std::min(pause * 2, kMaxPause)) {
        if (done()) return true;
        (void)group.look();
        if (Clock::now() >= deadline) return false;
        std::this_thread::sleep_for(pause);
    }
}

// Of the kernels that write the word none is at work, nor will be.
void show_left(std::byte* block, int rank) noexcept {
    auto* const ranks =
        reinterpret_cast<device::DeviceRankWords*>(block + sizeof(device::DeviceGroupHeader));
    const std::atomic_ref<std::uint64_t> failure(ranks[rank].failure);
    if (failure.load(std::memory_order_relaxed) != 0) return;
    // Release: an operation that this rank has ended was ended by all, which a peer that sees the
    // word sees as well (Part::await() looks again).
    failure.store(device::make_report(device::Outcome::kLeft, rank), std::memory_order_release);
}

Error left_undone() {
    return explain({Errc::kTimeout, 0, kLeaveStep},
                   "work on a stream had not ended in time, and does nothing any more");
}

Result<void> check_place(const DevicePlace& place) {
    if (place.world >= 1 && place.world <= device::kMaxRanks && place.rank >= 0 &&
        place.rank < place.world) {
        return {};
    }
    return explain({Errc::kUnsupported, 0, "group on a device"}, "it has %d ranks; %d are the most",
                   place.world, device::kMaxRanks);
}

}  // namespace

void format_device_group(std::byte* block, int world, std::uint32_t epoch) noexcept {
    std::memset(block, 0, device::device_group_bytes(world));
    device::DeviceGroupHeader& header = header_of(block);
    header.magic = device::kDeviceGroupMagic;
    header.version = device::kDeviceGroupVersion;
    header.world = static_cast<std::uint32_t>(world);
    header.epoch = epoch;
}

std::uint64_t elements_of_piece(device::CollectiveKind kind, kernels::DType dtype,
                                std::uint64_t count, int world, Bytes half_bytes) noexcept {
    const auto parts =
        static_cast<Bytes>(std::max(input_parts(kind, world), output_parts(kind, world)));
    const Bytes element = kernels::size_of(dtype);
    const Bytes room = half_bytes / parts;  // for one part
    if (count <= room / element) return count;
    // So that all pieces of a buffer are aligned as its start is.
    return std::max<Bytes>(room / 16 * 16 / element, 1);
}

/// A buffer of a caller as the device reaches it, and as the others are shown it.
struct DeviceGroup::Buffer {
    Pointer address = 0;
    device::Place shown = device::kPrivatePlace;
    bool is_shared = false;  // peers reach it where it is

    Buffer at(Bytes offset) const noexcept {
        return {address + offset, is_shared ? shown + offset : shown, is_shared};
    }
};

/// The elements [from, from + count) of each part, of an operation that is cut or not.
struct DeviceGroup::Piece {
    Buffer input;
    Buffer output;
    std::uint64_t from = 0;
    std::uint64_t count = 0;
    bool is_all = true;
};

DeviceGroup::DeviceGroup(std::unique_ptr<Executor> executor, const DevicePlace& place,
                         PeerCheck check, LossReport report)
    : executor_(std::move(executor)),
      gate_(*executor_),
      place_(place),
      check_(std::move(check)),
      report_(std::move(report)),
      block_(executor_->arena().host + place.block),
      epoch_(place.epoch) {}

DeviceGroup::~DeviceGroup() {
    const Result<void> done = end(deadline_from_now(place_.timeout), kGrace);
    if (!done.ok()) log(LogLevel::kWarning, "%s", describe(done.error()).c_str());
    if (!is_stuck_) return;
    // What a kernel that does not end may read or write.
    Lasting<std::unique_ptr<Executor>>::keep(std::move(executor_));
    Lasting<std::unique_ptr<DeviceExports>>::keep(std::move(exports_));
}

Result<std::unique_ptr<DeviceGroup>> DeviceGroup::make(std::shared_ptr<DeviceArena> arena,
                                                       const DevicePlace& place, PeerCheck check) {
    FABRIC_TRY_VOID(check_place(place));
    FABRIC_TRY(auto executor, Executor::on_device(std::move(arena), place.ranks_here));
    return std::unique_ptr<DeviceGroup>(
        new DeviceGroup(std::move(executor), place, std::move(check), {}));
}

Result<std::unique_ptr<DeviceGroup>> DeviceGroup::make_on_host(std::byte* base, Bytes bytes,
                                                               const DevicePlace& place,
                                                               PeerCheck check, LossReport report) {
    FABRIC_TRY_VOID(check_place(place));
    return std::unique_ptr<DeviceGroup>(new DeviceGroup(Executor::on_host(base, bytes), place,
                                                        std::move(check), std::move(report)));
}

Result<DeviceGroup::Buffer> DeviceGroup::find(const void* pointer, Bytes bytes,
                                              const char* name) const {
    if (bytes == 0) return Buffer{};
    if (pointer == nullptr) return explain({Errc::kInvalid, 0, kStep}, "%s is NULL", name);
    if (const auto offset = executor_->offset_of(pointer, bytes)) {
        return Buffer{executor_->arena().base + *offset,
                      device::make_place(device::Space::kPool, *offset), true};
    }
    // Registered with the rest, so that the device would reach its first bytes and what comes
    // after.
    if (executor_->offset_of(pointer, 0)) {
        return explain({Errc::kInvalid, 0, kStep}, "%s ends outside of the arena", name);
    }
    const Pointer address = executor_->reach(pointer);
    if (exports_ != nullptr && address != 0) {
        if (const auto offset = exports_->offset_of(address, bytes)) {
            return Buffer{address, device::make_place(device::Space::kDevice, *offset), true};
        }
    }
    if (address != 0 && !executor_->is_inside_allocation(address, bytes)) {
        return explain({Errc::kInvalid, 0, kStep}, "%s ends outside of its allocation", name);
    }
    if (address != 0) return Buffer{address, device::kPrivatePlace, false};
    return explain({Errc::kInvalid, 0, kStep},
                   "%s is neither in the arena nor memory that the device reaches", name);
}

Pointer DeviceGroup::stage_half(int half) const noexcept {
    return executor_->arena().base + place_.stage + static_cast<Bytes>(half) * half_bytes();
}

device::Place DeviceGroup::stage_place(int half) const noexcept {
    return device::make_place(device::Space::kPool,
                              place_.stage + static_cast<Bytes>(half) * half_bytes());
}

device::GroupArgs DeviceGroup::group_args() const noexcept {
    device::GroupArgs args = args_of(gate_.args());
    args.block = executor_->arena().base + place_.block;
    args.timeout_ns = static_cast<std::uint64_t>(place_.timeout / std::chrono::nanoseconds(1));
    args.rank = place_.rank;
    args.world = place_.world;
    args.epoch = epoch_;
    args.pool = {executor_->arena().base, executor_->arena().bytes};
    if (exports_ != nullptr) {
        const auto& windows = exports_->windows();
        std::copy(windows.begin(), windows.end(), args.device);
    }
    return args;
}

Result<std::unique_ptr<DeviceExports>> DeviceGroup::offer(const void* pointer, Bytes bytes) {
    auto on_device = executor_->device();
    if (on_device == nullptr) {
        return explain({Errc::kUnsupported, 0, kExportStep}, "this rank is on a CPU");
    }
    FABRIC_TRY_VOID(status());
    if (pointer != nullptr && executor_->offset_of(pointer, 0)) {
        return explain({Errc::kInvalid, 0, kExportStep},
                       "it is in the arena, where peers reach it already");
    }
    return DeviceExports::offer(std::move(on_device), {place_.block, place_.rank}, pointer, bytes);
}

void DeviceGroup::use(std::unique_ptr<DeviceExports> exports) noexcept {
    const bool is_in_use = exports_ != nullptr && !poll_until(*this, deadline_from_now(kGrace),
                                                              [this] { return !gate_.is_busy(); });
    // Rather than close it under a kernel.
    if (is_in_use) Lasting<std::unique_ptr<DeviceExports>>::keep(std::move(exports_));
    exports_ = std::move(exports);
    exported_before_ = true;
    ++epoch_;
    if (place_.rank != 0) return;
    // Relaxed would do: a barrier of all ranks comes before any kernel of the new epoch.
    const std::atomic_ref<std::uint32_t> word(header_of(block_).epoch);
    word.store(epoch_, std::memory_order_release);
}

Result<void> DeviceGroup::launch(Kernel kernel, Bytes bytes, const void* argument, Handle stream) {
    // A rank on a CPU does the work here, and looks after its peers while it waits for them.
    struct Context {
        DeviceGroup* self;
        PoisonGuard guard;
    } context = {this, {}};
    const device::HostWait wait = {
        [](void* at) noexcept { (void)static_cast<Context*>(at)->self->check_peers(); }, &context,
        [](void* at) noexcept {
            const auto& now = *static_cast<Context*>(at);
            return now.self->is_harmed(now.guard);
        }};
    const auto launched = executor_->launch(kernel, bytes, argument, stream, wait);
    if (is_harmed(context.guard)) return loss();
    if (launched.ok()) {
        gate_.count_launch();
        return launched;
    }
    // The others wait for what is not coming.
    launch_failed_.store(true, std::memory_order_relaxed);  // a flag alone
    is_reported_.store(true, std::memory_order_relaxed);    // here
    abort(place_.rank);
    return launched;
}

// Once, before the peers hear of a failure of this rank: so they find out why.
bool DeviceGroup::is_harmed(const PoisonGuard& guard) noexcept {
    if (!guard.hit()) return false;
    if (lost_region_.load(std::memory_order_relaxed) >= 0) return true;
    const Result<void> reported = report_ ? report_(guard) : Result<void>();
    const bool is_named = reported.error().code == Errc::kPoisoned;
    lost_region_.store(is_named ? reported.error().detail : 0, std::memory_order_relaxed);
    abort(place_.rank);
    return true;
}

Error DeviceGroup::loss() const {
    const auto region = static_cast<std::int32_t>(lost_region_.load(std::memory_order_relaxed));
    return {Errc::kPoisoned, region, kStep};
}

Result<void> DeviceGroup::copy(Pointer from, Pointer to, Bytes bytes, Handle stream) {
    const device::CopyArgs args{from, to, bytes, gate_.args()};
    return launch(Kernel::kCopy, bytes, &args, stream);
}

// Before a call puts anything on the stream.
Result<void> DeviceGroup::begin(Handle stream) {
    FABRIC_TRY(const bool is_captured, executor_->check_stream(stream));
    gate_.begin(is_captured);
    FABRIC_TRY_VOID(status());
    if (!is_finished_.load(std::memory_order_relaxed)) return {};
    return explain({Errc::kBroken, 0, kStep}, "this rank has left the group");
}

Result<void> DeviceGroup::run(const DeviceCall& call, Handle stream) {
    const bool moves = call.kind != device::CollectiveKind::kBarrier;
    if (moves && reduces(call.kind) && !kernels::is_supported(call.dtype, call.op)) {
        return explain({Errc::kUnsupported, 0, kStep}, "%s does not go with %s",
                       kernels::row_of(call.op).name, kernels::row_of(call.dtype).name);
    }
    if (call.root < 0 || call.root >= place_.world) {
        return explain({Errc::kInvalid, 0, kStep}, "root is not 0 to %d", place_.world - 1);
    }
    FABRIC_TRY_VOID(begin(stream));
    const Bytes element = kernels::size_of(call.dtype);
    const Bytes part = moves ? call.count * element : 0;
    const bool gives = call.kind != device::CollectiveKind::kBroadcast || call.root == place_.rank;
    Piece piece;
    const auto in_bytes = part * static_cast<Bytes>(input_parts(call.kind, place_.world));
    const auto out_bytes = part * static_cast<Bytes>(output_parts(call.kind, place_.world));
    FABRIC_TRY(piece.input, find(call.input, gives ? in_bytes : 0, "input"));
    FABRIC_TRY(piece.output, find(call.output, out_bytes, "output"));
    const Bytes alignment = alignment_of(call.dtype);
    FABRIC_TRY_VOID(check_alignment(piece.input.address, alignment, "input"));
    FABRIC_TRY_VOID(check_alignment(piece.output.address, alignment, "output"));
    const std::uint64_t count = moves ? call.count : 0;
    const std::uint64_t most =
        elements_of_piece(call.kind, call.dtype, count, place_.world, half_bytes());
    piece.is_all = most >= count;
    do {
        piece.count = std::min(most, count - piece.from);
        FABRIC_TRY_VOID(run_piece(call, piece, stream));
        piece.from += piece.count;
    } while (piece.from < count);
    // What became of it is known on a CPU alone.
    return executor_->is_synchronous() ? status() : Result<void>();
}

// What peers can't reach goes through the stage: its first half holds what this rank gives, each
// part next to the one before, the second what it receives. Peers store into the outputs of an
// allreduce alone. The collective ends when no rank reads or writes a stage any more, and the
// stream keeps the copies in order around it, so the next piece may use the same bytes.
Result<void> DeviceGroup::run_piece(const DeviceCall& call, const Piece& piece, Handle stream) {
    const Bytes element = kernels::size_of(call.dtype);
    const Bytes bytes = piece.count * element;
    const Bytes from = piece.from * element;
    const Bytes stride = call.count * element;
    const int in_parts = input_parts(call.kind, place_.world);
    const int out_parts = output_parts(call.kind, place_.world);
    const bool gives = piece.input.address != 0;
    const bool receives = piece.output.address != 0;
    const bool is_apart = !piece.is_all && in_parts + out_parts > 2;
    const bool stages_input = gives && !piece.input.is_shared;
    const bool peers_store = call.kind == device::CollectiveKind::kAllReduce;
    const bool stages_output = receives && peers_store && !piece.output.is_shared;
    for (int part = 0; stages_input && part < in_parts; ++part) {
        const auto skip = static_cast<Bytes>(part);
        FABRIC_TRY_VOID(copy(piece.input.address + skip * stride + from,
                             stage_half(0) + skip * bytes, bytes, stream));
    }
    Buffer input = gives ? piece.input.at(from) : Buffer{};
    Buffer output = receives ? piece.output.at(from) : Buffer{};
    // This rank reads its own where it is, which is nearer.
    if (stages_input) input.shown = stage_place(0);
    if (is_apart && in_parts > 1 && input.is_shared) input.shown |= device::kApart;
    if (stages_output) output = {stage_half(1), stage_place(1), true};
    device::CollectiveArgs args{};
    args.group = group_args();
    args.kind = call.kind;
    args.algorithm = device::Algorithm::kAuto;
    args.type = call.dtype;
    args.op = call.op;
    args.root = call.root;
    args.divisor = place_.world;
    args.count = piece.count;
    args.stride = is_apart ? stride : 0;
    args.input = input.address;
    args.output = output.address;
    args.shown_input = input.shown;
    args.shown_output = output.shown;
    const auto parts = static_cast<Bytes>(std::max(in_parts, out_parts));
    FABRIC_TRY_VOID(launch(Kernel::kCollective, bytes * parts, &args, stream));
    if (!stages_output) return {};
    return copy(stage_half(1), piece.output.address + from, bytes, stream);
}

// What this rank alone reads and writes: its parameters and state, factors, weights.
Result<void> DeviceGroup::find_own(const DeviceStep& step, device::StepArgs& args) const {
    const kernels::RuleRow& row = kernels::row_of(step.rule);
    const Bytes own = step.count * sizeof(float);
    const auto place = [&](const void* pointer, Bytes bytes, bool needed, const char* name,
                           device::Address& address) -> Result<void> {
        if (pointer == nullptr && !needed) return {};
        FABRIC_TRY(const Buffer found, find(pointer, bytes, name));
        FABRIC_TRY_VOID(check_alignment(found.address, sizeof(float), name));
        address = found.address;
        return {};
    };
    const bool needs_first = row.first && step.rule != kernels::Rule::kSgd;
    FABRIC_TRY_VOID(place(step.parameters, own, true, "parameters", args.parameters));
    FABRIC_TRY_VOID(place(step.first, own, needs_first, "first", args.first));
    FABRIC_TRY_VOID(place(step.second, own, row.second, "second", args.second));
    FABRIC_TRY_VOID(place(step.maximum, own, row.maximum, "maximum", args.maximum));
    const Bytes weights = static_cast<Bytes>(place_.world) * sizeof(float);
    FABRIC_TRY_VOID(place(step.weights, weights, false, "weights", args.weights));
    return place(step.factors, kFactorsBytes, true, "factors", args.factors);
}

Result<void> DeviceGroup::step(const DeviceStep& step, Handle stream) {
    FABRIC_TRY_VOID(begin(stream));
    if (step.begin > step.total || step.count > step.total - step.begin) {
        return explain({Errc::kInvalid, 0, kStep}, "begin and count are not inside of total");
    }
    device::StepArgs args{};
    FABRIC_TRY_VOID(find_own(step, args));
    const Bytes gradient_bytes = step.total * kernels::size_of(step.gradient_type);
    const Bytes publish_bytes = step.total * kernels::size_of(step.publish_type);
    FABRIC_TRY(Buffer gradient, find(step.gradient, gradient_bytes, "gradient"));
    Buffer publish;
    if (step.publish != nullptr) {
        FABRIC_TRY(publish, find(step.publish, publish_bytes, "publish"));
    }
    FABRIC_TRY_VOID(
        check_alignment(gradient.address, kernels::size_of(step.gradient_type), "gradient"));
    FABRIC_TRY_VOID(
        check_alignment(publish.address, kernels::size_of(step.publish_type), "publish"));
    const bool alone = place_.world == 1;
    const bool stages_gradient = !alone && !gradient.is_shared;
    const bool stages_publish = !alone && publish.address != 0 && !publish.is_shared;
    if ((stages_gradient && gradient_bytes > half_bytes()) ||
        (stages_publish && publish_bytes > half_bytes())) {
        return explain({Errc::kInvalid, 0, kStep},
                       "gradient and publish are in device memory and larger than half of a stage "
                       "of %llu bytes: put them into the pool",
                       static_cast<unsigned long long>(place_.stage_bytes));
    }
    const Pointer wanted = publish.address;
    if (stages_gradient) {
        FABRIC_TRY_VOID(copy(gradient.address, stage_half(0), gradient_bytes, stream));
        gradient.shown = stage_place(0);  // this rank reads its own, which is nearer
    }
    if (stages_publish) publish = {stage_half(1), stage_place(1), true};
    args.group = alone ? args_of(gate_.args()) : group_args();
    args.group.world = place_.world;
    args.rule = step.rule;
    args.gradient_type = step.gradient_type;
    args.publish_type = step.publish_type;
    args.gradient_count = place_.world;
    args.scale = step.scale;
    args.total = step.total;
    args.begin = step.begin;
    args.count = step.count;
    args.gradients[place_.rank] = gradient.address;
    args.publish = publish.address;
    args.shown_gradient = gradient.shown;
    args.shown_publish = publish.shown;
    // Each gradient and what is moved by it, once.
    const Bytes moved = step.count * sizeof(float) * static_cast<Bytes>(place_.world + 3);
    FABRIC_TRY_VOID(launch(Kernel::kStep, moved, &args, stream));
    if (stages_publish) {
        FABRIC_TRY_VOID(copy(publish.address, wanted, publish_bytes, stream));
    }
    // What became of it is known on a CPU alone.
    return executor_->is_synchronous() ? status() : Result<void>();
}

Result<void> DeviceGroup::status() {
    const Result<void> found = look();
    if (!found.ok()) is_reported_.store(true, std::memory_order_relaxed);  // a flag alone
    return found;
}

Result<void> DeviceGroup::failure() {
    if (lost_region_.load(std::memory_order_relaxed) >= 0) return loss();
    if (launch_failed_.load(std::memory_order_relaxed)) {
        return explain({Errc::kBroken, 0, kStep}, "an earlier operation was not put on its stream");
    }
    // Acquire: what the kernel wrote before its report is seen after it.
    const std::atomic_ref<device::Report> report(executor_->words().status->report);
    if (const device::Report found = report.load(std::memory_order_acquire); found != 0) {
        return error_of(found);
    }
    return {};
}

Result<void> DeviceGroup::look() {
    FABRIC_TRY_VOID(failure());
    // Another rank's host ended the waits, or this one did; no kernel may be running to say so.
    const std::atomic_ref<std::uint64_t> abort_word(header_of(block_).abort);
    if (const device::Report found = abort_word.load(std::memory_order_acquire); found != 0) {
        return error_of(found);
    }
    return check_peers();
}

Result<void> DeviceGroup::check_peers() {
    if (!check_) return {};
    const std::int64_t now = monotonic_ns();
    std::int64_t due = next_check_ns_.load(std::memory_order_relaxed);
    // Relaxed: of several threads one checks, and no matter which.
    const bool mine = now >= due && next_check_ns_.compare_exchange_strong(
                                        due, now + kPeerCheckEvery / std::chrono::nanoseconds(1),
                                        std::memory_order_relaxed);
    if (!mine) return {};
    const auto peers = check_();
    if (!peers.ok()) {
        abort(peers.error().code == Errc::kPeer ? peers.error().detail : place_.rank);
    }
    return peers;
}

// What another process wrote is input: a rank that is none is not passed on as one.
Result<void> DeviceGroup::error_of(device::Report report) {
    const int rank = device::rank_of(report);
    const bool is_rank = rank >= 0 && rank < place_.world;
    const device::Outcome outcome = device::outcome_of(report);
    if (!is_rank) {
        return explain({Errc::kCorrupt, 0, kStep}, "report %llu of the group names no rank",
                       static_cast<unsigned long long>(report));
    }
    switch (outcome) {
        case device::Outcome::kAborted:
        case device::Outcome::kPeerFailed:
            if (rank == place_.rank) {
                return explain({Errc::kBroken, 0, kStep}, "this rank has ended the group");
            }
            // It may have lost memory, which it says in the group of the hosts.
            if (check_) {
                const auto why = check_();
                if (why.error().code == Errc::kPoisoned) return why;
            }
            return explain({Errc::kPeer, rank, kStep}, "rank %d died or has ended the group", rank);
        case device::Outcome::kLeft:
            // From a kernel that found the gate closed.
            if (rank == place_.rank) return left_undone();
            return explain({Errc::kPeer, rank, kStep}, "rank %d has left the group", rank);
        case device::Outcome::kTimeout:
            // The device knows that it waited in vain, the host perhaps why: not that others did.
            if (check_) {
                const auto why = check_();
                const Errc code = why.error().code;
                if (code == Errc::kPeer || code == Errc::kPoisoned) return why;
            }
            return explain({Errc::kTimeout, rank, kStep}, "rank %d did not come in time", rank);
        case device::Outcome::kMismatch:
            return explain({Errc::kMismatch, rank, kStep},
                           "rank %d called another operation, or with other arguments", rank);
        case device::Outcome::kUnreachable:
            return explain({Errc::kUnsupported, rank, kStep},
                           "a buffer of rank %d is in memory that this device has not mapped",
                           rank);
        case device::Outcome::kBroken:
            return explain({Errc::kBroken, 0, kStep}, "an earlier operation failed");
        case device::Outcome::kBadEpoch:
            if (exported_before_) {
                return explain({Errc::kBroken, 0, kStep},
                               "a graph was launched that was captured before memory was exported "
                               "or not any more: capture it again");
            }
            [[fallthrough]];
        default:
            return explain({Errc::kCorrupt, rank, kStep}, "the group's words are not whole (%u)",
                           static_cast<unsigned>(outcome));
    }
}

Result<void> DeviceGroup::wait(Handle stream, TimePoint deadline) {
    Result<bool> is_done = false;
    const bool in_time = poll_until(*this, deadline, [&] {
        is_done = executor_->is_done(stream);
        return !is_done.ok() || *is_done;
    });
    if (!is_done.ok()) return is_done.error();
    if (in_time) return status();
    return explain({Errc::kTimeout, 0, kStep}, "the stream has not come to its end");
}

Result<void> DeviceGroup::settle(TimePoint deadline) {
    if (poll_until(*this, deadline, [this] { return gate_.have_ended() && !gate_.is_busy(); })) {
        return {};
    }
    return explain({Errc::kTimeout, 0, kExportStep}, "work on a stream has not ended in time");
}

Result<void> DeviceGroup::finish(TimePoint deadline, Duration grace) {
    const Result<void> ended = end(deadline, grace);
    if (!is_stuck_) show_left(block_, place_.rank);
    return ended;
}

Result<void> DeviceGroup::end(TimePoint deadline, Duration grace) {
    // Relaxed, a flag alone: only the thread that launches leaves, and by destruction at the
    // latest.
    if (is_finished_.exchange(true, std::memory_order_relaxed)) return {};
    const bool had_work = !executor_->is_synchronous() && !gate_.have_ended();
    // Where a launch has failed kernels may be missing that the count waits for.
    const bool can_wait = !launch_failed_.load(std::memory_order_relaxed);
    const auto have_ended = [this] { return gate_.have_ended(); };
    const bool in_time = !had_work || (can_wait && poll_until(*this, deadline, have_ended));
    gate_.close();
    const auto is_quiet = [this] { return !gate_.is_busy(); };
    const bool is_aborted = !poll_until(*this, deadline, is_quiet);
    // The failure of an operation that ended before would be lost, since no call has returned it.
    // What kernels report once the waits are ended below is this rank's own doing.
    const bool is_news = had_work || !is_reported_.load(std::memory_order_relaxed);
    const bool has_failed = is_news && !failure().ok();
    if (is_aborted) {
        abort(place_.rank);
        is_stuck_ = !poll_until(*this, deadline_from_now(grace), is_quiet);
    }
    if (is_stuck_) {
        return explain({Errc::kTimeout, 0, kLeaveStep},
                       "a kernel does not end: the memory that it uses stays until the process "
                       "ends");
    }
    if (has_failed) return failure();  // which stays as it was
    if (had_work && !is_aborted) FABRIC_TRY_VOID(look());
    if (in_time && !is_aborted) return {};
    return left_undone();
}

void DeviceGroup::abort(int rank) noexcept {
    const std::atomic_ref<std::uint64_t> word(header_of(block_).abort);
    std::uint64_t none = 0;
    // The first reason stays. Release: goes before nothing that others read; the kernels' polls are
    // acquires of the same scope.
    word.compare_exchange_strong(none, device::make_report(device::Outcome::kAborted, rank),
                                 std::memory_order_release, std::memory_order_relaxed);
}

}  // namespace fabricshm::gpu
