// One target as a libFuzzer program. With FUZZ_WRITE_SEEDS=FOLDER it writes the target's seeds
// there and ends.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "libfabricshm/base/log.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace {

const fuzz::Target& target() {
    return fuzz::targets().front();
}

void change(fuzz::Buffer& bytes, std::size_t most) {
    const std::size_t size = bytes.size();
    bytes.resize(std::max(most, size));
    auto* const data = reinterpret_cast<std::uint8_t*>(bytes.data());
    bytes.resize(LLVMFuzzerMutate(data, size, bytes.size()));
}

[[noreturn]] void write_seeds(const std::string& folder) {
    int number = 0;
    for (const fuzz::Buffer& seed : target().seeds()) {
        const std::string path = folder + "/seed-" + std::to_string(number++);
        std::ofstream file(path, std::ios::binary | std::ios::trunc);
        file.write(reinterpret_cast<const char*>(seed.data()),
                   static_cast<std::streamsize>(seed.size()));
        if (file.flush()) continue;
        std::fprintf(stderr, "%s: can't be written\n", path.c_str());
        std::exit(1);
    }
    std::exit(0);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    // Refusals are what most inputs come to.
    fabricshm::set_log_level(fabricshm::LogLevel::kOff);
    if (const char* folder = std::getenv("FUZZ_WRITE_SEEDS"); folder != nullptr)
        write_seeds(folder);
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    target().run(std::as_bytes(std::span(data, size)));
    return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned int random) {
    if (target().mutate == nullptr) return LLVMFuzzerMutate(data, size, most);
    const auto bytes = std::as_bytes(std::span(data, size));
    fuzz::Buffer changed(bytes.begin(), bytes.end());
    target().mutate(changed, most, random, change);
    changed.resize(std::min(changed.size(), most));
    if (!changed.empty()) std::memcpy(data, changed.data(), changed.size());
    return changed.size();
}
