#include "libfabricshm/os/page_file.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

using namespace fabricshm;

namespace {

void format(std::byte* page) noexcept {
    page[0] = std::byte{7};
}

PageFile make(PageAccess access) {
    return make_page_file("fabric-test", 4096, access, format).value();
}

// A descriptor of the same file for reading and writing, by way of /proc.
Fd open_again(const Fd& file) {
    return Fd(::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDWR | O_CLOEXEC));
}

bool can_map_writable(const Fd& file) {
    void* data = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (data == MAP_FAILED) return false;
    ::munmap(data, 4096);
    return true;
}

}  // namespace

TEST_SUITE("os.page_file") {
    TEST_CASE("the maker of a read-only file writes it, and no other process can") {
        const PageFile page = make(PageAccess::kReadOnly);
        const auto view = Mapping::map(page.descriptor, 0, 4096, {.writable = false}).value();
        CHECK(view.data()[0] == std::byte{7});
        page.mapping.data()[1] = std::byte{8};
        CHECK(view.data()[1] == std::byte{8});

        CHECK_FALSE(can_map_writable(page.descriptor));
        CHECK(::mprotect(view.data(), 4096, PROT_READ | PROT_WRITE) != 0);
        CHECK(::write(page.descriptor.get(), "x", 1) < 0);
        // The file is of the same user, so it may be opened for writing; the seal still holds.
        const Fd again = open_again(page.descriptor);
        CHECK((!again || !can_map_writable(again)));
        CHECK((!again || ::write(again.get(), "x", 1) < 0));
        CHECK(page.mapping.data()[0] == std::byte{7});
    }

    TEST_CASE("a process that gets a writable file writes it, and the maker only reads") {
        const PageFile page = make(PageAccess::kReadWrite);
        const auto view = Mapping::map(page.descriptor, 0, 4096, {}).value();
        view.data()[1] = std::byte{8};
        CHECK(page.mapping.data()[1] == std::byte{8});
    }

    TEST_CASE("no process can cut a page off below a reader of it") {
        for (const PageAccess access : {PageAccess::kReadOnly, PageAccess::kReadWrite}) {
            const PageFile page = make(access);
            const Fd again = open_again(page.descriptor);
            CHECK(::ftruncate(again.get(), 0) != 0);
            CHECK(::ftruncate(again.get(), 8192) != 0);
            CHECK(::fcntl(again.get(), F_ADD_SEALS, F_SEAL_WRITE) != 0);
            const int punched =
                ::fallocate(again.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096);
            // Only the content goes, the page stays mapped: zeros and not a SIGBUS.
            if (punched == 0) CHECK(page.mapping.data()[0] == std::byte{0});
        }
    }
}
