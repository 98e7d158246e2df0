#include "fabricd/server/admission.hpp"

#include <doctest/doctest.h>
#include <grp.h>
#include <unistd.h>

#include "libfabricshm/os/unix_socket.hpp"

using namespace fabricd;
using fabricshm::Errc;

namespace {
constexpr std::uint32_t kStranger = 54321;

// A group that a stranger is not in: root's exists everywhere.
const char* name_of_group() {
    const struct group* entry = ::getgrgid(0);
    return entry != nullptr ? entry->gr_name : "root";
}
}  // namespace

TEST_SUITE("server.admission") {
    TEST_CASE("root and the daemon's own user are admitted without being named") {
        const Admission admission = Admission::make({}, "").value();
        CHECK(admission.admits(0, 0, -1));
        CHECK(admission.admits(::geteuid(), kStranger, -1));
        CHECK_FALSE(admission.has_group());
    }

    TEST_CASE("a user is admitted by the list alone") {
        const Admission admission = Admission::make({kStranger}, "").value();
        CHECK(admission.admits(kStranger, kStranger, -1));
        CHECK_FALSE(admission.admits(kStranger + 1, kStranger, -1));
    }

    TEST_CASE("without a group no user comes in by a group, not even by group 0") {
        const Admission admission = Admission::make({}, "").value();
        CHECK_FALSE(admission.admits(kStranger, 0, -1));
    }

    TEST_CASE("the primary group of the socket's group is enough") {
        const Admission admission = Admission::make({}, name_of_group()).value();
        CHECK(admission.has_group());
        CHECK(admission.admits(kStranger, admission.group(), -1));
    }

    TEST_CASE("supplementary groups are the kernel's word on the connection") {
        const Admission admission = Admission::make({}, name_of_group()).value();
        // A descriptor that is no socket has no groups.
        CHECK_FALSE(admission.admits(kStranger, kStranger, -1));
        const auto ends = fabricshm::UnixSocket::pair().value();
        gid_t groups[1024];
        const int count = ::getgroups(1024, groups);
        REQUIRE(count >= 0);
        bool member = false;
        for (int i = 0; i < count; ++i) member = member || groups[i] == admission.group();
        CHECK(admission.admits(kStranger, kStranger, ends.first.get()) == member);
    }

    TEST_CASE("a group that does not exist is refused at the start") {
        const auto admission = Admission::make({}, "no-such-group-here");
        REQUIRE_FALSE(admission.ok());
        CHECK(admission.error().code == Errc::kInvalid);
    }
}
