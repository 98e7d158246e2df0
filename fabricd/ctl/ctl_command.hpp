// One command of fabricctl: a row from which its parsing, its --help, its completions and what runs
// it are made. The rows are in command_table.cpp.

#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Reaches the field of the options that a value goes into.
template <typename T>
using CtlField = T& (*)(CtlOptions&);

/// Present or not.
struct CtlFlag {
    CtlField<bool> field;
};
/// Any text, or one of the words.
struct CtlText {
    CtlField<std::string> field;
    std::vector<std::string> words = {};
};
/// Several texts.
struct CtlTexts {
    CtlField<std::vector<std::string>> field;
};
/// From 0 or from 1 on.
struct CtlWhole {
    CtlField<std::uint64_t> field;
    bool from_zero = false;
};
/// `low` to `high`.
struct CtlNumber {
    std::variant<CtlField<int>, CtlField<std::uint32_t>, CtlField<std::vector<int>>> field;
    int low;
    int high;
};
/// 0 to `high` seconds; stays as it is, or empty, when the option is not given.
struct CtlSeconds {
    std::variant<CtlField<double>, CtlField<std::optional<double>>> field;
    double high;
    double low = 0;
};
/// Bytes with K, M, G or T. `zero`: 0 is one, too.
struct CtlSize {
    CtlField<std::uint64_t> field;
    bool zero = true;
};
/// A time with its unit, "12h"; stays empty when the option is not given.
struct CtlTime {
    CtlField<std::optional<std::chrono::nanoseconds>> field;
};
/// Words with commas between them.
struct CtlList {
    CtlField<std::vector<std::string>> field;
};
using CtlValue = std::variant<CtlFlag, CtlText, CtlTexts, CtlWhole, CtlNumber, CtlSeconds, CtlSize,
                              CtlTime, CtlList>;

/// An option ("--limit"), or a word that stands at its place ("SHARD") and can't be left out unless
/// its row says so.
struct CtlArgument {
    const char* name;
    const char* help;
    CtlValue value;
    const char* type = nullptr;  // what --help shows for the value; nullptr: by its kind
    // What a shell completes: these words, or the lines of this command's output.
    std::vector<std::string> suggested = {};
    const char* suggested_by = "";
    bool can_be_left_out = false;
};

/// Asks the daemon. options.socket is the one that `client` is connected to.
using CtlAsk = fabricshm::Result<void> (*)(const CtlOptions& options, AdminClient& client);
/// Needs no daemon.
using CtlRun = CtlExit (*)(const CtlOptions& options);

/// A command that shows a view also has --watch and --count; one that asks the daemon has --json
/// and
/// --socket.
struct CtlCommand {
    const char* name;
    const char* help;
    std::variant<View, CtlAsk, CtlRun> handler;
    std::vector<CtlArgument> arguments = {};
};

/// In the order of --help.
const std::vector<CtlCommand>& ctl_commands();

/// nullptr: there is none of that name.
const CtlCommand* find_ctl_command(const std::string& name);

}  // namespace fabricd
