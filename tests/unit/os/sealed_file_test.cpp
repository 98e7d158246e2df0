#include "libfabricshm/os/sealed_file.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

using namespace fabricshm;

TEST_SUITE("os.sealed_file") {
    TEST_CASE("what one process wrote another one maps, and it changes no more") {
        const std::string text(10'000, 'x');
        const auto file = make_sealed_file("test", std::as_bytes(std::span(text)));
        REQUIRE(file.ok());
        const auto mapping = map_sealed_file(*file, kMiB);
        REQUIRE(mapping.ok());
        REQUIRE(mapping->size() == text.size());
        CHECK(std::memcmp(mapping->data(), text.data(), text.size()) == 0);
        CHECK(::pwrite(file->get(), "y", 1, 0) < 0);
        CHECK(::ftruncate(file->get(), 0) != 0);
        CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file->get(), 0) ==
              MAP_FAILED);
    }

    TEST_CASE("a file that may still change, is empty or too large is refused") {
        const Fd open(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
        REQUIRE(::ftruncate(open.get(), 4096) == 0);
        CHECK(map_sealed_file(open, kMiB).error().code == Errc::kCorrupt);
        CHECK(map_sealed_file(Fd(::open("/dev/null", O_RDONLY)), kMiB).error().code ==
              Errc::kCorrupt);
        const auto empty = make_sealed_file("test", {});
        REQUIRE(empty.ok());
        CHECK(map_sealed_file(*empty, kMiB).error().code == Errc::kCorrupt);
        const std::string text(4097, 'x');
        const auto large = make_sealed_file("test", std::as_bytes(std::span(text)));
        REQUIRE(large.ok());
        CHECK(map_sealed_file(*large, 4096).error().code == Errc::kCorrupt);
    }
}
