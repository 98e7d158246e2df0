#include "fabricd/ctl/doctor/doctor_table.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "fabricd/config/options.hpp"
#include "fabricd/ctl/ctl_options.hpp"
#include "fabricd/ctl/doctor/doctor_view.hpp"
#include "tests/unit/ctl/doctor/fake_host.hpp"

using namespace fabricd;
using fabricshm::Errc;

namespace {

std::vector<std::string> words_of(const std::string& text) {
    std::istringstream stream(text);
    return {std::istream_iterator<std::string>(stream), {}};
}

bool has_option(const std::vector<CompletedOption>& options, const std::string& word) {
    const std::string name = word.substr(0, word.find('='));
    return std::any_of(options.begin(), options.end(),
                       [&](const CompletedOption& option) { return option.name == name; });
}

/// By the tables from which the programs parse their command lines.
bool is_own_form(const std::vector<std::string>& words) {
    if (words[0] == "fabricd") {
        return std::all_of(words.begin() + 1, words.end(), [](const std::string& word) {
            return has_option(completed_program().options, word);
        });
    }
    const CompletedProgram program = ctl_program();
    const auto command =
        std::find_if(program.commands.begin(), program.commands.end(),
                     [&](const CompletedCommand& row) { return row.name == words.at(1); });
    if (command == program.commands.end()) return false;
    return std::all_of(words.begin() + 2, words.end(),
                       [&](const std::string& word) { return has_option(command->options, word); });
}

/// Whether a command is one that exists: of our own programs by their tables, of a kernel's file by
/// the host's files, of others by the forms that their manual pages have.
bool is_form(const std::string& command, const FakeHost& host) {
    static const std::set<std::string> kOthers{
        "apt install", "daxctl enable-device", "udevadm trigger", "nvidia-modprobe -c",
        "chmod o=",    "chown fabricd",        "mount -o"};
    static const std::set<std::string> kSystemctl{"enable", "edit", "restart", "set-property"};
    if (const auto tee = command.find("| sudo tee "); tee != std::string::npos) {
        const std::string path = command.substr(tee + 11);
        return path.rfind("/etc/security/limits.d/", 0) == 0 ||
               path.find("cpu*/cpufreq/scaling_governor") != std::string::npos ||
               host.facts.files.exists(path);
    }
    auto words = words_of(command);
    if (words[0] == "sudo") words.erase(words.begin());
    if (words[0] == "fabricd" || words[0] == "fabricctl") return is_own_form(words);
    if (words[0] == "ls" || words[0] == "rm") return words.at(1).size() > 1;
    if (words[0] == "systemctl") return kSystemctl.contains(words.at(1));
    if (words[0] == "sysctl") {
        std::string key = words.at(1).substr(0, words.at(1).find('='));
        std::replace(key.begin(), key.end(), '.', '/');
        return host.facts.files.exists("/proc/sys/" + key);
    }
    return kOthers.contains(words[0] + " " + words.at(1));
}

/// As much as possible is wrong with it.
void make_ill(FakeHost& host) {
    host.write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "[never]");
    host.write("sys/kernel/mm/transparent_hugepage/enabled", "[never]");
    host.write("proc/sys/kernel/numa_balancing", "1");
    host.write("proc/sys/kernel/io_uring_disabled", "1");
    host.write("proc/sys/kernel/yama/ptrace_scope", "1");
    host.write("proc/sys/vm/overcommit_memory", "2");
    host.write("proc/sys/vm/swappiness", "60");
    host.write("proc/sys/kernel/osrelease", "4.4.0");
    host.write("proc/meminfo",
               "MemAvailable: 1024 kB\nSwapTotal: 1024 kB\nSwapFree: 0 kB\nCommitLimit: 1024 kB\n"
               "Committed_AS: 1024 kB");
    host.write("proc/self/limits",
               "Max open files  256  256  files\nMax locked memory  65536  65536  bytes");
    host.write("sys/class/infiniband/mlx5_0/node_type", "1");
    host.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave");
    host.add_dax("dax0.0", "", 0);
    host.add_gpu();
    host.install_unit();
    host.facts.shared_memory = Space{1024, 0};
    host.facts.config.path = "/etc/fabricd/fabricd.toml";
    host.facts.config.wrong = "a mistake\033[2J";
    host.facts.admin.answer = Errc::kTimeout;
    host.facts.attach.answer = Errc::kDenied;
}

}  // namespace

