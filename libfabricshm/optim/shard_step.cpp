#include "libfabricshm/optim/shard_step.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "libfabricshm/base/exact_sum.hpp"
#include "libfabricshm/base/fault_point.hpp"

namespace fabricshm {

namespace {

// Whether a shard and what belongs to it do not stay in the cache from one step to the next.
bool is_streamed(const ElementRange& shard) noexcept {
    return shard.count() * sizeof(float) * 4 > 16 * kMiB;
}

}  // namespace

bool StepCall::measures() const noexcept {
    return skip_nonfinite || clip_norm > 0;
}

void ShardStep::set_members(std::vector<int> slots) {
    members_ = std::move(slots);
    weights_.assign(members_.size(), 0);
    sources_.assign(members_.size(), nullptr);
}

// The weights and the factors of the attempt; of the same members on every rank, survivors that
// finish it included.
void ShardStep::begin(const StepCall& call, std::uint64_t number, std::uint64_t step) {
    weighted_ = false;
    const double mean = 1.0 / static_cast<double>(members_.size());
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
        const double weight = record(members_[rank]).weight[number & 1];
        weighted_ = weighted_ || !std::isnan(weight);
        weights_[rank] = static_cast<float>(std::isnan(weight) ? mean : weight);
    }
    factors_.clear();
    for (const kernels::Hyper& hyper : call.hyper) {
        factors_.push_back(kernels::make_step_factors(spec_.rule, hyper, step));
    }
}

// Where the members' gradients of element `at` are.
void ShardStep::find_sources(std::uint64_t at) noexcept {
    const Bytes offset = layout_.gradients + at * kernels::size_of(spec_.gradients);
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
        const auto slot = static_cast<Bytes>(members_[rank]);
        sources_[rank] = memory_ + offset + slot * layout_.gradient_stride;
    }
}

// Of the sum, clipping aside.
double ShardStep::scale_of(const StepCall& call) const noexcept {
    const double mean = weighted_ ? 1.0 : 1.0 / static_cast<double>(members_.size());
    return call.scale * mean;
}

// Where a step may be skipped what would move the parameters is measured: a finite sum can be
// scaled beyond all numbers. Where it is only clipped the sum itself, since the scale may become
// small enough.
void ShardStep::measure(const StepCall& call, const ElementRange& shard, SlotRecord& into) {
    ExactSum sum;
    bool finite = true;
    charge(shard, false);
    kernels::MergeJob job;
    job.gradient_type = spec_.gradients;
    job.gradients = sources_.data();
    job.gradient_count = static_cast<int>(sources_.size());
    job.weights = weighted_ ? weights_.data() : nullptr;
    job.count = kBlockElements;
    job.streaming = is_streamed(shard);
    if (call.skip_nonfinite) job.scale = static_cast<float>(scale_of(call));
    for (std::uint64_t at = shard.begin; at < shard.end; at += kBlockElements) {
        find_sources(at);
        const kernels::Merged merged = kernels::merge(job);
        finite = finite && merged.finite;
        if (merged.finite) sum.add(merged.square_sum);
    }
    into.finite = finite ? 1 : 0;
    std::copy(sum.words().begin(), sum.words().end(), into.square_sum);
}

// From what all ranks have shown, so that all judge alike.
StepVerdict ShardStep::judge(const StepCall& call) const noexcept {
    const double scale = scale_of(call);
    if (!call.measures()) {
        return {false, std::numeric_limits<double>::quiet_NaN(), static_cast<float>(scale)};
    }
    ExactSum sum;
    bool finite = true;
    for (const int slot : members_) {
        const SlotRecord& of = record(slot);
        finite = finite && of.finite == 1;
        ExactSum::Words words;
        std::copy_n(of.square_sum, words.size(), words.begin());
        sum.add(ExactSum(words));
    }
    const double unit = call.skip_nonfinite ? 1 : std::abs(scale);
    const double norm =
        finite ? unit * std::sqrt(sum.value()) : std::numeric_limits<double>::infinity();
    if (!finite && call.skip_nonfinite) return {true, norm, 0};
    double clip = 1;
    // As PyTorch's clip_grad_norm_ does: its small number keeps a norm of 0 from dividing.
    if (call.clip_norm > 0) clip = std::min(1.0, call.clip_norm / (norm + 1e-6));
    return {false, norm, static_cast<float>(scale * clip)};
}

