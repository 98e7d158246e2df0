#include "fabricd/data/serve/data_commands.hpp"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "fabricd/data/silo/memory_silo.hpp"
#include "libfabricshm/shm/data_layout.hpp"
#include "libfabricshm/shm/data_listing.hpp"

namespace fabricd {

using fabricshm::data_chunks;
using fabricshm::Errc;
using fabricshm::kNoLine;
using Json = nlohmann::ordered_json;

namespace {

// Names of files may be of any bytes.
std::string one_line(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const char* name_of(DataLineState state) {
    constexpr const char* kNames[] = {"empty", "filling", "ready", "leaving", "gone"};
    const auto index = static_cast<std::size_t>(state);
    return index < std::size(kNames) ? kNames[index] : "?";
}

const char* name_of(ChunkKind kind) {
    constexpr const char* kNames[] = {"none", "read without a plan", "passing", "kept"};
    return kNames[static_cast<std::size_t>(kind)];
}

double seconds_since(TimePoint then, TimePoint now) {
    return std::chrono::duration<double>(now - then).count();
}

Json view_of(const WalkView& walk) {
    return {{"walk", walk.id},
            {"path", walk.path},
            {"files", walk.files},
            {"done_files", walk.done_files},
            {"bytes", walk.bytes},
            {"done_bytes", walk.done_bytes},
            {"not_in_memory", walk.skipped},
            {"failed", walk.failed},
            {"first_failure", walk.first_failure},
            {"full", walk.is_full},
            {"over", walk.is_over}};
}

Json view_of(const PlanView& plan) {
    return {{"at", plan.at},
            {"listing", plan.listing},
            {"seed", plan.seed},
            {"samples", plan.samples},
            {"read", plan.read},
            {"ranks", plan.ranks},
            {"set_bytes", plan.set_bytes},
            {"kept_bytes", plan.kept},
            {"passing_bytes", plan.passing},
            {"samples_per_s", plan.samples_per_s},
            {"needed_bytes_per_s", plan.needed_bytes_per_s},
            {"source_bytes_per_s", plan.source_bytes_per_s},
            {"stall_free", plan.is_stall_free}};
}

Json view_of(const WriteDesk::Stats& stats) {
    return {{"open", stats.open},
            {"committed", stats.committed},
            {"aborted", stats.aborted},
            {"pending", stats.pending},
            {"pending_bytes", stats.pending_bytes},
            {"failed_uploads", stats.failed_uploads},
            {"last_failure", stats.last_failure},
            {"lost", stats.lost_count},
            {"first_lost", stats.lost}};
}

Json cache_view(const ServiceParts& parts) {
    const auto& stats = parts.cache.stats();
    const auto totals = parts.notes.totals();
    const double asked = static_cast<double>(totals.hits + totals.misses);
    return {{"arena", parts.arena_name},
            {"capacity_bytes", parts.cache.capacity()},
            {"memory_bytes", parts.cache.tables().arena_bytes - parts.cache.tables().chunks_offset},
            {"used_bytes", parts.cache.used()},
            {"refetched_bytes", stats.refetched},
            {"refetched_near_bytes", stats.near},
            {"filling_bytes", stats.bytes[0]},
            {"unplanned_bytes", stats.bytes[1]},
            {"passing_bytes", stats.bytes[2]},
            {"kept_bytes", stats.bytes[3]},
            {"lines", parts.cache.tables().lines},
            {"free_lines", parts.cache.stats().free_lines},
            {"evicted", stats.evicted},
            {"moved", stats.moved},
            {"found_pinned", stats.found_pinned},
            {"gone_lines", stats.gone},
            {"readers", parts.notes.readers()},
            {"hits", totals.hits},
            {"misses", totals.misses},
            {"hit_share", asked > 0 ? static_cast<double>(totals.hits) / asked : 0.0},
            {"stall_s", static_cast<double>(totals.stall_ns) / 1e9},
            {"read_bytes", totals.bytes},
            {"copies_for_want_of_pins", totals.copies}};
}

// By process: which job a reader is of its process number says.
Json readers_view(const ServiceParts& parts) {
    // As many as people read: those that waited longest.
    constexpr std::size_t kMaxShown = 64;
    std::vector<std::pair<ReaderTotals, int>> all;
    for (const ReaderProcess& one : parts.processes()) {
        all.emplace_back(parts.notes.of(one.reader), one.pid);
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
        return a.first.stall_ns > b.first.stall_ns;
    });
    if (all.size() > kMaxShown) all.resize(kMaxShown);
    auto json = Json::array();
    for (const auto& [totals, pid] : all) {
        json.push_back({{"pid", pid},
                        {"hits", totals.hits},
                        {"misses", totals.misses},
                        {"read_bytes", totals.bytes},
                        {"stall_s", static_cast<double>(totals.stall_ns) / 1e9}});
    }
    return json;
}

Json tier_view(const SecondTierView& tier) {
    return {
        {"folder", tier.folder},        {"off", tier.off},         {"room_bytes", tier.room},
        {"bytes", tier.bytes},          {"chunks", tier.chunks},   {"stored", tier.stored},
        {"unsaved", tier.unsaved},      {"refused", tier.refused}, {"found", tier.found},
        {"corrupt", tier.corrupt},      {"slots", tier.slots},     {"free_slots", tier.free_slots},
        {"kept_slots", tier.kept_slots}};
}

struct InMemory {
    std::size_t files = 0;  // whole ones
    Bytes bytes = 0;
};

bool is_ready(const ServiceParts& parts, std::uint64_t line) {
    return parts.cache.state(line) == DataLineState::kReady;
}

// By silo. Along the lines, not the files: of a million files few may be there.
std::vector<InMemory> in_memory(const ServiceParts& parts) {
    std::vector<InMemory> found(parts.spec.silos.size());
    const std::uint64_t lines = parts.cache.tables().lines;
    for (std::uint64_t line = 0; line < lines; ++line) {
        if (!is_ready(parts, line)) continue;
        const KnownFile* file = parts.files.find(parts.cache.fields(line).file);
        if (file == nullptr) continue;
        found[file->silo].bytes += parts.cache.bytes_of(line).size();
        std::uint64_t chunk = 0;
        const std::uint64_t chunks = line == file->first_line ? data_chunks(file->facts.bytes) : 0;
        while (chunk < chunks && is_ready(parts, line + chunk)) ++chunk;
        found[file->silo].files += chunks != 0 && chunk == chunks ? 1 : 0;
    }
    return found;
}

}  // namespace

std::string DataCommands::status(TimePoint now) const {
    Json json;
    json["cache"] = cache_view(parts_);
    json["readers"] = readers_view(parts_);
    if (parts_.tier != nullptr) json["spill"] = tier_view(parts_.tier->view());
    auto silos = Json::array();
    const auto memory = in_memory(parts_);
    for (std::uint32_t silo = 0; silo < parts_.spec.silos.size(); ++silo) {
        const SiloSpec& spec = parts_.spec.silos[silo];
        const SiloMeter& meter = parts_.fills.meter(silo);
        const auto& totals = parts_.files.totals(silo);
        const auto load = parts_.workers[silo]->load();
        const bool is_failing = meter.failing_since != fabricshm::kNoWait;
        silos.push_back(
            {{"at", spec.at},
             {"from", spec.from},
             {"files", totals.files},
             {"bytes", totals.bytes},
             {"files_in_memory", memory[silo].files + totals.empty_files},
             {"bytes_in_memory", memory[silo].bytes},
             {"fetches", meter.fetches},
             {"fetched_bytes", meter.bytes},
             {"failures", meter.failures},
             {"failing_for_s", is_failing ? seconds_since(meter.failing_since, now) : 0.0},
             {"last_failure", meter.last_failure},
             {"latency_s", meter.latency_s},
             {"bytes_per_s", meter.bytes_per_s},
             {"waiting_on_demand", load.waiting[0]},
             {"waiting_ahead", load.waiting[1]},
             {"under_way", load.under_way}});
    }
    json["silos"] = silos;
    if (parts_.writes != nullptr) json["writes"] = view_of(parts_.writes->stats());
    json["plans"] = Json::array();
    for (const auto& plan : parts_.plans.views()) json["plans"].push_back(view_of(plan));
    json["walks"] = Json::array();
    for (const auto& walk : walks_.under_way()) json["walks"].push_back(view_of(walk));
    return one_line(json);
}

void DataCommands::why(const std::string& path, const Reply& reply, TimePoint now) {
    parts_.listings.stat(
        path, false,
        [this, path, reply](const RequestOutcome& outcome, PathFacts facts) {
            if (outcome.code != Errc::kOk) return reply(outcome, "");
            Json json{{"path", path}, {"folder", facts.is_folder}};
            const KnownFile* file = parts_.files.find(facts.file);
            if (file == nullptr) return reply({}, one_line(json));
            json["from"] = parts_.spec.silos[file->silo].from;
            json["bytes"] = file->facts.bytes;
            json["file"] = file->id;
            json["version"] = file->facts.version.words;
            json["mtime_ns"] = parts_.files.mtime_of(*file);
            auto chunks = Json::array();
            for (std::uint64_t chunk = 0; chunk < data_chunks(file->facts.bytes); ++chunk) {
                const std::uint64_t line = file->first_line + chunk;
                auto pins = Json::array();
                for (const auto& holder : parts_.holders(line)) {
                    pins.push_back({{"pid", holder.pid}, {"pins", holder.pins}});
                }
                const bool is_spilled = parts_.tier != nullptr &&
                                        parts_.tier->has(*file, static_cast<std::uint32_t>(chunk));
                chunks.push_back({{"chunk", chunk},
                                  {"line", line},
                                  {"state", name_of(parts_.cache.state(line))},
                                  {"kind", name_of(parts_.cache.kind(line))},
                                  {"spilled", is_spilled},
                                  {"on_its_way", parts_.fills.is_under_way(line)},
                                  {"pinned_by", pins}});
            }
            json["chunks"] = chunks;
            reply({}, one_line(json));
        },
        now);
}

// Nothing else had its bytes: the file is no more, and not listed from now on.
void DataCommands::lose(std::uint64_t id) {
    const KnownFile* const file = parts_.files.find(id);
    if (file == nullptr) return;  // with a chunk before this one
    parts_.spec.silos[file->silo].made->lose(file->path, file->facts);
    parts_.files.forget(id);
}

void DataCommands::drop(const std::string& path, const Reply& reply) {
    const auto place = parts_.listings.place_of(path);
    if (!place) return reply({Errc::kNotFound, 0, printable(path) + " lies in no silo"}, "");
    std::vector<std::uint64_t> lines;
    std::vector<std::uint64_t> files;  // of each line
    for (const auto id : parts_.files.below(place->silo, place->path)) {
        const KnownFile* file = parts_.files.find(id);
        for (std::uint64_t chunk = 0; chunk < data_chunks(file->facts.bytes); ++chunk) {
            const std::uint64_t line = file->first_line + chunk;
            if (!is_ready(parts_, line)) continue;
            lines.push_back(line);
            files.push_back(id);
        }
    }
    const std::size_t dropped = parts_.cache.drop(lines);
    const bool is_lost = parts_.spec.silos[place->silo].made != nullptr && parts_.tier == nullptr;
    for (std::size_t i = 0; is_lost && i < lines.size(); ++i) {
        if (!is_ready(parts_, lines[i])) lose(files[i]);
    }
    if (is_lost && dropped != 0) parts_.listings.expire(place->silo);
    reply({}, one_line({{"dropped", dropped}, {"pinned", lines.size() - dropped}}));
}

void DataCommands::refresh(const std::string& path, const Reply& reply, TimePoint now) {
    const auto place = parts_.listings.place_of(path);
    if (!place) return reply({Errc::kNotFound, 0, printable(path) + " lies in no silo"}, "");
    parts_.listings.expire(place->silo);
    parts_.listings.list(
        path, true, true,
        [reply](const RequestOutcome& outcome, const std::shared_ptr<const Listing>& listing) {
            if (outcome.code != Errc::kOk) return reply(outcome, "");
            reply({}, one_line({{"files", listing->files.size()},
                                {"left_out", listing->left_out},
                                {"first_left_out", listing->first_left_out}}));
        },
        now);
}

void DataCommands::walk(const std::string& path, bool is_load, bool with_silo, const Reply& reply,
                        TimePoint now) {
    const auto begin = [this, path, is_load, with_silo,
                        reply](const std::vector<std::uint64_t>& files) {
        const std::uint64_t id =
            is_load ? walks_.load(path, files) : walks_.verify(path, files, with_silo);
        show_walk(id, reply);
    };
    parts_.listings.stat(
        path, with_silo,
        [this, path, with_silo, begin, reply, now](const RequestOutcome& outcome, PathFacts facts) {
            if (outcome.code != Errc::kOk) return reply(outcome, "");
            if (!facts.is_folder) return begin({facts.file});
            parts_.listings.list(
                path, true, with_silo,
                [begin, reply](const RequestOutcome& listed,
                               const std::shared_ptr<const Listing>& listing) {
                    if (listed.code != Errc::kOk) return reply(listed, "");
                    begin(listing->files);
                },
                now);
        },
        now);
}

void DataCommands::show_walk(std::uint64_t id, const Reply& reply) const {
    const auto view = walks_.view(id);
    if (!view) return reply({Errc::kNotFound, 0, "there is no such walk"}, "");
    reply({}, one_line(view_of(*view)));
}

void DataCommands::run(const std::string& text, Reply reply, TimePoint now) {
    const Json json = Json::parse(text, nullptr, false);
    const auto word = [&](const char* key) -> std::string {
        const bool has = json.is_object() && json.contains(key) && json[key].is_string();
        return has ? json[key].get<std::string>() : "";
    };
    const std::string command = word("command");
    const std::string path = word("path");
    const bool with_silo = json.is_object() && json.value("silo", Json(false)) == true;
    if (command == "status") return reply({}, status(now));
    // Asked again until nothing is pending.
    if (command == "flush") {
        const auto stats = parts_.writes != nullptr ? parts_.writes->stats() : WriteDesk::Stats{};
        return reply({}, one_line(view_of(stats)));
    }
    if (command == "walk") {
        const auto id = json.value("walk", Json(0));
        return show_walk(id.is_number_unsigned() ? id.get<std::uint64_t>() : 0, reply);
    }
    if (path.empty()) return reply({Errc::kInvalid, 0, "the command needs a path"}, "");
    if (path.front() != '/') {
        return reply({Errc::kInvalid, 0,
                      printable(path) + ": paths of the namespace begin with \"/\", as /images/a"},
                     "");
    }
    if (command == "why") return why(path, reply, now);
    if (command == "drop") return drop(path, reply);
    if (command == "refresh") return refresh(path, reply, now);
    if (command == "load") return walk(path, true, false, reply, now);
    if (command == "verify") return walk(path, false, with_silo, reply, now);
    reply({Errc::kUnsupported, 0, "unknown command"}, "");
}

}  // namespace fabricd
