#include "libfabricshm/client/cuda_seat.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "libfabricshm/base/lasting.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/cuda/driver.hpp"
#include "libfabricshm/optim/agreement.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricshm {

namespace {

constexpr const char* kAttachStep = "attach to a GPU";
constexpr const char* kJoinStep = "join on a GPU";
constexpr const char* kExportStep = "export device memory";

// Pins would commit what the daemon has not: pages that no quota has heard of. Where pool or quota
// refuse, what is left is pinned all the same (docs/cuda.md).
Result<void> commit_all(Arena& arena) {
    const Result<void> committed = arena.commit();
    if (committed.ok() || committed.error().code != Errc::kNoMemory) return committed;
    log(LogLevel::kWarning, "%s; the driver's pins take the rest, of which no quota hears",
        describe(committed.error()).c_str());
    return {};
}

// Into which a kernel may write at any time: they stay mapped, and the sessions' at the daemon.
using LastingArenas = Lasting<std::shared_ptr<Arena>>;

// What the ranks report to each other when they join, by all_gather.
enum JoinWord : std::size_t {
    kJoinCode,
    kJoinStageBytes,
    kJoinTimeoutNs,
    kJoinDeviceLow,
    kJoinDeviceHigh,
    kJoinBlock,  // of rank 0: where the words of the group are
    kJoinWords
};
using JoinWords = std::vector<std::uint64_t>;

bool any_on_cpu(const JoinWords& all) noexcept {
    for (std::size_t rank = 0; rank < all.size() / kJoinWords; ++rank) {
        const std::uint64_t* const theirs = &all[rank * kJoinWords];
        if (theirs[kJoinDeviceLow] == 0 && theirs[kJoinDeviceHigh] == 0) return true;
    }
    return false;
}

// What the ranks report to each other when they export memory, by all_gather.
constexpr std::size_t kExportCode = 0;
constexpr std::size_t kExportOffer = 1;
constexpr std::size_t kExportWords =
    kExportOffer + sizeof(gpu::ExportOffer) / sizeof(std::uint64_t);
static_assert(sizeof(gpu::ExportOffer) % sizeof(std::uint64_t) == 0);

// The ranks' offers; the first failure among them.
Result<std::vector<gpu::ExportOffer>> offers_of(const std::vector<std::uint64_t>& all) {
    std::vector<gpu::ExportOffer> offers(all.size() / kExportWords);
    for (std::size_t rank = 0; rank < offers.size(); ++rank) {
        const std::uint64_t* const theirs = &all[rank * kExportWords];
        if (theirs[kExportCode] != 0) {
            return failure_of(static_cast<int>(rank), theirs[kExportCode], kExportStep);
        }
        std::memcpy(&offers[rank], theirs + kExportOffer, sizeof offers[rank]);
    }
    return offers;
}

// Whether all ranks can and want the same; then how many are on this one's device.
Result<int> agree_on(const JoinWords& all, const JoinWords& mine, int world) {
    int here = 0;
    for (int rank = 0; rank < world; ++rank) {
        const std::uint64_t* const theirs = &all[static_cast<std::size_t>(rank) * kJoinWords];
        if (theirs[kJoinCode] != 0) return failure_of(rank, theirs[kJoinCode], kJoinStep);
        if (theirs[kJoinStageBytes] != mine[kJoinStageBytes] ||
            theirs[kJoinTimeoutNs] != mine[kJoinTimeoutNs]) {
            return explain({Errc::kMismatch, rank, kJoinStep}, "rank %d has other options", rank);
        }
        if (theirs[kJoinDeviceLow] == mine[kJoinDeviceLow] &&
            theirs[kJoinDeviceHigh] == mine[kJoinDeviceHigh]) {
            ++here;
        }
    }
    return here;
}

}  // namespace

Result<void> attach_to_device(Arena& arena, int device, const gpu::KernelImages& images) {
    const std::lock_guard lock(arena.on_device().mutex);
    if (arena.on_device().arena != nullptr) {
        return explain({Errc::kExists, 0, kAttachStep}, "it is attached to device %d",
                       arena.on_device().arena->device().ordinal());
    }
    if (!arena.visibility().coherent()) {
        return explain({Errc::kUnsupported, 0, kAttachStep},
                       "its memory is not coherent between processes");
    }
    FABRIC_TRY(const gpu::Driver* driver, gpu::Driver::find());
    FABRIC_TRY(auto context, gpu::DeviceContext::open(*driver, device, images));
    FABRIC_TRY_VOID(commit_all(arena));
    FABRIC_TRY(arena.on_device().arena,
               gpu::DeviceArena::make(std::move(context), arena.base(), arena.bytes()));
    return {};
}

Result<void> detach_from_device(Arena& arena) {
    const std::lock_guard lock(arena.on_device().mutex);
    if (arena.on_device().arena == nullptr) return Error{Errc::kNotFound, 0, "detach from a GPU"};
    // Copies are made under the mutex, so that this count does not rise here.
    if (arena.on_device().arena.use_count() > 1) {
        return explain({Errc::kBusy, 0, "detach from a GPU"},
                       "a group of it is joined, or a kernel of one that was left does not end");
    }
    arena.on_device().arena.reset();
    return {};
}

