// A pool over several devices; regular files stand in for them, as in dax_backend_test.cpp.

#include "libfabricshm/machine/dax_devices.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/machine/dax_backend.hpp"
#include "tests/unit/machine/host_tree.hpp"

using namespace fabricshm;

namespace {

constexpr Bytes kBlock = 2 * kMiB;
constexpr const char* kHost = "0123456789abcdef0123456789abcdef";
constexpr const char* kOtherHost = "fedcba9876543210fedcba9876543210";
constexpr const char* kUuid = "00112233-4455-6677-8899-aabbccddeeff";

struct StandIns {
    explicit StandIns(std::vector<Bytes> blocks = {9, 9}) {
        tree.write("etc/machine-id", kHost);
        use_uuid(kUuid);
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            const std::string name = "dax" + std::to_string(i) + ".0";
            tree.write(name, "");
            REQUIRE(::truncate(tree.path(name).c_str(), 0) == 0);
            REQUIRE(::truncate(tree.path(name).c_str(), static_cast<off_t>(blocks[i] * kBlock)) ==
                    0);
            paths.push_back(tree.path(name));
        }
    }
    void use_uuid(const char* uuid) const {
        HostTree& mutable_tree = const_cast<HostTree&>(tree);
        mutable_tree.write("proc/sys/kernel/random/uuid", uuid);
    }
    DaxOptions options() const {
        DaxOptions result;
        result.devices = paths;
        result.files = tree.files();
        result.settle = [] {};  // there is no other host
        return result;
    }
    std::unique_ptr<PoolBackend> pool() const {
        return std::move(make_dax_backend(options())).value();
    }
    /// Of a refusal; its words are in `why`.
    Errc outcome(const DaxOptions& wanted, std::string* why = nullptr) const {
        const auto made = make_dax_backend(wanted);
        if (made.ok()) return Errc::kOk;
        if (why != nullptr) *why = explanation_of(made.error());
        return made.error().code;
    }
    std::vector<char> get(std::size_t device, Bytes offset, std::size_t bytes) const {
        std::vector<char> data(bytes);
        const Fd fd(::open(paths[device].c_str(), O_RDONLY | O_CLOEXEC));
        REQUIRE(::pread(fd.get(), data.data(), bytes, static_cast<off_t>(offset)) ==
                static_cast<ssize_t>(bytes));
        return data;
    }
    void put(std::size_t device, Bytes offset, const void* data, std::size_t bytes) const {
        const Fd fd(::open(paths[device].c_str(), O_RDWR | O_CLOEXEC));
        REQUIRE(::pwrite(fd.get(), data, bytes, static_cast<off_t>(offset)) ==
                static_cast<ssize_t>(bytes));
    }
    HostTree tree;
    std::vector<std::string> paths;
};

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("machine.dax_devices") {
    TEST_CASE("an arena lies on all devices by turns, and is found again with its contents") {
        const StandIns two;
        {
            auto pool = two.pool();
            CHECK(pool->totals().capacity == 16 * kBlock);
            CHECK(has(pool->describe(), two.paths[0] + ", " + two.paths[1]));
            const auto piece = std::move(pool->create(5, "job", 1000, 4 * kBlock)).value();
            REQUIRE(piece.others.size() == 1);
            const auto view = std::move(piece.map()).value();
            for (Bytes block = 0; block < 4; ++block) {
                view.data()[block * kBlock + 17] = std::byte(block + 1);
            }
        }
        for (std::size_t block = 0; block < 4; ++block) {
            CHECK(two.get(block % 2, kBlock + block / 2 * kBlock + 17, 1)[0] ==
                  static_cast<char>(block + 1));
        }
        auto pool = two.pool();
        const auto found = std::move(pool->list()).value();
        REQUIRE(found.size() == 1);
        CHECK(found[0].name == "job");
        const auto view = std::move(found[0].piece.map()).value();
        for (Bytes block = 0; block < 4; ++block) {
            CHECK(view.data()[block * kBlock + 17] == std::byte(block + 1));
        }
        const auto files = [&](const Fd& second) {
            PresentedFiles all(std::move(found[0].piece.fd.duplicate()).value());
            all.others.push_back(std::move(second.duplicate()).value());
            return all;
        };
        const auto again = pool->adopt(5, 4 * kBlock, files(found[0].piece.others[0]));
        REQUIRE(again.ok());
        CHECK(again->others.size() == 1);
        CHECK(again->stripes.bytes == kBlock);
        CHECK(pool->adopt(5, 4 * kBlock, std::move(found[0].piece.others[0].duplicate()).value())
                  .error()
                  .code == Errc::kCorrupt);
    }

    TEST_CASE("an arena is adopted with all its devices alone, each the very one, in their order") {
        const StandIns two;
        auto pool = two.pool();
        const auto piece = std::move(pool->create(5, "job", 1000, 4 * kBlock)).value();
        const auto outcome = [&](const std::vector<std::string>& paths, int flags = O_RDWR) {
            PresentedFiles all(Fd(::open(paths[0].c_str(), O_RDWR | O_CLOEXEC)));
            for (std::size_t i = 1; i < paths.size(); ++i) {
                all.others.emplace_back(::open(paths[i].c_str(), flags | O_CLOEXEC));
            }
            const auto adopted = pool->adopt(5, 4 * kBlock, std::move(all));
            return adopted.ok() ? Errc::kOk : adopted.error().code;
        };
        const std::string copy = two.paths[1] + ".copy";
        std::filesystem::copy_file(two.paths[1], copy);
        CHECK(outcome(two.paths) == Errc::kOk);
        CHECK(outcome({two.paths[0]}) == Errc::kCorrupt);
        CHECK(outcome({two.paths[0], copy}) == Errc::kCorrupt);
        CHECK(outcome({copy, two.paths[1]}) == Errc::kCorrupt);
        CHECK(outcome({two.paths[1], two.paths[0]}) == Errc::kCorrupt);
        CHECK(outcome({two.paths[0], two.paths[1], two.paths[1]}) == Errc::kCorrupt);
        CHECK(outcome(two.paths, O_RDONLY) == Errc::kCorrupt);
    }

    TEST_CASE("random arenas keep their bytes, seen through the files by an oracle's own sums") {
        std::mt19937_64 random(28);
        const StandIns three({17, 14, 20});
        auto pool = three.pool();
        // 13 blocks of each: the smallest counts.
        CHECK(pool->totals().capacity == 39 * kBlock);
        struct Known {
            std::uint64_t offset;
            Mapping view;
        };
        std::map<std::uint64_t, Known> arenas;
        std::uint64_t last = 0;
        for (int round = 0; round < 60; ++round) {
            CAPTURE(round);
            const bool makes = arenas.empty() || random() % 2 == 0;
            if (makes) {
                const Bytes bytes = (1 + random() % 9) * kBlock;
                auto piece = pool->create(++last, "a", 0, bytes);
                if (!piece.ok()) {
                    CHECK(piece.error().code == Errc::kNoMemory);
                    continue;
                }
                auto view = std::move(piece->map()).value();
                const bool is_zero =
                    std::all_of(view.data(), view.data() + bytes,
                                [](std::byte byte) { return byte == std::byte{0}; });
                REQUIRE(is_zero);
                arenas.emplace(last, Known{piece->file_offset, std::move(view)});
            } else {
                const auto gone = std::next(arenas.begin(), random() % arenas.size());
                std::fill_n(gone->second.view.data(), gone->second.view.size(), std::byte{0xee});
                pool->destroy(gone->first);
                arenas.erase(gone);
            }
            for (const auto& [id, arena] : arenas) {
                const Bytes at = random() % arena.view.size();
                const auto mark = static_cast<char>(random());
                const std::uint64_t stripe = (arena.offset - kBlock + at) / kBlock;
                const Bytes place = (stripe / 3 + 1) * kBlock + (arena.offset + at) % kBlock;
                if (random() % 2 == 0) {
                    arena.view.data()[at] = std::byte(mark);
                    REQUIRE(three.get(stripe % 3, place, 1)[0] == mark);
                } else {
                    three.put(stripe % 3, place, &mark, 1);
                    REQUIRE(arena.view.data()[at] == std::byte(mark));
                }
            }
        }
        CHECK(last > 20);
    }

    TEST_CASE("a pool of one device is byte for byte as named alone") {
        const StandIns one({9});
        one.pool()->create(1, "a", 0, 1).value();
        DaxCatalogue catalogue;
        catalogue.uuid = parse_uuid(kUuid).value();
        catalogue.host = parse_uuid(kHost).value();
        catalogue.device_bytes = 9 * kBlock;
        catalogue.align = kBlock;
        catalogue.epoch = 1;
        catalogue.sequence = 3;
        catalogue.entries = {{1, "a", 0, kBlock, kBlock}};
        const auto expected = encode_catalogue(catalogue);
        const auto stored = one.get(0, kCatalogueCopyBytes, expected.size());
        CHECK(std::equal(stored.begin(), stored.end(),
                         reinterpret_cast<const char*>(expected.data())));
        CHECK(stored[8] == 1);  // the version
        CHECK(std::count(stored.begin() + 88, stored.begin() + 128, '\0') == 40);
    }

    TEST_CASE("large pools have larger stripes, so that a process can map all of them") {
        const StandIns two({40000, 40000});
        const auto devices = DaxDevices::open(two.paths, two.tree.files());
        REQUIRE(devices.ok());
        CHECK(devices->stripe() == 8 * kBlock);
        CHECK((devices->space(8 * kBlock) - kBlock) / (8 * kBlock) <= DaxDevices::kStripesMax);
    }

    TEST_CASE("as many stripes as there may be are not made larger for the catalogue's block") {
        const auto stripe_of = [](Bytes blocks) {
            const StandIns two({1 + blocks, 1 + blocks});
            return DaxDevices::open(two.paths, two.tree.files()).value().stripe();
        };
        CHECK(stripe_of(DaxDevices::kStripesMax / 2) == kBlock);
        CHECK(stripe_of(DaxDevices::kStripesMax / 2 + 1) == 2 * kBlock);
    }
}

