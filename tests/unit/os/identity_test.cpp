#include "libfabricshm/os/identity.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/process.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricshm;

namespace {

Identity whole() {
    Identity identity;
    identity.host = {0x1122334455667788, 0x99, 0xabcdef, "host1"};
    identity.daemon.instance[0] = 0x4a;
    identity.daemon.place = "/run/fabricd/attach.sock (pid 4711)";
    identity.pool.uuid[15] = 0xff;
    return identity;
}

bool has(const std::optional<std::string>& text, const std::string& part) {
    return text && text->find(part) != std::string::npos;
}

std::optional<std::string> between(const Identity& one, const Identity& other) {
    return difference_of(one, "rank 3", other, "rank 0");
}

}  // namespace

TEST_SUITE("os.identity") {
    TEST_CASE("an identity is read as it was written") {
        CHECK(decode_identity(encode_identity(whole())) == whole());
        Identity bare;
        bare.host.name = "h";
        CHECK(decode_identity(encode_identity(bare)) == bare);
    }

    TEST_CASE("a line that is cut, another version's or longer than any is no identity") {
        const std::string line = encode_identity(whole());
        const std::size_t names = line.find("host1");
        for (std::size_t length = 0; length <= names; ++length) {
            CAPTURE(length);
            CHECK_FALSE(decode_identity(line.substr(0, length)).has_value());
        }
        CHECK_FALSE(decode_identity("fabric-identity 2" + line.substr(17)).has_value());
        CHECK_FALSE(decode_identity(line + std::string(2000, 'x')).has_value());
        CHECK_FALSE(decode_identity(line + '\n').has_value());
        std::string sign = line;
        sign[18] = '-';
        CHECK_FALSE(decode_identity(sign).has_value());
    }

    TEST_CASE("texts for people bring neither another line nor another field") {
        Identity sly = whole();
        sly.host.name = "a b\nc";
        sly.daemon.place = "x\ny z";
        const auto read = decode_identity(encode_identity(sly));
        REQUIRE(read.has_value());
        CHECK(read->host.name == "a?b?c");
        CHECK(read->daemon.place == "x?y z");
        CHECK(read->pool == sly.pool);
    }

    TEST_CASE("ranks of one daemon and pool can meet, also from two containers of the host") {
        CHECK_FALSE(between(whole(), whole()).has_value());
        Identity container = whole();
        container.host.pid_namespace = 7;
        container.host.machine = 8;
        container.host.name = "pod";
        CHECK_FALSE(between(whole(), container).has_value());
    }

    TEST_CASE("two hosts are both named, a copy of a machine too") {
        Identity other = whole();
        other.host = {0x5, 0x1200000000000034, 0xabcdef, "host2"};
        other.daemon.instance[0] = 1;
        const auto text = between(whole(), other);
        CHECK(has(text, "rank 3 on host1 (boot 00000000), rank 0 on host2 (boot 12000000)"));
        CHECK_FALSE(has(text, "machine id"));
        other.host.machine = whole().host.machine;
        CHECK(has(between(whole(), other), "one machine id"));
    }

    TEST_CASE("two pools are both named, and of a device's and the host's memory which is which") {
        Identity other = whole();
        other.pool = {};
        other.daemon.place = "/tmp/b.sock (pid 7)";
        const auto text = between(whole(), other);
        CHECK(has(text, "that of rank 3 of the pool 000000000000000000000000000000ff at /run/"));
        CHECK(has(text, "that of rank 0 of the host's memory at /tmp/b.sock (pid 7)"));
    }

    TEST_CASE("two daemons are both named") {
        Identity other = whole();
        other.daemon.instance[0] = 0x5b;
        other.daemon.place = "/tmp/b.sock (pid 7)";
        const auto text = between(whole(), other);
        CHECK(has(text, "rank 3 to /run/fabricd/attach.sock (pid 4711) (instance 4a000000)"));
        CHECK(has(text, "rank 0 to /tmp/b.sock (pid 7) (instance 5b000000)"));
    }

    TEST_CASE("what is not known of one is no difference") {
        Identity unknown = whole();
        unknown.host.boot = 0;
        unknown.daemon.instance = {};
        CHECK_FALSE(between(whole(), unknown).has_value());
        CHECK_FALSE(between(unknown, whole()).has_value());
    }

    TEST_CASE("a daemon is the folder of its state on this boot") {
        const test_support::TemporaryDirectory one;
        const test_support::TemporaryDirectory other;
        const auto instance = instance_of(one.path());
        REQUIRE(instance.ok());
        CHECK(instance.value() == instance_of(one.path() + "/.").value());
        CHECK(instance.value() != instance_of(other.path()).value());
        CHECK(instance_of(one.path() + "/absent").error().code == Errc::kNotFound);
    }

    TEST_CASE("memory is the file that is mapped, wherever it lies") {
        const Fd one(::memfd_create("one", MFD_CLOEXEC));
        const Fd other(::memfd_create("other", MFD_CLOEXEC));
        REQUIRE(::ftruncate(one.get(), 8192) == 0);
        REQUIRE(::ftruncate(other.get(), 8192) == 0);
        const auto map = [](const Fd& file, off_t from) {
            return ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file.get(), from);
        };
        void* const maps[] = {map(one, 0), map(one, 0), map(one, 4096), map(other, 0)};
        CHECK(memory_at(maps[0]) == memory_at(maps[1]));
        CHECK(memory_at(maps[0]) != memory_at(maps[2]));
        CHECK(memory_at(maps[0]) != memory_at(maps[3]));
        for (void* mapped : maps) ::munmap(mapped, 4096);
        CHECK(memory_at(nullptr).empty());
    }

    TEST_CASE("this host's identity is the same each time, and that of its kernel") {
        CHECK(own_host() == own_host());
        CHECK(own_host().boot == own_kernel());
        CHECK_FALSE(own_host().name.empty());
    }

    TEST_CASE("a machine id is hashed: no part of it is in the hash, and one digit changes it") {
        const std::string id = "0123456789abcdef0123456789abcdef";
        CHECK(detail::hash_machine_id("") == 0);
        CHECK(detail::hash_machine_id(id) == detail::hash_machine_id(id));
        for (std::size_t i = 0; i < id.size(); ++i) {
            std::string other = id;
            other[i] = 'f' - (other[i] == 'f' ? 1 : 0);
            CHECK(detail::hash_machine_id(id) != detail::hash_machine_id(other));
        }
    }
}
