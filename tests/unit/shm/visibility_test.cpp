#include "libfabricshm/shm/visibility.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "libfabricshm/shm/flush_policy.hpp"

using namespace fabricshm;

namespace {

struct Recorder final : VisibilityPolicy {
    explicit Recorder(bool is_coherent) : is_coherent(is_coherent) {}
    void publish(const Access& access) noexcept override { published.push_back(access); }
    void acquire(const Access& access) noexcept override { acquired.push_back(access); }
    bool coherent() const noexcept override { return is_coherent; }
    const bool is_coherent;
    std::vector<Access> published;
    std::vector<Access> acquired;
};

alignas(64) std::byte arena[256];

}  // namespace

TEST_SUITE("shm.visibility") {
    TEST_CASE("without a policy memory is coherent and touches are nothing") {
        const Visibility view;
        CHECK(view.coherent());
        CHECK_FALSE(view.active());
        view.publish(TouchPoint::kSlot, arena, 64);
        view.acquire(TouchPoint::kSlotRead, nullptr, 64);
        CHECK(Visibility(nullptr, arena, sizeof arena).coherent());
    }

    TEST_CASE("hosts with coherent caches have one memory, several kernels and nothing to flush") {
        CoherentHosts hosts;
        const Visibility view(&hosts, arena, sizeof arena);
        CHECK(view.coherent());
        CHECK_FALSE(view.one_kernel());
        CHECK_FALSE(view.active());
        CHECK(Visibility().one_kernel());
        // Without shared caches no futex is relied on either, whatever a policy forgets to say.
        Recorder recorder(false);
        CHECK_FALSE(Visibility(&recorder, arena, sizeof arena).one_kernel());
    }

    TEST_CASE("a policy hears of every touch: what, where, how much, whose") {
        Recorder recorder(false);
        const Visibility view(&recorder, arena, sizeof arena);
        CHECK_FALSE(view.coherent());
        view.publish(TouchPoint::kSlot, arena + 64, 100, 3);
        view.acquire(TouchPoint::kSlotRead, arena, 8);
        REQUIRE(recorder.published.size() == 1);
        REQUIRE(recorder.acquired.size() == 1);
        const Access& access = recorder.published[0];
        CHECK(access.touch == TouchPoint::kSlot);
        CHECK(access.data == arena + 64);
        CHECK(access.offset == 64);
        CHECK(access.bytes == 100);
        CHECK(access.peer == 3);
        CHECK(recorder.acquired[0].peer == kNobody);
    }

    TEST_CASE("bytes outside the arena are left alone, and what reaches over its end is cut") {
        Recorder recorder(true);
        const Visibility view(&recorder, arena + 64, 128);
        CHECK(view.coherent());
        view.publish(TouchPoint::kSlot, arena, 64);
        view.publish(TouchPoint::kSlot, arena + 192, 64);
        view.publish(TouchPoint::kSlot, arena + 64, 0);
        CHECK(recorder.published.empty());
        view.publish(TouchPoint::kSlot, arena + 160, 64);
        REQUIRE(recorder.published.size() == 1);
        CHECK(recorder.published[0].bytes == 32);
    }

    TEST_CASE("every touch has a name of its own that says in which direction bytes go") {
        std::set<std::string> names;
        for (int i = 0; i < kTouchCount; ++i) {
            const auto touch = static_cast<TouchPoint>(i);
            const std::string name = row_of(touch).name;
            CHECK(names.insert(name).second);
            CHECK((name.ends_with(".publish") || name.ends_with(".acquire")));
            CHECK(parse_touch(name.c_str()).value() == touch);
        }
        CHECK(parse_touch("nothing.publish").error().code == Errc::kInvalid);
    }
}
