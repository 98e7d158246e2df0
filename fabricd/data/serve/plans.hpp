// Plans: the epochs that jobs have announced, and what is fetched ahead and kept for them.

#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "fabricd/data/plan/kept_samples.hpp"
#include "fabricd/data/plan/prefetcher.hpp"
#include "fabricd/data/serve/fills.hpp"
#include "fabricd/data/serve/listings.hpp"
#include "libfabricshm/proto/data_messages.hpp"

namespace fabricd {

/// What `status` says of one.
struct PlanView {
    std::uint64_t listing = 0;
    std::uint64_t seed = 0;
    std::string at;  // of the silo
    std::size_t samples = 0;
    std::size_t read = 0;  // of this epoch
    std::size_t ranks = 0;
    Bytes set_bytes = 0;
    Bytes kept = 0;
    Bytes passing = 0;
    double samples_per_s = 0;
    // The line of docs/data.md: stall-free when what is not kept comes as fast as it is read.
    double needed_bytes_per_s = 0;
    double source_bytes_per_s = 0;
    bool is_stall_free = true;  // with all plans of its silo
};

/// What another service needs to go on with a plan.
struct PlanState {
    fabricshm::proto::DataPlanRequest request{};  // with the place that it is at
    std::shared_ptr<const Listing> listing;
    std::set<std::uint64_t> connections;
};

/// The control thread's. All samples of a listing share one budget, over epochs and jobs.
class Plans {
  public:
    struct Parts {
        ChunkCache& cache;
        FileTable& files;
        Fills& fills;
        const std::vector<SiloSpec>& specs;
    };
    explicit Plans(Parts parts) : parts_(parts) {}

    /// A rank's epoch; the ranks of one epoch share its plan. kInvalid: more samples than the
    /// listing has.
    RequestOutcome announce(const fabricshm::proto::DataPlanRequest& request,
                            std::shared_ptr<const Listing> listing, std::uint64_t connection,
                            TimePoint now);
    /// Its process is gone; with the last of its ranks a plan ends.
    void end_connection(std::uint64_t connection);

    /// As what a file comes in that a reader asks for.
    ChunkKind kind_for(const KnownFile& file);
    /// A reader viewed the line.
    void viewed(std::uint64_t line);
    /// The version is no more.
    void gone(std::uint64_t file);

    /// Asks for what is next. Call some times in a second.
    void tick(TimePoint now);

    bool is_idle() const noexcept { return plans_.empty(); }
    std::vector<PlanView> views() const;
    std::vector<PlanState> states() const;

    /// The cache has more memory, or less: what is kept follows.
    void resized() { share_room(); }

  private:
    // The samples of one listing.
    struct Set {
        std::shared_ptr<const Listing> listing;
        std::unordered_map<std::uint64_t, std::uint32_t> samples;  // by file
        KeptSamples kept{0};
        Bytes bytes = 0;
        Bytes room = 0;  // that all of it would take in memory
        std::uint64_t chunks = 0;
        Bytes largest_chunk = 0;
        Bytes aside = 0;  // for what passes and has no kept sample's place
    };
    struct Plan {
        std::shared_ptr<Set> set;
        std::uint64_t seed = 0;
        // Of DistributedSampler each rank has a plan; FabricSampler gives any rank any sample, and
        // all ranks have one.
        std::uint32_t kind = 0, flags = 0, rank = 0, world = 0;
        std::vector<bool> is_unread;  // by sample; false: or another rank's
        std::size_t samples = 0;      // that are read in all
        Prefetcher prefetcher;
        std::set<std::uint64_t> connections;
        std::size_t read = 0;
        double samples_per_s = 0;
        std::size_t read_before = 0;  // at the last measuring
        TimePoint measured{};

        explicit Plan(std::vector<std::uint32_t> order) : prefetcher(std::move(order)) {}
    };

    static std::shared_ptr<Plan> make_plan(const fabricshm::proto::DataPlanRequest& request,
                                           std::size_t samples);
    std::shared_ptr<Set> set_of(const std::shared_ptr<const Listing>& listing);
    Bytes sample_room(const Set& set) const;
    PrefetchRates rates_of(const Plan& plan) const;
    Bytes ahead_of(const Plan& plan) const;
    Bytes aside_of(const Set& set) const;
    bool has_sizes(const Set& set) const;
    Bytes holes_of(const Set& set) const;
    PassingRoom passing_room(const Plan& plan) const;
    void share_room();
    bool is_needed(const Set& set, std::uint32_t sample) const;
    void need_unread(const Plan& plan);
    void spare_unread(const Plan& plan);
    void finish(Plan& plan, std::uint32_t sample);
    const KnownFile* file_of(const Set& set, std::uint32_t sample) const;
    bool is_in_memory(const KnownFile& file) const;
    void set_kind(const KnownFile& file, ChunkKind kind);
    bool is_kept(Set& set, std::uint32_t sample);
    bool exchange(Set& set, std::uint32_t sample, Bytes room);
    ChunkKind place(Plan& plan, std::uint32_t sample, Bytes room);
    bool fetch_next(const std::shared_ptr<Plan>& plan);
    void measure(Plan& plan, TimePoint now);
    void release(Set& set);
    void remove_ended();

    Parts parts_;
    std::list<std::shared_ptr<Plan>> plans_;  // the oldest first
    std::vector<std::shared_ptr<Set>> sets_;  // that plans have
    std::size_t in_flight_ = 0;
    Bytes in_flight_bytes_ = 0;
};

}  // namespace fabricd
