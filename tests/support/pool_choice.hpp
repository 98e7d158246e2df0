// Which pool the multi-process tests run on: FABRIC_TEST_POOL, so that the same programs prove the
// same things on emulated memory here and on DAX devices and memory nodes in a virtual machine.

#pragma once

#include <cstdlib>
#include <string>
#include <vector>

namespace test_support {

/// FABRIC_TEST_POOL is "emu" (also when it is not set), "dax:/dev/dax0.0" or "numa:1".
struct PoolChoice {
    std::string backend = "emu";
    std::string where;  // the device or the node

    static PoolChoice from_environment() {
        const char* text = std::getenv("FABRIC_TEST_POOL");
        if (text == nullptr || *text == '\0') return {};
        const std::string whole = text;
        const auto colon = whole.find(':');
        if (colon == std::string::npos) return {whole, ""};
        return {whole.substr(0, colon), whole.substr(colon + 1)};
    }

    /// For the command line of fabricd.
    std::vector<std::string> options() const {
        std::vector<std::string> words{"--pool-backend=" + backend};
        // All of the device, whatever size the test would like.
        if (backend == "dax") {
            words.insert(words.end(), {"--pool-dax-device=" + where, "--pool-capacity=0"});
        }
        if (backend == "numa") words.push_back("--pool-numa-node=" + where);
        return words;
    }
};

}  // namespace test_support