Result<std::shared_ptr<gpu::DeviceArena>> arena_on_device(Arena& arena) {
    const std::lock_guard lock(arena.on_device().mutex);
    if (arena.on_device().arena != nullptr) return arena.on_device().arena;
    return explain({Errc::kNotFound, 0, kAttachStep}, "it is attached to no device");
}

bool has_stuck_kernel(const Session& session) {
    const auto is_of_it = [&](const auto& arena) { return &arena->session() == &session; };
    return LastingArenas::find(is_of_it) != nullptr;
}

Result<void> CudaSeat::finish(Duration for_streams) {
    return group->finish(deadline_from_now(for_streams));
}

CudaSeat::~CudaSeat() {
    // Rank 0 gives the words back of a group that was not made.
    if (group != nullptr && timeout > Duration::zero()) {
        const Result<void> done = finish(timeout);  // its kernels use the stage
        if (!done.ok()) {
            log(LogLevel::kWarning, "a group on a GPU, in arena '%s': %s", arena->name().c_str(),
                describe(done.error()).c_str());
        }
        if (group->is_stuck()) {
            LastingArenas::keep(arena);
            return;
        }
    }
    group.reset();
    if (stage != nullptr && !arena->heap().release(stage)) {
        log(LogLevel::kError, "the stage of a GPU is no block of arena '%s'",
            arena->name().c_str());
    }
}

Result<void> CudaSeat::make_words(Group& of) {
    const Bytes bytes = kernels::cuda::device_group_bytes(of.world()) + kCachePair;
    const std::array<std::int64_t, 1> shape{static_cast<std::int64_t>(bytes)};
    FABRIC_TRY(words, create_tensor(*arena, "fabricshm.cuda." + std::to_string(of.id()),
                                    static_cast<std::uint32_t>(kernels::DType::kU8), shape));
    return make_lasting(*arena, words);
}

// A rank on a CPU leaves 0 for its device, which is none's.
Result<void> CudaSeat::find_device(bool is_on_cpu, JoinWords& mine) const {
    if (is_on_cpu) {
        if (arena->visibility().coherent()) return {};
        return explain({Errc::kUnsupported, 0, kJoinStep},
                       "the arena's memory is not coherent between processes");
    }
    FABRIC_TRY(const auto on_device, arena_on_device(*arena));
    mine[kJoinDeviceLow] = on_device->device().uuid()[0];
    mine[kJoinDeviceHigh] = on_device->device().uuid()[1];
    return {};
}

Result<void> CudaSeat::prepare(Group& of, const CudaSeatOptions& options, JoinWords& mine) {
    mine[kJoinStageBytes] = options.stage_bytes;
    mine[kJoinTimeoutNs] =
        static_cast<std::uint64_t>(options.timeout / std::chrono::nanoseconds(1));
    FABRIC_TRY_VOID(find_device(options.is_on_cpu, mine));
    if (of.world() > kernels::cuda::kMaxRanks) {
        return explain({Errc::kUnsupported, 0, kJoinStep},
                       "the group has %d ranks; %d are the most", of.world(),
                       kernels::cuda::kMaxRanks);
    }
    FABRIC_TRY(stage, arena->heap().allocate(options.stage_bytes));
    if (of.rank() != 0) return {};
    FABRIC_TRY_VOID(make_words(of));
    mine[kJoinBlock] = round_up(static_cast<Bytes>(words.data - arena->base()), kCachePair);
    // Before the others hear of it.
    gpu::format_device_group(arena->base() + mine[kJoinBlock], of.world(),
                             gpu::DevicePlace{}.epoch);
    return {};
}

// Where its own memory is, and where all have said that the rest is.
Result<void> CudaSeat::sit(const std::vector<std::uint64_t>& all,
                           const std::vector<std::uint64_t>& mine, Group& of,
                           const CudaSeatOptions& options) {
    gpu::DevicePlace place;
    place.rank = of.rank();
    place.world = of.world();
    place.stage = static_cast<Bytes>(stage - arena->base());
    place.stage_bytes = options.stage_bytes;
    place.timeout = options.timeout;
    FABRIC_TRY(place.ranks_here, agree_on(all, mine, place.world));
    has_cpu_ranks_ = any_on_cpu(all);
    // Another process's word: checked before anything there is touched.
    place.block = all[kJoinBlock];
    const Bytes needed = kernels::cuda::device_group_bytes(place.world);
    if (place.block % kCachePair != 0 || !arena->holds(place.block, needed)) {
        return explain({Errc::kCorrupt, 0, kJoinStep}, "rank 0 names no place in the arena");
    }
    gpu::PeerCheck check = [&of] { return of.check(); };
    if (options.is_on_cpu) {
        FABRIC_TRY(group, gpu::DeviceGroup::make_on_host(
                              arena->base(), arena->bytes(), place, std::move(check),
                              [&of](const PoisonGuard& guard) { return of.intact(guard); }));
        return {};
    }
    FABRIC_TRY(auto on_device, arena_on_device(*arena));
    FABRIC_TRY(group, gpu::DeviceGroup::make(std::move(on_device), place, std::move(check)));
    return {};
}

