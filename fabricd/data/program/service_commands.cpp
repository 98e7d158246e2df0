#include "fabricd/data/program/service_commands.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "fabricd/data/program/data_link.hpp"
#include "fabricd/data/program/outcome.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::format_bytes;
using Json = nlohmann::ordered_json;

namespace {

constexpr auto kLook = 100ms;

int print(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    return std::fflush(stdout) != 0 || std::ferror(stdout) != 0 ? kFailed : 0;
}

// Fields of the service's answers; a service of another version may lack some.
std::uint64_t number(const Json& json, const char* key) {
    const auto value = json.find(key);
    return value != json.end() && value->is_number_unsigned() ? value->get<std::uint64_t>() : 0;
}
double real(const Json& json, const char* key) {
    const auto value = json.find(key);
    return value != json.end() && value->is_number() ? value->get<double>() : 0;
}
std::string word(const Json& json, const char* key) {
    const auto value = json.find(key);
    return value != json.end() && value->is_string() ? value->get<std::string>() : "";
}
bool flag(const Json& json, const char* key) {
    const auto value = json.find(key);
    return value != json.end() && value->is_boolean() && value->get<bool>();
}
std::string bytes(const Json& json, const char* key) {
    return format_bytes(number(json, key));
}
std::string rate(double bytes_per_s) {
    return format_bytes(static_cast<fabricshm::Bytes>(std::clamp(bytes_per_s, 0.0, 1e18))) + "/s";
}
std::string fixed(double value, int digits) {
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", digits, value);
    return text;
}
std::string share(double part, double whole) {
    return whole > 0 ? fixed(100 * part / whole, 1) + " %" : "-";
}

Json parsed(const std::string& text) {
    return Json::parse(text, nullptr, false);
}

std::string silo_text(const Json& silo) {
    std::string text = word(silo, "at") + "  " + word(silo, "from") + "  " +
                       std::to_string(number(silo, "files")) + " files " + bytes(silo, "bytes") +
                       "  in memory " + bytes(silo, "bytes_in_memory") + " (" +
                       share(real(silo, "bytes_in_memory"), real(silo, "bytes")) + ")  fetched " +
                       bytes(silo, "fetched_bytes") + " at " + rate(real(silo, "bytes_per_s")) +
                       ", " + fixed(real(silo, "latency_s") * 1e3, 1) + " ms a chunk\n";
    const double failing = real(silo, "failing_for_s");
    if (failing > 0) {
        text += "    does not answer for " + fixed(failing, 0) +
                " s: " + word(silo, "last_failure") + "\n";
    } else if (number(silo, "failures") != 0) {
        text += "    failed " + std::to_string(number(silo, "failures")) +
                " times, the last: " + word(silo, "last_failure") + "\n";
    }
    return text;
}

std::string spill_text(const Json& spill) {
    if (word(spill, "folder").empty()) return "";
    std::string text = "spill " + word(spill, "folder") + "  " + bytes(spill, "bytes") + " of " +
                       bytes(spill, "room_bytes") + " in " +
                       std::to_string(number(spill, "chunks")) + " chunks  found " +
                       std::to_string(number(spill, "found")) + ", corrupt " +
                       std::to_string(number(spill, "corrupt")) + "\n";
    const std::string off = word(spill, "off");
    return off.empty() ? text : text + "    off until the next start: " + off + "\n";
}

std::string writes_text(const Json& writes) {
    std::string text = "writes: " + std::to_string(number(writes, "open")) + " under way, " +
                       std::to_string(number(writes, "committed")) + " in the silos, " +
                       std::to_string(number(writes, "pending")) + " (" +
                       bytes(writes, "pending_bytes") + ") not yet\n";
    if (number(writes, "failed_uploads") != 0) {
        text += "    uploads that failed and are tried again: " +
                std::to_string(number(writes, "failed_uploads")) +
                ", the last: " + word(writes, "last_failure") + "\n";
    }
    if (number(writes, "lost") != 0) {
        text +=
            "    perhaps lost, committed when the service was killed and not yet answered by the "
            "silo: " +
            std::to_string(number(writes, "lost"));
        for (const Json& path : writes.value("first_lost", Json::array())) {
            if (path.is_string()) text += " " + path.get<std::string>();
        }
        text += "\n";
    }
    return text;
}

// Both sides of the line: what is not kept has to come as fast as it is read.
std::string plan_text(const Json& plan) {
    return "    plan of " + word(plan, "at") + ": " + std::to_string(number(plan, "read")) +
           " of " + std::to_string(number(plan, "samples")) + " samples read by " +
           std::to_string(number(plan, "ranks")) + " ranks, kept " + bytes(plan, "kept_bytes") +
           ", passing " + bytes(plan, "passing_bytes") + "\n    " +
           (flag(plan, "stall_free") ? "stall-free: " : "readers wait: ") + "the epoch needs " +
           rate(real(plan, "needed_bytes_per_s")) + " of the silo, which gives " +
           rate(real(plan, "source_bytes_per_s")) + "\n";
}

}  // namespace

