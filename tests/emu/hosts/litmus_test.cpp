// fabric-litmus from outside: verdicts, exit codes, refusals.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "libfabricshm/machine/visibility_proof.hpp"
#include "tests/support/program.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace test_support;

namespace {

Output litmus(std::vector<std::string> words) {
    words.insert(words.begin(), {FABRIC_LITMUS_PATH, "--rounds", "200"});
    return run_program(words);
}

}  // namespace

TEST_SUITE("emu.hosts.litmus") {
    TEST_CASE("two processes do not refute a profile of this machine, and the record says so") {
        TemporaryDirectory folder;
        const std::string record = folder.path() + "/proof";
        CHECK(litmus({"--profile", "clflush", "--timeout", "60", "--record", record}).code == 0);
        std::ifstream file(record);
        std::stringstream text;
        text << file.rdbuf();
        const auto proof = fabricshm::parse_proof(text.str());
        REQUIRE(proof.ok());
        CHECK(proof->proven);
        CHECK(proof->profile == "clflush");
        CHECK(proof->hosts == 1);
        CHECK(proof->machine == fabricshm::machine_fingerprint());
    }

    TEST_CASE("the record names the memory by an absolute path, as pool.dax_device does") {
        TemporaryDirectory folder;
        const std::string memory = folder.path() + "/memory";
        const std::string record = folder.path() + "/proof";
        std::ofstream(memory) << std::string(2 * 4096, '\0');
        for (const std::string& named :
             {memory, "./" + std::filesystem::relative(memory).string()}) {
            CAPTURE(named);
            CHECK(litmus({"--profile", "clflush", "--timeout", "60", "--memory", named, "--record",
                          record})
                      .code == 0);
            std::stringstream text;
            text << std::ifstream(record).rdbuf();
            const auto proof = fabricshm::parse_proof(text.str());
            REQUIRE(proof.ok());
            CHECK(proof->device == memory);
        }
    }

    TEST_CASE("two roles over one file find each other, whichever is started first") {
        TemporaryDirectory folder;
        const std::string memory = folder.path() + "/memory";
        std::ofstream(memory) << std::string(2 * 4096, '\0');
        const auto role = [&](const char* name) {
            return litmus(
                {"--profile", "clflush", "--timeout", "60", "--memory", memory, "--role", name});
        };
        Output second;
        std::thread later([&] { second = role("b"); });
        // What role a clears: role b has spoken already.
        for (std::string bytes(2 * 4096, '\0'); bytes.find_first_not_of('\0') == bytes.npos;) {
            std::ifstream(memory).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
            std::this_thread::yield();
        }
        CHECK(role("a").code == 0);
        later.join();
        CHECK(second.code == 0);
    }

    TEST_CASE("on emulated hosts the right seam passes, a flush and a forgotten publish do not") {
        const auto emulated = [](const std::string& profile, std::vector<std::string> more) {
            more.insert(more.begin(), {"--emulate-hosts", "--json", "--profile", profile});
            return litmus(more);
        };
        CHECK(emulated("emulated", {"--timeout", "60"}).code == 0);
        const Output flushed = emulated("clflush", {"--timeout", "1"});
        CHECK(flushed.code == 1);
        CHECK(flushed.out.find("\"verdict\": \"refuted\"") != std::string::npos);
        CHECK(emulated("coherent", {"--timeout", "1"}).code == 1);
        const Output forgot = emulated("emulated", {"--leave-out", "message.publish"});
        CHECK(forgot.code == 1);
        CHECK(forgot.out.find("\"stale\": 0,") == std::string::npos);
    }

    TEST_CASE("what cannot be is refused with exit code 2 and the option's name") {
        const auto refused = [](const std::vector<std::string>& words, const char* name) {
            const Output output = litmus(words);
            return output.code == 2 && output.error.find(name) != std::string::npos;
        };
        CHECK(refused({"--profile", "magic"}, "--profile"));
        CHECK(refused({"--rounds", "0"}, "--rounds"));
        CHECK(refused({"--role", "c"}, "--role"));
        CHECK(refused({"--role", "a"}, "--memory"));
        CHECK(refused({"--memory", "/nonexistent/dax"}, "--memory"));
        CHECK(refused({"--leave-out", "message.publish"}, "--emulate-hosts"));
        CHECK(refused({"more"}, "more"));
    }
}
