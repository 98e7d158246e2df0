#include "fabricd/ctl/discover_view.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

using namespace fabricd;
using namespace fabricshm;
using nlohmann::json;

namespace {

Discovery cxl_host() {
    Discovery found;
    found.processors = {2, 16, 32, 32 * kMiB};
    found.available = 64 * kGiB;
    found.nodes = {
        {0, "0-31", 64 * kGiB, 32 * kGiB, 0, 0, false, {}},
        {1, "", 128 * kGiB, 128 * kGiB, 0, kGiB, true, MemoryRating{250, 260, 30000, 20000, {0}}}};
    DaxInfo dax;
    dax.name = "dax0.0";
    dax.path = "/dev/dax0.0";
    dax.driver = "device_dax";
    dax.bytes = 256 * kGiB;
    dax.align = 2 * kMiB;
    dax.is_usable = true;
    dax.contents = DaxContents::kCatalogue;
    dax.uuid = "00112233-4455-6677-8899-aabbccddeeff";
    dax.arenas = 3;
    found.dax = {dax};
    found.cxl_memories = {{"mem0", "0x1", 0, 128 * kGiB, 0}};
    found.cxl_regions = {{"region0", 0x1000, 128 * kGiB, "ram"}};
    return found;
}

}  // namespace

TEST_SUITE("ctl.discover_view") {
    TEST_CASE("people see nodes, devices, regions and the choice with its reasons") {
        const Discovery found = cxl_host();
        const std::string text = discover_text(found, choose_backend(found));
        for (const char* part :
             {"2 packages, 16 cores, 32 threads", "250", "/dev/dax0.0", "catalogue", "mem0",
              "region, ram", "takes numa: node 1 has 128 GiB", "not dax: /dev/dax0.0"}) {
            CAPTURE(part);
            CHECK(text.find(part) != std::string::npos);
        }
    }

    TEST_CASE("a device of a pool of several says which it is") {
        Discovery found = cxl_host();
        found.dax[0].devices = 3;
        CHECK(discover_text(found, choose_backend(found)).find("catalogue, 1 of 3") !=
              std::string::npos);
        found.dax[0].device = 2;
        const json view = json::parse(discover_json(found, choose_backend(found)));
        CHECK(view["dax"][0]["holds"] == "label, 3 of 3");
        CHECK(view["dax"][0]["device"] == 3);
    }

    TEST_CASE("programs get the same as JSON") {
        const Discovery found = cxl_host();
        const json view = json::parse(discover_json(found, choose_backend(found)));
        CHECK(view["nodes"][1]["rating"]["read_latency_ns"] == 250);
        CHECK(view["nodes"][0]["rating"].is_null());
        CHECK(view["dax"][0]["holds"] == "catalogue");
        CHECK(view["dax"][0]["arenas"] == 3);
        CHECK(view["cxl"]["regions"][0]["bytes"] == 128 * kGiB);
        CHECK(view["choice"]["backend"] == "numa");
        CHECK(view["choice"]["node"] == 1);
        CHECK(view["choice"]["not_taken"].size() == 2);
    }

    TEST_CASE("a host with nothing shows short tables") {
        const std::string text = discover_text({}, choose_backend({}));
        CHECK(text.find("emulates") == std::string::npos);
        const std::string slow = discover_text({}, choose_backend({}), "rdma: read 4500 ns");
        CHECK(slow.find("emulates rdma: read 4500 ns.\n") != std::string::npos);
        CHECK(text.find("takes emu") != std::string::npos);
        CHECK(text.find("DEVICE") == std::string::npos);
    }
}