std::string status_text(const std::string& text) {
    const Json json = parsed(text);
    if (!json.is_object() || !json.contains("cache")) return text;
    const Json& cache = json["cache"];
    std::string shown =
        "memory " + bytes(cache, "used_bytes") + " of " + bytes(cache, "capacity_bytes") +
        " (kept " + bytes(cache, "kept_bytes") + ", passing " + bytes(cache, "passing_bytes") +
        ", without a plan " + bytes(cache, "unplanned_bytes") + ")  lines " +
        std::to_string(number(cache, "lines") - number(cache, "free_lines")) + " of " +
        std::to_string(number(cache, "lines")) + "\nreaders " +
        std::to_string(number(cache, "readers")) + "  hits " +
        share(real(cache, "hits"), real(cache, "hits") + real(cache, "misses")) + "  waited " +
        fixed(real(cache, "stall_s"), 1) + " s  read " + bytes(cache, "read_bytes") + "\n";
    if (json.contains("spill")) shown += spill_text(json["spill"]);
    for (const Json& silo : json.value("silos", Json::array())) shown += silo_text(silo);
    if (json.contains("writes")) shown += writes_text(json["writes"]);
    for (const Json& plan : json.value("plans", Json::array())) shown += plan_text(plan);
    for (const Json& walk : json.value("walks", Json::array())) {
        shown += "    under way: " + word(walk, "path") + ", " +
                 share(real(walk, "done_bytes"), real(walk, "bytes")) + "\n";
    }
    return shown;
}

std::string why_text(const std::string& text) {
    const Json json = parsed(text);
    if (!json.is_object()) return text;
    if (flag(json, "folder")) return word(json, "path") + ": a folder\n";
    std::string shown = word(json, "path") + ": " + bytes(json, "bytes") + ", version " +
                        std::to_string(number(json, "file")) + ", of " + word(json, "from") + "\n";
    for (const Json& chunk : json.value("chunks", Json::array())) {
        shown +=
            "    chunk " + std::to_string(number(chunk, "chunk")) + ": " + word(chunk, "state");
        if (word(chunk, "state") == "ready") shown += ", " + word(chunk, "kind");
        if (flag(chunk, "spilled")) shown += ", on the disk";
        if (flag(chunk, "on_its_way")) shown += ", on its way";
        for (const Json& pin : chunk.value("pinned_by", Json::array())) {
            shown += ", pinned by process " + std::to_string(number(pin, "pid"));
        }
        shown += "\n";
    }
    return shown;
}

std::string walk_text(const std::string& text, bool is_load) {
    const Json json = parsed(text);
    if (!json.is_object()) return text;
    std::string shown = word(json, "path") + ": " + std::to_string(number(json, "done_files")) +
                        " of " + std::to_string(number(json, "files")) + " files, " +
                        bytes(json, "done_bytes") + " of " + bytes(json, "bytes") +
                        (is_load ? " in memory" : " right");
    if (!is_load && number(json, "not_in_memory") != 0) {
        shown += ", " + std::to_string(number(json, "not_in_memory")) + " chunks not in memory";
    }
    if (flag(json, "full")) shown += ", the memory is full";
    shown += "\n";
    if (number(json, "failed") != 0) {
        shown += "    failed: " + std::to_string(number(json, "failed")) + ", the first " +
                 word(json, "first_failure") + "\n";
    }
    return shown;
}

std::string queued_text(const std::string& text) {
    const Json json = parsed(text);
    if (!json.is_object()) return text;
    return word(json, "path") + ": queued " + std::to_string(number(json, "files")) + " files, " +
           bytes(json, "bytes") + "; fabric-data status says how far they are, --wait waits\n";
}

