// A fault plan. What is accepted can be run: its targets mean ranks, and what it arms is read by
// the library as it was meant.

#include "emu/faults/fault_plan.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace emu;

namespace {

// As libfabricshm/base/fault_point.cpp takes FABRIC_FAULT apart:
// process@point:action:count[:argument].
void require_entries(const std::string& armed, const FaultPlan& plan) {
    std::size_t begin = 0;
    while (begin < armed.size()) {
        const std::size_t end = std::min(armed.find(';', begin), armed.size());
        const std::string entry = armed.substr(begin, end - begin);
        begin = end + 1;
        const std::size_t at = entry.find('@');
        const std::size_t colon = entry.find(':', at);
        FUZZ_REQUIRE(at != std::string::npos && colon != std::string::npos);
        const std::string point = entry.substr(at + 1, colon - at - 1);
        const std::string action = entry.substr(colon + 1, entry.find(':', colon + 1) - colon - 1);
        const bool meant =
            std::any_of(plan.faults.begin(), plan.faults.end(), [&](const Fault& fault) {
                const Action alone = fault.action == Action::kTear ? Action::kKill : fault.action;
                return fault.point == point && text_of(alone) == action;
            });
        FUZZ_REQUIRE(meant);
    }
}

void run(fuzz::Data input) {
    const ParsedPlan parsed = parse_plan(fuzz::Input::text_of(input), "plan");
    FUZZ_REQUIRE(parsed.plan.has_value() == parsed.error_message.empty());
    if (!parsed.plan) {
        FUZZ_REQUIRE(parsed.error_message.starts_with("plan"));
        return;
    }
    for (const Fault& fault : parsed.plan->faults) {
        FUZZ_REQUIRE(fault.passage >= 1);
        FUZZ_REQUIRE(fault.after >= Duration::zero() && fault.delay >= Duration::zero());
        FUZZ_REQUIRE(!text_of(fault.target).empty());
        for (const int rank : ranks_of(*parsed.plan, fault.target)) FUZZ_REQUIRE(rank >= 0);
    }
    require_entries(armed_in_ranks(*parsed.plan), *parsed.plan);
    require_entries(armed_in_daemon(*parsed.plan), *parsed.plan);
}

std::vector<fuzz::Buffer> seeds() {
    const std::string head =
        "[hosts]\nleft = [0, 1]\n[devices]\ngpu0 = [2]\n"
        "[daemon]\nprogram = \"fabricd\"\narguments = [\"--pool-capacity=1GiB\"]\n";
    const std::string fault = "[[fault]]\n";
    return {
        fuzz::buffer_of(head + fault +
                        "action = \"stop\"\ntarget = \"host left\"\nafter = \"250ms\"\n"
                        "for = \"2s\"\n"),
        fuzz::buffer_of(head + fault +
                        "action = \"slow\"\ntarget = \"device gpu0\"\n"
                        "point = \"arrive.met\"\npassage = 3\ndelay = \"500us\"\n"),
        fuzz::buffer_of(head + fault +
                        "action = \"poison\"\ntarget = \"rank 4\"\noperations = 10\n"
                        "offset = \"64KiB\"\n"),
        fuzz::buffer_of(head + fault +
                        "action = \"tear\"\ntarget = \"daemon\"\n"
                        "point = \"journal.append.after\"\npassage = 20\ndamage = \"cut\"\n"),
        fuzz::buffer_of(head + fault + "action = \"fill\"\nafter = \"1s\"\n" + fault +
                        "action = \"kill\"\ntarget = \"daemon\"\nafter = \"2s\"\n"
                        "restart = false\n"),
    };
}

const fuzz::Registered kTarget({"fault_plan", run, seeds});

}  // namespace
