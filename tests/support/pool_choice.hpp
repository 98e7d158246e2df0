// Which pool the multi-process tests run on: FABRIC_TEST_POOL, so that the same programs prove the
// same things on emulated memory here and on DAX devices and memory nodes in a virtual machine.

#pragma once

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace test_support {

/// FABRIC_TEST_POOL is "emu" (also when it is not set), "dax:/dev/dax0.0", "numa:1", or
/// "dax:/dev/dax0.0,/dev/dax1.0" for a pool that is striped over several devices.
struct PoolChoice {
    std::string backend = "emu";
    std::string where;  // the devices or the node

    static PoolChoice from_environment() {
        const char* text = std::getenv("FABRIC_TEST_POOL");
        if (text == nullptr || *text == '\0') return {};
        const std::string whole = text;
        const auto colon = whole.find(':');
        if (colon == std::string::npos) return {whole, ""};
        return {whole.substr(0, colon), whole.substr(colon + 1)};
    }

    /// Of a dax pool.
    std::vector<std::string> devices() const {
        std::vector<std::string> paths;
        std::istringstream words(where);
        for (std::string word; std::getline(words, word, ',');) paths.push_back(word);
        return paths;
    }

    /// For the command line of fabricd.
    std::vector<std::string> options() const {
        std::vector<std::string> words{"--pool-backend=" + backend};
        // All of the device, whatever size the test would like.
        if (backend == "dax") {
            const std::string key = devices().size() == 1 ? "device" : "devices";
            words.insert(words.end(), {"--pool-dax-" + key + "=" + where, "--pool-capacity=0"});
        }
        if (backend == "numa") words.push_back("--pool-numa-node=" + where);
        return words;
    }
};

}  // namespace test_support
