#include "fabricd/control/loop/control_metrics.hpp"

namespace fabricd {

namespace {

void begin(std::string& text, const char* name, const char* type, const char* help) {
    text += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
}

void add_single(std::string& text, const char* name, const char* type, const char* help,
                std::uint64_t value) {
    begin(text, name, type, help);
    text += std::string(name) + " " + std::to_string(value) + "\n";
}

/// "batch shares" as a label: batch_shares.
// Prometheus takes any text in a label, but people have to type it.
std::string label(std::string name) {
    for (char& c : name) c = c == ' ' ? '_' : c;
    return name;
}

}  // namespace

std::string control_metrics(const LoopCounters& counters) {
    std::string text;
    add_single(text, "fabricd_control_windows_total", "counter", "Windows that were looked at.",
               counters.windows);
    add_single(text, "fabricd_control_jobs", "gauge", "Jobs that are watched.", counters.jobs);
    add_single(text, "fabricd_control_stale_jobs", "gauge", "Jobs about which nothing is decided.",
               counters.stale_jobs);
    add_single(text, "fabricd_control_alarmed_ranks", "gauge", "Ranks that stay slow.",
               counters.alarmed_ranks);
    add_single(text, "fabricd_control_shards_left_out", "gauge",
               "Shards that are read and not watched, being too many.", counters.shards_left_out);
    add_single(text, "fabricd_control_not_journalled_total", "counter",
               "Windows and decisions too large for the journal.", counters.not_journalled);
    begin(text, "fabricd_control_decisions_total", "counter", "Decisions by kind.");
    for (std::size_t kind = 1; kind < counters.decisions.size(); ++kind) {
        text += "fabricd_control_decisions_total{kind=\"" +
                label(name_of(static_cast<ActionKind>(kind))) + "\"} " +
                std::to_string(counters.decisions[kind]) + "\n";
    }
    begin(text, "fabricd_control_outcomes_total", "counter", "What became of decisions.");
    // From 1 on: pending is none yet.
    for (std::size_t outcome = 1; outcome < counters.outcomes.size(); ++outcome) {
        text += "fabricd_control_outcomes_total{outcome=\"" +
                label(name_of(static_cast<Outcome>(outcome))) + "\"} " +
                std::to_string(counters.outcomes[outcome]) + "\n";
    }
    return text;
}

}  // namespace fabricd
