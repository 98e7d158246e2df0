// What tests of shards between devices share: two devices, and a session on one of them.

#pragma once

#include <doctest/doctest.h>
#include <fabricshm/fabricshm.h>

#include <fstream>
#include <string>

#include "tests/multiproc/fabricd/ready.hpp"
#include "tests/support/temporary_directory.hpp"

namespace test_support {

/// A session on a device, with the arena of the job.
struct OnDevice {
    OnDevice(const ReadyDaemon& daemon, const char* device) {
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = daemon.socket().c_str();
        options.device = device;
        REQUIRE(fabricshm_session_open(&options, &session) == 0);
        REQUIRE(fabricshm_arena_open(session, "job", 8 << 20, 0, &arena) == 0);
    }
    ~OnDevice() { fabricshm_session_close(session); }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

    fabricshm_session* session = nullptr;
    fabricshm_arena* arena = nullptr;
};

/// A device file with "near" and "far", alike. `has_nodes`: next to the NUMA nodes 0 and 1.
inline std::string two_devices(const TemporaryDirectory& directory, bool has_nodes) {
    const std::string file = directory.path() + "/devices.toml";
    std::ofstream devices(file);
    int node = 0;
    for (const char* name : {"near", "far"}) {
        devices << "[[device]]\nname = '" << name << "'\nkind = 'npu'\ngflops = 3\n"
                << "memory = '1GiB'\nvgpu_memory = '8MiB'\nlink_gbytes_per_s = 8\n";
        if (has_nodes) devices << "numa_node = " << node++ << "\n";
    }
    return file;
}

}  // namespace test_support
