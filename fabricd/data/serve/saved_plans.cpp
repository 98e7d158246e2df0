#include "fabricd/data/serve/saved_plans.hpp"

#include <algorithm>
#include <chrono>
#include <set>
#include <sstream>

#include "libfabricshm/base/log.hpp"

namespace fabricd {

using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Liveness;
using fabricshm::ProcessIdentity;

namespace {

constexpr const char* kSavedFormat = "plan1";
constexpr auto kSaveInterval = 1s;
constexpr auto kListAgain = 5s;  // a silo that did not answer
constexpr std::size_t kSavedProcessesMax = 4096;
// Above all numbers of connections.
constexpr std::uint64_t kStandIn = std::uint64_t{1} << 63;

bool is_alive(const ProcessIdentity& process) {
    return liveness_of(process) == Liveness::kAlive;
}

bool has_live_process(const SavedPlan& plan) {
    return std::any_of(plan.processes.begin(), plan.processes.end(), is_alive);
}

// The same for a plan at each of its places.
std::string name_of(const SavedPlan& plan) {
    SavedPlan same = plan;
    same.request.position = 0;
    same.processes.clear();
    return text_of(same);
}

}  // namespace

std::string text_of(const SavedPlan& plan) {
    const auto& request = plan.request;
    std::ostringstream text;
    text << kSavedFormat << ' ' << request.seed << ' ' << request.samples << ' ' << request.position
         << ' ' << request.rank << ' ' << request.world << ' ' << request.kind << ' '
         << request.flags << ' ' << plan.is_recursive << ' ' << plan.files << ' ' << plan.names
         << ' ' << plan.processes.size();
    for (const ProcessIdentity& process : plan.processes) {
        text << ' ' << process.pid << ' ' << process.start_time << ' ' << process.pid_namespace;
    }
    text << ' ' << plan.path;
    return text.str();
}

std::optional<SavedPlan> parse_saved_plan(const std::string& text) {
    std::istringstream words(text);
    std::string format;
    SavedPlan plan;
    auto& request = plan.request;
    std::size_t processes = 0;
    words >> format >> request.seed >> request.samples >> request.position >> request.rank >>
        request.world >> request.kind >> request.flags >> plan.is_recursive >> plan.files >>
        plan.names >> processes;
    if (!words || format != kSavedFormat || processes > kSavedProcessesMax) return std::nullopt;
    for (std::size_t i = 0; i < processes; ++i) {
        ProcessIdentity process;
        words >> process.pid >> process.start_time >> process.pid_namespace;
        plan.processes.push_back(process);
    }
    words.get();  // the blank; what follows may have more of them
    if (!words || !std::getline(words, plan.path, '\0')) return std::nullopt;
    request.listing = 1;  // no listing of before: check() wants one
    if (!check(request).ok() || plan.path.front() != '/') return std::nullopt;
    return plan;
}

void SavedPlans::take_up(TimePoint now) {
    if (parts_.tier == nullptr) return;
    for (const auto& [name, text] : parts_.tier->take_plans()) {
        const auto plan = parse_saved_plan(text);
        if (!plan || !has_live_process(*plan)) {
            parts_.tier->put_plan(name, "");
            continue;
        }
        pending_.push_back(std::make_shared<Pending>(Pending{name, *plan, now, false}));
    }
    // An answer that comes at once takes its one off the list.
    const auto all = pending_;
    for (const auto& pending : all) ask(pending, now);
}

void SavedPlans::ask(const std::shared_ptr<Pending>& pending, TimePoint now) {
    pending->is_asked = true;
    parts_.listings.list(
        pending->plan.path, pending->plan.is_recursive, false,
        [this, pending](const RequestOutcome& outcome,
                        const std::shared_ptr<const Listing>& listing) {
            take(pending, outcome, listing);
        },
        now);
}

void SavedPlans::take(const std::shared_ptr<Pending>& pending, const RequestOutcome& outcome,
                      const std::shared_ptr<const Listing>& listing) {
    const TimePoint now = Clock::now();
    pending->is_asked = false;
    pending->next_try = now + kListAgain;
    const bool may_come = outcome.code != Errc::kOk && outcome.code != Errc::kNotFound;
    if (may_come && has_live_process(pending->plan)) return;
    const SavedPlan& plan = pending->plan;
    // Of other names its numbers mean other files.
    const bool is_same = outcome.code == Errc::kOk && listing->files.size() == plan.files &&
                         listing->names == plan.names;
    for (const ProcessIdentity& process : plan.processes) {
        if (!is_same || !is_alive(process)) continue;
        auto request = plan.request;
        request.listing = listing->id;
        const std::uint64_t stand_in = kStandIn | ++last_stand_in_;
        const RequestOutcome taken = parts_.plans.announce(request, listing, stand_in, now);
        if (taken.code == Errc::kOk) stand_ins_[stand_in] = process;
    }
    parts_.tier->put_plan(pending->name, "");
    pending_.remove(pending);
    next_save_ = now;
}

void SavedPlans::announced(std::uint64_t connection, pid_t pid) {
    if (parts_.tier == nullptr) return;
    const auto start = fabricshm::process_start_time(pid);
    const auto pid_namespace = fabricshm::own_pid_namespace();
    if (!start.ok() || !pid_namespace.ok()) return;
    const ProcessIdentity process{pid, *start, *pid_namespace};
    processes_[connection] = process;
    std::vector<std::uint64_t> ended;
    for (const auto& [stand_in, its] : stand_ins_) {
        if (its == process) ended.push_back(stand_in);
    }
    for (const auto stand_in : ended) {
        stand_ins_.erase(stand_in);
        parts_.plans.end_connection(stand_in);
    }
    save();
}

void SavedPlans::end_connection(std::uint64_t connection) {
    if (processes_.erase(connection) != 0) save();
}

void SavedPlans::end_dead() {
    std::vector<std::uint64_t> dead;
    for (const auto& [stand_in, process] : stand_ins_) {
        if (!is_alive(process)) dead.push_back(stand_in);
    }
    for (const auto stand_in : dead) {
        stand_ins_.erase(stand_in);
        parts_.plans.end_connection(stand_in);
    }
}

void SavedPlans::save() {
    std::map<std::string, std::string> now;
    for (const PlanState& state : parts_.plans.states()) {
        const Listing& listing = *state.listing;
        SavedPlan plan;
        plan.request = state.request;
        plan.path = parts_.specs[listing.silo].at;
        if (!listing.path.empty()) plan.path += "/" + listing.path;
        plan.is_recursive = listing.is_recursive;
        plan.files = listing.files.size();
        plan.names = listing.names;
        for (const auto connection : state.connections) {
            const auto& from = (connection & kStandIn) != 0 ? stand_ins_ : processes_;
            const auto process = from.find(connection);
            if (process == from.end() || plan.processes.size() == kSavedProcessesMax) continue;
            plan.processes.push_back(process->second);
        }
        now[name_of(plan)] = text_of(plan);
    }
    for (const auto& [name, text] : now) {
        if (saved_[name] != text) parts_.tier->put_plan(name, text);
    }
    for (const auto& [name, text] : saved_) {
        if (!now.contains(name)) parts_.tier->put_plan(name, "");
    }
    saved_ = std::move(now);
}

void SavedPlans::tick(TimePoint now) {
    if (parts_.tier == nullptr || now < next_save_) return;
    next_save_ = now + kSaveInterval;
    end_dead();
    const auto pending = pending_;
    for (const auto& one : pending) {
        if (!one->is_asked && one->next_try <= now) ask(one, now);
    }
    save();
}

}  // namespace fabricd
