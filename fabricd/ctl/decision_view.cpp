#include "fabricd/ctl/decision_view.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "fabricd/control/stages/data_flow.hpp"
#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/table.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

namespace {

std::string format(const char* pattern, double value) {
    char text[64];
    std::snprintf(text, sizeof text, pattern, value);
    return text;
}

// In the time zone of the reader; JSON has the moment itself.
std::string time_of(const Decision& decision) {
    const std::time_t seconds = decision.unix_ms / 1000;
    std::tm local{};
    char text[32];
    if (decision.unix_ms == 0 || ::localtime_r(&seconds, &local) == nullptr) return "-";
    return std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local) == 0 ? "-" : text;
}

// With four digits: what is measured here scatters by per cents.
std::string number(double value, const std::string& unit) {
    if (std::isnan(value)) return "not known";
    // By our own formatters, which choose the unit, as far as they reach: nothing negative, and
    // nothing near the end of 64 bits.
    if (unit == "bytes" && value >= 0 && value < 1e18) {
        return fabricshm::format_bytes(static_cast<std::uint64_t>(value));
    }
    if (unit == "s" && value >= 0 && value < 1e6) {
        return fabricshm::format_duration(
            std::chrono::duration_cast<fabricshm::Duration>(std::chrono::duration<double>(value)));
    }
    return format("%.4g", value) + (unit.empty() ? "" : " " + unit);
}

// In one word or two: a GPU (S322, S422), a job (S113, S223, S313), or else the places of shards
// (S213), which belong to no job.
std::string subject_of(const Decision& decision) {
    if (!decision.device.empty()) return decision.device;
    if (decision.group == 0) return "shards";
    return "arena " + std::to_string(decision.arena) + " group " + std::to_string(decision.group);
}

const char* name_of(const Decision& decision) {
    return name_of(kind_of(decision));
}

// Shares are parts of 1 and places are numbers of nodes: both are without a unit.
std::string unit_of(const Decision& decision) {
    return info_of(kind_of(decision)).unit;
}

// One cell, so the size of the change and not its values; `why` has those.
std::string change_of(const Decision& decision) {
    const ActionFrame change = frame_of(decision.action);
    const std::string unit = unit_of(decision);
    if (kind_of(decision) == ActionKind::kAlarm) return "rank " + std::to_string(change.rank);
    if (change.before.size() == 1 && change.after.size() == 1) {
        return number(change.before[0], "") + " -> " + number(change.after[0], unit);
    }
    if (!change.names.empty()) return std::to_string(change.names.size()) + " changed";
    const double moved = moved_part(change.before, change.after);
    return unit.empty() ? format("%.0f %% of the batch", 100 * moved) : number(moved, unit);
}

/// "rank 3" or the name, and from what to what.
std::string values_of(const Decision& decision) {
    std::string text;
    const ActionFrame change = frame_of(decision.action);
    const ActionInfo& info = info_of(kind_of(decision));
    for (std::size_t i = 0; i < change.after.size(); ++i) {
        const std::string single = info.value;
        const std::string name = i < change.names.size() ? change.names[i]
                                 : single.empty()        ? "rank " + std::to_string(i)
                                                         : single;
        // Nothing where the list before was shorter.
        const double before = i < change.before.size() ? change.before[i] : 0;
        text += "  " + name + ": " + number(before, info.unit) + " -> " +
                number(change.after[i], info.unit) + "\n";
    }
    return text.empty() ? "  none\n" : text;
}

std::string outcome_of(const Decision& decision) {
    // Of the windows on probation; 0: it was not judged, as an alarm is not.
    std::string text = name_of(decision.outcome);
    if (decision.measured > 0) {
        text += ": " + format("%.4g samples/s", decision.measured) + " after " +
                format("%.4g", decision.objective) + ", promised " +
                format("%.4g", decision.promised);
    }
    if (!decision.outcome_reason.empty()) text += " (" + decision.outcome_reason + ")";
    return text;
}

Json to_json(const Fact& fact) {
    Json json{{"stage", fact.stage}, {"name", fact.name}};
    // Left out where the fact is about the whole job: a program would take -1 for a rank.
    if (fact.rank >= 0) json["rank"] = fact.rank;
    json["value"] = fact.value;
    json["unit"] = fact.unit;
    return json;
}

// A decision that only one side has says more than one with other values: from there on the two
// loops go different ways.
const char* side_of(const ReplayDifference& difference) {
    if (difference.side == ReplayDifference::Side::kOnlyThen) return "not now";
    if (difference.side == ReplayDifference::Side::kOnlyNow) return "only now";
    return difference.same_values ? "same" : "other values";
}

}  // namespace