TEST_SUITE("ctl.doctor.doctor_table") {
    TEST_CASE("a host that is well has nothing to mend") {
        FakeHost host;
        host.start_daemon();
        const auto diagnoses = examine(host.facts);
        CHECK(diagnoses.size() == doctor_checks().size());
        for (const auto& [check, finding] : diagnoses) {
            CAPTURE(check->name);
            CHECK(finding.grade == Grade::kOk);
            CHECK(finding.command.empty());
            CHECK_FALSE(finding.text.empty());
        }
        CHECK_FALSE(is_ill(diagnoses));
    }

    TEST_CASE("a host of which nothing can be read is not called ill, nor well") {
        FakeHost host;
        for (const char* folder : {"proc", "sys", "dev"}) host.remove(folder);
        host.facts.shared_memory.reset();
        const auto diagnoses = examine(host.facts);
        const auto unknown = std::count_if(
            diagnoses.begin(), diagnoses.end(),
            [](const Diagnosis& one) { return one.finding.grade == Grade::kUnknown; });
        CHECK(unknown >= 14);
        CHECK(doctor_text(diagnoses).find("not checked: " + std::to_string(unknown)) !=
              std::string::npos);
    }

    TEST_CASE("every command that is named is an existing form") {
        FakeHost host;
        make_ill(host);
        const auto diagnoses = examine(host.facts);
        CHECK(is_ill(diagnoses));
        int commands = 0;
        for (const auto& [check, finding] : diagnoses) {
            CAPTURE(check->name);
            CAPTURE(finding.command);
            if (finding.command.empty()) {
                CHECK(finding.grade <= Grade::kUnknown);
            } else {
                ++commands;
                CHECK(is_form(finding.command, host));
            }
        }
        CHECK(commands >= 17);
        CHECK_FALSE(is_form("fabricd --no-such-option=1", host));
        CHECK_FALSE(is_form("fabricctl heal", host));
        CHECK_FALSE(is_form("sudo sysctl vm.no_such_key=1", host));
    }

    TEST_CASE("people get commands below the table, programs a line, and neither control bytes") {
        FakeHost host;
        make_ill(host);
        const auto diagnoses = examine(host.facts);
        const std::string text = doctor_text(diagnoses);
        CHECK(text.find("TO MEND") != std::string::npos);
        CHECK(text.find('\033') == std::string::npos);
        const auto view = nlohmann::json::parse(doctor_json(diagnoses));
        CHECK(view["ill"] == true);
        REQUIRE(view["checks"].size() == doctor_checks().size());
        CHECK(view["checks"][0]["check"] == "configuration");
        CHECK(view["checks"][0]["grade"] == "problem");
        CHECK(view["checks"][0]["finding"] == "a mistake?[2J");
    }

    TEST_CASE("names differ, and docs/fabricctl.md has a row for each check") {
        std::ifstream file(FABRIC_SOURCE_DIR "/docs/fabricctl.md");
        const std::string page(std::istreambuf_iterator<char>(file), {});
        std::set<std::string> names;
        for (const DoctorCheck& check : doctor_checks()) {
            CAPTURE(check.name);
            names.insert(check.name);
            CHECK(page.find("| `" + std::string(check.name) + "` | " + check.looks_at + " |") !=
                  std::string::npos);
        }
        CHECK(names.size() == doctor_checks().size());
    }
}