TEST_SUITE("machine.dax_devices refusals") {
    TEST_CASE(
        "missing, exchanged, foreign and blank devices are refused by name, left as they are") {
        const StandIns three({9, 9, 9});
        three.pool()->create(1, "a", 0, kBlock).value();
        std::vector<std::vector<char>> before;
        for (std::size_t i = 0; i < 3; ++i) before.push_back(three.get(i, 0, kBlock));
        const auto& paths = three.paths;
        std::string why;
        DaxOptions options = three.options();

        options.devices = {paths[0], paths[1]};
        CHECK(three.outcome(options, &why) == Errc::kNotFound);
        CHECK(has(why, paths[0] + " is device 1 of 3 of pool " + kUuid + ", and 2 are named"));
        options.devices = {paths[0]};
        CHECK(three.outcome(options, &why) == Errc::kNotFound);
        CHECK(has(why, "and 1 is named"));
        options.devices = {paths[1]};
        CHECK(three.outcome(options, &why) == Errc::kNotFound);
        CHECK(has(why, paths[1] + " is device 2 of 3"));
        options.devices = {paths[0], paths[2], paths[1]};
        CHECK(three.outcome(options, &why) == Errc::kNotFound);
        CHECK(has(why, paths[2] + " is device 3 of 3"));
        CHECK(has(why, "should be device 2 of 3"));
        options.devices = {paths[1], paths[0], paths[2]};
        CHECK(three.outcome(options, &why) == Errc::kNotFound);
        CHECK(has(why, paths[1] + " is device 2 of 3"));
        options.devices = {paths[0], paths[1], paths[1]};
        CHECK(three.outcome(options, &why) == Errc::kInvalid);
        CHECK(has(why, paths[1] + " is named twice"));

        const StandIns blank({9});
        options.devices = {paths[0], blank.paths[0], paths[2]};
        CHECK(three.outcome(options, &why) == Errc::kNotFound);
        CHECK(has(why, blank.paths[0] + " has no label, and should be device 2 of 3"));
        options.devices = {blank.paths[0], paths[1], paths[2]};
        CHECK(three.outcome(options, &why) == Errc::kExists);
        CHECK(has(why, paths[1] + " is device 2 of 3"));
        options.devices = {paths[0], blank.tree.path("nowhere"), paths[2]};
        CHECK(three.outcome(options, &why) == Errc::kNotFound);
        CHECK(has(why, "nowhere"));

        const StandIns other({9, 9, 9});
        other.use_uuid("ffffffff-4455-6677-8899-aabbccddeeff");
        other.pool();
        options.devices = {paths[0], other.paths[1], paths[2]};
        CHECK(three.outcome(options, &why) == Errc::kNotFound);
        CHECK(has(why, other.paths[1] + " is device 2 of 3 of pool ffffffff"));

        for (std::size_t i = 0; i < 3; ++i) CHECK(three.get(i, 0, kBlock) == before[i]);
        CHECK(blank.get(0, 0, kBlock) == std::vector<char>(kBlock));
        CHECK(three.outcome(three.options()) == Errc::kOk);
    }

    TEST_CASE("a damaged label is refused, and a second daemon is kept from any of the devices") {
        const StandIns two;
        auto pool = two.pool();
        std::string why;
        DaxOptions second = two.options();
        second.devices = {two.paths[1]};
        CHECK(two.outcome(second) == Errc::kBusy);
        pool.reset();
        two.put(1, 20, "damage", 6);
        two.put(1, kCatalogueCopyBytes + 20, "damage", 6);
        CHECK(two.outcome(two.options(), &why) == Errc::kCorrupt);
        CHECK(has(why, two.paths[1]));
    }

    TEST_CASE("a second device of another size that changes the space is refused") {
        const StandIns two({9, 12});
        two.pool();
        REQUIRE(::truncate(two.paths[1].c_str(), 10 * kBlock) == 0);
        CHECK(two.outcome(two.options()) == Errc::kOk);  // the smallest counts
        REQUIRE(::truncate(two.paths[1].c_str(), 8 * kBlock) == 0);
        CHECK(two.outcome(two.options()) == Errc::kCorrupt);
    }

    TEST_CASE("formatting that was cut off before the labels is refused until it is repeated") {
        const StandIns two;
        two.pool();
        const std::vector<char> blank(kBlock);
        two.put(1, 0, blank.data(), blank.size());
        std::string why;
        CHECK(two.outcome(two.options(), &why) == Errc::kNotFound);
        CHECK(has(why, two.paths[1] + " has no label"));
        DaxOptions options = two.options();
        options.format = true;
        CHECK(two.outcome(options) == Errc::kOk);
        CHECK(two.outcome(two.options()) == Errc::kOk);
    }

    TEST_CASE("more than eight devices, and none, are refused") {
        DaxOptions options;
        CHECK(make_dax_backend(options).error().code == Errc::kInvalid);
        options.devices = std::vector<std::string>(9, "/dev/null");
        CHECK(make_dax_backend(options).error().code == Errc::kInvalid);
    }
}

