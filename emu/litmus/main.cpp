// fabric-litmus: proves or refutes a visibility profile on this machine and a device.

#include <fcntl.h>
#include <getopt.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "emu/hosts/incoherent_hosts.hpp"
#include "emu/litmus/litmus.hpp"
#include "libfabricshm/base/empty_values.hpp"
#include "libfabricshm/base/version.hpp"
#include "libfabricshm/machine/visibility_proof.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/shm/flush_policy.hpp"

namespace {

using namespace fabricshm;
using emu::LitmusSightings;

constexpr const char* kHelp =
    "usage: fabric-litmus [options]\n"
    "Two sides pass messages and buffer stores over one memory and look for a sighting that the\n"
    "visibility profile should have made impossible. One sighting refutes it.\n\n"
    "  --profile NAME     coherent, coherent-hosts, clwb, clflushopt, clflush or nt (default\n"
    "                     coherent)\n"
    "  --memory PATH      file or /dev/daxX.Y to work on; its first bytes are overwritten\n"
    "                     (default: memory of its own)\n"
    "  --offset BYTES     where in it to begin, a multiple of 4096, for dax of 2 MiB (default 0)\n"
    "  --rounds N         of each shape, 1 to 1000000000 (default 100000)\n"
    "  --role ROLE        both: two processes of this host (default); a, b: one side, the other\n"
    "                     runs on another host; start a first\n"
    "  --timeout S       seconds to wait for one sign of the other side, 1 to 3600 (default 10)\n"
    "  --emulate-hosts    give each side an emulated host that shares no caches; --profile\n"
    "                     emulated is the one that is right for them\n"
    "  --leave-out TOUCH  with emulated hosts: message.publish, message.acquire, sent.publish or\n"
    "                     sent.acquire, to see it noticed\n"
    "  --record FILE      write the verdict for pool.visibility_proof of fabricd\n"
    "  --json             print the verdict as JSON\n"
    "  -h, --help         -V, --version\n\n"
    "Exit code 0: not refuted; 1: refuted; 2: bad usage, or the memory cannot be used.\n";

struct Options {
    std::string profile = "coherent";
    std::string memory;
    Bytes offset = 0;
    std::uint64_t rounds = 100000;
    std::string role = "both";
    std::uint64_t timeout = 10;
    bool emulate = false;
    std::optional<TouchPoint> left_out;
    std::string record;
    bool json = false;
};

// One line, exit code 2, nothing done yet: no rounds were played.
[[noreturn]] void refuse(const std::string& line) {
    std::fprintf(stderr, "fabric-litmus: %s\n", line.c_str());
    std::exit(2);
}

// strtoull() takes signs and blanks, which are no number of rounds.
std::uint64_t number(const char* option, const char* text, std::uint64_t low, std::uint64_t high) {
    char* end = nullptr;
    errno = 0;
    const std::uint64_t value = std::strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < low || value > high) {
        refuse(std::string(option) + ": not a number from " + std::to_string(low) + " to " +
               std::to_string(high));
    }
    return value;
}

