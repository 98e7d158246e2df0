// fabric-oracle: random programs over the public interface against a sequential model.
// docs/testing.md says how to replay and shrink what it finds.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "tests/oracle/player.hpp"
#include "tests/oracle/program.hpp"
#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"

namespace {

using oracle::Failure;
using oracle::PlayOptions;
using oracle::Program;
using oracle::ProgramLimits;
using Clock = std::chrono::steady_clock;

constexpr const char* kUsage = R"(usage: fabric-oracle [options]

Plays random programs over the public interface on real ranks and compares every byte with a
sequential model. The first program that fails is named with the command that replays it; exit code 1.

  --seed N|random      of the first program; the next ones follow (default 1)
  --programs N         at most so many (default: no limit)
  --seconds S          begin no further program after so long (default 30, 0: no limit)
  --ranks A-B          ranks of a program (default 2-8)
  --hosts BEHAVIOUR    each rank on an emulated host that shares no caches with the others, which
                       are eager, random or strict
  --most-bytes N       largest buffer (default 24 MiB)
  --timeout S          of each call (default 30)
  --most-ahead N       messages that a rank sends to another one before that one receives (default 12)
  --no-deaths, --no-shared, --no-messages
                       leave out killed and leaving ranks, outputs that all ranks share, messages
  --only A,B,...       of the program, only these operations
  --repeat N           play each program so many times
  --keep-going         go on with the next program after one that failed
  --shrink             leave out what a failing program does not need to fail
  --print              print the programs instead of playing them
)";

// Room for the largest program, and for what the one before has not given back yet.
constexpr std::uint64_t kArenaBytes = 1u << 30;

struct Options {
    std::uint64_t seed = 1;
    std::uint64_t programs = ~std::uint64_t{0};
    double seconds = 30;
    int repeat = 1;
    bool keep_going = false;
    bool shrink = false;
    bool print = false;
    std::vector<bool> kept;
    ProgramLimits limits;
    PlayOptions play;
    std::string program;  // its own path
    std::string words;    // of the command that replays: what changes programs
};

[[noreturn]] void refuse(const std::string& why) {
    std::fprintf(stderr, "fabric-oracle: %s\n%s", why.c_str(), kUsage);
    std::exit(2);
}

