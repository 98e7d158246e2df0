#include "fabricd/ctl/doctor/device_checks.hpp"

#include <doctest/doctest.h>

#include <unistd.h>

#include "tests/unit/ctl/doctor/fake_host.hpp"

using namespace fabricd;
using namespace fabricd::doctor;

TEST_SUITE("ctl.doctor.device_checks") {
    TEST_CASE("a host without DAX devices is well unless its pool is to be one") {
        FakeHost host;
        CHECK(dax_devices(host.facts).grade == Grade::kOk);
        host.facts.config.config.pool.backend = "dax";
        CHECK(dax_devices(host.facts).grade == Grade::kProblem);
    }

    TEST_CASE("a DAX device is for the user that may open it, and for no other") {
        FakeHost host;
        host.add_dax("dax0.0", "device_dax", 0600);
        host.facts.user.uid = ::geteuid();
        const Finding mine = dax_devices(host.facts);
        CHECK(mine.grade == Grade::kOk);
        CHECK(mine.text.find("256 GiB, mode 0600") != std::string::npos);
        host.facts.user = {::geteuid() + 1000, {}};
        const Finding other = dax_devices(host.facts);
        CHECK(other.grade == Grade::kNote);
        CHECK(other.command == "sudo chown fabricd /dev/dax0.0");
        host.facts.config.config.pool.backend = "dax";
        CHECK(dax_devices(host.facts).grade == Grade::kWarning);
    }

    TEST_CASE("of several DAX devices the gravest is shown") {
        FakeHost host;
        host.facts.user.uid = 0;
        host.add_dax("dax0.0", "device_dax", 0600);
        host.add_dax("dax1.0", "kmem", 0);
        CHECK(dax_devices(host.facts).grade == Grade::kOk);
        host.add_dax("dax2.0", "", 0);
        CHECK(dax_devices(host.facts).command == "sudo daxctl enable-device dax2.0");
        host.add_dax("dax3.0", "device_dax", 0606);
        const Finding open = dax_devices(host.facts);
        CHECK(open.grade == Grade::kWarning);
        CHECK(open.command == "sudo chmod o= /dev/dax3.0");
        CHECK(open.text.find("(1 of 4 devices)") != std::string::npos);
        host.remove("dev/dax3.0");
        CHECK(dax_devices(host.facts).command == "sudo udevadm trigger --subsystem-match=dax");
    }

    TEST_CASE("a device of the pool that is not there is named") {
        FakeHost host;
        host.facts.user.uid = 0;
        host.add_dax("dax0.0", "device_dax", 0600);
        auto& pool = host.facts.config.config.pool;
        pool.backend = "dax";
        pool.dax_devices = {"/dev/dax0.0"};
        CHECK(dax_devices(host.facts).grade == Grade::kOk);
        pool.dax_devices = {"/dev/dax0.0", "/dev/dax1.0"};
        const Finding missing = dax_devices(host.facts);
        CHECK(missing.grade == Grade::kProblem);
        CHECK(missing.text == "/dev/dax1.0 is not there (pool.dax_devices)");
    }

    TEST_CASE("a GPU needs its driver, its files and libcuda") {
        FakeHost host;
        CHECK(nvidia_driver(host.facts).text == "no NVIDIA GPU");
        host.add_gpu();
        CHECK(nvidia_driver(host.facts).command == "sudo apt install nvidia-driver");
        host.write("sys/module/nvidia/version", "535.183.01");
        CHECK(nvidia_driver(host.facts).command == "sudo nvidia-modprobe -c 0 -u");
        host.write("dev/nvidia0", "");
        host.write("dev/nvidiactl", "");
        host.facts.user.uid = ::geteuid();
        CHECK(nvidia_driver(host.facts).grade == Grade::kUnknown);
        host.facts.libcuda = "cannot open shared object file";
        CHECK(nvidia_driver(host.facts).command == "sudo apt install libcuda1");
        host.facts.libcuda = "";
        const Finding well = nvidia_driver(host.facts);
        CHECK(well.grade == Grade::kOk);
        CHECK(well.text == "driver 535.183.01, 1 GPU");
        ::chmod(host.path("dev/nvidia0").c_str(), 0600);
        host.facts.user = {::geteuid() + 1000, {}};
        CHECK(nvidia_driver(host.facts).grade == Grade::kWarning);
    }

    TEST_CASE("a host whose devices can't be listed is unknown") {
        FakeHost host;
        host.remove("sys/bus/pci");
        CHECK(nvidia_driver(host.facts).grade == Grade::kUnknown);
    }
}