// By the letters of the table in parse().
void take(Options& options, int option, const char* value) {
    switch (option) {
        case 'p':
            options.profile = value;
            return;
        case 'm':
            options.memory = value;
            return;
        case 'o':
            options.offset = number("--offset", value, 0, ~std::uint64_t{0} >> 1);
            return;
        case 'n':
            options.rounds = number("--rounds", value, 1, 1'000'000'000);
            return;
        case 'r':
            options.role = value;
            return;
        case 't':
            options.timeout = number("--timeout", value, 1, 3600);
            return;
        case 'e':
            options.emulate = true;
            return;
        case 'l': {
            const auto touch = parse_touch(value);
            if (!touch.ok()) refuse("--leave-out: no such touch");
            options.left_out = *touch;
            return;
        }
        case 'w':
            options.record = value;
            return;
        case 'j':
            options.json = true;
            return;
        default:
            std::exit(2);  // getopt has said why
    }
}

Options parse(int argc, char** argv) {
    const option known[] = {{"profile", 1, nullptr, 'p'},
                            {"memory", 1, nullptr, 'm'},
                            {"offset", 1, nullptr, 'o'},
                            {"rounds", 1, nullptr, 'n'},
                            {"role", 1, nullptr, 'r'},
                            {"timeout", 1, nullptr, 't'},
                            {"emulate-hosts", 0, nullptr, 'e'},
                            {"leave-out", 1, nullptr, 'l'},
                            {"record", 1, nullptr, 'w'},
                            {"json", 0, nullptr, 'j'},
                            {"help", 0, nullptr, 'h'},
                            {"version", 0, nullptr, 'V'},
                            {nullptr, 0, nullptr, 0}};
    Options options;
    for (int found = 0; (found = ::getopt_long(argc, argv, "hV", known, nullptr)) != -1;) {
        if (found == 'h' || found == 'V') {
            std::fputs(found == 'h' ? kHelp : "fabric-litmus " FABRIC_VERSION "\n", stdout);
            std::exit(0);
        }
        if (optarg != nullptr && *optarg == 0) {
            const auto* row = std::ranges::find(known, found, &option::val);
            refuse(std::string("--") + row->name + ": " + fabricshm::wrong_with_empty(optarg));
        }
        // In the order of the command line; the last one of an option counts.
        take(options, found, optarg);
    }
    if (optind != argc) refuse(std::string("unexpected: ") + argv[optind]);
    if (options.role != "both" && options.role != "a" && options.role != "b") {
        refuse("--role: both, a or b");
    }
    // Memory of its own is anonymous: the other host could not find it.
    if (options.role != "both" && options.memory.empty()) refuse("--role: needs --memory");
    if (options.emulate && options.role != "both") refuse("--emulate-hosts: for --role both");
    if (options.emulate && !options.record.empty()) {
        refuse("--record: a verdict on emulated hosts says nothing about a device");
    }
    if (options.left_out && !options.emulate) refuse("--leave-out: needs --emulate-hosts");
    if (options.profile == "emulated" && !options.emulate)
        refuse("--profile: needs --emulate-hosts");
    return options;
}

// What both sides map: a file, a device, or memory of its own.
Mapping open_memory(const Options& options) {
    const bool own = options.memory.empty();
    Fd file(own ? ::memfd_create("fabric-litmus", MFD_CLOEXEC)
                : ::open(options.memory.c_str(), O_RDWR | O_CLOEXEC));
    if (!file) refuse("--memory " + options.memory + ": " + std::strerror(errno));
    // Zeros, and each page is made at its first touch.
    if (own && ::ftruncate(file.get(), emu::kLitmusBytes) != 0) refuse("no memory");
    struct stat status {};
    const bool device = ::fstat(file.get(), &status) == 0 && S_ISCHR(status.st_mode);
    // A dax device maps in its huge pages only.
    MapOptions how;
    how.align = device ? 2 * kMiB : 4096;
    // A device's page may be larger than what is needed.
    auto mapping = Mapping::map(file, options.offset, device ? 2 * kMiB : emu::kLitmusBytes, how);
    if (!mapping.ok()) refuse("--memory, --offset: " + describe(mapping.error()));
    return std::move(mapping).value();
}

// The two sides' seams, whatever stands behind them.
// Everything that differs between profiles is behind a side's base and view: the test itself does
// not know.
struct Ground {
    explicit Ground(const Options& options) : memory(open_memory(options)) {
        if (options.profile != "emulated") {
            const auto profile = find_profile(options.profile);
            if (!profile.ok()) refuse("--profile: " + std::string(profile.error().step));
            policy = make_policy(*profile);
        }
        own_seam = options.profile == "emulated";
        if (!options.emulate) return;
        emu::HostBehaviour behaviour;
        // Eager hosts never reconcile by chance, so what was left out is seen in the first
        // rounds.
        behaviour.temper = options.left_out ? emu::Temper::kEager : emu::Temper::kRandom;
        behaviour.omitted = options.left_out;
        hosts =
            std::make_unique<emu::IncoherentHosts>(memory.data(), emu::kLitmusBytes, 2, behaviour);
    }
    // An emulated host sees memory through a copy of its own, at another address.
    std::byte* base(int side) const { return hosts ? hosts->base(side) : memory.data(); }
    Visibility view(int side) const {
        VisibilityPolicy* behind = policy.get();
        if (own_seam) behind = &hosts->policy(side);
        return {behind, base(side), emu::kLitmusBytes};
    }
    Mapping memory;
    bool own_seam = false;  // of the emulated hosts
    std::shared_ptr<VisibilityPolicy> policy;
    std::unique_ptr<emu::IncoherentHosts> hosts;
};

// The same on both hosts: only `side` differs.
LitmusSightings play(const Ground& ground, int side, const Options& options) {
    return emu::run_litmus(side, ground.base(side), ground.view(side),
                           {options.rounds, std::chrono::seconds(options.timeout)});
}

// Two processes; the second reports what it observed through a pipe.
LitmusSightings play_both(const Ground& ground, const Options& options) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) refuse("no pipe");
    const pid_t child = ::fork();
    if (child < 0) refuse("cannot fork");
    if (child == 0) {
        const LitmusSightings seen = play(ground, 1, options);
        // One write of few bytes into a pipe is whole or not at all.
        ::_exit(::write(ends[1], &seen, sizeof seen) == sizeof seen ? 0 : 1);
    }
    // Or the read below would wait for ever for a child that died.
    ::close(ends[1]);
    // Both sides play at the same time: each waits for the other.
    LitmusSightings seen = play(ground, 0, options);
    LitmusSightings other;
    const bool told = ::read(ends[0], &other, sizeof other) == sizeof other;
    // The figures came through the pipe; the child is only reaped.
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    seen.stale += other.stale;
    seen.both_old += other.both_old;
    seen.silent = seen.silent || other.silent || !told;
    return seen;
}

