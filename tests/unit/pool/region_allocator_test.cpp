#include "fabricd/pool/region_allocator.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

using fabricd::Bytes;
using fabricd::RegionAllocator;

namespace {

constexpr Bytes kUnit = RegionAllocator::kUnit;

/// The definition of right: one flag per unit.
class Bitmap {
  public:
    explicit Bitmap(std::size_t units) : taken_(units, false) {}
    bool all(std::size_t first, std::size_t count, bool taken) const {
        return std::all_of(taken_.begin() + static_cast<long>(first),
                           taken_.begin() + static_cast<long>(first + count),
                           [&](bool unit) { return unit == taken; });
    }
    void set(std::size_t first, std::size_t count, bool taken) {
        std::fill_n(taken_.begin() + static_cast<long>(first), count, taken);
    }
    /// Lengths of the runs of free units.
    std::vector<std::size_t> holes() const {
        std::vector<std::size_t> found;
        std::size_t run = 0;
        for (const bool unit : taken_) {
            if (unit && run != 0) found.push_back(run);
            run = unit ? 0 : run + 1;
        }
        if (run != 0) found.push_back(run);
        return found;
    }

  private:
    std::vector<bool> taken_;
};

void compare(const RegionAllocator& space, const Bitmap& bitmap) {
    const std::vector<std::size_t> holes = bitmap.holes();
    Bytes free = 0;
    Bytes largest = 0;
    for (const std::size_t hole : holes) {
        free += hole * kUnit;
        largest = std::max<Bytes>(largest, hole * kUnit);
    }
    REQUIRE(space.bytes_free() == free);
    REQUIRE(space.hole_count() == holes.size());
    REQUIRE(space.largest_hole() == largest);
}

}  // namespace

TEST_SUITE("pool.region_allocator") {
    TEST_CASE("what is added at the end is free, and one with the hole before it") {
        RegionAllocator space(4 * kUnit);
        CHECK(space.bytes_free_at_end() == 4 * kUnit);
        CHECK(space.allocate(3 * kUnit) == 0);
        CHECK(space.bytes_free_at_end() == kUnit);
        space.extend(6 * kUnit + 1);
        CHECK(space.bytes_total() == 6 * kUnit);
        CHECK(space.bytes_free_at_end() == 3 * kUnit);
        CHECK(space.allocate(3 * kUnit) == 3 * kUnit);
        CHECK(space.bytes_free_at_end() == 0);
        space.extend(5 * kUnit);
        CHECK(space.bytes_total() == 6 * kUnit);
        CHECK(space.release(0, 3 * kUnit));
        CHECK(space.bytes_free_at_end() == 0);
    }

    TEST_CASE("ten thousand random steps agree with a bitmap") {
        constexpr std::size_t kUnits = 257;  // not a power of two, so that nothing fits by chance
        std::mt19937 random(7);
        RegionAllocator space(kUnits * kUnit);
        Bitmap bitmap(kUnits);
        std::map<std::uint64_t, Bytes> held;
        for (int step = 0; step < 10000; ++step) {
            const std::size_t count = 1 + random() % 24;
            const bool take = held.empty() || random() % 100 < 55;
            if (take) {
                const auto offset = space.allocate(count * kUnit - random() % kUnit);
                const auto holes = bitmap.holes();
                const bool fits = std::any_of(holes.begin(), holes.end(),
                                              [&](auto hole) { return hole >= count; });
                REQUIRE(offset.has_value() == fits);
                if (!fits) continue;
                REQUIRE(bitmap.all(*offset / kUnit, count, false));
                bitmap.set(*offset / kUnit, count, true);
                held[*offset] = count * kUnit;
            } else {
                auto victim = held.begin();
                std::advance(victim, static_cast<long>(random() % held.size()));
                REQUIRE(space.release(victim->first, victim->second));
                bitmap.set(victim->first / kUnit, victim->second / kUnit, false);
                held.erase(victim);
            }
            compare(space, bitmap);
        }
    }

    TEST_CASE("reserving takes exactly what it names, or nothing") {
        RegionAllocator space(16 * kUnit);
        CHECK(space.reserve(4 * kUnit, 2 * kUnit));
        CHECK_FALSE(space.reserve(5 * kUnit, kUnit));
        CHECK_FALSE(space.reserve(3 * kUnit, 2 * kUnit));
        CHECK_FALSE(space.reserve(15 * kUnit, 2 * kUnit));
        CHECK_FALSE(space.reserve(1, kUnit));
        CHECK_FALSE(space.reserve(0, 0));
        CHECK_FALSE(space.reserve(~std::uint64_t{0} - kUnit + 1, kUnit));
        CHECK(space.bytes_used() == 2 * kUnit);
        CHECK(space.reserve(0, 4 * kUnit));
        CHECK(space.hole_count() == 1);
    }

    TEST_CASE("what is free already cannot be given back again") {
        RegionAllocator space(8 * kUnit);
        const auto offset = space.allocate(2 * kUnit).value();
        CHECK_FALSE(space.release(offset, 3 * kUnit));
        CHECK(space.release(offset, 2 * kUnit));
        CHECK_FALSE(space.release(offset, 2 * kUnit));
        CHECK_FALSE(space.release(64 * kUnit, kUnit));
        CHECK(space.largest_hole() == 8 * kUnit);
    }

    TEST_CASE("the smallest hole that is large enough is taken") {
        RegionAllocator space(10 * kUnit);
        REQUIRE(space.reserve(4 * kUnit, kUnit));  // leaves holes of 4 and 5 units
        CHECK(space.allocate(4 * kUnit).value() == 0);
        CHECK(space.allocate(5 * kUnit).value() == 5 * kUnit);
        CHECK_FALSE(space.allocate(1).has_value());
    }

    TEST_CASE("sizes beyond every pool are refused, not wrapped around") {
        RegionAllocator space(4 * kUnit);
        CHECK_FALSE(space.allocate(~Bytes{0}).has_value());
        CHECK_FALSE(space.allocate(~Bytes{0} - 4095).has_value());
        CHECK(space.allocate(0).has_value());
        CHECK(RegionAllocator(100).bytes_total() == 0);
    }
}
