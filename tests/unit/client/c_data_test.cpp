#include <doctest/doctest.h>

#include <cstring>
#include <fabricshm/data.hpp>
#include <string>
#include <vector>

#include "libfabricshm/client/data_handle.hpp"
#include "tests/support/fake_data_service.hpp"

using test_support::FakeDataService;
using test_support::wrong_bytes;
namespace api = fabricshm::api;

namespace {

constexpr std::int64_t kTimeout = FABRICSHM_TIMEOUT_DEFAULT;

struct Data {
    Data() {
        service.add("/set/a", 28'000);
        service.add("/set/b", 0);
        service.add("/set/folder/c", 10);
        data = new fabricshm_data{fabricshm::DataClient::open(service.options()).value()};
    }
    fabricshm_data_set* list() {
        fabricshm_data_set* set = nullptr;
        REQUIRE(fabricshm_data_list(data, "/set", 0, kTimeout, &set) == 0);
        return set;
    }

    FakeDataService service;
    fabricshm_data* data = nullptr;
};

std::string text() {
    return fabricshm_error_text();
}

bool is_right(const fabricshm_data_view& view) {
    return wrong_bytes(static_cast<const std::byte*>(view.bytes), view.length, "/set/a", 1, 0) == 0;
}

}  // namespace

TEST_SUITE("client.c_data") {
    TEST_CASE("a set and its last view may be closed in any order") {
        Data one;
        fabricshm_data_set* const set = one.list();
        fabricshm_data_close(one.data);
        fabricshm_data_view first{};
        fabricshm_data_view second{};
        REQUIRE(fabricshm_data_acquire(set, 0, 0, kTimeout, &first) == 0);
        REQUIRE(fabricshm_data_acquire(set, 0, 0, kTimeout, &second) == 0);
        fabricshm_data_set_close(set);
        fabricshm_data_release(set, &first);
        CHECK(is_right(second));
        CHECK_FALSE(one.service.evict(one.service.line_of("/set/a")));
        fabricshm_data_release(set, &second);  // frees the set, too
        CHECK(one.service.evict(one.service.line_of("/set/a")));
        fabricshm_data_set_close(nullptr);
        fabricshm_data_close(nullptr);
    }

    TEST_CASE("entries, names, reads and counters") {
        Data one;
        fabricshm_data_set* const set = one.list();
        CHECK(fabricshm_data_set_count(set) == 3);
        fabricshm_data_entry entry{};
        entry.struct_size = sizeof entry;
        REQUIRE(fabricshm_data_set_entry(set, 2, &entry) == 0);
        CHECK(std::string(entry.name, entry.name_bytes) == "folder");
        CHECK(entry.flags == FABRICSHM_DATA_FOLDER);
        std::uint64_t index = 9;
        CHECK(fabricshm_data_set_find(set, "a", &index) == 0);
        CHECK(index == 0);
        std::vector<std::byte> bytes(30'000);
        std::uint64_t got = 0;
        CHECK(fabricshm_data_read(set, 0, 1000, bytes.data(), bytes.size(), kTimeout, &got) == 0);
        CHECK(got == 27'000);
        CHECK(wrong_bytes(bytes.data(), got, "/set/a", 1, 1000) == 0);
        fabricshm_data_stats stats{};
        stats.struct_size = sizeof stats;
        CHECK(fabricshm_data_get_stats(one.data, &stats) == 0);
        CHECK(stats.misses == 1);
        CHECK(stats.bytes == 27'000);
        CHECK(stats.pinned == 0);
        CHECK(stats.slots == 3968);
        fabricshm_data_plan plan =
            fabricshm_data_plan_make(FABRICSHM_DATA_DISTRIBUTED_SAMPLER, 40, 2);
        plan.world = 2;
        plan.flags = FABRICSHM_DATA_IN_ORDER | FABRICSHM_DATA_DROP_LAST;
        CHECK(fabricshm_data_announce(set, &plan) == 0);
        CHECK(one.service.last_plan().seed == 42);
        CHECK(one.service.last_plan().kind == 1);
        CHECK(one.service.last_plan().flags == 3);
        fabricshm_data_set_close(set);
        fabricshm_data_close(one.data);
    }

    TEST_CASE("every refusal names the argument or the file, and changes nothing") {
        Data one;
        fabricshm_data_set* const set = one.list();
        fabricshm_data_set* other = nullptr;
        fabricshm_data_view view{&one, 77, 99};
        CHECK(fabricshm_data_list(one.data, "set", 0, kTimeout, &other) == FABRICSHM_EINVAL);
        for (const std::uint32_t flags : {3U, 4U, 6U}) {
            CHECK(fabricshm_data_list(one.data, "/set", flags, kTimeout, &other) ==
                  FABRICSHM_EINVAL);
        }
        CHECK(fabricshm_data_list(one.data, "/set", 0, -2, &other) == FABRICSHM_EINVAL);
        CHECK(fabricshm_data_list(one.data, "/none", 0, kTimeout, &other) == FABRICSHM_ENOENT);
        CHECK(text() == "path '/none': list: no such object");
        CHECK(other == nullptr);
        CHECK(fabricshm_data_acquire(set, 9, 0, kTimeout, &view) == FABRICSHM_ENOENT);
        CHECK(text() == "file 9 of /set: index: no such object");
        CHECK(fabricshm_data_acquire(set, 2, 0, kTimeout, &view) == FABRICSHM_EINVAL);
        CHECK(text() == "file 'folder' of /set: read: a folder");
        one.service.change("/set/a");
        CHECK(fabricshm_data_acquire(set, 0, 0, kTimeout, &view) == FABRICSHM_ECHANGED);
        CHECK(text() == "file 'a' of /set: read: another version of the file is there by now");
        CHECK(view.length == 77);
        std::uint64_t got = 5;
        CHECK(fabricshm_data_read(set, 0, 0, nullptr, 1, kTimeout, &got) == FABRICSHM_EINVAL);
        CHECK(got == 5);
        CHECK(fabricshm_data_set_find(set, "z", &got) == FABRICSHM_ENOENT);
        fabricshm_data_plan plan = fabricshm_data_plan_make(FABRICSHM_DATA_FABRIC_SAMPLER, 0, 0);
        plan.rank = 1;
        CHECK(fabricshm_data_announce(set, &plan) == FABRICSHM_EINVAL);
        CHECK(fabricshm_data_open(nullptr, "", &one.data) == FABRICSHM_EINVAL);
        fabricshm_data_set_close(set);
        fabricshm_data_close(one.data);
    }

    TEST_CASE("a file is there when it was committed, and not when it was aborted") {
        Data one;
        fabricshm_data_writer* writer = nullptr;
        CHECK(fabricshm_data_create(one.data, "/set/a", kTimeout, &writer) == FABRICSHM_EEXIST);
        REQUIRE(fabricshm_data_create(one.data, "/set/new", kTimeout, &writer) == 0);
        const std::string piece(40'000, 'x');
        CHECK(fabricshm_data_write(writer, piece.data(), piece.size(), kTimeout) == 0);
        CHECK(fabricshm_data_write(writer, "y", 1, kTimeout) == 0);
        CHECK(one.service.written("/set/new").empty());
        CHECK(fabricshm_data_commit(writer, kTimeout) == 0);
        CHECK(one.service.written("/set/new") == piece + "y");
        REQUIRE(fabricshm_data_create(one.data, "/set/other", kTimeout, &writer) == 0);
        CHECK(fabricshm_data_write(writer, "y", 1, kTimeout) == 0);
        fabricshm_data_abort(writer);
        CHECK(one.service.count(fabricshm::proto::DataType::kAbort) == 1);
        // A part that was not written leaves nothing but the end.
        REQUIRE(fabricshm_data_create(one.data, "/set/other", kTimeout, &writer) == 0);
        one.service.refuse_next(fabricshm::proto::DataType::kWrite, fabricshm::Errc::kSystem,
                                "disk full");
        CHECK(fabricshm_data_write(writer, "y", 1, kTimeout) == FABRICSHM_ESYSTEM);
        CHECK(fabricshm_data_write(writer, "y", 1, kTimeout) == FABRICSHM_EBROKEN);
        CHECK(fabricshm_data_commit(writer, kTimeout) == FABRICSHM_EBROKEN);
        CHECK(one.service.written("/set/other").empty());
        fabricshm_data_close(one.data);
    }

    TEST_CASE("the C++ owners keep alive what they stand on") {
        Data one;
        auto data = std::make_unique<api::Data>(one.data);
        auto set = data->list("/set", api::kRecursive);
        REQUIRE(set.ok());
        data.reset();
        CHECK(set->size() == 3);
        CHECK(set->entry(2)->name == "folder/c");
        CHECK(set->find("nothing").error().code == FABRICSHM_ENOENT);
        auto view = set->view(0);
        REQUIRE(view.ok());
        CHECK(view->bytes().size() == 28'000);
        { const auto gone = std::move(set).value(); }
        const auto bytes = view->bytes();
        CHECK(wrong_bytes(bytes.data(), bytes.size(), "/set/a", 1, 0) == 0);
        view->release();
        CHECK(one.service.evict(one.service.line_of("/set/a")));
    }
}
