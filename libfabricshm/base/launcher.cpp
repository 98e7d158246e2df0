#include "libfabricshm/base/launcher.hpp"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "libfabricshm/base/reason.hpp"

namespace fabricshm {

namespace {

constexpr const char* kStep = "read the launcher's variables";

// Slurm comes last: mpirun and torchrun start several ranks inside one of its tasks, and these have
// the task's SLURM_* next to their own. PMIx comes behind the launchers that use it.
constexpr LauncherRow kRows[] = {
    {"torchrun",
     {"RANK"},
     {"WORLD_SIZE"},
     {"LOCAL_RANK"},
     {"LOCAL_WORLD_SIZE"},
     {"GROUP_RANK"},
     {"GROUP_WORLD_SIZE"},
     {},
     nullptr,
     "TORCHELASTIC_RUN_ID"},
    // Its NODE_RANK is not the number of a host, and orte's count of hosts has idle ones in it.
    {"openmpi",
     {"OMPI_COMM_WORLD_RANK"},
     {"OMPI_COMM_WORLD_SIZE"},
     {"OMPI_COMM_WORLD_LOCAL_RANK"},
     {"OMPI_COMM_WORLD_LOCAL_SIZE"},
     {},
     {},
     {},
     nullptr,
     nullptr},
    {"mpich",
     {"PMI_RANK"},
     {"PMI_SIZE"},
     {"MPI_LOCALRANKID"},
     {"MPI_LOCALNRANKS"},
     {},
     {},
     {},
     nullptr,
     nullptr},
    // The number of ranks is only to be had from its library, so that the set is never complete.
    {"pmix", {"PMIX_RANK"}, {}, {}, {}, {}, {}, {}, nullptr, nullptr},
    // A batch script has SLURM_PROCID=0 and the job's SLURM_NTASKS, and is not a rank: a step is.
    {"slurm",
     {"SLURM_PROCID"},
     {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"},
     {"SLURM_LOCALID"},
     {},
     {"SLURM_NODEID"},
     {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"},
     {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"},
     "SLURM_STEP_ID",
     nullptr},
};

struct Setting {
    const char* name = nullptr;  // nullptr: none of the names is set
    std::string_view text;
    explicit operator bool() const noexcept { return name != nullptr; }
};

// Empty counts as not set: that is how a shell script leaves a variable out.
const char* text_of(const Variables& variable, const char* name) {
    const char* text = name == nullptr ? nullptr : variable(name);
    return text != nullptr && *text != '\0' ? text : nullptr;
}

Setting first_of(const Variables& variable, const VariableNames& names) {
    for (const char* name : names) {
        if (const char* text = text_of(variable, name)) return {name, text};
    }
    return {};
}

// Digits and no more: "-1", " 3", "3 " and "0x3" are errors of a script, better named than guessed.
std::optional<std::int32_t> number_in(std::string_view text) {
    std::int32_t number = 0;
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc{} || at != end || text.front() == '-') return std::nullopt;
    return number;
}

Error no_number(const Setting& setting) {
    return explain({Errc::kInvalid, 0, kStep}, "%s is \"%.60s\", which is not a number of ranks",
                   setting.name, setting.text.data());
}

// -1 when none of them is set.
Result<std::int32_t> read(const Variables& variable, const VariableNames& names) {
    const Setting setting = first_of(variable, names);
    if (!setting) return std::int32_t{-1};
    const auto number = number_in(setting.text);
    if (!number) return no_number(setting);
    return *number;
}

// One host's ranks for each host: "2(x3),1" is 2 2 2 1. Nothing: no such list. A host has a rank at
// least, so that a list of more than `world` hosts is none, however large its factors.
std::optional<std::vector<std::int32_t>> counts_in(std::string_view text, std::int32_t world) {
    std::vector<std::int32_t> counts;
    while (true) {
        const auto comma = text.find(',');
        std::string_view entry = text.substr(0, comma);
        std::int32_t times = 1;
        if (const auto open = entry.find("(x"); open != std::string_view::npos) {
            if (entry.back() != ')') return std::nullopt;
            const auto factor = number_in(entry.substr(open + 2, entry.size() - open - 3));
            if (!factor || *factor < 1) return std::nullopt;
            times = *factor;
            entry = entry.substr(0, open);
        }
        const auto count = number_in(entry);
        if (!count || times > world) return std::nullopt;
        counts.insert(counts.end(), static_cast<std::size_t>(times), *count);
        if (counts.size() > static_cast<std::size_t>(world)) return std::nullopt;
        if (comma == std::string_view::npos) return counts;
        text.remove_prefix(comma + 1);
    }
}

std::int64_t sum_of(const std::vector<std::int32_t>& counts) {
    std::int64_t sum = 0;
    for (const std::int32_t count : counts) sum += count;
    return sum;
}

// Sets local_world from the lists of ranks by host.
Result<void> read_counts(const Variables& variable, const LauncherRow& row, Launch& launch) {
    for (const char* name : row.ranks_of_nodes) {
        const char* text = text_of(variable, name);
        if (text == nullptr) continue;
        const auto counts = counts_in(text, launch.world);
        const bool adds_up = counts && sum_of(*counts) == launch.world;
        const bool may_be_of_others = name != row.ranks_of_nodes.front();
        if (!adds_up && may_be_of_others) continue;
        const auto hosts = counts ? static_cast<std::int64_t>(counts->size()) : 0;
        if (!adds_up || launch.node >= hosts) {
            return explain({Errc::kInvalid, 0, kStep},
                           "%s is \"%.60s\", which are not the ranks of each host of %d in all",
                           name, text, launch.world);
        }
        if (launch.nodes < 0) launch.nodes = static_cast<std::int32_t>(hosts);
        if (hosts == 1) launch.node = 0;
        if (launch.node >= 0) launch.local_world = (*counts)[static_cast<std::size_t>(launch.node)];
        return {};
    }
    return {};
}

// `low` counts from 0 among `high`; either may be unknown.
Result<void> check_below(const Variables& variable, std::int32_t low, const VariableNames& lows,
                         std::int32_t high, const VariableNames& highs) {
    if (low < 0 || high < 0 || low < high) return {};
    const Setting first = first_of(variable, lows);
    const Setting second = first_of(variable, highs);
    return explain({Errc::kInvalid, 0, kStep}, "%s is %d, and has to be below %s, which is %d",
                   first.name != nullptr ? first.name : "the number within the host", low,
                   second.name != nullptr ? second.name : "the number of ranks of the host", high);
}

Result<void> check_ranges(const Variables& variable, const LauncherRow& row, const Launch& launch) {
    FABRIC_TRY_VOID(check_below(variable, launch.rank, row.rank, launch.world, row.world));
    FABRIC_TRY_VOID(check_below(variable, launch.node, row.node, launch.nodes, row.nodes));
    FABRIC_TRY_VOID(
        check_below(variable, launch.local_rank, row.local_rank, launch.world, row.world));
    FABRIC_TRY_VOID(check_below(variable, launch.local_rank, row.local_rank, launch.local_world,
                                row.local_world));
    if (launch.local_world <= launch.world) return {};
    return explain({Errc::kInvalid, 0, kStep}, "%s is %d, more than %s, which is %d",
                   first_of(variable, row.local_world).name, launch.local_world,
                   first_of(variable, row.world).name, launch.world);
}

Result<Launch> read_complete(const Variables& variable, const LauncherRow& row) {
    Launch launch;
    launch.launcher = row.launcher;
    FABRIC_TRY(launch.rank, read(variable, row.rank));
    FABRIC_TRY(launch.world, read(variable, row.world));
    FABRIC_TRY(launch.local_rank, read(variable, row.local_rank));
    FABRIC_TRY(launch.local_world, read(variable, row.local_world));
    FABRIC_TRY(launch.node, read(variable, row.node));
    FABRIC_TRY(launch.nodes, read(variable, row.nodes));
    FABRIC_TRY_VOID(check_ranges(variable, row, launch));
    FABRIC_TRY_VOID(read_counts(variable, row, launch));
    FABRIC_TRY_VOID(check_ranges(variable, row, launch));
    return launch;
}

struct Found {
    const LauncherRow* row;
    Launch launch;
};

bool agree(const Launch& one, const Launch& other) {
    return one.rank == other.rank && one.world == other.world;
}

// Whether `outer`, of lower precedence, may have started the launcher of `inner`. Slurm starts
// every kind of launcher; so may any other start one that shows itself by its mark. A rank
// and a world that came from a script have to be those of all ranks, which are more than tasks.
bool may_nest(const Variables& variable, const Found& inner, const Found& outer) {
    if (text_of(variable, inner.row->mark) != nullptr) return true;
    if (inner.row->mark != nullptr) return outer.launch.world < inner.launch.world;
    return outer.row->needs != nullptr;
}

Error contradiction(const Variables& variable, const Found& one, const Found& other) {
    return explain(
        {Errc::kInvalid, 0, kStep},
        "%s and %s are %d of %d, but %s and %s are %d of %d: unset those that are not of "
        "the launcher of these ranks",
        one.row->rank[0], first_of(variable, one.row->world).name, one.launch.rank,
        one.launch.world, other.row->rank[0], first_of(variable, other.row->world).name,
        other.launch.rank, other.launch.world);
}

void fill(std::int32_t& number, std::int32_t other) {
    if (number < 0) number = other;
}

// A number and what it counts among, both of one set, or of two that say the same of one of them.
void fill_pair(std::int32_t& number, std::int32_t& all, std::int32_t other,
               std::int32_t other_all) {
    if (number >= 0 && number != other) return;
    if (all >= 0 && all != other_all) return;
    number = other;
    all = other_all;
}

// What follows from the rest: all ranks are here, or there is one host.
void complete(Launch& launch) {
    if (launch.world == 1) {
        fill(launch.local_rank, 0);
        fill(launch.local_world, 1);
    }
    if (launch.nodes == 1) {
        fill(launch.local_rank, launch.rank);
        fill(launch.local_world, launch.world);
    }
    if (launch.local_world != launch.world) return;
    fill(launch.nodes, 1);
    if (launch.nodes == 1) fill(launch.node, 0);
}

// Why there is no complete set: a half one, a batch script, or nothing.
Error incomplete(const Variables& variable) {
    for (const LauncherRow& row : kRows) {
        const Setting rank = first_of(variable, row.rank);
        const Setting world = first_of(variable, row.world);
        if (row.needs != nullptr && text_of(variable, row.needs) == nullptr) continue;
        if (!rank && !world) continue;
        if (row.world[0] == nullptr) {
            return explain({Errc::kInvalid, 0, kStep},
                           "%s is set, but no variable has the number of ranks: set RANK and "
                           "WORLD_SIZE",
                           rank.name);
        }
        return explain({Errc::kInvalid, 0, kStep}, "%s is set, but %s is not",
                       rank ? rank.name : world.name, rank ? row.world[0] : row.rank[0]);
    }
    const bool is_batch = text_of(variable, "SLURM_PROCID") != nullptr;
    return explain({Errc::kNotFound, 0, kStep}, "%s",
                   is_batch ? "a script of Slurm's is not a rank (SLURM_STEP_ID is not set): start "
                              "the ranks by srun, or set RANK and WORLD_SIZE"
                            : "no launcher has set any: start the ranks by fabricrun, torchrun, "
                              "mpirun or srun, or set RANK and WORLD_SIZE");
}

bool is_complete(const Variables& variable, const LauncherRow& row) {
    return first_of(variable, row.rank) && first_of(variable, row.world) &&
           (row.needs == nullptr || text_of(variable, row.needs) != nullptr);
}

}  // namespace

std::span<const LauncherRow> launcher_table() noexcept {
    return kRows;
}

Result<Launch> read_launch(const Variables& variable) {
    std::vector<Found> found;
    for (const LauncherRow& row : kRows) {
        if (!is_complete(variable, row)) continue;
        FABRIC_TRY(const Launch launch, read_complete(variable, row));
        found.push_back({&row, launch});
    }
    if (found.empty()) return incomplete(variable);
    Launch chosen = found.front().launch;
    for (const Found& other : found) {
        if (agree(chosen, other.launch)) {
            const Launch& more = other.launch;
            fill_pair(chosen.local_rank, chosen.local_world, more.local_rank, more.local_world);
            fill_pair(chosen.node, chosen.nodes, more.node, more.nodes);
        } else if (!may_nest(variable, found.front(), other)) {
            return contradiction(variable, found.front(), other);
        }
    }
    complete(chosen);
    return chosen;
}

Result<Launch> read_launch() {
    return read_launch([](const char* name) { return std::getenv(name); });
}

}  // namespace fabricshm
