#include "fabricd/config/runtime_dir.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

using namespace fabricd;

namespace {

struct Folder {
    Folder() { REQUIRE(::mkdtemp(path) != nullptr); }
    ~Folder() { std::filesystem::remove_all(path); }
    std::string operator/(const char* name) const { return std::string(path) + "/" + name; }
    char path[32] = "/tmp/fabric-runtime-XXXXXX";
};

unsigned mode_of(const std::string& path) {
    struct stat status {};
    ::stat(path.c_str(), &status);
    return status.st_mode & 0777;
}

}  // namespace

TEST_SUITE("fabricd.runtime_dir") {
    TEST_CASE("systemd's folder wins over the user's, and that over the fixed ones") {
        ::setenv("RUNTIME_DIRECTORY", "/run/one:/run/two", 1);
        ::setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
        CHECK(default_runtime_dir() == "/run/one");
        ::unsetenv("RUNTIME_DIRECTORY");
        CHECK(default_runtime_dir() == "/run/user/7/fabricd");
        CHECK(admin_socket_candidates().front() == "/run/user/7/fabricd/admin.sock");
        ::unsetenv("XDG_RUNTIME_DIR");
        const std::string fixed = default_runtime_dir();
        CHECK(fixed == (::geteuid() == 0 ? std::string("/run/fabricd")
                                         : "/tmp/fabricd-" + std::to_string(::geteuid())));
    }

    TEST_CASE("paths that are not configured follow the runtime folder") {
        Config config;
        config.server.runtime_dir = "/r";
        config.server.admin_socket = "/a/admin";
        resolve_paths(config);
        CHECK(config.server.socket == "/r/attach.sock");
        CHECK(config.server.admin_socket == "/a/admin");
        CHECK(config.state.dir == "/r/state");
    }

    TEST_CASE("a folder is made for its user alone, or for others to enter") {
        const Folder folder;
        CHECK_FALSE(prepare_runtime_dir(folder / "own", false));
        CHECK(mode_of(folder / "own") == 0700);
        CHECK_FALSE(prepare_runtime_dir(folder / "own", false));
        CHECK_FALSE(prepare_runtime_dir(folder / "open", true));
        CHECK((mode_of(folder / "open") & 022) == 0);
    }

    TEST_CASE("a link, a file, a folder open to others and a missing parent are refused") {
        const Folder folder;
        ::symlink("/tmp", (folder / "link").c_str());
        CHECK(prepare_runtime_dir(folder / "link", false));
        ::mkdir((folder / "open").c_str(), 0700);
        ::chmod((folder / "open").c_str(), 0777);
        CHECK(prepare_runtime_dir(folder / "open", false));
        CHECK(prepare_runtime_dir("/dev/null", false));
        CHECK(prepare_runtime_dir(folder / "a/b", false)->find("server.runtime_dir") !=
              std::string::npos);
    }
}
