// fabric.so, the plugin of Slurm (spank(8)): srun --fabric=SIZE.
//
// It is loaded into srun, sbatch, salloc, slurmd and slurmstepd, and does something in two of them:
//
//   slurmstepd, before the tasks   root asks the daemon whether the job gets its bytes
//   (init_post_opt),
//                                  then the user tries the attach socket (user_init)
//   slurmstepd, in each task       what the library needs goes into the environment (task_init)
//   slurmd, after the job          what is left of the job's arena is ended (job_epilog)
//
// Every wait has the timeout of plugstack.conf. There is no prolog: one that fails drains the node.
//
// A task that must not run ends itself in task_init. The other ways out do less: what init_post_opt
// and user_init return is ignored of an optional plugin, and of a required one srun 22.05 reports
// that the launch failed and exits with 0.

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "fabricd/slurm/bounded_run.hpp"
#include "fabricd/slurm/job_records.hpp"
#include "fabricd/slurm/plugin_settings.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/unix_socket.hpp"

// Slurm finds these names by dlsym(). Its header declares the functions without extern "C".
#pragma GCC visibility push(default)
extern "C" {
#include <slurm/slurm.h>
#include <slurm/spank.h>

extern const char plugin_name[];
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
SPANK_PLUGIN(fabric, 1)
}
#pragma GCC visibility pop

