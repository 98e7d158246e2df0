#include "fabricd/config/job_file.hpp"

#include <algorithm>
#include <cmath>

#include "fabricd/config/device_file.hpp"
#include "fabricd/config/nearest_word.hpp"
#include "fabricd/config/section_keys.hpp"
#include "fabricd/config/toml_text.hpp"

namespace fabricd {

namespace {

// Bounds against generated files; execve() itself takes 128 KiB for one argument.
constexpr std::size_t kMaxArguments = 1024;
constexpr std::size_t kMaxArgumentBytes = 32 * 1024;
constexpr std::size_t kMaxJobGroups = 64;
constexpr std::size_t kMaxAfter = 64;
constexpr std::size_t kMaxSlurmOptions = 32;
constexpr std::size_t kMaxJobName = 48;  // the name of an arena, with the job's number, has 63
constexpr Bytes kMaxJobPool = Bytes{1} << 47;

// Texts become arguments, paths and words of the environment: a zero would end them early.
bool is_text(const std::string& text) {
    return text.size() <= kMaxArgumentBytes && text.find('\0') == std::string::npos;
}

std::string job_text_of(const toml::node& value) {
    const auto* text = value.as_string();
    return text != nullptr && is_text(text->get()) ? text->get() : "";
}

// Names become those of folders and arenas.
bool is_job_name(const std::string& name) {
    const auto is_plain = [](unsigned char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '-' || c == '_' || c == '.';
    };
    return !name.empty() && name.size() <= kMaxJobName && name.front() != '.' &&
           name.front() != '-' && std::all_of(name.begin(), name.end(), is_plain);
}

std::string read_name(const toml::node& value, JobSpec& job) {
    const std::string name = job_text_of(value);
    const bool is_number = name.find_first_not_of("0123456789") == std::string::npos;
    if (!is_job_name(name) || is_number) {
        return "1 to 48 letters, digits and \"-_.\", not of digits alone";
    }
    job.name = name;
    return "";
}

std::string read_script(const toml::node& value, JobSpec& job) {
    job.script = job_text_of(value);
    job.script_line = static_cast<int>(value.source().begin.line);
    return job.script.empty() ? "the path of a file, as \"train.py\"" : "";
}

std::string read_interpreter(const toml::node& value, JobSpec& job) {
    const auto* text = value.as_string();
    if (text == nullptr || !is_text(text->get())) {
        return "a program, as \"python3\", or \"\" for a script that is a program itself";
    }
    job.interpreter = text->get();
    return "";
}

/// Texts up to `limit` of them; false when it is something else.
bool read_texts(const toml::node& value, std::size_t limit, std::vector<std::string>& texts) {
    const auto* list = value.as_array();
    if (list == nullptr || list->size() > limit) return false;
    texts.clear();
    for (const auto& item : *list) {
        const auto* text = item.as_string();
        if (text == nullptr || !is_text(text->get())) return false;
        texts.push_back(text->get());
    }
    return true;
}

std::string read_arguments(const toml::node& value, JobSpec& job) {
    const bool is_good = read_texts(value, kMaxArguments, job.arguments);
    return is_good ? "" : "a list of at most 1024 texts, as [\"--epochs\", \"3\"]";
}

std::string read_after(const toml::node& value, JobSpec& job) {
    const bool is_good = read_texts(value, kMaxAfter, job.after) &&
                         std::all_of(job.after.begin(), job.after.end(), is_job_name);
    return is_good ? "" : "a list of at most 64 names or numbers of jobs, as [\"etl\", \"17\"]";
}

std::string read_priority(const toml::node& value, JobSpec& job) {
    const auto* number = value.as_integer();
    if (number == nullptr || number->get() < -1000 || number->get() > 1000) {
        return "a whole number from -1000 to 1000, the larger one goes first";
    }
    job.priority = static_cast<int>(number->get());
    return "";
}

template <typename Section, unsigned Section::*field, int low, int high>
std::string read_count(const toml::node& value, Section& section) {
    const auto* number = value.as_integer();
    if (number == nullptr || number->get() < low || number->get() > high) {
        return "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
    }
    section.*field = static_cast<unsigned>(number->get());
    return "";
}

template <Duration JobSpec::*field>
std::string read_time(const toml::node& value, JobSpec& job) {
    const auto time = fabricshm::parse_duration(job_text_of(value));
    if (!time.ok() || *time < std::chrono::milliseconds(1) || *time > std::chrono::hours(8760)) {
        return "a time as \"90s\", \"30min\" or \"8h\", 1ms to 365d";
    }
    job.*field = *time;
    return "";
}

/// One of two words: false for the first.
std::string read_choice(const toml::node& value, const char* no, const char* yes, bool& chosen) {
    const std::string word = job_text_of(value);
    if (word != no && word != yes) {
        return std::string("\"") + no + "\" or \"" + yes + "\"" + did_you_mean(word, {no, yes});
    }
    chosen = word == yes;
    return "";
}

std::string read_strategy(const toml::node& value, JobSpec& job) {
    bool is_server = false;
    const std::string bad = read_choice(value, "allreduce", "parameter-server", is_server);
    job.strategy = is_server ? JobStrategy::kParameterServer : JobStrategy::kAllreduce;
    return bad;
}

std::string read_schedule(const toml::node& value, JobSpec& job) {
    bool by_resource = false;
    const std::string bad = read_choice(value, "even", "by-resource", by_resource);
    job.schedule = by_resource ? JobSchedule::kByResource : JobSchedule::kEven;
    return bad;
}

std::string read_restart(const toml::node& value, JobSpec& job) {
    bool is_rank = false;
    const std::string bad = read_choice(value, "job", "rank", is_rank);
    job.restart = is_rank ? JobRestart::kRank : JobRestart::kJob;
    return bad;
}

std::string read_device_fault(const toml::node& value, JobSpec& job) {
    bool moves = false;
    const std::string bad = read_choice(value, "alarm", "move", moves);
    job.device_fault = moves ? JobDeviceFault::kMove : JobDeviceFault::kAlarm;
    return bad;
}

template <bool JobSpec::*field>
std::string read_flag(const toml::node& value, JobSpec& job) {
    const auto* yes = value.as_boolean();
    if (yes == nullptr) return "true or false";
    job.*field = yes->get();
    return "";
}

std::string read_reduction(const toml::node& value, JobSpec& job) {
    return read_choice(value, "mean", "sum", job.wrap_sums);
}

std::string read_group_kind(const toml::node& value, JobGroup& group) {
    const std::string kind = job_text_of(value);
    const auto& kinds = device_kinds();
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) {
        group.kind = kind;
        return "";
    }
    std::string wanted = "one of";
    for (const auto& one : kinds) wanted += (one == kinds.front() ? " " : ", ") + one;
    return wanted + did_you_mean(kind, kinds);
}

std::string read_pool(const toml::node& value, JobGroup& group) {
    const auto bytes = fabricshm::parse_bytes(job_text_of(value));
    // Bytes without a unit in a file are a mistake more often than not.
    const bool has_unit = !job_text_of(value).empty() && !std::isdigit(job_text_of(value).back());
    if (!bytes.ok() || !has_unit || *bytes < fabricshm::kMiB || *bytes > kMaxJobPool) {
        return "a size as \"512MiB\" or \"48G\", 1 MiB to 128 TiB";
    }
    group.pool = *bytes;
    return "";
}

std::string read_constraint(const toml::node& value, JobGroup& group) {
    const std::string pattern = job_text_of(value);
    const bool is_plain = std::all_of(pattern.begin(), pattern.end(),
                                      [](unsigned char c) { return c > 0x20 && c < 0x7f; });
    if (pattern.empty() || pattern.size() > 63 || !is_plain) {
        return "a pattern for names of devices, as \"a100*\"";
    }
    group.constraint = pattern;
    return "";
}

std::string read_data_path(const toml::node& value, JobData& data) {
    data.path = job_text_of(value);
    data.path_line = static_cast<int>(value.source().begin.line);
    return data.path.empty() ? "the path of a folder or file" : "";
}

std::string read_cache(const toml::node& value, JobData& data) {
    return read_place(value, data.cache);
}

std::string read_split(const toml::node& value, JobData& data) {
    bool is_weighted = false;
    const std::string problem = read_choice(value, "even", "weighted", is_weighted);
    data.split = is_weighted ? JobSplit::kWeighted : JobSplit::kEven;
    return problem;
}

std::string read_pass_on(const toml::node& value, JobData& data) {
    const auto number = value.value<double>();
    // Written so that a NaN is refused too.
    if (!number || !(*number >= 0.0 && *number <= 1.0)) return "a share from 0 to 1";
    data.pass_on = *number;
    return "";
}

// One word each: without "=" the next word would be taken for a script.
bool is_slurm_option(const std::string& word) {
    return word.size() > 2 && word.starts_with("--") && word.find('\n') == std::string::npos;
}

std::string read_slurm_options(const toml::node& value, std::vector<std::string>& options) {
    const bool is_good = read_texts(value, kMaxSlurmOptions, options) &&
                         std::all_of(options.begin(), options.end(), is_slurm_option);
    return is_good ? "" : "a list of at most 32 long options of sbatch, as [\"--partition=long\"]";
}

std::string read_group_slurm(const toml::node& value, JobGroup& group) {
    return read_slurm_options(value, group.slurm_options);
}

struct SlurmSection {
    std::vector<std::string> options;
};

std::string read_slurm(const toml::node& value, SlurmSection& slurm) {
    return read_slurm_options(value, slurm.options);
}

struct AlarmSection {
    std::string command;
};

std::string read_alarm(const toml::node& value, AlarmSection& alarm) {
    alarm.command = job_text_of(value);
    return alarm.command.empty() ? "a command of the shell" : "";
}

constexpr SectionKey<JobSpec> kJobKeys[] = {
    {"name", read_name},
    {"script", read_script},
    {"arguments", read_arguments},
    {"interpreter", read_interpreter},
    {"override_backend", read_flag<&JobSpec::override_backend>},
    {"wrap", read_flag<&JobSpec::wrap>},
    {"wrap_reduction", read_reduction},
    {"priority", read_priority},
    {"after", read_after},
    {"strategy", read_strategy},
    {"servers", read_count<JobSpec, &JobSpec::servers, 1, kMaxJobRanks>},
    {"staleness", read_count<JobSpec, &JobSpec::staleness, 0, 1000>},
    {"schedule", read_schedule},
    {"restart", read_restart},
    {"max_restarts", read_count<JobSpec, &JobSpec::max_restarts, 0, 1000000>},
    {"min_ranks", read_count<JobSpec, &JobSpec::min_ranks, 1, kMaxJobRanks>},
    {"device_fault", read_device_fault},
    {"time_limit", read_time<&JobSpec::time_limit>},
    {"grace", read_time<&JobSpec::grace>},
    {"adopt_within", read_time<&JobSpec::adopt_within>}};
constexpr SectionKey<JobGroup> kGroupKeys[] = {
    {"kind", read_group_kind},
    {"ranks", read_count<JobGroup, &JobGroup::ranks, 1, kMaxJobRanks>},
    {"pool", read_pool},
    {"constraint", read_constraint},
    {"nodes", read_count<JobGroup, &JobGroup::nodes, 1, kMaxJobRanks>},
    {"slurm", read_group_slurm}};
constexpr SectionKey<JobData> kDataKeys[] = {{"path", read_data_path},
                                             {"cache", read_cache},
                                             {"split", read_split},
                                             {"pass_on", read_pass_on}};
constexpr SectionKey<SlurmSection> kSlurmKeys[] = {{"options", read_slurm}};
constexpr SectionKey<AlarmSection> kAlarmKeys[] = {{"command", read_alarm}};

ErrorMessage read_groups(const toml::node& value, const std::string& where, const std::string& file,
                         JobSpec& spec) {
    const char* kWrong = ": a group is a section: [[group]]";
    const auto* list = value.as_array();
    if (list == nullptr) return where + kWrong;
    for (const auto& item : *list) {
        const auto* table = item.as_table();
        if (table == nullptr) return where + kWrong;
        const std::string here = place_in(file, table->source());
        JobGroup group;
        group.line = static_cast<int>(table->source().begin.line);
        if (auto bad = read_keys(*table, file, kGroupKeys, group)) return bad;
        if (group.kind.empty()) return here + ": the group has no kind";
        if (group.ranks == 0) return here + ": the group has no ranks";
        if (group.ranks % group.nodes != 0) {
            return here + ": " + std::to_string(group.ranks) +
                   " ranks can't be spread evenly over " + std::to_string(group.nodes) + " nodes";
        }
        if (spec.groups.size() == kMaxJobGroups) return here + ": more than 64 groups";
        spec.groups.push_back(std::move(group));
    }
    return {};
}

ErrorMessage read_alarm_section(const toml::table& table, const std::string& file, JobSpec& spec) {
    AlarmSection alarm;
    if (auto bad = read_keys(table, file, kAlarmKeys, alarm)) return bad;
    spec.alarm_command = alarm.command;
    return {};
}

ErrorMessage read_slurm_section(const toml::table& table, const std::string& file, JobSpec& spec) {
    SlurmSection slurm;
    if (auto bad = read_keys(table, file, kSlurmKeys, slurm)) return bad;
    spec.slurm_options = slurm.options;
    return {};
}

struct Problem {
    std::string text;      // "": there is none
    std::string key = "";  // of [job], whose line is shown
};

// Scripts for several processes read and swap by themselves, see docs/data.md.
Problem problem_of_data(const JobSpec& spec) {
    if (!spec.data.cache.empty() && !spec.wrap) {
        return {
            "[data] cache is for wrap = true; other scripts announce what they read "
            "themselves (fabricshm.data)"};
    }
    if (!spec.data.cache.empty() && spec.data.path.empty()) {
        return {"[data] cache needs a path, where the data cache is mounted"};
    }
    if (spec.data.pass_on > 0.0 && !spec.wrap) {
        return {
            "[data] pass_on is for wrap = true; other scripts take "
            "FabricSampler(exchange=...)"};
    }
    return {};
}

// What keys demand of each other.
Problem problem_of(const JobSpec& spec, const toml::table& job) {
    if (spec.name.empty()) return {"the job has no name"};
    if (spec.script.empty()) return {"the job has no script"};
    if (spec.groups.empty()) return {"the job has no [[group]]"};
    const std::string ranks = std::to_string(spec.ranks());
    if (spec.ranks() > kMaxJobRanks) {
        return {"the groups have " + ranks + " ranks, more than 1024"};
    }
    if (spec.pool() > kMaxJobPool) return {"the groups have more than 128 TiB of the pool"};
    for (const std::string key : {"servers", "staleness"}) {
        const bool is_lost = spec.strategy == JobStrategy::kAllreduce && job.contains(key);
        if (is_lost) return {key + " is of strategy = \"parameter-server\"", key};
    }
    if (spec.servers > spec.ranks()) {
        return {
            std::to_string(spec.servers) + " servers need as many ranks; the groups have " + ranks,
            "servers"};
    }
    if (spec.min_ranks > spec.ranks()) {
        return {"min_ranks is " + std::to_string(spec.min_ranks) + ", and the groups have " +
                    ranks + " ranks",
                "min_ranks"};
    }
    if (spec.device_fault == JobDeviceFault::kMove && spec.max_restarts == 0) {
        return {"device_fault = \"move\" starts ranks again: it needs max_restarts",
                "device_fault"};
    }
    if (spec.interpreter.empty() && (spec.override_backend || spec.wrap)) {
        const std::string key = spec.wrap ? "wrap" : "override_backend";
        return {key + " needs an interpreter", key};
    }
    if (spec.wrap_sums && !spec.wrap) {
        return {"wrap_reduction needs wrap = true", "wrap_reduction"};
    }
    return problem_of_data(spec);
}

ErrorMessage read_section(const std::string& word, const toml::node& value,
                          const std::string& where, const std::string& file, JobSpec& spec) {
    if (word == "group") return read_groups(value, where, file, spec);
    const auto* table = value.as_table();
    const std::vector<std::string> known = {"job", "group", "data", "alarm", "slurm"};
    if (std::find(known.begin(), known.end(), word) == known.end()) {
        return where + ": unknown section \"" + word + "\"" + did_you_mean(word, known);
    }
    if (table == nullptr) return where + ": " + word + " is a section: [" + word + "]";
    if (word == "job") return read_keys(*table, file, kJobKeys, spec);
    if (word == "data") return read_keys(*table, file, kDataKeys, spec.data);
    if (word == "slurm") return read_slurm_section(*table, file, spec);
    return read_alarm_section(*table, file, spec);
}

}  // namespace

