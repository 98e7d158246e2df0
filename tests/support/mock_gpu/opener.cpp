// A process that opens memory of others as ranks of a device group do, with the driver found as
// libfabricshm finds it: the quota shim, where it is preloaded, is in between. Steered as
// player.cpp is; answers `ok` or the number of an Errc.

#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "libfabricshm/cuda/opened_memory.hpp"

using namespace fabricshm;

namespace {

std::string answer(const Error& error) {
    return std::to_string(static_cast<int>(error.code));
}

class Opener {
  public:
    std::string start() {
        auto driver = gpu::Driver::find();
        if (!driver.ok()) return answer(driver.error());
        auto device = gpu::DeviceContext::open(**driver, 0, {"code", "code"});
        if (!device.ok()) return answer(device.error());
        device_ = std::move(device).value();
        return "ok";
    }

    // The mock's handle of memory of another process is its size.
    std::string open(std::uint64_t bytes) {
        cuda::IpcHandle handle{};
        std::memcpy(handle.bytes, &bytes, sizeof bytes);
        auto opened = gpu::OpenedMemory::open(device_, handle, 1);
        if (!opened.ok()) return answer(opened.error());
        if (opened->bytes() != bytes) return "wrong size";
        opened_.push_back(std::make_unique<gpu::OpenedMemory>(std::move(opened).value()));
        return "ok";
    }

    std::string close() {
        opened_.pop_back();
        return "ok";
    }

  private:
    std::shared_ptr<gpu::DeviceContext> device_;
    std::vector<std::unique_ptr<gpu::OpenedMemory>> opened_;
};

}  // namespace

int main() {
    Opener opener;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream text(line);
        std::string word;
        std::uint64_t bytes = 0;
        text >> word >> bytes;
        std::string said = "no such command";
        if (word == "init") said = "ok";
        if (word == "context") said = opener.start();
        if (word == "open") said = opener.open(bytes);
        if (word == "close") said = opener.close();
        std::cout << said << std::endl;
    }
    return 0;
}