Result<std::shared_ptr<CudaSeat>> CudaSeat::take(const std::shared_ptr<Arena>& arena, Group& group,
                                                 const CudaSeatOptions& options,
                                                 TimePoint deadline) {
    auto seat = std::make_shared<CudaSeat>(arena);
    JoinWords mine(kJoinWords);
    const Result<void> ready = seat->prepare(group, options, mine);
    const KeptError why(ready.error());
    mine[kJoinCode] = static_cast<std::uint64_t>(ready.error().code);
    FABRIC_TRY(const auto all, gather(group, mine, deadline));
    const Result<void> sits = ready.ok() ? seat->sit(all, mine, group, options) : why.again();
    const auto agreed = agree(group, sits, kJoinStep, deadline);
    if (agreed.ok()) {
        seat->timeout = options.timeout;
        return seat;
    }
    const KeptError failure(agreed.error());
    // Only where this is certain to have failed on all ranks.
    if (!sits.ok() && seat->words.data != nullptr) (void)free_lasting(*arena, seat->words);
    return failure.again();
}

Error CudaSeat::split(const Error& error) const {
    const KeptError kept(error);
    group->abort(group->rank());
    return kept.again();
}

Result<std::uint32_t> CudaSeat::export_memory(Group& of, const void* pointer, Bytes bytes,
                                              TimePoint deadline) {
    // All ranks know it since they joined: none waits for another one here.
    if (has_cpu_ranks_) {
        return explain({Errc::kUnsupported, 0, kExportStep},
                       "the group has a rank on a CPU, which reaches no memory of devices");
    }
    auto offered = group->offer(pointer, bytes);
    const Result<void> offers_well = offered.ok() ? Result<void>() : offered.error();
    const KeptError why(offers_well.error());
    std::vector<std::uint64_t> mine(kExportWords);
    if (offered.ok()) {
        std::memcpy(&mine[kExportOffer], &offered.value()->offered(), sizeof(gpu::ExportOffer));
    }
    mine[kExportCode] = static_cast<std::uint64_t>(offers_well.error().code);
    const auto all = gather(of, mine, deadline);
    if (!all.ok()) return split(all.error());
    if (!offered.ok()) return why.again();  // and all others have seen the code
    FABRIC_TRY(const auto offers, offers_of(*all));
    // From here on every rank takes part to the end, whatever it finds.
    const auto opened = offered.value()->open(offers);
    const Result<void> outcome = opened.ok() ? Result<void>() : opened.error();
    const KeptError own(outcome.error());
    const std::uint64_t code = static_cast<std::uint64_t>(outcome.error().code);
    const auto reached = gather(of, {code, opened.ok() ? *opened : 0}, deadline);
    if (!reached.ok()) return split(reached.error());
    if (!outcome.ok()) return own.again();
    std::uint32_t by_all = ~std::uint32_t{0};
    for (std::size_t rank = 0; rank < reached->size() / 2; ++rank) {
        const std::uint64_t theirs = (*reached)[2 * rank];
        if (theirs != 0) return failure_of(static_cast<int>(rank), theirs, kExportStep);
        by_all &= static_cast<std::uint32_t>((*reached)[2 * rank + 1]);
    }
    offered.value()->keep(by_all);
    group->use(std::move(offered).value());
    // What was exported before is closed by all; and rank 0 has written the epoch.
    const auto done = pass_barrier(of, deadline);
    if (!done.ok()) return split(done.error());
    return group->exported();
}

Result<void> CudaSeat::unexport(Group& of, TimePoint deadline) {
    // No rank closes before all have come: their streams have ended.
    const auto settled = group->settle(deadline);
    if (!settled.ok()) (void)split(settled.error());
    const auto come = pass_barrier(of, deadline);
    group->use(nullptr);
    if (!come.ok()) return split(come.error());
    const auto done = pass_barrier(of, deadline);
    return done.ok() ? Result<void>() : split(done.error());
}

Result<void> CudaSeat::leave(std::shared_ptr<CudaSeat> seat, Group& group, Duration timeout) {
    const std::shared_ptr<Arena> arena = seat->arena;
    const TensorView words = seat->words;
    const Result<void> finished = seat->finish(seat->timeout);
    const KeptError why(finished.error());
    const bool is_stuck = seat->group->is_stuck();
    seat.reset();
    // Without this rank no other gets past the barrier, which would give the words away.
    if (is_stuck) return why.again();
    // No kernel of any rank uses the words after this.
    FABRIC_TRY_VOID(pass_barrier(group, deadline_from_now(timeout)));
    if (words.data != nullptr) FABRIC_TRY_VOID(free_lasting(*arena, words));
    return finished.ok() ? Result<void>() : why.again();
}

}  // namespace fabricshm