namespace fabricd {
namespace {

using fabricshm::Clock;
using fabricshm::Errc;

constexpr int kGood = 0;
constexpr int kBad = -1;
constexpr int kNoDaemon = 3;  // fabricctl's
// Slurm takes the "exit code 1" of a task for what it is; the line before it says why.
constexpr int kRefused = 1;

/// One process has one job, so one of these. Slurm calls the plugin from one thread.
struct Plugin {
    PluginSettings settings;
    std::optional<std::uint64_t> bytes;  // of --fabric
    std::string refusal;                 // why the tasks must not run; "": they may
};

Plugin& plugin() {
    static Plugin instance;
    return instance;
}

/// Of --fabric, in srun and again in slurmstepd. Slurm's own line comes after the one from here.
int take_size(int, const char* text, int) {
    const auto bytes = read_size(text);
    if (!bytes.ok()) {
        slurm_error("--fabric: %s", fabricshm::explanation_of(bytes.error()).c_str());
        return kBad;
    }
    plugin().bytes = *bytes;
    return kGood;
}

// Slurm's structure has pointers to non-const text, and copies it.
char g_name[] = "fabric";
char g_argument[] = "SIZE";
char g_usage[] = "bytes of fabricd's pool for the job on each node, as 64M or 48G";
spank_option g_option{g_name, g_argument, g_usage, 1, 0, take_size};

int take_settings(int count, char** words) {
    const auto taken = read_settings({words, static_cast<std::size_t>(count)}, plugin().settings);
    if (taken.ok()) return kGood;
    slurm_error("fabric: plugstack.conf: %s", fabricshm::explanation_of(taken.error()).c_str());
    return kBad;
}

// The job of the tasks' environment: in all components of a heterogeneous job the leader's, while
// S_JOB_ID is the component's own.
std::uint32_t job_of(spank_t spank) {
    char text[16] = "";
    if (spank_getenv(spank, "SLURM_JOB_ID", text, sizeof text) == ESPANK_SUCCESS) {
        const auto leader = std::strtoul(text, nullptr, 10);
        if (leader != 0) return static_cast<std::uint32_t>(leader);
    }
    std::uint32_t job = 0;
    spank_get_item(spank, S_JOB_ID, &job);
    return job;
}

bool is_leader(spank_t spank) {
    std::uint32_t own = 0;
    spank_get_item(spank, S_JOB_ID, &own);
    return own == job_of(spank);
}

std::string first_line(const std::string& output) {
    const std::string line = output.substr(0, output.find('\n'));
    const std::string speaker = "fabricctl: ";
    return line.starts_with(speaker) ? line.substr(speaker.size()) : line;
}

/// What fabricctl says when it does not end well; "" when it does. `is_away`: the daemon has not
/// heard the question.
std::string ask_daemon(std::vector<std::string> words, bool& is_away) {
    is_away = true;
    const PluginSettings& settings = plugin().settings;
    words.insert(words.begin(), settings.fabricctl);
    // Longer than this plugin waits for it: what is said of a daemon that hangs is said below.
    const auto timeout = std::chrono::ceil<std::chrono::seconds>(settings.timeout).count() + 5;
    words.insert(words.end(),
                 {"--socket", admin_socket_of(settings), "--timeout", std::to_string(timeout)});
    const auto ended = run_bounded(words, settings.timeout);
    if (!ended.ok() && ended.error().code == Errc::kTimeout) {
        return "fabricd did not answer within " + fabricshm::format_duration(settings.timeout) +
               " at " + admin_socket_of(settings);
    }
    if (!ended.ok()) {
        return "can't run " + settings.fabricctl + ": " + fabricshm::explanation_of(ended.error());
    }
    is_away = false;
    if (ended->code == 0) return "";
    const std::string said = first_line(ended->output);
    is_away = ended->code == kNoDaemon;
    return said.empty() ? settings.fabricctl + " ended with " + std::to_string(ended->code) : said;
}

std::uint32_t user_of(spank_t spank) {
    uid_t user = static_cast<uid_t>(-1);  // which no arena has
    spank_get_item(spank, S_JOB_UID, &user);
    return user;
}

std::string release(const SlurmJobRecord& record, bool& is_away) {
    // Well before fabricctl itself is killed.
    const double grace = std::chrono::duration<double>(plugin().settings.timeout).count() / 5;
    return ask_daemon({"slurm-release", std::to_string(record.job), "--grace",
                       std::to_string(grace), "--user", std::to_string(record.user)},
                      is_away);
}

/// Of jobs that ended while the daemon was away. Until it is away again, and some of a time: a step
/// waits for this.
void release_missed(const JobRecords& records) {
    constexpr std::size_t kAtOnce = 8;
    for (const SlurmJobRecord& record : records.ended(kAtOnce)) {
        bool is_away = false;
        const std::string said = release(record, is_away);
        if (is_away) return;
        if (!said.empty()) slurm_error("fabric: release of job %u: %s", record.job, said.c_str());
        records.erase(record.job);
    }
}

/// Asks for one step, and remembers the job, whose end has to be heard of. "": it may have it.
/// `is_leader`: the epilog will name the job so; it names other components by numbers of their own.
std::string admit_step(const SlurmJobRecord& step, bool is_batch, bool is_leader) {
    const JobRecords records(plugin().settings.spool);
    release_missed(records);
    SlurmJobRecord record = records.find(step.job).value_or(SlurmJobRecord{});
    // A number that is given out again is another job.
    if (record.has_ended || record.user != step.user) record = {};
    if (record.bytes != 0 && step.bytes > record.bytes) {
        return fabricshm::format_bytes(step.bytes) + " wanted for a step of job " +
               std::to_string(step.job) + ", which asked for " +
               fabricshm::format_bytes(record.bytes);
    }
    bool is_away = false;
    const std::string said =
        ask_daemon({"slurm-admit", std::to_string(step.job), std::to_string(step.bytes), "--user",
                    std::to_string(step.user)},
                   is_away);
    if (!said.empty() || !is_leader) return said;
    const std::uint64_t of_job = is_batch ? step.bytes : record.bytes;
    const auto kept = records.write({step.job, of_job, step.user, false});
    if (!kept.ok()) {
        slurm_error("fabric: %s: %s", plugin().settings.spool.c_str(),
                    fabricshm::explanation_of(kept.error()).c_str());
    }
    return "";
}

// A step without tasks of the user's, in which a job's processes from outside are kept.
bool is_outside_step(spank_t spank) {
    std::uint32_t step = 0;
    return spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
           step == SLURM_EXTERN_CONT;
}

bool is_batch_script(spank_t spank) {
    std::uint32_t step = 0;
    return spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
           step == SLURM_BATCH_SCRIPT;
}

bool is_step(spank_t spank) {
    return spank_remote(spank) == 1 && !is_outside_step(spank);
}

void set(spank_t spank, const char* name, const std::string& value) {
    spank_setenv(spank, name, value.c_str(), 1);
}

}  // namespace
}  // namespace fabricd

