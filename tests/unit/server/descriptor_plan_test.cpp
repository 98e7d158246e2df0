#include "fabricd/server/descriptor_plan.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>

#include "libfabricshm/os/fd.hpp"

using namespace fabricd;

TEST_SUITE("server.descriptor_plan") {
    TEST_CASE("with room for all there are as many connections as are wanted") {
        CHECK(connections_for(65536, 50, 4160) == 4160);
        CHECK(connections_for(1L << 62, 50, 4160) == 4160);
    }

    TEST_CASE("with less there are fewer, and what else needs descriptors keeps its part") {
        CHECK(connections_for(2000, 32, 4160) == (2000 - 32 - kDescriptorsApart) / 2);
        CHECK(connections_for(256, 56, 4160) == 50);
        CHECK(connections_for(40, 56, 4160) == 0);
    }

    TEST_CASE("what is open is counted") {
        const long before = open_descriptors();
        const fabricshm::Fd one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        CHECK(open_descriptors() == before + 1);
        CHECK(raise_descriptor_limit() > before);
    }
}
