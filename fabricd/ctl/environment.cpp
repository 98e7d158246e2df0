#include "fabricd/ctl/environment.hpp"

#include <cstdio>
#include <cstdlib>

#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/table.hpp"

namespace fabricd {

namespace {

// What programs of ours read.
std::vector<EnvironmentVariable> read_variables() {
    return {
        {"FABRIC_SOCKET", "library", "the usual places", "attach socket of fabricd"},
        {"FABRIC_DATA_SOCKET", "library", "the usual places", "socket of the data service"},
        {"FABRIC_ADMIN_SOCKET", "fabricctl", "the usual places", "admin socket of fabricd"},
        {"FABRIC_JOBS_DIR", "fabricctl", "~/.local/state/fabricd/jobs",
         "folder of the user's jobs; XDG_STATE_HOME in front"},
        {"FABRIC_LOG", "library", "warning",
         "lowest level on standard error: debug, info, warning, error, off"},
        {"FABRIC_DEVICE", "library", "none", "device that the process computes on"},
        {"FABRIC_ALGORITHM", "library", "the tuner's choice",
         "flat, direct, ring, staged or host, for comparisons"},
        {"FABRIC_TUNING", "library", "~/.cache/fabricd/tuning.conf", "file of fabricctl tune"},
        {"FABRIC_CHECK", "library", "none",
         "buffers: every operation checks that the ranks' buffers keep apart"},
        {"FABRIC_CUDA", "library", "libcuda.so.1", "the CUDA driver, a file or a name; off: none"},
        {"FABRIC_LAPACK", "library", "OpenBLAS or LAPACK, if there",
         "library that factorises symmetric matrices; off: none"},
        {"FABRIC_ISA", "library", "the best there is", "scalar, avx2 or avx512, for comparisons"},
        {"FABRIC_VISIBILITY", "library", "coherent",
         "how bytes cross between hosts: the profile of the job"},
        {"FABRIC_NET_TRUSTED", "library", "none",
         "networks between the hosts of a group, as 10.0.0.0/8"},
        {"FABRIC_NET_PROVIDER", "library", "by capability", "provider of libfabric"},
        {"FABRIC_NET_RING", "library", "never", "hosts from which large sums go along a ring"},
        {"FABRIC_NET_LIBRARY", "library", "next to libfabricshm.so", "libfabricshm_net.so"},
        {"FABRIC_SIGBUS", "library", "on", "off: a lost page ends the process"},
        {"FABRIC_HOST", "library", "0", "emulated host of the process, for tests"},
        {"FABRIC_EMULATED_NODE", "library", "by rank",
         "node of the emulated machine that the process runs on"},
        {"FABRIC_FAULT", "library", "none", "fault to arm, for tests"},
        {"FABRIC_FAULT_REPORT", "library", "none",
         "file of the fault points that were passed, for tests"},
        {"FABRIC_ARENA", "PyTorch", "a new one per job", "name of the arena"},
        {"FABRIC_ARENA_BYTES", "PyTorch", "the daemon's default", "size of the arena"},
        {"FABRIC_TORCH_ALLOCATOR", "PyTorch", "auto",
         "auto, all or 0: which tensors lie in the arena"},
        {"FABRIC_TORCH_STAGE_BYTES", "PyTorch", "an eighth of the arena for all ranks, at most 64M",
         "memory of a rank in the arena, through which CUDA tensors travel"},
        {"FABRIC_TORCH_THRESHOLD", "PyTorch", "65536", "bytes from which a tensor is large"},
        {"FABRIC_VGPU", "vGPU", "FABRIC_DEVICE",
         "vGPU of the program that preloads libfabricvgpu.so"},
        {"FABRIC_VGPU_SOCKET", "vGPU", "next to FABRIC_SOCKET",
         "socket that vGPUs are asked for at"},
        {"FABRIC_VGPU_WAIT", "vGPU", "the device file's vgpu_wait",
         "time that an allocation waits for room, as 2s"},
        {"FABRIC_VGPU_REQUIRE", "vGPU", "0",
         "1: the program does not start where it would run without limits"},
        {"FABRIC_VGPU_CHECK", "vGPU", "0", "1: names functions of the driver that are not covered"},
    };
}

// What fabricctl jobs sets for a job's ranks.
std::vector<EnvironmentVariable> job_variables() {
    return {
        {"FABRIC_JOB", "a job's script", "none", "number of the job"},
        {"FABRIC_JOB_NAME", "a job's script", "none", "name of the job"},
        {"FABRIC_JOB_GROUP", "a job's script", "none", "group of the rank, from 0"},
        {"FABRIC_JOB_KIND", "a job's script", "none", "kind of the group's devices"},
        {"FABRIC_JOB_SHARES", "a job's script", "none",
         "shares of a batch of all ranks, as 0.4,0.6"},
        {"FABRIC_JOB_STRATEGY", "a job's script", "none", "allreduce or parameter-server"},
        {"FABRIC_JOB_SERVERS", "a job's script", "none", "ranks that own parts of the parameters"},
        {"FABRIC_JOB_STALENESS", "a job's script", "none", "steps that a rank may be ahead"},
        {"FABRIC_JOB_DATA", "a job's script", "none", "path of the data"},
        {"FABRIC_JOB_CACHE", "fabricrun --wrap", "none", "the data's path in the data cache"},
        {"FABRIC_JOB_PASS_ON", "fabricrun --wrap", "0", "share of its samples that a rank swaps"},
        {"FABRIC_JOB_ATTEMPT", "fabricctl jobs rank", "0",
         "how often all ranks of a job of Slurm were started before"},
        {"FABRIC_JOB_HEAD", "fabricctl jobs rank", "127.0.0.1",
         "host of rank 0 of a job of Slurm on several nodes"},
    };
}

}  // namespace

// By the program that reads them, what is needed most first. scripts/check_docs.py compares the
// names with what the sources read, so that the table can't fall behind.
const std::vector<EnvironmentVariable>& environment_variables() {
    static const std::vector<EnvironmentVariable> kVariables = [] {
        auto all = read_variables();
        const auto of_jobs = job_variables();
        all.insert(all.end(), of_jobs.begin(), of_jobs.end());
        return all;
    }();
    return kVariables;
}

std::string environment_text() {
    Table table({{"VARIABLE"}, {"VALUE"}, {"DEFAULT"}, {"READ BY"}, {"MEANING"}});
    for (const auto& variable : environment_variables()) {
        const char* value = std::getenv(variable.name);
        table.add({variable.name, value != nullptr ? value : "-", variable.fallback,
                   variable.reader, variable.meaning});
    }
    return table.text();
}

std::string environment_json() {
    Json list = Json::array();
    for (const auto& variable : environment_variables()) {
        const char* value = std::getenv(variable.name);
        list.push_back({{"name", variable.name},
                        {"value", value != nullptr ? Json(value) : Json()},
                        {"default", variable.fallback},
                        {"reader", variable.reader},
                        {"meaning", variable.meaning}});
    }
    return one_line({{"environment", list}});
}

CtlExit print_environment(const CtlOptions& options) {
    const std::string text = options.json ? environment_json() + "\n" : environment_text();
    std::fputs(text.c_str(), stdout);
    return CtlExit::kOk;
}

}  // namespace fabricd
