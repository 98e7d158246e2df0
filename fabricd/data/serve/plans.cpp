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
// Of the memory: for what readers still hold of samples that have gone from what is kept.
constexpr Bytes kHeldPart = 256;
// And for holes, where chunks are of different sizes.
constexpr Bytes kHolesPart = 32;

Bytes room_of(const KnownFile& file) {
    Bytes room = 0;
    for (std::uint64_t chunk = 0; chunk < data_chunks(file.facts.bytes); ++chunk) {
        room += chunk_room(data_chunk_length(file.facts.bytes, chunk));
    }
    return room;
}

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

Bytes Plans::sample_room(const Set& set) const {
    return set.samples.empty() ? 1 : std::max<Bytes>(1, set.room / set.samples.size());
}

PrefetchRates Plans::rates_of(const Plan& plan) const {
    const SiloMeter& meter = parts_.fills.meter(plan.set->listing->silo);
    return {meter.latency_s, meter.bytes_per_s, plan.samples_per_s, meter.least_latency_s};
}

Bytes Plans::ahead_of(const Plan& plan) const {
    // At the start nothing is measured: a chunk at least.
    return std::max<Bytes>(
        bytes_ahead(rates_of(plan), sample_room(*plan.set), parts_.cache.capacity()),
        std::min<Bytes>(fabricshm::kDataChunkBytes, parts_.cache.capacity() / 8));
}

// All plans of a set share it: the former epoch's, which is there until the next one has begun,
// sets nothing aside. A sample for each rank at least.
Bytes Plans::aside_of(const Set& set) const {
    std::set<std::uint32_t> ranks;
    Bytes aside = 0;
    for (const auto& plan : plans_) {
        if (plan->set.get() != &set) continue;
        ranks.insert(plan->rank);
        const Bytes least = bytes_aside(rates_of(*plan), sample_room(set), parts_.cache.capacity());
        aside = std::max(aside, has_sizes(set) ? ahead_of(*plan) : least);
    }
    return std::max(aside, ranks.size() * sample_room(set));
}

PassingRoom Plans::passing_room(const Plan& plan) const {
    const Set& set = *plan.set;
    Bytes others = 0;
    for (const auto& other : plans_) {
        const bool shares = other->set == plan.set && other.get() != &plan;
        if (shares) others += other->prefetcher.passing_aside();
    }
    const Bytes free = set.kept.budget() - std::min(set.kept.budget(), set.kept.used());
    const Bytes spare = has_sizes(set) ? 0 : set.kept.spare();
    return {ahead_of(plan), set.aside - std::min(set.aside, others), free + spare};
}

// Chunks of different sizes: one does not fit where another was, so that exchanges would leave
// holes all over what is kept. There what passes has a place of its own.
bool Plans::has_sizes(const Set& set) const {
    const Bytes mean = set.chunks != 0 ? set.room / set.chunks : 0;
    return set.largest_chunk > mean + mean / 8;
}

Bytes Plans::holes_of(const Set& set) const {
    const Bytes part = parts_.cache.capacity() / (has_sizes(set) ? kHolesPart : kHeldPart);
    return std::max(part, set.largest_chunk);
}

// What is not set aside for passing samples is for kept ones; several sets share it evenly.
void Plans::share_room() {
    if (sets_.empty()) return;
    Bytes aside = 0;
    Bytes holes = 0;
    for (const auto& set : sets_) {
        set->aside = aside_of(*set);
        aside += set->aside;
        holes = std::max(holes, holes_of(*set));
    }
    const Bytes capacity = parts_.cache.capacity();
    const Bytes room = capacity > aside + holes ? capacity - aside - holes : 0;
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
        set->room += room_of(*file);
        set->chunks += data_chunks(file->facts.bytes);
        set->largest_chunk =
            std::max(set->largest_chunk,
                     chunk_room(std::min<Bytes>(file->facts.bytes, fabricshm::kDataChunkBytes)));
    }
    sets_.push_back(set);
    share_room();
    // What an earlier job, or an epoch of another listing, left in memory is kept as it is.
    for (const auto& [id, sample] : set->samples) {
        const KnownFile* file = parts_.files.find(id);
        if (!is_in_memory(*file) || !set->kept.keep(sample, room_of(*file))) continue;
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
    order.erase(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(read));
    std::vector<bool> is_unread(samples, false);
    for (const std::uint32_t sample : order) is_unread[sample] = true;
    auto plan = std::make_shared<Plan>(std::move(order));
    plan->seed = request.seed;
    plan->kind = request.kind;
    plan->flags = request.flags;
    plan->world = request.world;
    plan->rank = request.kind == fabricshm::proto::kDataDistributedSampler ? request.rank : 0;
    plan->is_unread = std::move(is_unread);
    plan->samples = all;
    plan->read = plan->read_before = read;
    return plan;
}

RequestOutcome Plans::announce(const DataPlanRequest& request,
                               std::shared_ptr<const Listing> listing, std::uint64_t connection,
                               TimePoint now) {
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
                             plan->is_unread.size() == samples &&
                             (!is_share || plan->rank == request.rank);
        if (!is_same) continue;
        plan->connections.insert(connection);
        return {};
    }
    if (plans_.size() >= kPlansMax) {
        plans_.front()->connections.clear();
        remove_ended();
    }
    const auto plan = make_plan(request, samples);
    plan->set = set_of(listing);
    plan->connections.insert(connection);
    plan->measured = now;
    // The job of the epoch before, until this one is measured.
    for (const auto& other : plans_) {
        const bool is_former = other->set == plan->set && other->rank == plan->rank;
        if (is_former) plan->samples_per_s = other->samples_per_s;
    }
    plans_.push_back(plan);
    need_unread(*plan);
    share_room();
    return {};
}