std::uint64_t number_of(const std::string& name, const std::string& text) {
    char* end = nullptr;
    const std::uint64_t number = std::strtoull(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0') refuse(name + " takes a number, not \"" + text + "\"");
    return number;
}

void parse_ranks(Options& options, const std::string& text) {
    const auto dash = text.find('-');
    options.limits.least_ranks = static_cast<int>(number_of("--ranks", text.substr(0, dash)));
    options.limits.most_ranks = dash == std::string::npos
                                    ? options.limits.least_ranks
                                    : static_cast<int>(number_of("--ranks", text.substr(dash + 1)));
    if (options.limits.least_ranks < 2 || options.limits.most_ranks > 64 ||
        options.limits.least_ranks > options.limits.most_ranks) {
        refuse("--ranks A-B: 2 to 64");
    }
}

void parse_only(Options& options, const std::string& text) {
    for (std::size_t from = 0; from <= text.size();) {
        const std::size_t comma = std::min(text.find(',', from), text.size());
        const auto number = number_of("--only", text.substr(from, comma - from));
        if (number > 1'000'000) refuse("--only: no such operation");
        if (options.kept.size() <= number) options.kept.resize(number + 1);
        options.kept[number] = true;
        from = comma + 1;
    }
}

// Options without a value; false: not one of them.
bool parse_switch(Options& options, const std::string& name) {
    if (name == "--help") {
        std::printf("%s", kUsage);
        std::exit(0);
    }
    if (name == "--shrink") return options.shrink = true;
    if (name == "--keep-going") return options.keep_going = true;
    if (name == "--print") return options.print = true;
    bool* const part = name == "--no-deaths"     ? &options.limits.deaths
                       : name == "--no-shared"   ? &options.limits.shared
                       : name == "--no-messages" ? &options.limits.messages
                                                 : nullptr;
    if (part == nullptr) return false;
    *part = false;
    options.words += " " + name;
    return true;
}

void parse_value(Options& options, const std::string& name, const std::string& value) {
    const auto number = [&] { return number_of(name, value); };
    if (name == "--seed") {
        options.seed = value == "random" ? std::random_device{}() : number();
    } else if (name == "--programs") {
        options.programs = number();
    } else if (name == "--seconds") {
        options.seconds = static_cast<double>(number());
    } else if (name == "--repeat") {
        options.repeat = static_cast<int>(number());
    } else if (name == "--timeout") {
        options.play.timeout_seconds = static_cast<int>(number());
    } else if (name == "--only") {
        parse_only(options, value);
    } else {
        options.words += " " + name + " " + value;
        if (name == "--ranks") return parse_ranks(options, value);
        if (name == "--most-bytes") {
            options.limits.most_bytes = number();
            return;
        }
        if (name == "--most-ahead") {
            options.limits.most_ahead = static_cast<int>(number());
            if (options.limits.most_ahead < 1) refuse("--most-ahead: at least 1");
            return;
        }
        if (name != "--hosts") refuse("unknown option " + name);
        if (value != "eager" && value != "random" && value != "strict") {
            refuse("--hosts takes eager, random or strict");
        }
        options.play.hosts = value;
        options.limits.hosts = true;
    }
}

Options parse(int count, char** words) {
    Options options;
    options.program = words[0];
    for (int i = 1; i < count; ++i) {
        const std::string name = words[i];
        if (parse_switch(options, name)) continue;
        if (i + 1 == count) refuse(name + " is unknown, or takes a value");
        parse_value(options, name, words[++i]);
    }
    return options;
}

Program program_of(const Options& options, std::uint64_t seed) {
    Program program = oracle::make_program(seed, options.limits);
    if (options.kept.empty()) return program;
    std::vector<bool> kept = options.kept;
    kept.resize(program.operations.size());
    return oracle::without(program, kept);
}

std::string list_of(const std::vector<bool>& kept) {
    std::string text;
    for (std::size_t i = 0; i < kept.size(); ++i) {
        if (kept[i]) text += (text.empty() ? "" : ",") + std::to_string(i);
    }
    return text;
}

class Session {
  public:
    explicit Session(const Options& options)
        : options_(options),
          daemon_({"--pool-capacity=2GiB", "--log-level=warning"}),
          holder_([&] { return hold_arena(); }),
          play_(options.play) {
        play_.socket = daemon_.socket();
        play_.folder = daemon_.folder();
        if (!held_.wait()) refuse("no arena");
    }

    std::optional<Failure> play(const Program& program) {
        ++runs_;
        return oracle::play(program, play_, runs_);
    }
    void report(std::uint64_t seed, const Failure& failure) const {
        std::fprintf(
            stderr, "seed %llu: %s\nreplay: %s%s --seed %llu --programs 1 --repeat 100%s%s\n",
            static_cast<unsigned long long>(seed), failure.text.c_str(), options_.program.c_str(),
            options_.words.c_str(), static_cast<unsigned long long>(seed),
            options_.kept.empty() ? "" : " --only ", list_of(options_.kept).c_str());
    }
    void shrink(std::uint64_t seed, Failure failure);
    std::uint64_t runs() const { return runs_; }

  private:
    std::optional<Failure> fails(const Program& program, const std::vector<bool>& kept);
    int hold_arena();

    const Options& options_;
    test_support::Daemon daemon_;
    test_support::Gate held_;
    test_support::Child holder_;
    PlayOptions play_;
    std::uint64_t runs_ = 0;
};

// A process that keeps the arena for the next program, which finds in it what the last one left:
// memory that is not cleared, and that dead sessions have given back.
int Session::hold_arena() {
    fabricshm_session_options options{};
    options.struct_size = sizeof options;
    options.socket = daemon_.socket().c_str();
    fabricshm_session* session = nullptr;
    fabricshm_arena* arena = nullptr;
    if (fabricshm_session_open(&options, &session) != FABRICSHM_OK ||
        fabricshm_arena_open(session, oracle::kArenaName, kArenaBytes, 0, &arena) != FABRICSHM_OK) {
        std::fprintf(stderr, "fabric-oracle: %s\n", fabricshm_error_text());
        return 1;
    }
    held_.open();
    for (;;) ::pause();
}

std::optional<Failure> Session::fails(const Program& program, const std::vector<bool>& kept) {
    const Program smaller = oracle::without(program, kept);
    for (int i = 0; i < std::max(options_.repeat, 5); ++i) {
        if (auto failure = play(smaller)) return failure;
    }
    return std::nullopt;
}

// Leaves out ever smaller runs of operations, for as long as the rest fails in a few attempts.
void Session::shrink(std::uint64_t seed, Failure failure) {
    const Program program = oracle::make_program(seed, options_.limits);
    std::vector<bool> kept(program.operations.size(), true);
    if (!options_.kept.empty()) {
        kept = options_.kept;
        kept.resize(program.operations.size());
    }
    for (std::size_t length = kept.size() / 2; length != 0; length /= 2) {
        for (std::size_t first = 0; first < kept.size(); first += length) {
            std::vector<bool> fewer = kept;
            for (std::size_t i = first; i < std::min(first + length, kept.size()); ++i) {
                fewer[i] = false;
            }
            for (std::size_t i = 0; i < fewer.size(); ++i) {
                const int companion = program.operations[i].companion;
                if (companion >= 0) fewer[i] = fewer[static_cast<std::size_t>(companion)];
            }
            if (fewer == kept) continue;
            if (auto again = fails(program, fewer)) {
                kept = fewer;
                failure = *again;
            }
        }
    }
    std::fprintf(stderr, "fails with: --only %s\n%s\n", list_of(kept).c_str(),
                 failure.text.c_str());
}

}  // namespace

int main(int count, char** words) {
    const Options options = parse(count, words);
    const auto seconds_since = [begin = Clock::now()] {
        return std::chrono::duration<double>(Clock::now() - begin).count();
    };
    if (options.print) {
        for (std::uint64_t i = 0; i < std::min<std::uint64_t>(options.programs, 1000); ++i) {
            std::printf("%s\n", describe(program_of(options, options.seed + i)).c_str());
        }
        return 0;
    }
    Session session(options);
    std::uint64_t operations = 0, failed = 0;
    for (std::uint64_t i = 0; i < options.programs; ++i) {
        if (options.seconds > 0 && seconds_since() > options.seconds) break;
        if (failed != 0 && !options.keep_going) break;
        const Program program = program_of(options, options.seed + i);
        for (int again = 0; again < options.repeat; ++again) {
            operations += program.operations.size();
            const auto failure = session.play(program);
            if (!failure) continue;
            ++failed;
            std::fprintf(stderr, "after %llu programs, %llu operations, %.0f s\n",
                         static_cast<unsigned long long>(session.runs()),
                         static_cast<unsigned long long>(operations), seconds_since());
            session.report(options.seed + i, *failure);
            if (options.shrink) session.shrink(options.seed + i, *failure);
            break;
        }
    }
    std::printf("%llu programs, %llu operations in %.0f s, %llu failed\n",
                static_cast<unsigned long long>(session.runs()),
                static_cast<unsigned long long>(operations), seconds_since(),
                static_cast<unsigned long long>(failed));
    return session.runs() == 0 || failed != 0 ? 1 : 0;
}
