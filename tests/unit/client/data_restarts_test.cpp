#include <doctest/doctest.h>

#include <string>
#include <thread>

#include "libfabricshm/client/data_set.hpp"
#include "tests/support/children.hpp"
#include "tests/support/fake_data_service.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;
using proto::DataType;
using test_support::Child;
using test_support::FakeDataService;
using test_support::wrong_bytes;

namespace {

struct Reader {
    Reader() {
        service.add("/set/a", 28'000);
        service.add("/set/b", 300);
        client = DataClient::open(service.options()).value();
        set = DataSet::list(client, "/set", 0, deadline_from_now(20s)).value();
    }
    // 0: the bytes are right.
    int look(std::uint64_t index, std::uint64_t version = 1, Duration timeout = 20s) const {
        const auto view = set->acquire(index, 0, timeout);
        if (!view.ok()) return static_cast<int>(view.error().code);
        const bool is_right = wrong_bytes(view->bytes, view->length,
                                          index == 0 ? "/set/a" : "/set/b", version, 0) == 0;
        set->release(view->handle);
        return is_right ? 0 : 100;
    }

    FakeDataService service;
    std::shared_ptr<DataClient> client;
    std::unique_ptr<DataSet> set;
};

}  // namespace

TEST_SUITE("client.data_restarts") {
    TEST_CASE("without a service what is in the pool is viewed and the rest waits") {
        Reader reader;
        CHECK(reader.look(0) == 0);
        reader.service.die();
        CHECK(reader.look(0) == 0);
        CHECK(reader.look(1, 1, 30ms) == static_cast<int>(Errc::kDaemon));
        std::thread back([&] { reader.service.come_back(); });
        CHECK(reader.look(1) == 0);
        back.join();
    }

    TEST_CASE("opening without a service is kDaemon at once and names the socket") {
        DataOptions options;
        {
            FakeDataService service;
            options = service.options();
            service.die();
            const auto opened = DataClient::open(options);
            CHECK(opened.error().code == Errc::kDaemon);
            CHECK(describe(opened.error()).find(service.socket()) != std::string::npos);
            service.come_back();
        }
    }

    TEST_CASE("a service that begins again in its arena is followed by name and version") {
        Reader reader;
        CHECK(reader.look(0) == 0);
        const DataView held = reader.set->acquire(0, 0, 20s).value();
        reader.service.die();
        reader.service.come_back_anew();
        CHECK(wrong_bytes(held.bytes, held.length, "/set/a", 1, 0) == 0);
        // The numbers of both files are the other's now.
        CHECK(reader.look(0) == 0);
        CHECK(reader.look(1) == 0);
        CHECK(reader.set->release(held.handle));
        CHECK(reader.service.readers() == 1);
        proto::DataPlanRequest plan{};
        plan.world = 1;
        CHECK(reader.set->announce(plan, deadline_from_now(20s)).ok());
        CHECK(reader.service.last_plan().listing > reader.set->listing().id());
    }

    TEST_CASE("a file that was replaced meanwhile is kChanged after a restart") {
        Reader reader;
        CHECK(reader.look(1) == 0);
        reader.service.die();
        reader.service.change("/set/a");
        reader.service.come_back_anew();
        CHECK(reader.look(0) == static_cast<int>(Errc::kChanged));
        CHECK(reader.look(1) == 0);
    }

    TEST_CASE("another arena is mapped, and the old one goes with its last view") {
        Reader reader;
        const DataView held = reader.set->acquire(0, 0, 20s).value();
        CHECK(reader.look(1) == 0);
        reader.service.die();
        reader.service.come_back_elsewhere();
        // What is in the old one is good, and the service is not asked.
        CHECK(reader.look(1) == 0);
        CHECK(reader.service.readers() == 1);
        reader.service.add("/set/z", 10);
        const auto fresh = DataSet::list(reader.client, "/set", 0, deadline_from_now(20s)).value();
        CHECK(reader.service.readers() == 2);
        CHECK(fresh->listing().size() == 3);
        CHECK(reader.look(0) == 0);
        CHECK(reader.look(1) == 0);
        CHECK(wrong_bytes(held.bytes, held.length, "/set/a", 1, 0) == 0);
        CHECK(reader.client->process().held() == 1);
        CHECK(reader.set->release(held.handle));
        CHECK(reader.client->process().held() == 0);
        CHECK(reader.client->process().counts().hits == 1);
        CHECK(reader.client->process().counts().misses == 4);
    }

    TEST_CASE("a miss in an old arena finds the new one by itself") {
        Reader reader;
        reader.service.die();
        reader.service.come_back_elsewhere();
        CHECK(reader.look(0) == 0);
        CHECK(reader.look(1) == 0);
        CHECK(reader.service.readers() == 2);
    }

    TEST_CASE("a child of fork() has pins of its own and leaves the parent's alone") {
        Reader reader;
        const DataView held = reader.set->acquire(0, 0, 20s).value();
        Child child([&] {
            if (reader.set->release(held.handle)) return 1;
            if (wrong_bytes(held.bytes, held.length, "/set/a", 1, 0) != 0) return 2;
            if (reader.look(0) != 0 || reader.look(1) != 0) return 3;
            const auto view = reader.set->acquire(1, 0, 20s);
            if (!view.ok() || view->handle == held.handle) return 4;
            if (reader.client->process().counts().hits != 2) return 5;
            reader.set.reset();
            reader.client.reset();
            return 0;
        });
        CHECK(child.wait() == 0);
        CHECK(reader.service.readers() == 2);
        CHECK_FALSE(reader.service.evict(reader.service.line_of("/set/a")));
        CHECK(reader.set->release(held.handle));
        CHECK(reader.service.evict(reader.service.line_of("/set/a")));
        CHECK(reader.look(0) == 0);
    }
}
