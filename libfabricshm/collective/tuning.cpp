#include "libfabricshm/collective/tuning.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/shm/group_block.hpp"

namespace fabricshm {

namespace {

constexpr const char* kAlgorithmNames[] = {"auto", "flat", "direct", "ring", "staged", "host"};

// One row per value: its key in the file, where it is, and its range.
struct Field {
    const char* key;
    std::uint64_t Tuning::*value;
    std::uint64_t min;
    std::uint64_t max;
};

constexpr Field kFields[] = {
    {"flat_max_bytes", &Tuning::max_flat, 0, 64 * kKiB},
    {"ahead_max_bytes", &Tuning::max_ahead, 0, 16 * kKiB},
    {"two_phase_from_bytes", &Tuning::two_phase_from, 0, kGiB},
    {"two_phase_world", &Tuning::two_phase_world, 2, 1024},
    {"piece_bytes", &Tuning::piece_bytes, 4 * kKiB, 64 * kMiB},
    {"claim_from_bytes", &Tuning::claim_from, 0, ~std::uint64_t{0}},
    {"chunk_bytes", &Tuning::chunk_bytes, 4 * kKiB, 64 * kMiB},
    {"streaming_from_bytes", &Tuning::streaming_from, 0, ~std::uint64_t{0}},
    {"spins", &Tuning::spins, 0, 1'000'000},
    {"yields", &Tuning::yields, 0, 1'000'000},
    {"tree_world", &Tuning::tree_world, 2, Tuning::kNoTree},
    {"tree_max_bytes", &Tuning::max_tree, 0, kTreeBudget},
};
// Keys that files of before have, and what is said of them: a value that is passed over in silence
// would look measured.
struct FormerField {
    const char* key;
    const char* message;
};
constexpr FormerField kFormerFields[] = {
    {"flat_most_bytes", "tuning: flat_most_bytes is called flat_max_bytes now"},
    {"ahead_most_bytes", "tuning: ahead_most_bytes is called ahead_max_bytes now"},
    {"tree_most_bytes", "tuning: tree_most_bytes is called tree_max_bytes now"},
};
// A table for all world sizes is some KiB.
constexpr std::size_t kMaxTable = 1 << 20;

// And a word each for the forced algorithm, for check_buffers and for coherent.
static_assert(std::size(kFields) + 3 <= kTuningWords);

int usable_cpus() noexcept {
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return std::max(1, CPU_COUNT(&set));
}

// Bytes of the cache that this processor shares with its neighbours, 0 if unknown. From sysfs:
// sysconf(_SC_LEVEL3_CACHE_SIZE) adds up caches that one core cannot use (seen on AMD in a guest).
Bytes last_level_cache() {
    for (const char* index : {"3", "2"}) {
        std::ifstream file(std::string("/sys/devices/system/cpu/cpu0/cache/index") + index +
                           "/size");
        std::string text;  // "32768K"
        if (!std::getline(file, text)) continue;
        const auto bytes = parse_bytes(text);
        if (bytes.ok()) return *bytes;
    }
    return 0;
}

Result<void> apply_line(Tuning& tuning, const std::string& key, const std::string& value) {
    for (const Field& field : kFields) {
        if (key != field.key) continue;
        char* end = nullptr;
        const std::uint64_t number = std::strtoull(value.c_str(), &end, 10);
        const bool whole = !value.empty() && end == value.c_str() + value.size();
        if (!whole || number < field.min || number > field.max) {
            return Error{Errc::kCorrupt, 0, "tuning: value out of range"};
        }
        tuning.*field.value = number;
        return {};
    }
    for (const FormerField& former : kFormerFields) {
        if (key == former.key) return Error{Errc::kCorrupt, 0, former.message};
    }
    return Error{Errc::kCorrupt, 0, "tuning: unknown key"};
}

void read_environment(Tuning& tuning) {
    const char* forced = std::getenv("FABRIC_ALGORITHM");
    if (forced != nullptr && *forced != '\0') {
        const auto algorithm = parse_algorithm(forced);
        if (algorithm.ok()) {
            tuning.forced = *algorithm;
        } else {
            log(LogLevel::kWarning, "FABRIC_ALGORITHM=%s is not an algorithm; ignored", forced);
        }
    }
    const char* check = std::getenv("FABRIC_CHECK");
    if (check != nullptr && *check != '\0') {
        tuning.check_buffers = std::string(check) == "buffers";
        if (!tuning.check_buffers) {
            log(LogLevel::kWarning, "FABRIC_CHECK=%s is not a check (buffers is one); ignored",
                check);
        }
    }
}

}  // namespace

Tuning default_tuning(int world, int cpus, Bytes cache_bytes) noexcept {
    Tuning tuning;
    // Between yields: alone on a core, waiting a little is cheaper than giving it up. With more
    // ranks than cores the one waited for may need this very core: pausing then only holds it up.
    const bool crowded = world > cpus;
    tuning.spins = crowded ? 4 : 100;
    tuning.yields = crowded ? 1000 : 200;
    // A barrier then costs turns of the scheduler; a root that runs ahead spares most of them.
    tuning.max_ahead = crowded ? 16 * kKiB : 4 * kKiB;
    // With two ranks each byte crosses once either way, and one barrier less wins up to here.
    if (world == 2) tuning.two_phase_from = 384 * kKiB;
    // Up the tree and down again each takes a turn of the scheduler, where the posts of all ranks
    // are there after one: 58 us against 39 with 16 ranks on 2 processors, 197 against 227 with 64.
    tuning.tree_world = crowded ? 64 : 8;
    tuning.streaming_from = std::max<Bytes>(cache_bytes / 4 * 3, 4 * kMiB);
    return tuning;
}

std::string tuning_path(const std::string& machine) {
    const std::string file =
        machine.empty() ? "/fabricd/tuning.conf" : "/fabricd/tuning-" + machine + ".conf";
    // Wins over the machine's name, too.
    if (const char* path = std::getenv("FABRIC_TUNING"); path != nullptr) return path;
    if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
        return cache + file;
    }
    const char* home = std::getenv("HOME");
    return std::string(home != nullptr ? home : "/nonexistent") + "/.cache" + file;
}

