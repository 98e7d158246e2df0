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

}  // namespace

SiloCheck check_silo(const SiloSpec& silo) {
    SiloCheck check;
    check.silo = silo;
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
        if (check.left_out == 0) continue;
        text += "    left out: " + std::to_string(check.left_out) + ", the first " +
                check.first_left_out + "\n";
    }
    return text;
}

std::string as_json(const std::vector<SiloCheck>& checks) {
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
                        {"first_left_out", check.first_left_out}});
    }
    // Names of files may be of any bytes.
    return nlohmann::json{{"silos", list}}.dump(-1, ' ', false,
                                                nlohmann::json::error_handler_t::replace) +
           "\n";
}

}  // namespace fabricd
