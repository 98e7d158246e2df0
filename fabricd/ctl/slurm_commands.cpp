#include "fabricd/ctl/slurm_commands.hpp"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <filesystem>

#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/operator_commands.hpp"
#include "fabricd/ctl/views.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Bytes;
using fabricshm::Errc;
using fabricshm::format_bytes;
using fabricshm::Result;

namespace {

// Of Slurm's GRES and licences: as small as counts of 32 bits allow for the largest pools, and
// large enough that people can write them.
constexpr Bytes kUnit = fabricshm::kGiB;
constexpr const char* kPrefix = "slurm-";  // as fabricd/slurm/plugin_settings.cpp has it
constexpr double kGrace = 1.0;

std::string arena_of(std::uint64_t job) {
    return kPrefix + std::to_string(job);
}

std::string host_name() {
    char name[HOST_NAME_MAX + 1] = "";
    ::gethostname(name, sizeof name);
    const std::string whole = name;
    // Slurm's NodeName is what `hostname -s` says, unless it was chosen otherwise.
    return whole.substr(0, whole.find('.'));
}

std::filesystem::path own_path() {
    std::error_code bad;
    const auto path = std::filesystem::read_symlink("/proc/self/exe", bad);
    return bad ? "/usr/bin/fabricctl" : path;
}

// Where this installation or build tree has it. Slurm searches its own folder for a bare name.
std::string plugin_path(const std::filesystem::path& fabricctl) {
    const auto folder = fabricctl.parent_path().parent_path();
    for (const char* place : {FABRIC_LIBDIR "/slurm/fabric.so", "slurm/fabric.so"}) {
        std::error_code bad;
        if (std::filesystem::exists(folder / place, bad)) return folder / place;
    }
    return "fabric.so";
}

std::string attach_socket_next_to(const std::string& admin_socket) {
    return admin_socket.substr(0, admin_socket.rfind('/') + 1) + "attach.sock";
}

}  // namespace

Result<std::vector<SlurmFile>> slurm_files(const SlurmHost& host) {
    const std::string units = std::to_string(host.pool_bytes / kUnit);
    if (host.pool_bytes < kUnit) {
        return fabricshm::explain({Errc::kInvalid, 0, "slurm-config"},
                                  "the pool has %s, and Slurm's unit is %s (pool.capacity)",
                                  format_bytes(host.pool_bytes).c_str(),
                                  format_bytes(kUnit).c_str());
    }
    return std::vector<SlurmFile>{
        {"gres.conf",
         "NodeName=" + host.name + " Name=fabric Count=" + units + " Flags=CountOnly\n"},
        {"slurm.conf",
         "GresTypes=fabric\n"
         "# add to this node's line:  NodeName=" +
             host.name + " ... Gres=fabric:" + units +
             "\n# so that --fabric=SIZE counts without --gres, by fabricd's job_submit.lua:\n"
             "# JobSubmitPlugins=lua\n"
             "# and where hosts share one pool, once for all of them:\n"
             "# Licenses=fabricpool:" +
             units + "\n"},
        {"plugstack.conf", "optional " + host.plugin + " socket=" + host.attach_socket +
                               " fabricctl=" + host.fabricctl + "\n"}};
}

// Numbers of jobs can be guessed, and names of arenas are one space for all users.
Result<void> check_owner(const SlurmOrder& order, const ArenaView& arena) {
    if (order.user == SlurmOrder::kAnyUser || order.user == arena.uid) return {};
    return fabricshm::explain({Errc::kBusy, 0, "owner of the arena"},
                              "the arena %s belongs to user %s, not to the job's (fabricctl evict "
                              "arena:%s)",
                              arena.name.c_str(), user_name(arena.uid).c_str(), arena.name.c_str());
}

