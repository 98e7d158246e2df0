// fabric-mount: the files of the data cache as a folder. docs/data.md, "The mount".

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabricd/data/mount/cache_source.hpp"
#include "fabricd/data/mount/doctor.hpp"
#include "fabricd/data/mount/folder_source.hpp"
#include "fabricd/data/mount/keeper.hpp"
#include "fabricd/data/mount/mount_server.hpp"
#include "libfabricshm/base/empty_values.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/version.hpp"

namespace {

using fabricshm::Fd;

constexpr int kFailed = 1;
constexpr int kBadUsage = 2;

constexpr const char* kMore =
    "\nExit codes: 0 mounted, or ended on request; 1 it could not be mounted, or doctor found\n"
    "something; 2 wrong usage.\n";

struct Words {
    std::string mount_point;
    std::string path = "/";
    std::string socket;
    std::string user;
    std::string timeout = "30s";
    std::string refresh = "1s";
    std::string mask = "0";
    std::string from_folder;
    unsigned threads = 16;
    bool allow_other = false;
    bool nonempty = false;
    bool foreground = false;
    bool answers_open = false;
    bool serves = false;
    bool to_syslog = false;
};

int fail(int code, const std::string& line) {
    std::fprintf(stderr, "fabric-mount: %s\n", line.c_str());
    return code;
}

void write_syslog(fabricshm::LogLevel level, const char* line) {
    constexpr int kPriorities[] = {LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERR, LOG_ERR};
    ::syslog(kPriorities[static_cast<int>(level)], "%s", line);
}

std::optional<std::string> read_options(const Words& words, fabricd::MountOptions& options) {
    const auto timeout = fabricshm::parse_duration(words.timeout);
    if (!timeout.ok()) return "--timeout: '" + words.timeout + "' is no time, as 30s";
    const auto refresh = fabricshm::parse_duration(words.refresh);
    if (!refresh.ok()) return "--refresh: '" + words.refresh + "' is no time, as 1s";
    char* end = nullptr;
    const unsigned long mask = std::strtoul(words.mask.c_str(), &end, 8);
    if (words.mask.empty() || *end != '\0' || mask > 0777) {
        return "--umask: '" + words.mask + "' is no octal number up to 777";
    }
    if (words.threads < 1 || words.threads > fabricd::kMountSlots) {
        return "--threads takes 1 to " + std::to_string(fabricd::kMountSlots);
    }
    if (words.path.empty() || words.path[0] != '/') return "--path begins with a '/'";
    options.timeout = *timeout;
    options.refresh = *refresh;
    options.mask = static_cast<unsigned>(mask);
    options.threads = words.threads;
    options.answers_open = words.answers_open;
    return std::nullopt;
}

std::unique_ptr<fabricd::MountSource> source_of(const Words& words) {
    if (!words.from_folder.empty())
        return std::make_unique<fabricd::FolderSource>(words.from_folder);
    std::string path = words.path;
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return std::make_unique<fabricd::CacheSource>(path, words.socket);
}

constexpr char kStandbyName[] = "mount-standby";

// False: the keeper has ended.
bool wait_for_turn(const Fd& gate) {
    char byte = 0;
    ssize_t got = 0;
    while ((got = ::read(gate.get(), &byte, 1)) < 0 && errno == EINTR) {
    }
    return got == 1;
}

// What the keeper starts.
int serve(const Words& words, const fabricd::MountOptions& options) {
    if (words.to_syslog) fabricshm::set_log_sink(write_syslog);
    ::fcntl(fabricd::kFuseDescriptor, F_SETFD, FD_CLOEXEC);
    ::fcntl(fabricd::kHandoverDescriptor, F_SETFD, FD_CLOEXEC);
    ::fcntl(fabricd::kGateDescriptor, F_SETFD, FD_CLOEXEC);
    const Fd gate(fabricd::kGateDescriptor);
    ::prctl(PR_SET_NAME, kStandbyName);
    auto handover = fabricd::Handover::map(Fd(fabricd::kHandoverDescriptor));
    if (!handover.ok()) return fail(kFailed, "it is started by fabric-mount-keeper alone");
    auto source = source_of(words);
    // A later server must not end: requests wait for the source, and get errors when it does not
    // come.
    const bool is_first = handover->head().servers.load(std::memory_order_acquire) == 0;
    const auto most = is_first ? std::chrono::seconds(5) : std::chrono::seconds(1);
    const auto opened = source->open(fabricshm::Clock::now() + most);
    if (is_first && !opened.ok()) return fail(kFailed, explanation_of(opened.error()));
    auto server = fabricd::MountServer::make(Fd(fabricd::kFuseDescriptor), std::move(*handover),
                                             std::move(source), options);
    if (!server.ok()) return fail(kFailed, explanation_of(server.error()));
    if (words.to_syslog) {
        const Fd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
        ::dup2(nothing.get(), STDERR_FILENO);
    }
    if (!wait_for_turn(gate)) return kFailed;
    ::prctl(PR_SET_NAME, "fabric-mount");
    const auto ended = (*server)->run();
    return ended.ok() ? 0 : fail(kFailed, explanation_of(ended.error()));
}

int examine(const Words& words) {
    bool all_well = true;
    for (const auto& finding : fabricd::examine_mount(words.mount_point, words.socket)) {
        std::printf("%s  %s\n", finding.is_well ? "ok     " : "PROBLEM", finding.text.c_str());
        all_well = all_well && finding.is_well;
    }
    return std::fflush(stdout) == 0 && all_well ? 0 : kFailed;
}

std::string own_program() {
    char path[4096];
    const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path - 1);
    return length > 0 ? std::string(path, static_cast<std::size_t>(length)) : "fabric-mount";
}

