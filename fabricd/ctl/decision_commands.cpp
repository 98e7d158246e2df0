#include "fabricd/ctl/decision_commands.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <sstream>

#include "fabricd/config/config.hpp"
#include "fabricd/control/journal/decision_journal.hpp"
#include "fabricd/ctl/decision_view.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;

namespace {

/// One "key=value"; "control." may be left out.
ErrorMessage set_one(Config& config, const std::string& setting, const std::string& where) {
    const auto equals = setting.find('=');
    if (equals == std::string::npos) return where + ": \"" + setting + "\" is no key=value";
    std::string name = setting.substr(0, equals);
    if (name.rfind("control.", 0) != 0) name = "control." + name;
    for (const ConfigKey& key : config_keys()) {
        if (key.name == name) return set_key(config, key, setting.substr(equals + 1), where);
    }
    if (const std::string now = renamed_key(name); !now.empty()) {
        return where + ": " + name + " is called " + now + " now";
    }
    return where + ": there is no key \"" + name + "\"";
}

/// A key of a journal under the name that it has now.
std::string with_present_name(const std::string& setting) {
    const auto equals = std::min(setting.find('='), setting.size());
    const std::string now = renamed_key(setting.substr(0, equals));
    return now.empty() ? setting : now + setting.substr(equals);
}

/// What the journal was written with; keys that are gone by now are skipped.
/// The last start counts: a journal goes over many starts of the daemon, and settings change
/// between them.
ControlConfig settings_of(const JournalStory& story) {
    Config config;
    if (story.starts.empty()) return config.control;
    std::istringstream lines(story.starts.back().settings);
    for (std::string line; std::getline(lines, line);) {
        (void)set_one(config, with_present_name(line), "journal");
    }
    return config.control;
}

int say(const std::string& text) {
    return std::fputs(text.c_str(), stdout);
}

}  // namespace

Result<void> show_decisions(const CtlOptions& options, AdminClient& client) {
    // Not cut: 2^32 would become 0, which means all.
    const auto last = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(options.last, std::numeric_limits<std::uint32_t>::max()));
    FABRIC_TRY(const auto decisions, client.decisions(0, last));
    say(options.json ? decisions_json(decisions) + "\n" : decisions_text(decisions));
    return {};
}

Result<void> show_why(const CtlOptions& options, AdminClient& client) {
    FABRIC_TRY(const auto decisions, client.decisions(options.decision_id, 0));
    if (decisions.empty()) {
        return fabricshm::explain(
            {Errc::kNotFound, 0, "find the decision"},
            "fabricd remembers no decision %llu (fabricctl decisions lists them)",
            static_cast<unsigned long long>(options.decision_id));
    }
    say(options.json ? decisions_json(decisions) + "\n" : why_text(decisions.front()));
    return {};
}

CtlExit run_replay(const CtlOptions& options) {
    const auto story = read_decision_journal(options.file);
    if (!story.ok()) {
        std::fprintf(stderr, "fabricctl: replay %s: %s\n", options.file.c_str(),
                     fabricshm::describe(story.error()).c_str());
        return CtlExit::kFailed;
    }
    for (const auto& bad : story->bad) {
        std::fprintf(stderr, "fabricctl: replay %s: %s\n", bad.path.c_str(),
                     fabricshm::describe(bad.why).c_str());
    }
    // One of its two files is a shorter story; none is no story.
    if (!story->bad.empty() && story->starts.empty()) return CtlExit::kFailed;
    Config config;
    config.control = settings_of(*story);
    // Over those of the journal and in the order of the command line, so that the last one of a key
    // wins, as with fabricd itself.
    for (const std::string& setting : options.settings) {
        if (const auto bad = set_one(config, setting, "--set")) {
            std::fprintf(stderr, "fabricctl: replay: %s\n", bad->c_str());
            return CtlExit::kUsage;
        }
    }
    // The last record of a daemon that was killed. What came before it is good, so this is no
    // failure.
    if (story->torn) std::fprintf(stderr, "fabricctl: replay: the journal's end is torn\n");
    const auto now = replay(*story, config.control);
    const auto differences = compare(story->decisions, now);
    const std::size_t windows = story->windows.size();
    say(options.json ? replay_json(differences, windows) + "\n"
                     : replay_text(differences, windows));
    return CtlExit::kOk;
}

}  // namespace fabricd