bool parse_share(const std::string& text, double& share) {
    double percent = 0;
    const char* end = text.data() + text.size();
    const auto [stop, bad] = std::from_chars(text.data(), end, percent);
    if (bad != std::errc{} || stop + 1 != end || *stop != '%') return false;
    share = percent / 100;
    return percent >= 0 && percent <= 100;
}

namespace {

// Asks until the walk is over, or so much of it is done.
fabricshm::Result<std::string> follow(DataLink& link, std::string answer, double until,
                                      fabricshm::TimePoint deadline) {
    for (;;) {
        const Json json = parsed(answer);
        const double done =
            real(json, "bytes") > 0 ? real(json, "done_bytes") / real(json, "bytes") : 1;
        if (!json.is_object() || flag(json, "over") || done >= until) return answer;
        if (Clock::now() >= deadline) {
            return fabricshm::explain({Errc::kTimeout, 0, "wait"}, "not done in time: %s",
                                      answer.c_str());
        }
        std::this_thread::sleep_for(kLook);
        const Json question{{"command", "walk"}, {"walk", number(json, "walk")}};
        FABRIC_TRY(answer, link.ask(question.dump(), deadline));
    }
}

// Asks until the silos have what was written.
fabricshm::Result<std::string> flushed(DataLink& link, std::string answer,
                                       fabricshm::TimePoint deadline) {
    while (number(parsed(answer), "pending") != 0) {
        if (Clock::now() >= deadline) {
            return fabricshm::explain({Errc::kTimeout, 0, "flush"}, "not done in time: %s",
                                      answer.c_str());
        }
        std::this_thread::sleep_for(kLook);
        FABRIC_TRY(answer, link.ask(R"({"command": "flush"})", deadline));
    }
    return answer;
}

std::string text_of(const ServiceCommand& command, const std::string& answer) {
    if (command.json) return answer + "\n";
    if (command.name == "status") return status_text(answer);
    if (command.name == "why") return why_text(answer);
    if (command.name == "load" && command.wait.empty()) return queued_text(answer);
    if (command.name == "load") return walk_text(answer, true);
    if (command.name == "verify") return walk_text(answer, false);
    const Json json = parsed(answer);
    if (command.name == "drop") {
        return "dropped " + std::to_string(number(json, "dropped")) + " chunks, pinned " +
               std::to_string(number(json, "pinned")) + "\n";
    }
    if (command.name == "refresh") return std::to_string(number(json, "files")) + " files\n";
    if (number(json, "lost") == 0) return "the silos have what was written\n";
    return "the silos do not have all that was written\n" + writes_text(json);
}

}  // namespace

int run_service_command(const ServiceCommand& command) {
    double until = 0;
    if (command.name == "verify") until = 2;  // to its end
    if (!command.wait.empty() && !parse_share(command.wait, until)) {
        return fail(kBadUsage, "--wait takes a share, as 10%");
    }
    if (command.wait == "100%") until = 2;
    const bool is_path = command.path.empty() || command.path.front() == '/';
    if (!is_path) {
        return fail(kBadUsage,
                    command.path + ": paths of the namespace begin with \"/\", as /images/a");
    }
    const auto deadline = Clock::now() + std::chrono::seconds(command.timeout_s);
    auto link = DataLink::open(command.socket, deadline);
    if (!link.ok()) return fail(kBadUsage, explanation_of(link.error()));
    const Json question{
        {"command", command.name}, {"path", command.path}, {"silo", command.with_silo}};
    auto answer =
        link->ask(question.dump(-1, ' ', false, Json::error_handler_t::replace), deadline);
    const bool is_walk = command.name == "load" || command.name == "verify";
    if (answer.ok() && command.name == "flush") answer = flushed(*link, *answer, deadline);
    if (answer.ok() && is_walk) answer = follow(*link, *answer, until, deadline);
    if (!answer.ok()) return fail(kFailed, explanation_of(answer.error()));
    const int code = print(text_of(command, *answer));
    const char* const failures = is_walk ? "failed" : command.name == "flush" ? "lost" : nullptr;
    const bool has_failed = failures != nullptr && number(parsed(*answer), failures) != 0;
    return code != 0 || has_failed ? kFailed : 0;
}

}  // namespace fabricd
