#include "fabricd/ctl/doctor/doctor_table.hpp"

#include <algorithm>

#include "fabricd/ctl/doctor/daemon_checks.hpp"
#include "fabricd/ctl/doctor/device_checks.hpp"
#include "fabricd/ctl/doctor/kernel_checks.hpp"
#include "fabricd/ctl/doctor/memory_checks.hpp"

namespace fabricd {

const std::vector<DoctorCheck>& doctor_checks() {
    using namespace doctor;
    static const std::vector<DoctorCheck> kChecks{
        {"configuration", "the file of fabricd", configuration},
        {"service", "the unit of systemd", service},
        {"admin-socket", "whether the daemon answers fabricctl", admin_socket},
        {"attach-socket", "whether the daemon takes a session of this user", attach_socket},
        {"pool-size", "`pool.capacity` and the memory that is available", pool_size},
        {"memory-limit", "the control groups of the daemon", memory_limit},
        {"overcommit", "`vm.overcommit_memory`", overcommit},
        {"swap", "whether arenas can be swapped out", swap},
        {"arena-huge-pages", "`shmem_enabled` of transparent huge pages", arena_huge_pages},
        {"program-huge-pages", "`enabled` of transparent huge pages", program_huge_pages},
        {"reserved-huge-pages", "the hugetlb pool and `pool.huge_pages`", reserved_huge_pages},
        {"numa-balancing", "`kernel.numa_balancing` with several nodes", numa_balancing},
        {"dax", "DAX devices: driver, file, mode", dax_devices},
        {"gpu", "NVIDIA GPUs: driver, files, libcuda", nvidia_driver},
        {"shared-memory", "`/dev/shm`: size, and what ended programs left", shared_memory},
        {"open-files", "descriptors for `limits.sessions`", open_files},
        {"locked-memory", "what RDMA cards may lock", locked_memory},
        {"kernel", "the version, and what it lacks", kernel_version},
        {"io-uring", "`kernel.io_uring_disabled`", io_uring},
        {"ptrace", "`kernel.yama.ptrace_scope`, for debuggers and CMA", ptrace_scope},
        {"vector-units", "AVX2 and AVX-512", vector_units},
        {"cpu-governor", "processors that are kept slow", cpu_governor},
    };
    return kChecks;
}

std::vector<Diagnosis> examine(const HostFacts& host) {
    std::vector<Diagnosis> diagnoses;
    for (const DoctorCheck& check : doctor_checks()) {
        diagnoses.push_back({&check, check.find(host)});
    }
    return diagnoses;
}

bool is_ill(const std::vector<Diagnosis>& diagnoses) {
    return std::any_of(diagnoses.begin(), diagnoses.end(), [](const Diagnosis& diagnosis) {
        return diagnosis.finding.grade > Grade::kUnknown;
    });
}

}  // namespace fabricd
