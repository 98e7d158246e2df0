// fabric-vgpu-check: which functions of this host's CUDA driver libfabricvgpu.so does not cover.

#include <cstdio>
#include <cstring>

#include "libfabricshm/base/version.hpp"
#include "libfabricshm/vgpu/driver.hpp"
#include "libfabricshm/vgpu/self_check.hpp"

namespace {

constexpr const char* kHelp =
    "usage: fabric-vgpu-check [--json] [--help] [--version]\n"
    "Lists the functions of this host's CUDA driver (libcuda.so.1) that allocate, import, launch "
    "or\n"
    "report sizes and that libfabricvgpu.so lets pass uncounted. Needs no GPU.\n"
    "Exit codes: 0 none, 1 some, 2 wrong usage, 3 there is no driver.\n";

void print_json(const std::vector<std::string>& missing, std::size_t exports) {
    std::printf("{\"exports\":%zu,\"entries\":%d,\"uncovered\":[", exports,
                fabricshm::cuda::kEntryCount);
    // Names of functions need no escapes.
    for (std::size_t i = 0; i < missing.size(); ++i) {
        std::printf("%s\"%s\"", i == 0 ? "" : ",", missing[i].c_str());
    }
    std::printf("]}\n");
}

}  // namespace

int main(int argc, char** argv) {
    bool json = false;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--help") == 0) return std::fputs(kHelp, stdout) < 0;
        if (std::strcmp(argv[i], "--version") == 0) {
            return std::printf("fabric-vgpu-check %s\n", FABRIC_VERSION) < 0;
        }
        if (std::strcmp(argv[i], "--json") != 0) {
            std::fprintf(stderr, "fabric-vgpu-check: unknown option %s (--help)\n", argv[i]);
            return 2;
        }
        json = true;
    }
    const auto exports = fabricshm::cuda::driver_exports();
    if (exports.empty()) {
        std::fprintf(stderr, "fabric-vgpu-check: there is no libcuda.so.1\n");
        return 3;
    }
    const auto missing = fabricshm::cuda::uncovered(exports);
    if (json) {
        print_json(missing, exports.size());
    } else {
        for (const auto& name : missing) std::printf("%s\n", name.c_str());
    }
    return missing.empty() ? 0 : 1;
}
