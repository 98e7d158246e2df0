#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/client/data_set.hpp"
#include "tests/support/fake_data_service.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;
using proto::DataType;
using test_support::FakeDataService;
using test_support::wrong_bytes;

namespace {

// A service with files and a reader of them.
struct Reader {
    explicit Reader(const FakeDataService::Options& options = {}) : service(options) {
        service.add("/set/a", 28'000);
        service.add("/set/b", 1);
        service.add("/set/c", 0);
        service.add("/set/folder/d", 100);
        client = DataClient::open(service.options()).value();
        set = list();
    }
    std::unique_ptr<DataSet> list(std::uint32_t flags = 0) const {
        return DataSet::list(client, "/set", flags, deadline_from_now(20s)).value();
    }
    std::string read(std::uint64_t index, Bytes offset = 0, Bytes bytes = 100'000) const {
        std::string into(bytes, '\0');
        const auto got = set->read(
            index, offset, std::as_writable_bytes(std::span(into.data(), into.size())), 20s);
        return got.ok() ? into.substr(0, *got) : name_of(got.error().code);
    }
    std::uint64_t evictions_refused(std::uint64_t line) { return service.evict(line) ? 0 : 1; }

    FakeDataService service;
    std::shared_ptr<DataClient> client;
    std::unique_ptr<DataSet> set;
};

bool is_right(const DataView& view, const std::string& path, std::uint64_t version = 1,
              Bytes offset = 0) {
    return wrong_bytes(view.bytes, view.length, path, version, offset) == 0;
}

bool is_right(const std::string& bytes, const std::string& path, std::uint64_t version = 1,
              Bytes offset = 0) {
    return wrong_bytes(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), path,
                       version, offset) == 0;
}

}  // namespace

