#include "fabricd/ctl/doctor/daemon_checks.hpp"

#include <doctest/doctest.h>

#include "tests/unit/ctl/doctor/fake_host.hpp"

using namespace fabricd;
using namespace fabricd::doctor;
using fabricshm::Errc;

TEST_SUITE("ctl.doctor.daemon_checks") {
    TEST_CASE("a configuration that fabricd would refuse is a problem with its line") {
        FakeHost host;
        CHECK(configuration(host.facts).grade == Grade::kOk);
        host.facts.config.path = "/etc/fabricd/fabricd.toml";
        CHECK(configuration(host.facts).grade == Grade::kOk);
        host.facts.config.wrong = "fabricd.toml:3: there is no key pool.size";
        const Finding wrong = configuration(host.facts);
        CHECK(wrong.grade == Grade::kProblem);
        CHECK(wrong.text == *host.facts.config.wrong);
        CHECK(wrong.command == "fabricd --config=/etc/fabricd/fabricd.toml --print-config");
        host.facts.config.is_readable = false;
        CHECK(configuration(host.facts).grade == Grade::kUnknown);
    }

    TEST_CASE("a unit is to be installed, active and enabled, where systemd runs") {
        FakeHost host;
        CHECK(service(host.facts).grade == Grade::kOk);
        host.write("run/systemd/system/x", "");
        CHECK(service(host.facts).grade == Grade::kNote);
        host.install_unit();
        const Finding idle = service(host.facts);
        CHECK(idle.grade == Grade::kWarning);
        CHECK(idle.command == "sudo systemctl enable --now fabricd");
        host.write("sys/fs/cgroup/system.slice/fabricd.service/cgroup.procs", "77");
        CHECK(service(host.facts).command == "sudo systemctl enable fabricd");
        host.write("etc/systemd/system/multi-user.target.wants/fabricd.service", "");
        CHECK(service(host.facts).grade == Grade::kOk);
        host.remove("sys/fs/cgroup");
        CHECK(service(host.facts).grade == Grade::kUnknown);
    }

    TEST_CASE("a daemon that runs by other means is no fault of its unit") {
        FakeHost host;
        host.install_unit();
        host.start_daemon();
        CHECK(service(host.facts).grade == Grade::kNote);
    }

    TEST_CASE("no daemon is a note, and one that left its socket a warning") {
        FakeHost host;
        host.facts.admin.owner.reset();
        host.facts.admin.answer = Errc::kNotFound;
        CHECK(admin_socket(host.facts).grade == Grade::kNote);
        CHECK(admin_socket(host.facts).command == "fabricd");
        host.install_unit();
        CHECK(admin_socket(host.facts).command == "sudo systemctl enable --now fabricd");
        host.facts.attach.answer = Errc::kDaemon;
        CHECK(attach_socket(host.facts).grade == Grade::kWarning);
    }

    TEST_CASE("a daemon that does not answer in time is a problem") {
        FakeHost host;
        host.facts.admin.answer = host.facts.attach.answer = Errc::kTimeout;
        host.facts.attach.took = std::chrono::seconds(1);
        CHECK(admin_socket(host.facts).grade == Grade::kProblem);
        CHECK(attach_socket(host.facts).text.find("no answer within 1 s") != std::string::npos);
        CHECK(attach_socket(host.facts).command == "fabricctl health");
    }

    TEST_CASE("a daemon that answers says its version, and its alarms are problems") {
        FakeHost host;
        host.start_daemon();
        const Finding well = admin_socket(host.facts);
        CHECK(well.grade == Grade::kOk);
        CHECK(well.text.find("pid 77") != std::string::npos);
        host.facts.status->version = "9.9.9";
        CHECK(admin_socket(host.facts).grade == Grade::kNote);
        host.facts.status->alarms = {"the disk is full"};
        CHECK(admin_socket(host.facts).grade == Grade::kProblem);
    }

    TEST_CASE("the admin socket of another user is unknown, and not a problem") {
        FakeHost host;
        host.facts.admin.answer = Errc::kDenied;
        const Finding denied = admin_socket(host.facts);
        CHECK(denied.grade == Grade::kUnknown);
        CHECK(denied.command == "sudo fabricctl doctor");
    }

    TEST_CASE("what keeps this user's trainers away is named") {
        FakeHost host;
        CHECK(attach_socket(host.facts).grade == Grade::kOk);
        host.facts.attach.answer = Errc::kDenied;
        const Finding denied = attach_socket(host.facts);
        CHECK(denied.grade == Grade::kWarning);
        CHECK(denied.text.find("user 1000 is not admitted") != std::string::npos);
        CHECK(denied.command == "fabricd --server-allow-uids=1000");
        host.facts.attach.answer = Errc::kVersion;
        CHECK(attach_socket(host.facts).grade == Grade::kProblem);
        host.facts.attach.answer = Errc::kBusy;
        host.facts.attach.text = "fabricd drains";
        host.start_daemon();
        host.facts.status->draining = true;
        const Finding drains = attach_socket(host.facts);
        CHECK(drains.grade == Grade::kProblem);
        CHECK(drains.command == "fabricctl drain --off");
    }
}