ErrorMessage parse_job_file(const std::string& text, const std::string& name, JobSpec& spec) {
    std::string ascii = text;
    if (auto bad = take_ascii(ascii, name)) return bad;
    const toml::parse_result parsed = toml::parse(ascii, name);
    if (!parsed) {
        return place_in(name, parsed.error().source()) + ": " +
               std::string(parsed.error().description());
    }
    JobSpec found;
    for (const auto& [key, value] : parsed.table()) {
        const std::string where = place_in(name, key.source());
        if (auto bad = read_section(std::string(key.str()), value, where, name, found)) return bad;
    }
    const auto* job = parsed.table()["job"].as_table();
    if (job == nullptr) return name + ": has no [job]";
    const Problem problem = problem_of(found, *job);
    if (!problem.text.empty()) {
        const toml::node* key = job->get(problem.key);
        return place_in(name, key != nullptr ? key->source() : job->source()) + ": " + problem.text;
    }
    if (found.strategy == JobStrategy::kParameterServer && found.servers == 0) found.servers = 1;
    spec = std::move(found);
    return {};
}

ErrorMessage read_job_file(const std::string& path, JobSpec& spec) {
    std::string text;
    if (auto bad = read_small_text(path, text)) return bad;
    return parse_job_file(text, path, spec);
}

}  // namespace fabricd
