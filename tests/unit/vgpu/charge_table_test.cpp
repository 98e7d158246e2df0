#include "libfabricshm/vgpu/charge_table.hpp"

#include <doctest/doctest.h>

TEST_SUITE_BEGIN("vgpu.tables");

using namespace fabricshm::cuda;

namespace {

Charge charge_of(std::uint64_t bytes) {
    return {nullptr, bytes, nullptr};
}

}  // namespace

TEST_CASE("memory that two open at the same time is charged once, and closed as often") {
    ChargeTable table;
    // Both found it closed, and had their bytes reserved.
    CHECK_FALSE(table.reopen(7));
    CHECK_FALSE(table.reopen_or_put(7, charge_of(4096)));
    CHECK(table.reopen_or_put(7, charge_of(4096)));
    CHECK(table.take(7)->bytes == 0);
    CHECK(table.take(7)->bytes == 4096);
    CHECK_FALSE(table.take(7).has_value());
}

TEST_CASE("a closing that the driver refuses leaves the table as it was") {
    ChargeTable table;
    table.reopen_or_put(7, charge_of(4096));
    table.reopen(7);
    table.put_back(7, *table.take(7));
    CHECK(table.take(7)->bytes == 0);
    table.put_back(7, *table.take(7));
    CHECK(table.take(7)->bytes == 4096);
}

TEST_SUITE_END();