Tuning machine_tuning(int world) {
    return default_tuning(world, usable_cpus(), last_level_cache());
}

Tuning load_tuning(int world, const std::string& machine, int cpus) {
    Tuning tuning = default_tuning(world, cpus > 0 ? cpus : usable_cpus(), last_level_cache());
    const std::string path = tuning_path(machine);
    if (std::ifstream file(path); file) {
        // Not to its end: whatever the variable names may have none.
        std::string text(kMaxTable, '\0');
        file.read(text.data(), static_cast<std::streamsize>(text.size()));
        text.resize(static_cast<std::size_t>(file.gcount()));
        // A bad file costs speed, but not the job.
        const auto parsed = parse_tuning(text, world, tuning);
        if (parsed.ok()) {
            tuning = *parsed;
        } else {
            log(LogLevel::kWarning, "%s: %s; using defaults", path.c_str(), parsed.error().step);
        }
    }
    read_environment(tuning);
    return tuning;
}

Result<Tuning> parse_tuning(const std::string& text, int world, const Tuning& base) {
    Tuning tuning = base;
    std::istringstream lines(text);
    const std::string prefix = std::to_string(world) + ".";
    for (std::string line; std::getline(lines, line);) {
        line.erase(std::remove_if(line.begin(), line.end(), ::isspace), line.end());
        if (line.empty() || line.front() == '#') continue;
        const auto equals = line.find('=');
        if (equals == std::string::npos) return Error{Errc::kCorrupt, 0, "tuning: line without ="};
        if (line.rfind(prefix, 0) != 0) continue;  // of another world size
        const std::string key = line.substr(prefix.size(), equals - prefix.size());
        FABRIC_TRY_VOID(apply_line(tuning, key, line.substr(equals + 1)));
    }
    return tuning;
}

std::string format_tuning(const Tuning& tuning, int world) {
    std::ostringstream text;
    for (const Field& field : kFields) {
        text << world << '.' << field.key << " = " << tuning.*field.value << '\n';
    }
    return text.str();
}

void pack_tuning(const Tuning& tuning, std::uint64_t* words) noexcept {
    for (const Field& field : kFields) *words++ = tuning.*field.value;
    *words++ = static_cast<std::uint64_t>(tuning.forced);
    *words++ = tuning.check_buffers ? 1 : 0;
    // One word: a rank of a version without the second bit sees another memory, and says so.
    *words = (tuning.coherent ? 1U : 0U) | (tuning.one_kernel ? 0U : 2U);
}

Tuning unpack_tuning(const std::uint64_t* words) noexcept {
    Tuning tuning;
    for (const Field& field : kFields) {
        // The words come from shared memory: whatever is there, values stay in their ranges.
        tuning.*field.value = std::clamp(*words++, field.min, field.max);
    }
    const auto last = static_cast<std::uint64_t>(Algorithm::kHost);
    tuning.forced = *words <= last ? static_cast<Algorithm>(*words) : Algorithm::kAuto;
    tuning.check_buffers = *++words != 0;
    tuning.coherent = (*++words & 1U) != 0;
    tuning.one_kernel = (*words & 2U) == 0;
    return tuning;
}

Result<Algorithm> parse_algorithm(const std::string& name) {
    for (std::size_t i = 0; i < std::size(kAlgorithmNames); ++i) {
        if (name == kAlgorithmNames[i]) return static_cast<Algorithm>(i);
    }
    return Error{Errc::kInvalid, 0, "parse algorithm"};
}

const char* name_of(Algorithm algorithm) noexcept {
    const auto index = static_cast<std::size_t>(algorithm);
    return index < std::size(kAlgorithmNames) ? kAlgorithmNames[index] : "unknown";
}

}  // namespace fabricshm
