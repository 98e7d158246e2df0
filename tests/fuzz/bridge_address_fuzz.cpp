// --listen of fabric-metrics-bridge: what is taken reads back as the same address and port, and
// what is not changes nothing.

#include "fabricd/bridge/metrics_bridge.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

void run(fuzz::Data data) {
    const std::string text = fuzz::Input::text_of(data);
    const fabricd::BridgeOptions before;
    fabricd::BridgeOptions taken;
    if (!fabricd::parse_listen(text, taken)) {
        FUZZ_REQUIRE(taken.address == before.address && taken.port == before.port);
        return;
    }
    FUZZ_REQUIRE(!taken.address.empty() && text.starts_with(taken.address + ":"));
    fabricd::BridgeOptions again;
    FUZZ_REQUIRE(fabricd::parse_listen(taken.address + ":" + std::to_string(taken.port), again));
    FUZZ_REQUIRE(again.address == taken.address && again.port == taken.port);
}

std::vector<fuzz::Buffer> seeds() {
    std::vector<fuzz::Buffer> all;
    for (const std::string_view text : {"127.0.0.1:9464", "0.0.0.0:0", "127.0.0.1:65535",
                                        "127.0.0.1:65536", "127.0.0.1:", ":9464", "::1:9464",
                                        "localhost:09464", "127.0.0.1:-1", "127.0.0.1:9464 "}) {
        const auto bytes = std::as_bytes(std::span(text));
        all.emplace_back(bytes.begin(), bytes.end());
    }
    return all;
}

const fuzz::Registered kTarget({"bridge_address", run, seeds});

}  // namespace
