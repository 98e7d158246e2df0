#include "emu/faults/fault_plan.hpp"

#include <doctest/doctest.h>

#include <filesystem>

using namespace emu;
using namespace std::chrono_literals;

namespace {

std::string error_message_of(const std::string& text) {
    const ParsedPlan parsed = parse_plan(text, "plan");
    CHECK(parsed.plan.has_value() == parsed.error_message.empty());
    return parsed.error_message;
}

FaultPlan plan_of(const std::string& text) {
    const ParsedPlan parsed = parse_plan(text, "plan");
    REQUIRE_MESSAGE(parsed.plan.has_value(), parsed.error_message);
    return *parsed.plan;
}

}  // namespace

TEST_SUITE("emu.fault_plan") {
    TEST_CASE("a plan says what, to which process and when") {
        const FaultPlan plan = plan_of(R"(
            [hosts]
            left = [0, 1]
            [devices]
            gpu0 = [2]
            [daemon]
            arguments = ["--pool-capacity=1GiB"]
            [[fault]]
            action = "stop"
            target = "host left"
            after = "250ms"
            for = "2s"
            [[fault]]
            action = "slow"
            target = "device gpu0"
            point = "arrive.met"
            passage = 3
            delay = "500us"
            [[fault]]
            action = "poison"
            target = "rank 4"
            operations = 10
            offset = "64KiB"
        )");
        REQUIRE(plan.faults.size() == 3);
        CHECK(plan.faults[0].action == Action::kStop);
        CHECK(plan.faults[0].after == 250ms);
        CHECK(plan.faults[0].length == 2s);
        CHECK(ranks_of(plan, plan.faults[0].target) == std::vector<int>{0, 1});
        CHECK(plan.faults[1].delay == 500us);
        CHECK(plan.faults[2].point == "operation.begin");
        CHECK(plan.faults[2].passage == 11);
        CHECK(plan.own_daemon);
        CHECK(armed_in_ranks(plan) ==
              "rank=2@arrive.met:slow:3:500;rank=4@operation.begin:poison:11:65536");
        CHECK(armed_in_daemon(plan).empty());
    }

    TEST_CASE("what is for the daemon is armed there, and tearing begins with its death") {
        const FaultPlan plan = plan_of(R"(
            [daemon]
            [[fault]]
            action = "tear"
            target = "daemon"
            point = "journal.append.after"
            passage = 7
            damage = "flip"
            [[fault]]
            action = "kill"
            target = "device npu1"
            point = "arrive.met"
        )");
        CHECK(armed_in_daemon(plan) == "daemon@journal.append.after:kill:7");
        CHECK(armed_in_ranks(plan) == "device=npu1@arrive.met:kill:1");
        CHECK(plan.faults[0].damage == Damage::kFlip);
    }

    TEST_CASE("what is wrong is named with its line and key") {
        CHECK(error_message_of("") == "plan: there is no [[fault]]");
        CHECK(error_message_of("[[fault]\n").find("plan:1: ") == 0);
        CHECK(error_message_of("[fault]\naction = \"kill\"\n").find("\"fault\"") !=
              std::string::npos);
        CHECK(error_message_of("\n[[fault]]\naction = \"melt\"\n").find("plan:2: action") == 0);
        const std::string kill = "[[fault]]\naction = \"kill\"\n";
        CHECK(error_message_of(kill + "target = \"rank x\"\nafter = \"1s\"\n").find("target") !=
              std::string::npos);
        CHECK(error_message_of(kill + "target = \"host h\"\nafter = \"1s\"\n").find("[hosts]") !=
              std::string::npos);
        CHECK(error_message_of(kill + "target = \"daemon\"\nafter = \"1s\"\n").find("[daemon]") !=
              std::string::npos);
        CHECK(error_message_of(kill + "target = \"rank 1\"\n").find("point is missing") !=
              std::string::npos);
        CHECK(error_message_of(kill + "target = \"rank 1\"\nafter = \"1\"\n").find("unit") !=
              std::string::npos);
        CHECK(error_message_of(kill + "target = \"rank 1\"\nafter = \"1s\"\npoint = \"a\"\n")
                  .find("exclude") != std::string::npos);
        CHECK(error_message_of(kill + "target = \"rank 1\"\nafter = \"1s\"\nwhen = 1\n")
                  .find("\"when\" is no key") != std::string::npos);
        CHECK(error_message_of("[daemon]\n[[fault]]\naction = \"tear\"\ntarget = \"daemon\"\n"
                               "after = \"1s\"\n")
                  .find("journal.append.after") != std::string::npos);
        CHECK(error_message_of("[hosts]\na = 1\n" + kill + "target = \"host a\"\nafter = \"1s\"\n")
                  .find("list of ranks") != std::string::npos);
    }

    // They are joined into one text for the library, which takes it apart at these characters.
    TEST_CASE("names that would arm another fault are refused, and no count overflows") {
        const std::string kill = "[[fault]]\naction = \"kill\"\n";
        for (const char* point : {"a:slow", "a;b"}) {
            const std::string text = kill + "target = \"rank 1\"\npoint = \"" + point + "\"\n";
            CHECK(error_message_of(text).find("point is the name") != std::string::npos);
        }
        CHECK(error_message_of(kill + "target = \"device a;b\"\npoint = \"p\"\n").find("target") !=
              std::string::npos);
        const FaultPlan plan =
            plan_of(kill + "target = \"rank 1\"\noperations = 9223372036854775807\n");
        CHECK(plan.faults[0].passage > 0);
    }

    TEST_CASE("the plans among the examples can be read") {
        int plans = 0;
        for (const auto& entry :
             std::filesystem::directory_iterator(FABRIC_SOURCE_DIR "/examples/faults")) {
            const ParsedPlan parsed = read_plan(entry.path().string());
            CHECK_MESSAGE(parsed.plan.has_value(), parsed.error_message);
            ++plans;
        }
        CHECK(plans >= 3);
    }
}
