// fabricd and fabricctl with a device file that names a GPU.

#include <doctest/doctest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "tests/support/fabricd_process.hpp"
#include "tests/support/program.hpp"
#include "tests/support/temporary_directory.hpp"

TEST_SUITE_BEGIN("vgpu.ctl");

using test_support::FabricdProcess;
using test_support::Output;
using test_support::TemporaryDirectory;

namespace {

constexpr const char* kDevices = R"([[device]]
name = "a"
kind = "gpu"
gflops = 60000.0
memory = "1GiB"
link_gbytes_per_s = 50.0
gpu = "0"
vgpu_memory = "256MiB"
vgpu_share_percent = 50
vgpu_reserve = "256MiB"
)";

bool holds(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

struct Host {
    TemporaryDirectory folder;
    std::unique_ptr<FabricdProcess> daemon;

    explicit Host(const std::string& devices) {
        std::ofstream(folder.file("devices.toml")) << devices;
        daemon = std::make_unique<FabricdProcess>(
            folder.path(), "",
            std::vector<std::string>{"--devices-file=" + folder.file("devices.toml")});
    }
    Output ctl(std::vector<std::string> words) {
        words.insert(words.begin(), FABRICCTL_PATH);
        words.push_back("--socket=" + folder.file("admin.sock"));
        Output output;
        // Exit code 3: not listening yet.
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (std::chrono::steady_clock::now() < until) {
            output = test_support::run_program(words);
            if (output.code != 3 || daemon->ended()) break;
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        return output;
    }
};

}  // namespace

TEST_CASE("vGPUs are shown and changed while the daemon runs") {
    Host host(kDevices);
    const auto first = host.ctl({"vgpus", "--json"});
    CHECK(first.code == 0);
    CHECK(holds(first.out, "\"quota_bytes\":268435456"));
    CHECK(holds(first.out, "\"share_percent\":50"));
    CHECK(holds(first.out, "\"denied_bytes\":0"));
    CHECK(holds(first.out, "\"busy_ns\":null"));
    CHECK(holds(host.ctl({"vgpus"}).out, "BYTES REFUSED"));
    CHECK(holds(host.ctl({"vgpus"}).out, "256 MiB"));
    const auto grown = host.ctl({"vgpu-resize", "a", "768MiB", "--json"});
    CHECK(grown.code == 0);
    CHECK(holds(grown.out, "\"quota_bytes\":805306368"));
    CHECK(holds(host.ctl({"vgpu-share", "a", "20"}).out, "20 %"));
    const auto too_much = host.ctl({"vgpu-resize", "a", "769MiB"});
    CHECK(too_much.code == 1);
    CHECK(holds(too_much.error, "for vGPUs and the others have "));
    CHECK(host.ctl({"vgpu-share", "b", "20"}).code == 1);
    CHECK(host.ctl({"vgpu-resize", "a", "much"}).code == 2);
    CHECK(host.ctl({"vgpu-share", "a", "101"}).code == 2);
    CHECK(host.ctl({"vgpu-resize", "a"}).code == 2);
}

TEST_CASE("fabric-vgpu-check names what the host's driver has and the shim has not") {
    const auto check = [](const std::string& folder, const std::string& option) {
        return test_support::run_program({VGPU_CHECK_PATH, option}, {{"LD_LIBRARY_PATH", folder}});
    };
    const auto found = check(GPU_MOCK_FOLDER, "--json");
    CHECK(found.code == 1);
    CHECK(holds(found.out, "\"uncovered\":[\"cuLaunchKernelFromTheFuture\"]"));
    CHECK(check(GPU_MOCK_FOLDER, "--version").code == 0);
    CHECK(check(GPU_MOCK_FOLDER, "--help").code == 0);
    CHECK(check(GPU_MOCK_FOLDER, "--nonsense").code == 2);
}

TEST_CASE("quotas that do not fit their GPU end the start with one line and exit code 2") {
    const TemporaryDirectory folder;
    std::ofstream(folder.file("devices.toml"))
        << kDevices << "[[device]]\nname = \"b\"\nkind = \"gpu\"\ngflops = 1.0\nmemory = \"1GiB\"\n"
        << "link_gbytes_per_s = 1.0\ngpu = \"0\"\nvgpu_memory = \"768MiB\"\n";
    const auto output = test_support::run_program(
        {FABRICD_PATH, "--config=/dev/null", "--server-runtime-dir=" + folder.path(),
         "--pool-capacity=64MiB", "--log-level=error",
         "--devices-file=" + folder.file("devices.toml")});
    CHECK(output.code == 2);
    CHECK(holds(output.error, "vgpu_memory"));
    CHECK(holds(output.error, "devices.file"));
}

TEST_SUITE_END();