TEST_SUITE("client.data_reads") {
    TEST_CASE("a listing has names, sizes and folders, and finds by name") {
        Reader reader;
        REQUIRE(reader.set->listing().size() == 4);
        CHECK(reader.set->listing().name(0) == "a");
        CHECK(reader.set->listing().entry(0).bytes == 28'000);
        CHECK(reader.set->listing().entry(3).flags == kEntryFolder);
        CHECK(reader.set->listing().find("b") == 1);
        CHECK_FALSE(reader.set->listing().find("bb"));
        const auto all = reader.list(proto::kDataListRecursive);
        CHECK(all->listing().name(3) == "folder/d");
        const auto none = DataSet::list(reader.client, "/none", 0, deadline_from_now(20s));
        CHECK(none.error().code == Errc::kNotFound);
    }

    TEST_CASE("a view shows the bytes in the pool and asks once") {
        Reader reader;
        for (int i = 0; i < 20; ++i) {
            const DataView view = reader.set->acquire(0, 0, 20s).value();
            CHECK(view.length == 28'000);
            CHECK(is_right(view, "/set/a"));
            CHECK(reader.set->release(view.handle));
        }
        CHECK(reader.service.count(DataType::kFetch) == 1);
        const DataCounts counts = reader.client->process().counts();
        CHECK(counts.hits == 19);
        CHECK(counts.misses == 1);
        CHECK(counts.bytes == 20 * 28'000);
        CHECK(counts.stall_ns > 0);
        // The service sees all but the hits of a batch that has not begun to be published.
        const PinPage& page = reader.service.page(0);
        CHECK(page.notes[kDataNoteHits] == 16);
        CHECK(page.notes[kDataNotePosition] == 17);
        CHECK(page.notes[kDataNoteRing] == reader.service.line_of("/set/a") + 1);
    }

    TEST_CASE("a view from the middle ends with the file, and one at its end is empty") {
        Reader reader;
        const DataView view = reader.set->acquire(0, 27'990, 20s).value();
        CHECK(view.length == 10);
        CHECK(is_right(view, "/set/a", 1, 27'990));
        CHECK(reader.set->release(view.handle));
        CHECK(reader.set->acquire(0, 28'000, 20s).value().length == 0);
        CHECK(reader.set->acquire(2, 0, 20s).value().handle == 0);
        CHECK(reader.set->acquire(0, 28'001, 20s).error().code == Errc::kInvalid);
        CHECK(reader.set->acquire(3, 0, 20s).error().code == Errc::kInvalid);
        CHECK(reader.set->acquire(4, 0, 20s).error().code == Errc::kNotFound);
    }

    TEST_CASE("what a view pins stays, and goes when it is released") {
        Reader reader;
        const std::uint64_t line = reader.service.line_of("/set/a");
        const DataView first = reader.set->acquire(0, 0, 20s).value();
        const DataView second = reader.set->acquire(0, 100, 20s).value();
        CHECK_FALSE(reader.service.evict(line));
        CHECK(is_right(first, "/set/a"));
        CHECK(reader.set->held() == 2);
        CHECK(reader.set->release(first.handle));
        CHECK_FALSE(reader.set->release(first.handle));  // twice does nothing
        CHECK_FALSE(reader.service.evict(line));
        CHECK(reader.set->release(second.handle));
        CHECK(reader.service.evict(line));
        CHECK(reader.set->acquire(0, 0, 0s).error().code == Errc::kTimeout);
        CHECK(is_right(reader.read(0), "/set/a"));
        CHECK(reader.service.count(DataType::kFetch) == 2);
    }

    TEST_CASE("a read goes over chunks, from any place to any other") {
        FakeDataService::Options options;
        options.slots = 2;
        options.slot_bytes = kDataChunkBytes;
        Reader reader(options);
        reader.service.add("/set/large", 2 * kDataChunkBytes + 5'000);
        reader.set = reader.list();
        const std::uint64_t large = reader.set->listing().find("large").value();
        for (const Bytes offset : {Bytes{0}, kDataChunkBytes - 3, kDataChunkBytes + 1}) {
            const std::string bytes = reader.read(large, offset, 3 * kDataChunkBytes);
            CHECK(bytes.size() == 2 * kDataChunkBytes + 5'000 - offset);
            CHECK(is_right(bytes, "/set/large", 1, offset));
        }
        CHECK(reader.read(large, kDataChunkBytes - 3, 6).size() == 6);
        const DataView view = reader.set->acquire(large, kDataChunkBytes - 10, 20s).value();
        CHECK(view.length == 10);
        CHECK(reader.set->release(view.handle));
    }

    TEST_CASE("when all slots hold views another view is kBusy and a read goes on") {
        Reader reader;
        std::vector<DataView> views;
        for (std::size_t i = 0; i < DataPins::kViews; ++i) {
            views.push_back(reader.set->acquire(0, i, 20s).value());
        }
        const auto refused = reader.set->acquire(0, 0, 20s);
        CHECK(refused.error().code == Errc::kBusy);
        CHECK(describe(refused.error()).find("3968 views") != std::string::npos);
        CHECK(is_right(reader.read(0), "/set/a"));
        CHECK(is_right(reader.read(1), "/set/b"));
        CHECK(reader.client->process().counts().copies == 2);
        for (const DataView& view : views) CHECK(reader.set->release(view.handle));
        CHECK(reader.client->process().held() == 0);
        CHECK(reader.set->acquire(0, 0, 20s).ok());
    }

    TEST_CASE("a version that is no more is kChanged, also where its line is another file's") {
        Reader reader;
        const DataView held = reader.set->acquire(0, 0, 20s).value();
        reader.service.change("/set/a");
        CHECK(reader.set->acquire(0, 0, 20s).error().code == Errc::kChanged);
        CHECK(reader.read(0) == "kChanged");
        CHECK(is_right(held, "/set/a", 1));
        CHECK(reader.set->release(held.handle));
        reader.set = reader.list();
        CHECK(is_right(reader.read(0), "/set/a", 2));

        // A line that was given to another file.
        reader.service.line(reader.service.line_of("/set/a")).file = 77;
        CHECK(reader.read(0) == "kChanged");
    }

    TEST_CASE("the silo's error comes with its words") {
        Reader reader;
        reader.service.refuse_next(DataType::kFetch, Errc::kDenied, "s3://x: 403\nAccessDenied");
        const auto refused = reader.set->acquire(0, 0, 20s);
        CHECK(refused.error().code == Errc::kDenied);
        CHECK(describe(refused.error()) == "fetch: s3://x: 403?AccessDenied");
        CHECK(is_right(reader.read(0), "/set/a"));
    }

    TEST_CASE("a service that does not answer is kTimeout, and several threads may wait at once") {
        Reader reader;
        reader.service.hold_fetches(true);
        CHECK(reader.set->acquire(0, 0, 30ms).error().code == Errc::kTimeout);
        std::vector<std::thread> threads;
        std::atomic<int> right{0};
        for (int i = 0; i < 4; ++i) {
            threads.emplace_back([&, i] {
                const std::string path = i % 2 == 0 ? "/set/a" : "/set/b";
                if (is_right(reader.read(static_cast<std::uint64_t>(i % 2)), path)) ++right;
            });
        }
        CHECK(reader.service.wait_for(DataType::kFetch, 5));
        reader.service.hold_fetches(false);
        for (std::thread& thread : threads) thread.join();
        CHECK(right == 4);
    }

    TEST_CASE("a service that says there and brings nothing does not hold a reader for ever") {
        Reader reader;
        reader.service.lie_about_fetches(true);
        CHECK(reader.set->acquire(0, 0, 50ms).error().code == Errc::kTimeout);
    }

    TEST_CASE("tables that make no sense are kCorrupt and never followed") {
        Reader reader;
        CHECK(is_right(reader.read(0), "/set/a"));
        DataLine& line = reader.service.line(reader.service.line_of("/set/a"));
        const DataExtent before{line.offset, line.bytes, line.checksum, line.file, line.chunk};
        line.offset = ~std::uint64_t{63};
        CHECK(reader.read(0) == "kCorrupt");
        line.offset = before.offset;
        line.bytes = 28'001;
        CHECK(reader.read(0) == "kCorrupt");
        line.bytes = before.bytes;
        line.chunk = 1;
        CHECK(reader.read(0) == "kCorrupt");
        line.chunk = 0;
        CHECK(is_right(reader.read(0), "/set/a"));
        CHECK(reader.client->process().held() == 0);
        reader.service.unseal_next_listing();
        const auto unsealed = DataSet::list(reader.client, "/set", 0, deadline_from_now(20s));
        CHECK(unsealed.error().code == Errc::kCorrupt);
    }

    TEST_CASE("a plan is sent with the listing's number") {
        Reader reader;
        proto::DataPlanRequest plan{};
        plan.seed = 12;
        plan.rank = 1;
        plan.world = 4;
        CHECK(reader.set->announce(plan, deadline_from_now(20s)).ok());
        CHECK(reader.service.last_plan().seed == 12);
        CHECK(reader.service.last_plan().listing == reader.set->listing().id());
        // Another plan takes its place, and it ends with the set.
        const int connections = reader.service.connections();
        CHECK(reader.set->announce(plan, deadline_from_now(20s)).ok());
        const auto other = reader.list();
        CHECK(other->announce(plan, deadline_from_now(20s)).ok());
        CHECK(reader.service.wait_for_connections(connections + 1));
        // A service that has forgotten the listing makes another, if the files are the same.
        reader.service.refuse_next(DataType::kPlan, Errc::kNotFound, "too old");
        CHECK(reader.set->announce(plan, deadline_from_now(20s)).ok());
        CHECK(reader.service.last_plan().listing == other->listing().id() + 1);
        reader.service.add("/set/0", 1);
        reader.service.refuse_next(DataType::kPlan, Errc::kNotFound, "too old");
        CHECK(reader.set->announce(plan, deadline_from_now(20s)).error().code == Errc::kChanged);
        reader.set.reset();
        CHECK(reader.service.wait_for_connections(connections));
    }

    // The oracle once more, with versions: what is read is of the version that was listed.
    TEST_CASE("threads that read while files change never see another version's bytes") {
        FakeDataService::Options options;
        options.slots = 4;
        options.slot_bytes = 4096;
        Reader reader(options);
        const std::vector<std::string> names{"/many/1", "/many/2", "/many/3"};
        for (const std::string& name : names) reader.service.add(name, 3000);
        std::atomic<bool> stop{false};
        std::atomic<std::size_t> wrong{0};
        std::atomic<std::size_t> reads{0};
        const auto read = [&] {
            std::vector<std::byte> into(3000);
            while (!stop) {
                const auto set =
                    DataSet::list(reader.client, "/many", 0, deadline_from_now(20s)).value();
                for (std::uint64_t i = 0; i < 9; ++i) {
                    const std::uint64_t version = set->listing().entry(i % 3).version[0];
                    const auto got = set->read(i % 3, 0, into, 20s);
                    if (got.ok()) {
                        wrong += wrong_bytes(into.data(), *got, names[i % 3], version, 0);
                        ++reads;
                    } else if (got.error().code != Errc::kChanged) {
                        ++wrong;
                    }
                }
            }
        };
        std::thread one(read);
        std::thread two(read);
        for (std::size_t i = 0; i < 60; ++i) {
            const std::size_t before = reads;
            while (reads < before + 3 && wrong == 0) std::this_thread::yield();
            reader.service.change(names[i % 3]);
        }
        stop = true;
        one.join();
        two.join();
        CHECK(wrong == 0);
    }

    // The oracle: what is viewed is compared byte by byte, while lines leave and files change.
    TEST_CASE("threads that view while lines are evicted never see another file's bytes") {
        FakeDataService::Options options;
        options.slots = 6;
        options.slot_bytes = 4096;
        Reader reader(options);
        for (int i = 0; i < 12; ++i) reader.service.add("/many/" + std::to_string(10 + i), 2000);
        const auto set = DataSet::list(reader.client, "/many", 0, deadline_from_now(20s)).value();
        std::atomic<bool> stop{false};
        std::atomic<std::size_t> wrong{0};
        std::atomic<std::size_t> views{0};
        const auto view = [&](std::uint64_t first) {
            for (std::uint64_t i = first; !stop; i += 5) {
                const std::uint64_t index = i % 12;
                const auto held = set->acquire(index, 0, 20s);
                if (!held.ok()) {
                    ++wrong;
                    return;
                }
                wrong += wrong_bytes(held->bytes, held->length,
                                     "/many/" + std::to_string(10 + index), 1, 0);
                set->release(held->handle);
                ++views;
            }
        };
        std::thread one(view, 0);
        std::thread two(view, 3);
        for (int i = 0; i < 300 || views < 200; ++i) {
            reader.service.evict_all();
            std::this_thread::yield();
        }
        stop = true;
        one.join();
        two.join();
        CHECK(wrong == 0);
    }
}