TEST_SUITE("machine.dax_devices several hosts") {
    TEST_CASE("labels follow a take-over, and keep other hosts from formatting") {
        StandIns two;
        two.pool()->create(1, "a", 0, 1).value();
        two.tree.write("etc/machine-id", kOtherHost);
        DaxOptions label = two.options();
        label.devices = {two.paths[1]};
        label.format = true;
        CHECK(two.outcome(two.options()) == Errc::kDenied);
        CHECK(two.outcome(label) == Errc::kDenied);
        StandIns mine({9});
        DaxOptions mixed = two.options();
        mixed.devices = {mine.paths[0], two.paths[1]};
        mixed.format = true;
        std::string why;
        CHECK(two.outcome(mixed, &why) == Errc::kDenied);
        CHECK(has(why, two.paths[1]));

        DaxOptions take = two.options();
        take.take_over = true;
        CHECK(make_dax_backend(take).value()->list().value().size() == 1);
        CHECK(two.outcome(two.options()) == Errc::kOk);
        two.tree.write("etc/machine-id", kHost);
        CHECK(two.outcome(two.options()) == Errc::kDenied);
        CHECK(two.outcome(label) == Errc::kDenied);
    }

    TEST_CASE("a take-over that was cut off before the labels is completed at the next start") {
        StandIns two;
        two.pool();
        const auto label = two.get(1, 0, kBlock);
        two.tree.write("etc/machine-id", kOtherHost);
        DaxOptions take = two.options();
        take.take_over = true;
        make_dax_backend(take).value();
        two.put(1, 0, label.data(), label.size());
        DaxOptions format = two.options();
        CHECK(two.outcome(format) == Errc::kOk);
        CHECK(two.get(1, 0, kBlock) != label);
        two.put(1, 0, label.data(), label.size());
        format.format = true;
        CHECK(two.outcome(format) == Errc::kOk);
    }

    TEST_CASE("a guest has to have the same devices in the same order") {
        const StandIns two;
        two.pool();
        const auto opened = [&](const std::vector<std::string>& paths) {
            const auto made = DaxDevices::open_as_guest(paths, two.tree.files());
            return made.ok() ? Errc::kOk : made.error().code;
        };
        CHECK(opened(two.paths) == Errc::kOk);
        CHECK(opened({two.paths[0]}) == Errc::kNotFound);
        CHECK(opened({two.paths[1], two.paths[0]}) == Errc::kNotFound);
        CHECK(opened({two.paths[0], two.paths[0]}) == Errc::kNotFound);
        CHECK(opened({}) == Errc::kInvalid);
    }

    TEST_CASE("any whole lines are written out of the caches, wherever a block begins") {
        const StandIns two;
        two.pool();
        const auto devices = DaxDevices::open_as_guest(two.paths, two.tree.files()).value();
        const Stripes stripes = devices.first().load().value().stripes();
        const auto flushes = [&](std::uint64_t offset, Bytes bytes) {
            return devices.flush(stripes, stripes.skip + offset, bytes).ok();
        };
        CHECK(flushes(0, kBlock));
        CHECK(flushes(4096, 4096));
        CHECK(flushes(kBlock - 4096, 2 * 4096));
        CHECK(flushes(kCacheLine, 3 * kBlock));
    }
}