// Next to this program where it was built, in libexec where it is installed.
std::string keeper_program(const std::string& self) {
    const std::string folder = self.substr(0, self.rfind('/') + 1);
    const std::string built = folder + "fabric-mount-keeper";
    return ::access(built.c_str(), X_OK) == 0 ? built : folder + FABRIC_KEEPER_FROM_BIN;
}

std::vector<std::string> keeper_words(const Words& words, int argc, char** argv, int ready) {
    const std::string self = own_program();
    std::vector<std::string> run{keeper_program(self)};
    if (words.allow_other) run.emplace_back("--allow-other");
    if (words.nonempty) run.emplace_back("--nonempty");
    if (!words.user.empty()) run.insert(run.end(), {"--user", words.user});
    if (ready >= 0) run.insert(run.end(), {"--ready-fd", std::to_string(ready), "--syslog"});
    run.insert(run.end(), {words.mount_point, "--", self, "--serve"});
    if (ready >= 0) run.emplace_back("--syslog");
    run.insert(run.end(), argv + 1, argv + argc);
    return run;
}

int become(const std::vector<std::string>& words) {
    std::vector<char*> pointers;
    for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
    pointers.push_back(nullptr);
    ::execv(pointers[0], pointers.data());
    return fail(kFailed, "can't run " + words[0] + ": " + std::strerror(errno));
}

// Returns when the mount is there; the keeper goes on by itself.
int mount_in_background(const Words& words, int argc, char** argv) {
    int ends[2];
    if (::pipe(ends) != 0) return fail(kFailed, std::strerror(errno));
    ::fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    const pid_t keeper = ::fork();
    if (keeper < 0) return fail(kFailed, std::strerror(errno));
    if (keeper == 0) {
        ::setsid();
        const Fd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
        ::dup2(nothing.get(), STDIN_FILENO);
        ::dup2(nothing.get(), STDOUT_FILENO);
        ::_exit(become(keeper_words(words, argc, argv, ends[1])));
    }
    ::close(ends[1]);
    char byte = 0;
    ssize_t got = 0;
    while ((got = ::read(ends[0], &byte, 1)) < 0 && errno == EINTR) {
    }
    if (got == 1) return 0;
    int status = 0;
    ::waitpid(keeper, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) != 0 ? WEXITSTATUS(status) : kFailed;
}

void describe(CLI::App& app, Words& words) {
    app.add_option("MOUNTPOINT", words.mount_point, "An empty folder");
    app.add_option("--path", words.path, "The folder of the data cache that is mounted (default /)")
        ->type_name("PATH");
    app.add_option("--socket", words.socket,
                   "The data service's (default FABRIC_DATA_SOCKET, or where it usually is)")
        ->type_name("PATH");
    app.add_flag("--foreground", words.foreground, "Stay, and log to standard error");
    app.add_flag("--allow-other", words.allow_other,
                 "All users may read there; otherwise the one that mounts");
    app.add_flag("--nonempty", words.nonempty, "Also where files are, which the mount hides");
    app.add_option("--user", words.user, "The server runs as this user")->type_name("NAME");
    app.add_option("--umask", words.mask, "Permissions that files and folders lack (default 0)")
        ->type_name("OCTAL");
    app.add_option("--threads", words.threads, "Requests worked on at once, 1 to 64 (default 16)")
        ->type_name("N");
    app.add_option("--timeout", words.timeout,
                   "With a silo that does not answer, before reads fail (default 30s)")
        ->type_name("TIME");
    app.add_option("--refresh", words.refresh, "How often folders are read again (default 1s)")
        ->type_name("TIME");
    // For tests and benchmarks, and for the keeper.
    app.add_option("--from-folder", words.from_folder)->group("");
    app.add_flag("--answer-open", words.answers_open)->group("");
    app.add_flag("--serve", words.serves)->group("");
    app.add_flag("--syslog", words.to_syslog)->group("");
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{"The files of the data cache as a folder, for programs that read files."};
    app.name("fabric-mount");
    app.set_version_flag("-V,--version", "fabric-mount " FABRIC_VERSION);
    app.footer(kMore);
    Words words;
    describe(app, words);
    CLI::App& doctor = *app.add_subcommand("doctor", "Say what keeps a mount from working");
    doctor.add_option("MOUNTPOINT", words.mount_point, "The mount, if there is to be one");
    doctor.add_option("--socket", words.socket, "The data service's")->type_name("PATH");
    fabricshm::refuse_empty_values(app);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        // --help and --version come as errors without a code.
        if (error.get_exit_code() == 0) return app.exit(error);
        return fail(kBadUsage, error.what() + std::string(" (fabric-mount --help)"));
    }
    if (doctor.parsed()) return examine(words);
    fabricd::MountOptions options;
    if (words.mount_point.empty())
        return fail(kBadUsage, "MOUNTPOINT is missing (fabric-mount --help)");
    if (const auto bad = read_options(words, options); bad) return fail(kBadUsage, *bad);
    if (words.serves) return serve(words, options);
    if (words.foreground) return become(keeper_words(words, argc, argv, -1));
    return mount_in_background(words, argc, argv);
}
