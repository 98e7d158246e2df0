#include "libfabricshm/client/socket_path.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

using namespace fabricshm;
using Paths = std::vector<std::string>;

TEST_SUITE("client.socket_path") {
    TEST_CASE("a path that is given or in FABRIC_SOCKET is the only one") {
        ::setenv("FABRIC_SOCKET", "/a/b", 1);
        CHECK(socket_paths("/x/y") == Paths{"/x/y"});
        CHECK(socket_paths("") == Paths{"/a/b"});
        ::unsetenv("FABRIC_SOCKET");
    }

    TEST_CASE("otherwise the user's daemon comes before the system's") {
        ::unsetenv("FABRIC_SOCKET");
        ::setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
        CHECK(socket_paths("") ==
              Paths{"/run/user/7/fabricd/attach.sock", "/run/fabricd/attach.sock"});
        ::unsetenv("XDG_RUNTIME_DIR");
        CHECK(socket_paths("") == Paths{"/run/fabricd/attach.sock"});
    }

    TEST_CASE("several paths are named in one line") {
        CHECK(joined({"/a", "/b"}) == "/a or /b");
        CHECK(program_name().find("client") != std::string::npos);
    }
}
