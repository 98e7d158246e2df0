#include "libfabricshm/base/lasting.hpp"

#include <doctest/doctest.h>

#include <memory>

using fabricshm::Lasting;

TEST_SUITE("base.lasting") {
    TEST_CASE("what is kept stays, though its last owner goes") {
        auto made = std::make_unique<int>(41);
        const int* const at = made.get();
        Lasting<std::unique_ptr<int>>::keep(std::move(made));
        CHECK(*at == 41);  // the sanitizer's word counts here
    }

    TEST_CASE("one of several is found by what it is, of its own type alone") {
        using Numbers = Lasting<std::shared_ptr<long>>;
        const auto is = [](long wanted) {
            return [wanted](const auto& one) { return *one == wanted; };
        };
        CHECK(Numbers::find(is(7)) == nullptr);
        const auto seven = std::make_shared<long>(7);
        Numbers::keep(std::make_shared<long>(5));
        Numbers::keep(seven);
        Numbers::keep(std::make_shared<long>(7));
        CHECK(Numbers::find(is(7)) == seven);
        CHECK(Numbers::find(is(6)) == nullptr);
        CHECK(Lasting<std::shared_ptr<int>>::find(is(7)) == nullptr);
    }
}
