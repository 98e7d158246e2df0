#include "bench/fabric_bench_options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <utility>

#include "fabricd/config/completion.hpp"
#include "kernels/dtype.hpp"
#include "libfabricshm/base/empty_values.hpp"
#include "libfabricshm/collective/kinds.hpp"

namespace bench {

using fabricshm::Kind;

// busbw is what nccl-tests calls by that name: the bytes that have to cross from rank to rank in
// the time, whatever the way they take; of a scan and a message it is the algbw.
static BenchKind bench_kind(Kind kind) {
    const fabricshm::KindRow& row = row_of(kind);
    BenchKind bench{row.name, static_cast<fabricshm_kind>(kind), true, has_parts(kind) ? 1 : 0, 0,
                    0};
    if (is_message(kind)) {
        bench = {"send_recv", FABRICSHM_SEND, false, 0, 1, 0};
    } else if (row.output == fabricshm::Extent::kNone) {
        bench.in_place = false;  // a barrier
    } else if (bench.parts != 0) {
        bench.traffic_of_rest = 1;
    } else if (reduces_for_all(kind)) {
        bench.traffic_of_rest = 2;
    } else {
        bench.traffic = 1;
    }
    return bench;
}

const std::vector<BenchKind> kBenchKinds = [] {
    std::vector<BenchKind> kinds;
    for (int i = 0; i < fabricshm::kKindCount; ++i) {
        const auto kind = static_cast<Kind>(i);
        const bool last = is_message(kind) || kind == Kind::kBarrier;
        if (!last) kinds.push_back(bench_kind(kind));
    }
    kinds.push_back(bench_kind(Kind::kSend));
    kinds.push_back(bench_kind(Kind::kBarrier));
    return kinds;
}();

const BenchKind* find_kind(const std::string& name) {
    for (const BenchKind& kind : kBenchKinds) {
        if (name == kind.name) return &kind;
    }
    return nullptr;
}

bool reduces(const BenchKind& kind) {
    return row_of(static_cast<Kind>(kind.value)).reduces;
}

namespace {

/// A word of the command line and what it means to the library.
template <class T>
struct Named {
    const char* name;
    T value;
};
// Numbers; values with an index have operations of their own.
std::vector<std::string> type_names() {
    std::vector<std::string> words;
    for (const auto& row : kernels::kDTypeRows) {
        if (kernels::is_number(row.type)) words.emplace_back(row.name);
    }
    return words;
}
bool set_type(const std::string& text, BenchOptions& options) {
    for (const auto& row : kernels::kDTypeRows) {
        if (text != row.name || !kernels::is_number(row.type)) continue;
        options.dtype = static_cast<fabricshm_dtype>(row.type);
        options.dtype_name = text;
        return true;
    }
    return false;
}
// Those whose result on small whole numbers is exact in every type, whatever the number of ranks.
constexpr Named<fabricshm_op> kOps[] = {
    {"sum", FABRICSHM_SUM}, {"min", FABRICSHM_MIN}, {"max", FABRICSHM_MAX}};
constexpr Named<fabricshm_algorithm> kAlgorithms[] = {
    {"auto", FABRICSHM_AUTO}, {"flat", FABRICSHM_FLAT},     {"direct", FABRICSHM_DIRECT},
    {"ring", FABRICSHM_RING}, {"staged", FABRICSHM_STAGED}, {"host", FABRICSHM_HOST}};

template <class T, std::size_t kCount>
const Named<T>* find(const Named<T> (&table)[kCount], const std::string& name) {
    for (const auto& each : table) {
        if (name == each.name) return &each;
    }
    return nullptr;
}
template <class T, std::size_t kCount>
std::vector<std::string> names(const Named<T> (&table)[kCount]) {
    std::vector<std::string> words;
    for (const auto& each : table) words.emplace_back(each.name);
    return words;
}

std::string joined(const std::vector<std::string>& words) {
    std::string text;
    for (const auto& word : words) text += (text.empty() ? "" : " ") + word;
    return text;
}

/// A number from `least` to `most`.
bool number(const std::string& text, std::uint64_t least, std::uint64_t most, std::uint64_t& out) {
    if (text.empty() || text.size() > 12) return false;
    if (text.find_first_not_of("0123456789") != std::string::npos) return false;
    out = std::strtoull(text.c_str(), nullptr, 10);
    return out >= least && out <= most;
}

// FROM:TO:FACTOR, FROM:TO, or one size.
bool sizes(const std::string& text, BenchOptions& options) {
    std::vector<std::string> parts(1);
    for (const char c : text) {
        if (c == ':') parts.emplace_back();
        if (c != ':') parts.back().push_back(c);
    }
    if (parts.size() > 3) return false;
    options.from = parse_size(parts[0]);
    options.to = parts.size() > 1 ? parse_size(parts[1]) : options.from;
    options.factor = 2;
    if (parts.size() == 3 && !number(parts[2], 2, 1024, options.factor)) return false;
    constexpr std::uint64_t kMaxBytes = std::uint64_t{16} << 30;
    return options.from != 0 && options.to >= options.from && options.to <= kMaxBytes;
}

constexpr const char* kCompletionHelp = "print the script that completes this command line";
constexpr const char* kMore =
    "\nbusbw: what has to cross from rank to rank, as nccl-tests counts it: algbw times "
    "2 (n - 1)/n for allreduce,\n(n - 1)/n for kinds with parts, 1 for the others.\n"
    "Exit code: 0, 1 when a rank failed or an element was wrong, 2 for the command line.\n";

struct Option {
    const char* name;
    const char* value;  // what stands for it in the help; nullptr: takes none
    const char* help;
    std::vector<std::string> words;
    std::function<bool(const std::string&, BenchOptions&)> set;
    const char* range = "";  // of the value, for the message when it is refused
};

using Text = const std::string&;

// Completions and the parser read this. `set` stores the value, and refuses with false.
const std::vector<Option> kOptions = {
    {"--sizes",
     "FROM:TO[:FACTOR]",
     "bytes of the larger buffer of a rank (8:128M:2)",
     {},
     sizes,
     " with 1 byte <= FROM <= TO <= 16G, and FACTOR from 2 to 1024"},
    {"--ranks",
     "N",
     "processes, 1 to 256 (2)",
     {},
     [](Text text, BenchOptions& options) {
         std::uint64_t ranks = 0;
         if (!number(text, 1, FABRICSHM_WORLD_MAX, ranks)) return false;
         options.ranks = static_cast<int>(ranks);
         return true;
     },
     " from 1 to 256"},
    {"--dtype", "TYPE", "type of the elements (f32)", type_names(), set_type},
    {"--op", "OP", "reduction (sum)", names(kOps),
     [](Text text, BenchOptions& options) {
         const auto* found = find(kOps, text);
         if (found == nullptr) return false;
         options.op = found->value;
         options.op_name = text;
         return true;
     }},
    {"--algorithm", "NAME", "the way to go; ring and host are for allreduce (auto)",
     names(kAlgorithms),
     [](Text text, BenchOptions& options) {
         const auto* found = find(kAlgorithms, text);
         if (found == nullptr) return false;
         options.algorithm = found->value;
         return true;
     }},
    {"--memory",
     "WHERE",
     "buffers in the arena or on the heap (arena)",
     {"arena", "heap"},
     [](Text text, BenchOptions& options) {
         options.heap = text == "heap";
         return options.heap || text == "arena";
     }},
    {"--iterations",
     "N",
     "operations per row, 1 to 100000000 (by size: 20 to 2000)",
     {},
     [](Text text, BenchOptions& options) {
         return number(text, 1, 100'000'000, options.iterations);
     },
     " from 1 to 100000000"},
    {"--warmup",
     "N",
     "operations before them, at most as many (5)",
     {},
     [](Text text, BenchOptions& options) { return number(text, 0, 1'000'000, options.warmup); },
     " from 0 to 1000000"},
    {"--check",
     nullptr,
     "compare every element of a first run; exit code 1 if one is wrong",
     {},
     [](Text, BenchOptions& options) { return options.check = true; }},
    {"--json",
     nullptr,
     "print JSON instead of the table",
     {},
     [](Text, BenchOptions& options) { return options.json = true; }},
    {"--socket",
     "PATH",
     "the attach socket of fabricd ($FABRIC_SOCKET, then the usual places)",
     {},
     [](Text text, BenchOptions& options) {
         options.socket = text;
         return !text.empty();
     }},
};

std::vector<std::string> kind_names() {
    std::vector<std::string> words;
    for (const BenchKind& kind : kBenchKinds) words.emplace_back(kind.name);
    words.emplace_back("all");
    return words;
}

const std::vector<std::string> kShells = {"bash", "zsh", "fish"};

// As those of fabricd and fabricctl, made of the table that the parser reads.
std::string completion(const std::string& shell) {
    using fabricd::CompletedOption;
    using Value = CompletedOption::Value;
    fabricd::CompletedProgram program{"fabric-bench", {}, {}};
    for (const Option& option : kOptions) {
        CompletedOption completed{option.name, option.help};
        if (option.value != nullptr) completed.value = Value::kAny;
        if (!option.words.empty()) completed.value = Value::kWords;
        if (std::string(option.name) == "--socket") completed.value = Value::kFile;
        completed.words = option.words;
        program.options.push_back(completed);
    }
    program.options.push_back({"--completion", kCompletionHelp, Value::kWords, kShells});
    program.options.push_back({"--help", "print this"});
    program.options.push_back({"--version", "print the version"});
    program.argument = {"", "COLLECTIVE", Value::kWords, kind_names()};
    return fabricd::completion_script(program, shell).value_or("");
}

// The collectives are measured in the order given; one may come twice.
std::string add_kind(const std::string& word, BenchOptions& options) {
    if (word == "all") {
        for (const BenchKind& kind : kBenchKinds) options.kinds.push_back(&kind);
        options.all = true;
        return "";
    }
    const BenchKind* kind = find_kind(word);
    if (kind == nullptr)
        return "there is no collective '" + word + "'; there are " + joined(kind_names());
    options.kinds.push_back(kind);
    return "";
}

// What only the whole command line shows. Of `all` the collectives are left out that cannot be
// measured with these options, and named.
std::string check(BenchOptions& options) {
    if (options.kinds.empty()) return "which collective? One of " + joined(kind_names());
    const bool only_allreduce =
        options.algorithm == FABRICSHM_RING || options.algorithm == FABRICSHM_HOST;
    std::vector<const BenchKind*> measured;
    for (const BenchKind* kind : options.kinds) {
        std::string why;
        if (only_allreduce && kind->value != FABRICSHM_ALLREDUCE) {
            why = "the algorithms ring and host are for allreduce";
        } else if (is_ping_pong(kind->value) && options.ranks % 2 != 0) {
            why = "an even number of ranks, each with a partner";
        }
        if (why.empty()) measured.push_back(kind);
        if (!why.empty() && !options.all) return std::string(kind->name) + ": " + why;
        if (!why.empty()) options.left_out.push_back(std::string(kind->name) + ": " + why);
    }
    options.kinds = std::move(measured);
    return "";
}

// Of a value, or of a flag's presence (an empty one).
void add_option(CLI::App& app, const Option& option, BenchOptions& options) {
    if (option.value == nullptr) {
        app.add_flag_callback(
            option.name, [&] { (void)option.set("", options); }, option.help);
        return;
    }
    const std::string expected = option.words.empty() ? option.value : joined(option.words);
    const auto store = [&option, &options, expected](const std::string& value) {
        if (option.set(value, options)) return std::string();
        return "'" + value + "': expected " + expected + option.range;
    };
    // The check stores what it finds right: the value is read once.
    app.add_option(option.name, option.help)
        ->type_name(expected)
        ->expected(1)
        ->take_last()
        ->check(CLI::Validator(store, ""));
}

}  // namespace

std::uint64_t parse_size(const std::string& text) {
    char* end = nullptr;
    if (text.empty() || text[0] < '0' || text[0] > '9') return 0;
    const std::uint64_t value = std::strtoull(text.c_str(), &end, 10);
    // K, M and G mean 1024, with and without iB: what is measured is memory.
    const std::string unit = end;
    const std::string letters = "KMG";
    if (unit.empty() || unit == "B") return value;
    const auto at = letters.find(unit[0]);
    const std::string rest = unit.substr(1);
    if (at == std::string::npos || !(rest.empty() || rest == "B" || rest == "i" || rest == "iB")) {
        return 0;
    }
    const auto shift = 10 * (static_cast<unsigned>(at) + 1);
    return value > (~std::uint64_t{0} >> shift) ? 0 : value << shift;
}

std::uint64_t BenchOptions::iterations_for(std::uint64_t bytes) const {
    if (iterations != 0) return iterations;
    // As many as move 64 MiB: small sizes are measured over many operations, large ones soon done.
    constexpr std::uint64_t kAll = 64u << 20;
    return std::clamp<std::uint64_t>(kAll / bytes, 20, 2000);
}

Parsed parse(int argc, const char* const* argv) {
    Parsed parsed;
    CLI::App app{
        "How fast the collectives are here, with a table as nccl-tests prints it. Starts one "
        "process "
        "per rank;\nfabricd has to run."};
    app.name("fabric-bench");
    for (const Option& option : kOptions) add_option(app, option, parsed.options);
    std::string shell;
    app.add_option("--completion", shell, kCompletionHelp)->check(CLI::IsMember(kShells));
    app.set_version_flag("--version", std::string("fabric-bench ") + fabricshm_version());
    std::vector<std::string> words;
    app.add_option("COLLECTIVE", words, "What to measure: " + joined(kind_names()));
    fabricshm::refuse_empty_values(app);
    app.footer(kMore);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        // --help and --version come as errors without a code.
        std::ostringstream out;
        std::ostringstream ignored;
        if (app.exit(error, out, ignored) == 0) {
            parsed.text = out.str();
        } else {
            parsed.error = std::string(error.what()) + "; see --help";
        }
        return parsed;
    }
    if (!shell.empty()) parsed.text = completion(shell);
    if (!shell.empty()) return parsed;
    for (const std::string& word : words) {
        if (parsed.error.empty()) parsed.error = add_kind(word, parsed.options);
    }
    if (parsed.error.empty()) parsed.error = check(parsed.options);
    return parsed;
}

}  // namespace bench
