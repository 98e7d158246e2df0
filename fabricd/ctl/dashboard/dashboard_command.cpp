#include "fabricd/ctl/dashboard/dashboard_command.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "fabricd/ctl/dashboard/dashboard_pages.hpp"
#include "fabricd/ctl/dashboard/host_header.hpp"
#include "fabricd/ctl/dashboard/picture_keeper.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/random.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;
using fabricshm::Fd;
using fabricshm::Result;

namespace {

constexpr std::size_t kTokenBytes = 16;
constexpr std::size_t kTokenTextMin = 16;
constexpr std::size_t kTokenTextMax = 256;

Result<std::string> make_token() {
    std::array<std::byte, kTokenBytes> bytes{};
    FABRIC_TRY_VOID(fabricshm::fill_random(bytes));
    std::string text;
    for (const std::byte byte : bytes) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", std::to_integer<unsigned>(byte));
        text += digits;
    }
    return text;
}

bool is_token_letter(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_';
}

// As a key: a file that others can read is no secret.
Result<std::string> read_token(const std::string& path) {
    const auto wrong = [&](const char* why) {
        return explain({Errc::kInvalid, 0, "read the token"}, "--token-file %s: %s", path.c_str(),
                       why);
    };
    const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    if (!file || ::fstat(file.get(), &status) != 0) {
        return explain(fabricshm::error_from_errno(errno, "read the token"), "--token-file %s: %s",
                       path.c_str(), std::strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) return wrong("is no file");
    if ((status.st_mode & 077) != 0) return wrong("others may read it (chmod 600)");
    std::array<char, kTokenTextMax + 2> text{};
    const ssize_t got = ::read(file.get(), text.data(), text.size());
    if (got < 0) return fabricshm::error_from_errno(errno, "read the token");
    std::string token(text.data(), static_cast<std::size_t>(got));
    while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
    for (const char c : token) {
        if (!is_token_letter(c)) return wrong("a token has letters, digits, - and _ alone");
    }
    if (token.size() < kTokenTextMin || token.size() > kTokenTextMax) {
        return wrong("a token has 16 to 256 letters in one line");
    }
    return token;
}

CtlExit fail(CtlExit exit, const fabricshm::Error& error) {
    std::fprintf(stderr, "fabricctl: %s\n", fabricshm::explanation_of(error).c_str());
    return exit;
}

// What a person types or clicks. The token is behind the #, which a browser keeps to itself: it is
// in no log of a server.
std::string address_of(const CtlOptions& options, const HttpServer& server,
                       const std::string& token) {
    const std::string& place = options.listen;
    if (place.starts_with("unix:")) return place + "  (#t=" + token + ")";
    return "http://" + place.substr(0, place.rfind(':') + 1) + std::to_string(server.port()) +
           "/#t=" + token;
}

}  // namespace

CtlExit run_dashboard(const CtlOptions& options) {
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int number : {SIGINT, SIGTERM}) ::sigaddset(&signals, number);
    // Before there are threads, which inherit it: else one of them could be ended by it.
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    const auto token = options.file.empty() ? make_token() : read_token(options.file);
    if (!token.ok()) return fail(CtlExit::kUsage, token.error());
    for (const std::string& name : options.settings) {
        // One that no request can be for would refuse all of them, and not say why.
        if (name_of_host(name) == std::optional<std::string_view>(name)) continue;
        return fail(CtlExit::kUsage,
                    explain({Errc::kInvalid, 0, "listen"},
                            "--host %s: a name alone, without a port", name.c_str()));
    }
    PictureKeeperOptions asked;
    asked.admin_socket = find_admin_socket(options.socket);
    PictureKeeper keeper(asked);
    std::vector<std::string> names = options.settings;
    // Any address of the loopback may be the one that it listens at.
    if (!options.listen.starts_with("unix:")) {
        names.push_back(options.listen.substr(0, options.listen.rfind(':')));
    }
    DashboardPages pages({*token, std::move(names)},
                         [&](const PictureQuery& query) { return keeper.newest(query); });
    HttpServerOptions door;
    door.listen = options.listen;
    auto server = HttpServer::start(door, pages);
    if (!server.ok()) return fail(CtlExit::kUsage, server.error());
    std::printf("%s\n", address_of(options, **server, *token).c_str());
    std::fprintf(stderr, "fabricctl: the dashboard of %s; Ctrl-C ends it\n",
                 asked.admin_socket.c_str());
    // A program that starts us reads the address through a pipe.
    std::fflush(stdout);
    int number = 0;
    while (::sigwait(&signals, &number) != 0) {
    }
    return CtlExit::kOk;
}

}  // namespace fabricd