Result<void> admit(const SlurmOrder& order, const StatusView& status,
                   const std::vector<ArenaView>& arenas) {
    const auto job = static_cast<unsigned long long>(order.job);
    if (status.draining) {
        return fabricshm::explain({Errc::kBusy, 0, "slurm-admit"},
                                  "fabricd is draining and takes no new jobs (fabricctl drain "
                                  "--off)");
    }
    Bytes taken = status.pool.used_bytes;
    for (const ArenaView& arena : arenas) {
        if (!arena.name.starts_with(kPrefix)) continue;
        if (arena.name == arena_of(order.job)) {
            FABRIC_TRY_VOID(check_owner(order, arena));
            if (arena.bytes >= order.bytes) return {};
            return fabricshm::explain({Errc::kNoMemory, 0, "slurm-admit"},
                                      "%s wanted for job %llu, whose arena was made with %s",
                                      format_bytes(order.bytes).c_str(), job,
                                      format_bytes(arena.bytes).c_str());
        }
        taken += arena.bytes - std::min(arena.bytes, arena.bytes_committed);
    }
    const Bytes capacity = status.pool.capacity_bytes;
    const Bytes free = capacity - std::min(capacity, taken);
    if (order.bytes <= free) return {};
    return fabricshm::explain({Errc::kNoMemory, 0, "slurm-admit"},
                              "%s wanted for job %llu, %s of the pool's %s are free",
                              format_bytes(order.bytes).c_str(), job, format_bytes(free).c_str(),
                              format_bytes(capacity).c_str());
}

Result<void> print_slurm_config(const CtlOptions& options, AdminClient& client) {
    FABRIC_TRY(const Picture picture, client.fetch(View::kStatus, 0));
    const auto fabricctl = own_path();
    const SlurmHost host{host_name(), picture.status.pool.capacity_bytes,
                         attach_socket_next_to(options.socket), fabricctl, plugin_path(fabricctl)};
    FABRIC_TRY(const auto files, slurm_files(host));
    Json all = Json::object();
    for (const SlurmFile& file : files) {
        if (!options.json) std::printf("# %s\n%s\n", file.name.c_str(), file.text.c_str());
        all[file.name] = file.text;
    }
    if (options.json) {
        std::printf(
            "%s\n",
            one_line({{"unit_bytes", kUnit}, {"units", host.pool_bytes / kUnit}, {"files", all}})
                .c_str());
    }
    return {};
}

Result<void> admit_slurm_job(const CtlOptions& options, AdminClient& client) {
    FABRIC_TRY(const Picture status, client.fetch(View::kStatus, 0));
    FABRIC_TRY(const Picture arenas, client.fetch(View::kArenas, 0));
    FABRIC_TRY_VOID(admit(options.slurm, status.status, arenas.arenas));
    if (options.json) {
        std::printf("%s\n", one_line({{"job", options.slurm.job},
                                      {"arena", arena_of(options.slurm.job)},
                                      {"bytes", options.slurm.bytes}})
                                .c_str());
    } else {
        std::printf("%s are free for job %llu\n", format_bytes(options.slurm.bytes).c_str(),
                    static_cast<unsigned long long>(options.slurm.job));
    }
    return {};
}

Result<void> release_slurm_job(const CtlOptions& options, AdminClient& client) {
    CtlOptions order = options;
    order.subject = "arena:" + arena_of(options.slurm.job);
    order.grace = options.wait.value_or(kGrace);
    FABRIC_TRY(const Picture picture, client.fetch(View::kArenas, 0));
    for (const ArenaView& arena : picture.arenas) {
        if (arena.name != arena_of(options.slurm.job)) continue;
        FABRIC_TRY_VOID(check_owner(options.slurm, arena));
    }
    const auto done = evict(order, client);
    if (done.ok() || done.error().code != Errc::kNotFound) return done;
    if (options.json) {
        std::printf("%s\n", one_line({{"evicted", Json::array()}}).c_str());
    } else {
        std::printf("nothing is left of job %llu\n",
                    static_cast<unsigned long long>(options.slurm.job));
    }
    return {};
}

}  // namespace fabricd
