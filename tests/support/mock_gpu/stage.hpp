// A simulated GPU, the daemon's part for its vGPUs, and processes that use it: for tests.

#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "fabricd/vgpu/vgpu_limits.hpp"
#include "fabricd/vgpu/vgpu_server.hpp"
#include "tests/support/mock_gpu/device.hpp"
#include "tests/support/temporary_directory.hpp"

namespace mock_gpu {

/// One process of support/mock_gpu/player.cpp with the shim preloaded.
class Player {
  public:
    /// `environment`: NAME=VALUE, over that of the stage. `program`: another one that is steered in
    /// the same way; "": player.cpp.
    explicit Player(const std::vector<std::string>& environment, std::string program = "");
    ~Player();
    Player(const Player&) = delete;
    Player& operator=(const Player&) = delete;

    /// Sends a command and returns its answer; "dead" when the process ended, "late" after 60 s.
    std::string ask(const std::string& command);
    /// In two halves, so that many can be at work at the same time.
    void tell(const std::string& command);
    std::string answer();

    /// The numbers of an answer that begins with "ok".
    std::vector<std::uint64_t> numbers(const std::string& command);

    pid_t pid() const noexcept { return pid_; }
    void kill();

  private:
    pid_t pid_ = -1;
    int to_ = -1;
    int from_ = -1;
    std::string pending_;
};

/// The GPU "0" of `capacity` bytes and the daemon's part with the given vGPUs.
class Stage {
  public:
    explicit Stage(std::vector<fabricd::VgpuSpec> specs, std::uint64_t capacity = 1U << 30,
                   std::uint64_t context_bytes = 0);

    /// A process on the vGPU `name`, after cuInit and with a context. "": on none; "bare": without
    /// the shim at all, where that can be left out.
    std::unique_ptr<Player> player(const std::string& name,
                                   const std::vector<std::string>& environment = {},
                                   const std::string& program = "");

    fabricd::VgpuLimits& limits() { return *limits_; }
    fabricd::VgpuView view(const std::string& name);
    Device& gpu() { return *gpu_; }
    const std::string& folder() const { return directory_.path(); }

    /// The daemon goes, and comes back.
    void stop_daemon();
    void start_daemon();

    /// Waits until the vGPU's use is `bytes`; false after 30 s.
    bool settles_at(const std::string& name, std::uint64_t bytes);

  private:
    test_support::TemporaryDirectory directory_;
    std::vector<fabricd::VgpuSpec> specs_;
    Device* gpu_;
    std::unique_ptr<fabricd::VgpuLimits> limits_;
    std::unique_ptr<fabricd::VgpuServer> server_;
};

/// runtime_player.cpp, once for each form of the CUDA runtime that CMake has found; has_kernel():
/// whether they have a kernel to launch; runtime_version(): as "10.1.243", "" without a toolkit.
std::vector<std::string> runtime_programs();
bool has_kernel();
std::string runtime_version();

/// A vGPU of the stage's GPU.
fabricd::VgpuSpec slice(const std::string& name, std::uint64_t quota, std::uint32_t share = 100);

}  // namespace mock_gpu
