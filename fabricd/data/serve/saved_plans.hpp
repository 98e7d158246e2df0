// SavedPlans: the plans of running jobs over restarts of the service.

#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fabricd/data/serve/plans.hpp"
#include "fabricd/data/serve/second_tier.hpp"
#include "libfabricshm/os/process.hpp"

namespace fabricd {

/// As text in the catalogue.
struct SavedPlan {
    fabricshm::proto::DataPlanRequest request{};  // with the place that it was at
    std::string path;                             // of its listing, in the namespace
    bool is_recursive = false;
    std::uint64_t files = 0;  // of the listing
    std::uint32_t names = 0;  // Listing::names
    std::vector<fabricshm::ProcessIdentity> processes;
};
std::string text_of(const SavedPlan& plan);
/// Nothing: it is no such text.
std::optional<SavedPlan> parse_saved_plan(const std::string& text);

/// The control thread's. What a plan is of is written when it is announced and once in a second. A
/// service that is started again lists the same path, and goes on with the plan for as long as one
/// of its processes lives: these read on, and announce nothing before their next epoch.
class SavedPlans {
  public:
    struct Parts {
        Plans& plans;
        Listings& listings;
        const std::vector<SiloSpec>& specs;
        SecondTier* tier;  // nullptr: nothing is saved
    };
    explicit SavedPlans(Parts parts) : parts_(parts) {}

    /// Once, when listings can be asked for.
    void take_up(TimePoint now);
    /// Behind an announcement that was taken. What was taken up for the process ends: it speaks for
    /// itself again.
    void announced(std::uint64_t connection, pid_t pid);
    /// Behind Plans::end_connection().
    void end_connection(std::uint64_t connection);
    /// Call some times in a second.
    void tick(TimePoint now);

  private:
    struct Pending {
        std::string name;
        SavedPlan plan;
        TimePoint next_try{};
        bool is_asked = false;
    };

    void ask(const std::shared_ptr<Pending>& pending, TimePoint now);
    void take(const std::shared_ptr<Pending>& pending, const RequestOutcome& outcome,
              const std::shared_ptr<const Listing>& listing);
    void end_dead();
    void save();

    Parts parts_;
    std::map<std::uint64_t, fabricshm::ProcessIdentity> processes_;  // by connection
    std::map<std::uint64_t, fabricshm::ProcessIdentity> stand_ins_;  // of plans that were taken up
    std::list<std::shared_ptr<Pending>> pending_;
    std::map<std::string, std::string> saved_;  // by name
    std::uint64_t last_stand_in_ = 0;
    TimePoint next_save_{};
};

}  // namespace fabricd
