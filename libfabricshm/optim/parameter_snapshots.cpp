#include "libfabricshm/optim/parameter_snapshots.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cpu/half.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/optim/agreement.hpp"
#include "libfabricshm/optim/stored_snapshot.hpp"
#include "libfabricshm/os/random.hpp"

namespace fabricshm {

namespace {

constexpr const char* kStep = "snapshot";
constexpr Error kStepFailed{Errc::kBroken, 0, "snapshot: the step before failed"};

// Of what has to be the same on all ranks.
std::uint64_t signature_of(const SnapshotCall& call) noexcept {
    const std::uint64_t directory = crc32c(call.directory.data(), call.directory.size());
    const std::uint64_t bytes = crc32c(&call.file_bytes, sizeof call.file_bytes);
    return directory << 32 ^ bytes << 8 ^ call.keep;
}

std::uint16_t rounded(float value, kernels::DType type) noexcept {
    return type == kernels::DType::kF16 ? kernels::f32_to_f16(value) : kernels::f32_to_bf16(value);
}

// The parameters that a rank reads: each to the one that has the fewest bytes so far, the longest
// first. Of states likewise, at once.
std::vector<std::size_t> share_of(const ParameterSpec& spec, int rank, int world) {
    std::vector<std::size_t> order(spec.parameters.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, std::ranges::greater{},
                             [&](std::size_t i) { return spec.parameters[i].elements(); });
    std::vector<std::uint64_t> loads(static_cast<std::size_t>(world), 0);
    std::vector<std::size_t> own;
    for (const std::size_t i : order) {
        const auto least = std::ranges::min_element(loads);
        *least += spec.parameters[i].elements();
        if (least - loads.begin() == rank) own.push_back(i);
    }
    return own;
}

}  // namespace

ParameterSnapshots::~ParameterSnapshots() {
    end();
}

// The set goes on without a stage; the memory stays for the next one.
void ParameterSnapshots::end() noexcept {
    writer_.reset();
    set_.step_.set_stage(nullptr);
}

Result<void> ParameterSnapshots::prepare(const SnapshotCall& call, const SnapshotStamp& stamp) {
    SnapshotJob job;
    job.plan = SnapshotPlan::of(set_.spec_, stamp, std::max(call.file_bytes, Bytes{1}));
    std::vector<const float*> arrays{set_.floats(set_.layout_.parameters)};
    for (int i = 0; i < set_.layout_.states; ++i) {
        arrays.push_back(set_.floats(set_.layout_.state[i]));
    }
    FABRIC_TRY(stage_, SnapshotStage::make(job.plan, set_.layout_, std::move(arrays), set_.shard(),
                                           stage_.get()));
    job.spec = set_.spec_;
    job.directory = call.directory;
    job.keep = call.keep;
    job.rank = set_.rank();
    job.world = set_.world();
    job.uring = call.uring;
    job.stage = stage_;
    // Before the thread: from here on steps save what they change.
    set_.step_.set_stage(stage_);
    writer_ = std::make_unique<SnapshotWriter>(std::move(job));
    return {};
}

Result<void> ParameterSnapshots::begin(const SnapshotCall& call, TimePoint deadline) {
    Result<void> own = check_names(set_.spec_);
    if (set_.pending_ || set_.is_half_restored_) own = kStepFailed;
    if (writer_) own = Error{Errc::kBusy, 0, "snapshot: the one before was not waited for"};
    std::uint64_t id = 0;
    if (const auto filled = fill_random(std::as_writable_bytes(std::span(&id, 1)));
        !filled.ok() && own.ok()) {
        own = filled;
    }
    const KeptError kept(own.ok() ? Error{} : own.error());
    const auto code = static_cast<std::uint64_t>(own.ok() ? Errc::kOk : own.error().code);
    FABRIC_TRY(const auto all, gather(set_.words_.group(),
                                      {code, set_.applied_, signature_of(call), id}, deadline));
    if (!own.ok()) return kept.again();
    for (std::size_t at = 0; at < all.size(); at += 4) {
        if (all[at] != 0) return failure_of(static_cast<int>(at / 4), all[at], kStep);
        const bool is_same = all[at + 1] == all[1] && all[at + 2] == all[2];
        if (!is_same) return Error{Errc::kMismatch, static_cast<int>(at / 4), kStep};
    }
    // All use rank 0's number.
    const auto begun =
        agree(set_.words_.group(), prepare(call, {set_.applied_, all[3]}), kStep, deadline);
    if (!begun.ok()) end();
    return begun;
}

bool ParameterSnapshots::is_over() {
    return writer_ == nullptr || writer_->wait_until(kNoWait);
}

Result<SnapshotReport> ParameterSnapshots::wait(TimePoint deadline) {
    // Some of the time is for saying so.
    const Duration left = std::max(deadline - Clock::now(), Duration::zero());
    const bool over = writer_ == nullptr || writer_->wait_until(deadline - left / 8);
    Error own{Errc::kOk, 0, ""};
    if (writer_ == nullptr) {
        own = explain({Errc::kNotFound, 0, kStep}, "no snapshot was begun on this rank");
    } else if (!over) {
        own = Error{Errc::kTimeout, 0, "snapshot: still being written"};
    } else if (writer_->error().code != Errc::kOk) {
        own = explain(writer_->error(), "%s", writer_->reason().c_str());
    }
    const KeptError kept(own);
    const bool named = own.code == Errc::kOk && writer_->report().named;
    FABRIC_TRY(const auto all,
               gather(set_.words_.group(), {static_cast<std::uint64_t>(own.code), named ? 1U : 0U},
                      deadline));
    // A failure comes before a rank that is late: calling again would not help.
    std::optional<std::size_t> failed;
    bool any_late = false;
    bool any_named = false;
    for (std::size_t at = 0; at < all.size(); at += 2) {
        const bool is_late = static_cast<Errc>(all[at]) == Errc::kTimeout;
        any_late = any_late || is_late;
        any_named = any_named || all[at + 1] != 0;
        if (all[at] != 0 && !is_late && !failed) failed = at / 2;
    }
    if (any_late) {
        if (!over) return kept.again();
        return Error{Errc::kTimeout, 0, "snapshot: another rank still writes"};
    }
    const SnapshotReport report = writer_ ? writer_->report() : SnapshotReport{};
    if (failed || !any_named) {
        if (writer_ && set_.rank() == 0) {
            SnapshotDirectory(writer_->job().directory).abandon(writer_->job().plan.stamp);
        }
        end();
        if (own.code != Errc::kOk) return kept.again();
        if (failed) return failure_of(static_cast<int>(*failed), all[2 * *failed], kStep);
        return explain({Errc::kPeer, 0, kStep}, "a rank died before it had written its part");
    }
    end();
    return report;
}

Result<void> ParameterSnapshots::load(const StoredSnapshot& stored) {
    const ParameterSpec& spec = set_.spec_;
    for (const std::size_t i : share_of(spec, set_.rank(), set_.world())) {
        for (int array = 0; array <= set_.layout_.states; ++array) {
            float* const data = array == 0 ? set_.values(i) : set_.state(i, array - 1);
            FABRIC_TRY_VOID(
                stored.read(stored_name(spec, array, i), reinterpret_cast<std::byte*>(data)));
            FAULT_POINT("restore.tensor");
        }
        auto* const copy = reinterpret_cast<std::uint16_t*>(set_.copy(i));
        if (copy == nullptr) continue;
        const float* const values = set_.values(i);
        for (std::uint64_t at = 0; at < spec.parameters[i].elements(); ++at) {
            copy[at] = rounded(values[at], spec.copy);
        }
    }
    return {};
}

Result<std::uint64_t> ParameterSnapshots::restore(const std::string& path, TimePoint deadline) {
    constexpr const char* kRestore = "restore snapshot";
    Result<void> own{};
    Result<StoredSnapshot> stored = Error{Errc::kInternal, 0, kRestore};
    if (set_.pending_) {
        own = kStepFailed;
    } else if (writer_) {
        own = Error{Errc::kBusy, 0, "restore: a snapshot is under way; wait for it"};
    } else {
        stored = StoredSnapshot::open(path);
        own = stored.ok() ? stored->check(set_.spec_) : Result<void>(stored.error());
    }
    FABRIC_TRY_VOID(agree(set_.words_.group(), own, kRestore, deadline));
    // A group that finds the set after a death of all in the middle takes it for a new one.
    set_.is_half_restored_ = true;
    FABRIC_TRY_VOID(set_.set_steps(0));
    FABRIC_TRY_VOID(agree(set_.words_.group(), load(*stored), kRestore, deadline));
    // No rank goes on before all have counted.
    FABRIC_TRY_VOID(agree(set_.words_.group(), set_.set_steps(stored->step()), kRestore, deadline));
    set_.is_half_restored_ = false;
    return stored->step();
}

}  // namespace fabricshm