// The fields are an interface: with the unit in the name where there is one, only ever added to.
// NaN becomes null, which is all that JSON has for it.
Json json_of(const Decision& decision) {
    const ActionFrame change = frame_of(decision.action);
    Json facts = Json::array();
    for (const Fact& fact : decision.facts) facts.push_back(to_json(fact));
    return {{"id", decision.id},
            {"unix_ms", decision.unix_ms},
            {"window", decision.window},
            {"kind", name_of(decision)},
            {"arena", decision.arena},
            {"group", decision.group},
            {"device", decision.device},
            {"rank", change.rank},
            {"names", change.names},
            {"unit", unit_of(decision)},
            {"before", change.before},
            {"after", change.after},
            {"reason", decision.reason},
            {"gain_share", decision.gain},
            {"cost_s", decision.cost_s},
            {"objective_samples_per_s", decision.objective},
            {"promised_samples_per_s", decision.promised},
            {"measured_samples_per_s", decision.measured},
            {"outcome", name_of(decision.outcome)},
            {"outcome_reason", decision.outcome_reason},
            {"serial", decision.serial},
            {"undoes", decision.undoes},
            {"facts", facts}};
}

std::string decisions_text(const std::vector<Decision>& decisions) {
    // GAIN is a prediction and OUTCOME what came of it: side by side, since the loop is to be
    // judged by both.
    Table table({{"ID", kRight},
                 {"TIME"},
                 {"WHAT"},
                 {"ABOUT"},
                 {"CHANGE"},
                 {"GAIN", kRight},
                 {"OUTCOME"},
                 {"WHY"}});
    for (const Decision& decision : decisions) {
        table.add({std::to_string(decision.id), time_of(decision), name_of(decision),
                   subject_of(decision), change_of(decision),
                   decision.gain > 0 ? format("%.1f %%", 100 * decision.gain) : "-",
                   name_of(decision.outcome), decision.reason});
    }
    return table.text();
}

std::string why_text(const Decision& decision) {
    std::string text = "decision " + std::to_string(decision.id) + ", " + time_of(decision) + ": " +
                       name_of(decision) + " of " + subject_of(decision) + "\n" + decision.reason +
                       "\n\nchange\n";
    text += values_of(decision);
    std::string stage;
    // By stage and not in the order of the computation, which goes through the ranks.
    std::vector<Fact> facts = decision.facts;
    std::stable_sort(facts.begin(), facts.end(),
                     [](const Fact& a, const Fact& b) { return a.stage < b.stage; });
    for (const Fact& fact : facts) {
        // The heading of a stage comes once, before the first of its facts.
        if (fact.stage != stage) text += "\n" + fact.stage + "\n";
        stage = fact.stage;
        const std::string who = fact.rank < 0 ? "" : "rank " + std::to_string(fact.rank) + " ";
        text += "  " + who + fact.name + ": " + number(fact.value, fact.unit) + "\n";
    }
    if (decision.objective > 0) {
        text += "\npromise\n  " + format("%.4g samples/s now", decision.objective) +
                format(", %.4g promised", decision.promised) +
                // A gain compares rates, longer step by shorter one less 1; people think in the
                // length of a step.
                format(" (step %.1f %% shorter)", 100 * decision.gain / (1 + decision.gain)) +
                ", corrected for imbalance\n";
    }
    return text + "\noutcome\n  " + outcome_of(decision) + "\n";
}

std::string decisions_json(const std::vector<Decision>& decisions) {
    Json list = Json::array();
    for (const Decision& decision : decisions) list.push_back(json_of(decision));
    return one_line({{"decisions", list}});
}

std::string replay_text(const std::vector<ReplayDifference>& differences, std::size_t windows) {
    Table table({{"WINDOW", kRight}, {"ID", kRight}, {"WHAT"}, {"ABOUT"}, {"REPLAY"}, {"CHANGE"}});
    std::size_t same = 0;
    for (const ReplayDifference& difference : differences) {
        same += difference.same_values ? 1 : 0;
        // Of a decision of both sides the new one: it is the one that has not been shown yet.
        const Decision& shown = difference.now != nullptr ? *difference.now : *difference.then;
        table.add({std::to_string(shown.window),
                   difference.then != nullptr ? std::to_string(difference.then->id) : "-",
                   name_of(shown), subject_of(shown), side_of(difference), change_of(shown)});
    }
    return table.text() + std::to_string(windows) + " windows, " +
           std::to_string(differences.size()) + " decisions, " + std::to_string(same) +
           " the same\nThe windows are those of then: what a decision that is only now would have "
           "changed, they do not show.\n";
}

std::string replay_json(const std::vector<ReplayDifference>& differences, std::size_t windows) {
    Json list = Json::array();
    for (const ReplayDifference& difference : differences) {
        Json entry{{"replay", side_of(difference)}};
        entry["then"] = difference.then != nullptr ? json_of(*difference.then) : Json();
        entry["now"] = difference.now != nullptr ? json_of(*difference.now) : Json();
        list.push_back(entry);
    }
    return one_line({{"windows", windows}, {"decisions", list}});
}

}  // namespace fabricd
