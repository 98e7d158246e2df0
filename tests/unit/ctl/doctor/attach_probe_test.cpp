#include "fabricd/ctl/doctor/attach_probe.hpp"

#include <doctest/doctest.h>

#include "tests/support/fake_daemon.hpp"

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::proto::Type;
using test_support::FakeDaemon;

namespace {

// Never waited for where the daemon answers.
constexpr auto kLong = std::chrono::seconds(60);

}  // namespace

TEST_SUITE("ctl.doctor.attach_probe") {
    TEST_CASE("an attempt to attach ends with a goodbye") {
        FakeDaemon daemon;
        const SocketFacts facts = try_attach(daemon.path(), kLong);
        CHECK(facts.answer == Errc::kOk);
        CHECK(facts.path == daemon.path());
        CHECK(facts.owner);
        CHECK(daemon.wait_for(Type::kBye, 1));
    }

    TEST_CASE("a refusal comes with the daemon's words") {
        FakeDaemon daemon;
        for (const Errc code : {Errc::kDenied, Errc::kVersion, Errc::kBusy}) {
            daemon.refuse_next(Type::kHello, {code, 0, "hello"});
            const SocketFacts facts = try_attach(daemon.path(), kLong);
            CHECK(facts.answer == code);
            CHECK_FALSE(facts.text.empty());
        }
    }

    TEST_CASE("silence, a dead daemon and no daemon are three things") {
        FakeDaemon daemon;
        daemon.be_silent(Type::kHello);
        CHECK(try_attach(daemon.path(), std::chrono::milliseconds(1)).answer == Errc::kTimeout);
        daemon.die();
        CHECK(try_attach(daemon.path(), kLong).answer == Errc::kDaemon);
        CHECK(try_attach(daemon.path() + ".not", kLong).answer == Errc::kNotFound);
    }
}
