#include "fabricd/data/serve/plans.hpp"

#include <algorithm>
#include <chrono>

#include "fabricd/data/plan/sample_order.hpp"
#include "libfabricshm/shm/data_listing.hpp"

namespace fabricd {

using namespace std::chrono_literals;
using fabricshm::data_chunk_length;
using fabricshm::data_chunks;
using fabricshm::Errc;
using fabricshm::kNoLine;
using fabricshm::proto::DataPlanRequest;

namespace {

// Asked for ahead at a time: enough for any silo's connections, and an end to what a reader that
// waits finds before it.
constexpr std::size_t kInFlightMax = 64;
constexpr Bytes kInFlightBytes = 128 * fabricshm::kMiB;
constexpr std::size_t kPlansMax = 64;
constexpr auto kMeasure = 1s;

}  // namespace

const KnownFile* Plans::file_of(const Set& set, std::uint32_t sample) const {
    const auto& ids = set.listing->files;
    return sample < ids.size() && ids[sample] != 0 ? parts_.files.find(ids[sample]) : nullptr;
}

bool Plans::is_in_memory(const KnownFile& file) const {
    for (std::uint64_t chunk = 0; chunk < data_chunks(file.facts.bytes); ++chunk) {
        const std::uint64_t line = file.first_line + chunk;
        const bool is_here =
            parts_.cache.state(line) == DataLineState::kReady || parts_.fills.is_under_way(line);
        if (!is_here) return false;
    }
    return true;
}

void Plans::set_kind(const KnownFile& file, ChunkKind kind) {
    for (std::uint64_t chunk = 0; chunk < data_chunks(file.facts.bytes); ++chunk) {
        parts_.cache.set_kind(file.first_line + chunk, kind);
    }
}

Bytes Plans::sample_bytes(const Set& set) const {
    return set.samples.empty() ? 1 : std::max<Bytes>(1, set.bytes / set.samples.size());
}

Bytes Plans::ahead_of(const Plan& plan) const {
    const SiloMeter& meter = parts_.fills.meter(plan.set->listing->silo);
    const PrefetchRates rates{meter.latency_s, meter.bytes_per_s, plan.samples_per_s};
    // At the start nothing is measured: a chunk at least.
    return std::max<Bytes>(
        bytes_ahead(rates, sample_bytes(*plan.set), parts_.cache.capacity()),
        std::min<Bytes>(fabricshm::kDataChunkBytes, parts_.cache.capacity() / 8));
}

// What is not for passing samples is for kept ones; several sets share it evenly.
void Plans::share_room() {
    if (sets_.empty()) return;
    Bytes ahead = 0;
    for (const auto& plan : plans_) ahead += ahead_of(*plan);
    // Some room is for holes and for what is filled.
    const Bytes capacity = parts_.cache.capacity() - parts_.cache.capacity() / 32;
    const Bytes room = capacity > ahead ? capacity - ahead : 0;
    for (const auto& set : sets_) {
        set->kept.resize(room / sets_.size());
        std::uint32_t sample = 0;
        while (set->kept.next_to_go(sample)) {
            set->kept.drop(sample);
            if (const KnownFile* file = file_of(*set, sample)) set_kind(*file, ChunkKind::kTried);
        }
    }
}

std::shared_ptr<Plans::Set> Plans::set_of(const std::shared_ptr<const Listing>& listing) {
    for (const auto& set : sets_) {
        if (set->listing->id == listing->id) return set;
    }
    auto set = std::make_shared<Set>();
    set->listing = listing;
    for (std::uint32_t sample = 0; sample < listing->files.size(); ++sample) {
        const KnownFile* file = file_of(*set, sample);
        if (file == nullptr || file->first_line == kNoLine) continue;
        set->samples[file->id] = sample;
        set->bytes += file->facts.bytes;
    }
    sets_.push_back(set);
    share_room();
    // What an earlier job, or an epoch of another listing, left in memory is kept as it is.
    for (const auto& [id, sample] : set->samples) {
        const KnownFile* file = parts_.files.find(id);
        if (!is_in_memory(*file) || !set->kept.keep(sample, file->facts.bytes)) continue;
        set_kind(*file, ChunkKind::kKept);
    }
    return set;
}

std::shared_ptr<Plans::Plan> Plans::make_plan(const DataPlanRequest& request, std::size_t samples) {
    const bool is_shuffled = (request.flags & fabricshm::proto::kDataPlanInOrder) == 0;
    auto order = sample_order({static_cast<std::uint32_t>(samples), request.seed, is_shuffled});
    std::size_t read = request.position;
    if (request.kind == fabricshm::proto::kDataDistributedSampler) {
        const bool drop_last = (request.flags & fabricshm::proto::kDataPlanDropLast) != 0;
        order = distributed_share(std::move(order), request.rank, request.world, drop_last);
        read = std::min<std::size_t>(order.size(), request.position / request.world);
    }
    const std::size_t all = order.size();
    std::vector<bool> has_sample(samples, false);
    for (const std::uint32_t sample : order) has_sample[sample] = true;
    order.erase(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(read));
    auto plan = std::make_shared<Plan>(std::move(order));
    plan->seed = request.seed;
    plan->kind = request.kind;
    plan->flags = request.flags;
    plan->world = request.world;
    plan->rank = request.kind == fabricshm::proto::kDataDistributedSampler ? request.rank : 0;
    plan->has_sample = std::move(has_sample);
    plan->samples = all;
    plan->read = plan->read_before = read;
    return plan;
}

Outcome Plans::announce(const DataPlanRequest& request, std::shared_ptr<const Listing> listing,
                        std::uint64_t connection, TimePoint now) {
    const std::size_t most = listing->files.size();
    const std::size_t samples = request.samples != 0 ? request.samples : most;
    if (samples > most || samples > kOrderedSamplesMax || request.position > samples) {
        return {Errc::kInvalid, 0, "the plan has more samples than its listing"};
    }
    for (const auto& plan : plans_) {
        const bool is_share = plan->kind == fabricshm::proto::kDataDistributedSampler;
        const bool is_same = plan->set->listing->id == request.listing &&
                             plan->seed == request.seed && plan->kind == request.kind &&
                             plan->flags == request.flags && plan->world == request.world &&
                             plan->has_sample.size() == samples &&
                             (!is_share || plan->rank == request.rank);
        if (!is_same) continue;
        plan->connections.insert(connection);
        return {};
    }
    if (plans_.size() >= kPlansMax) plans_.pop_front();
    const auto plan = make_plan(request, samples);
    plan->set = set_of(listing);
    plan->connections.insert(connection);
    plan->measured = now;
    plans_.push_back(plan);
    share_room();
    return {};
}

void Plans::release(Set& set) {
    for (const auto& [id, sample] : set.samples) {
        const KnownFile* file = parts_.files.find(id);
        if (file != nullptr) set_kind(*file, ChunkKind::kTried);
    }
}

void Plans::remove_ended() {
    std::erase_if(plans_, [](const auto& plan) { return plan->connections.empty(); });
    std::erase_if(sets_, [&](const auto& set) {
        const bool has_plan = std::any_of(plans_.begin(), plans_.end(),
                                          [&](const auto& plan) { return plan->set == set; });
        if (!has_plan) release(*set);
        return !has_plan;
    });
    share_room();
}

void Plans::end_connection(std::uint64_t connection) {
    bool has_ended = false;
    for (const auto& plan : plans_) {
        has_ended |= plan->connections.erase(connection) != 0 && plan->connections.empty();
    }
    if (has_ended) remove_ended();
}

ChunkKind Plans::kind_for(const KnownFile& file) {
    for (const auto& set : sets_) {
        const auto sample = set->samples.find(file.id);
        if (sample == set->samples.end()) continue;
        return set->kept.keep(sample->second, file.facts.bytes) ? ChunkKind::kKept
                                                                : ChunkKind::kPassing;
    }
    return ChunkKind::kTried;
}

void Plans::viewed(std::uint64_t line) {
    if (line >= parts_.cache.tables().lines) return;  // a reader's number
    parts_.cache.touch(line);
    if (plans_.empty()) return;
    const KnownFile* file = parts_.files.find(parts_.cache.fields(line).file);
    if (file == nullptr || file->first_line == kNoLine) return;
    const bool is_last = line + 1 == file->first_line + data_chunks(file->facts.bytes);
    if (!is_last) return;
    // The oldest plan that still has it ahead; the others follow their own readers.
    for (const auto& plan : plans_) {
        const auto sample = plan->set->samples.find(file->id);
        if (sample == plan->set->samples.end() || plan->read >= plan->samples) continue;
        if (sample->second >= plan->has_sample.size() || !plan->has_sample[sample->second])
            continue;
        plan->prefetcher.finish(sample->second);
        ++plan->read;
        return;
    }
}

void Plans::gone(std::uint64_t file) {
    for (const auto& set : sets_) {
        const auto sample = set->samples.find(file);
        if (sample == set->samples.end()) continue;
        set->kept.drop(sample->second);
        for (const auto& plan : plans_) {
            if (plan->set == set) plan->prefetcher.finish(sample->second);
        }
        set->samples.erase(sample);
    }
}

// Kept, and in memory or on its way there.
bool Plans::is_kept(Set& set, std::uint32_t sample) {
    const KnownFile* file = file_of(set, sample);
    if (file == nullptr || file->first_line == kNoLine) return true;  // nothing to fetch
    if (!set.kept.has(sample)) return false;
    if (is_in_memory(*file)) return true;
    set.kept.drop(sample);
    return false;
}

// False: nothing to ask for now.
bool Plans::fetch_next(const std::shared_ptr<Plan>& plan) {
    Set& set = *plan->set;
    const auto sample = plan->prefetcher.next(
        ahead_of(*plan),
        [&](std::uint32_t one) {
            const KnownFile* file = file_of(set, one);
            return file != nullptr ? file->facts.bytes : 0;
        },
        [&](std::uint32_t one) { return is_kept(set, one); });
    if (!sample) return false;
    const KnownFile* file = file_of(set, *sample);
    const bool is_kept = set.kept.keep(*sample, file->facts.bytes);
    if (is_kept) plan->prefetcher.keep(*sample);
    const ChunkKind kind = is_kept ? ChunkKind::kKept : ChunkKind::kPassing;
    const std::uint64_t id = file->id;
    for (std::uint64_t chunk = 0; chunk < data_chunks(file->facts.bytes); ++chunk) {
        const Bytes bytes = data_chunk_length(file->facts.bytes, chunk);
        ++in_flight_;
        in_flight_bytes_ += bytes;
        parts_.fills.want(
            *file, chunk, FetchPriority::kAhead, kind,
            [this, bytes, sample = *sample, weak = std::weak_ptr(plan)](const Outcome& outcome) {
                --in_flight_;
                in_flight_bytes_ -= bytes;
                const auto alive = weak.lock();
                if (outcome.code == Errc::kOk || !alive) return;
                // Its reader will ask, and hear why; it takes no room until then.
                alive->prefetcher.finish(sample);
                alive->set->kept.drop(sample);
            },
            fabricshm::Clock::now());
        // A failure that came at once may have ended the version.
        file = parts_.files.find(id);
        if (file == nullptr) break;
    }
    return true;
}

void Plans::measure(Plan& plan, TimePoint now) {
    if (now - plan.measured < kMeasure) return;
    const double seconds = std::chrono::duration<double>(now - plan.measured).count();
    const double rate = static_cast<double>(plan.read - plan.read_before) / seconds;
    plan.samples_per_s = plan.samples_per_s == 0 ? rate : (plan.samples_per_s + rate) / 2;
    plan.read_before = plan.read;
    plan.measured = now;
}

void Plans::tick(TimePoint now) {
    bool has_ended = false;
    for (const auto& plan : plans_) {
        measure(*plan, now);
        while (in_flight_ < kInFlightMax && in_flight_bytes_ < kInFlightBytes && fetch_next(plan)) {
        }
        // Read to its end, and the next epoch has begun.
        const bool has_next = std::any_of(plans_.begin(), plans_.end(), [&](const auto& other) {
            return other->set == plan->set && other->rank == plan->rank &&
                   other->seed != plan->seed && other->read < other->samples;
        });
        const bool is_over = plan->read >= plan->samples && has_next;
        if (is_over) plan->connections.clear();
        has_ended |= is_over;
    }
    if (has_ended) remove_ended();
}

std::vector<PlanView> Plans::views() const {
    std::vector<PlanView> views;
    for (const auto& plan : plans_) {
        PlanView view;
        const Set& set = *plan->set;
        view.listing = set.listing->id;
        view.seed = plan->seed;
        view.at = parts_.specs[set.listing->silo].at;
        view.samples = plan->samples;
        view.read = plan->read;
        view.ranks = plan->connections.size();
        view.set_bytes = set.bytes;
        view.kept = set.kept.used();
        view.passing = plan->prefetcher.passing();
        view.samples_per_s = plan->samples_per_s;
        const double kept =
            set.bytes != 0 ? static_cast<double>(view.kept) / static_cast<double>(set.bytes) : 1;
        view.needed_bytes_per_s =
            std::max(0.0, 1 - kept) * plan->samples_per_s * static_cast<double>(sample_bytes(set));
        view.source_bytes_per_s = parts_.fills.meter(set.listing->silo).bytes_per_s;
        views.push_back(view);
    }
    for (PlanView& view : views) {
        double needed = 0;
        for (const PlanView& other : views) {
            if (other.at == view.at) needed += other.needed_bytes_per_s;
        }
        view.is_stall_free = needed <= view.source_bytes_per_s;
    }
    return views;
}

}  // namespace fabricd