// Emulated links and models of memory charge for what crosses.
void ShardStep::charge(const ElementRange& shard, bool steps) const noexcept {
    if (!view_.active()) return;
    const Bytes bytes = shard.count() * kernels::size_of(spec_.gradients);
    for (std::size_t peer = 0; peer < members_.size(); ++peer) {
        const auto slot = static_cast<Bytes>(members_[peer]);
        const std::byte* gradients = memory_ + layout_.gradients + slot * layout_.gradient_stride;
        view_.acquire(TouchPoint::kGradientRead,
                      gradients + shard.begin * kernels::size_of(spec_.gradients), bytes,
                      static_cast<int>(peer));
    }
    if (!steps) return;
    const Bytes moved = shard.count() * sizeof(float) * static_cast<Bytes>(1 + layout_.states);
    const Bytes copied =
        layout_.copy != 0 ? shard.count() * kernels::size_of(spec_.copy) : Bytes{0};
    view_.use(moved, moved + copied);
}

// Parameters and state of `range`, and the log of `slot` for them.
kernels::OptimiseJob ShardStep::job_of(ElementRange range, kernels::UndoLog& log,
                                       int slot) const noexcept {
    kernels::OptimiseJob job;
    job.rule = spec_.rule;
    job.gradient_type = spec_.gradients;
    job.parameters = floats(layout_.parameters) + range.begin;
    float* const logged = floats(layout_.logs + static_cast<Bytes>(slot) * layout_.log_bytes);
    log.parameters = logged;
    float** const state[] = {&job.first, &job.second, &job.maximum};
    float** const old[] = {&log.first, &log.second, &log.maximum};
    for (int i = 0; i < layout_.states; ++i) {
        *state[i] = floats(layout_.state[i]) + range.begin;
        *old[i] = logged + static_cast<std::uint64_t>(i + 1) * kLogElements;
    }
    log.logged = &record(slot).logged;
    log.base = range.begin;
    job.undo = &log;
    job.count = range.count();
    return job;
}

// What is stepped at once from `at` on: as far as a log and the parameters' options reach.
ElementRange ShardStep::chunk_at(std::uint64_t at, std::size_t segment,
                                 std::uint64_t end) const noexcept {
    return {at, std::min({at + kLogElements, layout_.segments[segment].end, end})};
}

// Steps `shard` from where its slot's record says, which is its beginning unless a rank died in it.
Result<void> ShardStep::run(std::uint64_t number, const StepVerdict& verdict,
                            const ElementRange& shard, int slot) {
    SlotRecord& rec = record(slot);
    charge(shard, true);
    // Acquire: what the rank that died had stored before is visible.
    if (rec.started.load(std::memory_order_acquire) != number) {
        // Relaxed: the release of `started` makes them visible before it.
        rec.cursor.store(shard.begin, std::memory_order_relaxed);
        rec.logged.store(shard.begin, std::memory_order_relaxed);
        rec.started.store(number, std::memory_order_release);
    }
    std::uint64_t at = rec.cursor.load(std::memory_order_acquire);
    const std::uint64_t logged = rec.logged.load(std::memory_order_acquire);
    // The record is shared memory: a range outside of the shard would be another rank's.
    const bool sound = at >= shard.begin && at <= shard.end && logged <= shard.end;
    if (!sound) return Error{Errc::kCorrupt, slot, "step: the record of a slot"};
    const bool streaming = is_streamed(shard);
    kernels::UndoLog log;
    auto segment = static_cast<std::size_t>(
        std::ranges::upper_bound(layout_.segments, at, {}, &ElementRange::begin) -
        layout_.segments.begin() - 1);
    if (at < shard.end && logged > at) {
        const ElementRange chunk = chunk_at(at, segment, shard.end);
        if (logged > chunk.end) return Error{Errc::kCorrupt, slot, "step: the log of a slot"};
        kernels::undo(job_of(chunk, log, slot));
    }
    while (at < shard.end) {
        while (at >= layout_.segments[segment].end) ++segment;
        const ElementRange chunk = chunk_at(at, segment, shard.end);
        if (stage_) stage_->save(chunk);
        kernels::OptimiseJob job = job_of(chunk, log, slot);
        find_sources(at);
        job.gradients = sources_.data();
        job.gradient_count = static_cast<int>(sources_.size());
        job.weights = weighted_ ? weights_.data() : nullptr;
        job.scale = verdict.scale;
        job.factors = factors_[layout_.options[segment]];
        job.streaming = streaming;
        if (layout_.copy != 0) {
            job.copy = memory_ + layout_.copy + at * kernels::size_of(spec_.copy);
            job.copy_type = spec_.copy;
        }
        kernels::optimise(job);
        FAULT_POINT("step.chunk");
        at = chunk.end;
        // Release: a survivor that finds the cursor here finds the chunk done. `logged` is not
        // ahead of it any more, so the log counts for nothing from this store on.
        rec.cursor.store(at, std::memory_order_release);
    }
    return {};
}

}  // namespace fabricshm