// --- what epochs have ahead ---

bool Plans::is_needed(const Set& set, std::uint32_t sample) const {
    return std::any_of(plans_.begin(), plans_.end(), [&](const auto& plan) {
        return plan->set.get() == &set && sample < plan->is_unread.size() &&
               plan->is_unread[sample];
    });
}

// What was read before the plan came, as by a killed service's readers, is spare.
void Plans::need_unread(const Plan& plan) {
    for (std::uint32_t sample = 0; sample < plan.is_unread.size(); ++sample) {
        if (plan.is_unread[sample]) {
            plan.set->kept.set_needed(sample);
        } else if (!is_needed(*plan.set, sample)) {
            plan.set->kept.set_spare(sample);
        }
    }
}

// Of a plan that is no more.
void Plans::spare_unread(const Plan& plan) {
    for (std::uint32_t sample = 0; sample < plan.is_unread.size(); ++sample) {
        if (plan.is_unread[sample] && !is_needed(*plan.set, sample)) {
            plan.set->kept.set_spare(sample);
        }
    }
}

void Plans::finish(Plan& plan, std::uint32_t sample) {
    plan.is_unread[sample] = false;
    plan.prefetcher.finish(sample);
    ++plan.read;
    if (!is_needed(*plan.set, sample)) plan.set->kept.set_spare(sample);
}

void Plans::release(Set& set) {
    for (const auto& [id, sample] : set.samples) {
        const KnownFile* file = parts_.files.find(id);
        if (file != nullptr) set_kind(*file, ChunkKind::kTried);
    }
}

void Plans::remove_ended() {
    std::vector<std::shared_ptr<Plan>> ended;
    for (const auto& plan : plans_) {
        if (plan->connections.empty()) ended.push_back(plan);
    }
    std::erase_if(plans_, [](const auto& plan) { return plan->connections.empty(); });
    for (const auto& plan : ended) spare_unread(*plan);
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
        const Bytes room = room_of(file);
        const bool is_kept =
            set->kept.keep(sample->second, room) || exchange(*set, sample->second, room);
        return is_kept ? ChunkKind::kKept : ChunkKind::kPassing;
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
        const bool has_ahead = sample != plan->set->samples.end() &&
                               sample->second < plan->is_unread.size() &&
                               plan->is_unread[sample->second];
        if (has_ahead) return finish(*plan, sample->second);
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

// Those that it takes the place of have passed: they go first, and are in memory until then.
bool Plans::exchange(Set& set, std::uint32_t sample, Bytes room) {
    std::vector<std::uint32_t> gone;
    if (has_sizes(set) || !set.kept.exchange(sample, room, gone)) return false;
    for (const std::uint32_t one : gone) {
        const KnownFile* file = file_of(set, one);
        if (file == nullptr) continue;
        set_kind(*file, ChunkKind::kPassing);
        for (std::uint64_t chunk = 0; chunk < data_chunks(file->facts.bytes); ++chunk) {
            parts_.cache.touch(file->first_line + chunk);
        }
    }
    return true;
}

// As what a sample comes that the plan has asked for next.
ChunkKind Plans::place(Plan& plan, std::uint32_t sample, Bytes room) {
    if (plan.set->kept.keep(sample, room)) {
        plan.prefetcher.keep(sample);
        return ChunkKind::kKept;
    }
    if (!exchange(*plan.set, sample, room)) return ChunkKind::kPassing;
    plan.prefetcher.take_place(sample);
    return ChunkKind::kKept;
}

// False: nothing to ask for now.
bool Plans::fetch_next(const std::shared_ptr<Plan>& plan) {
    Set& set = *plan->set;
    const auto sample = plan->prefetcher.next(
        passing_room(*plan),
        [&](std::uint32_t one) {
            const KnownFile* file = file_of(set, one);
            return file != nullptr ? room_of(*file) : 0;
        },
        [&](std::uint32_t one) { return is_kept(set, one); });
    if (!sample) return false;
    const KnownFile* file = file_of(set, *sample);
    const ChunkKind kind = place(*plan, *sample, room_of(*file));
    const std::uint64_t id = file->id;
    for (std::uint64_t chunk = 0; chunk < data_chunks(file->facts.bytes); ++chunk) {
        const Bytes bytes = data_chunk_length(file->facts.bytes, chunk);
        ++in_flight_;
        in_flight_bytes_ += bytes;
        parts_.fills.want(
            *file, chunk, FetchPriority::kAhead, kind,
            [this, bytes, sample = *sample,
             weak = std::weak_ptr(plan)](const RequestOutcome& outcome) {
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

std::vector<PlanState> Plans::states() const {
    std::vector<PlanState> states;
    for (const auto& plan : plans_) {
        const std::uint64_t samples = plan->is_unread.size();
        const bool is_share = plan->kind == fabricshm::proto::kDataDistributedSampler;
        // A share may have been filled up beyond the samples.
        const std::uint64_t read = is_share ? plan->read * plan->world : plan->read;
        PlanState state;
        state.request = {plan->set->listing->id,
                         plan->seed,
                         samples,
                         std::min(read, samples),
                         plan->rank,
                         plan->world,
                         plan->kind,
                         plan->flags};
        state.listing = plan->set->listing;
        state.connections = plan->connections;
        states.push_back(std::move(state));
    }
    return states;
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
            set.room != 0 ? static_cast<double>(view.kept) / static_cast<double>(set.room) : 1;
        view.needed_bytes_per_s =
            std::max(0.0, 1 - kept) * plan->samples_per_s * static_cast<double>(sample_room(set));
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
