#include "libfabricshm/vgpu/books.hpp"

#include <doctest/doctest.h>

TEST_SUITE_BEGIN("vgpu.books");

using namespace fabricshm::cuda;

namespace {

Charge charge_of(std::uint64_t bytes) {
    return {nullptr, bytes, nullptr};
}

}  // namespace

TEST_CASE("memory that two open at the same time is charged once, and closed as often") {
    Book book;
    // Both found it closed, and had their bytes reserved.
    CHECK_FALSE(book.reopen(7));
    CHECK_FALSE(book.reopen_or_put(7, charge_of(4096)));
    CHECK(book.reopen_or_put(7, charge_of(4096)));
    CHECK(book.take(7)->bytes == 0);
    CHECK(book.take(7)->bytes == 4096);
    CHECK_FALSE(book.take(7).has_value());
}

TEST_CASE("a closing that the driver refuses leaves the book as it was") {
    Book book;
    book.reopen_or_put(7, charge_of(4096));
    book.reopen(7);
    book.put_back(7, *book.take(7));
    CHECK(book.take(7)->bytes == 0);
    book.put_back(7, *book.take(7));
    CHECK(book.take(7)->bytes == 4096);
}

TEST_SUITE_END();