// One form for both, since the values are the same in the same order.
void print(const Options& options, const LitmusSightings& seen) {
    const char* verdict = seen.refutes() ? "refuted" : "not refuted";
    const char* form =
        options.json
            ? "{\"profile\": \"%s\", \"verdict\": \"%s\", \"rounds\": %llu, \"stale\": %llu, "
              "\"both_old\": %llu, \"silent\": %s}\n"
            : "profile %s: %s\n  rounds   %llu\n  stale    %llu  (data older than its flag)\n"
              "  both old %llu  (each side missed the other's store)\n  silent   %s\n";
    std::printf(form, options.profile.c_str(), verdict,
                static_cast<unsigned long long>(seen.rounds),
                static_cast<unsigned long long>(seen.stale),
                static_cast<unsigned long long>(seen.both_old), seen.silent ? "true" : "false");
}

// What fabricd compares with pool.dax_device, which is absolute. Not resolved further: a link is
// compared as it is written there.
std::string absolute(const std::string& path) {
    if (path.front() == '/') return path;
    std::error_code bad;
    const auto whole = std::filesystem::absolute(path, bad).lexically_normal();
    if (bad) refuse("--memory " + path + ": " + bad.message());
    return whole.string();
}

// What fabricd compares before it serves a shared pool: machine, device and profile have to be the
// ones that were tested.
void record(const Options& options, const LitmusSightings& seen) {
    VisibilityProof proof;
    proof.profile = options.profile;
    proof.machine = machine_fingerprint();
    proof.device = options.memory.empty() ? "memory" : absolute(options.memory);
    proof.hosts = options.role == "both" ? 1 : 2;
    proof.rounds = seen.rounds;
    proof.proven = !seen.refutes();
    std::ofstream file(options.record, std::ios::trunc);
    file << format_proof(proof);
    file.close();
    if (!file) refuse("--record " + options.record + ": cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    const Ground ground(options);
    // Side b finds zeros, or it could take what an earlier run left for a sign of this one.
    if (options.role != "b") {
        std::memset(ground.memory.data(), 0, emu::kLitmusBytes);
        if (!options.emulate) {
            ground.view(0).publish(TouchPoint::kMessage, ground.memory.data(), emu::kLitmusBytes);
        }
    }
    const LitmusSightings seen = options.role == "both"
                                     ? play_both(ground, options)
                                     : play(ground, options.role == "a" ? 0 : 1, options);
    print(options, seen);
    if (!options.record.empty()) record(options, seen);
    return seen.refutes() ? 1 : 0;
}
