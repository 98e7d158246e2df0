#include "fabricd/ctl/ctl_options.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "fabricd/ctl/ctl_command.hpp"
#include "libfabricshm/base/version.hpp"
#include "tests/support/manual_page.hpp"

using namespace fabricd;

namespace {

CtlParse parse(std::vector<const char*> words, CtlOptions& options) {
    words.insert(words.begin(), "fabricctl");
    return parse_ctl_options(static_cast<int>(words.size()), words.data(), options);
}

CtlParse parse(std::vector<const char*> words) {
    CtlOptions options;
    return parse(std::move(words), options);
}

}  // namespace

TEST_SUITE("ctl.ctl_options") {
    TEST_CASE("the manual page has an entry for each command, and no other ones") {
        std::multiset<std::string> names;
        for (const CtlCommand& command : ctl_commands()) names.insert(command.name);
        CHECK(test_support::commands_of_manual(FABRIC_SOURCE_DIR "/docs/man/fabricctl.1") == names);
    }

    TEST_CASE("each command is found, has a help line, and is completed with its options") {
        const CompletedProgram program = ctl_program();
        REQUIRE(program.commands.size() == ctl_commands().size());
        for (std::size_t i = 0; i < ctl_commands().size(); ++i) {
            const CtlCommand& row = ctl_commands()[i];
            CAPTURE(row.name);
            CHECK(find_ctl_command(row.name) == &row);
            CHECK(parse({"--help"}).text.find(row.help) != std::string::npos);
            const CompletedCommand& completed = program.commands[i];
            CHECK(completed.name == row.name);
            const std::string help = parse({row.name, "--help"}).text;
            for (const CtlArgument& argument : row.arguments) {
                CAPTURE(argument.name);
                CHECK(help.find(argument.name) != std::string::npos);
                const auto& options = completed.options;
                // Of "-f,--follow" the long one.
                const std::string name = argument.name;
                const std::string completes = name.substr(name.rfind(',') + 1);
                const bool is_there = std::any_of(
                    options.begin(), options.end(),
                    [&](const CompletedOption& option) { return option.name == completes; });
                CHECK(is_there == (argument.name[0] == '-'));
            }
        }
        CHECK(find_ctl_command("reboot") == nullptr);
    }

    TEST_CASE("jobs takes an action and a job, both of which may be left out") {
        CtlOptions logs;
        REQUIRE_FALSE(parse({"jobs", "logs", "rn50", "-f", "--rank", "0"}, logs).exit);
        CHECK(logs.job.action == "logs");
        CHECK(logs.job.what == "rn50");
        CHECK(logs.job.follow);
        CHECK(logs.job.rank == 0);
        CtlOptions list;
        REQUIRE_FALSE(parse({"jobs"}, list).exit);
        CHECK(list.job.action.empty());
        CHECK(list.job.rank == JobOrder::kAllRanks);
        CHECK(list.job.at_once == 1);
        CtlOptions wrong;
        CHECK(parse({"jobs", "start", "a.toml"}, wrong).exit == CtlExit::kUsage);
        CHECK(parse({"jobs", "serve", "--at-once", "0"}, wrong).exit == CtlExit::kUsage);
    }

    TEST_CASE("jobs remove takes several jobs, or an age with ends") {
        CtlOptions named;
        REQUIRE_FALSE(parse({"jobs", "remove", "3", "etl", "5"}, named).exit);
        CHECK(named.job.what == "3");
        CHECK(named.job.more == std::vector<std::string>{"etl", "5"});
        CHECK_FALSE(named.job.older_than);
        CtlOptions old;
        REQUIRE_FALSE(
            parse({"jobs", "remove", "--state", "ok,failed", "--older-than", "7d"}, old).exit);
        CHECK(old.job.older_than == std::chrono::hours(7 * 24));
        CHECK(old.job.outcomes == std::vector<std::string>{"ok", "failed"});
        CtlOptions wrong;
        CHECK(parse({"jobs", "remove"}, wrong).exit == CtlExit::kUsage);
        CHECK(parse({"jobs", "show", "3", "4"}, wrong).exit == CtlExit::kUsage);
        CHECK(parse({"jobs", "list", "--older-than", "1h"}, wrong).exit == CtlExit::kUsage);
        CHECK(parse({"jobs", "remove", "--older-than", "nan"}, wrong).exit == CtlExit::kUsage);
    }

    TEST_CASE("sizes have units, and a vGPU's is not 0") {
        CtlOptions quota;
        REQUIRE_FALSE(parse({"quota", "user:me", "0", "--grace", "2"}, quota).exit);
        CHECK(quota.quota_bytes == 0);
        CHECK(quota.quota_grace == 2);
        CtlOptions resize;
        REQUIRE_FALSE(parse({"vgpu-resize", "a", "512M"}, resize).exit);
        CHECK(resize.vgpu.quota_bytes == 512U << 20);
        CHECK(parse({"vgpu-resize", "a", "0"}).text.find("BYTES takes a size") !=
              std::string::npos);
        CHECK(parse({"quota", "gpu0", "much"}).text.find("BYTES: not a size: much") !=
              std::string::npos);
        CHECK(parse({"migrate", "a/b", "here", "--limit", "x"}).text.find("--limit: not a size") !=
              std::string::npos);
    }

    TEST_CASE("a command with its options is understood") {
        CtlOptions options;
        REQUIRE_FALSE(parse({"regions", "--arena", "7", "--json", "--socket", "/s"}, options).exit);
        CHECK(options.command == "regions");
        CHECK(options.arena_id == 7);
        CHECK(options.json);
        CHECK(options.socket == "/s");
        CHECK(options.timeout == 5.0);
        REQUIRE_FALSE(parse({"status", "--timeout", "0.5"}, options).exit);
        CHECK(options.timeout == 0.5);
        CHECK(parse({"status", "--timeout", "0"}, options).exit == CtlExit::kUsage);
        CHECK_FALSE(options.watch);
    }

    TEST_CASE("the commands of the control loop take a count, an id, a file and settings") {
        CtlOptions decisions;
        REQUIRE_FALSE(parse({"decisions", "--last", "5", "--json"}, decisions).exit);
        CHECK(decisions.last == 5);
        CtlOptions events;
        REQUIRE_FALSE(parse({"events", "--last", "0"}, events).exit);
        CHECK(events.last == 0);
        CtlOptions why;
        REQUIRE_FALSE(parse({"why", "17"}, why).exit);
        CHECK(why.decision_id == 17);
        CHECK(parse({"why"}).exit == CtlExit::kUsage);
        CtlOptions replay;
        REQUIRE_FALSE(
            parse({"replay", "/j", "--set", "gain=0.1", "--set", "horizon=9"}, replay).exit);
        CHECK(replay.file == "/j");
        CHECK(replay.settings == std::vector<std::string>{"gain=0.1", "horizon=9"});
    }

    TEST_CASE("a wrong word is named, with the one that was meant") {
        const auto said = [](std::vector<const char*> words, const char* part) {
            const CtlParse parsed = parse(std::move(words));
            CHECK(parsed.exit == CtlExit::kUsage);
            CHECK_MESSAGE(parsed.text.find(part) != std::string::npos, parsed.text);
            CHECK(parsed.text.size() < 120);
        };
        said({"statsu"}, "unknown command 'statsu' (did you mean status?)");
        said({"reboot"}, "unknown command 'reboot' (");
        said({"arenas", "--jsn"}, "unknown option '--jsn' (did you mean --json?)");
        said({"--socket", "/s", "jobs", "list"},
             "option '--socket' belongs behind the command: fabricctl jobs ... --socket");
        said({"--json", "arenas"}, "fabricctl arenas ... --json (");
        said({"--socket=/s", "jobs"}, "option '--socket' belongs behind the command");
        said({"--sockt", "/s", "jobs"}, "unknown option '--sockt' (did you mean --socket?)");
        said({"why", "abc"}, "\"abc\" is no whole number from 1 on");
        said({"why", "0"}, "\"0\" is no whole number from 1 on");
        said({"events", "--last", "-1"}, "--last: \"-1\" is no whole number from 0 on");
        said({"why", "99999999999999999999"}, "is no whole number");
        said({}, "a command is missing");
    }

    TEST_CASE("a watch has a default interval, and top is always one") {
        CtlOptions plain;
        REQUIRE_FALSE(parse({"arenas", "--watch"}, plain).exit);
        CHECK(plain.watch == 1.0);
        CtlOptions slow;
        REQUIRE_FALSE(parse({"arenas", "--watch", "2.5", "--count", "3"}, slow).exit);
        CHECK(slow.watch == 2.5);
        CHECK(slow.count == 3);
        CtlOptions top;
        REQUIRE_FALSE(parse({"top", "--count", "1"}, top).exit);
        CHECK(top.watch == 1.0);
    }

    TEST_CASE("drain and shutdown may wait") {
        CtlOptions drain;
        REQUIRE_FALSE(parse({"drain", "--wait", "5"}, drain).exit);
        CHECK(drain.wait == 5.0);
        CtlOptions shutdown;
        REQUIRE_FALSE(parse({"shutdown"}, shutdown).exit);
        CHECK_FALSE(shutdown.wait);
        CtlOptions off;
        REQUIRE_FALSE(parse({"drain", "--off"}, off).exit);
        CHECK(off.drain_off);
    }

    TEST_CASE("hosts takes a name and a confirmation with fence, and neither without") {
        CtlOptions shown;
        REQUIRE_FALSE(parse({"hosts", "--json"}, shown).exit);
        CHECK(shown.host_action.empty());
        CtlOptions fenced;
        REQUIRE_FALSE(parse({"hosts", "fence", "b", "--confirmed"}, fenced).exit);
        CHECK(fenced.subject == "b");
        CHECK(fenced.confirmed);
    }

    TEST_CASE("wrong usage is one line and code 2") {
        for (const auto& words :
             std::vector<std::vector<const char*>>{{},
                                                   {"arnas"},
                                                   {"arenas", "--watch", "0.01"},
                                                   {"arenas", "--watch", "x"},
                                                   {"arenas", "--count", "3"},
                                                   {"arenas", "--arena", "3"},
                                                   {"arenas", "--file", "d.toml"},
                                                   {"devices", "--file", "d", "--watch"},
                                                   {"status", "extra"},
                                                   {"regions", "--arena", "-1"},
                                                   {"discover", "--socket", "/s"},
                                                   {"hosts", "fence"},
                                                   {"hosts", "fence", "--confirmed"},
                                                   {"hosts", "fence", "", "--confirmed"},
                                                   {"hosts", "fence", "b"},
                                                   {"hosts", "fence", "b", "c", "--confirmed"},
                                                   {"hosts", "--confirmed"},
                                                   {"hosts", "burn", "b", "--confirmed"},
                                                   {"status", "arenas"}}) {
            const CtlParse parsed = parse(words);
            CAPTURE(parsed.text);
            CHECK(parsed.exit == CtlExit::kUsage);
            CHECK(parsed.text.find("fabricctl: ") == 0);
            CHECK(parsed.text.find('\n') == parsed.text.size() - 1);
        }
    }

    TEST_CASE("no option and no argument takes an empty value, and each is named") {
        const auto refused = [](const std::string& name, const std::vector<const char*>& words) {
            const auto parsed = parse(words);
            CAPTURE(words.front());
            CAPTURE(parsed.text);
            CHECK(parsed.exit == CtlExit::kUsage);
            CHECK(parsed.text.find(name) != std::string::npos);
        };
        for (const CtlCommand& row : ctl_commands()) {
            std::vector<const char*> words{row.name};
            for (const CtlArgument& argument : row.arguments) {
                if (std::holds_alternative<CtlFlag>(argument.value)) continue;
                const std::string name = argument.name;
                const bool is_option = name[0] == '-';
                const std::string option = is_option ? name.substr(name.find("--")) : "";
                std::vector<const char*> given = words;
                if (is_option) given.push_back(option.c_str());
                given.push_back("");
                refused(is_option ? option : name, given);
                // What stands behind it in its place needs one that is right.
                const auto* text = std::get_if<CtlText>(&argument.value);
                const bool has_words = text != nullptr && !text->words.empty();
                if (!is_option) words.push_back(has_words ? text->words[0].c_str() : "1");
            }
        }
        refused("--socket", {"status", "--socket", ""});
        refused("--timeout", {"status", "--timeout", ""});
        refused("--watch", {"status", "--watch", ""});
        refused("--watch", {"status", "--watch="});
        CHECK_FALSE(parse({"status", "--watch", "--json"}).exit);
    }

    TEST_CASE("help and version are no mistakes") {
        CHECK(parse({"--version"}).text == std::string("fabricctl ") + FABRIC_VERSION + "\n");
        const CtlParse help = parse({"--help"});
        CHECK(help.exit == CtlExit::kOk);
        CHECK(help.text.find("Examples:") != std::string::npos);
        CHECK(help.text.find("Exit codes:") != std::string::npos);
        const CtlParse of_command = parse({"regions", "--help"});
        CHECK(of_command.exit == CtlExit::kOk);
        CHECK(of_command.text.find("fabricctl regions") != std::string::npos);
        CHECK(of_command.text.find("--arena") != std::string::npos);
    }
}