#pragma GCC visibility push(default)

int slurm_spank_init(spank_t spank, int count, char** words) {
    if (fabricd::take_settings(count, words) != fabricd::kGood) return fabricd::kBad;
    if (spank_context() == S_CTX_SLURMD) return fabricd::kGood;
    return spank_option_register(spank, &fabricd::g_option) == ESPANK_SUCCESS ? fabricd::kGood
                                                                              : fabricd::kBad;
}

// As root: the admin socket is for the daemon's user and root.
int slurm_spank_init_post_opt(spank_t spank, int, char**) {
    auto& plugin = fabricd::plugin();
    if (!plugin.bytes || !fabricd::is_step(spank)) return fabricd::kGood;
    plugin.refusal =
        fabricd::admit_step({fabricd::job_of(spank), *plugin.bytes, fabricd::user_of(spank), false},
                            fabricd::is_batch_script(spank), fabricd::is_leader(spank));
    return fabricd::kGood;
}

// As the user, and the first place from which srun gets a line.
int slurm_spank_user_init(spank_t spank, int, char**) {
    auto& plugin = fabricd::plugin();
    if (!plugin.bytes || !fabricd::is_step(spank)) return fabricd::kGood;
    if (plugin.refusal.empty()) {
        const auto socket = fabricshm::UnixSocket::connect(
            plugin.settings.socket, fabricd::Clock::now() + plugin.settings.timeout);
        if (!socket.ok()) {
            plugin.refusal = "this user can't attach to " + plugin.settings.socket + ": " +
                             fabricshm::explanation_of(socket.error());
        }
    }
    if (!plugin.refusal.empty()) slurm_error("fabric: %s", plugin.refusal.c_str());
    return fabricd::kGood;
}

int slurm_spank_task_init(spank_t spank, int, char**) {
    const auto& plugin = fabricd::plugin();
    if (!plugin.bytes || !fabricd::is_step(spank)) return fabricd::kGood;
    if (!plugin.refusal.empty()) ::_exit(fabricd::kRefused);
    fabricd::set(spank, "FABRIC_SOCKET", plugin.settings.socket);
    fabricd::set(spank, "FABRIC_ARENA", fabricd::arena_of_job(fabricd::job_of(spank)));
    fabricd::set(spank, "FABRIC_ARENA_BYTES", std::to_string(*plugin.bytes));
    return fabricd::kGood;
}

// In a process of its own, for which slurm_spank_init() is not called. Of every job: a step may
// have had --fabric where the job had none. What it returns is the node's health, which this is
// not.
int slurm_spank_job_epilog(spank_t spank, int count, char** words) {
    if (fabricd::take_settings(count, words) != fabricd::kGood) return fabricd::kGood;
    const auto& settings = fabricd::plugin().settings;
    std::uint32_t job = 0;
    spank_get_item(spank, S_JOB_ID, &job);
    const fabricd::JobRecords records(settings.spool);
    auto record = records.find(job);
    const bool has_daemon = ::access(fabricd::admin_socket_of(settings).c_str(), F_OK) == 0;
    if (!record && !has_daemon) return fabricd::kGood;
    const fabricd::SlurmJobRecord ended{job, 0, fabricd::user_of(spank), true};
    bool is_away = false;
    const std::string said = fabricd::release(ended, is_away);
    if (!said.empty()) slurm_error("fabric: release of job %u: %s", job, said.c_str());
    if (is_away && record) {
        (void)records.write(ended);  // the next job of this node makes up for it
    } else {
        records.erase(job);
    }
    if (!is_away) fabricd::release_missed(records);
    return fabricd::kGood;
}

#pragma GCC visibility pop
