#include "fabricd/data/program/silo_check.hpp"

#include <chrono>
#include <nlohmann/json.hpp>

#include "fabricd/data/silo/open_silo.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using namespace std::chrono_literals;

namespace {

constexpr std::size_t kPage = 1000;
constexpr auto kTimeout = 30s;
constexpr int kLevelsMax = 16;

const char* word_of(WritePolicy policy) {
    switch (policy) {
        case WritePolicy::kThrough:
            return "through";
        case WritePolicy::kBack:
            return "back";
        case WritePolicy::kOff:
            break;
    }
    return "off";
}

std::string policy_of(const SiloSpec& silo) {
    if (silo.write == WritePolicy::kOff) return ", read-only";
    return std::string(", write \"") + word_of(silo.write) + "\"";
}

std::string entries_of(const SiloCheck& check) {
    return (check.has_more ? "more than " : "") + std::to_string(check.entries) +
           (check.entries == 1 ? " entry" : " entries") + " in its root";
}

struct FirstFile {
    std::string path;  // "": there is none
    FileFacts facts;
};

// Down the first folders, whose files are as good as any.
Result<FirstFile> first_file_of(Silo& silo, TimePoint deadline) {
    std::string folder;
    for (int level = 0; level < kLevelsMax; ++level) {
        FABRIC_TRY(const SiloPage page, silo.list(folder, "", kPage, deadline));
        const SiloEntry* next = nullptr;
        for (const SiloEntry& entry : page.entries) {
            const std::string path = joined_path(folder, entry.name);
            if (!entry.is_folder) return FirstFile{path, entry.facts};
            if (next == nullptr) next = &entry;
        }
        if (next == nullptr) break;
        folder = joined_path(folder, next->name);
    }
    return FirstFile{};
}

// A file that is prepared shows that steps and files fit each other.
// `bytes` outlives the silo, which may still write there after the deadline.
void check_prepared(Silo& silo, std::vector<std::byte>& bytes, SiloCheck& check) {
    const auto deadline = fabricshm::Clock::now() + kTimeout;
    const auto first = first_file_of(silo, deadline);
    if (!first.ok()) {
        check.problem = fabricshm::explanation_of(first.error());
        return;
    }
    if (first->path.empty()) return;
    bytes.resize(first->facts.bytes);
    silo.start({first->path, first->facts, 0, bytes.size(), bytes.data(), bytes.size(), 1});
    const auto ended = silo.wait(deadline);
    if (ended.empty()) {
        check.problem = printable(first->path) + ": not prepared within 30 s";
    } else if (ended[0].outcome != FetchOutcome::kWhole) {
        check.problem = ended[0].reason;
    } else {
        check.prepared = printable(first->path) + ": " + std::to_string(bytes.size()) + " bytes";
    }
}

}  // namespace

SiloCheck check_silo(const SiloSpec& silo) {
    SiloCheck check;
    check.silo = silo;
    std::vector<std::byte> bytes;
    const auto opened = open_silo(silo, {});
    if (!opened.ok()) {
        check.problem = fabricshm::explanation_of(opened.error());
        return check;
    }
    const auto page = (*opened)->list("", "", kPage, fabricshm::Clock::now() + kTimeout);
    if (!page.ok()) {
        check.problem = fabricshm::explanation_of(page.error());
        return check;
    }
    if (silo.write != WritePolicy::kOff) {
        const auto writer = open_silo_writer(silo);
        if (!writer.ok()) {
            check.problem = fabricshm::explanation_of(writer.error());
            return check;
        }
    }
    check.entries = page->entries.size();
    check.has_more = !page->is_last;
    check.left_out = page->left_out;
    check.first_left_out = page->first_left_out;
    check.wrong = page->wrong;
    if (page->entries.empty() && page->wrong != 0) {
        check.problem = "nothing but wrong answers, the first " + page->first_wrong;
        return check;
    }
    if (silo.prep != nullptr) check_prepared(**opened, bytes, check);
    return check;
}

std::string as_text(const std::vector<SiloCheck>& checks, const std::string& file) {
    std::string text;
    for (const SiloCheck& check : checks) {
        if (!check.problem.empty()) {
            text += file + ":" + std::to_string(check.silo.line) + ": " + check.silo.at + ": " +
                    check.problem + "\n";
            continue;
        }
        text += check.silo.at + "  " + check.silo.from + "  " + entries_of(check) +
                policy_of(check.silo) + "\n";
        if (!check.prepared.empty()) text += "    prepared: " + check.prepared + "\n";
        if (check.left_out == 0) continue;
        text += "    left out: " + std::to_string(check.left_out) + ", the first " +
                check.first_left_out + "\n";
    }
    return text;
}

std::string as_json(const std::vector<SiloCheck>& checks, const std::optional<SpillCheck>& spill,
                    const std::vector<HostProblem>& problems) {
    auto list = nlohmann::json::array();
    for (const SiloCheck& check : checks) {
        list.push_back({{"at", check.silo.at},
                        {"from", check.silo.from},
                        {"write", word_of(check.silo.write)},
                        {"line", check.silo.line},
                        {"problem", check.problem},
                        {"entries", check.entries},
                        {"has_more", check.has_more},
                        {"left_out", check.left_out},
                        {"first_left_out", check.first_left_out},
                        {"wrong", check.wrong},
                        {"prepared", check.prepared}});
    }
    auto others = nlohmann::json::array();
    for (const HostProblem& one : problems) {
        others.push_back({{"line", one.line}, {"problem", one.problem}});
    }
    nlohmann::json found{{"silos", list}, {"problems", others}};
    if (spill) {
        found["spill"] = {{"folder", spill->folder},
                          {"bytes", spill->bytes},
                          {"line", spill->line},
                          {"problem", spill->problem}};
    }
    // Names of files may be of any bytes.
    return found.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace fabricd
