#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "libfabricshm/vgpu/driver.hpp"
#include "libfabricshm/vgpu/hooks.hpp"
#include "libfabricshm/vgpu/self_check.hpp"

TEST_SUITE_BEGIN("vgpu.entries");

using namespace fabricshm::cuda;

TEST_CASE("every line of the table is found by its symbol and stands alone") {
    std::set<std::string> symbols;
    for (int i = 0; i < kEntryCount; ++i) {
        const EntryInfo& line = info_of(static_cast<Entry>(i));
        CHECK(symbols.insert(line.symbol).second);
        CHECK(find_entry(line.symbol) == &line);
        CHECK(line.wrapper != nullptr);
    }
    CHECK(find_entry("cuMemAlloc_v9") == nullptr);
    CHECK(find_entry("malloc") == nullptr);
    CHECK(find_entry(nullptr) == nullptr);
}

TEST_CASE("the forms of one function have different versions or flavours") {
    std::set<std::string> forms;
    for (int i = 0; i < kEntryCount; ++i) {
        const EntryInfo& line = info_of(static_cast<Entry>(i));
        if (line.base[0] == '\0') continue;  // NVML
        CHECK(std::strncmp(line.symbol, line.base, std::strlen(line.base)) == 0);
        const bool is_per_thread = std::string(line.symbol).find("_pts") != std::string::npos;
        CHECK(is_per_thread == (line.flavour == kPerThread));
        CHECK(forms
                  .insert(std::string(line.base) + " " + std::to_string(line.since) + " " +
                          std::to_string(line.flavour))
                  .second);
    }
}

TEST_CASE("a function that the host has not answers in its own library's code") {
    if (real_address(Entry::nvmlDeviceGetMemoryInfo) == nullptr) {
        CHECK(nvmlDeviceGetMemoryInfo(nullptr, nullptr) == kNvmlNoFunction);
    }
    if (real_address(Entry::cuMemFree_v2) == nullptr) CHECK(cuMemFree_v2(0) == kNoDevice);
}

TEST_CASE("a function that could take memory or compute past the table is named") {
    const auto found = uncovered({"cuMemAlloc_v2", "cuMemAlloc_v3", "cuLaunchKernelTomorrow",
                                  "cuStreamCreate", "cuMemAllocHost_v2", "cuCtxCreate_v5"});
    CHECK(found ==
          std::vector<std::string>{"cuCtxCreate_v5", "cuLaunchKernelTomorrow", "cuMemAlloc_v3"});
}

TEST_SUITE_END();
